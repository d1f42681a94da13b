"""Records → columns (`table.Columns`).

While records come in, a `ColumnBuilder` keeps them packed: some 30 bytes a request and at most 5 a token.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ..errors import Failure
from ..records import Record
from .deferred import Deferred, Packing
from .packed import NULL, Int64, Packed, join, one_for_all, pack, unpack
from .rows import AT, CODES, ROW, TIMEOUTS, UNKNOWN, numbers_of, reference
from .table import EVENTS, Bools, Columns

__all__ = ["NULL", "TIMEOUTS", "UNKNOWN", "Bools", "ColumnBuilder", "Columns", "Int64", "columns"]

INT32_MAX = int(np.iinfo(np.int32).max)
BLOCK_ROWS, BLOCK_EVENTS = 1024, 16384  # what is kept as it came until it is packed
MOST_EVENTS = 16_000_000  # that are unpacked at once: 130 MB and more


def columns(records: Iterable[Record]) -> Columns:
    """Read records once, keeping nothing of them but numbers, ids and failures."""
    builder = ColumnBuilder()
    for record in records:
        builder.add(record)
    return builder.columns()


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that are packed, a column for each of `rows.ROW`; and their events, with (event, bound in µs) pairs for
    those that are bounded."""

    rows: tuple[Packed, ...]
    gaps: Packed | None
    tokens: Packed | None
    bounds: Int64


