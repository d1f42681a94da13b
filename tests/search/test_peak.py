"""The highest throughput, and measuring on until it is known well enough."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from loadgen.results import Estimate, LevelResult, NextLevel, Stop
from loadgen.search import SweepPlan, decide
from loadgen.search.effort import EFFORTS, rule_of, step_rule
from loadgen.search.peak import AGAIN, mean_of, within
from loadgen.slo import parse_slo
from tests.search.test_sweep import level

PRECISE = SweepPlan(has_slo=True, precision=0.025)
# 6 hold and 7 do not; the highest throughput was seen at 8, in a window that ended as soon as it had failed.
FOUND = [level(1, "p"), level(2, "p"), level(4, "p"), level(8, "f", 400, 0.06), level(6, "p"), level(7, "f", 350)]
STEADY = level(2, "n", 100)


def test_the_highest_is_measured_on_until_it_is_known() -> None:
    early = decide(FOUND, PRECISE)
    assert isinstance(early, NextLevel) and (early.concurrency, early.check, early.precise) == (2, True, False)
    again = decide([*FOUND, STEADY], PRECISE)
    assert isinstance(again, NextLevel) and (again.concurrency, again.check, again.precise) == (8, True, True)
    assert "2.5 %" in again.why
    stop = decide([*FOUND, STEADY, level(8, "n", 395, 0.024)], PRECISE)
    assert isinstance(stop, Stop) and stop.peak_throughput is not None
    assert within(stop.peak_throughput, 0.025)
    assert stop.peak_throughput.value == pytest.approx(395.7, abs=0.2)  # the longer window weighs six times as much
    assert (stop.held, stop.broke, stop.limit, stop.unsteady) == (6, 7, 6, False), "the search takes nothing from it"
    assert "Highest output throughput: 396" in stop.sentence and "not known to" not in stop.sentence
    without = decide([*FOUND, STEADY], replace(PRECISE, precision=None))
    assert isinstance(without, Stop), "only where it is asked for"


def test_one_that_turns_out_lower_leaves_the_place_to_another() -> None:
    """…which then has to be known as well."""
    history = [*FOUND[:4], level(6, "p", 390, 0.06), FOUND[5], STEADY, level(8, "n", 375, 0.02)]
    found = decide(history, PRECISE)
    assert isinstance(found, NextLevel) and found.concurrency == 6
    stop = decide([*history, level(6, "n", 385, 0.02)], PRECISE)
    assert isinstance(stop, Stop) and stop.peak_throughput is not None
    assert stop.peak_throughput.value == pytest.approx(385.5, abs=0.5)


def test_it_is_not_asked_for_more_than_so_often_and_then_it_is_said() -> None:
    history = [*FOUND, STEADY]
    while isinstance(found := decide(history, PRECISE), NextLevel):
        history.append(level(found.concurrency, "n", 400, 0.2))
    assert len(history) == len(FOUND) + AGAIN
    assert "not known to ±2.5 %" in found.sentence and "--effort" in found.sentence


def test_windows_that_differ_are_called_unsteady_instead() -> None:
    stop = decide([*FOUND, STEADY, level(8, "n", 350, 0.03)], PRECISE)  # by twice their intervals
    assert isinstance(stop, Stop) and stop.unsteady
    assert "not steady" in stop.sentence and "--effort" not in stop.sentence, "nor would longer steps tell"
    early = decide([*FOUND, level(2, "n", 90)], PRECISE)
    assert isinstance(early, Stop) and early.unsteady, "where an early level shows it, nothing more is sent"


def test_at_a_plateau_the_wider_of_its_two_levels() -> None:
    plan = SweepPlan(precision=0.015, revisit=False)
    flat = [level(c, "n", t, half) for c, t, half in ((1, 100, 0.02), (2, 180, 0.02), (4, 182, 0.02), (8, 184, 0.03))]
    found = decide(flat, plan)
    assert isinstance(found, NextLevel) and (found.concurrency, found.precise) == (8, True)
    stop = decide([*flat, level(8, "n", 183, 0.015)], plan)
    assert isinstance(stop, Stop) and stop.reason == "plateau" and stop.peak_throughput is not None
    assert within(stop.peak_throughput, 0.015)


def test_a_level_that_the_client_or_failures_ended_is_not_the_highest() -> None:
    history = [*FOUND[:3], replace(level(8, "f", 900, 0.2), broke=("errors",))]
    stop = decide(history, PRECISE)
    assert isinstance(stop, Stop) and stop.peak_throughput is not None and stop.peak_throughput.value == 200


@pytest.mark.parametrize("effort", EFFORTS)
def test_its_window_is_of_full_length(effort: str) -> None:
    rule = step_rule(effort, parse_slo(["ttft_p99=1s"]), precision=0.025)
    precise = rule_of(rule, NextLevel(8, "", check=True, precise=True))
    assert (precise.requests_cap, precise.seconds_max, precise.precision) == (
        rule.requests_cap,
        rule.seconds_max,
        0.025,
    )
    assert precise.first_look < rule.first_look  # no percentile is asked of it
    assert rule_of(rule, NextLevel(8, "", check=True)).requests_cap == EFFORTS["quick"].requests_cap


def test_the_pooled_interval_covers_the_truth() -> None:
    """A knee at 32, windows of ±4 %, and of ±2 % where asked for: the answer is as precise as asked, and right."""
    covered = precise = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        history: list[LevelResult] = []
        while isinstance(found := decide(history, PRECISE), NextLevel):
            sigma = 0.01 if found.precise else 0.02
            truth = 50.0 * min(found.concurrency, 32)
            value = truth * math.exp(rng.normal(0, sigma))
            kind = "n" if found.check else "f" if found.concurrency > 40 else "p"
            history.append(level(found.concurrency, kind, value, 1.96 * sigma))
        assert found.peak_throughput is not None
        if found.unsteady:
            continue  # one in twenty differ by chance
        precise += within(found.peak_throughput, 0.025)
        low, high = found.peak_throughput.low, found.peak_throughput.high
        covered += low is not None and high is not None and low <= 1600 <= high
    assert precise >= 270
    assert covered >= 0.93 * precise


def test_a_mean_is_weighted_and_without_an_interval_where_one_is_missing() -> None:
    assert mean_of({}) is None
    assert mean_of({1: Estimate(5.0)}) == Estimate(5.0)
    assert mean_of({1: Estimate(10.0, 9.0, 11.0), 2: Estimate(20.0)}) == Estimate(15.0)
    found = mean_of({1: Estimate(10.0, 9.0, 11.0), 2: Estimate(13.0, 11.0, 15.0)})
    assert found is not None and found.value == pytest.approx(10.6)
    assert found.high is not None and found.high - found.value == pytest.approx(2 / math.sqrt(5))
