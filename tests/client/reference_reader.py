"""A reader of streams written once more from the definitions, slow and plain, to hold the client's against.

From the metrics page, the WHATWG text on event streams and the rules at the top of the client's `sse` and `tally`. It
walks over the whole body byte by byte and works out all figures at the end from one row an event (`reference_rows`). It
shares no code with the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.client.reference_rows import Row, row_of

LF, CR = 10, 13


@dataclass
class Read:
    """One read from the socket, or a part of it."""

    data: bytes
    stamp_ns: int
    previous_ns: int


@dataclass
class Figures:
    """The figures under the names of the client's result; `error` is (kind, message, code), `events` the lists of the
    record's events. `rows` is how it came to them."""

    outcome: str
    error: tuple[str, str, Any] | None
    flags: tuple[str, ...]
    first_token_ns: int | None
    first_content_ns: int | None
    last_token_ns: int | None
    done_ns: int | None
    input_server: int | None
    input_cached: int | None
    output_count: int
    output_source: str
    first_event_tokens: int | None
    events: tuple[list[int], list[int | None], list[tuple[int, int]]]
    finish_reason: str | None
    server_id: str | None
    excerpt: str | None
    malformed_events: int
    ignored_events: int
    rows: list[Row]

    def compared(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "rows"}


def figures_of(result: Any) -> dict[str, Any]:
    """The client's own result in the same form."""
    own = {name: getattr(result, name) for name in Figures.__dataclass_fields__ if name != "rows"}
    own["error"] = result.error and (result.error.kind, result.error.message, result.error.code)
    own["events"] = (result.events.gap_us, result.events.tokens, result.events.bounded)
    return own


# --- bytes → events ---------------------------------------------------------------------------------------------------


class TooLong(Exception):  # noqa: N818
    pass


def events_of(body: bytes, closed: bool, limit: int) -> Iterable[tuple[str, bytes, int]]:
    """(name, data, index of the byte that ended it) of each event; what the close ends has the body's length for an
    index. Raises TooLong where a line or an event's data passes the limit."""
    start = 3 if body.startswith(b"\xef\xbb\xbf") else 0
    if not closed and body in (b"\xef", b"\xef\xbb"):
        return  # it may become a byte order mark
    line = bytearray()
    after_cr = False
    name: bytes = b""
    data: list[bytes] = []
    errors: list[bytes] = []

    def ended(at: int) -> Iterable[tuple[str, bytes, int]]:
        nonlocal name, data, errors
        if errors:
            yield "error", b"\n".join(errors), at
        if data:
            yield name.decode("utf-8", "replace") or "message", b"\n".join(data), at
        name, data, errors = b"", [], []

    def take() -> None:
        nonlocal name
        if len(line) > limit:
            raise TooLong
        if line[:1] == b":":
            return
        key, colon, value = bytes(line).partition(b":")
        if colon and value[:1] == b" ":
            value = value[1:]
        if key == b"data":
            data.append(value)
        elif key == b"error" and value:
            errors.append(value)
        elif key == b"event":
            name = value
        if key in (b"data", b"error") and sum(len(one) + 1 for one in data + errors) > limit + 1:
            raise TooLong

    for at in range(start, len(body)):
        byte = body[at]
        if byte == LF and after_cr:
            after_cr = False
            continue
        after_cr = byte == CR
        if byte not in (LF, CR):
            line.append(byte)
            continue
        if line:
            take()
            line.clear()
        else:
            yield from ended(at)
    if len(line) > limit:
        raise TooLong
    if closed:
        if line:
            take()
        yield from ended(len(body))


def lines_of(body: bytes, closed: bool, limit: int) -> Iterable[tuple[str, bytes, int]]:
    """The same of a body that has one JSON value a line."""
    at = 0
    while at < len(body) or (closed and at == 0):
        end = body.find(b"\n", at)
        if end < 0 and not closed:
            if len(body) - at > limit:
                raise TooLong
            return
        line = body[at : end if end >= 0 else len(body)]
        if len(line) > limit:
            raise TooLong
        stripped = (line.removeprefix(b"\xef\xbb\xbf") if at == 0 else line).strip()
        end = end if end >= 0 else len(body)
        if stripped:
            yield "message", stripped, end
        at = end + 1


