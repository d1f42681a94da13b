"""Lines of requests.jsonl → columns, a block of lines at a time and in several processes: what `codec` reads one record
at a time, some ten times faster.

A line that this version wrote has one form. An expression cuts it into its values, still as text; each column of a
block is then read at once, as JSON, and the lists of small integers that make most of a line by NumPy. Whatever has not
this form, or a value of another kind, goes line by line to `codec.decode_record`, which reads every line that can be
read and says what is wrong with the others.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from ..errors import Failure, LogError
from . import cache, codec, forked
from .columns import NULL, ColumnBuilder, Int64, Rows
from .rows import CODES, UNKNOWN, flag_bits

if TYPE_CHECKING:
    from .columns import Columns
    from .opened import Run, Span

BLOCK_LINES = 512
CACHED_LISTS = 64  # of integers, read at a time: so that what is made on the way stays near the processor
SPAN_BYTES = 8 << 20  # of a log, for a process at a time: it takes some eight times as much memory
MOST_PROCESSES = 8

# A number, by what follows it: a comma, a brace, either.
_NUMBER, _LAST, _EITHER = rb"([^,]*)", rb"([^}]*)", rb"([^,}]*)"
_WHOLE = rb"(-?\d+)"
_TEXT = rb'("[^"\\]*"|null)'
_ANY_TEXT = rb'("[^"\\]*(?:\\.[^"\\]*)*"|null)'
_FLAT = rb'(null|\{(?:[^"{}]|"[^"\\]*(?:\\.[^"\\]*)*")*\})'  # an object of texts and numbers
# The line, in its order: the key, what stands before its value, the value, what stands after it.
_FORM: tuple[tuple[str, bytes, bytes, bytes], ...] = (
    ("id", rb'\{"id":', _TEXT, b""),
    ("step", rb',"step":', _NUMBER, b""),
    ("concurrency", rb',"concurrency":', _NUMBER, b""),
    ("phase", rb',"phase":', _TEXT, b""),
    ("worker", rb',"worker":', _NUMBER, b""),
    ("scheduled_ns", rb',"scheduled_ns":', _NUMBER, b""),
    ("sent_ns", rb',"sent_ns":', _NUMBER, b""),
    ("dns_us", rb',"connect":(?:null|\{"dns_us":', _NUMBER, b""),
    ("tcp_us", rb',"tcp_us":', _NUMBER, b""),
    ("tls_us", rb',"tls_us":', _LAST, rb"\})"),
    ("first_byte_ns", rb',"first_byte_ns":', _NUMBER, b""),
    ("first_token_ns", rb',"first_token_ns":', _NUMBER, b""),
    ("first_content_ns", rb',"first_content_ns":', _NUMBER, b""),
    ("last_token_ns", rb',"last_token_ns":', _NUMBER, b""),
    ("done_ns", rb',"done_ns":', _NUMBER, b""),
    ("input_asked", rb',"input_tokens":\{"asked":', _NUMBER, b""),
    ("input_local", rb',"local":', _NUMBER, b""),
    ("input_server", rb',"server":', _NUMBER, b""),
    ("input_cached", rb',"cached":', _LAST, b""),
    ("output_asked", rb'\},"output_tokens":\{"asked":', _NUMBER, b""),
    ("output_count", rb',"count":', _NUMBER, b""),
    ("source", rb',"source":', _TEXT, rb"\}"),
    ("first_event_tokens", rb'(?:,"first_event_tokens":', _NUMBER, rb")?"),
    ("gaps", rb'(?:,"events":\{"gap_us":\[', rb"([^\]]*)", b""),
    ("tokens", rb'\],"tokens":\[', rb"([^\]]*)", b""),
    ("bounded", rb'\],"bounded":', rb'(\[[^"{}]*\])', rb"\})?"),
    ("outcome", rb',"outcome":', _TEXT, b""),
    ("flags", rb',"flags":', rb"(\[[^\[\]{}]*\])", b""),
    ("finish_reason", rb',"finish_reason":', _TEXT, b""),
    ("status", rb',"status":', _NUMBER, b""),
    ("error", rb',"error":', _FLAT, b""),
    ("timeout", rb'(?:,"timeout":', _TEXT, rb")?"),
    ("excerpt", rb'(?:,"excerpt":', _ANY_TEXT, rb")?"),
    ("server_id", rb',"server_id":', _TEXT, b""),
    ("peer", rb',"peer":', _TEXT, b""),
    ("sent_bound_us", rb'(?:,"sent_bound_us":', _EITHER, rb")?"),
    ("model", rb'(?:,"model":', _TEXT, rb")?"),
    ("source_id", rb'(?:,"source_id":', _TEXT, rb")?"),
    ("session", rb'(?:,"session":', _EITHER, rb")?"),
    ("turn", rb'(?:,"turn":', _EITHER, rb")?"),
    ("shared_low", rb'(?:,"shared":\[', _WHOLE, b""),
    ("shared_high", b",", _WHOLE, rb"\])?"),
)
_LINE = re.compile(b"".join(part for _, *parts in _FORM for part in parts) + rb"\}[ \t\r\n]*", re.DOTALL)
_NAMES = tuple(name for name, *_ in _FORM)
_NUMBERS = tuple(name for name, _, value, _ in _FORM if value in (_NUMBER, _LAST, _EITHER, _WHOLE))
_TEXTS = tuple(name for name, _, value, _ in _FORM if value in (_TEXT, _ANY_TEXT))
_REQUIRED = {"id", "step", "concurrency", "phase", "worker", "scheduled_ns", "done_ns", "outcome"}
_LARGE = 1 << 62
# Of numbers of 0 to 8 digits, in eight bytes: the bits of their digits, and the least that needs so many digits.
_DIGITS = np.array([0x0F0F0F0F0F0F0F0F >> 64 - 8 * n << 64 - 8 * n for n in range(9)], dtype=np.uint64)
_LEAST = np.array([0, 0, *(10 ** (n - 1) for n in range(2, 9))], dtype=np.uint64)
_STEPS = (8, 10, 0x00FF00FF00FF00FF), (16, 100, 0x0000FFFF0000FFFF), (32, 10_000, 0x00000000FFFFFFFF)
_ones: dict[int, bytes] = {}

_Column = Sequence[bytes | None]


class _UnlikeError(Exception):
    """A block holds a line that is not as this version writes it."""


_WAY = forked.Way[tuple[ColumnBuilder, int]](lambda part: cache.packed(*part), cache.unpacked)


def read_columns(run: Run) -> Columns:
    """The columns of all records of a run that was opened. Raises LogError as `Run.records` does."""
    return read(run).columns()


def read(run: Run, meanwhile: Callable[[], object] | None = None) -> ColumnBuilder:
    """The same, packed; a long log's are kept beside it for the next time. `meanwhile` is done at some time, where
    there are others to read on."""
    place = cache.place_of(run)
    if place is None:
        return read_log(run)
    folder, before = place
    found = cache.load(folder, before)
    if found is not None:
        builder, truncated = found
        run.truncated_lines = run.truncated_beside + truncated
        return builder
    builder = read_log(run, meanwhile=meanwhile)
    if cache.place_of(run) == place:  # it did not grow meanwhile
        cache.keep(folder, before, builder, run.truncated_lines - run.truncated_beside)
    return builder


def read_log(
    run: Run,
    *,
    span_bytes: int = SPAN_BYTES,
    processes: int | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> ColumnBuilder:
    """The log itself; a long one's spans in several processes."""
    builder = _all_spans(run, span_bytes, processes, meanwhile)
    if run.in_lines:
        run.refuse_repeated(array("q", map(hash, builder.ids)))
    return builder


