"""The answer of a check: of its questions, of what failed, of objectives."""

from __future__ import annotations

import math

import pytest

from loadgen.analysis.compare import Difference, Failing, Load
from loadgen.analysis.ratios import LogRatio
from loadgen.analysis.regression import Answer, Check, Judged, Objection, judge_losses, worse_by
from loadgen.results import Estimate

AT = Load(False, 8)
NONE, SOME = Estimate(0.0, 0.0, 0.01), Estimate(0.2, 0.15, 0.25)


def judged(*ratios: float, p: float | None = 95.0, error: float | None = 0.01) -> tuple[Judged, ...]:
    """Of latencies or, with p None, of throughputs; against a margin of 5 %."""
    return judge_losses(
        [Difference("x", p, AT, 1.0, r, LogRatio(math.log(r), error, 9), "paired") for r in ratios], 0.05
    )


@pytest.mark.parametrize(
    ("ratio", "p", "answer"),
    [
        (1.20, 95.0, "regression"),
        (1.06, 95.0, "undecided"),
        (1.00, 95.0, "held"),
        (0.80, 95.0, "held"),
        (0.80, None, "regression"),
        (0.94, None, "undecided"),
        (1.20, None, "held"),
    ],
)
def test_less_throughput_and_more_latency_are_losses(ratio: float, p: float | None, answer: Answer) -> None:
    (one,) = judged(ratio, p=p)
    assert one.answer == answer
    loss = worse_by(one.difference)
    assert loss is not None and loss.low is not None and loss.high is not None and loss.low < loss.value < loss.high
    assert loss.value == pytest.approx(1 - ratio if p is None else ratio - 1)


def test_without_an_error_nothing_is_decided() -> None:
    (one,) = judged(2.0, error=None)
    assert one.answer == "undecided" and one.loss is not None and one.loss.low is None and one.more is None


def test_a_regression_among_many_questions_has_to_be_surer() -> None:
    alone, *_ = judged(1.08)
    among, *_ = judged(1.08, *[1.0] * 8)
    assert alone.answer == "regression" and among.answer == "undecided"
    assert among.p > alone.p and among.more == 1.25


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (Check(judged(1.0, 1.0)), "held"),
        (Check(judged(1.0, 1.05)), "undecided"),
        (Check(judged(1.0), failing=(Failing(AT, NONE, SOME),)), "regression"),
        (Check(judged(1.0), failing=(Failing(AT, SOME, NONE),)), "held"),
        (Check(judged(1.0), failing=(Failing(AT, SOME, SOME),)), "held"),
        (Check(judged(1.0), objections=(Objection(AT, "x"),)), "regression"),
        (Check(judged(1.0), objections=(Objection(AT, "x", undecided=True),)), "undecided"),
        (Check(judged(1.2), refused="for a reason"), "undecided"),
        (Check(()), "undecided"),
    ],
    ids=[*"abcdefghi"],
)
def test_one_answer_of_all(check: Check, answer: Answer) -> None:
    assert check.answer == answer


def test_the_length_that_decides_all_is_the_longest() -> None:
    one, other = (judged(r)[0].more for r in (1.04, 1.045))
    assert one is not None and other is not None and one < other
    assert Check(judged(1.04, 1.045, 1.0)).more == other
    assert Check(judged(1.04, 1.05)).more is None, "no length would decide the second"