# --- rows → figures ---------------------------------------------------------------------------------------------------


def growth(counts: Sequence[int | None], keys: Sequence[int]) -> list[int | None]:
    """By how much a running count grew since the event before of the same key; None where either is not told. It starts
    at 0, and one that falls has not grown."""
    before: dict[int, int | None] = {}
    grown: list[int | None] = []
    for count, key in zip(counts, keys, strict=True):
        highest = before.get(key, 0)
        if count is None or highest is None:
            grown.append(None)
            before[key] = count
        else:
            grown.append(max(0, count - highest))
            before[key] = max(count, highest)
    return grown


def token_counts(listed: list[Row], ids: list[int | None], total: int | None) -> list[int | None]:
    """The tokens of each listed event, by running usage, else by its ids; None where not known."""
    counts = [row.usage[1] if row.usage and row.choices else None for row in listed]
    together = growth(counts, [0] * len(listed))
    keys = [row.choices[0] if len(row.choices) == 1 else None for row in listed]
    if None not in keys and len(set(keys)) > 1:
        apart = growth(counts, [key or 0 for key in keys])
        if total is not None and sum(n or 0 for n in apart) == total:
            together = apart
    tokens = [own if own is not None else listed_ids for own, listed_ids in zip(together, ids, strict=True)]
    known = sum(n or 0 for n in tokens)
    if known == 0 or (total is not None and known > total):
        return [None] * len(tokens)
    if tokens[0] == 0:
        tokens[0] = None
    return tokens


