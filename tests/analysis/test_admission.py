"""A server with an admission limit, simulated request by request, shows its number; other failures show none."""

from __future__ import annotations

import heapq
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.analysis.admission import admission_limit, by_number, by_time, refusals
from loadgen.errors import Failure
from loadgen.log.columns import columns
from loadgen.records import Attempt, Record
from tests.log.record_strategies import RECORD

BUSY = Failure("http", "Model is overloaded", 429)


def row(start: float, end: float, error: Failure | None = None) -> Record:
    return replace(
        RECORD,
        sent_ns=round(start * 1e9),
        done_ns=round(end * 1e9),
        outcome="error" if error else "ok",
        error=error,
        status=200 if error is None else int(error.code or 500),
        attempts=(),
    )


def served(limit: int, slots: int, seconds: float, seed: int = 0, refusal: Failure = BUSY) -> list[Record]:
    """`slots` in a closed loop against a server that answers `limit` at once, a refusal in 3 ms."""
    rng = random.Random(seed)
    free = [(i / slots, i) for i in range(slots)]  # a staggered start
    heapq.heapify(free)
    ends: list[float] = []
    rows = []
    while free[0][0] < seconds:
        now, slot = heapq.heappop(free)
        ends = [end for end in ends if end > now]
        if len(ends) < limit:
            end = now + rng.uniform(0.5, 1.5)
            ends.append(end)
            rows.append(row(now, end))
        else:
            end = now + 0.003 + rng.uniform(0, 0.002)
            rows.append(row(now, end, refusal))
        heapq.heappush(free, (end, slot))
    return rows


@pytest.mark.parametrize("limit", [1, 5, 20, 128])
@pytest.mark.parametrize("seconds", [1.2, 3.0])
def test_the_limit_is_found(limit: int, seconds: float) -> None:
    assert admission_limit(columns(served(limit, round(limit * 1.5) + 1, seconds))) == limit


@given(st.integers(1, 40), st.integers(1, 30), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_any_limit_is_found(limit: int, more: int, seed: int) -> None:
    assert admission_limit(columns(served(limit, limit + more, 1.2, seed))) == limit


@pytest.mark.parametrize(
    "refusal",
    [BUSY, Failure("http", "busy", 503), Failure("server", "Model is overloaded", "overloaded")],
    ids=["429", "503", "in a stream"],
)
def test_every_form_of_refusal_counts(refusal: Failure) -> None:
    rows = [replace(r, status=200) for r in served(8, 12, 2.0, refusal=replace(refusal, code=429))]
    rows = [r if r.error is None else replace(r, error=refusal) for r in rows]
    assert admission_limit(columns(rows)) == 8


def by_chance(slots: int, share: float, rng: random.Random) -> list[Record]:
    rows = []
    for slot in range(slots):
        now = slot / slots
        while now < 10:
            refused = rng.random() < share
            end = now + (0.003 if refused else rng.uniform(0.5, 1.5))
            rows.append(row(now, end, BUSY if refused else None))
            now = end
    return rows


def test_what_is_no_admission_limit() -> None:
    assert admission_limit(columns([row(0, 1) for _ in range(20)])) is None, "no failure at all"
    boom = Failure("http", "boom", 500)
    assert admission_limit(columns(served(8, 12, 2.0, refusal=boom))) is None, "failures of another kind"
    few = served(8, 12, 2.0)
    refused = [r for r in few if r.error][:4]
    assert admission_limit(columns([r for r in few if r.error is None] + refused)) is None, "too few to tell"
    rng = random.Random(1)
    for share in (0.02, 0.3, 0.7, 0.9):
        chance = [row(t, t + 1, BUSY if rng.random() < share else None) for t in (i / 50 for i in range(500))]
        assert admission_limit(columns(chance)) is None, "refused by chance, at a rate"
        assert admission_limit(columns(by_chance(16, share, rng))) is None, "refused by chance, in a closed loop"
    quota = [row(i / 10, i / 10 + 1) for i in range(20)] + [row(2 + i / 10, 2 + i / 10) for i in range(30)]
    quota = [replace(r, outcome="error", error=BUSY) if r.sent_ns == r.done_ns else r for r in quota]
    assert admission_limit(columns(quota)) is None, "a quota: refused however few are in flight"
    again = [replace(r, attempts=(Attempt(0, 429, 5), Attempt(5, 429))) if r.error else r for r in served(8, 12, 2.0)]
    assert admission_limit(columns(again)) is None, "when they were refused is not known"


def at_a_rate(slots: int, rate: float, seconds: float) -> list[Record]:
    """`slots` in a closed loop against a gateway that lets one in each 1 / `rate` seconds."""
    free = [(i / slots, i) for i in range(slots)]
    heapq.heapify(free)
    allowed, rows = 0.0, []
    while free[0][0] < seconds:
        now, slot = heapq.heappop(free)
        let_in = now >= allowed
        allowed = now + 1 / rate if let_in else allowed
        rows.append(row(now, now + (1.0 if let_in else 0.05), None if let_in else BUSY))
        heapq.heappush(free, (rows[-1].done_ns / 1e9, slot))
    return rows


def in_turns(slots: int, seconds: float) -> list[Record]:
    """An allowance that is spent for the second half of each 2 s."""
    starts = [(i / slots + k * 0.1) for k in range(round(seconds * 10)) for i in range(slots)]
    return [row(t, t + 0.3) if t % 2 < 1 else row(t, t + 0.01, BUSY) for t in sorted(starts)]


@pytest.mark.parametrize(
    ("rows", "number", "since"),
    [
        (by_chance(1, 0.5, random.Random(2)), "", ""),
        (by_chance(2, 0.3, random.Random(3)), "", ""),
        (by_chance(16, 0.9, random.Random(4)), "", ""),
        (served(5, 8, 5.0), "above", ""),
        (served(20, 30, 3.0), "above", ""),
        (at_a_rate(8, 4, 10.0), "above", "below"),
        (in_turns(4, 20.0), "below", "above"),
    ],
    ids=["chance, alone", "chance, two", "chance, sixteen", "five at once", "twenty at once", "a rate", "in turns"],
)
def test_what_a_refusal_depends_on(rows: list[Record], number: str, since: str) -> None:
    """Is the number in flight, and the time since others were let in, above or below that of those let in?"""
    c = columns(rows)
    told = [one(c, refusals(c)) for one in (by_number, by_time)]
    assert [["above"] * s.above + ["below"] * s.below for s in told if s] == [number.split(), since.split()]
