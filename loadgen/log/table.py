"""The columns of a log as NumPy arrays: one row per request, the events of all requests flattened beside them.

Integers hold `NULL` where a record holds None, so that stamps keep their nanoseconds; the metrics turn NULL into NaN.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import Failure
from ..records import FLAGS, PHASES
from .packed import Int64, take, take_runs

PART_EVENTS = 1 << 18  # of `Columns.parts`
EVENTS = ("event_ns", "event_tokens", "event_bound_us")  # the columns of events
MANY_RUNS = 4  # rows in a run of them, from which on runs are quicker to take than rows

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
    `sent_bound_us` is how early `sent_ns` may be, NULL where it is exact; `retries`, how often a request was sent
    again; `choices`, its `n`. `model` is an index into `models`, the names in order of their first request, -1 where
    none was asked for; `peer` likewise into `peers`. `session` and `turn` are NULL outside of conversations;
    `shared_low` and `shared_high` are how many of its first tokens a cache could hold, at least and at most, NULL where
    that is not known.
    Arrays are for reading only. `ids` is empty where the builder was told to drop them.
    """

    models: list[str]
    peers: list[str]
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
    model: Int64
    peer: Int64
    input_asked: Int64
    input_local: Int64
    input_server: Int64
    input_cached: Int64
    output_asked: Int64
    output_count: Int64
    first_event_tokens: Int64
    sent_bound_us: Int64
    choices: Int64
    retries: Int64
    session: Int64
    turn: Int64
    shared_low: Int64
    shared_high: Int64
    has_events: Bools
    event_offsets: Int64
    event_ns: Int64
    event_tokens: Int32
    event_bound_us: Int32

    def __len__(self) -> int:
        return len(self.step)

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
        return self if mask.all() else self.at(np.flatnonzero(mask))

    def without(self, steps: Collection[int]) -> Columns:
        """The rows of all other steps."""
        return self.where(~np.isin(self.step, list(steps))) if steps else self

    def parts(self, order: Int64 | None = None, *, events: int = PART_EVENTS) -> Iterator[Columns]:
        """All rows, in the order given or their own, in parts of some `events` events (whole rows): for what would take
        several arrays as long as all events together."""
        order = np.arange(len(self)) if order is None else order
        size = np.cumsum(np.diff(self.event_offsets)[order] + 1)
        total = size[-1] if len(size) else 0
        cuts = np.searchsorted(size, np.arange(events, total, events))
        for rows in np.split(order, cuts):
            if len(rows):
                yield self.at(rows)

    def at(self, rows: Int64) -> Columns:
        """These rows, in this order, with their events. Rows that follow each other are taken together, and a single
        such run shares its memory with this."""
        return Columns(**{**self._rows_at(rows), **self.events_at(rows)})

    def events_at(self, rows: Int64) -> dict[str, NDArray[Any]]:
        """The events of these rows, in this order, by the name of each of `EVENTS`."""
        return events_at({name: getattr(self, name) for name in EVENTS}, self.event_offsets, rows)

    def _rows_at(self, rows: Int64) -> dict[str, Any]:
        """All but the events."""
        counts = np.diff(self.event_offsets)[rows]
        kept: dict[str, Any] = {"event_offsets": np.concatenate(([0], np.cumsum(counts))).astype(np.int64)}
        runs = _runs(rows)
        for field in fields(Columns):
            name = field.name
            if name in EVENTS or name == "event_offsets":
                continue
            values = getattr(self, name)
            if name in ("models", "peers"):
                kept[name] = values
            elif name in ("ids", "errors"):
                (a, b), *more = runs or [(0, 0)]
                kept[name] = [*values[a:b], *(one for a, b in more for one in values[a:b])]
            else:
                kept[name] = take(values, rows) if len(runs) > 1 else take_runs(values, runs)
        return kept


def events_at(events: Mapping[str, NDArray[Any]], offsets: Int64, rows: Int64) -> dict[str, NDArray[Any]]:
    """Of events by row, row i owning those from offsets[i] to offsets[i + 1], the ones of these rows, in this order."""
    runs = _runs(rows)
    if len(runs) <= 1 + len(rows) // MANY_RUNS:
        spans = [(int(offsets[a]), int(offsets[b])) for a, b in runs]
        return {name: take_runs(values, spans) for name, values in events.items()}
    counts = np.diff(offsets)[rows]
    ends = np.cumsum(counts)
    at = np.repeat(offsets[:-1][rows] - (ends - counts), counts) + np.arange(ends[-1])
    return {name: take(values, at) for name, values in events.items()}


def _runs(rows: Int64) -> list[tuple[int, int]]:
    """Rows → [start, end) of those that follow each other, in their order."""
    if not len(rows):
        return []
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    starts, ends = rows[np.concatenate(([0], cuts))], rows[np.concatenate((cuts - 1, [-1]))] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
