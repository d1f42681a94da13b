"""What a simulated token costs: CPU of the engine in virtual time, by size of the batch and by mechanism.

    python benchmarks/engine.py [--tokens 300000] [--json]

A closed loop a little above the batch, prompts of 256 to 768 tokens, answers of 64 to 192. Process CPU time, so that
other work on the machine does not count; one run a row.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace

from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.engine.virtual import Closed, Mix, simulate
from loadgen.simulator.presets import PRESETS

MECHANISMS: dict[str, dict[str, object]] = {
    "plain": {},
    "machine": {"machine": PRESETS["h100-llama-3.1-8b"].machine},
    "prefix cache": {"prefix_cache": True},
    "speculation": {"speculate": 3},
    "whole prompts": {"chunked_prefill": False},
    "two pools": {"disaggregated": True},
    "static": {"batching": "static"},
}


def row(batch: int, name: str, tokens: int) -> dict[str, object]:
    config = replace(EngineConfig(max_batch=batch), **MECHANISMS[name])  # type: ignore[arg-type]
    mix = Mix(512, 128, spread=0.5, prefixes=8 if config.prefix_cache else 0, prefix_len=256)
    requests = mix.draw(max(2 * batch, tokens // 128), seed=1)
    begun = time.process_time()
    run = simulate(config, requests, Closed(batch + 8))
    cpu_s = time.process_time() - begun
    made = int(requests.output.sum())
    return {
        "batch": batch,
        "mechanism": name,
        "tokens_per_cpu_s": made / cpu_s,
        "us_per_step": cpu_s / run.truth.steps * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=300_000)
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    rows = [row(batch, "plain", flags.tokens) for batch in (1, 8, 256)]
    rows += [row(64, name, flags.tokens) for name in MECHANISMS]
    if flags.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'batch':>5} {'mechanism':<14} {'M tokens/CPU s':>14} {'µs/step':>8}")
    for one in rows:
        rate, step = float(str(one["tokens_per_cpu_s"])), float(str(one["us_per_step"]))
        print(f"{one['batch']:>5} {one['mechanism']:<14} {rate / 1e6:>14.2f} {step:>8.1f}")


if __name__ == "__main__":
    main()
