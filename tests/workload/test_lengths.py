"""Lengths: every distribution has its moments and its shape, limits refuse and never heap up, and a stream is one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from loadgen.workload.lengths import (
    BLOCK,
    SIDES,
    Apart,
    Distribution,
    Fixed,
    Gamma,
    Histogram,
    Lengths,
    LengthStream,
    Limits,
    Lognormal,
    Mixture,
    Normal,
    Quantiles,
    Uniform,
    Weibull,
    figures_of,
    ks_distance,
)
from tests.thorough import THOROUGH

N = 100_000 if THOROUGH > 1 else 50_000
# KS of N true draws stays below 1.95 / √N in all but one of a thousand tries; the seeds here are fixed.
CLOSE = 1.95 / math.sqrt(N)

# (distribution, mean, variance) by the textbook, before rounding.
MOMENTS: dict[str, tuple[Distribution, float, float]] = {
    "fixed": (Fixed(700), 700, 0),
    "uniform": (Uniform(100, 299), 199.5, (200**2 - 1) / 12),
    "normal": (Normal(2000, 150), 2000, 150**2),
    "lognormal": (
        Lognormal(6, 0.8),
        math.exp(6 + 0.32),
        (math.exp(0.64) - 1) * math.exp(12 + 0.64),
    ),
    "weibull": (
        Weibull(1.5, 800),
        800 * math.gamma(1 + 1 / 1.5),
        800**2 * (math.gamma(1 + 2 / 1.5) - math.gamma(1 + 1 / 1.5) ** 2),
    ),
    "gamma": (Gamma(2.5, 300), 750, 2.5 * 300**2),
    "mixture": (
        Mixture((3, 1), (Fixed(100), Uniform(1000, 1999))),
        0.75 * 100 + 0.25 * 1499.5,
        0.75 * 100**2 + 0.25 * (1499.5**2 + (1000**2 - 1) / 12) - (0.75 * 100 + 0.25 * 1499.5) ** 2,
    ),
}


def of(distribution: Distribution, least: int = 1, most: int | None = None) -> Lengths:
    return Lengths(Apart(distribution, Fixed(1)), Limits(input=(least, most)))


@pytest.mark.parametrize("name", MOMENTS)
def test_moments_are_those_of_the_textbook(name: str) -> None:
    distribution, mean, variance = MOMENTS[name]
    drawn = of(distribution).sample(11, N)[0].astype(np.float64)
    error = math.sqrt(variance / N)
    assert abs(drawn.mean() - mean) <= 4 * error + 1e-9
    assert drawn.var() == pytest.approx(variance, rel=0.03, abs=1e-9)
    figures = of(distribution).figures("input")
    assert figures.mean == pytest.approx(mean, rel=0.002)


SHAPES: list[Distribution] = [
    *(found[0] for found in MOMENTS.values()),
    Normal(40, 60),
    Lognormal(1.0, 1.5),
    Weibull(0.5, 30),
    Gamma(0.4, 50),
    Mixture((0.2, 0.5, 0.3), (Lognormal(3, 0.3), Weibull(3, 900), Mixture((1, 1), (Fixed(7), Gamma(3, 30))))),
    Quantiles((0, 0.1, 0.25, 0.5, 0.75, 1), (1, 1, 2, 9, 9, 500)),
    Quantiles((0, 1), (0, 3)),
]


LIMITS = {"free": (1, None), "narrow": (5, 60), "ended": (1, 400)}
LIMITED = {
    f"{type(shape).__name__}-{i}-{name}": of(shape, *limits)
    for i, shape in enumerate(SHAPES)
    for name, limits in LIMITS.items()
    if of(shape, *limits).refused < 0.99  # of some, next to nothing lies within
}


@pytest.mark.parametrize("name", LIMITED)
def test_draws_have_the_distribution_that_the_limits_leave(name: str) -> None:
    lengths = LIMITED[name]
    low, high = lengths.span("input")
    drawn, _, refused = lengths.sample(3, N)
    assert low <= drawn.min() and drawn.max() <= high
    assert ks_distance(lengths, "input", drawn) < CLOSE
    assert refused == pytest.approx(lengths.refused, abs=0.01)
    asked, seen = lengths.figures("input"), figures_of(drawn)
    assert seen.mean == pytest.approx(asked.mean, rel=0.05)
    for p, value in ((0.5, asked.p50), (0.9, asked.p90), (0.99, asked.p99)):
        below, at = lengths.cdf("input", np.array([value - 1.0, value]))
        assert below < p <= at + 1e-12


def test_a_limit_refuses_and_nothing_heaps_up_at_it() -> None:
    lengths = of(Lognormal(6, 1), 1, 500)
    drawn, _, refused = lengths.sample(1, N)
    free = of(Lognormal(6, 1)).source.cdf("input", np.array([500.0, 499.0, 490.0]))
    assert refused == pytest.approx(1 - free[0], abs=0.005)
    # The share at the limit itself is that of one length, not of all that lies beyond.
    assert np.mean(drawn == 500) == pytest.approx((free[0] - free[1]) / free[0], abs=0.001)


def test_a_limit_on_the_total_keeps_the_pairs_that_fit() -> None:
    source = Apart(Uniform(1, 100), Uniform(1, 100))
    inputs, outputs, refused = Lengths(source, Limits(total=100)).sample(2, N)
    assert (inputs + outputs).max() == 100
    assert refused == pytest.approx(1 - (99 * 100 / 2) / 10_000, abs=0.005)
    # Of the pairs that fit all are equally likely: P(input = k) is in proportion to 100 - k.
    counts = np.bincount(inputs, minlength=100)[1:100]
    expected = N * np.arange(99, 0, -1) / (99 * 100 / 2)
    assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected) + 5)


@pytest.mark.parametrize("rho", [-0.9, -0.3, 0.2, 0.8053, 0.97])
def test_the_rank_correlation_is_the_one_asked_for_and_the_sides_keep_their_shape(rho: float) -> None:
    lengths = Lengths(Apart(Lognormal(6, 1), Weibull(2, 500), rho), Limits((1, 100_000), (1, 100_000)))
    inputs, outputs, _ = lengths.sample(5, N)
    assert spearmanr(inputs, outputs).statistic == pytest.approx(rho, abs=0.015)
    for side, drawn in zip(SIDES, (inputs, outputs), strict=True):
        assert ks_distance(lengths, side, drawn) < CLOSE


def test_a_histogram_gives_each_cell_its_share_and_spreads_it_by_the_logarithm() -> None:
    histogram = Histogram((1, 2, 10, 1000), (5, 6, 50), ((0, 1, 1), (1, 0, 2, 1, 3), (2, 0, 4)))
    lengths = Lengths(histogram)
    inputs, outputs, _ = lengths.sample(9, N)
    cells = {(0, 1): 0.1, (1, 0): 0.2, (1, 1): 0.3, (2, 0): 0.4}
    seen = {
        (i, o): np.mean((np.digitize(inputs, (2, 10)) == i) & (np.digitize(outputs, (6,)) == o))
        for i in range(3)
        for o in range(2)
    }
    for cell, share in seen.items():
        assert share == pytest.approx(cells.get(cell, 0.0), abs=0.006)
    assert np.mean(inputs[inputs >= 10] < 100) == pytest.approx(0.5, abs=0.01)  # half way from 10 to 1000
    assert lengths.span("input") == (1, 999) and lengths.span("output") == (5, 49)
    for side, drawn in zip(SIDES, (inputs, outputs), strict=True):
        assert ks_distance(lengths, side, drawn) < CLOSE


SOURCES = [
    Apart(Lognormal(5, 1), Gamma(2, 50)),
    Apart(Normal(500, 400), Uniform(1, 9), 0.5),
    Histogram((1, 20, 400), (1, 30, 200), ((0, 0, 1, 1, 2), (1, 1, 1))),
]


@pytest.mark.parametrize("source", SOURCES, ids=["apart", "ranked", "joint"])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**63), numbers=st.lists(st.integers(0, 5 * BLOCK), max_size=12))
def test_a_request_has_its_lengths_whoever_asks_and_in_whatever_order(
    source: Apart | Histogram, seed: int, numbers: list[int]
) -> None:
    lengths = Lengths(source, Limits(input=(1, 2000), total=2100))
    inputs, outputs, _ = lengths.sample(seed, 5 * BLOCK + 1)
    stream = LengthStream(lengths, seed)
    for number in numbers:
        assert stream.at(number) == (inputs[number], outputs[number])


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_workers_that_take_every_wth_make_the_stream_together(workers: int) -> None:
    lengths = Lengths(SOURCES[0], Limits(input=(1, 300)))
    whole = [LengthStream(lengths, 4).at(k) for k in range(700)]
    parts = [LengthStream(lengths, 4) for _ in range(workers)]
    dealt = {k: parts[w].at(k) for w in range(workers) for k in range(w, 700, workers)}
    assert [dealt[k] for k in range(700)] == whole


def test_seeds_differ_and_the_blocks_of_a_seed_do() -> None:
    lengths = Lengths(SOURCES[0], Limits(input=(1, 5000)))
    blocks = [lengths.block(seed, number)[0].tolist() for seed in range(3) for number in range(3)]
    assert len({tuple(block) for block in blocks}) == 9
    assert abs(np.corrcoef(np.log(blocks[0]), np.log(blocks[1]))[0, 1]) < 0.25


def test_a_seed_means_the_same_in_every_version() -> None:
    """These numbers may not change: a recorded run's seed stands for them."""
    lengths = Lengths(Apart(Lognormal(5, 1), Gamma(2, 50)), Limits(input=(1, 5000)))
    stream = LengthStream(lengths, 7)
    assert [stream.at(k) for k in (0, 1, 2, 1000)] == PINNED


PINNED = [(120, 82), (183, 81), (124, 61), (404, 132)]


@settings(max_examples=60)
@given(
    st.one_of(
        st.builds(Lognormal, st.floats(0, 12), st.floats(0.01, 3)),
        st.builds(Weibull, st.floats(0.2, 20), st.floats(1, 1e5)),
        st.builds(Gamma, st.floats(0.2, 20), st.floats(1, 1e4)),
        st.builds(Normal, st.floats(1, 1e5), st.floats(0.1, 1e5)),
        st.builds(lambda low, more: Uniform(low, low + more), st.integers(1, 10**6), st.integers(0, 10**6)),
    )
)
def test_the_cdf_is_one(distribution: Distribution) -> None:
    k = np.unique(np.rint(np.geomspace(1, 1e7, 200)))
    values = distribution.cdf(k)
    assert np.all(np.diff(values) >= -1e-12) and values.min() >= 0 and values.max() <= 1
    drawn = distribution.draw(np.random.default_rng(1).random(2000))
    share = np.mean(drawn[:, None] <= k[None, :], axis=0)
    assert np.abs(share - values).max() < 0.06
