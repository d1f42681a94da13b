"""A load that is more than the server can carry. Pure."""

from __future__ import annotations

import math

from ..stability import overloaded
from .finding import Fact, Finding
from .levels import Levels

FALLS = 0.95  # of the highest throughput


def load_findings(run: Levels) -> list[Finding]:
    """`overload`: of an open loop, requests pile up; of a closed one, more in flight bring less."""
    for level in run.by_load:
        s = level.summary
        if s.rate is None or s.window is None or s.attempt_rate is None or not s.completion_rate:
            continue
        behind = s.completion_rate.high is not None and s.completion_rate.high < FALLS * s.attempt_rate
        if not behind and not overloaded(level.rows, s.window, 2):
            continue
        told = (
            Fact("rate at which requests were sent", s.attempt_rate, "requests/s"),
            Fact("rate at which they were answered", s.completion_rate.value, "requests/s"),
            Fact("requests in flight at the peak", float(s.concurrency_peak or 0)),
        )
        text = "requests come faster than the server answers: they pile up, and latencies grow as long as it lasts"
        change = f"send fewer: it answers about {s.completion_rate.value:,.3g} requests/s"
        return [Finding("overload", "warning", "high" if behind else "medium", text, told, change, (s.step,))]
    known = [s for s in run.all if s.output_throughput is not None and s.rate is None]
    if len(known) < 2:
        return []
    by_load = sorted(known, key=lambda s: s.load)
    best = max(by_load, key=lambda s: s.output_throughput.value if s.output_throughput else 0.0)
    last = by_load[-1]
    high, low = last.output_throughput, best.output_throughput
    assert high is not None
    assert low is not None
    if last.load <= best.load or (high.high or high.value) >= FALLS * (low.low or low.value):
        return []
    facts = (
        Fact(f"throughput at {best.load:,g} in flight", low.value, "tokens/s"),
        Fact(f"throughput at {last.load:,g} in flight", high.value, "tokens/s"),
    )
    return [
        Finding(
            "overload",
            "warning",
            "high",
            "more requests in flight bring less throughput: beyond its best load the server loses work",
            facts,
            f"hold no more than {_advised(run, best.load):,g} in flight",
            (last.step,),
        )
    ]


def _advised(run: Levels, best: float) -> float:
    """The best load, but none above the highest that holds the objectives; where none is proven to, none that is proven
    to break them, unless the lowest does."""
    below = [load for load in run.held if load < min(run.broken, default=math.inf)]
    if not below and run.broken:
        loads = sorted({s.load for s in run.all})
        below = [load for load in loads if load < run.broken[0]] or loads[:1]
    return min(best, below[-1]) if below else best
