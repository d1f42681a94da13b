from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadgen.simulator.engine import Engine, EngineConfig
from loadgen.simulator.engine.disaggregated import KV_TOKEN_BYTES
from loadgen.simulator.engine.virtual import Arrivals, Closed, Mix, Requests, simulate
from loadgen.simulator.presets import PRESETS

QUIET = EngineConfig(step_ms=10, decode_ms=1, prefill_ms=0.1, overhead_ms=0, max_batch=8, noise_sigma=0)
SPLIT = replace(QUIET, disaggregated=True, link_gb_s=10.0, link_latency_ms=2.0)
TRANSFER_S = KV_TOKEN_BYTES / 10e9  # a token
SECOND_S = 0.010 + 0.1 / 1e3  # the step that takes over a sequence computes one token


def test_the_second_token_waits_for_the_transfer() -> None:
    run = simulate(SPLIT, Requests(np.array([1000]), np.array([2])), Closed(1))
    assert run.ttft_s[0] == pytest.approx(0.010 + 0.100)
    assert run.done_s[0] - run.first_s[0] == pytest.approx(0.002 + 1000 * TRANSFER_S + SECOND_S)


def test_a_machine_says_how_many_bytes_cross() -> None:
    config = replace(PRESETS["h100-llama-3.1-8b"], disaggregated=True, noise_sigma=0, link_gb_s=25)
    run = simulate(config, Requests(np.array([4000]), np.array([2])), Closed(1))
    step_s = simulate(config, Requests(np.array([4000]), np.array([3])), Closed(1))
    transfer_s = 4000 * 2 * 32 * 8 * 128 * 2 / 25e9 + 0.001
    one_step_s = step_s.done_s[0] - run.done_s[0]
    assert run.done_s[0] - run.first_s[0] == pytest.approx(transfer_s + one_step_s, rel=0.01)


def test_the_link_carries_one_prompt_after_the_other() -> None:
    run = simulate(SPLIT, Requests(np.full(2, 1000), np.full(2, 2)), Closed(2))
    assert run.first_s == pytest.approx(0.210)  # one step prefills both
    ready = 0.210 + 0.002 + 1000 * TRANSFER_S * np.array([1, 2])
    first_step = ready[0] + SECOND_S
    assert run.done_s == pytest.approx([first_step, max(first_step, ready[1]) + SECOND_S])


def test_prompts_do_not_lengthen_the_gaps_of_those_who_decode() -> None:
    requests = Requests(np.array([10, 4000, 4000]), np.array([200, 2, 2]))
    load = Arrivals(np.array([0.0, 0.3, 0.9]))
    split = simulate(SPLIT, requests, load, gaps=True)
    # Past the first request's own transfer, the longest step decodes one and takes over another.
    gaps = split.gaps_s[split.gaps_end_s > 0.2]
    assert np.sort(gaps)[:-2].max() <= 0.0111 + 1e-9  # but for the second tokens of the long prompts
    together = simulate(QUIET, requests, load, gaps=True)
    assert together.gaps_s.max() > 0.2
    assert split.ttft_s[1] == pytest.approx(0.420)  # two steps, at once
    assert together.ttft_s[1] > 0.422  # two steps, after the one under way and beside decoding


def test_a_prompt_keeps_its_blocks_until_its_kv_has_left() -> None:
    """Memory for one prompt of 1,000 tokens: the second is computed when the first has crossed, with 63 blocks each."""
    tight = replace(SPLIT, kv_blocks=64)
    run = simulate(tight, Requests(np.full(2, 1000), np.full(2, 2)), Closed(2))
    crossed = 0.110 + 0.002 + 1000 * TRANSFER_S
    assert run.first_s == pytest.approx([0.110, crossed + 0.110])
    one_token = simulate(tight, Requests(np.full(2, 1000), np.full(2, 1)), Closed(2))
    assert one_token.first_s == pytest.approx([0.110, 0.220])  # nothing crosses


def test_one_token_never_crosses() -> None:
    run = simulate(SPLIT, Requests(np.full(5, 100), np.full(5, 1)), Closed(1))
    assert run.done_s - run.submitted_s == pytest.approx(0.020)


def test_a_full_load_passes_both_pools_whole() -> None:
    requests = Mix(200, 40, spread=0.5).draw(300, seed=2)
    split, together = (simulate(config, requests, Closed(16)) for config in (SPLIT, QUIET))
    assert split.step_tokens.sum() == together.step_tokens.sum() == requests.output.sum()
    assert (np.diff(np.sort(split.done_s)) >= 0).all() and (split.done_s > split.first_s).all()
    assert split.done_s.max() < together.done_s.max()


@pytest.mark.parametrize("after", [1, 2, 4])
def test_cancelling_works_in_each_stage(after: int) -> None:
    engine = Engine(SPLIT)
    engine.submit("long", 1000, 50, 0.0)
    engine.submit("other", 10, 3, 0.0)
    now = 0.0
    for _ in range(after):
        while (result := engine.step(now)) is None:
            now = max(now, engine.next_ready() or 0.0)
        now += result.duration_s
    assert engine.cancel("long") and not engine.cancel("long")
    seen: list[str] = []
    while (ready := engine.next_ready()) is not None:
        now = max(now, ready)
        result = engine.step(now)
        if result is not None:
            now += result.duration_s
            assert "long" not in result.tokens
            seen += result.finished
    assert engine.step(now) is None and (engine.running, engine.waiting) == (0, 0)
    assert seen in ([], ["other"])
