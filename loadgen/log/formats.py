"""Records as CSV, out and in, and as JSON lines out. Pure over open text files.

The CSV's first six columns are request_id, start_ts, first_token_ts, end_ts, input_tokens, output_tokens: seconds from
the run's start with all nine decimals of the stamps, so that a script of ten lines gets the figures this program gets.
The reader takes those six from anyone, in any order, and refuses what cannot have been measured.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, BinaryIO, TextIO, cast, get_args

from ..errors import Failure, FailureKind, LogError
from ..records import FAILED_OUTCOMES, FLAGS, OUTCOMES, PHASES, TOKEN_SOURCES, InputTokens, OutputTokens, Record
from . import codec

REQUIRED = ("request_id", "start_ts", "first_token_ts", "end_ts", "input_tokens", "output_tokens")
COLUMNS = (
    *REQUIRED,
    *("step", "concurrency", "phase", "outcome", "first_event_tokens", "scheduled_ts", "done_ts"),
    *("status", "finish_reason", "token_source", "input_asked", "output_asked", "cached_tokens"),
    *("ttft_ms", "tpot_ms", "e2e_ms", "error", "flags", "peer", "model", "source_id", "session", "turn"),
)
_REMEDY = (
    f"the columns are {', '.join(REQUIRED)}: times in seconds, start <= first token <= end, at least 1 output token"
)
_FORMULA = re.compile(r"'*[=+\-@\t]")
_BREAKS = re.compile(r"[\r\n\0]+")
_FAILURE_KINDS: tuple[str, ...] = get_args(FailureKind)


def selected(records: Iterable[Record], *, everything: bool) -> Iterator[Record]:
    """What an export holds: the ok requests of the measured phase, or every record."""
    return (r for r in records if everything or (r.phase == "measured" and r.outcome == "ok"))


# --- out ------------------------------------------------------------------------------------------------------------


def write_csv(records: Iterable[Record], out: TextIO, *, everything: bool = False) -> int:
    """Write the CSV; → the number of rows. `out` must be opened with newline=""."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    count = 0
    for record in selected(records, everything=everything):
        writer.writerow(_row(record))
        count += 1
    return count


def write_jsonl(records: Iterable[Record], out: BinaryIO, *, everything: bool = False) -> int:
    """Write the records as they are in the log, one line each; → the number of lines."""
    count = 0
    for record in selected(records, everything=everything):
        out.write(codec.encode_record(record))
        count += 1
    return count


def _row(record: Record) -> list[str | int | None]:
    tokens_in, tokens_out, error = record.input_tokens, record.output_tokens, record.error
    return [
        safe_cell(record.id),
        seconds(record.sent_ns),
        seconds(record.first_token_ns),
        seconds(record.last_token_ns),
        next((n for n in (tokens_in.server, tokens_in.local, tokens_in.asked) if n is not None), None),
        tokens_out.count,
        record.step,
        record.concurrency,
        record.phase,
        record.outcome,
        record.first_event_tokens,
        seconds(record.scheduled_ns),
        seconds(record.done_ns),
        record.status,
        safe_cell(record.finish_reason),
        tokens_out.source,
        tokens_in.asked,
        tokens_out.asked,
        tokens_in.cached,
        _span_ms(record.sent_ns, record.first_token_ns),
        _tpot_ms(record),
        _span_ms(record.sent_ns, record.last_token_ns),
        safe_cell(f"{error.kind}: {error.message}" if error else None),
        " ".join(record.flags),
        safe_cell(record.peer),
        safe_cell(record.model),
        safe_cell(record.source_id),
        record.session,
        record.turn,
    ]


def seconds(ns: int | None) -> str | None:
    """Nanoseconds as decimal seconds, exactly: a float would lose digits an epoch time needs."""
    if ns is None:
        return None
    whole, part = divmod(abs(ns), 1_000_000_000)
    return f"{'-' if ns < 0 else ''}{whole}.{part:09d}"


def _span_ms(start: int | None, end: int | None) -> str | None:
    return None if start is None or end is None else f"{(end - start) / 1e6:.6f}"


def _tpot_ms(record: Record) -> str | None:
    """`tpot`: (last_token_at - first_token_at) / (output_tokens - first_event_tokens), null when that is below 1."""
    count, first, last = record.output_tokens.count, record.first_token_ns, record.last_token_ns
    if count is None or first is None or last is None or count - (record.first_event_tokens or 1) < 1:
        return None
    return f"{(last - first) / 1e6 / (count - (record.first_event_tokens or 1)):.6f}"