def reference(
    endpoint: str,
    sent_ns: int,
    reads: Sequence[Read],
    end: tuple[int, bool] | None,
    asked: int | None,
    *,
    usage_asked: bool = True,
    limit: int = 8 << 20,
) -> Figures:
    """`end` is the stamp of the body's end and whether it ended cleanly, None where it was not closed."""
    body = b"".join(one.data for one in reads)
    upto: list[int] = []  # the length of the body after each read
    for one_read in reads:
        upto.append(len(one_read.data) + (upto[-1] if upto else 0))

    rows: list[Row] = []
    too_long = False
    read = 0
    try:
        split = lines_of if endpoint.startswith("ollama") else events_of
        for name, data, at in split(body, end is not None, limit):
            while read < len(reads) - 1 and at >= upto[read]:
                read += 1
            at_close = at == len(body)
            if rows and reads and stamp(reads, rows[-1]) == reads[read].stamp_ns:
                gap = reads[read].stamp_ns - max(reads[read].previous_ns, sent_ns)
                rows[-1].late_ns = max(rows[-1].late_ns, gap)
            if rows and rows[-1].last:
                break
            row = row_of(endpoint, name, data, read)
            if at_close and end is not None and not end[1] and (row.malformed or row.ignored):
                continue  # half an event, because the connection broke
            rows.append(row)
    except TooLong:
        too_long = not (rows and rows[-1].last)

    error = next((row.error for row in rows if row.error), None)
    if error is None and too_long:
        error = ("event_too_long", f"one event of the stream is longer than {limit:,} bytes", None)
    done_ns = next((stamp(reads, row) for row in rows if row.done), None)
    is_done = done_ns is not None
    if done_ns is None and end is not None:
        done_ns = end[0]

    outputs = [row for row in rows if row.output]
    usages = [row.usage for row in rows if row.usage is not None]
    latest: list[int | None] = [None, None, None]
    for one in usages:
        latest = [old if new is None else new for old, new in zip(latest, one, strict=True)]
    prompt, total, cached = latest
    if total == 0 and outputs:
        total = None

    # Listed: the outputs, and from the first of them on whatever may show tokens without text.
    listed: list[Row] = []
    ids: list[int | None] = []
    early = 0
    for row in rows:
        if row.output and not listed and row.ids is not None:
            listed.append(row)
            ids.append(row.ids + early)
        elif row.output or (
            listed and not row.done and ((row.usage and row.choices and row.usage[1] is not None) or row.ids)
        ):
            listed.append(row)
            ids.append(row.ids)
        elif not listed:
            early += row.ids or 0
    tokens = token_counts(listed, ids, total) if listed else []

    gaps: list[int] = []
    kept: list[int | None] = []
    bounded: list[tuple[int, int]] = []
    before_us = 0
    for row, own in zip(listed, tokens, strict=True):
        if row.output or own:
            at_us = (stamp(reads, row) - sent_ns + 500) // 1000
            if row.late_ns > 0:
                bounded.append((len(gaps), (row.late_ns + 999) // 1000))
            gaps.append(at_us - before_us)
            kept.append(own)
            before_us = at_us

    if total is not None:
        count, source = total, "usage"
    elif outputs and all(row.ids is not None for row in outputs):
        count, source = sum(one or 0 for one in ids), "token_ids"
    else:
        count, source = len(outputs), "events"

    finish = next((row.finish for row in rows if row.finish), None)
    choices = {index for row in rows for index in row.choices}
    finished = {index for row in rows for index in row.finished}
    if error:
        outcome = "error"
    elif not is_done and (end is None or finish is None or choices - finished):
        outcome = "incomplete"
        error = ("incomplete", "the stream ended without [DONE] and without a finish reason", None)
    elif not outputs:
        outcome = "empty"
        error = ("empty", "the answer ended as it should but held no output", None)
    else:
        outcome = "ok"

    flags = []
    if outcome == "ok" and asked is not None and count < asked * max(1, len(choices)):
        flags += ["short_output"] * (source != "events" or finish not in ("length", None))  # events are not tokens
    if outcome in ("ok", "empty") and usage_asked and source != "usage":
        flags.append("usage_missing")
    malformed, ignored = sum(row.malformed for row in rows), sum(row.ignored for row in rows)
    flags += ["malformed_events"] * bool(malformed) + ["ignored_events"] * bool(ignored) + ["bounded"] * bool(bounded)

    text, called, room = b"", {}, 2048  # in order of arrival, as far as there is room
    for row in rows:
        said = row.text.encode("utf-8", "replace")[:room]
        text, room = text + said, room - len(said)
        for choice, index, *parts in row.calls:
            if room > 0:
                own = called.setdefault((choice, index), [b"", b""])
                for which, part in enumerate(parts):
                    said = part.encode("utf-8", "replace")
                    if which == 1 or said != own[0]:
                        own[which], room = own[which] + said[:room], room - len(said[:room])
    shown = [text] * bool(text) + [name + b"(" + arguments + b")" for _, (name, arguments) in sorted(called.items())]
    raw = body[: upto[rows[-1].read]] if rows and rows[-1].last else body
    excerpt = b"\n".join(shown)[:2048] or raw[:2048].decode("utf-8", "replace").encode()[:2048]
    return Figures(
        outcome=outcome,
        error=error,
        flags=tuple(flags),
        first_token_ns=stamp(reads, outputs[0]) if outputs else None,
        first_content_ns=next((stamp(reads, row) for row in outputs if row.content), None),
        last_token_ns=stamp(reads, outputs[-1]) if outputs else None,
        done_ns=done_ns,
        input_server=prompt,
        input_cached=cached,
        output_count=count,
        output_source=source,
        first_event_tokens=tokens[0] if tokens else None,
        events=(gaps, kept, bounded),
        finish_reason=finish,
        server_id=next((row.id for row in rows if row.id), None),
        excerpt=None if outcome == "ok" else excerpt.decode("utf-8", "ignore") or None,
        malformed_events=malformed,
        ignored_events=ignored,
        rows=rows,
    )


def stamp(reads: Sequence[Read], row: Row) -> int:
    return reads[row.read].stamp_ns
