"""The open loop in virtual time: whole steps under trio's mock clock, with a sender that only waits."""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.analysis import summarise
from loadgen.client.driver import Budget, Control, Progress, StepPlan
from loadgen.client.openloop import LEAD_NS, run_open_step
from loadgen.errors import Failure
from loadgen.log.columns import columns
from loadgen.records import Prompt, Record, RequestSpec
from loadgen.results import Observation, Slo
from loadgen.workload.arrivals import Arrivals, Schedule
from tests.client.fake_sender import FakeSender, by_session, clock, prompts, talks
from tests.thorough import examples

CONSTANT = Arrivals("constant")
POISSON = Arrivals("poisson")


def run(
    make: Callable[[], FakeSender],
    rate: float,
    *,
    arrivals: Arrivals = CONSTANT,
    seed: int = 1,
    budget: Callable[[], Budget] = Budget,
    during: Callable[[Control], Any] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    workers: tuple[int, int] = (0, 1),
    stream: Callable[[], Iterator[Prompt]] = prompts,
    **plan: Any,
) -> tuple[Observation, list[Record], FakeSender]:
    """Run one step in virtual time; `during` is an async function that may use the brake."""
    records: list[Record] = []
    plan = {"enough": lambda p: p.window_s >= 10.0, "warmup": 0, **plan}

    async def main() -> tuple[Observation, FakeSender]:
        sender = make()
        control = Control()
        async with anyio.create_task_group() as group:
            if during is not None:
                group.start_soon(during, control)
            seen = await run_open_step(
                sender, stream(), StepPlan(step=1, concurrency=0, rate=rate, **plan),
                Schedule(arrivals, rate, seed, worker=workers[0], workers=workers[1]),
                on_record=records.append, clock=clock, zero_ns=sender.zero, budget=budget(), control=control,
                on_progress=on_progress,
            )  # fmt: skip
            group.cancel_scope.cancel()
        return seen, sender

    seen, sender = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert sender.in_flight == 0
    assert len(records) == sender.handed, "every request taken has its record"
    return seen, records, sender


def due(rate: float, n: int, arrivals: Arrivals = CONSTANT, seed: int = 1) -> list[int]:
    """The first n arrivals, in ns on the run's clock: the first is made at once and so due after the lead."""
    return [LEAD_NS + at for at in itertools.islice(Schedule(arrivals, rate, seed), n)]


def in_window(seen: Observation, stamps: list[int]) -> int:
    assert seen.window is not None
    return bisect.bisect_left(stamps, seen.window.end_ns) - bisect.bisect_left(stamps, seen.window.start_ns)


@pytest.mark.parametrize("arrivals", [CONSTANT, POISSON, Arrivals("gamma", 0.5)], ids=str)
def test_thousands_of_requests_at_500_a_second(arrivals: Arrivals) -> None:
    durations = random.Random(1)
    seen, records, sender = run(
        lambda: FakeSender(lambda n: durations.uniform(0.01, 0.3)), 500.0, arrivals=arrivals, requests=2_000
    )
    assert seen.window is not None
    measured = [r for r in records if r.phase == "measured"]
    assert len(measured) == 2_000
    window_s = (due(500.0, 2_001, arrivals)[-1] - LEAD_NS) / 1e9
    assert seen.window.seconds == pytest.approx(window_s, rel=1e-6) == pytest.approx(4.0, rel=0.05)
    assert in_window(seen, sorted(r.sent_ns or 0 for r in records)) == 2_000
    assert [r.scheduled_ns for r in sorted(records, key=lambda r: r.id)] == due(500.0, len(records), arrivals)
    assert all(r.sent_ns == r.scheduled_ns for r in records), "each at its time, to the nanosecond"
    assert (seen.rate, seen.concurrency, seen.held_back, seen.not_dispatched) == (500.0, 0, 0, 0)
    assert sender.peak == seen.in_flight_peak


