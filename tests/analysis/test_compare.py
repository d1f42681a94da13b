"""Comparisons of engines of known difference, in virtual time, and of records made by hand.

`benchmarks/compare.py` has the rates over hundreds of pairs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest

from benchmarks.compare import ENGINES, UNSTEADY, interleaved, run, side, slower
from benchmarks.virtual import VirtualStep
from loadgen.analysis import summarise_run
from loadgen.analysis.compare import Comparison, Difference, How, Load, RunSide, compare, guarded, together
from loadgen.analysis.interleaved import order, run_level
from loadgen.analysis.ratios import LogRatio
from loadgen.analysis.regression import Check, judge_losses, worse_by
from loadgen.log.columns import columns
from loadgen.results import Slo
from tests.report.summaries import run_records

ENGINE = ENGINES[0]


@cache
def step(loss: float, seed: int, number: int, output_len: int = 0) -> VirtualStep:
    mix = replace(ENGINE.mix, output_len=output_len) if output_len else None
    config = slower(ENGINE.config, loss) if loss else ENGINE.config
    return run(ENGINE, config, seed, number, requests=600, mix=mix)


def compared(loss: float, *, paired: bool, output_len: int = 0) -> Comparison:
    key = 1 if paired else None
    return compare(side(step(0.0, 1, 1), key), side(step(loss, 1 if paired else 2, 2, output_len), key))


def figure(found: Comparison, metric: str, p: float | None) -> Difference:
    return next(d for d in found.differences if (d.metric, d.percentile) == (metric, p))


@pytest.mark.parametrize("paired", [True, False])
def test_a_true_loss_lies_in_its_interval(paired: bool) -> None:
    found = compared(0.10, paired=paired)
    d = figure(found, "output_throughput", None)
    assert d.how == ("paired" if paired else "independent") and d.found and d.primary and d.ratio is not None
    ratio = d.ratio.ratio
    assert ratio.low is not None and ratio.high is not None and ratio.low < 0.90 < ratio.high
    loss = worse_by(d)
    assert loss is not None and loss.value == pytest.approx(0.10, abs=0.05)


def test_equal_work_tells_more_than_equal_loads() -> None:
    widths = []
    for paired in (True, False):
        ratio = figure(compared(0.0, paired=paired), "output_throughput", None).ratio
        assert ratio is not None
        widths.append(ratio.half())
    assert widths[0] < 0.7 * widths[1]


def test_equal_engines_are_not_told_apart() -> None:
    assert not any(d.found for d in compared(0.0, paired=True).primary)


def test_other_lengths_are_weighted_to_those_of_the_first() -> None:
    """Twice the output: raw E2E is far longer, and at equal lengths it is not."""
    found = compared(0.0, paired=False, output_len=36)
    (share,) = found.overlap.values()
    assert 0.5 < share < 1
    d = figure(found, "e2e", 50.0)
    assert d.how == "adjusted" and d.a is not None and d.b is not None and d.ratio is not None
    assert found.primary == [] and not any(one.found for one in found.differences)  # nothing is concluded from it
    assert d.b / d.a > 1.25 and abs(d.ratio.value) < math.log(1.15)


@pytest.mark.parametrize(
    ("loss", "margin", "answer"),
    [(0.10, 0.03, "regression"), (0.0, 0.05, "held"), (0.10, 0.10, "undecided"), (0.0, 0.0, "undecided")],
)
def test_a_loss_against_a_margin(loss: float, margin: float, answer: str) -> None:
    found = compared(loss, paired=True)
    (judged,) = judge_losses([figure(found, "output_throughput", None)], margin)
    assert judged.answer == answer
    assert (judged.more is None) or answer == "undecided"


def test_the_length_that_would_decide_decides() -> None:
    """An error that shrinks with the root of the length."""
    d = replace(figure(compared(0.0, paired=True), "output_throughput", None), ratio=LogRatio(math.log(0.97), 0.02, 9))
    (judged,) = judge_losses([d], 0.05)
    assert judged.answer == "undecided" and judged.more is not None
    longer = replace(d, ratio=LogRatio(math.log(0.97), 0.02 / math.sqrt(judged.more * 1.01), 9))
    assert judge_losses([longer], 0.05)[0].answer == "held"


def test_failures_alone_are_a_regression() -> None:
    records, observations = run_records()
    c = columns(records)
    bad = columns(
        [replace(r, outcome="error") if r.phase == "measured" and i % 3 else r for i, r in enumerate(records)]
    )
    a, b = (RunSide(n, None, t, summarise_run(t, Slo(), observations)) for n, t in (("a", c), ("b", bad)))
    found = compare(a, b)
    assert all(f.worse for f in found.failing) and not any(f.worse for f in compare(a, a).failing)
    assert Check(judge_losses(found.primary, 0.99), found.failing).answer == "regression"


def test_only_loads_that_both_measured_and_three_of_them_at_the_most() -> None:
    made = []
    for levels in ((1, 2, 4, 8, 16), (2, 4, 8, 16, 32)):
        records, observations = run_records(levels)
        c = columns(records)
        made.append(RunSide("x", None, c, summarise_run(c, Slo(), observations)))
    found = compare(*made)
    assert [load.value for load in found.loads] == [2, 4, 8, 16]
    assert found.alone_a == (Load(False, 1),) and found.alone_b == (Load(False, 32),)
    assert sorted({d.load.value for d in found.primary if d.load}) == [2, 8, 16]
    assert len(found.curve) == 3
    for d in found.curve:
        assert d.load is None and d.primary and d.p_adjusted is not None and d.over == found.loads


def test_invalid_steps_are_left_out_and_an_earlier_sound_one_stands() -> None:
    records, observations = run_records((1, 8, 8))
    c = columns(records)
    whole = RunSide("x", None, c, summarise_run(c, Slo(), observations))
    again, lost = replace(whole, invalid={3: "slow"}), replace(whole, invalid={2: "slow", 3: "slow"})
    found = compare(whole, again)
    assert found.loads == (Load(False, 1), Load(False, 8))
    assert [side.summary.step for side in found.matched[1]] == [3, 2]
    found = compare(whole, lost)
    assert (found.loads, found.alone_a, found.alone_b) == ((Load(False, 1),), (), ())
    assert compare(lost, replace(whole, invalid={1: "slow"})).loads == ()


def test_a_rate_is_not_compared_with_as_many_in_flight() -> None:
    """8 in flight and 8 requests/s are of one number, and are two loads."""
    made = []
    for rate in (None, 8.0):
        records, observations = run_records((1, 8))
        c = columns(records)
        summaries = [replace(s, rate=rate if s.step == 2 else None) for s in summarise_run(c, Slo(), observations)]
        made.append(RunSide("x", None, c, summaries))
    found = compare(*made)
    assert found.loads == (Load(False, 1),)
    assert found.alone_a == (Load(False, 8),) and found.alone_b == (Load(True, 8.0),)


def test_holm_is_over_the_primary_differences_of_all_runs() -> None:
    one = compared(0.0, paired=True)
    both = guarded([one, one])
    for alone, d in zip(one.primary, both[0].primary, strict=True):
        assert alone.p_adjusted is not None and d.p_adjusted is not None and d.p_adjusted >= alone.p_adjusted
    assert all(d.p_adjusted is None for d in both[0].differences if not d.primary)


def at(load: float, value: float, error: float | None, how: How = "paired") -> Difference:
    """A difference in throughput."""
    return Difference("output_throughput", None, Load(False, load), 1.0, 1.0, LogRatio(value, error, 30), how, True)


SURE = [at(1, 0.02, 0.001), at(8, 0.04, 0.001)]


@pytest.mark.parametrize(
    ("differences", "over", "value"),
    [
        (SURE, (1, 8), 0.03),
        ([*SURE, at(24, 3.0, 0.001, "adjusted"), at(32, 3.0, 0.001, "other lengths")], (1, 8), 0.03),
        ([*SURE, at(24, 3.0, None)], (1, 8), 0.03),
        ([SURE[0], at(8, 0.04, 0.001, "adjusted")], None, None),
        ([SURE[0]], None, None),
    ],
    ids=["all", "two of other lengths", "one of too few requests", "one of two of other lengths", "one load"],
)
def test_over_all_loads_together_are_those_of_which_something_can_be_concluded(
    differences: list[Difference], over: tuple[float, ...] | None, value: float | None
) -> None:
    found = [(tuple(load.value for load in d.over), d.ratio and d.ratio.value) for d in together(differences)]
    assert found == ([] if over is None else [(over, pytest.approx(value))])


@pytest.mark.parametrize(("value", "proven"), [(0.0021, False), (0.01, True)])
def test_a_difference_over_all_loads_is_one_of_the_questions(value: float, proven: bool) -> None:
    """Of a p of 4 % in four questions nothing is concluded."""
    primary = [at(load, value if load > 4 else 0.0, 0.0014) for load in (1, 2, 8)]
    pooled = replace(at(0, value, 0.001), load=None, over=(Load(False, 1), Load(False, 2), Load(False, 8)))
    assert pooled.found, "by itself"
    one = replace(compared(0.0, paired=True), differences=tuple(primary), curve=(pooled,))
    (found,) = guarded([one])
    assert [d.found for d in found.curve] == [proven]


def test_pairs_are_in_the_order_abba() -> None:
    assert order(5) == "ABBAABBAAB"
    assert all(order(n).count("A") == order(n).count("B") == n for n in range(1, 9))


def test_pairs_of_runs_that_measured_nothing_say_nothing() -> None:
    assert all(d.ratio is None for d in run_level([], []))
    assert Check(judge_losses(run_level([], []), 0.05)).answer == "undecided"


@pytest.mark.parametrize(("loss", "found"), [(0.0, 0), (0.10, 1)])
def test_pairs_on_a_drifting_engine(loss: float, found: int) -> None:
    engine = replace(ENGINE, config=replace(ENGINE.config, **UNSTEADY["drift"]))
    count = interleaved(engine, slower(engine.config, loss) if loss else engine.config, 1, 200, 6)
    assert (count.throughput, count.n) == (found, 1)
