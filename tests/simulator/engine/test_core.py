"""What holds in every engine, whatever is switched on; and the scheduler's mechanisms, one by one."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.engine.core import HANDLE, ROOM, Core, Step
from loadgen.simulator.engine.disaggregated import Disaggregated, core_for
from loadgen.simulator.engine.prefix import PrefixCache
from loadgen.simulator.engine.sequence import Sequence
from loadgen.simulator.engine.virtual import Arrivals, Closed, Requests, simulate
from loadgen.simulator.presets import PRESETS

QUIET = EngineConfig(step_ms=10, decode_ms=1, prefill_ms=0.1, overhead_ms=0, max_batch=4, noise_sigma=0)
EXAMPLES = int(os.environ.get("LOADGEN_FUZZ_ENGINE", "30"))  # of the property tests
LONGEST = 120  # tokens of a request of the property test

_FIELDS = {
    "max_batch": st.integers(1, 6),
    "max_prefill_tokens": st.integers(1, 100),
    "max_batched_tokens": st.sampled_from([0, 40, 200]),
    "overhead_ms": st.sampled_from([0.0, 5.0]),
    "seed": st.integers(0, 3),
    "context_length": st.just(LONGEST),
    "batching": st.sampled_from(["continuous", "continuous", "static"]),
    "chunked_prefill": st.booleans(),
    "kv": st.sampled_from(["paged", "paged", "contiguous"]),
    "block_tokens": st.sampled_from([1, 4, 16]),
    "kv_blocks": st.integers(0, 25),
    "prefix_cache": st.booleans(),
    "speculate": st.sampled_from([0, 0, 1, 4]),
    "disaggregated": st.booleans(),
    "link_latency_ms": st.sampled_from([0.0, 30.0]),
    "link_gb_s": st.sampled_from([0.1, 50.0]),
    "drift": st.sampled_from([0.0, 0.2]),
    "stall_every_s": st.sampled_from([0.0, 0.5]),
    "machine": st.sampled_from([None, PRESETS["h100-llama-3.1-8b"].machine]),
}


@st.composite
def possible_configs(draw: st.DrawFn) -> EngineConfig:
    """Configs that can be meant: memory for the longest request, no cache beside reservations."""
    fields = {name: draw(strategy) for name, strategy in _FIELDS.items()}
    if fields["kv_blocks"]:
        fields["kv_blocks"] += math.ceil(LONGEST / fields["block_tokens"])
    fields["prefix_cache"] &= fields["kv"] == "paged"
    return EngineConfig(**fields)


# (prompt, output, gap to the arrival before in ms, name of its prefix, step before which it is cancelled)
requests = st.lists(
    st.tuples(
        st.integers(1, 80),
        st.integers(1, 40),
        st.floats(0, 60),
        st.integers(0, 3),
        st.one_of(st.none(), st.none(), st.integers(0, 40)),
    ),
    min_size=1,
    max_size=20,
)


def check_memory(core: Core) -> None:
    """No block leaked, none shared wrongly, none above the limit."""
    memory, n = core.memory, core.running
    assert 0 <= memory.used <= memory.total
    kept = [sequence for sequence in core.kept.values() if sequence is not None]
    held = int((core._rows[ROOM, :n] // memory.block_tokens).sum()) + sum(sequence.held for sequence in kept)
    if not isinstance(memory, PrefixCache):
        assert memory.used == held
        return
    running = [core._running[handle] for handle in core._rows[HANDLE, :n].tolist()]
    users = Counter(block for sequence in running + kept for block in sequence.shared)
    assert users == memory.users, "a block's users are not the sequences that hold it"
    assert memory.private == held - users.total()
    assert not memory.users.keys() & memory.idle.keys()
    assert memory.used + len(memory.idle) <= memory.total


def play(config: EngineConfig, wanted: list[tuple[int, int, float, int, int | None]]) -> tuple[list[Step], set[int]]:
    """Run all to the end, looking into the memory at every step. Returns the steps and who was cancelled in time."""
    engine = core_for(config)
    pools = engine.pools if isinstance(engine, Disaggregated) else (engine,)
    now, at, due = 0.0, 0.0, []
    for number, (prompt, output, gap, prefix, _) in enumerate(wanted):
        at += gap / 1e3
        blocks = tuple(hash((prefix, block)) for block in range(prompt // config.block_tokens))
        due.append(Sequence(number, prompt, output, at, at + config.overhead_ms / 1e3, blocks))
    steps: list[Step] = []
    cancelled: set[int] = set()
    index = 0
    while index < len(due) or engine.next_ready() is not None:
        while index < len(due) and due[index].submitted_s <= now:
            engine.submit(due[index])
            index += 1
        for number, (*_, cancel) in enumerate(wanted[:index]):
            if cancel == len(steps) and number not in cancelled and engine.cancel(number):
                cancelled.add(number)
        step = engine.step(now)
        for pool in pools:
            check_memory(pool)
        if step is None:
            times = [due[index].submitted_s] if index < len(due) else []
            times += [ready] if (ready := engine.next_ready()) is not None else []
            if not times:
                break
            assert min(times) > now, "the engine says it has work and does none"
            now = min(times)
            continue
        assert step.duration_s >= 0 and (step.counts > 0).all()
        now += step.duration_s
        steps.append(step)
    assert engine.step(now) is None and (engine.running, engine.waiting) == (0, 0)
    for pool in pools:
        assert pool.memory.used == 0, "blocks leaked"
    return steps, cancelled


@settings(max_examples=EXAMPLES, deadline=None)
@given(possible_configs(), requests)
def test_what_holds_in_every_engine(
    config: EngineConfig, wanted: list[tuple[int, int, float, int, int | None]]
) -> None:
    steps, cancelled = play(config, wanted)
    tokens: Counter[int] = Counter()
    first: list[int] = []
    ended: list[Sequence] = []
    for step in steps:
        for handle, count in zip(step.handles.tolist(), step.counts.tolist(), strict=True):
            if not tokens[handle]:
                first.append(handle)
            tokens[handle] += count
            assert count <= 1 + config.speculate
        ended += step.ended
    assert len({sequence.handle for sequence in ended}) == len(ended)
    assert {sequence.handle for sequence in ended} | cancelled == set(range(len(wanted)))
    for sequence in ended:
        assert tokens[sequence.handle] == sequence.output == wanted[sequence.handle][1], "tokens lost or duplicated"
        assert sequence.submitted_s <= sequence.scheduled_s < sequence.first_s <= sequence.done_s
        assert sequence.cached < sequence.prompt
        assert sequence.queue_s >= 0 and sequence.prefill_s + sequence.decode_s == pytest.approx(
            sequence.done_s - sequence.scheduled_s
        )
    assert first == sorted(first), "first tokens out of order of arrival"
    again, _ = play(config, wanted)
    assert [step.duration_s for step in again] == [step.duration_s for step in steps], "not the same by seed"
    assert all((a.counts == b.counts).all() for a, b in zip(again, steps, strict=True))


@settings(max_examples=EXAMPLES * 2 // 5, deadline=None)
@given(possible_configs(), requests)
def test_every_prompt_token_is_computed_or_cached_once(
    config: EngineConfig, wanted: list[tuple[int, int, float, int, int | None]]
) -> None:
    """Without preemption, cancelling and a second pool, prompt tokens = computed + cached."""
    wanted = [(*request[:4], None) for request in wanted]
    config = replace(config, kv_blocks=0, disaggregated=False, machine=None)
    steps, _ = play(config, wanted)
    cached = sum(sequence.cached for step in steps for sequence in step.ended)
    assert sum(step.prefilled_tokens for step in steps) + cached == sum(prompt for prompt, *_ in wanted)
    if config.batching == "continuous" and config.chunked_prefill:
        assert max(step.prefilled_tokens for step in steps) <= config.max_prefill_tokens
        begun: set[int] = set()
        for step in steps if config.max_batched_tokens else ():
            decoding = len(begun.intersection(step.handles.tolist()))
            assert step.prefilled_tokens + decoding * (1 + config.speculate) <= config.max_batched_tokens
            begun.update(step.handles.tolist())


# Queueing: a batch of one with requests of one length is M/D/1.


@pytest.mark.parametrize(("output", "busy"), [(1, 0.5), (4, 0.6)])
def test_a_batch_of_one_waits_as_an_m_d_1_queue(output: int, busy: float) -> None:
    """Pollaczek and Khinchine: mean wait = rho D / (2 (1 - rho)), with D the fixed service time."""
    config = replace(QUIET, max_batch=1)
    service = (10 + 100 * 0.1 + (output - 1) * 11) / 1e3
    count = 7000
    gaps = np.random.default_rng(5).exponential(service / busy, count)
    run = simulate(config, _same(count, 100, output), Arrivals(np.cumsum(gaps)))
    wait = float((run.scheduled_s - run.submitted_s).mean())
    rate = count / gaps.sum()
    assert wait == pytest.approx(rate * service**2 / (2 * (1 - rate * service)), rel=0.06)
    assert run.done_s - run.scheduled_s == pytest.approx(service)


def test_an_overload_queues_without_end_and_loses_nothing() -> None:
    run = simulate(QUIET, _same(400, 50, 20), Arrivals(np.arange(400) * 0.001))
    assert run.ttft_s[-1] > 9 * run.ttft_s[40]
    assert run.step_tokens.sum() == 400 * 20


# Batching.


def test_a_static_batch_ends_with_its_longest_answer_and_pays_for_its_padding() -> None:
    """Batch of B, answers of 2 and 10 tokens: B prompts in a step, then 9 steps at the size of the batch."""
    requests = Requests(np.full(8, 20), np.array([2, 10, 2, 2, 2, 10, 2, 2]))
    static = simulate(replace(QUIET, batching="static"), requests, Closed(8))
    one_batch = (10 + 4 * 20 * 0.1 + 9 * (10 + 4 * 1)) / 1e3
    assert static.done_s.max() == pytest.approx(2 * one_batch)
    assert static.scheduled_s[4:] == pytest.approx(one_batch)
    continuous = simulate(QUIET, requests, Closed(8))
    assert continuous.done_s.max() < 0.75 * static.done_s.max()
    assert continuous.scheduled_s[4] == pytest.approx(static.done_s[0])


def test_chunked_prefill_bounds_the_gap_between_tokens_and_whole_prefill_does_not() -> None:
    """A prompt of 3,000 tokens arrives beside a decoding request: no gap exceeds step + decode + chunk x prefill with
    chunks, and one lasts step + 3,000 x prefill without."""
    requests, load = Requests(np.array([10, 3000]), np.array([60, 2])), Arrivals(np.array([0.0, 0.1]))
    chunked = simulate(replace(QUIET, max_prefill_tokens=256), requests, load, gaps=True)
    assert chunked.gaps_s.max() == pytest.approx((10 + 1 + 256 * 0.1) / 1e3)
    whole = simulate(replace(QUIET, max_prefill_tokens=256, chunked_prefill=False), requests, load, gaps=True)
    # The decoding request misses one step, which takes the whole prompt.
    assert whole.gaps_s.max() == pytest.approx((10 + 3000 * 0.1 + 10 + 2 * 1) / 1e3)
    assert chunked.ttft_s[1] > whole.ttft_s[1]


def test_a_token_limit_serves_decoding_first() -> None:
    """5 decoding sequences leave 35 of 40 tokens: a prompt of 100 takes 3 steps, as 35 + 35 + 30."""
    config = replace(QUIET, max_batch=6, max_batched_tokens=40, max_prefill_tokens=1000)
    core = Core(config)
    for handle in range(5):
        core.submit(Sequence(handle, 1, 50, 0.0, 0.0))
    assert core.step(0.0) is not None
    core.submit(Sequence(5, 100, 2, 0.0, 0.0))
    assert [step.prefilled_tokens for _ in range(4) if (step := core.step(1.0))] == [35, 35, 30, 0]


# Memory.


def test_paged_memory_runs_as_many_as_fit_and_reservations_a_known_number() -> None:
    """64 blocks of 16 tokens. Reserved to a context of 256: 4 run. Paged, at 40 + 8 tokens: 3 blocks each, 21 run."""
    requests = _same(60, 40, 9)
    base = replace(QUIET, max_batch=60, kv_blocks=64, context_length=256)
    most = {}
    for kv in ("paged", "contiguous"):
        core = Core(replace(base, kv=kv))  # type: ignore[arg-type]
        for number in range(60):
            core.submit(Sequence(number, 40, 9, 0.0, 0.0))
        core.step(0.0)
        most[kv] = core.running
        truth = core.truth()
        if kv == "contiguous":
            assert (truth.kv_blocks_used, truth.kv_usage) == (64, 1.0)
            assert truth.kv_waste == pytest.approx(1 - 40 / 256)
        else:
            assert truth.kv_blocks_used == 63 and truth.kv_waste == pytest.approx(1 - 40 / 48)
    assert most == {"paged": 21, "contiguous": 4}
    assert (
        simulate(base, requests, Closed(60)).done_s.max()
        < simulate(replace(base, kv="contiguous"), requests, Closed(60)).done_s.max()
    )


def test_the_last_comer_is_preempted_and_computes_its_tokens_again() -> None:
    """10 blocks of 4 tokens; two requests of 16 + 20 tokens need 9 each. Both are admitted with 4; each takes a block
    at 17 and 21 tokens; at 25 the second finds none after the first, and goes."""
    config = replace(QUIET, kv_blocks=12, block_tokens=4)
    core = Core(config)
    both = [Sequence(number, 16, 20, 0.0, 0.0) for number in range(2)]
    for sequence in both:
        core.submit(sequence)
    now, gone_at = 0.0, 0
    while (step := core.step(now)) is not None:
        now += step.duration_s
        if not gone_at and both[1].preemptions:
            gone_at = both[1].emitted
    assert [sequence.preemptions for sequence in both] == [0, 1]
    assert gone_at == 9  # KV of 16 + 8 tokens fills 6 blocks each
    truth = core.truth()
    assert (truth.preemptions, truth.generation_tokens) == (1, 40)
    assert truth.prompt_tokens == 2 * 16 + 16 + gone_at
    assert both[0].done_s < both[1].done_s == pytest.approx(now)


def test_a_request_larger_than_the_memory_is_refused() -> None:
    core = Core(replace(QUIET, kv_blocks=4, block_tokens=4))
    core.submit(Sequence(0, 10, 7, 0.0, 0.0))  # KV for 16: the last token needs none
    with pytest.raises(ValueError, match="exceed the KV memory"):
        core.submit(Sequence(1, 10, 8, 0.0, 0.0))


def test_waste_of_pages_is_half_a_block_a_sequence() -> None:
    core = Core(replace(QUIET, max_batch=400, max_prefill_tokens=1 << 20))
    for number, length in enumerate(np.random.default_rng(1).integers(1, 1000, 400).tolist()):
        core.submit(Sequence(number, length, 2, 0.0, 0.0))
    core.step(0.0)
    truth = core.truth()
    assert truth.running == 400
    assert truth.kv_blocks_used * 16 - truth.kv_tokens == pytest.approx(400 * 7.5, rel=0.1)  # 0 … 15, even


# Variation.


def test_drift_and_stalls_take_the_time_they_are_told() -> None:
    one = _same(1, 1, 3000)
    still = simulate(QUIET, one, Closed(1)).done_s[0]
    stalled = simulate(replace(QUIET, stall_every_s=1.0, stall_ms=100), one, Closed(1))
    count = round((stalled.done_s[0] - still) / 0.1)
    assert stalled.done_s[0] - still == pytest.approx(count * 0.1)
    assert count == pytest.approx(still / 1.0, abs=4 * math.sqrt(still))  # a Poisson count of busy seconds
    drifting = simulate(replace(QUIET, drift=0.3, drift_period_s=10), one, Closed(1), gaps=True)
    assert drifting.gaps_s.max() == pytest.approx(0.011 * 1.3, rel=1e-3)
    assert drifting.gaps_s.min() == pytest.approx(0.011 * 0.7, rel=1e-3)


def _same(count: int, prompt: int, output: int) -> Requests:
    return Requests(np.full(count, prompt), np.full(count, output))
