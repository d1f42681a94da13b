"""Records → NumPy columns: one row per request, the events of all requests flattened beside them.

Integers hold `NULL` where a record holds None, so that stamps keep their nanoseconds; the metrics turn NULL into NaN.
While records come in, a `ColumnBuilder` keeps them packed: some 30 bytes a request and at most 5 a token.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import Failure
from ..records import FLAGS, OUTCOMES, PHASES, TOKEN_SOURCES, Record, TimeoutKind
from .packed import NULL, Int64, Packed, join, one_for_all, pack, take, take_runs

__all__ = ["NULL", "TIMEOUTS", "UNKNOWN", "Bools", "ColumnBuilder", "Columns", "Int64", "columns"]

INT32_MAX = int(np.iinfo(np.int32).max)
BLOCK_ROWS, BLOCK_EVENTS = 1024, 16384  # what is kept as it came until it is packed
PART_EVENTS = 1 << 18  # of `Columns.parts`
MANY_RUNS = 4  # rows in a run of them, from which on runs are quicker to take than rows
UNKNOWN = -1  # of a code, an event's token count, an event's bound

TIMEOUTS: tuple[str, ...] = get_args(TimeoutKind)

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
        counts = np.diff(self.event_offsets)[rows]
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        runs = _runs(rows)
        few = len(runs) <= 1 + len(rows) // MANY_RUNS
        if few:
            spans = [(int(self.event_offsets[a]), int(self.event_offsets[b])) for a, b in runs]
        else:
            events = np.repeat(self.event_offsets[:-1][rows] - offsets[:-1], counts) + np.arange(offsets[-1])
        kept: dict[str, Any] = {"event_offsets": offsets}
        for field in fields(self):
            name, values = field.name, getattr(self, field.name)
            if name in ("models", "peers"):
                kept[name] = values
            elif name in ("ids", "errors"):
                kept[name] = [one for a, b in runs for one in values[a:b]] if values else []
            elif name in ("event_ns", "event_tokens", "event_bound_us"):
                kept[name] = take_runs(values, spans) if few else take(values, events)
            elif name != "event_offsets":
                kept[name] = take(values, rows) if len(runs) > 1 else take_runs(values, runs)
        return Columns(**kept)


def _runs(rows: Int64) -> list[tuple[int, int]]:
    """Rows → [start, end) of those that follow each other, in their order."""
    if not len(rows):
        return []
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    starts, ends = rows[np.concatenate(([0], cuts))], rows[np.concatenate((cuts - 1, [-1]))] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


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
    *("input_cached", "output_asked", "output_count", "first_event_tokens", "sent_bound_us", "choices"),
    *("retries", "session", "turn", "shared_low", "shared_high"),
)


# A row, flat: these, the parts of the connect time, model and peer, the codes, whether events were logged, how many.
_ROW = (*_INT64_FIELDS, "dns_us", "tcp_us", "tls_us", "model", "peer", *_CODES, "has_events", "events")
_AT = {name: place for place, name in enumerate(_ROW)}
# Stamps are packed as differences from one that is near, or from scheduled_ns where that is NULL.
_NEAR = dict.fromkeys(("sent_ns", "first_byte_ns", "first_token_ns", "last_token_ns"), "scheduled_ns")
_NEAR |= {"first_content_ns": "first_token_ns", "done_ns": "last_token_ns"}


def row_names() -> tuple[str, ...]:
    """The columns of a block's rows, in their order."""
    return _ROW


def columns(records: Iterable[Record]) -> Columns:
    """Read records once, keeping nothing of them but numbers, ids and failures."""
    builder = ColumnBuilder()
    for record in records:
        builder.add(record)
    return builder.columns()


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that are packed, a column for each of `_ROW`; and their events, with (event, bound in µs) pairs for those
    that are bounded."""

    rows: tuple[Packed, ...]
    gaps: Packed | None
    tokens: Packed | None
    bounds: Int64


@dataclass(frozen=True, slots=True)
class Rows:
    """n records as columns of Python values, their events as arrays.

    `integers` holds all whole numbers of a row by name, None for NULL. `n_events` is -1 where no events were logged;
    `bounds` lists (event, bound in µs), events counted from the first row's first."""

    ids: list[str]
    errors: dict[int, Failure]
    phases: Sequence[str]
    outcomes: Sequence[str]
    sources: Sequence[str | None]
    timeouts: Sequence[str | None]
    models: Sequence[str | None]
    peers: Sequence[str | None]
    integers: Mapping[str, Sequence[int | None]]
    n_events: Int64
    gaps: Int64
    tokens: Int64
    bounds: Int64


