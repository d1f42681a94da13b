from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.simulator.engine import Engine, EngineConfig, StepResult
from tests.thorough import examples

QUIET = EngineConfig(step_ms=10, decode_ms=1, prefill_ms=0.1, overhead_ms=0, max_batch=4, noise_sigma=0)


def drain(engine: Engine, now: float = 0.0) -> list[tuple[float, StepResult]]:
    """Run until empty; (time of the step's end, step)."""
    steps = []
    while (ready := engine.next_ready()) is not None:
        now = max(now, ready)
        result = engine.step(now)
        assert result is not None
        now += result.duration_s
        steps.append((now, result))
        if engine.waiting == 0 and engine.next_ready() is None:
            break
    return steps


def test_one_request_takes_the_time_the_formula_says() -> None:
    engine = Engine(QUIET)
    engine.submit("a", prompt_tokens=100, output_tokens=3, now=0.0)
    steps = drain(engine)
    assert [round(end * 1e3, 6) for end, _ in steps] == [20, 31, 42]  # 10 + 100 x 0.1, then 10 + 1 twice
    assert [step.tokens for _, step in steps] == [{"a": 1}] * 3
    assert steps[-1][1].finished == ("a",)


def test_a_long_prompt_is_prefilled_in_chunks_beside_decoding() -> None:
    engine = Engine(replace(QUIET, max_prefill_tokens=64))
    engine.submit("short", 10, 9, 0.0)
    engine.step(0.0)
    engine.submit("long", 150, 1, 0.0)
    steps = drain(engine)
    assert [step.prefilled_tokens for _, step in steps[:4]] == [64, 64, 22, 0]
    assert ["long" in step.tokens for _, step in steps[:3]] == [False, False, True]
    assert all("short" in step.tokens for _, step in steps)


def test_ttft_queues_when_all_slots_are_taken() -> None:
    engine = Engine(QUIET)
    for number in range(6):
        engine.submit(str(number), 10, 5, 0.0)
    steps = drain(engine)
    first = {}
    for index, (_, step) in enumerate(steps):
        for request_id in step.tokens:
            first.setdefault(request_id, index)
    assert [first[str(number)] for number in range(6)] == [0, 0, 0, 0, 5, 5]


def test_overhead_delays_admission_and_costs_no_engine_time() -> None:
    engine = Engine(replace(QUIET, overhead_ms=25))
    engine.submit("a", 100, 1, now=1.0)
    assert engine.step(1.0) is None
    assert engine.next_ready() == pytest.approx(1.025)
    result = engine.step(1.025)
    assert result is not None and result.duration_s == pytest.approx(0.020)


def test_cancel_frees_the_slot_and_the_queue_place() -> None:
    engine = Engine(replace(QUIET, max_batch=1))
    for name in "abc":
        engine.submit(name, 10, 100, 0.0)
    engine.step(0.0)
    assert engine.cancel("a") and engine.cancel("b") and not engine.cancel("a") and not engine.cancel("never")
    result = engine.step(0.1)
    assert result is not None and result.tokens == {"c": 1}
    assert (engine.running, engine.waiting) == (1, 0)


def test_noise_keeps_the_mean_and_differs_by_seed() -> None:
    def durations(seed: int) -> list[float]:
        engine = Engine(replace(QUIET, noise_sigma=0.3, seed=seed))
        engine.submit("a", 1, 4000, 0.0)
        return [step.duration_s for _, step in drain(engine)][1:]

    first, again, other = durations(1), durations(1), durations(2)
    assert first == again != other
    assert sum(first) / len(first) == pytest.approx(0.011, rel=0.03)  # standard error 0.5 %
    assert len(set(first)) > 3900


@pytest.mark.parametrize(
    ("prompt", "output"), [(0, 1), (1, 0), (-1, 5), (EngineConfig().context_length, 1)], ids=lambda value: str(value)
)
def test_a_request_that_can_never_run_is_refused(prompt: int, output: int) -> None:
    with pytest.raises(ValueError):
        Engine(QUIET).submit("a", prompt, output, 0.0)


