"""Levels measured several times over, in turn: their order, and what their windows say together."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.results import Estimate, LevelResult, NextLevel, ObjectiveCheck, Stop
from loadgen.search import SweepPlan, decide
from loadgen.search.effort import rule_of, step_rule
from loadgen.search.repeats import MOST, answering, differ, in_turn, pool
from loadgen.slo import parse_slo
from loadgen.stats import t_quantile

NAME = "ttft_p95"
SLO = SweepPlan(has_slo=True, repeats=5)
KINDS = {"p": 0.02, "f": 0.20, "i": 0.05}


def window(c: int, share: float = 0.02, n: int = 1000, tput: float | None = None, ratio: float = 0.8) -> LevelResult:
    """One window of a level whose objective allows 5 % beyond the limit, and whose own verdict says what it likes."""
    value = 50.0 * c if tput is None else tput
    check = ObjectiveCheck(NAME, "ttft", 0.05, Estimate(share), 100 * ratio, n, "inconclusive")
    return LevelResult(
        c, Estimate(value, value * 0.99, value * 1.01), "inconclusive", p_hat_beyond=share > 0.05,
        of_limit={NAME: ratio}, checks=(check,),
    )  # fmt: skip


def levels(text: str) -> list[LevelResult]:
    """`1p 2p 4f`: proven levels, with the shares that belong to them."""
    said = {"p": "pass", "f": "fail", "i": "inconclusive"}
    return [
        replace(window(int(part[:-1]), KINDS[part[-1]]), verdict=said[part[-1]], broke=(NAME,) * (part[-1] != "p"))  # type: ignore[arg-type]
        for part in text.split()
    ]


def test_every_other_round_runs_backwards() -> None:
    assert in_turn((1, 2, 3), 3) == (1, 2, 3, 3, 2, 1, 1, 2, 3)


@pytest.mark.parametrize("few", [2, 3, 4, 0, -1])
def test_too_few_repeats_are_refused(few: int) -> None:
    with pytest.raises(UsageError, match="--repeats a number of at least 5"):
        SweepPlan(repeats=few)


def test_a_list_is_measured_in_rounds_and_pooled() -> None:
    plan = SweepPlan(levels=(4, 8), has_slo=True, repeats=5)
    history: list[LevelResult] = []
    order = []
    while isinstance(found := decide(history, plan), NextLevel):
        assert found.repeat
        order.append(found.concurrency)
        history.append(window(found.concurrency, 0.02 if found.concurrency == 4 else 0.2))
    assert order == [4, 8, 8, 4, 4, 8, 8, 4, 4, 8]
    assert (found.held, found.broke, found.reason) == (4, 8, "slo:ttft_p95")
    assert "Over 5 windows each" in found.sentence


def test_after_the_climb_the_levels_of_the_answer_are_repeated() -> None:
    history = levels("1p 2p 4p 8f 6p 7f")
    order = []
    while isinstance(found := decide(history, SLO), NextLevel):
        order.append(found.concurrency)
        history += levels(f"{found.concurrency}{'p' if found.concurrency < 7 else 'f'}")
    assert order == [6, 7, 7, 6, 6, 7, 7, 6]
    assert (found.held, found.broke) == (6, 7) and not found.unsteady


def test_what_one_window_proved_the_pool_may_leave_open() -> None:
    history = levels("1p 2p 4p 8f 6p 7f")
    shares = iter((0.3, 0.0, 0.1, 0.02, 0.2, 0.01, 0.02, 0.1))
    while isinstance(found := decide(history, SLO), NextLevel):
        history.append(window(found.concurrency, next(shares)))
    assert isinstance(found, Stop)
    assert (found.held, found.broke) == (4, 8)
    assert "Undecided: 6, 7" in found.sentence


def test_a_plateau_repeats_the_levels_that_tell_it() -> None:
    history = [window(c, tput=t) for c, t in ((1, 100.0), (2, 180.0), (4, 184.0), (8, 185.0))]
    history = [replace(level, verdict="measured", checks=()) for level in history]
    plan = SweepPlan(repeats=5)
    order = []
    while isinstance(found := decide(history, plan), NextLevel):
        order.append(found.concurrency)
        history.append(next(level for level in history if level.concurrency == found.concurrency))
    assert order[:6] == [2, 4, 8, 8, 4, 2] and len(order) == 12
    assert found.reason == "plateau"


def test_windows_to_be_pooled_are_of_equal_size() -> None:
    rule = step_rule("normal", parse_slo(["ttft_p95=1s"]))
    one = NextLevel(16, "", repeat=True)
    assert rule_of(rule, one, repeats=5).requests == 1600
    assert rule_of(rule, replace(one, concurrency=256), repeats=5).requests == 2048
    assert rule_of(rule, NextLevel(16, "")) == rule
    assert rule_of(rule, NextLevel(16, "", check=True)).requests_most(16) == 1000
    mine = replace(rule, requests=70)
    assert rule_of(mine, one, repeats=5) == rule_of(mine, replace(one, check=True)) == mine


def test_throughput_is_pooled_by_students_t_on_the_logs() -> None:
    values = (100.0, 110.0, 95.0, 105.0, 102.0)
    pooled = pool([window(4, tput=v) for v in values])
    logs = np.log(values)
    half = t_quantile(0.975, 4) * logs.std(ddof=1) / math.sqrt(5)
    found = pooled.output_throughput
    assert found is not None and found.low is not None and found.high is not None
    assert (found.value, found.low, found.high) == pytest.approx(
        tuple(np.exp(logs.mean() + half * np.array([0, -1, 1])))
    )
    assert pooled.windows == 5


@pytest.mark.parametrize(
    ("shares", "ratio", "verdict"),
    [
        ((0.02, 0.022, 0.018, 0.02, 0.021), 0.8, "pass"),
        ((0.09, 0.095, 0.085, 0.09, 0.092), 1.2, "fail"),
        ((0.05, 0.052, 0.048, 0.05, 0.051), 1.0, "marginal"),
        ((0.0, 0.2, 0.0, 0.0, 0.1), 1.3, "inconclusive"),  # 5,000 requests, but they tell no more than five
        ((0.0, 0.0, 0.0, 0.0, 0.0), 0.3, "pass"),
    ],
)
def test_the_verdict_on_several_windows(shares: tuple[float, ...], ratio: float, verdict: str) -> None:
    pooled = pool([window(8, share, ratio=ratio) for share in shares])
    assert pooled.verdict == verdict
    assert pooled.broke == (() if verdict == "pass" else (NAME,))


@given(st.lists(st.floats(0, 0.3), min_size=5, max_size=9), st.randoms())
def test_the_order_of_the_windows_does_not_matter(shares: list[float], random: object) -> None:
    one = pool([window(8, share) for share in shares])
    other = pool([window(8, share) for share in sorted(shares)])
    assert (one.verdict, one.p_hat_beyond) == (other.verdict, other.p_hat_beyond)


def test_a_wrong_verdict_is_rare_where_the_windows_differ() -> None:
    """Shares that swing by half from window to window around what is allowed: one window alone would prove too much."""
    rng = np.random.default_rng(5)
    wrong = sum(
        pool([window(8, float(share)) for share in 0.05 * rng.lognormal(-0.125, 0.5, 5)]).verdict in ("pass", "fail")
        for _ in range(400)
    )
    assert wrong <= 40  # of a nominal 5 %, more for so skew a distribution


def test_windows_that_differ_beyond_their_intervals_are_unsteady() -> None:
    steady = [window(8, tput=400.0 * (1 + d)) for d in (0.004, -0.003, 0.002, 0.0, -0.004)]
    drifted = [window(8, tput=400.0 * (1 + d)) for d in (0.1, -0.1, 0.0, 0.05, -0.05)]
    assert not differ(steady) and differ(drifted)


@given(st.lists(st.sampled_from("pfi"), min_size=1, max_size=60))
def test_any_history_of_a_repeated_sweep_ends(kinds: list[str]) -> None:
    history: list[LevelResult] = []
    for i in range(200):
        found = decide(history, SLO)
        if isinstance(found, Stop):
            assert len(history) - SLO.extra <= 9
            assert found.sentence.endswith(".")
            return
        history += levels(f"{found.concurrency}{kinds[i % len(kinds)]}")
    raise AssertionError("no end in 200 windows")


@given(st.lists(st.sampled_from("pfi"), min_size=3, max_size=9))
def test_an_answer_rests_on_few_levels(kinds: list[str]) -> None:
    latest = {2**i: levels(f"{2**i}{kind}")[0] for i, kind in enumerate(kinds)}
    assert 0 < len(answering(latest)) <= MOST
