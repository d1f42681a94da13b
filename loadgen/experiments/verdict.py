"""The differences of a setting's pairs → is it as expected? Pure.

as expected  the difference is established and on the expected side; for "the same", its whole interval lies within
             the margin
contrary     it is established on the other side; for "the same", its whole interval lies beyond the margin
undecided    neither: more pairs, or longer runs, would tell
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..analysis.compare import Difference, Failing
from ..analysis.interleaved import failing, run_level
from ..results import ClientLimit, ObjectiveCheck, StepSummary
from .definition import Setting
from .effects import expected_ratio

Answer = Literal["as expected", "contrary", "undecided"]


@dataclass(frozen=True, slots=True)
class Goal:
    """An objective, and the share of each arm's runs whose percentile met it."""

    objective: str
    a: float
    b: float


@dataclass(frozen=True, slots=True)
class Judged:
    """One setting measured. `differences` are the primary questions, that of the expectation first; `formula` is the
    ratio that it expects by hand."""

    setting: Setting
    differences: tuple[Difference, ...]
    answer: Answer
    formula: float | None
    failing: tuple[Failing, ...] = ()
    goals: tuple[Goal, ...] = ()
    limits: tuple[ClientLimit, ...] = ()  # of the runs that the client may have shaped


def judged(setting: Setting, differences: Sequence[Difference], failing: Sequence[Failing] = ()) -> Judged:
    return Judged(setting, tuple(differences), answer(setting, differences[0]), expected_ratio(setting), tuple(failing))


def answer(setting: Setting, first: Difference) -> Answer:
    """`first` is the difference of the expectation's figure."""
    if first.ratio is None or first.ratio.error is None:
        return "undecided"
    value, half, expect = first.ratio.value, first.ratio.half(), setting.expect
    if expect.direction == "same":
        low, high = math.log(1 - expect.margin) if expect.margin < 1 else -math.inf, math.log(1 + expect.margin)
        if low <= value - half and value + half <= high:
            return "as expected"
        return "contrary" if value - half > high or value + half < low else "undecided"
    if not first.found:
        return "undecided"
    return "as expected" if (value > 0) == (expect.direction == "higher") else "contrary"


def goals(a: Sequence[StepSummary], b: Sequence[StepSummary]) -> tuple[Goal, ...]:
    """How each objective fared over the runs of both arms."""
    names = dict.fromkeys(check.objective for summary in (*a, *b) for check in summary.objectives)
    return tuple(Goal(name, _met(name, a), _met(name, b)) for name in names)


def _met(name: str, side: Sequence[StepSummary]) -> float:
    checks = [check for summary in side for check in summary.objectives if check.objective == name]
    return sum(map(_held, checks)) / len(checks) if checks else math.nan


def _held(check: ObjectiveCheck) -> bool:
    return check.exceedance is not None and check.exceedance.value <= check.allowed


def judged_runs(setting: Setting, a: Sequence[StepSummary], b: Sequence[StepSummary]) -> Judged:
    """The runs of both arms, pair by pair. Where the client may have shaped one, nothing is concluded."""
    found = judged(setting, run_level(a, b, setting.primary), failing(a, b))
    limits = tuple(s.client_limit for s in (*a, *b) if s.client_limit is not None)
    return replace(found, goals=goals(a, b), limits=limits, answer="undecided" if limits else found.answer)
