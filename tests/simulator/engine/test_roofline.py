"""Step times against figures worked out by hand, and each part of a machine by the amount that it moves them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadgen.analysis.capacity import decode_floor, prefill_floor_s
from loadgen.errors import UsageError
from loadgen.hardware.deployment import Deployment
from loadgen.hardware.gpus import Gpu
from loadgen.hardware.model import AttentionLayers, Model, Quantisation
from loadgen.hardware.named import model_named, table
from loadgen.simulator.engine import EngineConfig, Machine
from loadgen.simulator.engine.core import Core
from loadgen.simulator.engine.roofline import Roofline
from loadgen.simulator.engine.sequence import Sequence
from loadgen.simulator.engine.virtual import Closed, Requests, simulate
from loadgen.simulator.engine.work import Sight, Work
from loadgen.simulator.presets import machine_named

# 1 layer of everything in round numbers: 2e9 parameters beside two embeddings of 1e6; 100 TFLOP/s, 1 TB/s.
SIZE = 2e9 + 2e6
MODEL = Model("round", SIZE, SIZE, 10, 1000, 10, 2, 100, (AttentionLayers(10),), 1000, plain_parameters=2e6)
GPU = Gpu("round", 16e9, 1e12, 100e12, 200e12, 100e9, "made up")
ALONE = Deployment(GPU, utilisation=1, runtime_bytes=0, activation_bytes=0)
ROUND = Machine(MODEL, ALONE, overhead_ms=0, flops_share=1, bandwidth_share=1)
QUIET = EngineConfig(overhead_ms=0, max_batch=256, noise_sigma=0, machine=ROUND, max_prefill_tokens=8192)

KV_BYTES = 2 * 10 * 2 * 100 * 2  # K and V, layers, KV heads, head size, bf16
WEIGHTS = 2 * SIZE


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


def shared_by(**ways: int) -> Machine:
    return replace(ROUND, on=replace(ALONE, **ways))


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
    slow = replace(ROUND, on=replace(ALONE, gpu=replace(GPU, bandwidth=100e9)))
    long, short = (
        Roofline(replace(slow, tiled_attention=tiled)).milliseconds(prefill(8192)) for tiled in (False, True)
    )
    assert short == pytest.approx(Roofline(slow).flops(prefill(8192)) / 100e12 * 1e3)
    assert long == pytest.approx((WEIGHTS + 2 * 8192 * KV_BYTES + 8 * 100 * 8192**2) / 100e9 * 1e3)


def test_quantisation_moves_what_is_read_and_what_fits() -> None:
    base = ROUND
    fp8, int4 = (replace(ROUND, model=MODEL.quantised(Quantisation(bits))) for bits in (8, 4))
    kv = replace(ROUND, on=replace(ALONE, kv_bits=8))
    work = decoding(64, 1000)
    assert Roofline(base).bytes(work) - Roofline(fp8).bytes(work) == pytest.approx(2e9)  # the embeddings stay
    assert Roofline(base).bytes(work) - Roofline(kv).bytes(work) == (64 * 1000 + 64) * KV_BYTES / 2
    blocks = [replace(QUIET, machine=machine).blocks for machine in (base, kv, fp8)]
    assert blocks == [int(left / (16 * each)) for left, each in _memory_left()]
    assert fp8.peak_flops == 2 * base.peak_flops  # fp8 units
    without = replace(fp8, on=replace(ALONE, gpu=replace(GPU, peak_8=100e12)))
    assert without.peak_flops == base.peak_flops == int4.peak_flops  # 4 bits are multiplied at 16


def _memory_left() -> list[tuple[float, float]]:
    return [
        (16e9 - 2 * SIZE, KV_BYTES),
        (16e9 - 2 * SIZE, KV_BYTES / 2),
        (16e9 - 2e9 - 2 * 2e6, KV_BYTES),
    ]


@pytest.mark.parametrize("n", [2, 4, 8])
def test_tensor_parallel_divides_the_work_and_adds_two_all_reduces_a_layer(n: int) -> None:
    one, many = Roofline(ROUND), Roofline(shared_by(tensor_parallel=n))
    work = prefill(2000)
    ring_s = 2 * 10 * (2 * (n - 1) / n * 2000 * 1000 * 2 / 100e9 + 8e-6)
    assert many.communication_ms(2000) == pytest.approx(ring_s * 1e3)
    assert many.milliseconds(work) == pytest.approx(one.milliseconds(work) / n + ring_s * 1e3)
    assert one.communication_ms(2000) == 0


def test_kv_heads_that_run_out_are_copied() -> None:
    """2 KV heads on 8 accelerators: each has one whole, so it holds a token's half."""
    for n, part in ((2, 2), (8, 2)):
        machine = shared_by(tensor_parallel=n)
        assert Roofline(machine).bytes(decoding(1, 999)) == pytest.approx(WEIGHTS / n + 1000 * KV_BYTES / part)
        assert replace(QUIET, machine=machine).blocks == int((16e9 - WEIGHTS / n) / (16 * KV_BYTES / part))


