"""The next load of a sweep, or its end: one pure function of the levels measured so far.

Rules, in this order:
1. A level that says nothing more can be learnt (client limit, too many failures, budget, interrupt) ends the sweep.
2. A given list of levels is measured to its end.
3. Without a broken objective the load rises by `factor`, until throughput stops growing or the highest level is done.
4. Once a level is too much, the gap between it and the highest that is not is halved on the log scale, down to the
   resolution. An undecided level is taken to be on the side of its point estimate, but never counted as held or
   broken: where none is proven to fail, one more rung is measured for that. A level whose percentile is proven to lie
   within 5 % of its objective is the answer.
5. At the end an early level is measured again, to see whether the server is still the one that it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UsageError
from ..records import LevelResult, NextLevel, Stop
from .answer import stopped
from .levels import Latest, again, bracket, broken, certain, check_factor, ended_by, flattened, marginal

ADMISSION = "errors:admission_limit"


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """How a sweep climbs. `gain` is the growth of throughput per doubling of load below which it no longer pays;
    `resolution` the ratio of broken to held level that is fine enough; `refine` the most levels spent on reaching it,
    by default as many as it takes from one rung to the next; `revisit` measures an early level again at the end.

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

    def __post_init__(self) -> None:
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
        certain fail."""
        return 0 if self.levels is not None else (self.halvings + 2 if self.has_slo else 0) + self.revisit


def parse_levels(text: str) -> tuple[int, ...]:
    """`1,2,8` → (1, 2, 8); UsageError naming the part that is no level."""
    levels = []
    for part in text.replace(",", " ").split():
        if not part.isascii() or not part.isdigit() or len(part) > 18 or int(part) < 1:
            raise UsageError(
                f"'{part[:40]}' is not a level of concurrency.", "write whole numbers, as in --levels 1,8,64"
            )
        levels.append(int(part))
    if not levels:
        raise UsageError("The list of levels is empty.", "write whole numbers, as in --levels 1,8,64")
    return tuple(levels)


def decide(history: Sequence[LevelResult], plan: SweepPlan) -> NextLevel | Stop:
    """What to do after `history`, the measured windows in their order."""
    latest = {level.concurrency: level for level in history}  # of several windows the last decides
    if history and (reason := ended_by(history[-1])):
        below = [n for n, level in latest.items() if n < history[-1].concurrency and ended_by(level) is None]
        if reason == "errors" and history[-1].admitted and below:
            reason = ADMISSION
        return _stop(reason, history, plan, history[-1])
    if plan.levels is not None:
        if len(history) < len(plan.levels):
            return NextLevel(plan.levels[len(history)], f"level {len(history) + 1} of {len(plan.levels)}")
        unheld = plan.has_slo and (bracket(latest)[1] is not None or marginal(latest) is not None)
        return _stop(_slo(latest) if unheld else flattened(latest, plan.gain) or "max_level", history, plan)
    if not history:
        return NextLevel(plan.start, "baseline")
    found = _objectives(latest, plan) if plan.has_slo else None
    found = found or flattened(latest, plan.gain) or ("max_level" if max(latest) >= plan.max_level else None)
    if isinstance(found, NextLevel):
        return found
    if found is None:
        why = "no objective broke yet" if plan.has_slo else "throughput may still grow"
        return NextLevel(_above(max(latest), plan), why)
    early = again(history) if plan.revisit else None
    if early is not None:
        return NextLevel(early, "again, to see whether the server is steady")
    return _stop(found, history, plan)


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


def _stop(reason: str, history: Sequence[LevelResult], plan: SweepPlan, last: LevelResult | None = None) -> Stop:
    listed = plan.levels is not None
    return stopped(reason, history, has_slo=plan.has_slo, gain=plan.gain, last=last, listed=listed)
