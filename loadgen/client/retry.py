"""Sending a request again when the server refuses it for now. Off unless asked for: a refusal is a finding.

1. Only an answer of 429 or 503, or the same said in a stream before any token, is tried again. A connection that is
   refused or breaks is not: that tells how available the server is, and a request that broke off may be at work there.
2. It waits as long as Retry-After says, else a random time below 0.5 s · 2^n (at most 30 s; full jitter, as in
   "Exponential Backoff And Jitter", AWS Architecture Blog 2015), so that those refused together do not return together.
3. Both the number of tries and the time from the first try are bounded; a wait that would go past that is not begun.
4. It keeps its place among the requests in flight, each try is paid for, and its latency runs from the first send.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

import anyio

from ..records import Attempt, Events, Record, RequestSpec
from .budget import Budget
from .sender import Sender

FIRST_S, LONGEST_S = 0.5, 30.0  # bounds of a random wait: of the first, and of any

_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class Retry:
    """At most `times` tries after the first, none of them begun later than `max_wait_s` after the first was sent."""

    times: int = 0
    max_wait_s: float = 60.0
    seed: int = 0


NO_RETRY = Retry()


def retry_after_s(value: str, date: str = "", now: datetime | None = None) -> float | None:
    """Retry-After → seconds to wait. Both forms of RFC 9110, 10.2.3: a number of seconds, or a date, which is measured
    from the answer's own `date`, as the server's clock may not be ours. A date past is 0; anything else is None."""
    value = value.strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    until, since = _date(value), _date(date) or now or datetime.now(UTC)
    return None if until is None else max(0.0, (until - since).total_seconds())


def _date(text: str) -> datetime | None:
    if not text or text.lstrip("+-").replace(".", "").isdigit():
        return None
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


class RetryingSender:
    """Sends through `inner`, again where that is worth it. `over` is set when nothing more is to be sent: a request
    that waits then is cut."""

    def __init__(self, inner: Sender, retry: Retry, budget: Budget, over: anyio.Event) -> None:
        self._inner, self._retry, self._budget, self._over = inner, retry, budget, over
        self._waiting: set[anyio.CancelScope] = set()
        self._why: Literal["cut", "cancelled"] = "cut"

    def cut(self, outcome: Literal["cut", "cancelled"]) -> None:
        self._why = outcome
        for scope in self._waiting:
            scope.cancel()
        self._waiting.clear()
        self._inner.cut(outcome)

    async def send(self, spec: RequestSpec, scheduled_ns: int) -> Record:
        record = await self._inner.send(spec, scheduled_ns)
        if not worth_another(record):
            return record
        chance = random.Random(f"{self._retry.seed} {spec.id}")
        attempts: list[Attempt] = []
        first = record
        start = anyio.current_time()  # of the first send
        if record.sent_ns is not None:
            start -= (record.done_ns - record.sent_ns) / 1e9
        while worth_another(record) and len(attempts) < self._retry.times:
            wait_s = self._wait_s(record, len(attempts), chance)
            if anyio.current_time() + wait_s > start + self._retry.max_wait_s:
                break
            attempts.append(Attempt(record.sent_ns, record.status, round(wait_s * 1000)))
            before = anyio.current_time()
            if await self._cut_short(wait_s):
                waited_ns = round((anyio.current_time() - before) * 1e9)
                record = replace(
                    record, outcome=self._why, error=None, excerpt=None, done_ns=record.done_ns + waited_ns
                )
                return joined(first, record, attempts)
            if not self._budget.take(spec.id, spec.prompt):
                attempts.pop()
                break
            record = await self._inner.send(spec, scheduled_ns)
        if not attempts:
            return record
        return joined(first, record, [*attempts, Attempt(record.sent_ns, record.status)])

    def _wait_s(self, record: Record, tries: int, chance: random.Random) -> float:
        asked = record.error.retry_after_s if record.error is not None else None
        return chance.uniform(0.0, min(LONGEST_S, FIRST_S * 2**tries)) if asked is None else asked

    async def _cut_short(self, wait_s: float) -> bool:
        """Wait; True where the end came first."""
        with anyio.CancelScope(deadline=anyio.current_time() + wait_s) as scope:
            self._waiting.add(scope)
            try:
                await self._over.wait()
            finally:
                was_cut = scope not in self._waiting  # by `cut`, though it were in the turn in which the wait is over
                self._waiting.discard(scope)
        return was_cut or self._over.is_set()


def worth_another(record: Record) -> bool:
    """Was the request refused for now, before any token?"""
    return record.error is not None and record.error.overload and record.first_token_ns is None


def joined(first: Record, last: Record, attempts: list[Attempt]) -> Record:
    """One record of a request sent several times: sent when it first was, with what came of the last."""
    record = replace(
        last,
        sent_ns=first.sent_ns,
        connect=first.connect,
        sent_bound_us=first.sent_bound_us,
        attempts=tuple(attempts),
        flags=(*last.flags, "retried") if last.outcome == "ok" else last.flags,
    )
    if last.events is not None and last.events.gap_us and first.sent_ns is not None and last.sent_ns is not None:
        gaps = list(last.events.gap_us)
        gaps[0] += round((last.sent_ns - first.sent_ns) / 1000)  # the first is measured from sent_ns
        record = replace(record, events=Events(gaps, last.events.tokens, last.events.bounded))
    return record