def _all_spans(
    run: Run, span_bytes: int, processes: int | None, meanwhile: Callable[[], object] | None
) -> ColumnBuilder:
    def part(span: Span) -> tuple[ColumnBuilder, int]:
        return _read(run, span), run.truncated_lines - run.truncated_beside

    spans = run.spans(span_bytes)
    if len(spans) > 1:
        try:
            most = processes or min(forked.usable_cpus(), MOST_PROCESSES)
            parts = forked.each(part, spans, _WAY, most, meanwhile)
        except LogError:
            pass  # its lines are counted from the span's first: the log as a whole says which one it is
        else:
            run.truncated_lines = run.truncated_beside + sum(truncated for _, truncated in parts)
            return ColumnBuilder.joined(builder for builder, _ in parts)
    return _read(run)


def _read(run: Run, span: Span | None = None) -> ColumnBuilder:
    builder = ColumnBuilder()
    for block in run.blocks(BLOCK_LINES, span):
        if block.lines is not None:
            try:
                builder.add_rows(_rows(block.lines))
                continue
            except (_UnlikeError, TypeError, KeyError, OverflowError, ValueError, codec.FaultError):
                pass
        for record in block.records():
            builder.add(record)
    return builder


def _rows(lines: Sequence[bytes]) -> Rows:
    """A block of lines → its rows. Raises _UnlikeError, or what else it comes upon, where codec must look."""
    found = [one.groups() for line in lines if (one := _LINE.fullmatch(line))]
    if len(found) < len(lines):
        raise _UnlikeError
    columns: dict[str, _Column] = dict(zip(_NAMES, zip(*found, strict=True), strict=True))
    texts = {name: _values(columns[name], {str} if name in _REQUIRED else {str, type(None)}) for name in _TEXTS}
    numbers = {name: _numbers(columns[name], required=name in _REQUIRED) for name in _NUMBERS}
    numbers |= {name: _coded(texts[name], CODES[name]) for name in CODES}
    numbers["flags"] = _alike([flag_bits(one) for one in _values(columns["flags"], {list})])
    numbers |= {"choices": _all(1, len(lines)), "retries": _all(0, len(lines))}
    failures = enumerate(_values(columns["error"], {dict, type(None)}))
    errors: dict[int, Failure] = {i: codec.decode_failure(one) for i, one in failures if one is not None}
    n_events, gaps, tokens = _events(columns["gaps"], columns["tokens"])
    return Rows(
        ids=list(texts["id"]),
        errors=errors,
        models=texts["model"],
        peers=texts["peer"],
        numbers=numbers,
        n_events=n_events,
        gaps=gaps,
        tokens=tokens,
        bounds=np.array(list(_bounds(columns["bounded"], n_events)), dtype=np.int64).reshape(-1, 2),
    )


