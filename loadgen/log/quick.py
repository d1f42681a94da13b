"""Lines of requests.jsonl → columns, a block of lines at a time: what `codec` reads one record at a time, some five
times faster.

Most of a line is its token log, two lists of small integers, and making Python objects of them is most of the work. So
the lists are cut out of the raw line and read by NumPy, a block of lines at once; what is left is read as JSON. The cut
is safe: within a JSON string a quote is escaped, so the keys below cannot stand in a text. Whatever is not exactly as
this version writes it goes line by line to `codec.decode_record`, which reads every line that can be read and says what
is wrong with the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from ..errors import Failure
from . import cache, codec
from .columns import UNKNOWN, ColumnBuilder, Int64, Rows, flag_bits

if TYPE_CHECKING:
    from .columns import Columns
    from .store import Run

BLOCK_LINES = 512
_GAPS, _TOKENS, _BOUNDED = b'"events":{"gap_us":[', b'],"tokens":[', b'],"bounded":'
_NUMBERS = (
    *("step", "concurrency", "worker", "scheduled_ns", "sent_ns", "first_byte_ns", "first_token_ns"),
    *("first_content_ns", "last_token_ns", "done_ns", "status"),
)
_REQUIRED = ("step", "concurrency", "worker", "scheduled_ns", "done_ns")
_TEXTS = itemgetter("id", "phase", "outcome", "flags", "connect", "error", "peer", "server_id", "finish_reason")
_NUMBERS_OF, _CONNECT_OF = itemgetter(*_NUMBERS), itemgetter("dns_us", "tcp_us", "tls_us")
_INPUT_OF, _OUTPUT_OF = itemgetter("asked", "local", "server", "cached"), itemgetter("asked", "count", "source")
_MORE = ("first_event_tokens", "sent_bound_us", "session", "turn", "shared_low", "shared_high")
_INTEGERS = (
    *_NUMBERS,
    *("input_asked", "input_local", "input_server", "input_cached", "output_asked", "output_count"),
    *_MORE,
    *("dns_us", "tcp_us", "tls_us"),
)
_KEYS = {
    *("id", "step", "concurrency", "phase", "worker", "scheduled_ns", "sent_ns", "connect", "first_byte_ns"),
    *("first_token_ns", "first_content_ns", "last_token_ns", "done_ns", "input_tokens", "output_tokens"),
    *("first_event_tokens", "events", "outcome", "flags", "finish_reason", "status", "error", "server_id", "peer"),
    *("timeout", "excerpt", "sent_bound_us", "model", "source_id", "session", "turn", "shared"),
}
_LARGE = 1 << 62
_UNSHARED = (None, None)
_TEXT_OR_NONE = {str, type(None)}
_ones: dict[int, bytes] = {}


class _UnlikeError(Exception):
    """A block holds a line that is not as this version writes it."""


def read_columns(run: Run) -> Columns:
    """The columns of all records of a run that was opened. Raises LogError as `Run.records` does."""
    return read(run).columns()


def read(run: Run) -> ColumnBuilder:
    """The same, packed; a long log's are kept beside it for the next time."""
    place = cache.place_of(run)
    if place is None:
        return _read(run)
    folder, before = place
    found = cache.load(folder, before)
    if found is not None:
        builder, truncated = found
        run.truncated_lines = run.truncated_beside + truncated
        return builder
    builder = _read(run)
    if cache.place_of(run) == place:  # it did not grow meanwhile
        cache.keep(folder, before, builder, run.truncated_lines - run.truncated_beside)
    return builder


def _read(run: Run) -> ColumnBuilder:
    builder = ColumnBuilder()
    for block in run.blocks(BLOCK_LINES):
        if block.lines is not None:
            try:
                builder.add_rows(_rows(block.lines))
                continue
            except (_UnlikeError, TypeError, KeyError, OverflowError):
                pass
        for record in block.records():
            builder.add(record)
    return builder


def _rows(lines: Sequence[bytes]) -> Rows:
    """A block of lines → its rows. Raises _UnlikeError where codec must look."""
    objects, gaps, tokens, sizes = [], [], [], []
    for line in lines:
        at = line.find(_GAPS)
        if at < 0:
            rest, n = line, UNKNOWN
            if b'"events"' in line:
                raise _UnlikeError
        else:
            start = at + len(_GAPS)
            middle = line.find(_TOKENS, start)
            end = line.find(_BOUNDED, middle)
            if middle < 0 or end < 0:
                raise _UnlikeError
            listed, counts = line[start:middle], line[middle + len(_TOKENS) : end]
            rest, n = line[:start] + _TOKENS + line[end:], listed.count(b",") + 1 if listed else 0
            if n:
                gaps.append(listed)
                tokens.append(counts)
            elif counts:
                raise _UnlikeError
        sizes.append(n)
        try:
            objects.append(orjson.loads(rest))
        except orjson.JSONDecodeError as error:
            raise _UnlikeError from error
    n_events = np.array(sizes, dtype=np.int64)
    found = _integers(gaps, int(n_events[n_events > 0].sum()))
    return _gathered(objects, n_events, found, _counts(tokens, sizes))