class ColumnBuilder:
    """Takes records one by one, or many at once, and can be read at any time. `ids=False` drops the ids, which only
    readers need."""

    __slots__ = ("_blocks", "_bounds", "_errors", "_gaps", "_ids", "_models", "_n", "_peers", "_rows", "_tokens")

    def __init__(self, *, ids: bool = True) -> None:
        self._ids: list[str] | None = [] if ids else None
        self._errors: dict[int, Failure] = {}
        self._models: dict[str, int] = {}  # name → code
        self._peers: dict[str, int] = {}
        self._n = 0
        self._blocks: list[Block] = []
        self._rows, self._gaps, self._tokens, self._bounds = array("q"), array("q"), array("q"), array("q")

    def __len__(self) -> int:
        return self._n

    def add(self, r: Record) -> None:
        """Keep the numbers of a record; the record itself is not kept."""
        if self._ids is not None:
            self._ids.append(r.id)
        if r.error is not None:
            self._errors[self._n] = r.error
        parts = (None, None, None) if r.connect is None else (r.connect.dns_us, r.connect.tcp_us, r.connect.tls_us)
        n = 0 if r.events is None else len(r.events.gap_us)
        row = (
            *(NULL if value is None else value for value in (*_ints(r), *parts)),
            UNKNOWN if r.model is None else self._models.setdefault(r.model, len(self._models)),
            UNKNOWN if r.peer is None else self._peers.setdefault(r.peer, len(self._peers)),
            _CODES["phase"][r.phase],
            _CODES["outcome"][r.outcome],
            UNKNOWN if r.output_tokens.source is None else _CODES["source"][r.output_tokens.source],
            UNKNOWN if r.timeout is None else _CODES["timeout"][r.timeout],
            r.events is not None,
            n,
        )
        self._rows.extend(row)
        self._n += 1
        if r.events is not None and n:
            if r.events.bounded:
                first = len(self._gaps)
                self._bounds.extend([x for i, b in r.events.bounded if 0 <= i < n for x in (first + i, b)])
            self._gaps.extend(r.events.gap_us)
            _extend_tokens(self._tokens, r.events.tokens, n)
        if len(self._rows) >= BLOCK_ROWS * len(_ROW) or len(self._gaps) >= BLOCK_EVENTS:
            self._pack()

    def add_rows(self, rows: Rows) -> None:
        """Keep these records. Raises TypeError, KeyError or OverflowError, and keeps none, where a value is not of its
        kind."""
        n = len(rows.ids)
        columns = {name: _whole(values) for name, values in rows.integers.items()}
        coded = ("phase", rows.phases), ("outcome", rows.outcomes), ("source", rows.sources), ("timeout", rows.timeouts)
        for name, values in coded:
            columns[name] = np.array([UNKNOWN if v is None else _CODES[name][v] for v in values], dtype=np.int64)
        models, peers = self._models, self._peers
        columns["model"] = np.array([UNKNOWN if m is None else models.setdefault(m, len(models)) for m in rows.models])
        columns["peer"] = np.array([UNKNOWN if p is None else peers.setdefault(p, len(peers)) for p in rows.peers])
        columns["has_events"], columns["events"] = (rows.n_events >= 0).astype(np.int64), np.maximum(rows.n_events, 0)
        if self._rows:
            self._pack()
        if self._ids is not None:
            self._ids.extend(rows.ids)
        self._errors.update({self._n + place: error for place, error in rows.errors.items()})
        self._n += n
        packed = tuple(pack(columns[name], _reference(name, columns)) for name in _ROW)
        some = len(rows.gaps) > 0
        self._blocks.append(
            Block(
                rows=packed,
                gaps=pack(rows.gaps) if some else None,
                tokens=pack(np.minimum(rows.tokens, INT32_MAX)) if some else None,
                bounds=rows.bounds,
            )
        )

    def snapshot(self) -> ColumnBuilder:
        """The rows so far, for another thread: cheap, and what is added to this one does not show."""
        copy = ColumnBuilder(ids=False)
        copy._ids = None if self._ids is None else list(self._ids)
        copy._errors, copy._n, copy._blocks = dict(self._errors), self._n, list(self._blocks)
        copy._models, copy._peers = dict(self._models), dict(self._peers)
        copy._rows, copy._bounds = self._rows[:], self._bounds[:]
        copy._gaps, copy._tokens = self._gaps[:], self._tokens[:]
        return copy

    def columns(self, *, events: bool = True) -> Columns:
        """The columns of all rows; without `events` as if none had been logged."""
        return self._assembled(range(len(self._all())), events)

    def of_step(self, step: int) -> Columns:
        """The columns of one step's rows: what a whole run's events would take need not be in memory at once."""
        at = _AT["step"]
        mine = [i for i, block in enumerate(self._all()) if _holds(block.rows[at], step)]
        found = self._assembled(mine, events=True)
        return found.where(found.step == step)

    def steps(self) -> list[int]:
        """As `Columns.steps`."""
        return self.columns(events=False).steps()

    def packed(self) -> tuple[list[Block], list[str], dict[int, Failure], list[str], list[str]]:
        """What it holds, to be kept elsewhere: blocks, ids, errors by row, models, peers."""
        return self._all(), self._ids or [], self._errors, list(self._models), list(self._peers)

    @classmethod
    def of(
        cls, blocks: list[Block], ids: list[str], errors: dict[int, Failure], models: list[str], peers: list[str]
    ) -> ColumnBuilder:
        """The other way round."""
        found = cls()
        found._blocks, found._ids, found._errors = list(blocks), list(ids), dict(errors)
        found._n = sum(block.rows[0].n for block in blocks)
        found._models = {name: i for i, name in enumerate(models)}
        found._peers = {name: i for i, name in enumerate(peers)}
        return found

    def _all(self) -> list[Block]:
        return [*self._blocks, self._packed()] if self._rows else self._blocks

    def _assembled(self, places: Sequence[int], events: bool) -> Columns:
        """The rows of the blocks at these places."""
        every = self._all()
        starts = np.concatenate(([0], np.cumsum([block.rows[0].n for block in every]))).astype(int).tolist()
        blocks = [every[i] for i in places]
        spans = [(starts[i], starts[i + 1]) for i in places]
        rows: dict[str, Any] = {}
        for name, at in _AT.items():
            rows[name] = join([block.rows[at] for block in blocks], _reference(name, rows))
        n = sum(end - start for start, end in spans)
        if not events:
            rows["has_events"] = rows["events"] = np.zeros(n, dtype=np.int64)
        offsets = np.concatenate(([0], np.cumsum(rows.pop("events")))).astype(np.int64)
        failed = self._errors.get
        return Columns(
            models=list(self._models),
            peers=list(self._peers),
            ids=[one for start, end in spans for one in self._ids[start:end]] if self._ids is not None else [],
            errors=[failed(row) for start, end in spans for row in range(start, end)],
            connect_us=_side_by_side([rows.pop(name) for name in ("dns_us", "tcp_us", "tls_us")]),
            has_events=rows.pop("has_events") != 0,
            event_offsets=offsets,
            **_events(blocks if events else [], rows["scheduled_ns"], rows["sent_ns"], offsets),
            **{name: values.astype(np.int8) if name in _CODES else values for name, values in rows.items()},
        )

    def _pack(self) -> None:
        self._blocks.append(self._packed())
        self._rows, self._gaps, self._tokens, self._bounds = array("q"), array("q"), array("q"), array("q")

    def _packed(self) -> Block:
        """What came since the last block."""
        rows = dict(zip(_ROW, np.ascontiguousarray(_int64(self._rows).reshape(-1, len(_ROW)).T), strict=True))
        return Block(
            rows=tuple(pack(values, _reference(name, rows)) for name, values in rows.items()),
            gaps=pack(_int64(self._gaps)) if self._gaps else None,
            tokens=pack(np.minimum(_int64(self._tokens), INT32_MAX)) if self._gaps else None,
            bounds=_int64(self._bounds).reshape(-1, 2),
        )


