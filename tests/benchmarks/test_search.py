"""Whole sweeps of the simulated engine in virtual time, against limits known from long runs."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import pytest

from benchmarks.search import Found, engines_of, told
from benchmarks.search_cases import Case, cases
from benchmarks.virtual import Load, VirtualServer, measure, sweep
from loadgen.results import Slo
from loadgen.search import SweepPlan
from loadgen.search.effort import step_rule
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.engine.virtual import Mix
from loadgen.slo import parse_slo

QUICK = [case for case in cases() if case.name[:2].strip() in ("1", "2", "8")]


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name.strip())
def test_a_sweep_finds_the_true_limit(case: Case) -> None:
    server = VirtualServer(case.config, case.mix, seed=1)
    done = sweep(server, SweepPlan(has_slo=True, max_level=case.most), case.slo)
    found = Found(case, done, done.stop.limit)
    assert found.close or abs((found.answer or 0) - case.load) <= 0.1 * case.load, told(found)
    assert found.certain, told(found)


def test_without_objectives_it_ends_on_the_plateau() -> None:
    done = sweep(VirtualServer(EngineConfig(max_batch=12), Mix(100, 16, sigma=0.5), 3), SweepPlan(), Slo())
    assert done.stop.reason == "plateau" and done.stop.first == "plateau"
    assert done.stop.peak_throughput is not None
    rates = [one.output_throughput.value for one in done.history if one.output_throughput]
    assert done.stop.peak_throughput.value == pytest.approx(max(rates), rel=0.05)


def test_windows_in_turn_tell_a_drifting_server_from_a_steady_one() -> None:
    """Drift of ±15 % in 50 s: alone, each window of some 8 s hardly sees it."""
    plan = SweepPlan(levels=(8, 16), has_slo=True, repeats=5)
    steady = EngineConfig(max_batch=12, step_ms=20)
    for config, unsteady in ((steady, False), (replace(steady, drift=0.15, drift_period_s=50.0), True)):
        done = sweep(
            VirtualServer(config, Mix(100, 16, sigma=0.5), 3), plan, parse_slo(["ttft_p95=300ms"]), effort="quick"
        )
        assert [level.concurrency for level in done.history] == [8, 16, 16, 8, 8, 16, 16, 8, 8, 16]
        assert done.stop.unsteady == unsteady, done.stop.sentence
        half = (done.stop.peak_throughput.high or 0) / done.stop.peak_throughput.value - 1  # type: ignore[union-attr]
        assert (half > 0.05) == unsteady


def test_the_step_is_the_one_that_was_asked_for() -> None:
    found = measure(
        VirtualServer(EngineConfig(), Mix(64, 16), 1), 3, 8, step_rule("normal", Slo(), requests=200), Slo()
    )
    summary = found.summary
    assert (summary.step, summary.concurrency, summary.sent, summary.failed) == (3, 8, 200, 0)
    assert summary.concurrency_mean == pytest.approx(8)
    assert summary.littles_law_residual == pytest.approx(0, abs=0.01)
    assert summary.output_throughput is not None and summary.completion_rate is not None
    assert summary.output_throughput.value == pytest.approx(16 * summary.completion_rate.value, rel=0.06)


def test_a_step_of_2000_requests_takes_well_under_a_second() -> None:
    """About 0.15 s of CPU on a present core; the bound is for a slow one."""
    begun = time.process_time()
    server = VirtualServer(EngineConfig(max_batch=64), Mix(100, 32, sigma=0.5), 1)
    measure(server, 1, 64, step_rule("normal", Slo(), requests=2000), Slo())
    assert time.process_time() - begun < 1.0


@pytest.mark.parametrize(("text", "numbers"), [("3", [0, 1, 2]), ("2-4", [2, 3, 4]), ("0-0", [0])])
def test_engines_are_so_many_or_from_one_to_another(text: str, numbers: list[int]) -> None:
    assert list(range(40))[engines_of(text)] == numbers


@pytest.mark.parametrize("text", ["20-", "-3", "some", ""])
def test_other_engines_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="FROM-TO"):
        engines_of(text)


def test_a_shared_prefix_is_found_in_the_cache() -> None:
    config = EngineConfig(prefix_cache=True, kv_blocks=1000)
    load = Load(VirtualServer(config, Mix(64, 8, prefixes=1, prefix_len=64), 1), 1, concurrency=1)
    ended = [one for _ in range(40) for one in load.step()]
    assert [one.cached for one in ended] == [0] + [64] * (len(ended) - 1) and len(ended) > 2
