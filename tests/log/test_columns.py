from __future__ import annotations

import tracemalloc
from dataclasses import fields, replace
from random import Random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import Failure
from loadgen.log.columns import BLOCK_EVENTS, BLOCK_ROWS, NULL, TIMEOUTS, ColumnBuilder, Columns, columns
from loadgen.log.packed import Int64, join, pack, take
from loadgen.records import FLAGS, OUTCOMES, PHASES, TOKEN_SOURCES, Connect, Events, Record
from tests.log.record_strategies import RECORD, any_record
from tests.thorough import examples


def same(a: Columns, b: Columns) -> bool:
    named = {"model": "models", "peer": "peers"}  # what counts is the names that the codes stand for
    plain = (f.name for f in fields(Columns) if f.name not in (*named, *named.values()))
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in plain) and all(
        called(getattr(a, field), getattr(a, names)) == called(getattr(b, field), getattr(b, names))
        for field, names in named.items()
    )


def called(codes: Any, names: list[str]) -> list[str | None]:
    return [None if code < 0 else names[code] for code in codes]


def value(x: Any) -> int | None:
    return None if x == NULL else int(x)


def name(code: Any, names: tuple[str, ...]) -> str | None:
    return None if code < 0 else names[code]


def check_row(c: Columns, i: int, r: Record) -> None:
    assert (c.ids[i], c.errors[i]) == (r.id, r.error)
    for field in ("step", "concurrency", "worker", "status", "scheduled_ns", "sent_ns", "first_byte_ns"):
        assert value(getattr(c, field)[i]) == getattr(r, field)
    for field in ("first_token_ns", "first_content_ns", "last_token_ns", "done_ns", "first_event_tokens"):
        assert value(getattr(c, field)[i]) == getattr(r, field)
    assert value(c.sent_bound_us[i]) == r.sent_bound_us
    assert called(c.model[i : i + 1], c.models) == [r.model]
    assert called(c.peer[i : i + 1], c.peers) == [r.peer]
    tokens = (c.input_asked, c.input_local, c.input_server, c.input_cached, c.output_asked, c.output_count)
    it, ot = r.input_tokens, r.output_tokens
    assert [value(t[i]) for t in tokens] == [it.asked, it.local, it.server, it.cached, ot.asked, ot.count]
    assert (name(c.phase[i], PHASES), name(c.outcome[i], OUTCOMES)) == (r.phase, r.outcome)
    assert (name(c.source[i], TOKEN_SOURCES), name(c.timeout[i], TIMEOUTS)) == (ot.source, r.timeout)
    assert {flag for flag in FLAGS if c.flag(flag)[i]} == set(r.flags)
    connect = r.connect or Connect()
    assert [value(x) for x in c.connect_us[i]] == [connect.dns_us, connect.tcp_us, connect.tls_us]
    assert bool(c.has_events[i]) == (r.events is not None)
    at = slice(c.event_offsets[i], c.event_offsets[i + 1])
    e = r.events or Events()
    stamp, stamps = r.scheduled_ns if r.sent_ns is None else r.sent_ns, []
    for gap in e.gap_us:
        stamp += gap * 1000
        stamps.append(stamp)
    assert c.event_ns[at].tolist() == stamps
    assert c.event_tokens[at].tolist() == [-1 if t is None else t for t in e.tokens]
    bounds = dict(e.bounded)
    assert c.event_bound_us[at].tolist() == [bounds.get(j, -1) for j in range(len(e.gap_us))]


@settings(deadline=None)
@given(st.lists(any_record, max_size=6))
def test_every_field_of_any_record_is_kept(records: list[Record]) -> None:
    c = columns(iter(records))
    assert len(c) == len(records)
    for i, r in enumerate(records):
        check_row(c, i, r)


