"""The next load of a sweep, or its end: one pure function of the levels measured so far.

Rules, in this order:
1. A level that says nothing more can be learnt (client limit, too many failures, budget, interrupt) ends the sweep;
   one that this client shaped does so when it is shaped again. So does, unless levels are listed, one at which no
   answer has a sample of an objective.
2. A given list of levels is measured to its end.
3. Without a broken objective the load rises by `factor`, until throughput stops growing or the highest level is done.
4. Once a level is too much, the gap between it and the highest that is not is halved on the log scale, down to the
   resolution. An undecided level is taken to be on the side of its point estimate, but never counted as held or
   broken: where none is proven to fail, one more rung is measured for that. A level whose percentile is proven to lie
   within 5 % of its objective is the answer.
5. At the end an early level is measured again, to see whether the server is still the one that it was; or, with
   repeats, the levels on which the answer rests, in turn, and what their windows say together is the answer.
6. With a precision, the level of the highest throughput is measured on until that is known so well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import UsageError
from ..results import LevelResult, NextLevel, Stop
from .answer import stopped, why_again
from .levels import (
    Latest,
    again,
    bracket,
    broken,
    certain,
    check_factor,
    counted,
    ended_by,
    flattened,
    latest_of,
    marginal,
    second_try,
    unsampled,
)
from .peak import AGAIN, imprecise
from .repeats import LEAST, MOST, answering, climb_of, in_turn, pooled

ADMISSION = "errors:admission_limit"
PRECISIONS = (0.01, 0.5)  # the spread that equal batches may hide, RATE_FLOOR, is near the former


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """How a sweep climbs. `gain` is the growth of throughput per doubling of load below which it no longer pays;
    `resolution` the ratio of broken to held level that is fine enough; `refine` the most levels spent on reaching it,
    by default as many as it takes from one rung to the next; `revisit` measures an early level again at the end;
    `second_tries` is how many levels that this client shaped are measured once more;
    `precision` is the share of the highest throughput to which that is to be known;
    `repeats` is how many windows the levels get on which the answer rests, or all of a given list.

    Raises UsageError for a plan that cannot be meant.
    """

    start: int = 1
    factor: float = 2.0
    max_level: int = 256
    levels: tuple[int, ...] | None = None
    has_slo: bool = False
    gain: float = 0.05
    resolution: float = 1.05
    refine: int | None = None
    revisit: bool = True
    repeats: int = 1
    second_tries: int = 2
    precision: float | None = None

    def __post_init__(self) -> None:
        if self.repeats != 1 and self.repeats < LEAST:
            raise UsageError(
                f"{self.repeats} repeats do not tell how much the server's windows differ.",
                f"give --repeats a number of at least {LEAST}",
            )
        if self.precision is not None and not PRECISIONS[0] <= self.precision <= PRECISIONS[1]:
            raise UsageError(
                f"Throughput cannot be asked for to ±{100 * self.precision:g} %.",
                f"give --precision a share from {PRECISIONS[0]:.0%} to {PRECISIONS[1]:.0%}",
            )
        if self.levels is not None:
            if not self.levels or min(self.levels) < 1:
                raise UsageError("The list of levels needs whole numbers above zero.", "write it as in --levels 1,8,64")
            return
        if self.start < 1:
            raise UsageError(f"A sweep cannot start at {self.start}.", "give --start a whole number above zero")
        check_factor(self.factor)
        if self.max_level < self.start:
            raise UsageError(
                f"The highest level, {self.max_level}, is below the first, {self.start}.",
                "raise --max-level or lower --start",
            )

    @property
    def halvings(self) -> int:
        """The most levels spent on the limit between two rungs."""
        if self.refine is not None:
            return self.refine
        if self.resolution <= 1:
            return 64
        return max(0, math.ceil(math.log2(math.log(max(self.factor, 2.0)) / math.log(self.resolution))))

    @property
    def extra(self) -> int:
        """The most levels measured besides the rungs: halvings, the lowest and an early level again, a level for a
        certain fail, repeats, second tries."""
        if self.levels is not None:
            return len(self.levels) * (self.repeats - 1) + self.second_tries
        repeated = MOST * (self.repeats - 1) if self.repeats > 1 else self.revisit
        precise = AGAIN if self.precision is not None else 0
        return (self.halvings + 2 if self.has_slo else 0) + repeated + precise + self.second_tries


def decide(history: Sequence[LevelResult], plan: SweepPlan, verb: str = "sweep") -> NextLevel | Stop:
    """What to do after `history`, the measured windows in their order. What to try next is told in the flags of the
    `verb`."""
    shaped = second_try(history, plan.second_tries)
    history = counted(history)
    if shaped is not None:
        asked = decide(history[:-1], plan, verb)
        if isinstance(asked, Stop) or asked.concurrency != shaped.concurrency:  # a history that is not of this plan
            asked = NextLevel(shaped.concurrency, "")
        return replace(asked, why=why_again(shaped))
    latest = latest_of(history) if plan.repeats == 1 else pooled(history)
    if history and (reason := ended_by(history[-1])):
        below = [n for n, level in latest.items() if n < history[-1].concurrency and ended_by(level) is None]
        if reason == "errors" and history[-1].admitted and below:
            reason = ADMISSION
        return _stop(reason, history, plan, history[-1], verb=verb)
    if plan.levels is None and (missing := unsampled(latest)) and history[-1].verdict != "fail":
        return _stop(f"no_sample:{next(iter(missing))}", history, plan, verb=verb)
    if plan.levels is not None:
        order = in_turn(plan.levels, plan.repeats)
        if len(history) < len(order):
            return NextLevel(order[len(history)], f"level {len(history) + 1} of {len(order)}", repeat=plan.repeats > 1)
        unheld = plan.has_slo and (bracket(latest)[1] is not None or marginal(latest) is not None)
        return _stop(_slo(latest) if unheld else flattened(latest, plan.gain) or "max_level", history, plan, verb=verb)
    if not history:
        return NextLevel(plan.start, "baseline")
    climb = climb_of(history) if plan.repeats > 1 else history
    risen = latest_of(climb)
    found = _objectives(risen, plan) if plan.has_slo else None
    found = found or flattened(risen, plan.gain) or ("max_level" if max(risen) >= plan.max_level else None)
    if isinstance(found, NextLevel):
        return found
    if found is None:
        why = "no objective broke yet" if plan.has_slo else "throughput may still grow"
        return NextLevel(_above(max(risen), plan), why)
    if plan.repeats > 1:
        order = in_turn(answering(risen), plan.repeats - 1)
        done = len(history) - len(climb)
        if done < len(order):
            return NextLevel(order[done], f"repeat {done + 1} of {len(order)}", repeat=True)
        unheld = plan.has_slo and (bracket(latest)[1] is not None or marginal(latest) is not None)
        return _stop(_slo(latest) if unheld else found, history, plan, verb=verb)
    early = again(history) if plan.revisit else None
    if early is not None:
        return NextLevel(early, "again, to see whether the server is steady", check=True)
    unsure = None if plan.precision is None else imprecise(history, found, plan.precision)
    if unsure is not None:
        why = f"again, to know the highest throughput to ±{100 * (plan.precision or 0):g} %"
        return NextLevel(unsure, why, check=True, precise=True)
    return _stop(found, history, plan, verb=verb)


def _above(level: int, plan: SweepPlan) -> int:
    return min(max(level + 1, round(level * plan.factor)), plan.max_level)


def _objectives(latest: Latest, plan: SweepPlan) -> NextLevel | str | None:
    """What the objectives ask for: a level, the end, or nothing yet."""
    if marginal(latest) is not None:
        return _slo(latest)
    near, far = bracket(latest)
    lowest = min(latest)
    if far is None:
        return None
    top = max(latest)
    if certain(latest)[1] is None and far == top and top < plan.max_level:
        return NextLevel(_above(top, plan), f"{far} is undecided: look for a level that fails for certain")
    if near is not None and far - near > 1 and far / near > plan.resolution and _refined(latest, plan) < plan.halvings:
        return NextLevel(min(max(round(math.sqrt(near * far)), near + 1), far - 1), f"between {near} and {far}")
    if latest[lowest].verdict == "baseline" and near in (None, lowest) and lowest < far:
        return NextLevel(lowest, "again at full length: is it held?")
    return _slo(latest)


def _refined(latest: Latest, plan: SweepPlan) -> int:
    """How many of the measured levels are not rungs of the ladder."""
    rungs, level = {plan.start}, plan.start
    while level < min(max(latest), plan.max_level):
        level = _above(level, plan)
        rungs.add(level)
    return len(latest.keys() - rungs)


def _slo(latest: Latest) -> str:
    name = broken(latest)
    return f"slo:{name}" if name else "slo"


def _stop(
    reason: str, history: Sequence[LevelResult], plan: SweepPlan, last: LevelResult | None = None, *, verb: str
) -> Stop:
    listed = plan.levels is not None
    repeated = plan.repeats > 1
    return stopped(
        reason,
        history,
        has_slo=plan.has_slo,
        gain=plan.gain,
        last=last,
        listed=listed,
        verb=verb,
        repeated=repeated,
        precision=plan.precision,
    )
