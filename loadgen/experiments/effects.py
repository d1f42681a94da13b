"""The expected effect in closed form: a figure of either arm by hand, from its engine, the lengths and the load. Pure.

    tpot        the mean step / tokens a step. n in flight are n decoding sequences, and n / O prompts a step, each of
                which adds what its own tokens take; with two pools it adds nothing, and its KV crosses the link once in
                O - 1 tokens. Drafting k at acceptance a makes (1 - a^(k+1)) / (1 - a) tokens a step
    ttft        overhead + the steps of one prompt alone, less what a prefix cache holds of it; the prompt is that of
                the figure's percentile
    gap         the longest wait between two tokens: one step of the decoding ones, with a full budget of prompt tokens
                in it or, where prompts are computed whole, after the longest prompt's own step; with two pools, after
                its KV has crossed the link
    throughput  saturated: n as many as batch and KV memory hold at once. A static batch lasts as long as its longest
                answer

The formulas leave out what queues and noise add, so they stand beside the truth of long runs and do not replace it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..simulator.engine import EngineConfig
from ..simulator.engine.disaggregated import KV_TOKEN_BYTES
from ..simulator.engine.memory import Reservations, memory_for
from ..simulator.engine.roofline import Roofline
from ..simulator.engine.speculation import expected_tokens
from ..simulator.engine.work import Affine, Work
from ..workload.definition import Workload
from .definition import Arm, Setting

DRAWS = 20_000  # of lengths, for what no mean tells
ROUNDS = 60  # until a number in flight and the time that follows from it agree


def expected_ratio(setting: Setting) -> float | None:
    """B over A by the setting's formula; None where it has none."""
    formula = setting.expect.formula
    if formula == "none":
        return None
    figure = {"tpot": tpot_ms, "ttft": ttft_ms, "gap": gap_ms, "throughput": throughput}[formula]
    return figure(setting, setting.b) / figure(setting, setting.a)


def tpot_ms(setting: Setting, arm: Arm) -> float:
    config, (inputs, outputs) = arm.engine, _means(setting.workload)
    # Of an open loop by Little's law: in flight = rate x residence, which is that many tokens' time.
    rate, n = setting.load.rate, min(setting.load.concurrency / arm.replicas, config.max_batch)
    each = 0.0
    for _ in range(ROUNDS if rate is not None else 1):
        each = _mean_step_ms(config, max(1.0, n), inputs, outputs, _cached(setting.workload, config))
        each /= _tokens_a_step(config)
        if config.disaggregated:
            each += _transfer_ms(config, inputs) / max(1.0, outputs - 1)
        if rate is not None:
            n = min(float(config.max_batch), rate / arm.replicas * outputs * each / 1e3)
    return each


def ttft_ms(setting: Setting, arm: Arm) -> float:
    config, lengths = arm.engine, setting.workload.lengths
    prompt = lengths.quantile("input", (setting.expect.figure.percentile or 50.0) / 100)
    return config.overhead_ms + _prompt_ms(config, Work, prompt, _cached(setting.workload, config))


def gap_ms(setting: Setting, arm: Arm) -> float:
    config, (inputs, outputs) = arm.engine, _means(setting.workload)
    n = max(1.0, min(setting.load.concurrency / arm.replicas, config.max_batch) - 1)
    longest = setting.workload.lengths.quantile("input", 0.99)
    step_ms = _step_ms(config, _decoding(n, inputs + outputs / 2))
    if config.disaggregated:
        return step_ms + _transfer_ms(config, inputs)
    if config.chunked_prefill:
        return _step_ms(config, _decoding(n, inputs + outputs / 2), prompt=min(longest, _chunk(config)))
    return step_ms + _step_ms(config, Work(), prompt=longest)