def _holds(column: Packed, value: int) -> bool:
    return column.base == value if column.codes is None else bool((join([column]) == value).any())


def _reference(name: str, rows: Mapping[str, Int64]) -> Int64 | None:
    """What this column's values are packed as differences from; None: packed as they are."""
    if name not in _NEAR:
        return None
    near = rows[_NEAR[name]]
    return near if _NEAR[name] == "scheduled_ns" else np.where(near == NULL, rows["scheduled_ns"], near)


def _events(blocks: list[Block], scheduled_ns: Int64, sent_ns: Int64, offsets: Int64) -> dict[str, Any]:
    """The events of all blocks, the stamps block by block, so that only what is returned takes room."""
    stamps = np.empty(offsets[-1], dtype=np.int64)
    tokens = join([block.tokens for block in blocks if block.tokens is not None])
    bounds: list[Int64] = []
    row = 0
    for block in blocks:
        rows = slice(row, row + block.rows[0].n)
        starts = offsets[row : rows.stop + 1]
        row = rows.stop
        if block.gaps is None:
            continue
        # An event's stamp is its request's sent_ns plus the running sum of the gaps since that request's first event.
        running = np.concatenate(([0], np.cumsum(join([block.gaps]) * 1000))).astype(np.int64)
        sent, scheduled = sent_ns[rows], scheduled_ns[rows]
        origin = np.where(sent == NULL, scheduled, sent) - running[starts[:-1] - starts[0]]
        stamps[starts[0] : starts[-1]] = np.repeat(origin, np.diff(starts)) + running[1:]
        if len(block.bounds):
            bounds.append(block.bounds + np.array([starts[0], 0]))
    bound_us = np.broadcast_to(np.int32(UNKNOWN), (len(stamps),))
    if bounds:
        pairs = np.concatenate(bounds)
        bound_us = np.full(len(stamps), UNKNOWN, dtype=np.int32)
        bound_us[pairs[:, 0]] = np.minimum(pairs[:, 1], INT32_MAX)
    one = one_for_all(tokens)
    counts = np.broadcast_to(np.int32(tokens[0]), (len(tokens),)) if one else tokens.astype(np.int32)
    return {"event_ns": stamps, "event_tokens": counts, "event_bound_us": bound_us}


