"""Random steps: plausible or damaged requests of all phases and outcomes, with anything unknown."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st

from loadgen.errors import Failure
from loadgen.records import FLAGS, OUTCOMES, PHASES, Connect, Events, InputTokens, OutputTokens, Record, TimeoutKind

count = st.none() | st.integers(0, 40)


@st.composite
def requests(draw: st.DrawFn) -> Record:
    def later(than: int) -> int:
        return than + draw(st.integers(0, 50)) * 1_000_000

    scheduled = draw(st.integers(0, 200)) * 1_000_000
    sent = later(scheduled)
    events = None
    first, last = later(sent), None
    if draw(st.booleans()):
        gaps = draw(st.lists(st.integers(0, 60_000), max_size=6))
        known = draw(st.sampled_from([st.none(), st.integers(0, 5), st.none() | st.integers(0, 5)]))
        events = Events(gaps, [draw(known) for _ in gaps])
        first, last = (sent + 1000 * gaps[0], sent + 1000 * sum(gaps)) if gaps else (first, None)
    last = later(first) if last is None else last
    outcome = draw(st.sampled_from(["ok", "ok", "ok", *OUTCOMES]))
    known_stamps = outcome == "ok" and draw(st.booleans())

    def perhaps(x: int) -> int | None:
        return x if known_stamps or draw(st.booleans()) else None

    return Record(
        id=str(draw(st.integers(0, 99))),
        step=1,
        concurrency=2,
        phase=draw(st.sampled_from(["measured", "measured", *PHASES])),
        worker=0,
        scheduled_ns=scheduled,
        sent_ns=sent if events is not None else perhaps(sent),
        connect=draw(st.none() | st.just(Connect(1, 2, 3))),
        first_byte_ns=perhaps(first),
        first_token_ns=perhaps(first),
        first_content_ns=perhaps(first),
        last_token_ns=perhaps(last),
        done_ns=later(last),
        input_tokens=InputTokens(draw(count), draw(count), draw(count), draw(count)),
        output_tokens=OutputTokens(draw(count), draw(count), draw(st.sampled_from([None, "usage", "events"]))),
        first_event_tokens=draw(st.none() | st.integers(1, 4)),
        events=events,
        outcome=outcome,
        flags=tuple(draw(st.lists(st.sampled_from(FLAGS), unique=True, max_size=2))),
        error=draw(st.none() | st.just(Failure("http", "busy", 503))),
        timeout=draw(st.none() | st.sampled_from(get_args(TimeoutKind))),
    )


steps = st.lists(requests(), max_size=12)
