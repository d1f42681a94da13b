"""Seeded engines for `benchmarks.search`, with what is true of them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from loadgen.records import Slo
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.engine.virtual import Mix
from loadgen.simulator.oracle import Crossing, Effort, Metric, Objective, at, crossing, share_met
from loadgen.slo import parse_slo

TRUTH = Effort(replications=6, requests=2500)


@dataclass(frozen=True, slots=True)
class Case:
    """An engine, a mix of lengths and an objective near what is true at some load."""

    name: str
    config: EngineConfig
    mix: Mix
    metric: Metric
    p: int
    limit_ms: float

    @property
    def slo(self) -> Slo:
        return parse_slo([f"{self.metric}_p{self.p}={self.limit_ms:.6g}ms"])

    @property
    def objective(self) -> Objective:
        return Objective(self.metric, self.limit_ms, self.p / 100)

    @property
    def most(self) -> int:
        """The highest level looked at."""
        return 4 * self.config.max_batch

    def limit(self) -> Crossing:
        """The true limit."""
        return crossing(self.config, self.mix, self.objective, 1, self.most, effort=TRUTH)

    def percentile_ms(self, level: int) -> float:
        """The true percentile at a level."""
        return at(self.config, self.mix, level, effort=TRUTH).figures[f"{self.metric}_p{self.p}_ms"].value

    def holds(self, level: float, doubt: float) -> bool | None:
        """Does a level truly hold the objective? None within `doubt` standard errors."""
        met = share_met(self.config, self.mix, self.objective, level, effort=TRUTH)
        if abs(met.value - self.objective.level) <= doubt * met.error:
            return None
        return met.value > self.objective.level


def engine(seed: int) -> tuple[EngineConfig, Mix]:
    """A drawn engine: bound by its batch, its prompts or its KV memory, with or without chunked prefill."""
    draw = random.Random(f"engine {seed}")
    batch = draw.choice([8, 12, 16, 24, 32, 48, 64])
    mix = Mix(round(_between(draw, 64, 512)), round(_between(draw, 8, 24)), sigma=draw.choice([0.3, 0.6, 0.8]))
    step_ms = _between(draw, 6, 25)
    kv = draw.random() < 0.25
    config = EngineConfig(
        step_ms=step_ms,
        decode_ms=step_ms / batch * _between(draw, 0.05, 1.0),
        prefill_ms=step_ms / mix.input_len * _between(draw, 0.05, 1.0),
        overhead_ms=_between(draw, 2, 30),
        max_batch=batch,
        max_prefill_tokens=draw.choice([512, 2048]),
        noise_sigma=draw.choice([0.02, 0.05, 0.1]),
        context_length=8192,
        kv_blocks=max(600, round(batch * (mix.input_len + mix.output_len) * 0.6 / 16)) if kv else 0,
        chunked_prefill=draw.random() < 0.8,
        seed=seed,
    )
    return config, mix


def case(seed: int) -> Case:
    """The objective is the true percentile at a level drawn from 2 to twice the batch, moved by up to 3 %."""
    config, mix = engine(seed)
    draw = random.Random(f"objective {seed}")
    level = round(_between(draw, 2, 2 * config.max_batch))
    metric: Metric = draw.choice(["ttft", "ttft", "tpot"])
    p = draw.choice([95, 95, 95, 99])
    told = at(config, mix, level, effort=TRUTH).figures[f"{metric}_p{p}_ms"].value
    limit_ms = float(f"{told * draw.uniform(0.97, 1.03):.6g}")
    return Case(f"{seed:2d} {metric} p{p} at {level}", config, mix, metric, p, limit_ms)


def _between(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))