def test_expert_groups_share_sequences_and_experts_and_exchange_tokens() -> None:
    model = model_named("mixtral-8x7b")
    one, four = (Roofline(Machine(model, replace(ALONE, expert_parallel=n))) for n in (1, 4))
    work = decoding(64, 1000)
    experts = model.expert_weight_bytes()
    touched = experts * (1 - 0.75**64)
    kv = 64 * 1001 * model.kv_bytes_per_token()
    assert one.bytes(work) == pytest.approx(model.weight_bytes() - experts + touched + kv)
    assert four.bytes(work) == pytest.approx(model.weight_bytes() - experts + touched / 4 + kv / 4)
    moved = 2 * 32 * 3 / 4 * 64 / 4 * 2 * 4096 * 2  # there and back, layers, elsewhere, tokens each, experts, bf16
    assert four.communication_ms(64) == pytest.approx((moved / 100e9 + 2 * 32 * 8e-6) * 1e3)


def test_stages_divide_the_memory_and_not_the_time() -> None:
    one, two = Roofline(ROUND), Roofline(shared_by(pipeline_parallel=2))
    work = prefill(2000)
    assert two.milliseconds(work) - one.milliseconds(work) == pytest.approx((2000 * 1000 * 2 / 100e9 + 8e-6) * 1e3)
    assert replace(QUIET, machine=two.machine).blocks == int((16e9 - WEIGHTS / 2) / (16 * KV_BYTES / 2))


def test_experts_are_read_as_they_are_chosen() -> None:
    """1 token reads the active parameters, many read all; between, experts x (1 - (1 - k/n)^tokens)."""
    for name in ("mixtral-8x7b", "qwen3-30b-a3b"):
        machine = machine_named(name, "h200", 2)
        roofline, model = Roofline(machine), machine.model
        alone, many = (roofline.bytes(Work(decode_tokens=n)) - n * machine.kv_token_bytes / 2 for n in (1, 100_000))
        assert alone == pytest.approx(2 * model.active_parameters / 2)
        assert many == pytest.approx(2 * model.parameters / 2)


def test_a_window_bounds_what_is_read_and_computed() -> None:
    """Half the layers see all, half see 4 tokens: counted query by query."""
    model = replace(MODEL, attention=(AttentionLayers(5, 4), AttentionLayers(5)))
    for before, share in ((0, 3), (2, 7), (9, 5), (0, 1)):
        work = Work()
        Sight(model).prefill(work, before, share)
        seen = [(min(number, 4) + number) / 2 for number in range(before + 1, before + share + 1)]
        assert work.prefill_pairs == sum(seen)
        assert work.prefill_context == (share + min(before, 4) + share + before) / 2
    assert Sight(model).decoding(np.array([1, 9])) == (2 + 4) / 2 + (2 + 10) / 2
    windowed = replace(QUIET, machine=replace(ROUND, model=model))
    requests = Requests(np.full(4, 1000), np.full(4, 50))
    assert simulate(windowed, requests, Closed(4)).done_s.max() < simulate(QUIET, requests, Closed(4)).done_s.max()


@pytest.mark.parametrize("name", list(table()))
@pytest.mark.parametrize("ways", [{}, {"tensor_parallel": 8}, {"tensor_parallel": 2, "expert_parallel": 4}], ids=str)
def test_no_step_is_faster_than_the_floors_of_the_plan(name: str, ways: dict[str, int]) -> None:
    """With kernels that reach every peak, decoding and a prompt take the plan's floors."""
    model = model_named(name)
    on = replace(ALONE, **ways)
    roofline = Roofline(Machine(model, on, overhead_ms=0, flops_share=1, bandwidth_share=1, link_latency_us=0))
    for batch, context in ((1, 500), (64, 3000), (512, 200)):
        work = Work(decoding=batch, decode_tokens=batch)
        work.decode_context = Sight(model).decoding(np.full(batch, context - 2))
        step_s = roofline.bytes(work) / roofline.machine.bandwidth
        floor = decode_floor(model, on, batch, context)
        assert step_s == pytest.approx(floor.memory_s, rel=2e-3)
        assert roofline.flops(work) / roofline.machine.peak_flops <= floor.compute_s * 1.001
    work = Work(prefilled=2000, prompts_done=1)
    Sight(model).prefill(work, 0, 2000)
    prompt_s = roofline.flops(work) / roofline.machine.peak_flops
    assert prompt_s == pytest.approx(prefill_floor_s(model, on, 2000), rel=2e-3)


def test_a_machine_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="KV elements of 0 bits"):
        shared_by(kv_bits=0)
    with pytest.raises(UsageError, match="at least 1"):
        shared_by(tensor_parallel=0)
    config = EngineConfig(machine=ROUND, block_tokens=32)
    assert replace(config, kv_blocks=7).blocks == 7
    with pytest.raises(UsageError, match="does not fit on 1 x small"):
        _ = replace(
            config, machine=replace(ROUND, on=replace(ALONE, gpu=replace(GPU, name="small", memory=4e9)))
        ).blocks
