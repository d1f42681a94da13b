"""A trace's requests in the order of their times: sorted, spread inside a coarse clock's quantum, and scaled. Pure."""

from __future__ import annotations

import hashlib
import heapq
import math
import random
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import NamedTuple

from ...errors import UsageError
from .open import Trace
from .row import TraceRow

REACH = 8_192  # rows by which one may stand too late in its file
HEAD = 5_000  # rows from which the quantum is told
SCALES = (1e-4, 1e5)


class Due(NamedTuple):
    """A request and when it is due, in ns from the first one."""

    at_ns: int
    row: TraceRow


@dataclass(frozen=True, slots=True)
class Timing:
    """How a trace's times are used: `scale` times as fast; spread, by the seed, inside `quantum_s`, 0 leaving them as
    they were recorded."""

    scale: float = 1.0
    quantum_s: float = 0.0
    seed: int = 0


def due(trace: Trace, timing: Timing, dropped: Counter[str]) -> Iterator[Due]:
    """All requests of a trace that has times, ascending; rows of the same time in the file's order. Raises UsageError,
    with the line, for a row more than `REACH` rows below where it belongs."""
    spread = random.Random(f"spread {timing.seed}")
    quantum, factor = timing.quantum_s, 1e9 / timing.scale
    waiting: list[tuple[float, int, TraceRow]] = []  # a heap
    first, last = math.inf, -math.inf
    followers = _Followers(history=trace.history) if trace.delays or trace.history else None
    for number, row in enumerate(trace.rows(dropped)):
        if followers is not None and row.session is not None:
            if followers.take(row):
                continue
            row = followers.opened(row)
        if row.at_s is None:
            dropped["no time of its own"] += 1
            continue
        at = row.at_s
        if quantum:
            at += quantum * (spread.random() if row.session is None else _share(timing.seed, row.session))
        if at < last:
            if at < last - quantum:
                raise UsageError(
                    f"line {row.line:,} of {trace.path}: its time is {last - at:,.3f} s before that of a row more than"
                    f" {REACH:,} rows above",
                    "sort the file by its times",
                )
            at = last
        if len(waiting) < REACH:
            heapq.heappush(waiting, (at, number, row))
            continue
        last, _, row = heapq.heappushpop(waiting, (at, number, row))
        first = min(first, last)
        yield Due(round((last - first) * factor), row if followers is None else followers.sealed(row))
    for at, _, row in sorted(waiting):
        first = min(first, at)
        yield Due(round((at - first) * factor), row)


def _share(seed: int, session: str) -> float:
    """How far into its quantum each row of a session is put, from 0 to 1: all alike, which keeps their order."""
    key = f"spread {seed} {session}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") / 2**64


class _Followers:
    """Puts rows that follow others of their session, by a delay or, with `history`, by what was said, behind them."""

    def __init__(self, *, history: bool) -> None:
        self._history = history
        self._latest: dict[str, list[TraceRow]] = {}  # behind the last row with a time of each session that waits

    def take(self, row: TraceRow) -> bool:
        """Has this row been put behind another?"""
        rest = self._latest.get(row.session or "")
        if rest is None or (row.at_s is not None and not self._history):
            return False
        rest.append(row)
        return True

    def opened(self, row: TraceRow) -> TraceRow:
        """A row that others may follow."""
        if row.at_s is None or row.session is None:
            return row
        rest = self._latest[row.session] = []
        return row._replace(rest=rest)

    def sealed(self, row: TraceRow) -> TraceRow:
        """The row as it is sent: nothing is put behind it any more."""
        if row.session is not None and self._latest.get(row.session) is row.rest:
            del self._latest[row.session]
        return row


def quantum_of(trace: Trace) -> float:
    """The step of the clock by which a trace was stamped, in s, where several of its requests share a stamp; else 0."""
    stamps = [row.at_s for row in islice(trace.rows(Counter()), HEAD) if row.at_s is not None]
    return quantum(stamps)


def quantum(stamps: Sequence[float]) -> float:
    """The same of stamps in s: the gap whose multiples, within 2 % of it, nearly all gaps between different stamps are,
    where at least a twentieth of the requests share theirs with an earlier one."""
    times = sorted({round(at, 6) for at in stamps})  # of finer ones, no two are alike by chance
    if len(times) < 16 or len(stamps) - len(times) < 0.05 * len(stamps):
        return 0.0
    gaps = [b - a for a, b in pairwise(times)]
    least = min(gaps)
    step = statistics.median(gap for gap in gaps if gap <= 1.5 * least)
    near = sum(abs(gap - step * max(1, round(gap / step))) <= 0.02 * step * max(1, round(gap / step)) for gap in gaps)
    if near < 0.95 * len(gaps):
        return 0.0
    return float(f"{step:.4g}")