def safe_cell(text: str | None) -> str | None:
    """Text on one line that no spreadsheet takes for a formula: what starts like one gets an apostrophe, which the
    reader takes off again. So does text that starts with apostrophes before such a character: else two become one."""
    if not text:
        return text
    text = _BREAKS.sub(" ", text).strip(" ")  # the csv module would leave a lone CR unquoted
    return "'" + text if _FORMULA.match(text) else text


def _plain_cell(text: str) -> str:
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


# --- in -------------------------------------------------------------------------------------------------------------


class _RowFaultError(Exception):
    """What is wrong with a row, without which row it is."""


def read_csv(file: TextIO, source: str) -> list[Record]:
    """A CSV with at least the six columns → records, in its order. `file` must be opened with newline="".

    Raises LogError, naming row, line and request, for: a missing column, no rows, a duplicate id, times or counts that
    are no finite numbers, first token before start, end before first token, fewer than one output token. A row whose
    `outcome` says that it failed may leave out what it has not got."""
    try:
        rows = _rows(file, source)
        records: list[Record] = []
        seen: dict[str, int] = {}
        for number, (line, cells) in enumerate(rows, 1):
            name = _plain_cell(cells["request_id"])
            where = f"{source} row {number} (line {line}), request {name!r}"
            try:
                if name in seen:
                    raise _RowFaultError(f"its id is already that of row {seen[name]}")
                records.append(_record(name, cells))
            except _RowFaultError as error:
                raise LogError(f"{where}: {error}", _REMEDY) from error
            seen[name] = number
    except UnicodeDecodeError as error:
        raise LogError(f"{source} is not UTF-8 text ({error.reason})", "save it as CSV UTF-8") from error
    except csv.Error as error:
        raise LogError(f"{source} is not a CSV: {error}", "save it as CSV UTF-8, comma separated") from error
    if not records:
        raise LogError(
            f"{source} has a header but no rows", "export with --all to see the requests that failed as well"
        )
    return records


def _rows(file: TextIO, source: str) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number of the row's end, column → cell) of every row that is not blank."""
    first = file.readline()
    while first and not first.strip():
        first = file.readline()
    if not first:
        raise LogError(f"{source} is empty", _REMEDY)
    delimiter = max(",;\t", key=first.count)
    header = [name.strip().lower() for name in next(csv.reader([first], delimiter=delimiter))]
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise LogError(
            f"{source} lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; "
            f"its first line has: {', '.join(header)[:200]}",
            _REMEDY,
        )
    double = next((name for name in (*REQUIRED, *COLUMNS) if header.count(name) > 1), None)
    if double:
        raise LogError(f"{source} has the column {double} twice", "keep one of them")
    reader = csv.reader(file, delimiter=delimiter)
    for row in reader:
        if not any(cell.strip() for cell in row):
            continue
        if len(row) < len(header):
            row += [""] * (len(header) - len(row))
        yield reader.line_num + 1, {name: cell.strip() for name, cell in zip(header, row, strict=False)}


