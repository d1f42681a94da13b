"""On the simulated engine in virtual time: what is unsteady is called so, and what is steady is not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.virtual import VirtualServer, measure
from loadgen.analysis.steadiness import unsteadiness
from loadgen.experiments.columns import columns_of
from loadgen.log.columns import Columns
from loadgen.records import PHASES
from loadgen.results import Slo, Window
from loadgen.search.effort import step_rule
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.engine.virtual import Mix

BASE = EngineConfig(max_batch=32, step_ms=20)
MIX = Mix(200, 16, sigma=0.6)


@pytest.mark.parametrize(
    ("config", "mix", "kind", "least"),
    [
        (replace(BASE, drift=0.2, drift_period_s=120), MIX, "drift", 3),
        (replace(BASE, drift=0.2, drift_period_s=30), MIX, "drift", 4),
        (replace(BASE, drift=0.5, drift_period_s=120), MIX, "drift", 4),  # prompts and outputs go up and down together
        (replace(BASE, drift=0.2, drift_period_s=6), Mix(64, 4, sigma=0.3), "drift", 4),
        (replace(BASE, stall_every_s=8, stall_ms=1000), MIX, "stalls", 3),
        (BASE, Mix(200, 16), "lockstep", 4),
    ],
    ids=["drift", "in waves", "much", "short answers", "stalls", "lockstep"],
)
def test_what_is_unsteady_is_called_so(config: EngineConfig, mix: Mix, kind: str, least: int) -> None:
    assert seen(config, mix)[kind] >= least


@pytest.mark.parametrize(
    "config",
    [
        BASE,
        replace(BASE, max_batch=20),
        replace(BASE, prefill_ms=0.5, max_prefill_tokens=512),  # its steps are long: requests leave a few at a time
    ],
    ids=["no queue", "a queue", "bound by prompts"],
)
def test_what_is_steady_is_not(config: EngineConfig) -> None:
    assert sum(seen(config, MIX).values()) <= 1


def test_what_is_asked_for_is_no_drift_of_the_server() -> None:
    """As many requests as arrive, each 0.1 s long: twice as many a second at the end as at the beginning."""
    rng = np.random.default_rng(1)
    sent = np.cumsum(1 / np.linspace(20, 40, 900)) + rng.normal(0, 0.01, 900)
    stamps = np.column_stack((sent, sent + 0.05, sent + 0.1))
    lengths = rng.integers(1, 100, (900, 2))
    window = Window(0, round(sent[-1] * 1e9))
    slices = np.histogram(sent, 16, weights=lengths[:, 1])[0]
    assert unsteadiness(alike(stamps, 0, lengths), window, 0, slices) == ()
    assert unsteadiness(alike(stamps, 4, lengths), window, 4, slices) == ("drift",)


@pytest.mark.parametrize("concurrency", [0, 1])
@pytest.mark.parametrize(
    ("idle_s", "slow_s", "right"), [(2.0, 0.0, ()), (0.0, 2.0, ("stalls",)), (2.0, 2.0, ("stalls",))]
)
def test_a_pause_with_nothing_in_flight_is_no_stall(
    concurrency: int, idle_s: float, slow_s: float, right: tuple[str, ...]
) -> None:
    """Two hundred requests of 50 ms, one after the other; in the middle nobody asks, or the server takes its time."""
    took = np.full(200, 0.05)
    took[100] += slow_s
    sent = np.concatenate(([0.0], np.cumsum(took)[:-1])) + np.where(np.arange(200) < 100, 0.0, idle_s)
    stamps = np.column_stack((sent, sent + took - 0.02, sent + took))
    window = Window(0, round(stamps[-1, 2] * 1e9))
    assert unsteadiness(alike(stamps, concurrency), window, concurrency, np.zeros(0)) == right


def alike(stamps: np.ndarray, concurrency: int, lengths: np.ndarray | None = None) -> Columns:
    n = len(stamps)
    phases = np.full(n, PHASES.index("measured"), np.int8)
    return columns_of(stamps, np.ones((n, 2), np.int64) if lengths is None else lengths, phases, 1, concurrency)


def seen(config: EngineConfig, mix: Mix, steps: int = 4) -> Counter[str]:
    rule = step_rule("normal", Slo(), requests=1000)
    found: Counter[str] = Counter()
    for seed in range(steps):
        found.update(measure(VirtualServer(config, mix, seed), 1, 32, rule, Slo()).summary.unsteady)
    return found