def _values(column: _Column, kinds: Collection[type]) -> list[Any]:
    """The values of a column, each of one of these kinds; what a line leaves out is null."""
    n = len(column)
    alike = column.count(column[0]) == n
    texts = [b"null" if one is None else one for one in (column[:1] if alike else column)]
    found: list[Any] = orjson.loads(b"[" + b",".join(texts) + b"]")
    if len(found) != len(texts) or set(map(type, found)) - set(kinds):
        raise _UnlikeError
    return found * n if alike else found


def _numbers(column: _Column, *, required: bool) -> Int64:
    if column.count(column[0]) == len(column):
        (value,) = _values(column[:1], {int} if required else {int, type(None)})
        return _all(NULL if value is None else value, len(column))
    values = _values(column, {int} if required else {int, type(None)})
    known = values if None not in values else [NULL if value is None else value for value in values]
    return np.array(known, dtype=np.int64)


def _coded(texts: Sequence[str | None], codes: Mapping[str, int]) -> Int64:
    return _alike([UNKNOWN if text is None else codes[text] for text in texts])


def _alike(values: Sequence[int]) -> Int64:
    same = values.count(values[0]) == len(values)
    return _all(values[0], len(values)) if same else np.array(values, dtype=np.int64)


def _all(value: int, n: int) -> Int64:
    return np.broadcast_to(np.int64(value), (n,))


# --- events ---------------------------------------------------------------------------------------------------------