@settings(deadline=None)
@given(st.lists(st.tuples(any_record, st.booleans()), max_size=6))
def test_where_is_the_columns_of_the_chosen(chosen: list[tuple[Record, bool]]) -> None:
    c = columns(r for r, _ in chosen)
    kept = c.where(np.array([keep for _, keep in chosen], dtype=bool))
    assert same(kept, columns(r for r, keep in chosen if keep))


@settings(deadline=None)
@given(st.lists(any_record, max_size=6), st.randoms(use_true_random=False), st.integers(1, 8))
def test_parts_hold_every_row_once_in_the_order_given(records: list[Record], chance: Random, events: int) -> None:
    order = list(range(len(records)))
    chance.shuffle(order)
    c = columns(records)
    at = 0
    for part in c.parts(np.array(order, dtype=np.int64), events=events):
        rows = order[at : at + len(part)]
        assert same(part, c.at(np.array(rows)))
        assert part.ids == [records[i].id for i in rows]
        first = 1 + int(part.event_offsets[1])
        assert len(part) + len(part.event_ns) <= events + first
        at += len(part)
    assert at == len(order)


def test_no_records() -> None:
    c = columns([])
    assert len(c) == 0
    assert c.steps() == []
    assert same(c.where(np.zeros(0, dtype=bool)), c)


def test_steps_leave_preflight_out() -> None:
    preflight = replace(RECORD, step=0, phase="preflight")
    warm = replace(RECORD, step=2, phase="warmup")
    assert columns([RECORD, preflight, warm]).steps() == [2, 3]


def test_a_damaged_events_object_is_read_as_far_as_it_goes() -> None:
    c = columns([replace(RECORD, events=Events([10, 20], [4], [(7, 5)])), RECORD])
    assert c.event_tokens.tolist() == [4, -1, 1, -1]
    assert c.event_bound_us.tolist() == [-1, -1, -1, 9310]


def test_events_belong_to_their_rows() -> None:
    empty = replace(RECORD, events=Events())
    none = replace(RECORD, events=None)
    c = columns([none, RECORD, empty, RECORD])
    assert c.event_rows().tolist() == [1, 1, 3, 3]
    assert c.has_events.tolist() == [False, True, True, True]


# --- packed -----------------------------------------------------------------------------------------------------------

EXTREME = st.sampled_from([NULL, NULL + 1, -1, 0, 1, 254, 255, 256, 65_535, 65_536, 2**32 - 2, 2**32 - 1, 2**63 - 1])
NUMBERS = st.one_of(EXTREME, st.integers(-300, 300), st.integers(NULL, 2**63 - 1))


def int64(values: list[int]) -> Int64:
    return np.array(values, dtype=np.int64)


