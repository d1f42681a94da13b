from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.engine.core import Core
from loadgen.simulator.engine.sequence import Sequence
from loadgen.simulator.engine.speculation import expected_tokens
from loadgen.simulator.engine.virtual import Closed, Requests, simulate

QUIET = EngineConfig(step_ms=10, decode_ms=1, prefill_ms=0.1, overhead_ms=0, max_batch=16, noise_sigma=0)


@pytest.mark.parametrize(("drafted", "acceptance"), [(1, 0.5), (3, 0.7), (5, 0.9), (4, 0.0)])
def test_tokens_a_step_are_those_of_the_closed_form(drafted: int, acceptance: float) -> None:
    config = replace(QUIET, speculate=drafted, acceptance=acceptance)
    run = simulate(config, Requests(np.full(16, 10), np.full(16, 1500)), Closed(16), gaps=True)
    chunks = len(run.gaps_s) / 16
    tokens = 1499 / chunks
    assert expected_tokens(drafted, acceptance) == pytest.approx(sum(acceptance**i for i in range(drafted + 1)))
    assert tokens == pytest.approx(expected_tokens(drafted, acceptance), rel=0.02)
    truth = run.truth
    assert 1 + truth.accepted_tokens / (truth.draft_tokens / drafted) == pytest.approx(tokens, rel=0.01)
    assert run.tpot_s.mean() == pytest.approx(0.026 / expected_tokens(drafted, acceptance), rel=0.05)


def test_drafting_costs_its_time_and_verification_its_tokens() -> None:
    one = Requests(np.array([10]), np.array([400]))
    free = simulate(replace(QUIET, speculate=3), one, Closed(1), gaps=True)
    paid = simulate(replace(QUIET, speculate=3, draft_ms=2), one, Closed(1), gaps=True)
    assert paid.gaps_s == pytest.approx(free.gaps_s + 0.006)


def test_room_is_kept_for_every_drafted_token_but_never_past_the_end() -> None:
    """A memory of 12 tokens holds 8 + 5 - 1 to the last: drafts of 4 beyond them ask for no block."""
    core = Core(replace(QUIET, speculate=4, acceptance=0.99, kv_blocks=3, block_tokens=4))
    sequence = Sequence(0, 8, 5, 0.0, 0.0)
    core.submit(sequence)
    while core.step(0.0) is not None:
        assert core.truth().kv_blocks_used <= 3
    assert (sequence.emitted, sequence.preemptions) == (5, 0)