def _events(gaps: _Column, tokens: _Column) -> tuple[Int64, Int64, Int64]:
    """How many events each row has, -1 where none were logged; their gaps, their token counts."""
    sizes = np.array([UNKNOWN if listed is None else 0 for listed in gaps], dtype=np.int64)
    filled = [i for i, listed in enumerate(gaps) if listed]
    if any(counts for listed, counts in zip(gaps, tokens, strict=True) if not listed):
        raise _UnlikeError
    if not filled:
        return sizes, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    found, n = _integers([gaps[i] or b"" for i in filled])
    sizes[filled] = n
    lists = [tokens[i] or b"" for i in filled]
    if all(counts == _all_one(size) for counts, size in zip(lists, n.tolist(), strict=True)):
        return sizes, found, _all(1, len(found))  # as in most logs
    counts, told = _integers([one.replace(b"null", b"-1") for one in lists])
    if (told != n).any():
        raise _UnlikeError
    return sizes, found, counts


def _all_one(n: int) -> bytes:
    if n not in _ones:
        if len(_ones) > 10_000:
            _ones.clear()
        _ones[n] = b",".join([b"1"] * n)
    return _ones[n]


def _integers(lists: Sequence[bytes]) -> tuple[Int64, Int64]:
    """Lists of integers as text, none of them empty → all of them, and how many each list holds."""
    parts = [_digits(lists[i : i + CACHED_LISTS]) for i in range(0, len(lists), CACHED_LISTS)]
    told = [one for one in parts if one is not None]
    if len(told) < len(parts):
        return _any_integers(lists)
    return np.concatenate([values for values, _ in told]), np.concatenate([sizes for _, sizes in told])


def _digits(lists: Sequence[bytes]) -> tuple[Int64, Int64] | None:
    """The same, where all are written in one to eight digits."""
    text = b"," * 8 + b",".join(lists) + b","
    signs = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero(signs - np.uint8(ord("0")) > 9)[7:]
    sizes = np.diff(ends) - 1
    ends = ends[1:]
    if sizes.min() < 1 or sizes.max() > 8 or np.count_nonzero(signs == ord(",")) != len(ends) + 8:
        return None
    # The eight signs before each comma as one number, of which the digits are kept, the first one in the lowest byte;
    # neighbouring digits, then pairs, then fours are put together in all places at once.
    found = np.ndarray(len(text) - 7, dtype="<u8", buffer=text, strides=(1,))[ends - 8].astype(np.uint64, copy=False)
    found &= _DIGITS[sizes]
    for bits, ten, kept in _STEPS:
        found *= np.uint64((ten << bits) + 1)
        found >>= np.uint64(bits)
        found &= np.uint64(kept)
    if (found < _LEAST[sizes]).any():  # a zero before it
        return None
    closed = np.cumsum([len(one) + 1 for one in lists]) + 7  # the comma after each list
    return found.view(np.int64), np.diff(np.searchsorted(ends, closed) + 1, prepend=0)


def _any_integers(lists: Sequence[bytes]) -> tuple[Int64, Int64]:
    """The same, of any length and sign."""
    found = orjson.loads(b"[[" + b"],[".join(lists) + b"]]")
    values = list(chain.from_iterable(found))
    if len(found) != len(lists) or set(map(type, values)) != {int}:
        raise _UnlikeError
    whole = np.array(values, dtype=np.int64)
    if whole.max() >= _LARGE or whole.min() <= -_LARGE:
        raise _UnlikeError
    return whole, np.array([len(one) for one in found], dtype=np.int64)


def _bounds(column: _Column, n_events: Int64) -> Iterator[tuple[int, int]]:
    """The [event, bound] pairs, events counted from the first of all."""
    firsts = np.concatenate(([0], np.cumsum(np.maximum(n_events, 0))))
    for i, listed in enumerate(column):
        if listed is None or listed == b"[]":
            continue
        for index, bound in orjson.loads(listed):
            if type(index) is not int or type(bound) is not int or not 0 <= index < n_events[i]:
                raise _UnlikeError
            yield int(firsts[i]) + index, bound
