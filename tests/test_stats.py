from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen import stats

finite = st.floats(-1e9, 1e9, allow_nan=False)


@settings(deadline=None)
@given(st.lists(finite, min_size=1, max_size=60), st.floats(0, 1))
def test_quantile_is_numpys(values: list[float], q: float) -> None:
    x = np.array(values)
    assert stats.quantile(x, q) == pytest.approx(float(np.quantile(x, q)), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(
    ("values", "q", "right"),
    [
        ([1, 2, 3, math.inf], 0.5, 2.5),
        ([1, 2, 3, math.inf], 2 / 3, 3.0),  # exactly the last finite value: no weight on the infinite one
        ([1, 2, 3, math.inf], 0.7, math.inf),
        ([math.inf, math.inf], 0.5, math.inf),
        ([5], 0.99, 5.0),
    ],
)
def test_quantile_with_failures(values: list[float], q: float, right: float) -> None:
    assert stats.quantile(np.array(values, dtype=float), q) == right


@pytest.mark.parametrize(("p", "n"), [(50, 6), (90, 36), (95, 72), (99, 368), (99.9, 3688), (5, 72)])
def test_least_effective_n(p: float, n: int) -> None:
    assert stats.least_effective_n(p) == n
    assert None not in stats.binomial_ranks(n, p / 100)
    assert None in stats.binomial_ranks(n - 1, p / 100)


def test_least_requests_pays_for_estimating_the_correlation() -> None:
    few = stats.least_requests(95, 1)
    assert stats.effective_n(few, 1.0, stats.batch_count(few, 1)) >= 72
    assert 72 < few < stats.least_requests(95, 64) <= 150


def binomial_cdf(j: int, n: int, q: float) -> float:
    return math.fsum(math.comb(n, i) * q**i * (1 - q) ** (n - i) for i in range(j + 1))


@pytest.mark.parametrize("q", [0.05, 0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("n", [1, 5, 6, 36, 72, 73, 150, 368])
def test_ranks_against_the_definition(n: int, q: float) -> None:
    cdf = [0.0] + [binomial_cdf(j, n, q) for j in range(n)]  # cdf[r]: P(fewer than r below the quantile)
    lower = max((r for r in range(1, n + 1) if cdf[r] <= 0.025), default=None)
    upper = min((r for r in range(1, n + 1) if cdf[r] >= 0.975), default=None)
    assert stats.binomial_ranks(n, q) == (lower, upper)


@pytest.mark.parametrize("n", [1, 7, 40, 150])
def test_binomial_bounds_against_the_definition(n: int) -> None:
    for x in range(n + 1):
        low, high = stats.binomial_bounds(x / n, n)
        if x:
            assert 1 - binomial_cdf(x - 1, n, low) == pytest.approx(0.025, abs=1e-9)
        else:
            assert low == 0
        if x < n:
            assert binomial_cdf(x, n, high) == pytest.approx(0.025, abs=1e-9)
        else:
            assert high == 1


@settings(deadline=None)
@given(st.floats(0, 1), st.floats(0.01, 1e5), st.floats(1e-4, 0.5))
def test_binomial_bounds_hold_the_share(share: float, n: float, alpha: float) -> None:
    low, high = stats.binomial_bounds(share, n, alpha)
    assert 0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=200), st.integers(0, 16))
def test_effective_n_never_exceeds_n(flags: list[bool], k: int) -> None:
    deff = stats.design_effect(np.array(flags, dtype=bool), k)
    assert deff >= 1
    assert 0 <= stats.effective_n(len(flags), deff, k) <= len(flags)


@settings(deadline=None)
@given(st.integers(0, 5000), st.integers(1, 300))
def test_batch_count(n: int, c: int) -> None:
    k = stats.batch_count(n, c)
    assert (k == 0) == (n < 5)
    assert k == 0 or (5 <= k <= 16 and k <= n)
    assert k in (0, 5) or n >= 2 * c * k  # more than the least only where each spans two turnovers


def test_batch_means_by_hand() -> None:
    assert stats.batch_means(np.array([1, 3, 5, 7, 9, 11]), 3).tolist() == [2, 6, 10]
    x = np.arange(103.0)
    means = stats.batch_means(x, 7)
    assert len(means) == 7
    assert means.tolist() == sorted(means.tolist())


def test_mean_interval_by_hand() -> None:
    # batch means 2, 4, 6, 8, 10: mean 6, s = sqrt(10), t(4, 0.975) = 2.776445
    found = stats.mean_interval(np.array([1, 3, 3, 5, 5, 7, 7, 9, 9, 11.0]), 5)
    assert found is not None
    assert found.low is not None
    assert found.value == 6
    assert 6 - found.low == pytest.approx(2.7764451 * math.sqrt(10) / math.sqrt(5), rel=1e-6)


def test_too_little_gives_no_interval() -> None:
    assert stats.mean_interval(np.array([]), 5) is None
    assert stats.mean_interval(np.array([3.0]), 0) == stats.Estimate(3.0)
    assert stats.percentile(np.array([]), 95, 5) is None
    assert stats.rate_interval(np.array([5.0, 5.0]), 2.0) == stats.Estimate(5.0)
    assert stats.rate_interval(np.zeros(8), 2.0) == stats.Estimate(0.0)


def test_equal_slices_keep_a_floor() -> None:
    rate = stats.rate_interval(np.full(10, 50.0), 5.0)
    assert rate.low is not None
    assert rate.value == 100
    assert rate.low == pytest.approx(99.5, abs=0.01)


def test_percentile_of_few_values_is_not_established() -> None:
    p99 = stats.percentile(np.arange(5.0), 99.9, stats.batch_count(5, 1))
    assert p99 is not None
    assert (p99.n, p99.established, p99.high) == (5, False, None)


def test_design_effect_of_shared_values_is_their_number() -> None:
    rng = np.random.default_rng(3)
    found = [stats.design_effect(np.repeat(rng.random(200) < 0.3, 10), 16) for _ in range(300)]
    assert np.mean(found) == pytest.approx(10, rel=0.1)


def coverage(shared: int, k: int, p: float, n: int = 1000, repeats: int = 500, seed: int = 5) -> float:
    """How often the interval of a percentile holds the true one, when `shared` neighbours have one value."""
    rng = np.random.default_rng(seed)
    truth = -math.log(1 - p / 100)
    hits = 0
    for _ in range(repeats):
        found = stats.percentile(np.repeat(rng.exponential(size=n // shared), shared), p, k)
        assert found is not None
        hits += (found.low or 0) <= truth <= (math.inf if found.high is None else found.high)
    return hits / repeats


def test_percentile_interval_covers_independent_values() -> None:
    assert coverage(1, 10, 50) >= 0.93
    assert coverage(1, 10, 95) >= 0.93


def test_percentile_interval_covers_correlated_values_where_the_plain_one_does_not() -> None:
    plain = coverage(10, 0, 95)  # no batches: what counting each request as independent gives, widened by t alone
    assert plain < 0.85
    assert coverage(10, 10, 95) >= 0.9
    assert coverage(10, 16, 50) >= 0.93


def test_exceedance_bounds_cover_on_correlated_values() -> None:
    rng = np.random.default_rng(11)
    limit = -math.log(0.08)  # true share beyond: 8 %
    hits = 0
    for _ in range(500):
        x = np.repeat(rng.exponential(size=200), 5)
        n_star = stats.exceedance_n(x, limit, 95, 10)
        low, high = stats.binomial_bounds(float((x > limit).mean()), n_star)
        hits += low <= 0.08 <= high
    assert hits / 500 >= 0.92


def test_exceedance_n_sees_correlation_where_nothing_exceeds() -> None:
    x = np.repeat(np.random.default_rng(2).exponential(size=100), 10)
    assert stats.exceedance_n(x, 1e9, 95, 10) < 0.5 * stats.effective_n(1000, 1.0, 10)


def test_mean_and_rate_intervals_cover_an_autocorrelated_series() -> None:
    rng = np.random.default_rng(8)
    means = rates = 0
    for _ in range(400):
        noise = rng.normal(size=2000)
        x = np.convolve(noise, np.ones(20) / 20, "same") + 10
        found = stats.mean_interval(x, 10)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        means += found.low <= 10 <= found.high
        rate = stats.rate_interval(rng.poisson(300, size=10).astype(float), 10.0)
        assert rate.low is not None
        assert rate.high is not None
        rates += rate.low <= 300 <= rate.high
    assert means / 400 >= 0.9
    assert rates / 400 >= 0.92


# --- is a series steady? --------------------------------------------------------------------------------------------


def test_dispersion_by_hand_and_of_known_processes() -> None:
    assert stats.dispersion(np.array([2, 2, 2])) == 0.0
    assert stats.dispersion(np.array([0, 4])) == 2.0
    assert stats.dispersion(np.array([0, 0])) == 0.0 and stats.dispersion(np.array([])) == 0.0
    assert stats.dispersion(np.random.default_rng(1).poisson(3.0, 5000)) == pytest.approx(1.0, abs=0.1)


def test_steady_series_are_left_alone_and_drifting_ones_found() -> None:
    rng = np.random.default_rng(2)
    noise = [100 + rng.normal(0, 5, 16) for _ in range(400)]
    nothing = np.zeros(16)
    assert sum(stats.trend(x, nothing, 0.02) for x in noise) <= 12  # 1 % each
    assert sum(stats.serial_dependence(x) for x in noise) <= 12
    slope = np.linspace(-15, 15, 16)
    assert sum(stats.trend(x + slope, nothing, 0.02) for x in noise) >= 380
    arch = 15 - 30 * np.linspace(-1, 1, 16) ** 2  # the halves are equal
    assert sum(stats.trend(x + arch, nothing, 0.02) for x in noise) >= 380
    wave = 15 * np.sin(np.linspace(0, 4 * np.pi, 16))  # the halves are equal
    assert sum(stats.serial_dependence(x + wave) for x in noise) >= 160


def test_what_varies_by_nothing_does_not_drift() -> None:
    tiny = 100 + np.linspace(0, 0.5, 16)
    assert not stats.trend(tiny, np.zeros(16), 0.02) and not stats.serial_dependence(tiny)
    assert not stats.trend(np.array([1.0, 2.0]), np.zeros(2), 0.02) and not stats.serial_dependence(np.zeros(16))
    assert not stats.trend(np.zeros(16), np.zeros(16), 0.02)


def test_what_other_work_explains_is_no_drift() -> None:
    rng = np.random.default_rng(4)
    works = [rng.normal(50, 10, 16) for _ in range(200)]
    slope = np.linspace(-5, 5, 16)
    assert sum(stats.trend(200 - work + slope, work, 0.02) for work in works) == 200
    assert sum(stats.trend(200 - work + rng.normal(0, 0.1, 16), work, 0.02) for work in works) == 0
    assert sum(stats.trend(200 - work + slope, np.zeros(16), 0.02) for work in works) < 120  # hidden by the work
    rest = stats.without(200 - works[0], works[0])
    assert rest == pytest.approx(np.ones(16))


def test_a_slope_that_cannot_be_explains_nothing() -> None:
    """Work that goes up and down with the values is a sign of the same cause."""
    rng = np.random.default_rng(5)
    slopes = [np.linspace(-10, 10, 16) + rng.normal(0, 1, 16) for _ in range(100)]
    works = [50 + slope / 2 + rng.normal(0, 0.1, 16) for slope in slopes]
    fewer = (-math.inf, 0.0)
    assert sum(stats.trend(200 + x, work, 0.02) for x, work in zip(slopes, works, strict=True)) < 20
    assert all(stats.trend(200 + x, work, 0.02, slopes=fewer) for x, work in zip(slopes, works, strict=True))
    assert stats.without(200 + slopes[0], works[0], fewer) == pytest.approx(
        (200 + slopes[0]) / np.mean(200 + slopes[0])
    )


def test_the_trend_is_the_f_test_of_nested_least_squares() -> None:
    """Against SciPy's own F distribution and sums of squares by the normal equations."""
    from scipy.stats import f

    rng = np.random.default_rng(6)
    time = np.linspace(-1, 1, 12)
    for alpha in (0.01, 0.2, 0.5):
        for _ in range(20):
            work, y = rng.normal(5, 1, 12), rng.normal(10, 1, 12)
            small, large = np.stack([np.ones(12), work]), np.stack([np.ones(12), work, time, time**2])
            rss = [float(y @ y - y @ x.T @ np.linalg.solve(x @ x.T, x @ y)) for x in (small, large)]
            p = f.sf((rss[0] - rss[1]) / 2 / (rss[1] / 8), 2, 8)
            assert stats.trend(y, work, 0.0, alpha) == (p < alpha)


def test_one_mean_or_several() -> None:
    rng = np.random.default_rng(7)
    halves = np.array([1.96, 3.92, 1.96, 0.98, 1.96])
    even = [10 + rng.normal(0, halves / 1.96) for _ in range(2000)]
    assert sum(not stats.homogeneous(list(x), list(halves)) for x in even) == pytest.approx(20, abs=16)
    apart = [x + np.array([4.0, -4.0, 0.0, 2.0, -2.0]) for x in even[:100]]
    assert sum(not stats.homogeneous(list(x), list(halves)) for x in apart) >= 95


def test_a_long_sample_has_more_batches_for_a_verdict() -> None:
    for n, c in ((20, 1), (169, 4), (320, 16), (600, 8)):
        assert stats.verdict_batches(n, c) == stats.batch_count(n, c)
    assert stats.verdict_batches(8000, 16) == 64 and stats.verdict_batches(8000, 64) == 31
    assert stats.verdict_batches(3, 1) == 0


def test_growth_is_called_as_often_as_allowed() -> None:
    rng = np.random.default_rng(3)
    assert sum(stats.grows(rng.normal(0, 1, 10), 0.05) for _ in range(2000)) == pytest.approx(100, abs=35)
    assert stats.grows(np.full(10, 1.0) + rng.normal(0, 0.1, 10), 0.001)
    assert not stats.grows(np.array([1.0, 1.0]), 0.05)
