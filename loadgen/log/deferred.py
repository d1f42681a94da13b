"""Columns whose events stay packed until they are looked at: those of a long log are never in memory all at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .packed import Int64
from .table import EVENTS, Columns, events_at


@dataclass(frozen=True, slots=True)
class Packing:
    """The packed events of n rows. Block i holds those of the rows from starts[i] to starts[i + 1]; `unpack` makes
    those of some blocks, given which rows these are. `offsets` are those of all rows. `tokens` is the count of every
    event, where it is the same."""

    starts: Int64
    offsets: Int64
    unpack: Callable[[Sequence[int], Int64], Mapping[str, NDArray[Any]]]
    tokens: int | None

    def events_at(self, rows: Int64) -> dict[str, NDArray[Any]]:
        blocks = np.unique(np.searchsorted(self.starts, rows, side="right") - 1)
        counts = self.starts[blocks + 1] - self.starts[blocks]
        firsts = np.cumsum(counts) - counts
        held = np.repeat(self.starts[blocks] - firsts, counts) + np.arange(counts.sum())
        offsets = np.concatenate(([0], np.cumsum(np.diff(self.offsets)[held]))).astype(np.int64)
        return events_at(self.unpack(blocks.tolist(), held), offsets, np.searchsorted(held, rows))


class Deferred(Columns):
    """As `Columns`. What is taken of it (`at`, `where`, `parts`) is of this kind too; looking at the events of one
    unpacks its own, and keeps them as long as it is there."""

    __slots__ = ("_found", "_origin", "_packing")

    _packing: Packing
    _origin: Int64  # which rows of the packing these are
    _found: Mapping[str, NDArray[Any]] | None

    def __init__(self, packing: Packing, origin: Int64, rows: Mapping[str, Any]) -> None:
        own = {"_packing": packing, "_origin": origin, "_found": None}
        for name, value in {**rows, **own}.items():
            object.__setattr__(self, name, value)

    def at(self, rows: Int64) -> Columns:
        return Deferred(self._packing, self._origin[rows], self._rows_at(rows))

    def events_at(self, rows: Int64) -> dict[str, NDArray[Any]]:
        return self._packing.events_at(self._origin[rows])

    def _events(self, name: str) -> NDArray[Any]:
        if name == "event_tokens" and self._packing.tokens is not None:
            return np.broadcast_to(np.int32(self._packing.tokens), (int(self.event_offsets[-1]),))
        if self._found is None:
            object.__setattr__(self, "_found", self._packing.events_at(self._origin))
        assert self._found is not None
        return self._found[name]


def _look(name: str) -> property:
    return property(lambda self: self._events(name))


for _name in EVENTS:
    setattr(Deferred, _name, _look(_name))
