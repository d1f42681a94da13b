from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from loadgen.errors import UsageError
from loadgen.workload.arrivals import BLOCK, Arrivals, Profile, Schedule, Stage, parse_arrivals

PROCESSES = [
    Arrivals("constant"),
    Arrivals("poisson"),
    Arrivals("gamma", 0.25),
    Arrivals("gamma", 4.0),
    Arrivals("weibull", 0.7),
    Arrivals("poisson", stages=(Stage(1, 20, 60), Stage(5, 5, 30), Stage(0, 0, 10), Stage(40, 10, 20))),
    Arrivals("gamma", 0.5, (Stage(0, 30, 15),)),
]
STEADY = [process for process in PROCESSES if not process.stages]
steady = st.sampled_from(STEADY)
processes = st.sampled_from(PROCESSES)


def offsets(schedule: Schedule, n: int) -> list[int]:
    return list(itertools.islice(schedule, n))


@pytest.mark.parametrize(
    ("text", "arrivals"),
    [
        ("constant", Arrivals("constant")),
        ("Poisson", Arrivals("poisson")),
        ("gamma:0.5", Arrivals("gamma", 0.5)),
        (" weibull : 2 ", Arrivals("weibull", 2.0)),
        ("gamma:1e-1", Arrivals("gamma", 0.1)),
        ("gamma:0.123456789", Arrivals("gamma", 0.123456789)),
        ("ramp:1-20:60s", Arrivals(stages=(Stage(1, 20, 60),))),
        (
            "stages:5@60s, 20@2m, 20-1.5@500ms",
            Arrivals(stages=(Stage(5, 5, 60), Stage(20, 20, 120), Stage(20, 1.5, 0.5))),
        ),
        ("ramp:0-20:1h/gamma:0.5", Arrivals("gamma", 0.5, (Stage(0, 20, 3600),))),
    ],
)
def test_processes_are_read_and_written(text: str, arrivals: Arrivals) -> None:
    assert parse_arrivals(text) == arrivals
    assert parse_arrivals(str(arrivals)) == arrivals


@pytest.mark.parametrize(
    "text", ["", "uniform", "gamma", "gamma:", "gamma:x", "gamma:0", "gamma:-1", "gamma:nan", "gamma:inf", "gamma:1e9",
             "gamma:0.5:2", "poisson:2", "constant:1", "5"],
)  # fmt: skip
def test_anything_else_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(UsageError, match="gamma:SHAPE"):
        parse_arrivals(text)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan, 1e9])
def test_rates_that_cannot_be_held_are_refused(rate: float) -> None:
    with pytest.raises(UsageError, match="requests/s"):
        Schedule(Arrivals(), rate, 0)


def test_constant_arrivals_are_where_a_ruler_puts_them() -> None:
    assert offsets(Schedule(Arrivals("constant"), 3.0, 0), 4) == [0, 333333333, 666666667, 1_000_000_000]
    assert Schedule(Arrivals("constant"), 500.0, 0).offset_ns(5_000_000) == 10_000 * 10**9


