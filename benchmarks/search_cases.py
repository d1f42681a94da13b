"""Seeded engines for `benchmarks.search`, with what is true of them.

    python -m benchmarks.search_cases            # find the truths anew, by the oracle's long runs: half an hour
    python -m benchmarks.search_cases --again [--engines 16-35]    # each limit looked for around the kept one

The truths are kept in `search_cases.json`: they hold as long as the engine does what it did.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.results import Slo
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.engine.virtual import Mix
from loadgen.simulator.oracle import Crossing, Effort, Metric, Objective, at, crossing
from loadgen.slo import parse_slo

COUNT = 40
KEPT = Path(__file__).with_name("search_cases.json")
TRUTH = Effort(replications=6, requests=2500)


@dataclass(frozen=True, slots=True)
class Case:
    """An engine, a mix of lengths and an objective; `load` is the true limit (inf: none up to `most`), `error` its
    standard error. `steepness` is by what factor the share of requests beyond the objective grows from 0.95 to 1.05 of
    the limit, by the slope of its log between the limit's two neighbours."""

    name: str
    config: EngineConfig
    mix: Mix
    metric: Metric
    p: int
    limit_ms: float
    load: float
    error: float
    steepness: float | None

    @property
    def slo(self) -> Slo:
        return parse_slo([f"{self.metric}_p{self.p}={self.limit_ms:.6g}ms"])

    @property
    def most(self) -> int:
        """The highest level looked at."""
        return 4 * self.config.max_batch

    @property
    def doubt(self) -> float:
        """Two standard errors of the true limit."""
        return 2 * self.error

    def percentile_ms(self, level: int) -> float:
        """The true percentile at a level."""
        return at(self.config, self.mix, level, effort=TRUTH).figures[f"{self.metric}_p{self.p}_ms"].value


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


def cases() -> list[Case]:
    """All cases with their truths."""
    found = []
    for row in json.loads(KEPT.read_text()):
        config, mix = engine(row["seed"])
        name = f"{row['seed']:2d} {row['metric']} p{row['p']}"
        load = math.inf if row["load"] is None else row["load"]
        found.append(
            Case(name, config, mix, row["metric"], row["p"], row["limit_ms"], load, row["error"], row.get("steepness"))
        )
    return found


def again(kept: dict[str, Any]) -> dict[str, Any]:
    """A kept row with its limit found again: between the neighbours of the kept one, or in wider brackets around it
    where the limit has left them."""
    config, mix = engine(kept["seed"])
    objective = Objective(kept["metric"], kept["limit_ms"], kept["p"] / 100)
    most = 4 * config.max_batch
    near = most if kept["load"] is None else kept["load"]
    for reach in (1, 4, most):
        low, high = max(1, math.floor(near) - reach + 1), min(most, math.floor(near) + reach)
        if kept["load"] is None:
            low, high = 1, most
        found = crossing(config, mix, objective, low, high, effort=TRUTH)
        if (found.load > 0 or low == 1) and (not math.isinf(found.load) or high == most):
            break
    return kept | _found(found)


def truth(seed: int) -> dict[str, Any]:
    """The objective is the true percentile at a level drawn from 2 to twice the batch, moved by up to 3 %."""
    config, mix = engine(seed)
    draw = random.Random(f"objective {seed}")
    level = round(_between(draw, 2, 2 * config.max_batch))
    metric: Metric = draw.choice(["ttft", "ttft", "tpot"])
    p = draw.choice([95, 95, 95, 99])
    told = at(config, mix, level, effort=TRUTH).figures[f"{metric}_p{p}_ms"].value
    limit_ms = float(f"{told * draw.uniform(0.97, 1.03):.6g}")
    found = crossing(config, mix, Objective(metric, limit_ms, p / 100), 1, 4 * config.max_batch, effort=TRUTH)
    return {"seed": seed, "metric": metric, "p": p, "limit_ms": limit_ms} | _found(found)


def _found(found: Crossing) -> dict[str, Any]:
    if math.isinf(found.load):
        return {"load": None, "error": 0.0, "steepness": None}
    below, above = math.floor(found.load), math.floor(found.load) + 1
    beyond = [max(1 - found.met[load].value, 1e-6) for load in (below, above)]
    steepness = math.exp(0.1 * found.load * math.log(beyond[1] / beyond[0]))
    return {"load": round(found.load, 3), "error": round(found.error, 3), "steepness": round(min(steepness, 999), 2)}


def _between(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true", help="look only around the kept limits")
    parser.add_argument("--engines", default=f"0-{COUNT - 1}", metavar="FROM-TO", help="of the kept ones (TO included)")
    flags = parser.parse_args()
    first, last = map(int, flags.engines.split("-"))
    rows = json.loads(KEPT.read_text()) if flags.again else []
    for place in range(len(rows)) if flags.again else range(COUNT):
        if not flags.again:
            rows.append(truth(place))
        elif first <= rows[place]["seed"] <= last:
            before, rows[place] = rows[place], again(rows[place])
            print(f"{place:2d} {before['load']} to {rows[place]['load']} ±{rows[place]['error']}", flush=True)
        KEPT.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
