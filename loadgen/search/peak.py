"""The highest throughput of the measured levels, and the level to measure again where it is not known well enough.
Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ..results import Estimate, LevelResult
from .levels import Latest, changed, ended_by, latest_of, log_throughput

AGAIN = 4  # windows at most of levels measured before, that of the early level among them
_Z = 1.96  # half a printed 95 % interval, which already carries Student's t, is _Z standard errors wide


def imprecise(history: Sequence[LevelResult], reason: str, precision: float) -> int | None:
    """The level to measure once more for its throughput alone, so that the highest is known to `precision` (a share of
    it, 95 %): of those that it comes from, the one known worst. None where it is known so well, where `AGAIN` windows
    were second ones, or where two windows of a level differ, so that no longer window would tell."""
    levels = highest(throughputs(history), reason, precision)
    best = mean_of(levels)
    if best is None or within(best, precision) or changed(history) is not None:
        return None
    if len(history) - len({level.concurrency for level in history}) >= AGAIN:
        return None
    return max(levels, key=lambda n: _error(levels[n]) or math.inf)


def within(estimate: Estimate, precision: float) -> bool:
    """Is half of the interval no wider than that share of the value? Not, where there is none."""
    if estimate.low is None or estimate.high is None:
        return False
    return (estimate.high - estimate.low) / 2 <= precision * estimate.value


def throughputs(history: Sequence[LevelResult]) -> dict[int, Estimate]:
    """What each level gave over all its windows. The window by which a level came to be the highest is too high on
    average; beside longer ones it weighs little."""
    windows: dict[int, list[Estimate]] = {}
    for level in history:
        if level.verdict != "baseline" and log_throughput(level) is not None and level.output_throughput is not None:
            windows.setdefault(level.concurrency, []).append(level.output_throughput)
    known = of_levels(latest_of(history))
    for n, estimates in windows.items():
        mean = mean_of(dict(enumerate(estimates))) if n in known else None
        if mean is not None and len(estimates) > 1:
            known[n] = mean
    return known


def of_levels(latest: Latest) -> dict[int, Estimate]:
    """The throughput of each level at which neither the client nor failures were the limit, upwards."""
    return {
        n: level.output_throughput
        for n, level in sorted(latest.items())
        if level.output_throughput is not None and ended_by(level) not in ("client_bound", "errors")
    }


def highest(known: Mapping[int, Estimate], reason: str, precision: float | None = None) -> dict[int, Estimate]:
    """The levels that the highest throughput is told by: at a plateau the last two, as the larger of two equals is
    biased up; else the largest. With a precision, the largest known so well, unless another lies above its interval."""
    if reason == "plateau" and len(known) > 1:
        return {n: known[n] for n in sorted(known)[-2:]}

    def largest(of: Iterable[int]) -> int | None:
        return max(of, key=lambda n: known[n].value, default=None)

    best = largest(known)
    well = None if precision is None else largest(n for n, one in known.items() if within(one, precision))
    if best is not None and well is not None and known[best].value <= (known[well].high or 0.0):
        best = well
    return {} if best is None else {best: known[best]}


def mean_of(estimates: Mapping[int, Estimate]) -> Estimate | None:
    """Their mean, weighted by their errors; without an interval where one of several has none."""
    several = list(estimates.values())
    if len(several) < 2:
        return several[0] if several else None
    errors = [error for one in several if (error := _error(one)) is not None]
    if len(errors) < len(several):
        return Estimate(sum(one.value for one in several) / len(several))
    weights = [1 / error**2 for error in errors]
    mean = sum(weight * one.value for weight, one in zip(weights, several, strict=True)) / sum(weights)
    half = _Z / math.sqrt(sum(weights))
    return Estimate(mean, mean - half, mean + half)


def _error(estimate: Estimate) -> float | None:
    """Its standard error; None where it has no interval."""
    if estimate.low is None or estimate.high is None or estimate.high <= estimate.low:
        return None
    return (estimate.high - estimate.low) / 2 / _Z


def peak_goodput(latest: Latest) -> float | None:
    """The most requests/s that met every per-request objective, at any level; None without such objectives."""
    known = [level.goodput for level in latest.values() if level.goodput is not None and ended_by(level) is None]
    return max(known, default=None)