@given(
    rate=st.floats(0.5, 200),
    seconds=st.floats(0.001, 2.0),
    seed=st.integers(0, 5),
    cap=st.none() | st.integers(1, 20),
    requests=st.integers(1, 150),
)
@settings(max_examples=examples(20), deadline=None)
def test_the_integral_and_the_peak_are_those_of_the_records(
    rate: float, seconds: float, seed: int, cap: int | None, requests: int
) -> None:
    rng = random.Random(seed)
    seen, records, _ = run(
        lambda: FakeSender(lambda n: rng.expovariate(1 / seconds)), rate, arrivals=POISSON, seed=seed,
        max_in_flight=cap, requests=requests, warmup=3,
    )  # fmt: skip
    assert seen.window is not None
    window = seen.window
    spans = [(r.sent_ns, r.done_ns) for r in records if r.sent_ns is not None]
    area = sum(max(0, min(b, window.end_ns) - max(a, window.start_ns)) for a, b in spans)
    assert seen.in_flight_integral_ns == pytest.approx(area, rel=1e-9, abs=10)
    change = sorted([(a, 1) for a, b in spans if b > a] + [(b, -1) for a, b in spans if b > a])
    assert seen.in_flight_peak >= max(itertools.accumulate(c for _, c in change), default=0)
    assert cap is None or seen.in_flight_peak <= cap
    assert sum(r.phase == "measured" for r in records) == requests
    # What was due by the end of the window was sent, or is counted.
    stamps = due(rate, len(records) + seen.not_dispatched + 5, POISSON, seed)
    sent = [r.scheduled_ns for r in records if r.scheduled_ns < window.end_ns]
    assert bisect.bisect_left(stamps, window.end_ns) == len(sent) + seen.not_dispatched
    assert set(sent) <= set(stamps)


def test_an_in_flight_limit_is_counted_and_never_becomes_a_closed_loop() -> None:
    """20 requests/s, at most 2 in flight, 190 ms each: the server is offered no more than 10.5 a second."""
    seen, records, sender = run(lambda: FakeSender(lambda n: 0.19), 20.0, max_in_flight=2)
    assert sender.peak == 2
    assert seen.window is not None
    summary = summarise(columns(records), 1, Slo(), seen)
    assert summary.rate == 20.0
    assert summary.attempt_rate == pytest.approx(2 / 0.19, rel=0.02)
    sent = sum(r.phase == "measured" for r in records)
    assert seen.not_dispatched == pytest.approx(20.0 * seen.window.seconds - sent, abs=1)
    assert seen.held_back >= sent - 3
    stamps = due(20.0, len(records))
    first = [r for r in records if r.phase == "measured"]
    assert [r.scheduled_ns for r in first] == stamps[: len(first)], "who waits keeps the time it was due"
    lag = summary.latency["dispatch_lag"]
    assert lag.max is not None and lag.max == pytest.approx(1e3 * seen.window.seconds * (1 - 2 / 0.19 / 20), rel=0.05)
    median = lag.at(50.0)
    assert median is not None and median.value > 1000


def test_a_limit_that_does_not_bind_changes_nothing() -> None:
    free, limited = (
        run(lambda: FakeSender(lambda n: 0.05), 40.0, arrivals=POISSON, max_in_flight=cap) for cap in (None, 100)
    )
    assert free[1] == limited[1]
    assert limited[0].held_back == limited[0].not_dispatched == 0
    # Held ahead of its time is not held back: two slots are enough for one request after the other.
    seen, records, _ = run(lambda: FakeSender(lambda n: 0.009), 100.0, max_in_flight=1)
    assert seen.held_back == seen.not_dispatched == 0
    assert all(r.sent_ns == r.scheduled_ns for r in records)