def _integers(lists: Sequence[bytes], n: int) -> Int64:
    """Lists of integers as text → the n of them."""
    if not lists:
        return np.empty(0, dtype=np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what cannot be read to its end is a warning there
        try:
            found = np.fromstring(b",".join(lists), dtype=np.int64, sep=",")
        except (DeprecationWarning, ValueError, OverflowError) as error:
            raise _UnlikeError from error
    if len(found) != n or found.max() >= _LARGE or found.min() <= -_LARGE:  # too large a number became the largest
        raise _UnlikeError
    return found


def _counts(lists: Sequence[bytes], sizes: Iterable[int]) -> Int64:
    """The token counts; all 1 in most logs, which is told without reading them."""
    n = [size for size in sizes if size > 0]
    for counts, size in zip(lists, n, strict=True):
        if len(counts) != 2 * size - 1 or counts != _all_one(size):
            return _integers([counts.replace(b"null", b"-1") for counts in lists], sum(n))
    return np.broadcast_to(np.int64(1), (sum(n),))


def _all_one(n: int) -> bytes:
    if n not in _ones:
        if len(_ones) > 10_000:
            _ones.clear()
        _ones[n] = b",".join([b"1"] * n)
    return _ones[n]


def _gathered(objects: Sequence[Any], n_events: Int64, gaps: Int64, tokens: Int64) -> Rows:
    """The objects without their lists → rows."""
    whole, texts, inputs, outputs, more, connects = [], [], [], [], [], []
    bounds: list[tuple[int, int]] = []
    errors: dict[int, Failure] = {}
    first = 0
    try:
        for i, obj in enumerate(objects):
            if not obj.keys() <= _KEYS:
                raise _UnlikeError
            whole.append(_NUMBERS_OF(obj))
            told = _TEXTS(obj)
            texts.append(told)
            tokens_in, tokens_out, get = obj["input_tokens"], obj["output_tokens"], obj.get
            if len(tokens_in) != 4 or len(tokens_out) != 3:
                raise _UnlikeError
            inputs.append(_INPUT_OF(tokens_in))
            outputs.append(_OUTPUT_OF(tokens_out))
            low, high = _UNSHARED if (shared := get("shared")) is None else shared
            if (low is None or high is None) and shared is not None:
                raise _UnlikeError
            more.append((get("first_event_tokens"), get("sent_bound_us"), get("session"), get("turn"), low, high))
            connects.append(_CONNECT_OF(told[4]) if told[4] is not None else (None, None, None))
            if told[5] is not None:
                errors[i] = codec.decode_failure(told[5])
            size = int(n_events[i])
            if size >= 0:
                bounds += _bounds(obj["events"], size, first)
                first += max(size, 0)
    except (KeyError, TypeError, ValueError, AttributeError, codec.FaultError) as error:
        raise _UnlikeError from error
    ids, phases, outcomes, flags, _, _, peers, server_ids, reasons = zip(*texts, strict=True)
    models, named, excerpts = ([obj.get(key) for obj in objects] for key in ("model", "source_id", "excerpt"))
    sources, timeouts = [source for _, _, source in outputs], [obj.get("timeout") for obj in objects]
    texts_always = (ids, phases, outcomes)
    texts_or_none = (peers, server_ids, reasons, models, sources, timeouts, named, excerpts)
    if (
        any(set(map(type, column)) != {str} for column in texts_always)
        or set(map(type, flags)) != {list}
        or any(set(map(type, column)) - _TEXT_OR_NONE for column in texts_or_none)
    ):
        raise _UnlikeError
    columns = (*zip(*whole, strict=True), *list(zip(*inputs, strict=True)), *list(zip(*outputs, strict=True))[:2])
    columns = (*columns, *zip(*more, strict=True), *zip(*connects, strict=True))
    integers: dict[str, Sequence[int | None]] = dict(zip(_INTEGERS, columns, strict=True))
    if any(None in integers[name] for name in _REQUIRED):
        raise _UnlikeError
    n = len(objects)
    return Rows(
        ids=list(ids),
        errors=errors,
        phases=phases,
        outcomes=outcomes,
        sources=sources,
        timeouts=timeouts,
        models=models,
        peers=peers,
        integers={**integers, "flags": [flag_bits(one) for one in flags], "choices": [1] * n, "retries": [0] * n},
        n_events=n_events,
        gaps=gaps,
        tokens=tokens,
        bounds=np.array(bounds, dtype=np.int64).reshape(-1, 2),
    )


def _bounds(events: Any, size: int, first: int) -> Iterator[tuple[int, int]]:
    """The [event, bound] pairs of one request, its first event being the `first` of the block."""
    if len(events) != 3:
        raise _UnlikeError
    for index, bound in events["bounded"]:
        if type(index) is not int or type(bound) is not int or not 0 <= index < size:
            raise _UnlikeError
        yield first + index, bound