def _record(name: str, cells: Mapping[str, str]) -> Record:
    if not name:
        raise _RowFaultError("request_id is empty")
    outcome = _one_of(cells, "outcome", OUTCOMES) or "ok"
    flags = tuple(flag for flag in cells.get("flags", "").split() if flag in FLAGS)
    whole = outcome == "ok" and "not_streamed" not in flags
    sent, first, last = (_nanoseconds(cells, key) for key in ("start_ts", "first_token_ts", "end_ts"))
    output = _count(cells, "output_tokens")
    if outcome == "ok":
        _need(sent, "start_ts")
        _need(output, "output_tokens")
    if whole:
        _need(first, "first_token_ts")
        _need(last, "end_ts")
    if output is not None and output < 1 and outcome == "ok":
        raise _RowFaultError(f"output_tokens is {output}, an answer has at least 1")
    for early, late, before, after in (
        (sent, first, "start_ts", "first_token_ts"),
        (first, last, "first_token_ts", "end_ts"),
        (sent, last, "start_ts", "end_ts"),
    ):
        if early is not None and late is not None and late < early:
            raise _RowFaultError(f"{after} {cells[after]} is before {before} {cells[before]}")
    scheduled, done = _nanoseconds(cells, "scheduled_ts"), _nanoseconds(cells, "done_ts")
    stamps = [stamp for stamp in (last, first, sent, scheduled) if stamp is not None]
    if not stamps and done is None:
        raise _RowFaultError("it has no time at all")
    if done is not None and stamps and done < max(stamps):
        raise _RowFaultError(f"done_ts {cells['done_ts']} is before another of its times")
    error = _plain_cell(cells.get("error", ""))
    return Record(
        id=name,
        step=_default(_count(cells, "step"), 1),
        concurrency=_default(_count(cells, "concurrency"), 0),  # 0: not told
        phase=cast(Any, _one_of(cells, "phase", PHASES) or "measured"),
        worker=0,
        scheduled_ns=_default(scheduled, stamps[-1] if stamps else cast(int, done)),
        sent_ns=sent,
        connect=None,
        first_byte_ns=None,
        first_token_ns=first,
        first_content_ns=None,
        last_token_ns=last,
        done_ns=_default(done, max(stamps, default=0)),
        input_tokens=InputTokens(
            asked=_count(cells, "input_asked"),
            server=_count(cells, "input_tokens"),
            cached=_count(cells, "cached_tokens"),
        ),
        output_tokens=OutputTokens(
            asked=_count(cells, "output_asked"),
            count=output,
            source=cast(Any, _one_of(cells, "token_source", TOKEN_SOURCES)),
        ),
        first_event_tokens=_count(cells, "first_event_tokens"),
        events=None,
        outcome=cast(Any, outcome),
        flags=cast(Any, flags),
        finish_reason=_plain_cell(cells.get("finish_reason", "")) or None,
        status=_count(cells, "status"),
        error=_failure(error, outcome),
        peer=_plain_cell(cells.get("peer", "")) or None,
        model=_plain_cell(cells.get("model", "")) or None,
        source_id=_plain_cell(cells.get("source_id", "")) or None,
        session=_count(cells, "session"),
        turn=_count(cells, "turn"),
    )


def _failure(text: str, outcome: str) -> Failure | None:
    kind, colon, message = text.partition(": ")
    if text and colon and kind in _FAILURE_KINDS:
        return Failure(cast(Any, kind), message)
    if text:
        return Failure("server", text)
    return Failure("server", "not told") if outcome in FAILED_OUTCOMES and outcome != "timeout" else None


def _number(cells: Mapping[str, str], key: str) -> Decimal | None:
    text = cells.get(key, "")
    if not text:
        return None
    try:
        value = Decimal(text)
        if "_" in text:
            raise InvalidOperation
    except InvalidOperation:
        hint = " (decimal comma? use a point)" if re.fullmatch(r"-?\d+,\d+", text) else ""
        raise _RowFaultError(f"{key} is {text[:40]!r}, not a number{hint}") from None
    if not value.is_finite():
        raise _RowFaultError(f"{key} is {text[:40]}, not a finite number")
    if value and value.adjusted() > 17:
        raise _RowFaultError(f"{key} is {text[:40]}, which is out of range")
    return value


def _nanoseconds(cells: Mapping[str, str], key: str) -> int | None:
    value = _number(cells, key)
    if value is None:
        return None
    ns = int((value * 1_000_000_000).to_integral_value())
    if abs(ns) >= 2**63:
        raise _RowFaultError(f"{key} is {cells[key][:40]}, which is out of range: times are in seconds")
    return ns


def _count(cells: Mapping[str, str], key: str) -> int | None:
    value = _number(cells, key)
    if value is None:
        return None
    if value != value.to_integral_value():  # 80.0 is how pandas writes an integer column with a hole
        raise _RowFaultError(f"{key} is {cells[key][:40]}, not a whole number")
    if value < 0:
        raise _RowFaultError(f"{key} is {cells[key][:40]}, below zero")
    if value >= 2**63:
        raise _RowFaultError(f"{key} is {cells[key][:40]}, which is out of range")
    return int(value)


def _one_of(cells: Mapping[str, str], key: str, allowed: Sequence[str]) -> str | None:
    text = cells.get(key, "").lower()
    if text and text not in allowed:
        raise _RowFaultError(f"{key} is {text[:40]!r}, not one of {', '.join(allowed)}")
    return text or None


def _need(value: int | None, key: str) -> None:
    if value is None:
        raise _RowFaultError(f"{key} is empty")


def _default(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value