def test_a_stalled_client_delays_what_was_due_and_nothing_after() -> None:
    """For 0.3 s, from 1 s on, this process does nothing: time goes on without it."""
    mock = trio.testing.MockClock(autojump_threshold=0)
    records: list[Record] = []

    async def main() -> Observation:
        sender = FakeSender(lambda n: 0.01)

        def stalling() -> Iterator[Prompt]:
            for prompt in prompts():
                now = (clock() - sender.zero) / 1e9
                if 1.0 <= now < 1.3:
                    mock.jump(1.3 - now)
                yield prompt

        return await run_open_step(
            sender, stalling(), StepPlan(1, 0, lambda p: p.window_s >= 3.0, 0, rate=50.0), Schedule(CONSTANT, 50.0, 1),
            on_record=records.append, clock=clock, zero_ns=sender.zero,
        )  # fmt: skip

    seen = trio.run(main, clock=mock)
    sent = {(r.scheduled_ns - LEAD_NS) // 20_000_000: (r.sent_ns or 0) / 1e9 for r in records}
    expected = {k: 0.05 + 0.02 * k for k in sent}
    late = {k for k in sent if sent[k] > expected[k] + 1e-6}
    assert late == {k for k in sent if 1.0 < expected[k] < 1.299}
    assert all(sent[k] == pytest.approx(1.3, abs=1e-6) for k in late), "sent at once when it goes on"
    assert seen.not_dispatched == 0
    assert in_window(seen, sorted(r.scheduled_ns for r in records)) == 150


def test_the_warm_up_lasts_its_time_and_its_count() -> None:
    for warmup, warmup_s, opens in ((0, 0.0, 0.0), (0, 2.0, 2.0), (5, 0.0, 1.0), (5, 3.0, 3.0), (30, 1.0, 3.5)):
        seen, records, _ = run(lambda: FakeSender(lambda n: 0.55), 10.0, warmup=warmup, warmup_s=warmup_s)
        assert seen.window is not None
        start = (seen.window.start_ns - LEAD_NS) / 1e9
        assert opens <= start <= opens + 0.21
        phases = [r.phase for r in sorted(records, key=lambda r: r.scheduled_ns)]
        assert phases == sorted(phases, key=["warmup", "measured", "filler"].index), "one after the other"
        assert min(r.scheduled_ns for r in records if r.phase == "measured") == seen.window.start_ns


def test_arrivals_go_on_until_the_sample_is_complete() -> None:
    seen, records, _ = run(lambda: FakeSender(lambda n: 30.0 if n == 99 else 0.1), 10.0, requests=100)
    last = max(r.done_ns for r in records if r.phase == "measured")
    fillers = [r for r in records if r.phase == "filler"]
    assert last == pytest.approx(LEAD_NS + 9.9e9 + 30e9)
    assert sum((r.sent_ns or last) <= last for r in fillers) == pytest.approx(300, abs=2)
    assert {r.outcome for r in records if r.phase == "measured"} == {"ok"}
    assert seen.ended == "complete" and seen.window is not None
    assert seen.window.end_ns == LEAD_NS + 10_000_000_000


def test_a_server_that_does_not_keep_up_is_offered_the_rate_all_the_same() -> None:
    busy_until = [0.0]

    def fifo(n: int) -> float:  # one at a time, 100 ms each: 10 requests/s
        busy_until[0] = max(busy_until[0], anyio.current_time()) + 0.1
        return busy_until[0] - anyio.current_time()

    seen, records, _ = run(lambda: FakeSender(fifo), 20.0)
    summary = summarise(columns(records), 1, Slo(), seen)
    assert summary.attempt_rate == pytest.approx(20.0, rel=0.01)
    assert summary.completion_rate is not None
    assert summary.completion_rate.value == pytest.approx(10.0, rel=0.02)
    assert seen.in_flight_peak >= 95


def test_a_hung_server_at_the_limit_ends_with_the_duration() -> None:
    seen, records, _ = run(
        lambda: FakeSender(lambda n: 1000.0), 10.0, max_in_flight=3, enough=lambda p: p.window_s >= 5.0,
        budget=lambda: Budget(deadline=anyio.current_time() + 20.0),
    )  # fmt: skip
    assert seen.window is not None
    assert seen.window.seconds == pytest.approx(5.0, abs=0.3)
    assert seen.not_dispatched == pytest.approx(10 * seen.window.seconds - 3, abs=1)
    assert len(records) == 3 and seen.ended == "budget"


def test_more_than_this_process_can_have_in_flight_voids_the_step() -> None:
    seen, _, sender = run(lambda: FakeSender(lambda n: 100.0), 100.0, most_in_flight=50)
    assert seen.ended == "client" and "50 requests in flight" in seen.detail
    assert sender.handed == 50


@given(requests=st.integers(0, 60), tokens=st.integers(0, 900), rate=st.floats(1, 300))
@settings(max_examples=examples(20), deadline=None)
def test_request_and_token_budgets_are_kept_exactly(requests: int, tokens: int, rate: float) -> None:
    seen, _, sender = run(
        lambda: FakeSender(lambda n: 1.0), rate, arrivals=POISSON, enough=lambda p: False,
        budget=lambda: Budget(requests=requests, tokens=tokens),
    )  # fmt: skip
    assert sender.handed == min(requests, tokens // 15)
    assert seen.ended == "budget"


def test_the_time_budget_is_a_promise_and_cuts_what_waits_for_its_time() -> None:
    seen, records, _ = run(
        lambda: FakeSender(lambda n: 3.3), 100.0, enough=lambda p: False,
        budget=lambda: Budget(deadline=anyio.current_time() + 10.0),
    )  # fmt: skip
    assert (seen.ended, seen.detail) == ("budget", "time")
    assert max(r.done_ns for r in records) <= 10.0e9 + 1
    unsent = [r for r in records if r.sent_ns is None]
    assert unsent and {r.outcome for r in unsent} == {"cut"}
    assert seen.in_flight_peak <= 331


@pytest.mark.parametrize("at", [0.0, 0.5, 3.2])
def test_brake_drains_first_and_quits_second(at: float) -> None:
    async def drain(control: Control) -> None:
        await anyio.sleep(at)
        control.drain()

    seen, records, _ = run(lambda: FakeSender(lambda n: 2.0), 20.0, enough=lambda p: False, during=drain)
    assert seen.ended == "interrupted"
    assert {r.outcome for r in records} <= {"ok"}
    assert max((r.sent_ns or 0 for r in records), default=0) <= at * 1e9 + 0.3e9 + LEAD_NS

    async def quit_(control: Control) -> None:
        await anyio.sleep(at)
        control.drain()
        await anyio.sleep(0.1)
        control.quit()

    seen, records, _ = run(lambda: FakeSender(lambda n: 200.0), 20.0, enough=lambda p: False, during=quit_)
    assert {r.outcome for r in records} <= {"cancelled"}
    assert max((r.done_ns for r in records), default=0) <= (at + 0.5) * 1e9


def test_errors_and_refused_access_stop_the_step() -> None:
    def failing(outcome: Any, status: int | None) -> Callable[[], FakeSender]:
        def make() -> FakeSender:
            sender = FakeSender(lambda n: 0.001, lambda n: outcome)
            sender.failure, sender.status = Failure("connect", "refused"), status
            return sender

        return make

    seen, _, sender = run(failing("error", None), 100.0, enough=lambda p: False)
    assert seen.ended == "errors" and "refused" in seen.detail
    assert sender.handed < 30
    seen, _, sender = run(failing("error", 401), 100.0, enough=lambda p: False)
    assert seen.ended == "unauthorized"
    assert sender.handed < 10
    seen, _, _ = run(failing("client_error", None), 100.0, enough=lambda p: False)
    assert seen.ended == "client"


def test_workers_together_send_the_whole_schedule() -> None:
    parts = [run(lambda: FakeSender(lambda n: 0.1), 30.0, workers=(w, 3), arrivals=POISSON)[1] for w in range(3)]
    stamps = sorted(r.scheduled_ns for part in parts for r in part)
    # Each worker starts when its own first request is made; here all start at the same time.
    first = [min(r.scheduled_ns for r in part) for part in parts]
    assert first == due(30.0, 3, POISSON)
    assert stamps[:250] == due(30.0, 250, POISSON)


def test_progress_shows_what_is_in_flight_and_not_what_waits() -> None:
    seen: list[int] = []

    class Watched(FakeSender):
        async def send(self, spec: RequestSpec, scheduled_ns: int) -> Record:
            seen.append(progress[0].in_flight - self.in_flight)
            return await super().send(spec, scheduled_ns)

    progress: list[Progress] = []
    run(lambda: Watched(lambda n: 0.5), 50.0, on_progress=progress.append)
    assert progress[0].rate == 50.0
    assert np.abs(seen).max() <= 1


def test_requests_are_made_ahead_of_their_time() -> None:
    ahead: list[float] = []

    class Watched(FakeSender):
        async def send(self, spec: RequestSpec, scheduled_ns: int) -> Record:
            ahead.append((scheduled_ns - clock()) / 1e9)
            return await super().send(spec, scheduled_ns)

    run(lambda: Watched(lambda n: 0.5), 50.0, arrivals=POISSON)
    assert np.allclose(ahead, LEAD_NS / 1e9, atol=1e-6)


# --- conversations --------------------------------------------------------------------------------------------------


def test_conversations_arrive_by_the_schedule_and_their_turns_when_they_are_due() -> None:
    _, records, _ = run(lambda: FakeSender(lambda n: 1.0), 2.0, arrivals=POISSON, stream=lambda: talks(4, 2.5))
    talked = by_session(records)
    assert len(talked) > 20
    firsts = [talked[number][0] for number in range(len(talked))]
    assert [r.scheduled_ns for r in firsts] == due(2.0, len(firsts), POISSON)
    for turns in talked.values():
        assert [r.turn for r in turns] == [*range(1, len(turns) + 1)]
        for one, other in itertools.pairwise(turns):
            assert other.scheduled_ns - one.done_ns == 2_500_000_000
            assert other.sent_ns == other.scheduled_ns, "at its time"


@given(
    rate=st.floats(0.5, 20),
    seconds=st.floats(0.001, 2.0),
    think_s=st.sampled_from([0.0, 0.001, 0.04, 0.3, 5.0]),
    seed=st.integers(0, 5),
    cap=st.none() | st.integers(1, 20),
    requests=st.integers(1, 100),
)
@settings(max_examples=examples(20), deadline=None)
def test_the_integral_and_the_sample_are_those_of_the_records_of_conversations(
    rate: float, seconds: float, think_s: float, seed: int, cap: int | None, requests: int
) -> None:
    rng = random.Random(seed)
    seen, records, _ = run(
        lambda: FakeSender(lambda n: rng.expovariate(1 / seconds)), rate, arrivals=POISSON, seed=seed,
        stream=lambda: talks(3, think_s), max_in_flight=cap, requests=requests, warmup=3,
    )  # fmt: skip
    assert seen.window is not None
    window = seen.window
    spans = [(r.sent_ns, r.done_ns) for r in records if r.sent_ns is not None]
    area = sum(max(0, min(b, window.end_ns) - max(a, window.start_ns)) for a, b in spans)
    assert seen.in_flight_integral_ns == pytest.approx(area, rel=1e-9, abs=10)
    assert cap is None or seen.in_flight_peak <= cap
    measured = [r for r in records if r.phase == "measured"]
    assert len(measured) == requests
    assert all((r.sent_ns or r.scheduled_ns) >= window.start_ns for r in measured)
    if cap is None:
        assert (seen.held_back, seen.not_dispatched) == (0, 0)


def test_a_limit_in_flight_holds_turns_back_too() -> None:
    seen, records, sender = run(
        lambda: FakeSender(lambda n: 1.0), 4.0, stream=lambda: talks(3, 0.0), max_in_flight=2, requests=20
    )
    assert sender.peak == 2
    assert seen.held_back + seen.not_dispatched > 0
    assert any((r.turn or 0) > 1 for r in records)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("at_ms", [[0, 10, 10, 500, 4000], [0], [0] * 7, list(range(0, 300, 7))], ids=len)
def test_arrivals_that_end_are_all_measured_and_close_the_window_at_their_end(at_ms: list[int], workers: int) -> None:
    end_ns = (at_ms[-1] + 100) * 1_000_000
    sent: list[int] = []
    for worker in range(workers):
        mine = at_ms[worker::workers]
        records: list[Record] = []

        async def main(mine: list[int] = mine, records: list[Record] = records) -> Observation:
            sender = FakeSender(lambda spec: 2.0)
            plan = StepPlan(step=1, concurrency=0, enough=lambda p: False, warmup=0, requests=len(mine), rate=10.0)
            return await run_open_step(
                sender, itertools.islice(prompts(), len(mine)), plan, iter([at * 1_000_000 for at in mine]),
                on_record=records.append, clock=clock, zero_ns=sender.zero, end_ns=end_ns,
            )  # fmt: skip

        seen = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
        assert seen.ended == "complete" and seen.not_dispatched == seen.held_back == 0
        assert [r.phase for r in records] == ["measured"] * len(mine)
        assert all(r.outcome == "ok" for r in records)
        if mine:
            assert seen.window is not None and seen.window.end_ns == LEAD_NS + end_ns
        sent += [r.scheduled_ns - LEAD_NS for r in records]
    assert sorted(sent) == [at * 1_000_000 for at in at_ms]
