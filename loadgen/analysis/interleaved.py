"""Pairs of whole runs, A and B in turn: what a drifting or stalling server leaves of a difference. Pure.

The order is ABBA ABBA …, so that a steady drift falls on both alike. Each pair gives one log ratio of each figure, and
Student's t over the pairs asks no more of a run than that it is like the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..results import Estimate, StepSummary
from ..stats import binomial_bounds, effective_n
from .compare import PRIMARY, Difference, Failing, guarded_differences, load_of
from .ratios import paired


def order(pairs: int) -> str:
    """Which is measured when: `ABBAABBA…`, two letters a pair."""
    return "".join("AB" if i % 2 == 0 else "BA" for i in range(pairs))


def run_level(
    a: Sequence[StepSummary], b: Sequence[StepSummary], figures: Sequence[tuple[str, float | None]] = PRIMARY
) -> list[Difference]:
    """The primary figures (a metric and its percentile, None for throughput) of B's runs over A's, pair by pair; a pair
    where either has none is left out."""
    found = []
    for metric, p in figures:
        both = [
            (x, y)
            for x, y in ((_figure(s, metric, p), _figure(t, metric, p)) for s, t in zip(a, b, strict=True))
            if x and y
        ]
        logs = np.array([math.log(y / x) for x, y in both])
        mean_a, mean_b = (float(np.exp(np.mean([math.log(v[i]) for v in both]))) if both else None for i in (0, 1))
        load = load_of(a[0]) if a else None
        ratio = paired(logs) if len(both) else None
        found.append(Difference(metric, p, load, mean_a, mean_b, ratio, "pairs of runs", primary=True))
    return guarded_differences(found)


def failing(a: Sequence[StepSummary], b: Sequence[StepSummary]) -> tuple[Failing, ...]:
    """The share of judged requests that failed, over all runs of a side. The spread of the runs sets the effective
    sample: a server that failed once for a while is not one that fails."""
    if not a or not sum(s.judged for s in a) or not sum(s.judged for s in b):
        return ()
    return (Failing(load_of(a[0]), *(_failed(side) for side in (a, b))),)


def _failed(side: Sequence[StepSummary]) -> Estimate:
    judged, bad = (np.array([getattr(s, key) for s in side], dtype=np.float64) for key in ("judged", "failed"))
    n, share = float(judged.sum()), float(bad.sum() / judged.sum())
    shares = bad[judged > 0] / judged[judged > 0]
    k = len(shares)
    spread = n / k * float(shares.var(ddof=1)) / (share * (1 - share)) if 0 < share < 1 and len(shares) > 1 else 1.0
    low, high = binomial_bounds(share, effective_n(round(n), max(1.0, spread), k))
    return Estimate(share, low, high)


def _figure(s: StepSummary, metric: str, p: float | None) -> float | None:
    if p is None:
        return s.output_throughput.value if s.output_throughput else None
    found = s.latency.get(metric)
    q = found.at(p) if found else None
    return q.value if q else None
