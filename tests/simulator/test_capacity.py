from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest

from loadgen.simulator.capacity import capacity, virtual_run
from loadgen.simulator.engine import EngineConfig

DEFAULT = EngineConfig()
TABLE = [
    # (max_batch, max_prefill_tokens, input, output): small and large batches, whole, chunked and prefill-bound prompts
    (1, 512, 64, 32),
    (1, 128, 2000, 64),
    (4, 128, 128, 1),
    (4, 2048, 512, 128),
    (16, 2048, 64, 32),
    (16, 2048, 512, 128),
    (16, 512, 2000, 64),
    (16, 128, 300, 100),
    (16, 128, 3000, 300),
    (64, 2048, 300, 100),
    (64, 8192, 2000, 64),
    (64, 128, 1000, 8),
    (256, 2048, 512, 128),
    (256, 8192, 300, 100),
    (256, 512, 64, 32),
]


@pytest.mark.parametrize(("batch", "chunk", "input_len", "output_len"), TABLE)
def test_closed_form_agrees_with_the_virtual_run(batch: int, chunk: int, input_len: int, output_len: int) -> None:
    config = replace(DEFAULT, max_batch=batch, max_prefill_tokens=chunk)
    run = virtual_run(config, 2 * batch + 8, input_len, output_len, requests=max(100, 6 * batch), seed=3)
    assert run.throughput == pytest.approx(capacity(config, input_len, output_len), rel=0.01)


@pytest.mark.parametrize(("batch", "chunk", "input_len", "output_len"), [(16, 2048, 64, 32), (64, 2048, 512, 128)])
def test_closed_form_holds_for_mean_lengths(batch: int, chunk: int, input_len: int, output_len: int) -> None:
    config = replace(DEFAULT, max_batch=batch, max_prefill_tokens=chunk)
    run = virtual_run(config, 2 * batch + 8, input_len, output_len, requests=20 * batch, seed=3, spread=0.5)
    assert run.throughput == pytest.approx(capacity(config, input_len, output_len), rel=0.02)


def test_the_closed_form_by_hand() -> None:
    config = EngineConfig(step_ms=10, decode_ms=1, prefill_ms=0.1, max_batch=2, max_prefill_tokens=1000)
    # Two sequences prefill 100 tokens each in one step of 30 ms, then decode in 4 of 12 ms: 10 tokens in 78 ms.
    assert capacity(config, 100, 5) == pytest.approx(10 / 0.078)


def test_throughput_rises_to_a_plateau_and_ttft_then_queues() -> None:
    runs = {level: virtual_run(DEFAULT, level, 64, 32, requests=200) for level in (1, 2, 4, 8, 16, 32, 64)}
    rising = [runs[level].throughput for level in (1, 2, 4, 8, 16, 32)]
    assert rising == sorted(rising)
    assert runs[64].throughput == pytest.approx(runs[32].throughput, rel=0.02)
    assert mean(runs[32].ttft_s) > 4 * mean(runs[16].ttft_s)
    assert mean(runs[64].ttft_s) > 2 * mean(runs[32].ttft_s)
    assert mean(runs[64].tpot_s) == pytest.approx(mean(runs[32].tpot_s), rel=0.02)


def test_the_defaults_are_what_they_promise() -> None:
    assert capacity(DEFAULT, 64, 32) == pytest.approx(900, rel=0.02)
    alone = virtual_run(DEFAULT, 1, 64, 32, requests=50)
    assert mean(alone.ttft_s) == pytest.approx(0.040, abs=0.002)
    assert mean(alone.tpot_s) == pytest.approx(0.0122, rel=0.02)


def test_a_run_is_the_same_by_seed() -> None:
    one, again = (virtual_run(DEFAULT, 20, 64, 32, requests=100, seed=5) for _ in range(2))
    assert one == again != virtual_run(DEFAULT, 20, 64, 32, requests=100, seed=6)


def test_one_token_answers_have_a_ttft_and_no_tpot() -> None:
    run = virtual_run(DEFAULT, 4, 64, 1, requests=50)
    assert len(run.ttft_s) >= 40 and run.tpot_s == ()
