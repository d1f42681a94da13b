"""Retries in virtual time: when a request is sent again, its waits, what it is paid for, and what its record says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from typing import Any, Literal

import anyio
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.budget import Budget
from loadgen.client.driver import Control, StepPlan, run_step
from loadgen.client.retry import FIRST_S, LONGEST_S, Retry, RetryingSender, retry_after_s
from loadgen.errors import Failure
from loadgen.records import Attempt, Events, Prompt, Record, RequestSpec
from loadgen.results import Observation
from tests.client.fake_sender import FakeSender, clock, prompts
from tests.log.record_strategies import RECORD

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
LATER = format_datetime(NOW + timedelta(seconds=90), usegmt=True)


@pytest.mark.parametrize(
    ("value", "date", "seconds"),
    [
        ("2", "", 2.0),
        (" 120 ", "", 120.0),
        ("0", "", 0.0),
        ("1.5", "", 1.5),
        (LATER, "", 90.0),
        (LATER, format_datetime(NOW + timedelta(seconds=30), usegmt=True), 60.0),
        (LATER, "garbage", 90.0),
        ("Sun, 29 Nov 2026 12:01:30 GMT", "", 90.0),
        ("Sunday, 29-Nov-26 12:01:30 GMT", "", 90.0),
        ("Sun Nov 29 12:01:30 2026", "", 90.0),
        ("Sun, 29 Nov 2026 13:01:30 +0100", "", 90.0),
        ("Sun, 29 Nov 2026 11:00:00 GMT", "", 0.0),
        ("-1", "", None),
        ("+3", "", None),
        ("soon", "", None),
        ("", "", None),
        ("nan", "", None),
        ("1e3", "", None),
        ("99999999999999999999", "", None),
        ("2, 3", "", None),
        ("Sun, 99 Nov 2026 11:00:00 GMT", "", None),
        ("\x00", "", None),
    ],
)
def test_retry_after_in_both_forms(value: str, date: str, seconds: float | None) -> None:
    assert retry_after_s(value, date, NOW) == seconds


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_retry_after_is_a_time_or_nothing(value: str, date: str) -> None:
    found = retry_after_s(value, date, NOW)
    assert found is None or 0 <= found < float("inf")


# --- one request ----------------------------------------------------------------------------------------------------

OK = "ok"
Answer = Failure | str


def busy(code: int | str = 429, after: float | None = None, kind: Any = "http") -> Failure:
    return Failure(kind, "busy", code, retry_after_s=after)


@dataclass
class Scripted:
    """Each send takes a second and gets the next answer: a failure or `ok`; the last one for ever."""

    answers: Sequence[Answer]
    times: list[float] = field(default_factory=list)
    was_cut: str = ""

    async def send(self, spec: RequestSpec, scheduled_ns: int) -> Record:
        answer = self.answers[min(len(self.times), len(self.answers) - 1)]
        self.times.append(anyio.current_time())
        sent = clock()
        await anyio.sleep(1)
        plain = replace(RECORD, id=spec.id, sent_ns=sent, done_ns=clock(), flags=(), attempts=())
        if isinstance(answer, str):
            return replace(
                plain,
                outcome="ok",
                error=None,
                status=200,
                first_token_ns=clock(),
                events=Events([900_000, 50], [1, 1]),
            )
        status = answer.code if answer.kind == "http" and isinstance(answer.code, int) else None
        return replace(plain, outcome="error", error=answer, status=status, first_token_ns=None, events=None)

    def cut(self, outcome: Literal["cut", "cancelled"]) -> None:
        self.was_cut = outcome


SPEC = RequestSpec("s1-000001", Prompt("x", 10, 5), 1, 1, "measured")


def send(
    answers: Sequence[Answer], retry: Retry, budget: Budget | None = None, during: Callable[..., Any] | None = None
) -> tuple[Record, list[float], Budget, float]:
    """→ the record, when each attempt was sent, the budget that is left, and when it was over (all from 0 s)."""
    budget = budget or Budget(requests=100)
    inner = Scripted(answers)

    async def main() -> tuple[Record, float]:
        start, over = anyio.current_time(), anyio.Event()
        sender = RetryingSender(inner, retry, budget, over)
        async with anyio.create_task_group() as group:
            if during is not None:
                group.start_soon(during, sender, over)
            record = await sender.send(SPEC, clock())
            end = anyio.current_time()
            group.cancel_scope.cancel()
        inner.times[:] = [time - start for time in inner.times]
        return record, end - start

    record, took = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return record, inner.times, budget, took


CASES: dict[str, tuple[Sequence[Answer], Retry, list[float], str]] = {
    "nothing to retry": ([OK], Retry(3), [0], OK),
    "429, then ok": ([busy(after=2), OK], Retry(3), [0, 3], OK),
    "503 twice, then ok": ([busy(503, after=1), busy(503, after=4), OK], Retry(3), [0, 2, 7], OK),
    "refused within a stream": ([busy("overloaded", 1, "server"), OK], Retry(1), [0, 2], OK),
    "at once": ([busy(after=0), OK], Retry(1), [0, 1], OK),
    "for ever": ([busy(after=1)], Retry(2), [0, 2, 4], "error"),
    "asked to wait too long": ([busy(after=100), OK], Retry(5, max_wait_s=60), [0], "error"),
    "the time runs out": ([busy(after=9)], Retry(100, max_wait_s=20.5), [0, 10, 20], "error"),
    "it runs from the first send": ([busy(after=9)], Retry(100, max_wait_s=19.5), [0, 10], "error"),
    "then another failure": ([busy(after=1), Failure("http", "bad", 400)], Retry(3), [0, 2], "error"),
    "400 is final": ([Failure("http", "bad", 400)], Retry(3), [0], "error"),
    "500 is final": ([Failure("http", "boom", 500)], Retry(3), [0], "error"),
    "refused connections are": ([Failure("connect", "refused")], Retry(3), [0], "error"),
    "broken ones too": ([Failure("reset", "broke")], Retry(3), [0], "error"),
}


@pytest.mark.parametrize(("answers", "retry", "times", "outcome"), CASES.values(), ids=list(CASES))
def test_when_a_request_is_sent_again(
    answers: Sequence[Answer], retry: Retry, times: list[float], outcome: str
) -> None:
    record, sent, budget, took = send(answers, retry)
    assert sent == pytest.approx(times)
    assert record.outcome == outcome
    assert record.flags == (("retried",) if outcome == OK and len(times) > 1 else ())
    assert record.done_ns - (record.sent_ns or 0) == pytest.approx(took * 1e9), "from the first send to the end"
    assert budget.requests == 100 - (len(times) - 1), "the first was paid for by who sent it"
    if len(times) == 1:
        assert record.attempts == ()
        return
    assert [one.sent_ns for one in record.attempts] == [round(1e9 * t) + (record.sent_ns or 0) for t in times]
    waits = [(one.wait_ms or 0) / 1e3 for one in record.attempts]
    assert waits == pytest.approx([b - a - 1 for a, b in pairwise(times)] + [0])
    assert record.attempts[-1] == Attempt(record.attempts[-1].sent_ns, record.status, None)
    if record.events is not None:
        assert record.events.gap_us[0] == 900_000 + round(1e6 * times[-1]), "events stay where they were"
        assert record.events.gap_us[1:] == [50]


def test_without_retry_after_waits_are_random_within_growing_bounds_and_by_the_seed() -> None:
    retry = Retry(12, max_wait_s=1e6, seed=7)
    _, times, _, _ = send([busy()], retry)
    waits = [b - a - 1 for a, b in pairwise(times)]
    bounds = [min(LONGEST_S, FIRST_S * 2**n) for n in range(12)]
    assert all(0 <= wait <= bound for wait, bound in zip(waits, bounds, strict=True))
    assert len(set(waits)) == 12 and max(waits) > 1
    assert send([busy()], retry)[1] == times
    assert send([busy()], replace(retry, seed=8))[1] != times


def test_a_budget_that_is_spent_ends_it() -> None:
    record, times, budget, _ = send([busy(after=1)], Retry(9), Budget(requests=2))
    assert len(times) == 3
    assert (record.outcome, len(record.attempts), budget.spent) == ("error", 3, "requests")


@pytest.mark.parametrize("how", ["over", "cut", "cancelled"])
def test_who_waits_when_the_end_comes_is_cut(how: str) -> None:
    async def during(sender: RetryingSender, over: anyio.Event) -> None:
        await anyio.sleep(3)
        if how == "over":
            over.set()
        elif how == "cut":
            sender.cut("cut")
        else:
            sender.cut("cancelled")

    record, times, _, took = send([busy(after=30), OK], Retry(1), during=during)
    assert (record.outcome, record.error, took) == ("cancelled" if how == "cancelled" else "cut", None, 3.0)
    assert len(times) == 1
    assert [one.wait_ms for one in record.attempts] == [30_000]
    assert record.done_ns - (record.sent_ns or 0) == pytest.approx(3e9)


def test_a_cut_in_the_turn_in_which_the_wait_is_over_still_cuts() -> None:
    class Late:
        """Never set. The wait's limit wakes who waits for it, and a cut comes before anything else."""

        def is_set(self) -> bool:
            return False

        async def wait(self) -> None:
            try:
                await anyio.sleep_forever()
            finally:
                sender.cut("cut")

    late: Any = Late()
    inner = Scripted([busy(after=30), OK])
    sender = RetryingSender(inner, Retry(1), Budget(requests=100), late)

    async def main() -> Record:
        return await sender.send(SPEC, clock())

    record = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert (record.outcome, len(inner.times)) == ("cut", 1)