def test_a_name_is_used_once_at_a_time() -> None:
    engine = Engine(QUIET)
    engine.submit("a", 1, 1, 0.0)
    with pytest.raises(ValueError, match="already"):
        engine.submit("a", 1, 1, 0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_batch": 0},
        {"step_ms": -1},
        {"noise_sigma": math.nan},
        {"max_prefill_tokens": 0},
        {"overhead_ms": math.inf},
        {"step_ms": 0, "decode_ms": 0},
    ],
    ids=str,
)
def test_a_config_that_cannot_be_meant_is_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        EngineConfig(**wrong)  # type: ignore[arg-type]


configs = st.builds(
    EngineConfig,
    step_ms=st.floats(0.1, 50),
    decode_ms=st.floats(0, 5),
    prefill_ms=st.floats(0, 1),
    overhead_ms=st.sampled_from([0.0, 3.0, 40.0]),
    max_batch=st.integers(1, 8),
    max_prefill_tokens=st.integers(1, 300),
    noise_sigma=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 5),
)
# (prompt, output, arrival after the one before in ms, step after which it is cancelled or None)
arrivals = st.lists(
    st.tuples(
        st.integers(1, 400), st.integers(1, 30), st.floats(0, 100), st.one_of(st.none(), st.none(), st.integers(0, 40))
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=examples(80), deadline=None)
@given(configs, arrivals)
def test_work_is_conserved_first_come_first_served(
    config: EngineConfig, requests: list[tuple[int, int, float, int | None]]
) -> None:
    due, at = [], 0.0
    for number, (_, _, gap, _) in enumerate(requests):
        at += gap / 1e3
        due.append((at, str(number)))

    def play() -> tuple[list[StepResult], dict[str, int], list[str], list[str], set[str]]:
        engine, now, index = Engine(config), 0.0, 0
        steps: list[StepResult] = []
        tokens: dict[str, int] = {}
        first: list[str] = []
        finished: list[str] = []
        cancelled: set[str] = set()
        while index < len(due) or engine.next_ready() is not None:
            while index < len(due) and due[index][0] <= now:
                prompt, output, _, _ = requests[index]
                engine.submit(due[index][1], prompt, output, due[index][0])
                index += 1
            for number, (_, _, _, cancel) in enumerate(requests[:index]):
                if cancel == len(steps) and engine.cancel(str(number)):
                    cancelled.add(str(number))
            result = engine.step(now)
            if result is None:
                times = [due[index][0]] if index < len(due) else []
                ready = engine.next_ready()
                times += [ready] if ready is not None else []
                if not times:
                    break
                assert min(times) > now, "the engine says it has work and does none"
                now = min(times)
                continue
            assert result.duration_s > 0
            assert engine.running <= config.max_batch
            assert result.prefilled_tokens <= config.max_prefill_tokens
            now += result.duration_s
            steps.append(result)
            for request_id, count in result.tokens.items():
                if request_id not in tokens:
                    first.append(request_id)
                tokens[request_id] = tokens.get(request_id, 0) + count
            finished += result.finished
        assert engine.step(now) is None and (engine.running, engine.waiting) == (0, 0)
        return steps, tokens, first, finished, cancelled

    steps, tokens, first, finished, cancelled = play()
    assert play()[0] == steps, "not the same by seed"
    assert len(set(finished)) == len(finished)
    for number, (_prompt, output, _, _) in enumerate(requests):
        request_id = str(number)
        if request_id in finished:
            assert tokens[request_id] == output
        else:
            assert request_id in cancelled
            assert tokens.get(request_id, 0) < output
    assert first == sorted(first, key=int), "first tokens out of order of arrival"
    prefilled = sum(step.prefilled_tokens for step in steps)
    complete = sum(requests[int(request_id)][0] for request_id in finished)
    assert complete <= prefilled <= sum(prompt for prompt, _, _, _ in requests)
    if not cancelled:
        assert prefilled == sum(prompt for prompt, _, _, _ in requests)
