from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.engine.core import Core
from loadgen.simulator.engine.prefix import PrefixCache, chain
from loadgen.simulator.engine.sequence import Sequence
from loadgen.simulator.engine.virtual import Closed, Mix, Requests, simulate

QUIET = EngineConfig(step_ms=10, decode_ms=1, prefill_ms=0.1, overhead_ms=0, max_batch=4, noise_sigma=0)
CACHED = replace(QUIET, prefix_cache=True)


def named(name: int, tokens: int) -> tuple[int, ...]:
    return tuple(hash((name, block)) for block in range(tokens // 16))


def one_by_one(config: EngineConfig, names: list[int], prompt: int = 160) -> list[int]:
    """Prompts of 160 tokens, of which the first 128 are those of a name; returns the cached tokens of each."""
    requests = Requests(np.full(len(names), prompt), np.full(len(names), 2), [named(name, 128) for name in names])
    return simulate(config, requests, Closed(1)).cached.tolist()  # type: ignore[no-any-return]


def test_the_hit_share_of_a_known_mix_of_prefixes() -> None:
    """3 prefixes of 100 tokens, 6 full blocks of 16 each: all but the first request of each find 96 tokens."""
    mix = Mix(60, 4, prefixes=3, prefix_len=100)
    requests = mix.draw(200, seed=1)
    run = simulate(CACHED, requests, Closed(1))
    assert (run.truth.prefix_queries, run.truth.prefix_hits) == (200 * 160, 197 * 96)
    assert run.truth.prompt_tokens == 200 * 160 - 197 * 96
    cold = simulate(QUIET, requests, Closed(1))
    assert np.median(cold.ttft_s - run.ttft_s) == pytest.approx(96 * 0.1 / 1e3)  # what was not computed


def test_the_least_recently_used_prefix_goes_first() -> None:
    # A request needs 10 blocks, 8 of them kept: 26 blocks keep two prefixes beside a running third.
    small = replace(CACHED, kv_blocks=26)
    assert one_by_one(small, [1, 2, 1, 2, 1]) == [0, 0, 128, 128, 128]
    assert one_by_one(small, [1, 2, 1, 3, 1]) == [0, 0, 128, 0, 128]  # 3 drove out 2, which 1 was used after
    assert one_by_one(replace(CACHED, kv_blocks=18), [1, 2, 3] * 3) == [0] * 9  # a cycle larger than the cache


def test_eviction_takes_the_end_of_a_prefix_before_its_beginning() -> None:
    cache = PrefixCache(10, 16)
    first = Sequence(0, 96, 2, 0, 0, named(1, 96))
    assert cache.admit(first) == 0
    cache.computed(first, 96)
    cache.release(first)
    assert (cache.used, len(cache.idle)) == (0, 6)
    assert cache.admit(Sequence(1, 96, 2, 0, 0)) == 0  # takes 4 free blocks and 2 of the 6
    assert cache.found(Sequence(2, 96, 2, 0, 0, named(1, 96))) == 4 * 16


def test_a_wholly_cached_prompt_still_computes_its_last_block() -> None:
    assert one_by_one(CACHED, [1, 1], prompt=128) == [0, 112]


def test_blocks_in_use_are_shared_and_not_evicted() -> None:
    core = Core(replace(CACHED, kv_blocks=14))
    for number in range(2):
        core.submit(Sequence(number, 160, 8, 0.0, 0.0, named(1, 128)))
    core.step(0.0)
    assert core.running == 2
    # The second request of the same step shares the 8 blocks that the first computes in it.
    assert core.truth().kv_blocks_used == 8 + 2 + 2
    core.submit(Sequence(2, 160, 8, 0.0, 0.0, named(2, 128)))
    core.step(0.0)
    assert core.running == 2, "room for the third was made of blocks in use"


def test_a_preempted_sequence_finds_its_own_blocks_again() -> None:
    config = replace(CACHED, kv_blocks=14, block_tokens=4)
    both = [Sequence(number, 16, 24, 0.0, 0.0, named(number, 64)) for number in range(2)]
    core = Core(config)
    for sequence in both:
        core.submit(sequence)
    computed = 0
    while (step := core.step(0.0)) is not None:
        computed += step.prefilled_tokens
    assert both[1].preemptions > 0 and both[0].preemptions == 0
    assert both[1].cached == 0  # of its first admission
    assert core.truth().prefix_queries == 32  # and only that counts


def test_the_answer_is_cached_too_where_its_hashes_are_known() -> None:
    """Second turn: the prompt is the first prompt, its answer and more."""
    talk = named(7, 320)
    turns = Requests(np.array([100, 220]), np.array([61, 4]), [talk[:10], talk[:13]])
    run = simulate(CACHED, turns, Closed(1))
    assert run.cached.tolist() == [0, 160]  # KV of 100 + 60 tokens: 10 full blocks


@settings(max_examples=60)
@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), max_size=40), st.integers(1, 5))
def test_chained_hashes_agree_exactly_on_the_common_prefix(one: list[int], other: list[int], block: int) -> None:
    common = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    first, second = chain(one, block), chain(other, block)
    assert len(first) == len(one) // block
    same = [a == b for a, b in zip(first, second, strict=False)]
    assert same == [number < common // block for number in range(len(same))]
