"""The next arrival rate of an open-loop sweep, or its end: one pure function of the rates measured so far.

The rate is doubled until requests in flight are proven to grow, or an objective breaks; then the gap between the
highest rate that holds and the lowest that does not is narrowed. An overloaded server works as fast as it can: what it
completed per second is its capacity, and the next rate is just below that.

How finely can it be told? At 0.97 of the capacity a step is called unstable at most once in twenty times; at 1.15
nearly always, at 1.08 mostly; nearer than that neither step nor sweep can tell. So the answer is good to about 8 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import UsageError
from ..results import LevelResult, NextLevel, Stop
from ..slo import broken_names
from .answer import why_again, why_cut, why_failed
from .levels import bracket, certain, check_factor, counted, ended_by, marginal, second_try
from .verdict import ERRORS

UNSTABLE = "unstable"  # the name under which a rate breaks at which requests pile up
RESOLUTION = 1.08
BELOW = 0.97  # of the capacity that an overloaded step shows
LOWEST = 64  # times below the start, at most


@dataclass(frozen=True, slots=True)
class RatePlan:
    """From which rate to start, in requests/s, and how high to go. Raises UsageError for what cannot be meant."""

    start: float = 1.0
    factor: float = 2.0
    most: float = 256.0
    resolution: float = RESOLUTION
    refine: int = 6
    second_tries: int = 2  # of rates at which this client was the limit

    def __post_init__(self) -> None:
        if not self.start > 0:
            raise UsageError(f"A sweep cannot start at {self.start:g} requests/s.", "give --rate a number above zero")
        if not self.start <= self.most:
            raise UsageError(
                f"The highest rate, {self.most:g} requests/s, is below the first, {self.start:g}.",
                "raise --max-rate or lower --rate",
            )
        check_factor(self.factor)

    @property
    def rungs(self) -> tuple[float, ...]:
        """The rates of the rise."""
        rates = [self.start]
        while rates[-1] < self.most:
            rates.append(min(self.most, rates[-1] * self.factor))
        return tuple(rates)

    @property
    def lower(self) -> tuple[float, ...]:
        """The rates that are tried where the first does not hold, one after the other."""
        rates = [self.start / 4]
        while rates[-1] * LOWEST > self.start:
            rates.append(rates[-1] / 4)
        return tuple(rates)


def piled(level: LevelResult, grew: bool) -> LevelResult:
    """The level, knowing whether its requests in flight were proven to grow. Without objectives, that they were not is
    all that is asked for."""
    if ended_by(level) is not None:
        return level
    if grew:
        broke = (UNSTABLE, *(name for name in level.broke if level.verdict == "fail" and name != UNSTABLE))
        return replace(level, verdict="fail", broke=broke, p_hat_beyond=True)
    return replace(level, verdict="pass") if level.verdict == "measured" else level


def decide_rate(history: Sequence[LevelResult], plan: RatePlan) -> NextLevel | Stop:
    """What to do after `history`, each with its `rate`."""
    shaped = second_try(history, plan.second_tries)
    if shaped is not None:
        return _next(shaped.rate or 0.0, why_again(shaped))
    history = counted(history)
    latest = {level.rate or 0.0: level for level in history}
    if history and (reason := ended_by(history[-1])):
        return _stop(reason, latest, plan, history[-1])
    if not history:
        return _next(plan.start, "the lowest rate asked for")
    near, far = bracket(latest)
    if marginal(latest) is not None:
        return _stop(_reason(latest, far), latest, plan)
    if far is None:
        top = max(latest)
        if top >= plan.most:
            return _stop("max_level", latest, plan)
        return _next(min(plan.most, top * plan.factor), "nothing broke yet")
    if near is None:
        lower = min(latest) / 4
        if lower * LOWEST >= plan.start:
            return _next(lower, "nothing holds yet")
        return _stop(_reason(latest, far), latest, plan)
    between = [rate for rate in latest if near <= rate <= far]
    spent = len([rate for rate in latest if not _rung(rate, plan)])
    if far / near > plan.resolution and spent < plan.refine and len(between) >= 2:
        capacity = latest[far].completed if UNSTABLE in latest[far].broke else None
        finer = math.sqrt(plan.resolution)
        if capacity is not None and near * finer < BELOW * capacity < far / finer:
            return _next(BELOW * capacity, "just below what the overloaded server completed")
        return _next(math.sqrt(near * far), f"between {near:,.4g} and {far:,.4g}")
    return _stop(_reason(latest, far), latest, plan)


def _next(rate: float, why: str) -> NextLevel:
    return NextLevel(0, why, rate=float(f"{rate:.4g}"))


def _rung(rate: float, plan: RatePlan) -> bool:
    steps = math.log(rate / plan.start, plan.factor)
    return abs(steps - round(steps)) < 1e-3


def _reason(latest: Mapping[float, LevelResult], far: float | None) -> str:
    names = latest[far].broke if far is not None else ()
    names = names or next((level.broke for level in latest.values() if level.verdict == "marginal"), ())
    if UNSTABLE in names:
        return UNSTABLE
    return f"slo:{names[0]}" if names else "slo"


def _stop(reason: str, latest: Mapping[float, LevelResult], plan: RatePlan, last: LevelResult | None = None) -> Stop:
    held, broke = certain(latest)
    limit = None
    if reason == UNSTABLE or reason.partition(":")[0] == "slo":  # a rate that was cut short is no answer
        near, far = bracket(latest)
        met = marginal(latest)
        limit = met if met is not None else near if far is not None else None
    known = [level.output_throughput for level in latest.values() if level.output_throughput is not None]
    peak = max(known, key=lambda estimate: estimate.value, default=None)
    goodput = max((level.goodput for level in latest.values() if level.goodput is not None), default=None)
    said = _said(reason, latest, plan, last, held, broke)
    return Stop(reason, held, broke, peak, said, limit=limit, peak_goodput=goodput)


def _said(
    reason: str,
    latest: Mapping[float, LevelResult],
    plan: RatePlan,
    last: LevelResult | None,
    held: float | None,
    broke: float | None,
) -> str:
    kind, _, detail = reason.partition(":")
    where = f"at {last.rate or 0:,.4g} requests/s" if last is not None else ""
    parts = []
    if kind == ERRORS and last is not None:
        parts.append(why_failed(last, where))
    elif kind == "client_bound":
        parts.append(f"This client could not hold the rate {where}, so that step says nothing of the server.")
    elif kind in ("budget", "interrupted"):
        parts.append(why_cut(kind, detail, where))
    elif kind == "max_level":
        parts.append(f"No limit up to {plan.most:,.4g} requests/s, the highest rate allowed.")
    names = broken_names(latest[broke].broke, latest[broke].checks) if broke is not None else ""
    if held is not None:
        parts.append(f"{held:,.4g} requests/s hold{', ' if broke is not None else '.'}")
        if broke is not None:
            parts[-1] += f"{broke:,.4g} do not ({names})."
    elif broke is not None:
        parts.append(f"No rate is proven to hold; {broke:,.4g} requests/s do not ({names}).")
    if kind in (UNSTABLE, "slo"):
        parts.append("A rate within 8 % of the capacity cannot be told from it.")
    return " ".join(parts)
