"""The output events of one stream, packed: at most 8 bytes for each while the stream runs. Pure.

Every entry has its offset (4 bytes). What only some streams tell (a running usage, token ids, several choices) has an
array of its own from the first entry that tells it, and what only some entries have (a bound, no output) is listed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress
from operator import sub

from ..records import Events

UNKNOWN = -1


class Entries:
    """Entries in order of arrival: events with output, and events without that may turn out to show new tokens.

    `stamp_ns` is the last entry's. `beside` says that some entry told more than its offset: then `put` must follow each
    offset that is appended to `offsets_us` directly.
    """

    __slots__ = ("_choice", "_choices", "_ids", "_late", "_silent", "_usage", "beside", "offsets_us", "stamp_ns")

    def __init__(self) -> None:
        self.offsets_us = array("I")
        self.stamp_ns: int | None = None
        self.beside = False
        self._usage: array[int] | None = None  # cumulative
        self._ids: array[int] | None = None
        self._choices: array[int] | None = None  # each entry's choice, once they differ
        self._choice = UNKNOWN  # the choice of all entries so far; UNKNOWN where an event carries several
        self._late = array("I")  # (entry, µs) pairs, flat
        self._silent: set[int] | None = None  # entries without output

    def __len__(self) -> int:
        return len(self.offsets_us)

    def push(self, offset_us: int) -> None:
        """An offset of any size."""
        self.offsets_us = push(self.offsets_us, offset_us)

    def put(self, usage: int, ids: int, choice: int, has_output: bool = True) -> None:
        """What the entry just pushed tells besides; UNKNOWN is not told."""
        n = len(self.offsets_us)
        if n == 1:
            self._choice = choice
        if usage >= 0 and self._usage is None:
            self._usage = array("h", [UNKNOWN]) * (n - 1)
        if ids >= 0 and self._ids is None:
            self._ids = array("h", [UNKNOWN]) * (n - 1)
        if choice != self._choice and self._choices is None:
            self._choices = array("h", [self._choice]) * (n - 1)
        if self._usage is not None:
            self._usage = push(self._usage, usage)
        if self._ids is not None:
            self._ids = push(self._ids, ids)
        if self._choices is not None:
            self._choices = push(self._choices, choice)
        if not has_output:
            self._silent = self._silent or set()
            self._silent.add(n - 1)
        self.beside = not (self._usage is None and self._ids is None and self._choices is None)

    def bound(self, late_ns: int) -> None:
        """The last entry was not the last event of its read: it may be so late."""
        late_us, last = -(-late_ns // 1000), len(self.offsets_us) - 1
        if late_us <= 0:
            return
        late = self._late
        if late and late[-2] == last:
            late_us = max(late_us, late[-1])
            del late[-2:]
        self._late = push(push(late, last), late_us)

    # --- figures ----------------------------------------------------------------------------------------------------

    def token_ids(self) -> int | None:
        """All token ids, where every event with output listed its own."""
        if self._ids is None:
            return None
        silent = self._silent or ()
        if any(ids < 0 and place not in silent for place, ids in enumerate(self._ids)):
            return None
        return sum(ids for ids in self._ids if ids > 0)

    def tokens(self, total: int | None) -> list[int | None]:
        """The tokens of each entry, None where unknown; `total` is the server's count of them all."""
        n = len(self.offsets_us)
        growth = self._growth(total)
        if self._ids is not None:
            growth = [own if own is not None or ids < 0 else ids for own, ids in zip(growth, self._ids, strict=True)]
        known = sum(own or 0 for own in growth)
        if known == 0 or (total is not None and known > total):
            return [None] * n
        if growth[0] == 0:
            growth[0] = None  # the server counts one event behind: the first cannot be without a token
        return growth

    def events(self, tokens: Sequence[int | None]) -> Events:
        """The events as a record has them. Entries without output stay only where they are known to bring tokens."""
        # Rounding each offset, not each gap, keeps the running sum within half a µs of the stamps.
        offsets = self.offsets_us.tolist()
        tokens = list(tokens)
        late = self._late
        bounded = list(zip(late[::2], late[1::2], strict=True))
        dropped = {place for place in self._silent or () if not tokens[place]}
        if dropped:
            keep = [place not in dropped for place in range(len(offsets))]
            moved = {place: now for now, place in enumerate(compress(range(len(offsets)), keep))}
            offsets, tokens = list(compress(offsets, keep)), list(compress(tokens, keep))
            bounded = [(moved[place], us) for place, us in bounded if place in moved]
        return Events(list(map(sub, offsets, [0, *offsets])), tokens, bounded)

    def _growth(self, total: int | None) -> list[int | None]:
        """By how much the cumulative usage grew with each entry.

        With several choices a server counts either all of them together or each on its own (vLLM): the way that adds up
        to the total is taken.
        """
        if self._usage is None:
            return [None] * len(self.offsets_us)
        if self._choices is None:  # nearly always: a counter that is always there and never falls
            counts = self._usage.tolist()
            steps: list[int | None] = list(map(sub, counts, [0, *counts]))
            if min(counts) >= 0 and min(map(sub, counts[1:], counts), default=0) >= 0:
                return steps
        usage = [None if count < 0 else count for count in self._usage]
        if self._choices is not None and UNKNOWN not in self._choices:
            each = growth_of(usage, self._choices)
            if total is not None and sum(own or 0 for own in each) == total:
                return each
        return growth_of(usage, [0] * len(usage))


def push(values: array[int], value: int) -> array[int]:
    """`values` with one more at its end: the same array, or a wider one where the value does not fit."""
    try:
        values.append(value)
    except OverflowError:
        return push(array("i" if values.typecode == "h" else "q", values), value)
    return values


def growth_of(cumulative: Sequence[int | None], keys: Sequence[int]) -> list[int | None]:
    """The growth of a cumulative count at each entry, counted apart for each key; it starts at a known zero.

    None where the count is missing, and where the one before it was. A count that falls has not grown.
    """
    last: dict[int, int | None] = {}
    growth: list[int | None] = []
    for count, key in zip(cumulative, keys, strict=True):
        before = last.get(key, 0)
        growth.append(None if count is None or before is None else max(0, count - before))
        last[key] = count if count is None or before is None else max(count, before)
    return growth
