"""Step times against figures worked out by hand, and each part of a machine by the amount that it moves them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.simulator.engine import EngineConfig, Gpu, Machine, Model
from loadgen.simulator.engine.core import Core
from loadgen.simulator.engine.roofline import Roofline
from loadgen.simulator.engine.sequence import Sequence
from loadgen.simulator.engine.virtual import Closed, Requests, simulate
from loadgen.simulator.engine.work import Work
from loadgen.simulator.presets import DEEPSEEK_V3, LLAMA_8B, MIXTRAL, QWEN_30B_A3B

# 1 layer of everything in round numbers: 2e9 parameters beside two embeddings of 1e6; 100 TFLOP/s, 1 TB/s.
MODEL = Model("round", 10, 1000, 10, 2, 100, 2e9 + 2e6, 1000)
GPU = Gpu("round", 100, 200, 1000, 16, 100)
ROUND = Machine(MODEL, GPU, overhead_ms=0, flops_share=1, bandwidth_share=1, activations_gb=0, memory_share=1)
QUIET = EngineConfig(overhead_ms=0, max_batch=256, noise_sigma=0, machine=ROUND, max_prefill_tokens=8192)

KV_BYTES = 2 * 10 * 2 * 100 * 2  # K and V, layers, KV heads, head size, bf16
WEIGHTS = 2 * (2e9 + 1e6)  # the input embedding is looked up, not read


def decoding(sequences: int, context: int, queries: int = 1) -> Work:
    return Work(decoding=sequences, decode_tokens=sequences * queries, decode_context=sequences * context)


def prefill(tokens: int, before: int = 0) -> Work:
    pairs = tokens * before + tokens * (tokens + 1) // 2
    return Work(
        prefilled=tokens,
        prefill_pairs=pairs,
        prefill_context=before + tokens,
        prefill_cells=tokens * (before + tokens),
        prompts_done=1,
    )


@pytest.mark.parametrize("batch", [1, 64])
def test_decoding_takes_its_bytes_over_the_bandwidth(batch: int) -> None:
    """TPOT of a large batch in virtual time = (weights + KV of all contexts) / bandwidth + overhead."""
    config = replace(QUIET, machine=replace(ROUND, overhead_ms=0.5))
    run = simulate(config, Requests(np.full(batch, 100), np.full(batch, 51)), Closed(batch))
    context = 100 + np.arange(1, 51)  # of each decode step, the token at work included
    steps_ms = (WEIGHTS + batch * (context + 1) * KV_BYTES) / 1e12 * 1e3 + 0.5
    assert run.tpot_s * 1e3 == pytest.approx(steps_ms.mean(), rel=1e-9)


def test_prefill_takes_its_flops_over_the_peak() -> None:
    work = prefill(2000)
    flops = 2 * 2e9 * 2000 + 2 * 1e6 + 4 * 10 * 10 * 100 * (2000 * 2001 // 2)
    assert Roofline(ROUND).flops(work) == flops
    assert Roofline(ROUND).milliseconds(work) == pytest.approx(flops / 100e12 * 1e3)


def test_chunks_cost_the_same_flops_as_the_whole_prompt() -> None:
    roofline = Roofline(ROUND)
    parts = [prefill(500, before) for before in (0, 500, 1000, 1500)]
    for part in parts[:3]:
        part.prompts_done = 0
    assert sum(roofline.flops(part) for part in parts) == roofline.flops(prefill(2000))
    core = Core(replace(QUIET, max_prefill_tokens=500))
    core.submit(Sequence(0, 2000, 1, 0.0, 0.0))
    steps = []
    while (step := core.step(0.0)) is not None:
        steps.append(step.duration_s * 1e3)
    assert steps == pytest.approx([roofline.milliseconds(part) for part in parts])


def test_the_roof_turns_where_the_two_times_cross() -> None:
    """Dense model: 2 FLOPs against `bytes` bytes a parameter, so batch* = bytes x peak / (2 x bandwidth) = 100."""
    roofline = Roofline(ROUND)
    times = [roofline.milliseconds(decoding(batch, 0)) for batch in (1, 90, 110, 220)]
    assert times[0] == pytest.approx(times[1], rel=0.01)
    assert times[3] == pytest.approx(2 * times[2], rel=0.01)


def test_naive_attention_moves_the_score_matrix_four_times() -> None:
    tiled, naive = Roofline(ROUND), Roofline(replace(ROUND, tiled_attention=False))
    for work, cells in ((prefill(3000, 1000), 3000 * 4000), (decoding(8, 500), 8 * 500)):
        assert naive.bytes(work) - tiled.bytes(work) == 4 * 2 * 10 * 10 * cells  # passes, bf16, layers, heads
        assert naive.flops(work) == tiled.flops(work)
    slow = replace(ROUND, gpu=replace(GPU, bandwidth_gb_s=100))
    long, short = (
        Roofline(replace(slow, tiled_attention=tiled)).milliseconds(prefill(8192)) for tiled in (False, True)
    )
    assert short == pytest.approx(Roofline(slow).flops(prefill(8192)) / 100e12 * 1e3)
    assert long == pytest.approx((WEIGHTS + 2 * 8192 * KV_BYTES + 8 * 100 * 8192**2) / 100e9 * 1e3)


def test_quantisation_moves_what_is_read_and_what_fits() -> None:
    base, weights, kv = ROUND, replace(ROUND, weight_bytes=1.0), replace(ROUND, kv_bytes=1.0)
    work = decoding(64, 1000)
    assert Roofline(base).bytes(work) - Roofline(weights).bytes(work) == pytest.approx(WEIGHTS / 2)
    assert Roofline(base).bytes(work) - Roofline(kv).bytes(work) == (64 * 1000 + 64) * KV_BYTES / 2
    assert base.kv_tokens() == int((16e9 - 2 * (2e9 + 2e6)) / KV_BYTES)
    assert kv.kv_tokens() == 2 * base.kv_tokens()
    assert weights.kv_tokens() == int((16e9 - (2e9 + 2e6)) / KV_BYTES)
    assert weights.peak_flops == 2 * base.peak_flops  # fp8 units
    assert replace(weights, gpu=replace(GPU, fp8_tflops=0)).peak_flops == base.peak_flops
    assert replace(base, weight_bytes=0.5).peak_flops == base.peak_flops  # 4 bits are computed as bf16


@pytest.mark.parametrize("n", [2, 4, 8])
def test_tensor_parallel_divides_the_work_and_adds_two_all_reduces_a_layer(n: int) -> None:
    one, many = Roofline(ROUND), Roofline(replace(ROUND, tensor_parallel=n))
    work = prefill(2000)
    ring_s = 2 * 10 * (2 * (n - 1) / n * 2000 * 1000 * 2 / 100e9 + 8e-6)
    assert many.communication_ms(2000) == pytest.approx(ring_s * 1e3)
    assert many.milliseconds(work) == pytest.approx(one.milliseconds(work) / n + ring_s * 1e3)
    assert one.communication_ms(2000) == 0


def test_kv_heads_that_run_out_are_copied() -> None:
    """2 KV heads on 8 accelerators: 4 copies of each, so the memory of 8 holds no more tokens than 2 such shares."""
    assert replace(ROUND, tensor_parallel=2).kv_copies == 1
    eight = replace(ROUND, tensor_parallel=8)
    assert eight.kv_copies == 4
    assert eight.kv_tokens() == int((8 * 16e9 - 2 * (2e9 + 2e6)) / (4 * KV_BYTES))


def test_experts_are_read_as_they_are_chosen() -> None:
    """1 token reads the active parameters, many read all; between, experts x (1 - (1 - k/n)^tokens)."""
    for model in (MIXTRAL, QWEN_30B_A3B, DEEPSEEK_V3):
        embeddings = model.head_params  # the input one is not read
        assert model.weights_read(1) == pytest.approx(model.active - embeddings)
        assert model.weights_read(100_000) == pytest.approx(model.params - embeddings)
    expert = (46.7e9 - 12.9e9) / 6
    more = MIXTRAL.weights_read(4) - MIXTRAL.weights_read(1)
    assert more == pytest.approx(8 * (1 - 0.75**4) * expert - 2 * expert)


@pytest.mark.parametrize(
    ("model", "elements"), [(LLAMA_8B, 2 * 32 * 8 * 128), (DEEPSEEK_V3, 61 * 576)], ids=["grouped", "latent"]
)
def test_kv_elements_of_a_token(model: Model, elements: int) -> None:
    assert model.kv_elements == elements


def test_the_blocks_are_those_that_the_memory_holds() -> None:
    config = EngineConfig(machine=ROUND, block_tokens=32)
    assert config.blocks == ROUND.kv_tokens() // 32
    assert replace(config, kv_blocks=7).blocks == 7
    with pytest.raises(UsageError, match="does not fit on 1 x small"):
        _ = replace(config, machine=replace(ROUND, gpu=replace(GPU, name="small", memory_gb=4))).blocks
