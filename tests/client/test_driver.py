"""The driver in virtual time: whole steps under trio's mock clock, with a sender that only waits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.client.driver import Budget, Control, Progress, StepPlan, run_step, too_many
from loadgen.errors import Failure
from loadgen.records import Prompt, Record
from loadgen.results import Observation
from tests.client.fake_sender import FakeSender, by_session, clock, prompts, talks


def run(
    make: Callable[[], FakeSender],
    concurrency: int,
    *,
    budget: Callable[[], Budget] = Budget,
    during: Callable[[Control], Any] | None = None,
    stream: Callable[[], Iterator[Prompt]] = prompts,
    **plan: Any,
) -> tuple[Observation, list[Record], FakeSender]:
    """Run one step in virtual time; `during` is an async function that may use the brake."""
    records: list[Record] = []
    plan = {"enough": lambda p: p.measured_sent >= 3 * concurrency, "warmup": concurrency, **plan}

    async def main() -> tuple[Observation, FakeSender]:
        sender = make()
        control = Control()
        async with anyio.create_task_group() as group:
            if during is not None:
                group.start_soon(during, control)
            seen = await run_step(
                sender, stream(), StepPlan(step=1, concurrency=concurrency, **plan),
                on_record=records.append, clock=clock, zero_ns=sender.zero, budget=budget(), control=control,
            )  # fmt: skip
            group.cancel_scope.cancel()
        return seen, sender

    seen, sender = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert sender.in_flight == 0
    assert len(records) == sender.sent, "every request sent has its record"
    return seen, records, sender


def phases(records: list[Record]) -> dict[str, int]:
    found: dict[str, int] = {}
    for record in records:
        found[record.phase] = found.get(record.phase, 0) + 1
    return found


@pytest.mark.parametrize("concurrency", [1, 2, 7, 300])
def test_n_are_in_flight_and_the_window_holds_them(concurrency: int) -> None:
    rng = random.Random(concurrency)
    durations = [rng.uniform(0.5, 1.5) for _ in range(10_000)]
    seen, records, sender = run(lambda: FakeSender(lambda n: durations[n]), concurrency)
    assert sender.peak == seen.in_flight_peak == concurrency
    assert seen.ended == "complete"
    assert seen.window is not None
    mean = seen.in_flight_integral_ns / (seen.window.end_ns - seen.window.start_ns)
    assert mean == pytest.approx(concurrency, rel=1e-9)
    assert phases(records)["measured"] == 3 * concurrency


def test_window_opens_at_the_cth_completion_and_nothing_drains() -> None:
    seen, records, _ = run(lambda: FakeSender(lambda n: 1.0 + n / 1000), 4)
    warm = sorted(r.done_ns for r in records if r.phase == "warmup")
    assert seen.window is not None
    assert seen.window.start_ns == warm[3]
    first_measured = min(r.sent_ns or 0 for r in records if r.phase == "measured")
    assert first_measured == warm[3]
    assert sum(r.phase == "warmup" for r in records) == 7  # 4 started, 3 refilled before the 4th completion
    # At the end the sample is followed to its own end while fillers hold the load.
    last_measured = max(r.done_ns for r in records if r.phase == "measured")
    assert any(r.phase == "filler" and (r.sent_ns or 0) < last_measured for r in records)


def test_a_long_request_in_the_sample_is_followed_to_its_end() -> None:
    seen, records, _ = run(lambda: FakeSender(lambda n: 50.0 if n == 8 else 1.0), 4)
    long = next(r for r in records if r.done_ns - (r.sent_ns or 0) > 40e9)
    assert (long.phase, long.outcome) == ("measured", "ok")
    assert seen.window is not None and seen.window.end_ns < long.done_ns


def test_fillers_left_after_the_drain_are_cut() -> None:
    _, records, _ = run(lambda: FakeSender(lambda n: 1.0 if n < 19 else 1000.0), 4, drain_s=5.0)
    assert {r.outcome for r in records if r.phase == "filler"} == {"cut"}
    assert {r.outcome for r in records if r.phase == "measured"} == {"ok"}


def test_exact_number_of_requests() -> None:
    for n in (1, 2, 5, 17):
        _, records, _ = run(lambda: FakeSender(lambda _: 1.0), 4, requests=n)
        assert phases(records)["measured"] == n


def test_time_budget_is_a_promise() -> None:
    def budget() -> Budget:
        return Budget(deadline=anyio.current_time() + 10.0)

    seen, records, _sender = run(lambda: FakeSender(lambda n: 3.3), 4, budget=budget, enough=lambda p: False)
    assert (seen.ended, seen.detail) == ("budget", "time")
    assert max(r.done_ns for r in records) <= 10.0e9 + 1
    assert {r.outcome for r in records if r.done_ns >= 10e9 - 1} == {"cut"}


@given(requests=st.integers(0, 40), tokens=st.integers(0, 600), concurrency=st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_request_and_token_budgets_are_kept_exactly(requests: int, tokens: int, concurrency: int) -> None:
    seen, _records, sender = run(
        lambda: FakeSender(lambda n: 1.0), concurrency,
        budget=lambda: Budget(requests=requests, tokens=tokens), enough=lambda p: False,
    )  # fmt: skip
    assert sender.sent == min(requests, tokens // 15)
    assert seen.ended == "budget"


def test_errors_stop_the_step_and_refused_connections_back_off() -> None:
    def make() -> FakeSender:
        sender = FakeSender(lambda n: 0.001, lambda n: "error")
        sender.failure, sender.status = Failure("connect", "refused"), None
        return sender

    seen, _, sender = run(make, 16, enough=lambda p: False)
    assert seen.ended == "errors"
    assert "refused" in seen.detail
    assert sender.sent < 40
    # Few errors among many are no reason to stop.
    seen, _records, _ = run(lambda: FakeSender(lambda n: 1.0, lambda n: "error" if n == 30 else "ok"), 8)
    assert seen.ended == "complete"


def test_backoff_grows_while_the_server_is_gone() -> None:
    def make() -> FakeSender:
        sender = FakeSender(lambda n: 0.001, lambda n: "error")
        sender.failure, sender.status = Failure("connect", "refused"), None
        return sender

    _, _, sender = run(make, 1, enough=lambda p: False, max_error_rate=1.0, budget=lambda: Budget(requests=10))
    gaps = [b - a for a, b in itertools.pairwise(sender.starts)]
    assert gaps[0] == pytest.approx(0.1, abs=0.01)
    assert [round(gap, 3) for gap in gaps] == sorted(round(gap, 3) for gap in gaps)
    assert gaps[-1] == pytest.approx(5.0, abs=0.1)


def test_an_unauthorized_answer_ends_the_step_at_once() -> None:
    def make() -> FakeSender:
        sender = FakeSender(lambda n: 1.0 if n == 2 else 100.0, lambda n: "error")
        sender.status, sender.failure = 401, Failure("http", "no key", 401)
        return sender

    seen, records, sender = run(make, 8)
    assert seen.ended == "unauthorized"
    assert sender.sent == 8
    assert max(r.done_ns for r in records) < 2e9


def test_our_own_limit_voids_the_step() -> None:
    seen, _, _ = run(lambda: FakeSender(lambda n: 1.0, lambda n: "client_error" if n == 5 else "ok"), 4)
    assert seen.ended == "client"


@pytest.mark.parametrize("at", [0.0, 0.5, 3.2, 7.9])
def test_brake_drains_first_and_quits_second(at: float) -> None:
    async def drain(control: Control) -> None:
        await anyio.sleep(at)
        control.drain()

    seen, records, _ = run(lambda: FakeSender(lambda n: 2.0), 4, enough=lambda p: False, during=drain)
    assert seen.ended == "interrupted"
    assert {r.outcome for r in records} <= {"ok"}
    assert max((r.sent_ns or 0 for r in records), default=0) <= at * 1e9 + 0.3e9

    async def quit_(control: Control) -> None:
        await anyio.sleep(at)
        control.drain()
        await anyio.sleep(0.1)
        control.quit()

    seen, records, _ = run(lambda: FakeSender(lambda n: 200.0), 4, enough=lambda p: False, during=quit_)
    assert {r.outcome for r in records} <= {"cancelled"}
    assert max((r.done_ns for r in records), default=0) <= (at + 0.5) * 1e9


def test_starts_can_be_staggered() -> None:
    _, _, sender = run(lambda: FakeSender(lambda n: 8.0), 8, stagger_s=4.0)
    assert sender.starts[:8] == pytest.approx([0.5 * i for i in range(8)])


def test_failed_requests_stay_in_the_loop() -> None:
    seen, records, _sender = run(
        lambda: FakeSender(lambda n: 1.0, lambda n: "error" if n % 2 else "ok"), 6, max_error_rate=1.0
    )
    assert seen.ended == "complete"
    assert phases(records)["measured"] == 18
    assert seen.in_flight_peak == 6


@given(n=st.integers(1, 60), failures=st.integers(0, 60), allowed=st.sampled_from([0.0, 0.01, 0.05, 0.5, 1.0]))
def test_too_many_agrees_with_counting(n: int, failures: int, allowed: float) -> None:
    failures = min(failures, n)
    verdict = too_many(failures, n, allowed)
    if failures <= allowed * n or failures < 2:
        assert not verdict
    if verdict:  # then more failures among as many are too many as well
        assert all(too_many(k, n, allowed) for k in range(failures, n + 1))


def test_progress_is_handed_out() -> None:
    seen: list[Progress] = []

    async def main() -> None:
        sender = FakeSender(lambda n: 1.0)
        await run_step(
            sender, prompts(), StepPlan(1, 2, lambda p: p.window_s >= 5.0, 2),
            on_record=lambda r: None, clock=clock, zero_ns=sender.zero, on_progress=seen.append,
        )  # fmt: skip

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert seen[0].phase == "filler"
    assert seen[0].measured_done == seen[0].measured_sent >= 9


# --- conversations --------------------------------------------------------------------------------------------------


def test_a_slot_plays_a_conversation_turn_by_turn_and_then_the_next() -> None:
    _, records, sender = run(lambda: FakeSender(lambda n: 1.0), 3, stream=lambda: talks(4, 0.5), requests=40)
    assert sender.peak <= 3
    for turns in by_session(records).values():
        assert [r.turn for r in turns] == [*range(1, len(turns) + 1)]
        for one, other in itertools.pairwise(turns):
            assert (other.sent_ns or 0) - one.done_ns == 500_000_000, "think time, to the nanosecond"
    whole = [turns for turns in by_session(records).values() if len(turns) == 4]
    assert len(whole) >= 8
    # A slot has one conversation at a time: the next begins when the last answer of the one before it is complete.
    starts = {turns[0].sent_ns for session, turns in by_session(records).items() if session >= 3}
    assert starts <= {turns[-1].done_ns for turns in whole}


def test_who_thinks_is_not_in_flight() -> None:
    seen, _, _ = run(lambda: FakeSender(lambda n: 1.0), 10, stream=lambda: talks(1000, 3.0), requests=400, warmup=40)
    assert seen.window is not None
    mean = seen.in_flight_integral_ns / (seen.window.end_ns - seen.window.start_ns)
    assert mean == pytest.approx(10 * 1.0 / (1.0 + 3.0), rel=0.02)


def test_a_failed_turn_ends_its_conversation_and_the_slot_begins_another() -> None:
    _, records, _ = run(
        lambda: FakeSender(lambda n: 1.0, lambda n: "error" if n % 5 == 4 else "ok"), 1, stream=lambda: talks(3, 0.1),
        requests=30, max_error_rate=1.0,
    )  # fmt: skip
    for turns in by_session(records).values():
        assert all(r.outcome == "ok" for r in turns[:-1])
    assert any(len(turns) < 3 and turns[-1].outcome == "error" for turns in by_session(records).values())


def test_the_last_turn_before_the_context_is_full_says_so() -> None:
    _, records, _ = run(lambda: FakeSender(lambda n: 1.0), 2, stream=lambda: talks(9, 0.0, most=4), requests=40)
    assert all((r.turn == 4) == ("context_cut" in r.flags) for r in records)
    assert any("context_cut" in r.flags for r in records)


def test_a_step_ends_though_users_think_for_hours() -> None:
    seen, _, sender = run(lambda: FakeSender(lambda n: 1.0), 4, stream=lambda: talks(9, 7200.0), requests=4, warmup=0)
    assert seen.ended == "complete"
    assert sender.sent == 4


def test_thinkers_do_not_outlast_a_budget_of_time_or_an_interruption() -> None:
    seen, _, _ = run(
        lambda: FakeSender(lambda n: 1.0), 4, stream=lambda: talks(9, 7200.0), requests=40,
        budget=lambda: Budget(deadline=anyio.current_time() + 60),
    )  # fmt: skip
    assert (seen.ended, seen.detail) == ("budget", "time")

    async def interrupt(control: Control) -> None:
        await anyio.sleep(30)
        control.drain()

    seen, _, _ = run(
        lambda: FakeSender(lambda n: 1.0), 4, stream=lambda: talks(9, 7200.0), requests=40, during=interrupt
    )
    assert seen.ended == "interrupted"
