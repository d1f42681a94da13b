"""What fits and what the hardware allows, against sums done by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.capacity import (
    compute_bound_batch,
    concurrent,
    decode_floor,
    gpus_needed,
    longest_context,
    prefill_floor_s,
)
from loadgen.analysis.planning import Lengths, plan
from loadgen.hardware.deployment import Deployment, cache, memory
from loadgen.hardware.gpus import Gpu, gpu_named
from loadgen.hardware.model import GIB, KIB
from loadgen.hardware.named import model_named, table

PLAIN = Gpu("plain", 80 * GIB, 2e12, 400e12, 800e12, 1e11, "made up")
BARE = Deployment(PLAIN, utilisation=1.0, runtime_bytes=0, activation_bytes=0)
LLAMA = model_named("llama-3.1-8b")


def test_what_is_left_is_the_cache_in_whole_blocks() -> None:
    left = 80 * GIB - LLAMA.weight_bytes()
    assert memory(LLAMA, BARE).kv == left
    found = cache(LLAMA, BARE)
    assert found.blocks == left // (16 * 128 * KIB)
    assert found.tokens == 16 * found.blocks
    assert concurrent(LLAMA, BARE, 8192) == left // GIB
    assert concurrent(LLAMA, BARE, 8193) == left // (GIB + 16 * 128 * KIB)


def test_parallel_ways_divide_what_they_divide() -> None:
    tp = replace(BARE, tensor_parallel=4)
    assert memory(LLAMA, tp).weights == LLAMA.weight_bytes() / 4
    assert cache(LLAMA, tp).bytes_per_token_gpu == 32 * KIB
    pp = replace(BARE, pipeline_parallel=4)
    assert memory(LLAMA, pp).weights == LLAMA.weight_bytes() / 4
    assert cache(LLAMA, pp).bytes_per_token_gpu == 32 * KIB
    wide = replace(BARE, tensor_parallel=16)  # 8 KV heads: each is held twice
    assert cache(LLAMA, wide).bytes_per_token_gpu == 16 * KIB
    assert cache(LLAMA, wide).bytes_per_token == 256 * KIB
    mixtral = model_named("mixtral-8x7b")
    ep = replace(BARE, expert_parallel=4)
    shared = mixtral.weight_bytes() - mixtral.expert_weight_bytes()
    assert memory(mixtral, ep).weights == shared + mixtral.expert_weight_bytes() / 4


def test_an_fp8_cache_holds_twice_as_much() -> None:
    assert cache(LLAMA, replace(BARE, kv_bits=8)).blocks in (2 * cache(LLAMA, BARE).blocks + n for n in (0, 1))


def test_a_model_that_does_not_fit_says_on_how_many_it_would() -> None:
    model = model_named("llama-3.1-70b")
    on = Deployment(gpu_named("h100"))
    assert concurrent(model, on, 100) == 0
    assert longest_context(model, on) == 0
    needed = gpus_needed(model, on, 2000)
    assert needed is not None
    assert needed.gpus == 2
    deepseek = gpus_needed(model_named("deepseek-v3"), on, 2000)
    assert deepseek is not None
    assert deepseek.gpus == 16
    tiny = replace(on, gpu=replace(PLAIN, memory=1.0))
    assert gpus_needed(model, tiny, 2000) is None


def test_decode_is_bytes_over_bandwidth_until_it_is_work_over_peak() -> None:
    alone = decode_floor(LLAMA, BARE, 1, 1000)
    assert alone.tpot_s == pytest.approx((LLAMA.weight_bytes() + 1000 * 128 * KIB) / 2e12)
    assert alone.bound == "bandwidth"
    # Without context: 2 × parameters × batch / peak = 2 × parameters / bandwidth at batch = peak / bandwidth = 200; the
    # input's embedding is stored, and not multiplied with.
    turn = math.ceil(200 * LLAMA.weight_bytes() / LLAMA.decode_flops(0))
    assert compute_bound_batch(LLAMA, BARE, 0) == turn == 214
    assert compute_bound_batch(LLAMA, BARE, 100_000) is None
    assert decode_floor(LLAMA, BARE, turn - 1, 0).bound == "bandwidth"
    assert decode_floor(LLAMA, BARE, turn, 0).bound == "compute"
    assert prefill_floor_s(LLAMA, BARE, 1000) == pytest.approx(LLAMA.prefill_flops(1000) / 400e12)
    wide = replace(BARE, tensor_parallel=2, expert_parallel=4)
    assert prefill_floor_s(LLAMA, wide, 1000) == pytest.approx(prefill_floor_s(LLAMA, BARE, 1000) / 8)


MODELS = sorted(table())


@given(
    st.sampled_from(MODELS),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2]),
    st.integers(1, 5000),
    st.integers(1, 2000),
    st.sampled_from([1, 16, 128]),
)
def test_a_plan_keeps_its_promises(name: str, tp: int, pp: int, input_len: int, output_len: int, block: int) -> None:
    model = model_named(name)
    on = Deployment(gpu_named("h200"), tensor_parallel=tp, pipeline_parallel=pp, block=block)
    found = plan(model, on, Lengths.of(np.array([input_len]), np.array([output_len])))
    left = found.memory.kv
    each = model.sequence_bytes(input_len + output_len, 2, tp, block) / pp
    assert found.concurrent_mean == (max(0, int(left // each)) if left > 0 else 0)
    assert found.fits == (found.concurrent_p99 >= 1)
    assert found.concurrent_held >= found.concurrent_mean
    longest = found.longest_context
    if longest:
        assert model.sequence_bytes(longest, 2, tp, block) / pp <= left
        if longest < (model.max_context or 0):
            assert model.sequence_bytes(longest + 1, 2, tp, block) / pp > left
    if found.needed is not None:
        assert concurrent(model, found.needed, input_len + output_len) >= 1
    if found.full is not None:
        assert found.full.tpot_s >= found.alone.tpot_s