def throughput(setting: Setting, arm: Arm) -> float:
    """Output tokens/s."""
    config, (inputs, outputs) = arm.engine, _means(setting.workload)
    n = float(min(setting.load.concurrency / arm.replicas or config.max_batch, config.max_batch, _held(setting, arm)))
    cached = _cached(setting.workload, config)
    if config.batching == "static":
        _, drawn, _ = setting.workload.lengths.sample(0, DRAWS)
        size = max(1, round(n))
        longest = float(drawn[: len(drawn) // size * size].reshape(-1, size).max(axis=1).mean())
        whole_ms = _step_ms(config, Work(), prompt=n * (inputs - cached), before=cached)
        whole_ms += (longest - 1) * _step_ms(config, _decoding(n, inputs + longest / 2))
        return arm.replicas * n * outputs / whole_ms * 1e3
    step_ms = _mean_step_ms(config, n, inputs, outputs, cached)
    return arm.replicas * n * _tokens_a_step(config) / step_ms * 1e3


# --- parts ----------------------------------------------------------------------------------------------------------


def _means(workload: Workload) -> tuple[float, float]:
    return workload.lengths.figures("input").mean, workload.lengths.figures("output").mean


def _cached(workload: Workload, config: EngineConfig) -> float:
    """Tokens of a prompt that a warm prefix cache holds: whole blocks, and never the last token."""
    if not config.prefix_cache or workload.sharing is None:
        return 0.0
    shared = min(workload.sharing.tokens, _means(workload)[0] - 1)
    return math.floor(shared / config.block_tokens) * config.block_tokens


def _held(setting: Setting, arm: Arm) -> float:
    """Sequences that the KV memory holds at once, each at its prompt and half of its answer."""
    config, (inputs, outputs) = arm.engine, _means(setting.workload)
    memory = memory_for(config)
    if isinstance(memory, Reservations):
        return memory.total // math.ceil(config.context_length / config.block_tokens)
    return memory.total / ((inputs + outputs / 2) / config.block_tokens + 0.5)


def _chunk(config: EngineConfig) -> float:
    if not config.chunked_prefill:
        return math.inf
    return min(config.max_prefill_tokens, config.max_batched_tokens or config.max_prefill_tokens)


def _tokens_a_step(config: EngineConfig) -> float:
    return expected_tokens(config.speculate, config.acceptance) if config.speculate else 1.0


def _mean_step_ms(config: EngineConfig, n: float, inputs: float, outputs: float, cached: float) -> float:
    """By flow balance: in each step n / O requests end, and as many prompts begin."""

    def decoding() -> Work:
        return _decoding(n, inputs + outputs / 2, config.speculate)

    step_ms = _step_ms(config, decoding())
    if config.disaggregated:
        return step_ms
    return step_ms + n * _tokens_a_step(config) / outputs * _prompt_ms(config, decoding, inputs, cached, step_ms)


def _prompt_ms(
    config: EngineConfig, beside: Callable[[], Work], prompt: float, cached: float, without_ms: float = 0.0
) -> float:
    """What the steps of one prompt take, each beside other work, less what each takes `without_ms` it."""
    left, before, total, chunk = prompt - cached, cached, 0.0, _chunk(config)
    while left > 0:
        share = min(left, chunk)
        total += _step_ms(config, beside(), prompt=share, before=before) - without_ms
        left, before = left - share, before + share
    return total


def _decoding(n: float, context: float, drafted: int = 0) -> Work:
    return Work(decoding=round(n), decode_tokens=round(n) * (1 + drafted), decode_context=n * context)


def _step_ms(config: EngineConfig, work: Work, *, prompt: float = 0.0, before: float = 0.0) -> float:
    """A step that beside `work` prefills `prompt` tokens that have `before` others behind them."""
    work.prefilled = round(prompt)
    work.prefill_pairs = prompt * (before + prompt / 2)
    work.prefill_context = before + prompt
    work.prefill_cells = prompt * (before + prompt)
    cost = Roofline(config.machine) if config.machine else Affine(config)
    drafting = config.draft_ms * config.speculate if work.decoding else 0.0
    return cost.milliseconds(work) + drafting


def _transfer_ms(config: EngineConfig, inputs: float) -> float:
    each = config.machine.kv_token_bytes if config.machine else KV_TOKEN_BYTES
    return inputs * each / config.link_gb_s / 1e6 + config.link_latency_ms