@given(processes, st.floats(0.01, 5000), st.integers(), st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_workers_share_one_schedule(arrivals: Arrivals, rate: float, seed: int, workers: int) -> None:
    n = 2 * BLOCK + 300
    whole = offsets(Schedule(arrivals, rate, seed), n)
    assert whole[0] == 0 and whole == sorted(whole)
    parts = [Schedule(arrivals, rate, seed, worker=w, workers=workers) for w in range(workers)]
    assert [next(parts[k % workers]) for k in range(n)] == whole


@given(processes, st.floats(0.01, 5000), st.integers(0, 3 * BLOCK), st.integers(0, 10**13))
@settings(deadline=None)
def test_waiting_is_to_the_absolute_time(arrivals: Arrivals, rate: float, sent: int, elapsed: int) -> None:
    schedule = Schedule(arrivals, rate, 7)
    due = offsets(Schedule(arrivals, rate, 7), sent + 1)[-1]
    wait = schedule.wait_ns(elapsed, sent)
    assert wait == due - elapsed if elapsed < due else wait == 0


@given(steady, st.integers())
@settings(max_examples=20, deadline=None)
def test_another_rate_is_the_same_pattern_stretched(arrivals: Arrivals, seed: int) -> None:
    slow, fast = (offsets(Schedule(arrivals, rate, seed), 1500) for rate in (5.0, 50.0))
    assert all(abs(s - 10 * f) <= 10 for s, f in zip(slow, fast, strict=True))


@pytest.mark.parametrize("arrivals", STEADY, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_the_rate_offered_is_the_rate_asked_for(arrivals: Arrivals, seed: int) -> None:
    rate = 500.0
    at = np.array(offsets(Schedule(arrivals, rate, seed), 12_000)) / 1e9
    for start in (0, 137, 1999):  # wherever a window of 10,000 arrivals begins
        found = 10_000 / (at[start + 10_000] - at[start])
        assert found == pytest.approx(rate, rel=0.01 if arrivals.shape >= 1 else 0.02)


def test_seeds_differ() -> None:
    assert offsets(Schedule(Arrivals(), 10, 1), 50) != offsets(Schedule(Arrivals(), 10, 2), 50)


@pytest.mark.parametrize(
    ("arrivals", "cdf"),
    [
        (Arrivals("poisson"), lambda x: -np.expm1(-x)),
        (Arrivals("gamma", 0.25), lambda x: special.gammainc(0.25, 0.25 * x)),
        (Arrivals("gamma", 4.0), lambda x: special.gammainc(4.0, 4.0 * x)),
        (Arrivals("weibull", 0.7), lambda x: -np.expm1(-((x * math.gamma(1 + 1 / 0.7)) ** 0.7))),
    ],
    ids=["poisson", "gamma:0.25", "gamma:4", "weibull:0.7"],
)
def test_gaps_follow_the_distribution_and_are_independent(arrivals: Arrivals, cdf: object) -> None:
    gaps = np.diff(offsets(Schedule(arrivals, 100.0, 3), 20_001)) / 1e9 * 100.0
    assert stats.kstest(gaps, cdf).pvalue > 0.001
    ranks = stats.rankdata(gaps)
    lag1 = np.corrcoef(ranks[1:], ranks[:-1])[0, 1]
    assert abs(lag1) < 4 / math.sqrt(len(gaps))


def test_counts_scatter_as_poisson_counts_do_on_the_scale_of_a_queue() -> None:
    at = np.array(offsets(Schedule(Arrivals(), 100.0, 11), 50_000)) / 1e9
    counts = np.histogram(at, np.arange(0, 490, 0.2))[0]  # 20 a slice
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.12)


@pytest.mark.parametrize(
    "text",
    ["ramp:", "ramp:5:60s", "ramp:1-20", "ramp:1-20:0s", "ramp:5-0:60s", "ramp:1-1e9:60s", "ramp:1-20:60s/", "stages:",
     "stages:5", "stages:5@60s,", "stages:5@60s/ramp:1-2:3s", "stages:0@10s", "ramp:1-999999999:60s", "ramp:-1-5:1s",
     "stages:nan@1s"],
)  # fmt: skip
def test_a_profile_that_says_no_rates_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as told:
        parse_arrivals(text)
    assert told.value.remedy


rates = st.floats(0, 500)
stages = st.lists(st.builds(Stage, rates, rates, st.floats(0.01, 600)), max_size=6).map(
    lambda found: (*found, Stage(1.0, 5.0, 10.0))
)


@given(stages, st.lists(st.floats(0, 1), min_size=1, max_size=20))
@settings(deadline=None)
def test_the_time_of_a_profile_is_the_inverse_of_its_rates_integral(
    found: tuple[Stage, ...], shares: list[float]
) -> None:
    profile = Profile(found)
    total = profile.rate * profile.seconds
    for share in shares:
        at, expected, start = profile.time_of(share * total), 0.0, 0.0
        for stage in found:  # the integral of the rate until then, by its trapezoids
            inside = min(max(at - start, 0.0), stage.seconds)
            there = stage.first + (stage.last - stage.first) * inside / stage.seconds
            expected += (stage.first + there) / 2 * inside
            start += stage.seconds
        assert expected == pytest.approx(share * total, rel=1e-6, abs=1e-6)
    assert profile.time_of(total) == pytest.approx(profile.seconds, rel=1e-6)
    assert profile.time_of(total + 50) == pytest.approx(profile.seconds + 10, rel=1e-6), "it goes on at 5/s"


def test_constant_arrivals_of_stages_are_where_a_ruler_puts_them() -> None:
    process = parse_arrivals("stages:2@1s,0@3s,4@1s/constant")
    assert [at / 1e9 for at in offsets(Schedule(process, 1.0, 0), 7)] == [0, 0.5, 4.0, 4.25, 4.5, 4.75, 5.0]


@pytest.mark.parametrize("seed", range(3))
def test_a_ramp_offers_the_rate_of_each_of_its_moments(seed: int) -> None:
    process = parse_arrivals("ramp:100-900:20s")
    at = np.array(offsets(Schedule(process, 1.0, seed), 10_000)) / 1e9
    counts = np.histogram(at, np.arange(0, 21, 4.0))[0]
    asked = [100 * 4 + 40 * ((t + 4) ** 2 - t**2) / 2 for t in range(0, 20, 4)]
    assert sum(counts) == pytest.approx(10_000, rel=0.01)
    assert all(abs(n - m) < 4.5 * math.sqrt(m) for n, m in zip(counts, asked, strict=True))
