from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loadgen.simulator.capacity import capacity
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.engine.virtual import Mix
from loadgen.simulator.oracle import Effort, Objective, at, cache_folder, crossing, quick_capacity, saturation

DEFAULT = EngineConfig()
MIX = Mix(64, 32, spread=0.5)
SHORT = Effort(replications=3, requests=200)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "loadgen" / "oracle"


def test_a_level_agrees_with_what_is_known() -> None:
    """One in flight: TTFT = overhead + step + prefill; saturated: the closed form."""
    alone = at(replace(DEFAULT, noise_sigma=0), Mix(64, 32), 1, effort=Effort(2, 20))
    assert alone.figures["ttft_p50_ms"].value == pytest.approx(22 + 12 + 64 * 0.085)
    assert alone.figures["tpot_p99_ms"].value == pytest.approx(12.2)
    full = saturation(DEFAULT, MIX, effort=SHORT)
    assert full.value == pytest.approx(capacity(DEFAULT, 64, 32), abs=max(5 * full.error, 0.01 * full.value))
    assert 0 < full.error < 0.02 * full.value


def test_the_stated_error_is_the_spread_of_other_seeds() -> None:
    effort = Effort(replications=4, requests=60)
    levels = [at(DEFAULT, MIX, 12, effort=replace(effort, seed=seed)) for seed in range(6)]
    values = np.array([level.figures["ttft_mean_ms"].value for level in levels])
    stated = float(np.mean([level.figures["ttft_mean_ms"].error for level in levels]))
    assert stated / 3 < values.std(ddof=1) < stated * 3


def test_a_crossing_lies_where_the_probability_falls_through_the_level() -> None:
    objective = Objective("ttft", 200, 0.95)
    found = crossing(DEFAULT, MIX, objective, 12, 32, effort=SHORT)
    assert 12 < found.load < 32 and 0 < found.error < 1
    below, above = math.floor(found.load), math.ceil(found.load)
    assert found.met[below].value >= 0.95 > found.met[above].value
    again = at(DEFAULT, MIX, below, effort=replace(SHORT, seed=9)).figures["ttft_p95_ms"]
    assert again.value < 200 * 1.05
    assert at(DEFAULT, MIX, above + 1, effort=replace(SHORT, seed=9)).figures["ttft_p95_ms"].value > 200


def test_an_objective_that_always_or_never_holds_has_no_crossing() -> None:
    effort = Effort(2, 50)
    assert crossing(DEFAULT, MIX, Objective("ttft", 10), 4, 8, effort=effort).load == 0
    assert crossing(DEFAULT, MIX, Objective("ttft", 1e6), 4, 8, effort=effort).load == math.inf


def test_an_open_loop_crosses_below_its_capacity() -> None:
    rate = capacity(DEFAULT, 64, 32) / 32
    found = crossing(DEFAULT, MIX, Objective("ttft", 200), 0.4 * rate, 1.2 * rate, loop="open", effort=SHORT)
    assert 0.5 * rate < found.load < rate


def test_answers_are_kept_and_a_damaged_one_is_found_again(own_cache: Path) -> None:
    begun = time.perf_counter()
    first = at(DEFAULT, MIX, 8, effort=SHORT)
    took = time.perf_counter() - begun
    begun = time.perf_counter()
    assert at(DEFAULT, MIX, 8, effort=SHORT) == first
    assert time.perf_counter() - begun < took / 2
    (kept,) = own_cache.glob("*.json")
    assert json.loads(kept.read_text())["question"]["at"][2] == 8
    kept.write_text("{")
    assert at(DEFAULT, MIX, 8, effort=SHORT) == first
    assert at(replace(DEFAULT, step_ms=13), MIX, 8, effort=SHORT) != first


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert at(DEFAULT, MIX, 2, effort=Effort(2, 10)).throughput.value > 0


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/loadgen/oracle"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/loadgen/oracle"),
        ({"HOME": "/h"}, "/h/.cache/loadgen/oracle"),
    ],
    ids=["absolute", "relative", "unset"],
)
def test_the_cache_is_the_users(environment: dict[str, str], folder: str) -> None:
    assert cache_folder(environment) == Path(folder)


def test_quick_capacity_is_the_closed_form_or_a_run() -> None:
    assert quick_capacity(DEFAULT, 64, 32) == capacity(DEFAULT, 64, 32)
    plenty = replace(DEFAULT, kv_blocks=10_000)  # not simple, yet never short of memory
    assert quick_capacity(plenty, 64, 32) == pytest.approx(capacity(DEFAULT, 64, 32), rel=0.08)


def test_a_request_that_can_never_run_is_refused() -> None:
    small = replace(DEFAULT, kv_blocks=8)  # 128 tokens
    for ask in (
        lambda mix: at(small, mix, 2, effort=Effort(2, 10)),
        lambda mix: crossing(small, mix, Objective("ttft", 200), 1, 2, effort=Effort(2, 10)),
    ):
        with pytest.raises(ValueError, match="129 tokens"):
            ask(Mix(64, 32, input_spread=33 / 64))
    assert at(small, Mix(64, 32, input_spread=32 / 64), 2, effort=Effort(2, 10)).throughput.value > 0
    assert at(small, Mix(64, 32, sigma=1.0), 2, effort=Effort(2, 10)).throughput.value > 0  # its tail is cut
    for config in (small, replace(DEFAULT, context_length=128)):
        assert quick_capacity(config, 96, 32) > 0
        with pytest.raises(ValueError, match="129 tokens"):
            quick_capacity(config, 97, 32)