@dataclass(frozen=True, slots=True)
class Rows:
    """n records as columns, their events as arrays.

    `numbers` holds all whole numbers and codes of a row by name, NULL where there is none, but those of model and peer,
    which are given by name. `n_events` is -1 where no events were logged; `bounds` lists (event, bound in µs), events
    counted from the first row's first."""

    ids: list[str]
    errors: dict[int, Failure]
    models: Sequence[str | None]
    peers: Sequence[str | None]
    numbers: Mapping[str, Int64]
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

    @property
    def ids(self) -> Sequence[str]:
        """Of all rows, in their order; none where they are dropped."""
        return self._ids or ()

    def add(self, r: Record) -> None:
        """Keep the numbers of a record; the record itself is not kept."""
        if self._ids is not None:
            self._ids.append(r.id)
        if r.error is not None:
            self._errors[self._n] = r.error
        parts = (None, None, None) if r.connect is None else (r.connect.dns_us, r.connect.tcp_us, r.connect.tls_us)
        n = 0 if r.events is None else len(r.events.gap_us)
        row = (
            *(NULL if value is None else value for value in (*numbers_of(r), *parts)),
            UNKNOWN if r.model is None else self._models.setdefault(r.model, len(self._models)),
            UNKNOWN if r.peer is None else self._peers.setdefault(r.peer, len(self._peers)),
            CODES["phase"][r.phase],
            CODES["outcome"][r.outcome],
            UNKNOWN if r.output_tokens.source is None else CODES["source"][r.output_tokens.source],
            UNKNOWN if r.timeout is None else CODES["timeout"][r.timeout],
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
        if len(self._rows) >= BLOCK_ROWS * len(ROW) or len(self._gaps) >= BLOCK_EVENTS:
            self._pack()

    def add_rows(self, rows: Rows) -> None:
        """Keep these records."""
        columns = dict(rows.numbers)
        columns["model"], columns["peer"] = _named(rows.models, self._models), _named(rows.peers, self._peers)
        columns["has_events"], columns["events"] = (rows.n_events >= 0).astype(np.int64), np.maximum(rows.n_events, 0)
        some = len(rows.gaps) > 0
        block = Block(
            rows=tuple(pack(columns[name], reference(name, columns)) for name in ROW),
            gaps=pack(rows.gaps) if some else None,
            tokens=pack(np.minimum(rows.tokens, INT32_MAX)) if some else None,
            bounds=rows.bounds,
        )
        if self._rows:
            self._pack()
        if self._ids is not None:
            self._ids.extend(rows.ids)
        self._errors.update({self._n + place: error for place, error in rows.errors.items()})
        self._n += len(rows.ids)
        self._blocks.append(block)

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
        return self._assembled(range(len(self._all())), events=events)

    def table(self, *, most_events: int = MOST_EVENTS) -> Columns:
        """The same; with more events than that, they stay packed until they are looked at."""
        blocks = self._all()
        if sum(block.gaps.n for block in blocks if block.gaps is not None) <= most_events:
            return self.columns()
        bare = self.columns(events=False)
        logged = join([block.rows[AT["has_events"]] for block in blocks]) != 0
        counts = join([block.rows[AT["events"]] for block in blocks])
        tokens = {block.tokens.base if block.tokens.codes is None else None for block in blocks if block.tokens}

        def unpack(places: Sequence[int], rows: Int64) -> dict[str, Any]:
            offsets = np.concatenate(([0], np.cumsum(counts[rows]))).astype(np.int64)
            return _events([blocks[i] for i in places], bare.scheduled_ns[rows], bare.sent_ns[rows], offsets)

        packing = Packing(
            starts=np.concatenate(([0], np.cumsum([block.rows[0].n for block in blocks]))).astype(np.int64),
            offsets=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
            unpack=unpack,
            tokens=tokens.pop() if len(tokens) == 1 else None,
        )
        rows = {field.name: getattr(bare, field.name) for field in fields(Columns) if field.name not in EVENTS}
        rows |= {"has_events": logged, "event_offsets": packing.offsets}
        return Deferred(packing, np.arange(len(self)), rows)

    def of_step(self, step: int) -> Columns:
        """The columns of one step's rows, without their ids: what a whole run's events would take need not be in memory
        at once."""
        at = AT["step"]
        mine = [i for i, block in enumerate(self._all()) if _holds(block.rows[at], step)]
        found = self._assembled(mine, ids=False)
        return found.where(found.step == step)

    def steps(self) -> list[int]:
        """As `Columns.steps`."""
        return self.columns(events=False).steps()

    def largest_step(self) -> int:
        """How many events that step has which has the most."""
        blocks = self._all()
        steps, events = (join([block.rows[AT[name]] for block in blocks]) for name in ("step", "events"))
        _, step_of = np.unique(steps, return_inverse=True)
        return int(np.bincount(step_of, weights=events).max()) if len(steps) else 0

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

    @classmethod
    def joined(cls, parts: Iterable[ColumnBuilder]) -> ColumnBuilder:
        """All rows of several, in their order."""
        whole = cls()
        whole._ids = all_ids = []
        for part in parts:
            blocks, ids, errors, models, peers = part.packed()
            for name, known, names in (("model", whole._models, models), ("peer", whole._peers, peers)):
                codes = _named(names, known)
                if (codes != np.arange(len(names))).any():
                    blocks = [_recoded(block, AT[name], codes) for block in blocks]
            whole._errors.update({whole._n + row: error for row, error in errors.items()})
            all_ids.extend(ids)
            whole._blocks.extend(blocks)
            whole._n += len(part)
        return whole

    def _all(self) -> list[Block]:
        return [*self._blocks, self._packed()] if self._rows else self._blocks

    def _assembled(self, places: Sequence[int], *, events: bool = True, ids: bool = True) -> Columns:
        """The rows of the blocks at these places."""
        every = self._all()
        starts = np.concatenate(([0], np.cumsum([block.rows[0].n for block in every]))).astype(int).tolist()
        blocks = [every[i] for i in places]
        spans = [(starts[i], starts[i + 1]) for i in places]
        rows: dict[str, Any] = {}
        for name, at in AT.items():
            rows[name] = join([block.rows[at] for block in blocks], reference(name, rows))
        n = sum(end - start for start, end in spans)
        if not events:
            rows["has_events"] = rows["events"] = np.zeros(n, dtype=np.int64)
        offsets = np.concatenate(([0], np.cumsum(rows.pop("events")))).astype(np.int64)
        failed = self._errors.get
        return Columns(
            models=list(self._models),
            peers=list(self._peers),
            ids=[one for start, end in spans for one in self._ids[start:end]] if ids and self._ids else [],
            errors=[failed(row) for start, end in spans for row in range(start, end)],
            connect_us=_side_by_side([rows.pop(name) for name in ("dns_us", "tcp_us", "tls_us")]),
            has_events=rows.pop("has_events") != 0,
            event_offsets=offsets,
            **_events(blocks if events else [], rows["scheduled_ns"], rows["sent_ns"], offsets),
            **{name: values.astype(np.int8) if name in CODES else values for name, values in rows.items()},
        )

    def _pack(self) -> None:
        self._blocks.append(self._packed())
        self._rows, self._gaps, self._tokens, self._bounds = array("q"), array("q"), array("q"), array("q")

    def _packed(self) -> Block:
        """What came since the last block."""
        rows = dict(zip(ROW, np.ascontiguousarray(_int64(self._rows).reshape(-1, len(ROW)).T), strict=True))
        return Block(
            rows=tuple(pack(values, reference(name, rows)) for name, values in rows.items()),
            gaps=pack(_int64(self._gaps)) if self._gaps else None,
            tokens=pack(np.minimum(_int64(self._tokens), INT32_MAX)) if self._gaps else None,
            bounds=_int64(self._bounds).reshape(-1, 2),
        )


def _named(names: Sequence[str | None], known: dict[str, int]) -> Int64:
    """Names → their codes, -1 for none; a new name gets the next one."""
    alike = len(names) > 1 and names.count(names[0]) == len(names)
    some = names[:1] if alike else names
    codes = np.array([UNKNOWN if one is None else known.setdefault(one, len(known)) for one in some], dtype=np.int64)
    return np.broadcast_to(codes[0], (len(names),)) if alike else codes


def _recoded(block: Block, at: int, codes: Int64) -> Block:
    """With these codes in the place of 0, 1, … in one column."""
    was = join([block.rows[at]])
    column = pack(np.where(was == UNKNOWN, UNKNOWN, codes[was]))
    return replace(block, rows=(*block.rows[:at], column, *block.rows[at + 1 :]))


def _holds(column: Packed, value: int) -> bool:
    return column.base == value if column.codes is None else bool((join([column]) == value).any())


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
        mine = stamps[starts[0] : starts[-1]]
        unpack(block.gaps, mine)
        mine *= 1000
        np.cumsum(mine, out=mine)
        before = starts[:-1] - starts[0]
        sent, scheduled = sent_ns[rows], scheduled_ns[rows]
        origin = np.where(sent == NULL, scheduled, sent) - np.where(before > 0, mine[before - 1], 0)
        mine += np.repeat(origin, np.diff(starts))
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
