"""Records → NumPy columns: one row per request, the events of all requests flattened beside them.

Integers hold `NULL` where a record holds None, so that stamps keep their nanoseconds; the metrics turn NULL into NaN.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import Failure
from ..records import FLAGS, OUTCOMES, PHASES, TOKEN_SOURCES, Record, TimeoutKind

NULL = int(np.iinfo(np.int64).min)
UNKNOWN = -1  # of a code, an event's token count, an event's bound

TIMEOUTS: tuple[str, ...] = get_args(TimeoutKind)

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Int8 = NDArray[np.int8]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Columns:
    """n requests as arrays of shape (n,), and their m output events as arrays of shape (m,).

    `*_ns` are int64 on the run's clock; token counts int64; NULL is not known. `phase`, `outcome`, `source`, `timeout`
    are indices into records.PHASES, OUTCOMES, TOKEN_SOURCES and TIMEOUTS, -1 for none. Bit i of `flags` is
    records.FLAGS[i]. `connect_us` has shape (n, 3): name look-up, TCP, TLS. Row i owns the events
    event_offsets[i]:event_offsets[i + 1]; `has_events` is False where none were logged, which is not the same as none
    having come. `event_tokens` is -1 where unknown; `event_bound_us`, how late an event's stamp may be, where exact.
    """

    ids: list[str]
    errors: list[Failure | None]
    step: Int64
    concurrency: Int64
    worker: Int64
    phase: Int8
    outcome: Int8
    source: Int8
    timeout: Int8
    flags: Int64
    status: Int64
    scheduled_ns: Int64
    sent_ns: Int64
    first_byte_ns: Int64
    first_token_ns: Int64
    first_content_ns: Int64
    last_token_ns: Int64
    done_ns: Int64
    connect_us: Int64
    input_asked: Int64
    input_local: Int64
    input_server: Int64
    input_cached: Int64
    output_asked: Int64
    output_count: Int64
    first_event_tokens: Int64
    has_events: Bools
    event_offsets: Int64
    event_ns: Int64
    event_tokens: Int32
    event_bound_us: Int32

    def __len__(self) -> int:
        return len(self.ids)

    def steps(self) -> list[int]:
        """The steps that hold any request besides preflight's, ascending."""
        return [int(s) for s in np.unique(self.step[self.phase != PHASES.index("preflight")])]

    def flag(self, name: str) -> Bools:
        """Which requests carry this flag."""
        return np.asarray(self.flags >> FLAGS.index(name) & 1, dtype=np.bool_)

    def event_rows(self) -> Int64:
        """For each event the row it belongs to; shape (m,)."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.event_offsets))

    def where(self, mask: Bools) -> Columns:
        """The rows where the mask of shape (n,) is true, in their order, with their events."""
        rows = np.flatnonzero(mask)
        counts = np.diff(self.event_offsets)[rows]
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        take = np.repeat(self.event_offsets[:-1][rows] - offsets[:-1], counts) + np.arange(offsets[-1])
        kept: dict[str, Any] = {"event_offsets": offsets}
        for field in fields(self):
            name, values = field.name, getattr(self, field.name)
            if name in ("ids", "errors"):
                kept[name] = [values[i] for i in rows]
            elif name in ("event_ns", "event_tokens", "event_bound_us"):
                kept[name] = values[take]
            elif name != "event_offsets":
                kept[name] = values[rows]
        return Columns(**kept)


_CODES: dict[str, dict[str, int]] = {
    "phase": {name: i for i, name in enumerate(PHASES)},
    "outcome": {name: i for i, name in enumerate(OUTCOMES)},
    "source": {name: i for i, name in enumerate(TOKEN_SOURCES)},
    "timeout": {name: i for i, name in enumerate(TIMEOUTS)},
}
_FLAG_BITS = {name: 1 << i for i, name in enumerate(FLAGS)}
_INT64_FIELDS = (
    *("step", "concurrency", "worker", "flags", "status", "scheduled_ns", "sent_ns", "first_byte_ns"),
    *("first_token_ns", "first_content_ns", "last_token_ns", "done_ns", "input_asked", "input_local", "input_server"),
    *("input_cached", "output_asked", "output_count", "first_event_tokens"),
)


def columns(records: Iterable[Record]) -> Columns:
    """Read records once, keeping nothing of them but numbers, ids and failures."""
    ids: list[str] = []
    errors: list[Failure | None] = []
    ints = {name: array("q") for name in _INT64_FIELDS}
    codes = {name: array("b") for name in _CODES}
    connect, counts = array("q"), array("q")
    gaps, tokens, bounds = array("q"), array("i"), array("q")  # bounds: flat (event, bound) pairs
    has_events = array("b")
    for r in records:
        ids.append(r.id)
        errors.append(r.error)
        for name, value in zip(_INT64_FIELDS, _ints(r), strict=True):
            ints[name].append(NULL if value is None else value)
        codes["phase"].append(_CODES["phase"][r.phase])
        codes["outcome"].append(_CODES["outcome"][r.outcome])
        codes["source"].append(UNKNOWN if r.output_tokens.source is None else _CODES["source"][r.output_tokens.source])
        codes["timeout"].append(UNKNOWN if r.timeout is None else _CODES["timeout"][r.timeout])
        parts = (None, None, None) if r.connect is None else (r.connect.dns_us, r.connect.tcp_us, r.connect.tls_us)
        connect.extend([NULL if part is None else part for part in parts])
        has_events.append(r.events is not None)
        if r.events is None:
            counts.append(0)
            continue
        n = len(r.events.gap_us)
        bounds.extend([x for i, b in r.events.bounded if 0 <= i < n for x in (len(gaps) + i, b)])
        counts.append(n)
        gaps.extend(r.events.gap_us)
        _extend_tokens(tokens, r.events.tokens, n)

    int64: dict[str, Any] = {name: _int64(values) for name, values in ints.items()}
    offsets = np.concatenate(([0], np.cumsum(_int64(counts)))).astype(np.int64)
    # An event's stamp is its request's sent_ns plus the running sum of the gaps since that request's first event.
    running = np.concatenate(([0], np.cumsum(_int64(gaps) * 1000))).astype(np.int64)
    origin = np.where(int64["sent_ns"] == NULL, int64["scheduled_ns"], int64["sent_ns"]) - running[offsets[:-1]]
    bound_us = np.full(len(gaps), UNKNOWN, dtype=np.int32)
    pairs = _int64(bounds).reshape(-1, 2)
    bound_us[pairs[:, 0]] = np.minimum(pairs[:, 1], np.iinfo(np.int32).max)
    int8: dict[str, Any] = {name: np.frombuffer(values.tobytes(), dtype=np.int8) for name, values in codes.items()}
    return Columns(
        ids=ids,
        errors=errors,
        **int64,
        **int8,
        connect_us=_int64(connect).reshape(-1, 3),
        has_events=np.frombuffer(has_events.tobytes(), dtype=np.int8) != 0,
        event_offsets=offsets,
        event_ns=np.repeat(origin, np.diff(offsets)) + running[1:],
        event_tokens=np.frombuffer(tokens.tobytes(), dtype=np.int32),
        event_bound_us=bound_us,
    )


def _ints(r: Record) -> tuple[int | None, ...]:
    """The values of _INT64_FIELDS, in that order."""
    flags = 0
    for flag in r.flags:
        flags |= _FLAG_BITS[flag]
    return (
        r.step,
        r.concurrency,
        r.worker,
        flags,
        r.status,
        r.scheduled_ns,
        r.sent_ns,
        r.first_byte_ns,
        r.first_token_ns,
        r.first_content_ns,
        r.last_token_ns,
        r.done_ns,
        r.input_tokens.asked,
        r.input_tokens.local,
        r.input_tokens.server,
        r.input_tokens.cached,
        r.output_tokens.asked,
        r.output_tokens.count,
        r.first_event_tokens,
    )


def _extend_tokens(tokens: array[int], counts: list[int | None], n: int) -> None:
    """Append n counts; None, and what a damaged line lacks, is unknown."""
    if len(counts) != n:
        counts = (counts + [None] * n)[:n]
    if None in counts:
        tokens.extend([UNKNOWN if c is None else c for c in counts])
    else:
        tokens.extend(counts)  # type: ignore[arg-type]  # no None is left


def _int64(values: array[int]) -> Int64:
    return np.frombuffer(values.tobytes(), dtype=np.int64)
