"""A sender that only waits, and the clock of virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Literal

import anyio

from loadgen.errors import Failure
from loadgen.records import InputTokens, Outcome, OutputTokens, Prompt, Record, RequestSpec


def clock() -> int:
    return round(anyio.current_time() * 1e9)


class FakeSender:
    """Waits as long as `duration(n)` says for the n-th request and answers with `outcome(n)`. A request that is handed
    in ahead of its time is sent at its time."""

    def __init__(self, duration: Callable[[int], float], outcome: Callable[[int], Outcome] = lambda n: "ok") -> None:
        self.duration, self.outcome = duration, outcome
        self.zero = clock()
        self.handed = 0
        self.sent = 0
        self.in_flight = 0
        self.peak = 0
        self.status: int | None = 200
        self.failure: Failure | None = None
        self.starts: list[float] = []
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._cut: str | None = None

    async def send(self, spec: RequestSpec, scheduled_ns: int) -> Record:
        number = self.handed
        self.handed += 1
        sent: int | None = None
        outcome: Any = None
        with anyio.CancelScope() as scope:
            self._scopes[number] = scope
            if scheduled_ns > clock():
                await anyio.sleep((scheduled_ns - clock()) / 1e9)
            n = self.sent
            self.sent += 1
            self.in_flight += 1
            self.peak = max(self.peak, self.in_flight)
            sent = clock() - self.zero
            self.starts.append(sent / 1e9)
            outcome = self.outcome(n)
            try:
                await anyio.sleep(self.duration(n))
            finally:
                self.in_flight -= 1
        del self._scopes[number]
        if scope.cancelled_caught:
            outcome = self._cut
        done = clock() - self.zero
        return Record(
            id=spec.id, step=spec.step, concurrency=spec.concurrency, phase=spec.phase, worker=0,
            scheduled_ns=scheduled_ns - self.zero, sent_ns=sent, connect=None, first_byte_ns=None,
            first_token_ns=None, first_content_ns=None, last_token_ns=None, done_ns=done,
            input_tokens=InputTokens(), output_tokens=OutputTokens(), first_event_tokens=None, events=None,
            outcome=outcome, status=self.status, error=self.failure if outcome == "error" else None,
            session=spec.prompt.session, turn=spec.prompt.turn,
        )  # fmt: skip

    def cut(self, outcome: Literal["cut", "cancelled"]) -> None:
        self._cut = outcome
        for scope in self._scopes.values():
            scope.cancel()


class Talk:
    """A conversation of so many turns, whose user thinks for so long before each but the first. It is `cut` after
    `most` of them."""

    keeps = False
    more = True

    def __init__(self, session: int, turns: int, think_s: float, most: int | None = None) -> None:
        self.session, self.turns, self.think_s, self.most = session, turns, think_s, most
        self.cut = False

    def heard(self, text: str) -> None:
        raise AssertionError("it does not listen")

    def prompt(self, turn: int) -> Prompt:
        then = self if turn < self.turns else None
        return Prompt("x", 10, 5, session=self.session, turn=turn, then=then)

    def next(self, record: Record) -> tuple[int, Prompt] | None:
        assert record.turn is not None
        self.cut = record.outcome == "ok" and record.turn == self.most
        if record.outcome != "ok" or self.cut:
            return None
        return round(self.think_s * 1e9), self.prompt(record.turn + 1)


def talks(turns: int, think_s: float, most: int | None = None) -> Iterator[Prompt]:
    return (Talk(number, turns, think_s, most).prompt(1) for number in itertools.count())


def by_session(records: list[Record]) -> dict[int, list[Record]]:
    """The turns of each conversation, in the order they were sent."""
    found: dict[int, list[Record]] = {}
    for record in sorted((r for r in records if r.sent_ns is not None), key=lambda r: r.sent_ns or 0):
        assert record.session is not None
        found.setdefault(record.session, []).append(record)
    return found


def prompts() -> Iterator[Prompt]:
    return itertools.repeat(Prompt("x", 10, 5))