# --- a step ---------------------------------------------------------------------------------------------------------


def step(outcome: Callable[[int], Any], budget: Budget, retry: Retry, requests: int = 12) -> Any:
    records: list[Record] = []

    async def main() -> tuple[Observation, FakeSender]:
        sender = FakeSender(lambda n: 1.0, outcome)
        sender.failure = busy(after=2)
        plan = StepPlan(1, 4, lambda p: False, 0, requests=requests, max_error_rate=1.0, retry=retry)
        seen = await run_step(
            sender, prompts(), plan, on_record=records.append, clock=clock, zero_ns=sender.zero, budget=budget
        )
        return seen, sender

    seen, sender = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return seen, records, sender


def test_a_request_keeps_its_slot_while_it_waits() -> None:
    seen, records, sender = step(lambda n: "error" if n % 4 == 0 else "ok", Budget(), Retry(5))
    measured = [r for r in records if r.phase == "measured"]
    assert len(measured) == 12 and {r.outcome for r in measured} == {"ok"}
    assert seen.in_flight_peak == sender.peak == 4
    again = [r for r in measured if r.attempts]
    assert again and all(r.done_ns - (r.sent_ns or 0) >= 3.9e9 for r in again)
    assert sender.sent == sum(max(1, len(r.attempts)) for r in records)
    # What the driver saw in flight is what the records tell, waits included.
    window = seen.window
    area = sum(max(0, min(r.done_ns, window.end_ns) - max(r.sent_ns or 0, window.start_ns)) for r in records)
    assert seen.in_flight_integral_ns == pytest.approx(area)