@settings(max_examples=examples(120), deadline=None)
@given(st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=8), max_size=4), st.integers(0, 3))
def test_packed_columns_come_back(blocks: list[list[tuple[int, int]]], by: int) -> None:
    """Any values, alone and as differences from others, a block at a time."""
    values = [int64([value // 1000**by if value != NULL else NULL for value, _ in block]) for block in blocks]
    near = [int64([max(other, NULL + 1) for _, other in block]) for block in blocks]
    every, nears = np.concatenate([int64([]), *values]), np.concatenate([int64([]), *near])
    assert np.array_equal(join([pack(block) for block in values]), every)
    assert np.array_equal(join([pack(a, b) for a, b in zip(values, near, strict=True)], nears), every)


@given(NUMBERS, st.integers(1, 5), st.integers(0, 7))
def test_one_value_takes_no_room_and_stays_one(value: int, n: int, m: int) -> None:
    column = join([pack(int64([value] * n)), pack(int64([value] * 2))])
    assert column.tolist() == [value] * (n + 2) and column.strides == (0,)
    kept = take(column, np.arange(m) % n)
    assert kept.tolist() == [value] * m and (kept.strides == (0,) or not m)


def many(n: int, seed: int) -> list[Record]:
    """Requests as they come in a step, some of them odd: failed, without events, with long waits and many events."""
    rng = np.random.default_rng(seed)
    records = []
    for i in range(n):
        at = int(i * 2_000_000 + rng.integers(10**6))
        first = at + int(rng.lognormal(18, 1))
        size = int(rng.choice([0, 1, 4, 900], p=[0.1, 0.3, 0.55, 0.05]))
        gaps = rng.integers(0, 10**5, size).tolist()
        one = replace(
            RECORD,
            id=str(i),
            scheduled_ns=at,
            sent_ns=at + int(rng.integers(10**5)),
            first_token_ns=first,
            first_content_ns=first + 10**7 * int(rng.integers(2)),
            last_token_ns=first + 10**7 * size,
            done_ns=first + 10**7 * size + 5,
            events=Events(gaps, [1] * size, [(0, 7)] if size > 1 and rng.random() < 0.1 else []),
        )
        if rng.random() < 0.02:
            one = replace(
                one,
                outcome="error",
                error=Failure("reset", str(i)),
                sent_ns=None,
                first_token_ns=None,
                first_content_ns=None,
                last_token_ns=None,
                events=None,
            )
        if rng.random() < 0.001:
            one = replace(one, events=Events([2**33], [2**40], []), done_ns=one.done_ns + 10**13)
        records.append(one)
    return records


def test_blocks_are_seamless() -> None:
    """Every row of a step of many blocks, some full by their rows and some by their events."""
    records = many(2 * BLOCK_ROWS + 300, 5)
    assert sum(len(r.events.gap_us) for r in records if r.events) > 4 * BLOCK_EVENTS
    c = columns(records)
    for i, r in enumerate(records):
        if r.events and r.events.tokens == [2**40]:
            r = replace(r, events=replace(r.events, tokens=[2**31 - 1]))  # of what no server does, as much as fits
        check_row(c, i, r)


def test_a_snapshot_is_of_its_moment() -> None:
    records = many(BLOCK_ROWS + 200, 6)
    builder = ColumnBuilder()
    shots = []
    for i, r in enumerate(records):
        if i in (0, 1, 500, BLOCK_ROWS, BLOCK_ROWS + 100):
            shots.append((i, builder.snapshot()))
        builder.add(r)
    for i, shot in shots:
        assert len(shot) == i
        assert same(shot.columns(), columns(records[:i]))
        bare = [replace(r, events=None) for r in records[:i]]
        assert same(shot.columns(events=False), columns(bare))
    assert same(builder.columns(), columns(records))


def test_ids_can_be_dropped() -> None:
    builder = ColumnBuilder(ids=False)
    for r in many(30, 7):
        builder.add(r)
    c = builder.columns()
    assert (len(c), c.ids) == (30, [])
    kept = c.where(c.outcome == OUTCOMES.index("ok"))
    assert (len(kept), kept.ids) == (int((c.outcome == 0).sum()), [])


def test_a_step_in_progress_is_small() -> None:
    """A request takes under 50 bytes with its few tokens, a token under 8 however long the outputs."""
    for tokens, requests, most in ((4, 30_000, 50 * 30_000), (500, 2_000, 8 * 500 * 2_000)):
        rng = np.random.default_rng(1)
        gaps = [int(gap) for gap in rng.integers(10**4, 10**5, tokens)]
        stamps = rng.integers(10**6, 3 * 10**8, (requests, 3)).tolist()
        builder = ColumnBuilder(ids=False)
        tracemalloc.start()
        for i in range(requests):
            at = i * 2_000_000
            first, last, done = (at + x for x in stamps[i])
            builder.add(
                replace(
                    RECORD,
                    scheduled_ns=at,
                    sent_ns=at + 7 * (i % 5000),
                    first_byte_ns=first - 90_000,
                    first_token_ns=first,
                    first_content_ns=first,
                    last_token_ns=last,
                    done_ns=done,
                    events=Events(gaps, [1] * tokens, []),
                )
            )
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert size < most + 500_000  # and a block that is not packed yet
