"""What the server said of itself beside what was measured of it, as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.serverload import disagrees
from ..results import StepSummary
from .numbers import number, percent, with_error

TITLES = (
    ("queue_ms", "queue"),
    ("prefill_ms", "prefill"),
    ("decode_ms", "decode"),
    ("ttft_ms", "TTFT"),
    ("e2e_ms", "E2E"),
)


def server_lines(summary: StepSummary) -> list[tuple[str, str]]:
    """Lines of a step's details, as (label, text); none where the server's metrics were not read."""
    server = summary.server
    if server is None:
        return []
    load = []
    if server.in_flight is not None:
        load.append(f"{with_error(server.in_flight)} requests in flight by its own count")
    for value, what in ((server.running, "running"), (server.waiting, "waiting")):
        if value is not None:
            load.append(f"{number(value)} {what}")
    load += [f"{number(value)} at {part}" for part, value in server.parts.items()]
    failed = f", {server.failed:,} failed" if server.failed else ""
    load.append(f"{server.scrapes:,} scrapes{failed}")
    state = []
    if server.kv_use_share is not None:
        peak = f", {percent(server.kv_use_peak_share)} at the peak" if server.kv_use_peak_share is not None else ""
        size = f" of {server.kv_tokens:,.0f} tokens" if server.kv_tokens else ""
        state.append(f"KV cache {percent(server.kv_use_share)}{size} in use{peak}")
    if server.prefix_hit_share is not None:
        state.append(f"prefix cache hits {percent(server.prefix_hit_share)}")
    if server.spec_accepted_share is not None:
        state.append(f"drafted tokens accepted {percent(server.spec_accepted_share)}")
    if server.preemptions:
        state.append(f"{server.preemptions:,.0f} preemptions")
    if server.rejected:
        state.append(f"{server.rejected:,.0f} rejected")
    if server.gpu_use_percent is not None:
        state.append(f"GPU {server.gpu_use_percent:.0f} %")
    times = [f"{what} {number(value)}" for key, what in TITLES if (value := getattr(server, key)) is not None]
    if times:
        state.append(f"{', '.join(times)} ms in the mean")
    lines = [("server load", " · ".join(load)), ("server state", " · ".join(state))]
    residual = summary.littles_law_server_residual
    if residual is not None:
        text = f"of requests in flight, against the one here {100 * residual:+z.2f} %"
        if server.edge_requests is not None:
            text += f", up to {number(server.edge_requests)} requests of it by the way between"
        lines.append(("server's count", text))
    return [line for line in lines if line[1]]


def server_notes(summaries: Sequence[StepSummary]) -> list[str]:
    """Where the server's own count of requests is not the one that was sent: the worst step, and what it may mean."""
    found = [s for s in summaries if disagrees(s)]
    if not found:
        return []
    worst = max(found, key=lambda s: abs(s.littles_law_server_residual or 0.0))
    server, ours = worst.server, worst.concurrency_mean
    assert server is not None
    assert server.in_flight is not None
    more = server.in_flight.value > (ours or 0.0)
    causes = (
        "other traffic on the server, or several answers to one request"
        if more
        else "a proxy or gateway that holds requests back, an admission limit before the server's queue,"
        " or replicas whose metrics were not read (--metrics-url)"
    )
    if not more and worst.flags.get("retried"):
        causes += "; requests that waited here to be tried again"
    where = f" at step {worst.step}" if len(summaries) > 1 else ""
    others = (
        f"; so at {len(found) - 1:,} other steps" if len(found) > 2 else "; so at another step" if found[1:] else ""
    )
    return [
        f"the server held {with_error(server.in_flight)} requests in the mean where {number(ours)} were in flight from"
        f" here{where} (Little's law{others}): {causes}"
    ]
