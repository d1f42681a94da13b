"""Has it become worse by more than a margin? One question per primary difference, answered yes, no, or not yet. Pure.

    regression  the loss's lower bound is above the margin: one-sided at 2.5 %, all questions together (Holm)
    held        the upper bound is below it (97.5 %); for all to hold each must, so nothing is divided
    undecided   the margin lies within; `more` says how much longer the runs would have to be

A loss is a share of A's figure: of throughput what is gone, of a latency what was added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..results import Estimate
from .compare import Difference, Failing, Load
from .ratios import ALPHA, LogRatio, holm

Answer = Literal["regression", "held", "undecided"]
MOST_MORE = 100.0  # times longer: beyond that the loss is as good as the margin itself


@dataclass(frozen=True, slots=True)
class Judged:
    """One question. `loss` is None where either side has no such figure; `p` is Holm's, against a loss of `margin` or
    less; `more` the factor of length that would decide, as far as can be told, None where none below 100 would."""

    difference: Difference
    margin: float
    loss: Estimate | None
    answer: Answer
    p: float = 1.0
    more: float | None = None


@dataclass(frozen=True, slots=True)
class Objection:
    """An objective that B is proven to break at a load, and A is not; or, `undecided`, may break."""

    load: Load
    objective: str
    undecided: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """All answers together. `refused` says why nothing may be concluded, whatever the figures."""

    judged: tuple[Judged, ...]
    failing: tuple[Failing, ...] = ()
    objections: tuple[Objection, ...] = ()
    refused: str = ""

    @property
    def answer(self) -> Answer:
        if self.refused:
            return "undecided"
        if (
            any(one.answer == "regression" for one in self.judged)
            or any(one.worse for one in self.failing)
            or any(not one.undecided for one in self.objections)
        ):
            return "regression"
        held = self.judged and all(one.answer == "held" for one in self.judged) and not self.objections
        return "held" if held else "undecided"

    @property
    def more(self) -> float | None:
        """The factor of length that would decide what is undecided; None where nothing is, or no length would."""
        factors = [one.more for one in self.judged if one.answer == "undecided"]
        return None if not factors or None in factors else max(f for f in factors if f is not None)


def judge_losses(differences: Sequence[Difference], margin: float) -> tuple[Judged, ...]:
    """One answer for each difference; `margin` is a share, 0.05 for 5 %."""
    found = [_judge(d, margin) for d in differences]
    told = [i for i, one in enumerate(found) if one.loss is not None and one.loss.low is not None]
    for i, p in zip(told, holm([found[i].p for i in told]), strict=True):
        worse = p <= ALPHA / 2
        answer: Answer = "regression" if worse else found[i].answer
        found[i] = replace(found[i], p=p, answer=answer, more=found[i].more if answer == "undecided" else None)
    return tuple(found)


def _judge(d: Difference, margin: float) -> Judged:
    if d.ratio is None:
        return Judged(d, margin, None, "undecided")
    ratio, loss = d.ratio.ratio, worse_by(d)
    bound = -math.log(1 - margin) if d.more_is_better else math.log(1 + margin)
    signed = LogRatio(-d.ratio.value if d.more_is_better else d.ratio.value, d.ratio.error, d.ratio.df)
    if signed.error is None or ratio.low is None:
        return Judged(d, margin, loss, "undecided")
    half, gap = signed.half(), abs(signed.value - bound)
    more = (half / gap) ** 2 if gap * math.sqrt(MOST_MORE) > half else None
    held = signed.value + half < bound
    # Undecided within its own bounds only by Holm's rule: a little more will do.
    more = more if more is None else max(more, 1.25)
    return Judged(d, margin, loss, "held" if held else "undecided", signed.p_above(bound), more)


def worse_by(d: Difference) -> Estimate | None:
    """The loss, as a share of A's figure, with its 95 % interval; negative is a gain."""
    if d.ratio is None:
        return None
    r = d.ratio.ratio
    if not d.more_is_better:
        return Estimate(r.value - 1, None if r.low is None else r.low - 1, None if r.high is None else r.high - 1)
    return Estimate(1 - r.value, None if r.high is None else 1 - r.high, None if r.low is None else 1 - r.low)
