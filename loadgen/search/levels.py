"""What the measured levels say together: what is proven, where the load becomes too much, what throughput does. Pure.

`latest` maps a level to its last window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from ..errors import UsageError
from ..results import LevelResult
from .verdict import ERRORS

Latest = Mapping[int, LevelResult]
Load = TypeVar("Load", int, float)  # requests in flight, or requests/s

_ENDED = {"client": "client_bound", "errors": "errors", "unauthorized": "errors"}  # any other ending is its own reason
BAND = 0.05  # of an objective: the loads between which the percentile stays so near are as good an answer
NEARBY = 2.2  # levels within this factor of the limit tell how steeply the percentile rises there
FLAT = 4.0  # a band wider than this on either side is no band
FACTORS = (1.01, 1e6)  # from one rung to the next: so a ladder to any load has less than 4,000 of them
CHOSEN = 1.5  # intervals: the largest of several comes out lower when it is measured again
DRIFT = 0.02  # two windows of one load that differ by less are equal, however narrow their intervals


def check_factor(factor: float) -> None:
    """Raises UsageError for one by which a load cannot be raised."""
    if not FACTORS[0] <= factor <= FACTORS[1]:
        raise UsageError(
            f"A factor of {factor:g} raises the load too little or too much.",
            f"give --factor a number from {FACTORS[0]:g} to {FACTORS[1]:,.0f}",
        )


def latest_of(history: Sequence[LevelResult]) -> Latest:
    """Each level's last judged window, or else its first: one that only checked the throughput takes nothing back."""
    latest: dict[int, LevelResult] = {}
    for level in history:
        if level.verdict != "measured" or level.concurrency not in latest:
            latest[level.concurrency] = level
    return latest


def ended_by(level: LevelResult) -> str | None:
    """The stop reason of a level after which nothing more can be learnt; None where one may go on."""
    if level.verdict == "invalid":
        return "client_bound"
    if level.verdict == "fail" and ERRORS in level.broke:
        return "errors"
    return None if level.ended == "complete" else _ENDED.get(level.ended, level.ended)


# --- steps that this client shaped ----------------------------------------------------------------------------------


def counted(history: Sequence[LevelResult]) -> list[LevelResult]:
    """The windows that count: not one that this client shaped, where the sweep went on after it."""
    return [level for place, level in enumerate(history) if not (_shaped(level) and place + 1 < len(history))]


def second_try(history: Sequence[LevelResult], most: int) -> LevelResult | None:
    """The last window, if this client shaped it and may not do so again: whatever had its CPU may have been a moment's.
    None where the window before was the same, or `most` windows were shaped already."""
    shaped = [(level.concurrency, level.rate) for level in history[-2:] if _shaped(level)]
    if not history or not _shaped(history[-1]) or sum(map(_shaped, history)) > most or shaped[1:] == shaped[:1]:
        return None
    return history[-1]


def _shaped(level: LevelResult) -> bool:
    return level.verdict == "invalid" and level.ended == "complete"


# --- objectives -----------------------------------------------------------------------------------------------------


def certain(latest: Mapping[Load, LevelResult]) -> tuple[Load | None, Load | None]:
    """(highest level that passed, lowest that failed), the former below the latter: a pass above a fail proves
    nothing."""
    broke = min((n for n, level in latest.items() if level.verdict == "fail"), default=None)
    held = max(
        (n for n, level in latest.items() if level.verdict == "pass" and (broke is None or n < broke)), default=None
    )
    return held, broke


def again_above(latest: Mapping[Load, LevelResult]) -> tuple[Load, ...]:
    """The levels that passed though a lower one failed."""
    _, broke = certain(latest)
    return tuple(n for n in sorted(latest) if broke is not None and n > broke and latest[n].verdict == "pass")


def unsampled(latest: Mapping[Load, LevelResult]) -> Mapping[str, str]:
    """The objectives of which no judged level has a sample, each with why."""
    found = [level.unsampled for level in latest.values() if level.checks]
    return {name: why for name, why in found[0].items() if all(name in one for one in found)} if found else {}


def bracket(latest: Mapping[Load, LevelResult]) -> tuple[Load | None, Load | None]:
    """(highest level on the near side of the limit, lowest on the far side), neighbours among those measured.

    What is proven decides; between, an undecided level is on the side of its point estimate. One that leans to the far
    side needs a level below it on the near side: a few requests at the lowest load must not end a sweep.
    """
    held, broke = certain(latest)
    near = held
    for n in sorted(latest):
        if n <= (held or 0) or (broke is not None and n >= broke):
            continue
        if latest[n].p_hat_beyond and near is not None:
            return near, n
        if not latest[n].p_hat_beyond:
            near = n
    return near, broke


def marginal(latest: Mapping[Load, LevelResult]) -> Load | None:
    """The level whose objectives are proven to be met to within 5 %, if there is one."""
    return min((n for n, level in latest.items() if level.verdict == "marginal"), default=None)


