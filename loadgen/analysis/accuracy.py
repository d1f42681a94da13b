"""How wrong the client can be, and whether it was the limit. Pure: over columns and the client's own health.

A stamp of an arrival is never early, and late by at most `base`, plus its own bound where it is flagged:
    kernel stamps   base is 20 µs: from the segment's way into the IP stack to its stamp. No lag of the client enters.
                    After a step of the wall clock 1 ms more: up to that, a stamp does not contradict the clock.
    user stamps     how late each read was taken is not known; the event loop's own lag stands for it, its median for a
                    median and its p99 for a p99. This is an estimate, where the others are bounds.
    flagged         the event came in one read with later ones: at most (this stamp - the read before it) late.
A request's first byte left at `sent_ns` or later, by at most what the write took (`sent_bound_us`; 20 µs where none is
given).

Hence, with r and s the bounds of a receive and of a send stamp, for each request or gap
    ttft - r(first) - s(sent)  <=  true ttft  <=  ttft          and the same for e2e with its last token;
    gap - r(later)             <=  true gap   <=  gap + r(earlier);
    tpot - r(last)/n           <=  true tpot  <=  tpot + r(first)/n          over n tokens.
A percentile grows with each of its values, so that of the true values lies between those of the lower and of the upper
ends. The bound of a percentile is the larger of its distances to these two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..log.columns import NULL, UNKNOWN, Columns
from ..results import ClientHealth, ClientLimit, ErrorBound
from . import metrics

Floats = NDArray[np.float64]

KERNEL_BASE_MS = 0.02
STEPPED_CLOCK_MS = 1.0
PROMPT_SEND_MS = 0.02

# The client was the limit: beyond these it may have shaped what it reports. A lateness that was measured counts from
# 5 %, within which a verdict is `marginal` anyway. A bound is the most that an error can be, twice what it is in the
# mean where arrivals fall anywhere in the time not looked at: it counts from 10 %. Where the CPU was waited for, but
# not most of the time, the effects decide: kernel stamps do not mind, and requests sent late are seen.
LATE_SHARE = 0.05  # of a request's median E2E: for the median lag
TAIL_SHARE = 0.25  # …and for its p99
BOUND_SHARE = 0.1  # of the percentile itself
LATE_MS = 1.0  # what is smaller is of no consequence to anyone
CPU_LIMIT = 0.9  # of one CPU, by the thread that reads
WAIT_LIMIT = 0.5  # of the time, ready to run without a CPU
REJECTED_LIMIT = 0.001  # of all stamps
FEW = 3  # fewer late requests than this are a hiccup
COMPETING = 0.05  # a wait for the CPU above this is a reason for what else went wrong
BUSY = 0.5  # and so is a use of it above this


@dataclass(frozen=True, slots=True)
class Range:
    """A latency as measured, and between what the true one lies; ms, each of shape (n,)."""

    values: Floats
    low: Floats
    high: Floats

    def at(self, p: float) -> tuple[float, float]:
        """The p-th percentile, and how far it can be off."""
        value, low, high = (float(np.percentile(x, p)) for x in (self.values, self.low, self.high))
        return value, max(value - low, high - value)

    def beyond(self, limit_ms: float) -> int:
        """How many values can be off by more."""
        return int((((self.values - self.low) > limit_ms) | ((self.high - self.values) > limit_ms)).sum())


def receive_base_ms(health: ClientHealth, p: float) -> float | None:
    """How late any stamp of an arrival can be that is not flagged, as far as the p-th percentile is concerned; None
    where that is not known."""
    if health.stamps == "kernel":
        return KERNEL_BASE_MS + (STEPPED_CLOCK_MS if health.clock_steps else 0.0)
    lag = health.loop_lag_us
    return None if lag is None else (lag.p50 if p <= 50 else lag.p99) / 1e3


def ranges(ok: Columns, health: ClientHealth, p: float, reach_ms: float = np.inf) -> dict[str, Range]:
    """`ttft`, `e2e`, `tpot` and `itl` of these requests, where there are any and their bounds are known, to ask for the
    p-th percentile.

    `reach_ms` caps the bound of a flagged event, for who asks what the client itself can have added: events that came
    together though it was never away for so long were sent, or carried, together.
    """
    base = receive_base_ms(health, p)
    known = ok.has_events | ~ok.flag("bounded")
    if base is None or not len(ok) or not known.all():
        return {}
    found: dict[str, list[Range]] = {}
    for part in ok.parts():
        for name, one in _ranges(part, base, reach_ms).items():
            found.setdefault(name, []).append(one)
    return {name: _joined(some) for name, some in found.items()}


def _joined(parts: list[Range]) -> Range:
    """One of several, which are used up: of every gap of a step there is room for little more than the result."""
    sides = [[r.values for r in parts], [r.low for r in parts], [r.high for r in parts]]
    parts.clear()
    return Range(*(np.concatenate(sides.pop(0)) for _ in range(3)))


def _ranges(ok: Columns, base: float, reach_ms: float) -> dict[str, Range]:
    late = base + np.minimum(np.where(ok.event_bound_us == UNKNOWN, 0, ok.event_bound_us) / 1e3, reach_ms)
    first, last = np.full(len(ok), base), np.full(len(ok), base)
    filled = np.diff(ok.event_offsets) > 0
    first[filled] = late[ok.event_offsets[:-1][filled]]
    rows = ok.event_rows()
    # Events after the last token carry none; gaps are whole µs, so that a stamp may be half a µs off.
    tail = ok.event_ns + 1000 >= ok.last_token_ns[rows]
    np.maximum.at(last, rows[tail], late[tail])
    sent = np.maximum(np.where(ok.sent_bound_us == NULL, 0, ok.sent_bound_us) / 1e3, PROMPT_SEND_MS)
    spread = np.maximum(np.where(ok.output_count == NULL, 0, ok.output_count) - metrics.first_event_tokens(ok), 1)

    found: dict[str, Range] = {}
    ttft, e2e, tpot, itl = metrics.ttft(ok), metrics.e2e(ok), metrics.tpot(ok), metrics.itl(ok)
    for name, values, over, under in (
        ("ttft", ttft, first + sent, np.zeros(len(ok))),
        ("e2e", e2e, last + sent, np.zeros(len(ok))),
        ("tpot", tpot, last / spread, first / spread),
        ("itl", itl.values, late[itl.later] / itl.tokens, late[itl.later - 1] / itl.tokens),
    ):
        there = ~np.isnan(values)
        if there.any():
            some = values[there]
            found[name] = Range(some, np.maximum(some - over[there], 0.0), some + under[there])
    return found


def error_bounds(ok: Columns, health: ClientHealth | None) -> Mapping[str, ErrorBound]:
    """How far the client can have moved p50 and p99 of each latency of the measured ok requests, at most."""
    if health is None:
        return {}
    high = ranges(ok, health, 99.0)
    middle = high if health.stamps == "kernel" else ranges(ok, health, 50.0)
    return {name: ErrorBound(middle[name].at(50.0)[1], high[name].at(99.0)[1]) for name in high}


def exact_share(ok: Columns) -> float | None:
    """Of the output events, those that came in a read of their own, or last in one."""
    return float((ok.event_bound_us == UNKNOWN).mean()) if len(ok.event_bound_us) else None


# --- was the client the limit? --------------------------------------------------------------------------------------


def client_limit(
    ok: Columns, health: ClientHealth | None, *, open_loop: bool = False, in_bursts: bool = False
) -> ClientLimit | None:
    """Could the client have shaped the figures of these requests (measured, ok)? Then how, and the one thing to change.

    Looked for in the order of causes: a clock that cannot be trusted, a CPU shared with others, a CPU of its own that
    is full; then their effects on the figures, whatever the cause: requests sent late, stamps too uncertain. How late
    an open loop sends is judged where its schedule is. Answers that came `in_bursts`, for which the client's own lag
    was ruled out, have gaps of next to nothing within a burst: there is no ITL that the client could have shaped.
    """
    if health is None or not len(ok):  # without an answer there are no figures to shape
        return None
    if health.stamped and health.rejected > REJECTED_LIMIT * health.stamped:
        return ClientLimit(
            f"{health.rejected:,} of {health.stamped:,} kernel stamps contradicted the clock",
            "find what steps this machine's clock, and measure when it is steady",
        )
    if health.wait_share is not None and health.wait_share > WAIT_LIMIT:
        return ClientLimit(
            f"the client was ready to run, but without a CPU, for {_percent(health.wait_share)} of the time", _CPU
        )
    if health.cpu_share is not None and health.cpu_share > CPU_LIMIT:
        return ClientLimit(f"the client used {_percent(health.cpu_share)} of a CPU", _SPREAD)
    return (None if open_loop else _refilled_late(ok, health)) or _uncertain(ok, health, in_bursts=in_bursts)


def _refilled_late(ok: Columns, health: ClientHealth) -> ClientLimit | None:
    """Slots that stood empty, or requests that waited in the client, for a time comparable with a request's own."""
    e2e = metrics.e2e(ok)
    if np.isnan(e2e).all():
        return None
    median = float(np.nanmedian(e2e))
    # Half of the slots late by a twentieth of a request's time take that much of the load away; a tail takes less.
    limit, tail = max(LATE_MS, LATE_SHARE * median), max(LATE_MS, TAIL_SHARE * median)
    # Opening a connection is the network's and the server's part in it.
    lag = metrics.dispatch_lag(ok) - np.nansum(metrics.connect_ms(ok), axis=1)
    ranked = np.sort(lag[~np.isnan(lag)])
    # As the refill lag's: of a small sample the third largest, so that a hiccup is not taken for a habit.
    high = float(ranked[max(0, min((99 * len(ranked) - 1) // 100, len(ranked) - FEW))]) if len(ranked) else 0.0
    middle = float(ranked[len(ranked) // 2]) if len(ranked) else 0.0
    refill = health.refill_lag_us
    for what, half, most in (
        ("requests were sent", middle, high),
        ("slots were refilled", refill.p50 / 1e3 if refill else 0.0, refill.p99 / 1e3 if refill else 0.0),
    ):
        if half > limit or most > tail:
            late = f"{_ms(half)} late (median)" if half > limit else f"up to {_ms(most)} late (p99)"
            return ClientLimit(f"{what} {late}, where a request takes {_ms(median)} (median)", _remedy(health))
    return None


def _uncertain(ok: Columns, health: ClientHealth, *, in_bursts: bool) -> ClientLimit | None:
    """Bounds comparable with the latency they belong to. Events that came together count for no more than the client
    was ever away from its sockets."""
    lags = [lag.p99 / 1e3 for lag in (health.loop_lag_us, health.read_lag_us) if lag is not None]
    reach = max(lags, default=np.inf)
    found: dict[str, Range] = {}
    for p in (50.0, 99.0):
        if not found or health.stamps != "kernel":  # whose bounds are the same for every percentile
            found = ranges(ok, health, p, reach)
        for name, one in found.items():
            if in_bursts and name == "itl":
                continue
            value, bound = one.at(p)
            limit = max(LATE_MS, BOUND_SHARE * value)
            if bound > limit and one.beyond(limit) >= FEW:
                return ClientLimit(
                    f"the client may have moved p{p:g} {name.upper()} by {_ms(bound)} of its {_ms(value)}",
                    _remedy(health),
                )
    return None


_CPU = "give it a CPU of its own: stop what else runs on this machine, or measure from another one"
_SPREAD = "spread the load over more processes (--workers), or over more machines"


_HELD_UP = "find what held it up (a slow disk under --output, a machine that sleeps), or measure from another one"


def _remedy(health: ClientHealth) -> str:
    if (health.wait_share or 0.0) > COMPETING:
        return _CPU
    return _HELD_UP if health.cpu_share is not None and health.cpu_share < BUSY else _SPREAD


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _ms(value: float) -> str:
    return f"{value:,.1f} ms" if value < 100 else f"{value:,.0f} ms"
