"""The tally once more, plainly: every event read as JSON, every entry a row of a list, all figures at the end."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.client.dialects.base import Dialect, MalformedEvent, Piece
from loadgen.client.entries import growth_of
from loadgen.client.sse import EventTooLong, SSEEvent, SSEParser
from loadgen.client.tally import TallyResult
from loadgen.errors import Failure
from loadgen.records import FLAGS, Events

EMPTY = Failure("empty", "the answer ended as it should but held no output")
INCOMPLETE = Failure("incomplete", "the stream ended without [DONE] and without a finish reason")


@dataclass
class Read:
    data: bytes
    stamp_ns: int
    previous_ns: int


@dataclass
class Row:
    """One event: when it came, in which read, how late it may be, and what it carries; None where malformed."""

    at_ns: int
    late_ns: int
    piece: Piece | None


def rows_of(
    dialect: Dialect, sent_ns: int, reads: list[Read], end: tuple[int, bool] | None, limit: int
) -> tuple[list[Row], Failure | None, bytes]:
    """All events up to the one that ends the stream, with the last one of each stamp exact; and the bytes so far."""
    parser = SSEParser(limit)
    rows: list[Row] = []
    too_long: Failure | None = None

    def read(events: list[SSEEvent], stamp_ns: int, previous_ns: int, count_bad: bool = True) -> None:
        for event in events:
            if rows and rows[-1].at_ns == stamp_ns:
                rows[-1].late_ns = max(rows[-1].late_ns, stamp_ns - max(previous_ns, sent_ns))
            if over(rows):
                return
            try:
                piece: Piece | None = dialect.read(event)
            except MalformedEvent:
                piece = None
            if count_bad or (piece is not None and not piece.ignored):
                rows.append(Row(stamp_ns, 0, piece))

    last, seen = None, b""
    for one in reads:
        if over(rows) or too_long:
            break
        last, seen = one, seen + one.data
        try:
            events = parser.feed(one.data)
        except EventTooLong as error:
            events, too_long = error.events, Failure("event_too_long", str(error))
        read(events, one.stamp_ns, one.previous_ns)
    if end is not None and not over(rows) and not too_long:
        at, before = (end[0], 0) if last is None else (last.stamp_ns, last.previous_ns)
        try:
            read(parser.close(), at, before, count_bad=end[1])
        except EventTooLong as error:
            too_long = Failure("event_too_long", str(error))
    return rows, None if over(rows) else too_long, seen


def over(rows: list[Row]) -> bool:
    piece = rows[-1].piece if rows else None
    return piece is not None and (piece.done or piece.error is not None)


def slow_tally(
    dialect: Dialect,
    sent_ns: int,
    reads: list[Read],
    end: tuple[int, bool] | None,
    asked: int | None,
    *,
    usage_asked: bool = True,
    limit: int = 1 << 20,
) -> TallyResult:
    """`end` is the stamp of the body's end and whether it ended cleanly, None where it was not closed."""
    rows, error, seen = rows_of(dialect, sent_ns, reads, end, limit)
    pieces = [row.piece for row in rows if row.piece is not None]
    known = [(row, row.piece) for row in rows if row.piece is not None]
    error = next((piece.error for piece in pieces if piece.error), None) or error
    done = next((row.at_ns for row, piece in known if piece.done), None)
    finish = next((piece.finish_reason for piece in pieces if piece.finish_reason), None)
    choices = {choice for piece in pieces for choice in piece.choices}
    finished = {choice for piece in pieces for choice in piece.finished}
    outputs = [(row, piece) for row, piece in known if piece.has_output]
    usages = [piece.usage for piece in pieces if piece.usage is not None]
    prompt, total, cached = (next((u[k] for u in reversed(usages) if u[k] is not None), None) for k in range(3))
    if total == 0 and outputs:
        total = None

    # Entries: from the first output on, whatever has output or shows new tokens.
    entries: list[tuple[Row, Piece, int | None, int | None]] = []
    early = 0
    for row, piece in known:
        usage = piece.usage.completion if piece.usage and piece.choices else None
        ids = piece.token_ids
        if piece.has_output or (entries and (usage is not None or ids)):
            entries.append((row, piece, usage, ids if entries or ids is None else ids + early))
        elif not entries:
            early += ids or 0
    keys = [piece.choices[0] if len(piece.choices) == 1 else -1 for _, piece, _, _ in entries]
    counts = [usage for _, _, usage, _ in entries]
    growth = growth_of(counts, [0] * len(keys))
    if len(set(keys)) > 1 and -1 not in keys:
        each = growth_of(counts, keys)
        growth = each if total is not None and sum(n or 0 for n in each) == total else growth
    tokens = [grown if grown is not None else ids for grown, (_, _, _, ids) in zip(growth, entries, strict=True)]
    told = sum(n or 0 for n in tokens)
    if told == 0 or (total is not None and told > total):
        tokens = [None] * len(tokens)
    elif tokens[0] == 0:
        tokens[0] = None

    events, before_us = Events(), 0
    for (row, piece, _, _), own in zip(entries, tokens, strict=True):
        if piece.has_output or own:
            offset_us = (row.at_ns - sent_ns + 500) // 1000
            if row.late_ns > 0:
                events.bounded.append((len(events.gap_us), -(-row.late_ns // 1000)))
            events.gap_us.append(offset_us - before_us)
            events.tokens.append(own)
            before_us = offset_us

    if total is not None:
        count, source = total, "usage"
    elif outputs and all(ids is not None for _, piece, _, ids in entries if piece.has_output):
        count, source = sum(ids or 0 for _, _, _, ids in entries), "token_ids"
    else:
        count, source = len(outputs), "events"
    if error is not None:
        outcome = "error"
    elif done is None and (end is None or finish is None or not choices <= finished):
        outcome, error = "incomplete", INCOMPLETE
    elif not outputs:
        outcome, error = "empty", EMPTY
    else:
        outcome = "ok"

    ignored = sum(piece.ignored for piece in pieces)
    malformed = sum(row.piece is None for row in rows)
    short = asked is not None and finish is not None and count < asked * max(1, len(choices))
    flags = {
        "usage_missing": outcome in ("ok", "empty") and usage_asked and source != "usage",
        "short_output": outcome == "ok" and short and not (source == "events" and finish == "length"),
        "malformed_events": malformed > 0,
        "ignored_events": ignored > 0,
        "bounded": bool(events.bounded),
    }
    text = "".join(piece.text for piece in pieces).encode("utf-8", "replace")
    text = text or seen[:2048].decode("utf-8", "replace").encode()
    return TallyResult(
        outcome=outcome,  # type: ignore[arg-type]
        error=error,
        flags=tuple(flag for flag in FLAGS if flags.get(flag)),
        first_token_ns=outputs[0][0].at_ns if outputs else None,
        first_content_ns=next((row.at_ns for row, piece in outputs if piece.has_content), None),
        last_token_ns=outputs[-1][0].at_ns if outputs else None,
        done_ns=done if done is not None or end is None else end[0],
        input_server=prompt,
        input_cached=cached,
        output_count=count,
        output_source=source,  # type: ignore[arg-type]
        first_event_tokens=tokens[0] if tokens else None,
        events=events,
        finish_reason=finish,
        server_id=next((piece.server_id for piece in pieces if piece.server_id), None),
        excerpt=None if outcome == "ok" else text[:2048].decode("utf-8", "ignore") or None,
        malformed_events=malformed,
        ignored_events=ignored,
    )