def broken(latest: Latest) -> str | None:
    """The objective that the lowest level broke that did not hold, or that came closest to showing it."""
    ranked = [latest[level] for level in sorted(latest)]
    failed = [r for r in ranked if r.verdict == "fail"]
    close = [r for r in ranked if r.verdict == "marginal"]
    leaning = [r for r in ranked if r.verdict in ("inconclusive", "baseline") and r.p_hat_beyond]
    return next((r.broke[0] for r in failed + close + leaning if r.broke), None)


def band(latest: Latest, limit: int, objective: str) -> tuple[float, float] | None:
    """Between which loads the objective's percentile stays within 5 % of its limit: a straight line through the levels
    around the answer, on log scales. None where they do not tell, the percentile hardly depends on the load, or the
    line misses all loads from `limit` to the level above: of two answers that contradict one another the measured one
    stays."""
    points = [
        (math.log(n), math.log(ratio))
        for n, level in latest.items()
        if limit / NEARBY <= n <= limit * NEARBY
        and level.verdict not in ("invalid", "baseline")
        and 0 < (ratio := level.of_limit.get(objective, 0.0)) < math.inf
    ]
    if len({x for x, _ in points}) < 2:
        return None
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    steep = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    if steep <= 0:
        return None
    low, high = (math.exp(mean_x + (math.log1p(part) - mean_y) / steep) for part in (-BAND, BAND))
    above = min((n for n in latest if n > limit), default=math.inf)
    known = limit / FLAT <= low and high <= limit * FLAT
    return (low, high) if known and limit <= high and low <= above else None


# --- throughput -----------------------------------------------------------------------------------------------------


def log_throughput(level: LevelResult) -> tuple[float, float] | None:
    """(log throughput, its 95 % half-width), None where no interval is known."""
    t = level.output_throughput
    if level.verdict == "invalid":  # its throughput is the client's
        return None
    if t is None or t.low is None or t.high is None or not 0 < t.low <= t.value <= t.high:
        return None
    return math.log(t.value), math.log(t.high / t.low) / 2


def gain(low: LevelResult, high: LevelResult) -> tuple[float, float] | None:
    """(mean growth of log throughput per doubling of load between two levels, its upper 97.5 % bound)."""
    a, b = log_throughput(low), log_throughput(high)
    if a is None or b is None or high.concurrency <= low.concurrency:
        return None
    doublings = math.log2(high.concurrency / low.concurrency)
    growth = (b[0] - a[0]) / doublings
    return growth, growth + math.hypot(a[1], b[1]) / doublings


def two_doublings_below(latest: Latest) -> int | None:
    """The level two doublings below the highest (3.5 times, as rungs are rounded): two rungs down with factor 2.
    Comparing over two doublings halves the noise of the mean gain, as the level between cancels out."""
    return max((level for level in latest if level * 3.5 <= max(latest)), default=None)


def flattened(latest: Latest, least_gain: float) -> str | None:
    """`over_saturated`: throughput is proven to have fallen over each of the last two steps. `plateau`: its mean gain
    over the last two doublings is proven to be below `least_gain`."""
    levels = sorted(latest)
    if len(levels) >= 3:
        steps = [gain(latest[a], latest[b]) for a, b in zip(levels[-3:], levels[-2:], strict=False)]
        if all(step is not None and step[1] < 0 for step in steps):
            return "over_saturated"
    reference = two_doublings_below(latest)
    if reference is None:
        return None
    growth = gain(latest[reference], latest[levels[-1]])
    return "plateau" if growth is not None and growth[1] < math.log1p(least_gain) else None


# --- steadiness -----------------------------------------------------------------------------------------------------


def again(history: Sequence[LevelResult]) -> int | None:
    """The early level worth a second window at the end, to see whether the server is still the same: the highest one
    at most a quarter of the highest. None with fewer than four levels, or when one was measured twice already."""
    levels = [level.concurrency for level in history]
    if len(set(levels)) < 4 or len(set(levels)) < len(levels):
        return None
    early = [level.concurrency for level in history[1:] if 4 * level.concurrency <= max(levels)]
    return max((n for n in early if log_throughput(_last(history, n)) is not None), default=None)


def changed(history: Sequence[LevelResult]) -> tuple[LevelResult, LevelResult] | None:
    """Two windows of one level whose throughputs differ beyond their intervals and by more than 2 %."""
    earlier: dict[int, list[tuple[LevelResult, tuple[float, float]]]] = {}
    largest = -math.inf
    for second in history:
        b = log_throughput(second)
        if b is None:
            continue
        same = earlier.setdefault(second.concurrency, [])
        if second.verdict != "baseline":
            for first, a in same:
                margin = CHOSEN if a[0] == largest else 1.0
                if abs(a[0] - b[0]) > max(margin * math.hypot(a[1], b[1]), DRIFT):
                    return first, second
            same.append((second, b))
        largest = max(largest, b[0])
    return None


def _last(history: Sequence[LevelResult], n: int) -> LevelResult:
    return next(level for level in reversed(history) if level.concurrency == n)
