"""Any record at all, and plausible ones, for the tests of the log and of the reports."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from hypothesis import strategies as st

from loadgen.errors import Failure, FailureKind
from loadgen.records import (
    FLAGS,
    OUTCOMES,
    PHASES,
    TOKEN_SOURCES,
    Attempt,
    Connect,
    Events,
    InputTokens,
    OutputTokens,
    Record,
    TimeoutKind,
)
from loadgen.results import Observation, Window

RECORD = Record(
    id="s3-000123",
    step=3,
    concurrency=64,
    phase="measured",
    worker=0,
    scheduled_ns=1,
    sent_ns=2,
    connect=None,
    first_byte_ns=3,
    first_token_ns=4,
    first_content_ns=5,
    last_token_ns=6,
    done_ns=7,
    input_tokens=InputTokens(asked=512, server=512),
    output_tokens=OutputTokens(asked=200, count=200, source="usage"),
    first_event_tokens=None,
    events=Events([48211, 10022], [1, None], [(1, 9310)]),
    outcome="ok",
    finish_reason="length",
    status=200,
    server_id="chatcmpl-1",
    peer="10.0.0.7:8000",
)

MS = 1_000_000


def answered(
    sent_ms: int, first_ms: int, last_ms: int, done_ms: int, tokens: InputTokens, count: int, events: Events
) -> Record:
    """A request due at 0 in step 1 whose `count` output tokens the server counted; its first and last came so late."""
    return replace(
        RECORD,
        id="a",
        step=1,
        scheduled_ns=0,
        sent_ns=sent_ms * MS,
        first_token_ns=first_ms * MS,
        last_token_ns=last_ms * MS,
        done_ns=done_ms * MS,
        input_tokens=tokens,
        output_tokens=OutputTokens(count=count, source="usage"),
        events=events,
    )


OBSERVATION = Observation(3, 64, Window(10, 20), 12345, 64, "errors", "refused")

ns = st.integers(-(2**62), 2**62)
count = st.none() | st.integers(0, 2**40)
text = st.text(st.characters(codec="utf-8"), max_size=20)


@st.composite
def events(draw: st.DrawFn) -> Events:
    gaps = draw(st.lists(st.integers(0, 2**40), max_size=6))
    tokens = draw(st.lists(st.none() | st.integers(0, 1000), min_size=len(gaps), max_size=len(gaps)))
    index = st.integers(0, max(0, len(gaps) - 1))
    bounded = draw(st.lists(st.tuples(index, st.integers(0, 10**6)), max_size=3)) if gaps else []
    return Events(gaps, tokens, bounded)


failures = st.builds(
    Failure,
    kind=st.sampled_from(get_args(FailureKind)),
    message=text,
    code=st.none() | st.integers(-(2**63), 2**63 - 1) | text,
    excerpt=st.none() | text,
    retry_after_s=st.none() | st.integers(0, 10**6).map(float),
)

any_record = st.builds(
    Record,
    id=text,
    step=st.integers(0, 100),
    concurrency=st.integers(0, 10_000),
    phase=st.sampled_from(PHASES),
    worker=st.integers(0, 64),
    scheduled_ns=ns,
    sent_ns=st.none() | ns,
    connect=st.none() | st.builds(Connect, count, count, count),
    first_byte_ns=st.none() | ns,
    first_token_ns=st.none() | ns,
    first_content_ns=st.none() | ns,
    last_token_ns=st.none() | ns,
    done_ns=ns,
    input_tokens=st.builds(InputTokens, count, count, count, count),
    output_tokens=st.builds(OutputTokens, count, count, st.none() | st.sampled_from(TOKEN_SOURCES), st.integers(1, 8)),
    first_event_tokens=st.none() | st.integers(1, 100),
    events=st.none() | events(),
    outcome=st.sampled_from(OUTCOMES),
    flags=st.lists(st.sampled_from(FLAGS), unique=True).map(tuple),
    finish_reason=st.none() | text,
    status=st.none() | st.integers(100, 599),
    error=st.none() | failures,
    timeout=st.none() | st.sampled_from(get_args(TimeoutKind)),
    excerpt=st.none() | text,
    server_id=st.none() | text,
    peer=st.none() | text,
    sent_bound_us=st.none() | st.integers(21, 10**9),
    model=st.none() | text,
    source_id=st.none() | text,
    session=st.none() | st.integers(0, 10**9),
    turn=st.integers(1, 10**6),
    shared=st.none() | st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    attempts=st.lists(st.builds(Attempt, st.none() | ns, st.none() | st.integers(100, 599), count), max_size=3).map(
        tuple
    ),
)

# Cells lose the white space around them, as in every spreadsheet; a NUL is no text in a CSV.
cell = st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n\x85\u2028\u2029"), max_size=20).map(str.strip)


@st.composite
def measured_record(draw: st.DrawFn, name: str | None = None) -> Record:
    """An ok request whose stamps are in order."""
    gap = st.integers(0, 10**11)
    scheduled = draw(st.integers(0, 2**60))
    sent = scheduled + draw(gap)
    first = sent + draw(gap)
    last = first + draw(gap)
    return Record(
        id=name if name is not None else draw(cell.filter(bool)),
        step=draw(st.integers(1, 9)),
        concurrency=draw(st.integers(1, 512)),
        phase="measured",
        worker=0,
        scheduled_ns=scheduled,
        sent_ns=sent,
        connect=None,
        first_byte_ns=None,
        first_token_ns=first,
        first_content_ns=None,
        last_token_ns=last,
        done_ns=last + draw(gap),
        input_tokens=InputTokens(asked=draw(count), server=draw(count), cached=draw(count)),
        output_tokens=OutputTokens(
            asked=draw(count), count=draw(st.integers(1, 10**6)), source=draw(st.sampled_from(TOKEN_SOURCES))
        ),
        first_event_tokens=draw(st.none() | st.integers(1, 8)),
        events=None,
        outcome="ok",
        flags=tuple(draw(st.lists(st.sampled_from(FLAGS), unique=True))),
        finish_reason=draw(st.none() | cell.filter(bool)),
        status=200,
        peer=draw(st.none() | cell.filter(bool)),
        model=draw(st.none() | cell.filter(bool)),
        source_id=draw(st.none() | cell.filter(bool)),
    )
