"""What a report says of the client itself: its error, whether it was the limit, and how it fared. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..analysis.redone import without_redone
from ..results import ClientHealth, Lag, StepSummary
from .numbers import percent, plural

_NAMES = (("ttft", "TTFT"), ("itl", "ITL"), ("tpot", "TPOT"), ("e2e", "E2E"))
STEAL_NOTED = 0.02
NEARLY_ALL = 0.8  # of descriptors or ports


def error_text(summaries: Sequence[StepSummary]) -> str:
    """The line `error`: the most that the client can have added to any p99 shown; empty where that is not known."""
    parts = []
    summaries = without_redone(summaries)
    for name, label in _NAMES[:2]:
        bounds = [s.error_ms[name].p99 for s in summaries if name in s.error_ms]
        if bounds:
            parts.append(f"{bound_ms(max(bounds))} ms to any p99 {label}")
    if not parts:
        return ""
    healths = [s.health for s in summaries if s.health is not None]
    by = ", as far as its event loop's lag tells" if any(h.stamps == "user" for h in healths) else ""
    return f"the client added at most {' and '.join(parts)}{by}"


def bound_ms(value: float) -> str:
    """A bound is rounded up: two decimals below 1 ms, two digits above."""
    places = 2 if value < 1 else 1 if value < 10 else 0
    scale = 10.0**places
    return f"{math.ceil(value * scale - 1e-9) / scale:,.{places}f}"


def limit_texts(summaries: Sequence[StepSummary]) -> list[str]:
    """One sentence for each step in which the client may have been the limit, with the one thing to change."""
    found, counted = [], {s.step for s in without_redone(summaries)}
    for s in summaries:
        if s.client_limit is not None:
            load = f"{s.rate:,g} requests/s" if s.rate is not None else f"{s.concurrency:,} in flight"
            if s.step in counted:
                found.append(f"the limit at {load}: {s.client_limit.what} → {s.client_limit.remedy}")
            else:
                found.append(f"the limit at {load} at first, which was measured again: {s.client_limit.what}")
    return found


def health_notes(summaries: Sequence[StepSummary]) -> list[str]:
    """What was unusual about the client, its machine or its connections, without having been the limit."""
    healths = [s.health for s in summaries if s.health is not None]
    notes = []
    if any(h.clock_steps for h in healths):
        notes.append(f"this machine's wall clock was stepped {sum(h.clock_steps for h in healths):,}× during a step")
    steal = max((h.steal_share or 0.0 for h in healths), default=0.0)
    if steal > STEAL_NOTED:
        notes.append(
            f"the hypervisor gave up to {percent(steal)} of this machine's CPU time to others: no stamp shows it"
        )
    if retransmits := sum(h.retransmits or 0 for h in healths):
        notes.append(f"{plural(retransmits, 'segment')} sent again: the network lost some of the requests at first")
    if disorder := sum(h.out_of_order or 0 for h in healths):
        notes.append(f"{plural(disorder, 'segment')} received out of order: lost or late on the way from the server")
    for pairs, what in (
        ([(h.descriptors or 0, h.descriptor_limit) for h in healths], "open files"),
        ([(h.ports or 0, h.port_limit) for h in healths], "ephemeral ports"),
    ):
        near = [(used, limit) for used, limit in pairs if limit and used > NEARLY_ALL * limit]
        if near:
            used, limit = max(near)
            notes.append(f"{used:,} of {limit:,} {what} were in use")
    return notes


def health_lines(summary: StepSummary) -> list[tuple[str, str]]:
    """(label, text) for the details of one step."""
    health = summary.health
    if health is None:
        return []
    lines = []
    bounds = [
        f"{label} p50 {bound_ms(b.p50)}, p99 {bound_ms(b.p99)}"
        for name, label in _NAMES
        if (b := summary.error_ms.get(name)) is not None
    ]
    exact = f"{percent(summary.exact_share)} of the events exact" if summary.exact_share is not None else ""
    lines.append(("error at most", " · ".join([*bounds, *([exact] if exact else [])]) + (" (ms)" if bounds else "")))
    several = [f"{summary.workers} workers, of each figure the worst"] if summary.workers > 1 else []
    lines.append(("client", " · ".join([*several, *_fared(health)])))
    if summary.client_limit is not None:
        lines.append(("the limit", f"{summary.client_limit.what} → {summary.client_limit.remedy}"))
    return lines


def _fared(h: ClientHealth) -> list[str]:
    parts = [f"{h.stamps} stamps" + (f", {h.rejected:,} rejected" if h.rejected else "")]
    if h.cpu_share is not None:
        waited = f", waited for it {percent(h.wait_share)}" if h.wait_share is not None else ""
        parts.append(f"CPU {percent(h.cpu_share)}{waited}")
    for label, lag in (("read lag", h.read_lag_us), ("loop lag", h.loop_lag_us), ("refill lag", h.refill_lag_us)):
        if lag is not None:
            parts.append(_lag(label, lag))
    if h.gc_pauses:
        parts.append(f"{plural(h.gc_pauses, 'GC pause')} up to {_us(h.gc_pause_max_us)}")
    counts = [(h.retransmits, "retransmitted"), (h.out_of_order, "out of order"), (h.dropped, "dropped")]
    known = [f"{n:,} {what}" for n, what in counts if n is not None]
    if known:
        parts.append("segments " + ", ".join(known))
    if h.descriptors is not None:
        limit = f" of {h.descriptor_limit:,}" if h.descriptor_limit else ""
        parts.append(f"{h.descriptors:,}{limit} open files")
    return parts


def _lag(label: str, lag: Lag) -> str:
    return f"{label} p50 {_us(lag.p50)}, p99 {_us(lag.p99)}, max {_us(lag.max)}"


def _us(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.2f} s"
    return f"{value / 1e3:.1f} ms" if value >= 1000 else f"{value:.0f} µs"
