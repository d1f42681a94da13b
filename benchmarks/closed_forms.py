"""What can be worked out by hand beside what the engine does: the table of docs/engine.md.

python -m benchmarks.closed_forms [--seed 1]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from loadgen.hardware.deployment import Deployment
from loadgen.hardware.gpus import gpu_named
from loadgen.hardware.named import model_named
from loadgen.simulator.capacity import capacity
from loadgen.simulator.engine import EngineConfig, Machine
from loadgen.simulator.engine.disaggregated import KV_TOKEN_BYTES
from loadgen.simulator.engine.prefix import shared_prefix
from loadgen.simulator.engine.speculation import expected_tokens
from loadgen.simulator.engine.virtual import Arrivals, Closed, Mix, Requests, VirtualTimes, simulate

QUIET = EngineConfig(noise_sigma=0, overhead_ms=0)
Row = tuple[str, float, float]  # what, by hand, measured


def one(config: EngineConfig, prompt: int, output: int, count: int = 1, at_once: int = 1) -> VirtualTimes:
    return simulate(config, Requests(np.full(count, prompt), np.full(count, output)), Closed(at_once))


def rows(seed: int) -> Iterator[Row]:
    alone = one(replace(QUIET, overhead_ms=22), 500, 40)
    yield "lone TTFT, ms: overhead + step + I x prefill", 22 + 12 + 500 * 0.085, alone.ttft_s[0] * 1e3
    yield "lone TPOT, ms: step + decode", 12.2, alone.tpot_s[0] * 1e3
    noisy = replace(EngineConfig(seed=seed), max_batch=32, noise_sigma=0.2)
    run = simulate(noisy, Mix(200, 60, spread=0.5).draw(4000, seed), Closed(64))
    since, until = (float(run.submitted_s[number]) for number in (200, 3900))
    yield (
        "saturated tokens/s: flow balance (simulator/capacity)",
        capacity(noisy, 200, 60),
        run.throughput(since, until),
    )
    service = (12 + 100 * 0.085 + 3 * 12.2) / 1e3
    gaps = np.random.default_rng(seed).exponential(service / 0.7, 40_000)
    lone = replace(QUIET, max_batch=1)
    queue = simulate(lone, Requests(np.full(40_000, 100), np.full(40_000, 4)), Arrivals(np.cumsum(gaps)))
    rate = len(gaps) / gaps.sum()
    wait = rate * service**2 / (2 * (1 - rate * service))
    yield (
        "mean wait of an M/D/1 queue, ms: rate D^2 / 2 (1 - rho)",
        wait * 1e3,
        float((queue.scheduled_s - queue.submitted_s).mean()) * 1e3,
    )
    static = replace(QUIET, batching="static", max_batch=4)
    lengths = Requests(np.full(8, 10), np.array([5, 10, 15, 20] * 2))
    batch = 12 + 40 * 0.085 + 19 * (12 + 4 * 0.2)
    done = simulate(static, lengths, Closed(8)).done_s.max()
    yield "two static batches, ms: prompts + longest answer, padded", 2 * batch, float(done) * 1e3
    drafted = replace(QUIET, speculate=3, acceptance=0.7, seed=seed, context_length=1 << 20)
    per_step = 20_000 / one(drafted, 1, 20_001).tpot_s[0] / 20_000 * 12.2 / 1e3
    yield "tokens a step, 3 drafted at 0.7: (1 - a^4) / (1 - a)", expected_tokens(3, 0.7), per_step
    pools = replace(QUIET, disaggregated=True, link_gb_s=10, link_latency_ms=2)
    second = 2 + 1000 * KV_TOKEN_BYTES / 10e9 * 1e3 + 12 + 0.085
    moved = one(pools, 1000, 2)
    yield (
        "second token of two pools, ms: KV / link + latency + step",
        second,
        (moved.done_s[0] - moved.first_s[0]) * 1e3,
    )
    cached = Requests(np.full(2, 1000), np.full(2, 2), (shared_prefix("a", 1000, 16),) * 2)
    hit = simulate(replace(QUIET, prefix_cache=True), cached, Closed(1))
    yield "TTFT with 992 of 1,000 tokens cached, ms", 12 + 8 * 0.085, hit.ttft_s[1] * 1e3
    tight = replace(QUIET, kv_blocks=100, max_batch=64)
    held = simulate(tight, Requests(np.full(30, 160), np.full(30, 1)), Closed(30))
    yield "prompts of 10 blocks at once in 100", 10, float((held.scheduled_s == 0).sum())
    whole = replace(tight, kv="contiguous", context_length=800)
    reserved = simulate(whole, Requests(np.full(30, 160), np.full(30, 1)), Closed(30))
    yield "the same, with 800 tokens reserved for each", 2, float((reserved.scheduled_s == 0).sum())
    machine = Machine(model_named("llama-3.1-8b"), Deployment(gpu_named("h100")))
    served = replace(QUIET, machine=machine, max_batch=64, max_prefill_tokens=64 * 512)
    context = 512 + np.arange(2, 101)
    bytes_moved = machine.model.weight_bytes() + 64 * context * machine.model.kv_bytes_per_token()
    decode_ms = float((bytes_moved / machine.bandwidth).mean()) * 1e3 + 1
    tpot_ms = float(one(served, 512, 100, 64, 64).tpot_s.mean()) * 1e3
    yield "TPOT of 64 on an H100, ms: bytes / bandwidth + overhead", decode_ms, tpot_ms
    flops = 2 * machine.model.body_parameters * 4000 + 2 * machine.model.head_parameters
    flops += 32 * machine.model.attention_flops * 4000 * 4001 / 2
    yield "TTFT of 4,000 tokens there, ms", flops / machine.peak_flops * 1e3 + 1, one(served, 4000, 1).ttft_s[0] * 1e3
    stalled = replace(QUIET, stall_every_s=2, stall_ms=100, seed=seed, context_length=1 << 20)
    slow = one(stalled, 1, 40_001).tpot_s[0] * 1e3
    yield "mean TPOT with stalls, ms: step + stall (1 - e^(-step / every))", 12.2 - 100 * math.expm1(-12.2e-3 / 2), slow
    drifting = one(replace(QUIET, drift=0.3, drift_period_s=20, context_length=1 << 20), 1, 34_369)
    yield "mean TPOT with drift 0.3, ms: step x sqrt(1 - drift^2)", 12.2 * math.sqrt(1 - 0.09), drifting.tpot_s[0] * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    print("| what, and by which formula | by hand | measured | off |\n| --- | --- | --- | --- |")
    for what, known, measured in rows(parser.parse_args().seed):
        print(f"| {what} | {known:,.3f} | {measured:,.3f} | {measured / known - 1:+.2%} |")


if __name__ == "__main__":
    main()
