from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.log.columns import NULL, TIMEOUTS, Columns, columns
from loadgen.records import FLAGS, OUTCOMES, PHASES, TOKEN_SOURCES, Connect, Events, Record
from tests.log.record_strategies import RECORD, any_record


def same(a: Columns, b: Columns) -> bool:
    return all(np.array_equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(Columns))


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