def _side_by_side(parts: list[Int64]) -> Int64:
    if all(one_for_all(part) for part in parts):
        return np.broadcast_to(np.array([part[0] for part in parts]), (len(parts[0]), len(parts)))
    return np.stack(parts, axis=1)


def flag_bits(flags: Sequence[str]) -> int:
    """Flags by name → bit i for records.FLAGS[i]; a newer version's are not known here."""
    bits = 0
    for flag in flags:
        bits |= _FLAG_BITS.get(flag, 0)
    return bits


def _whole(values: Sequence[int | None]) -> Int64:
    kinds = set(map(type, values))
    if kinds == {int}:
        return np.array(values, dtype=np.int64)
    if kinds == {type(None)}:
        return np.full(len(values), NULL)
    if kinds != {int, type(None)}:
        raise TypeError("not whole numbers")
    return np.array([NULL if value is None else value for value in values], dtype=np.int64)


def _ints(r: Record) -> tuple[int | None, ...]:
    """The values of _INT64_FIELDS, in that order."""
    return (
        r.step,
        r.concurrency,
        r.worker,
        flag_bits(r.flags),
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
        r.sent_bound_us,
        r.output_tokens.choices,
        max(0, len(r.attempts) - 1),
        r.session,
        r.turn,
        *(r.shared or (None, None)),
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
