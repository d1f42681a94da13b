"""Ratios on the log scale against SciPy's tests, Holm's rule, and quantiles with weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from loadgen.analysis.ratios import LogRatio, batch_logs, holm, mean_of, paired, weighted_quantile, welch

samples = st.lists(st.floats(0.1, 100.0), min_size=5, max_size=30)


@given(samples, samples)
def test_welch_is_scipys(one: list[float], other: list[float]) -> None:
    a, b = batch_logs(np.array(one)), batch_logs(np.array(other))
    assert a is not None and b is not None
    if min(np.std(np.log(one)), np.std(np.log(other))) < 0.01:
        return  # the floor of the error takes over
    ours, theirs = welch(a, b), stats.ttest_ind(np.log(other), np.log(one), equal_var=False)
    assert ours.p_value() == pytest.approx(theirs.pvalue, rel=1e-6, abs=1e-12)
    assert ours.df == pytest.approx(theirs.df, rel=1e-6)


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=20))
def test_pairs_are_scipys(logs: list[float]) -> None:
    if np.std(logs) < 0.01:
        return
    ours, theirs = paired(np.array(logs)), stats.ttest_1samp(logs, 0.0)
    assert ours.p_value() == pytest.approx(theirs.pvalue, rel=1e-6, abs=1e-12)
    low, high = theirs.confidence_interval(0.95)
    assert ours.ratio.low == pytest.approx(math.exp(low)) and ours.ratio.high == pytest.approx(math.exp(high))
    assert ours.p_above() == pytest.approx(stats.ttest_1samp(logs, 0.0, alternative="greater").pvalue, abs=1e-9)


@pytest.mark.parametrize(
    ("given_p", "adjusted"),
    [
        ([], []),
        ([0.03], [0.03]),
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),  # Holm (1979): 3 · 0.01, 2 · 0.03, then never less than before
        ([0.5, 0.5, 0.001], [1.0, 1.0, 0.003]),
    ],
)
def test_holm(given_p: list[float], adjusted: list[float]) -> None:
    assert holm(given_p) == pytest.approx(adjusted)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0, 1), st.floats(0.1, 10))
def test_equal_weights_give_numpys_quantile(values: list[float], q: float, weight: float) -> None:
    ours = weighted_quantile(np.array(values), np.full(len(values), weight), q)
    assert ours == pytest.approx(float(np.quantile(values, q)), rel=1e-9, abs=1e-6)


def test_a_weight_moves_the_quantile_to_its_value() -> None:
    values, weights = np.array([1.0, 2.0, 3.0, 100.0]), np.array([1.0, 1.0, 1.0, 0.0])
    assert weighted_quantile(values, weights, 0.5) == 2.0  # no weight, no part in it
    assert weighted_quantile(values, np.array([1.0, 1.0, 1.0, 50.0]), 0.5) > 40
    assert math.isnan(weighted_quantile(values, np.zeros(4), 0.5))


def test_too_few_batches_leave_a_ratio_without_an_interval() -> None:
    few = welch(LogRatio(0.0), LogRatio(math.log(2)))
    assert few.ratio.value == pytest.approx(2) and few.ratio.low is None and few.p_value() == 1.0
    assert batch_logs(np.array([1.0, 0.0, 2.0, 1.0, 1.0])) is None


def test_several_ratios_together_are_surer_than_each() -> None:
    one = LogRatio(0.1, 0.03, 9)
    both = mean_of([one, one])
    assert both.value == pytest.approx(0.1) and both.error == pytest.approx(0.03 / math.sqrt(2))
    assert both.df == pytest.approx(18)
    assert mean_of([one, LogRatio(0.1)]).error is None


def test_what_repeats_itself_to_the_digit_still_has_an_error() -> None:
    same = paired(np.zeros(10))
    assert same.ratio.low is not None and 0.998 < same.ratio.low < 1 and same.p_value() == 1.0
