"""Rows of one conversation, as they are sent: none before the one before it has ended, each with what belongs to it."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
import trio.testing

from loadgen.client.openloop import run_open_step
from loadgen.client.step import StepPlan
from loadgen.records import InputTokens, Outcome, OutputTokens, Record
from loadgen.results import Observation
from loadgen.workload.traces.looking import look
from loadgen.workload.traces.replayed import Choice, Replayed
from tests.client.fake_sender import FakeSender, clock
from tests.log.record_strategies import RECORD

from .samples import lines

MS = 1_000_000


def mooncake(at: int | None, session: str | None, size: int = 20, delay: int | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {"input_length": size, "output_length": 3}
    row |= {} if at is None else {"timestamp": at}
    row |= {} if session is None else {"session_id": session}
    return row | ({} if delay is None else {"delay": delay})


def written(folder: Path, *rows: object) -> str:
    path = folder / "trace.jsonl"
    path.write_text(lines(*rows))
    return str(path)


@dataclass
class Server:
    """Answers each request after `ms`."""

    ms: float
    outcome: Outcome = "ok"
    seen: list[Record] = field(default_factory=list)

    def spans(self) -> list[tuple[int | None, int, int]]:
        """(session, sent, done) of each request, in ms from the first."""
        sent = sorted((r.sent_ns or 0, r.session, r.done_ns) for r in self.seen)
        zero = sent[0][0]
        return [(session, round((at - zero) / MS), round((done - zero) / MS)) for at, session, done in sent]


def played(found: Replayed, server: Server, workers: int = 1) -> list[Observation]:
    """The whole trace against a server, in virtual time."""

    async def main() -> list[Observation]:
        start = clock() + 100 * MS
        results: list[Observation] = []

        async def part(worker: int) -> None:
            sender = FakeSender(lambda n: server.ms / 1e3, lambda n: server.outcome)
            plan = StepPlan(1, 0, lambda progress: False, 0, found.most_requests, rate=found.rate, max_error_rate=1.0)
            times, prompts = found.offsets(worker, workers), found.prompts("n", None, worker, workers)
            seen = await run_open_step(
                sender, prompts, plan, times, on_record=server.seen.append, clock=clock, zero_ns=sender.zero,
                start_ns=start, end_ns=times.end_ns,
            )  # fmt: skip
            results.append(seen)

        async with anyio.create_task_group() as group:
            for worker in range(workers):
                group.start_soon(part, worker)
        return results

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("workers", [1, 3])
def test_a_turn_is_sent_at_its_time_and_not_before_the_one_before_it_has_ended(tmp_path: Path, workers: int) -> None:
    times = [(0, "a"), (10, "b"), (20, "a"), (30, None), (40, "a"), (500, "a"), (510, "b")]
    found = look(Choice(written(tmp_path, *(mooncake(at, who) for at, who in times)), as_recorded=True))
    server = Server(100)
    results = played(found, server, workers)
    by_session: dict[int | None, list[tuple[int, int]]] = defaultdict(list)
    for session, sent, done in server.spans():
        by_session[session].append((sent, done))
    assert by_session[0] == [(0, 100), (100, 200), (200, 300), (500, 600)]  # at 20 and 40 ms it could not be
    assert by_session[1] == [(10, 110), (510, 610)]
    assert by_session[None] == [(30, 130)]
    assert len(server.seen) == found.requests == 7
    assert all(seen.ended == "complete" and not seen.not_dispatched for seen in results)
    assert sorted(r.turn or 0 for r in server.seen) == [0, 1, 1, 2, 2, 3, 4]


def test_a_turn_with_a_delay_follows_the_answer_before_it_by_so_much(tmp_path: Path) -> None:
    rows = [mooncake(0, "a"), mooncake(None, "a", delay=40), mooncake(30, None), mooncake(None, "a", delay=0)]
    rows += [mooncake(600, "b"), mooncake(None, "c", delay=5)]
    found = look(Choice(written(tmp_path, *rows), scale=2.0))
    assert (found.requests, found.arrivals, dict(found.dropped)) == (5, 3, {"no time of its own": 1})
    server = Server(100)
    [seen] = played(found, server)
    assert [sent for _, sent, _ in server.spans()] == [0, 15, 120, 220, 300]  # 40 ms, twice as fast
    assert seen.ended == "complete"


def test_the_whole_trace_is_sent_where_its_last_conversation_goes_on_beyond_its_end(tmp_path: Path) -> None:
    rows = [mooncake(0, None), mooncake(10, "a"), *[mooncake(None, "a", delay=900)] * 4]
    for look_at in (None, 1):
        server = Server(20)
        [seen] = played(look(Choice(written(tmp_path, *rows), looked_at=look_at)), server)
        assert len(server.seen) == 6 and seen.ended == "complete"
    rows = [mooncake(10 * n, "a") for n in range(5)]
    for look_at in (None, 2):
        server = Server(400)
        [seen] = played(look(Choice(written(tmp_path, *rows), looked_at=look_at, as_recorded=True)), server)
        assert len(server.seen) == 5 and seen.ended == "complete" and not seen.not_dispatched


def test_turns_with_times_go_on_after_one_that_failed_and_those_that_follow_it_do_not(tmp_path: Path) -> None:
    rows = [mooncake(0, "a"), mooncake(50, "a"), mooncake(None, "a", delay=1)]
    server = Server(10, outcome="timeout")
    [seen] = played(look(Choice(written(tmp_path, *rows), as_recorded=True)), server)
    assert len(server.seen) == 2 and seen.ended == "complete"


@pytest.mark.parametrize("outcome", ["ok", "timeout"])
@pytest.mark.parametrize("early", [True, False], ids=["waits before it ends", "waits after"])
def test_what_waits_for_a_turn_is_woken_once_whether_it_has_ended_or_not(
    tmp_path: Path, outcome: Outcome, early: bool
) -> None:
    """A turn may end between the moment it is asked about and the one it is waited for."""
    found = look(Choice(written(tmp_path, mooncake(0, "a"), mooncake(1, "a")), as_recorded=True))
    first, second = found.prompts("n", None)
    assert first.then is not None and second.after is not None and second.after.done_ns is None
    woken: list[int] = []
    if early:
        second.after.call(lambda: woken.append(1))
        assert not woken
    assert first.then.next(replace(RECORD, outcome=outcome, done_ns=5)) is None
    if not early:
        second.after.call(lambda: woken.append(1))
    assert woken == [1] and second.after.done_ns == 5


def test_a_part_of_a_trace_ends_within_a_conversation(tmp_path: Path) -> None:
    rows = [mooncake(0, "a"), mooncake(None, "a", delay=1), mooncake(None, "a", delay=1), mooncake(5, "b")]
    found = look(Choice(written(tmp_path, *rows), requests=2))
    assert (found.requests, found.arrivals) == (2, 1)
    server = Server(10)
    played(found, server)
    assert len(server.seen) == 2


def test_a_conversation_does_not_grow_beyond_the_context(tmp_path: Path) -> None:
    path = tmp_path / "share.json"
    said = [{"from": who, "value": "word " * 40} for _ in range(9) for who in ("human", "gpt")]
    path.write_text(json.dumps([{"id": "s", "conversations": said}]))
    found = look(Choice(str(path), timed=False))
    prompt = next(islice(found.prompts("n", None, context=400), 1))
    turns = 1
    assert prompt.then is not None
    while True:
        prompt.then.heard("word " * 40)
        following = prompt.then.next(
            replace(
                RECORD,
                outcome="ok",
                input_tokens=InputTokens(server=100 * turns - 50),
                output_tokens=OutputTokens(50, 50, "usage"),
            )
        )
        if following is None:
            break
        turns, prompt = turns + 1, following[1]
        assert prompt.then is not None
    assert prompt.then.cut and 1 < turns < 9
