"""On the simulated engine in virtual time: what is unsteady is called so, and what is steady is not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.virtual import VirtualServer, measure
from loadgen.results import Slo
from loadgen.search.effort import step_rule
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.engine.virtual import Mix

BASE = EngineConfig(max_batch=32, step_ms=20)
MIX = Mix(200, 16, sigma=0.6)


@pytest.mark.parametrize(
    ("config", "mix", "kind", "least"),
    [
        (replace(BASE, drift=0.2, drift_period_s=120), MIX, "drift", 3),
        (replace(BASE, stall_every_s=8, stall_ms=1000), MIX, "stalls", 3),
        (BASE, Mix(200, 16), "lockstep", 4),
    ],
    ids=["drift", "stalls", "lockstep"],
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


def seen(config: EngineConfig, mix: Mix, steps: int = 4) -> Counter[str]:
    rule = step_rule("normal", Slo(), requests=1000)
    found: Counter[str] = Counter()
    for seed in range(steps):
        found.update(measure(VirtualServer(config, mix, seed), 1, 32, rule, Slo()).summary.unsteady)
    return found