def test_a_step_pays_for_every_attempt() -> None:
    budget = Budget(requests=20, tokens=20 * 15)
    seen, records, sender = step(lambda n: "error", budget, Retry(3), requests=100)
    assert (seen.ended, sender.sent) == ("budget", 20)
    assert sum(max(1, len(r.attempts)) for r in records) == 20


def test_no_retries_by_default() -> None:
    _, records, sender = step(lambda n: "error" if n % 4 == 0 else "ok", Budget(), Retry())
    assert len(records) == sender.sent
    assert all(not r.attempts for r in records) and any(r.outcome == "error" for r in records)


def test_the_brake_sends_nothing_again() -> None:
    records: list[Record] = []
    control = Control()

    async def main() -> FakeSender:
        sender = FakeSender(lambda n: 1.0, lambda n: "error")
        sender.failure = busy(after=20)
        plan = StepPlan(1, 4, lambda p: False, 4, max_error_rate=1.0, retry=Retry(5))
        async with anyio.create_task_group() as group:
            group.start_soon(_brake, control)
            await run_step(
                sender, prompts(), plan, on_record=records.append, clock=clock, zero_ns=sender.zero, control=control
            )
        return sender

    sender = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert sender.sent == 4
    assert [r.outcome for r in records] == ["cut"] * 4
    assert max(r.done_ns for r in records) < 4e9


async def _brake(control: Control) -> None:
    await anyio.sleep(3)
    control.drain()
