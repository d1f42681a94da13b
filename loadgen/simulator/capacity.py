"""What the step model can carry: in closed form, and by running it in virtual time. Pure."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import numpy as np

from .engine import EngineConfig
from .engine.virtual import Closed, Requests, simulate


def capacity(config: EngineConfig, input_len: float, output_len: float) -> float:
    """Output tokens/s at saturation: closed loop, more requests than slots. Lengths are tokens, fixed or means.

    A request holds a slot for ceil(I / P) prefill steps, the last of which emits its first token, and O - 1 decode
    steps: S in all. With B slots always full, B / S requests end in each step; prefill allows at most P / I of them.
    The mean step then lasts step + (requests a step) x ((O - 1) decode + I prefill), since by flow balance each step
    decodes and prefills on average what one step's completed requests needed. Noise has mean 1 and drops out.
    """
    prefill_steps = math.ceil(input_len / config.max_prefill_tokens)
    slot_steps = prefill_steps + output_len - 1
    per_step = min(config.max_batch / slot_steps, config.max_prefill_tokens / input_len)
    work_ms = (output_len - 1) * config.decode_ms + input_len * config.prefill_ms
    return 1e3 * per_step * output_len / (config.step_ms + per_step * work_ms)


@dataclass(frozen=True, slots=True)
class VirtualRun:
    """A run in virtual time. The window runs from the end of the warm-up to the last completion; TTFT and TPOT are of
    the requests submitted and ended in it, in order of completion (TPOT only of those with two tokens or more)."""

    throughput: float  # output tokens/s over the window
    window_s: float
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]


def virtual_run(
    config: EngineConfig,
    concurrency: int,
    input_len: int,
    output_len: int,
    requests: int,
    seed: int = 0,
    spread: float = 0.0,
) -> VirtualRun:
    """Keep `concurrency` requests in the engine; after a warm-up of two rounds of them, measure at least `requests`.

    Each freed place is refilled at the moment its request ends. `spread` draws lengths uniformly from within that
    fraction of the given ones, which are then the means. Requests of one length run in waves of `max_batch`, so the
    window holds whole waves: part of one at its edge would bias the throughput.
    """
    wave = min(config.max_batch, concurrency)
    warm = wave * math.ceil(2 * concurrency / wave)
    last = warm + wave * math.ceil(requests / wave)
    random_lengths = random.Random(seed)
    lengths = [
        (_draw(random_lengths, input_len, spread), _draw(random_lengths, output_len, spread))
        for _ in range(last + concurrency)  # those still under way at the end of the window keep up the load
    ]
    prompt, output = np.array(lengths, np.int64).T
    run = simulate(replace(config, seed=seed), Requests(prompt, output), Closed(concurrency))
    order = np.argsort(run.done_s, kind="stable")
    start, end = (float(run.done_s[order[number - 1]]) for number in (warm, last))
    inside = order[warm:last]
    inside = inside[run.submitted_s[inside] >= start]
    tpot = run.tpot_s[inside]
    return VirtualRun(
        run.throughput(start, end),
        end - start,
        tuple(run.ttft_s[inside].tolist()),
        tuple(tpot[~np.isnan(tpot)].tolist()),
    )


def _draw(lengths: random.Random, mean: int, spread: float) -> int:
    return max(1, round(lengths.uniform(mean * (1 - spread), mean * (1 + spread))))
