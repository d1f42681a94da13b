"""What there is to say of a trace: its format, its requests, their times and lengths."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...errors import UsageError
from .open import Trace, open_trace
from .row import Mapped, TraceRow
from .timing import quantum_of

SAMPLE = 1_000_000  # lengths kept for quantiles, and sessions told apart: the first ones


@dataclass(frozen=True, slots=True)
class Summary:
    """A trace, read to its end. `quantum_s` is 0 where its stamps are not coarse; `lengths` are (mean, p50, p90, p99,
    max) of "input" and "output" tokens, where told, the quantiles of its head alone where `notes` say so; `dropped`
    counts rows that are no requests, by reason."""

    path: Path
    format: str
    unit: str
    requests: int
    span_s: float | None
    quantum_s: float
    block_tokens: int
    sessions: int
    models: tuple[str, ...]
    lengths: dict[str, tuple[float, float, float, float, int]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    unsorted: int = 0
    notes: tuple[str, ...] = ()

    @property
    def rate(self) -> float | None:
        """Requests/s in the mean."""
        return (self.requests - 1) / self.span_s if self.span_s else None

    def lines(self) -> list[str]:
        """For the screen."""
        said = [f"format    {self.format}" + (f" · times in {self.unit}" if self.unit else " · no times")]
        rows = f"requests  {self.requests:,}"
        if self.span_s is not None and self.rate is not None:
            rows += f" in {self.span_s:,.1f} s · {self.rate:,.3g} requests/s"
        said.append(rows)
        for name, (mean, p50, p90, p99, most) in self.lengths.items():
            said.append(
                f"{name:10}{mean:,.0f} tokens · p50 {p50:,.0f} · p90 {p90:,.0f} · p99 {p99:,.0f} · max {most:,}"
            )
        if self.quantum_s:
            said.append(f"clock     stamps in steps of {self.quantum_s:g} s, spread inside unless --as-recorded")
        if self.unsorted:
            said.append(f"order     {self.unsorted:,} rows stand below a later one; they are sorted")
        if self.sessions:
            said.append(f"sessions  {self.sessions:,}")
        if self.block_tokens:
            said.append(f"blocks    of {self.block_tokens} tokens, by hash")
        if self.models:
            said.append(f"models    {', '.join(self.models)}")
        said += [f"dropped   {count:,} rows: {why}" for why, count in sorted(self.dropped.items())]
        return said + [f"note      {note}" for note in self.notes]


def describe_trace(path: str | Path, mapped: Mapped | None = None, *, sample: int = SAMPLE) -> Summary:
    """Read a trace to its end, in little memory: quantiles are of its first `sample` lengths. Raises UsageError, with
    the line, for one that cannot be replayed."""
    trace = open_trace(path, mapped)
    dropped: Counter[str] = Counter()
    seen = _Seen(sample)
    for row in trace.rows(dropped):
        seen.add(row)
    if not seen.n:
        raise no_requests(trace, dropped)
    notes = trace.notes
    if max(seen.inputs.n, seen.outputs.n) > sample:
        notes += (f"p50, p90 and p99 are of the first {sample:,} rows; mean and max are of all",)
    span = seen.last - seen.first if trace.timed and seen.timed else None
    return Summary(
        trace.path,
        trace.format,
        trace.unit,
        seen.n,
        span,
        quantum_of(trace) if trace.timed else 0.0,
        trace.block_tokens,
        len(seen.sessions),
        tuple(sorted(seen.models)),
        {
            name: lengths
            for name, lengths in (("input", seen.inputs.spread()), ("output", seen.outputs.spread()))
            if lengths is not None
        },
        dict(dropped),
        seen.unsorted,
        notes,
    )


def no_requests(trace: Trace, dropped: Counter[str]) -> UsageError:
    """What to say of a trace without a request to send."""
    why = ", ".join(f"{n:,} {reason}" for reason, n in dropped.most_common(5))
    return UsageError(
        f"{trace.path} holds no request to send" + (f": it has rows ({why})" if why else ": it has no rows"),
        "give a trace with a row a request",
    )


class _Seen:
    def __init__(self, sample: int) -> None:
        self.n = self.timed = self.unsorted = 0
        self.first, self.last, self._before = float("inf"), float("-inf"), float("-inf")
        self.inputs, self.outputs = _Tally(sample), _Tally(sample)
        self.sessions: set[str] = set()
        self.models: set[str] = set()

    def add(self, row: TraceRow) -> None:
        self.n += 1
        at = row.at_s
        if at is not None:
            self.timed += 1
            self.unsorted += at < self._before
            self.first, self.last, self._before = min(self.first, at), max(self.last, at), max(self._before, at)
        if row.input_tokens is not None:
            self.inputs.add(row.input_tokens)
        if row.output_tokens is not None:
            self.outputs.add(row.output_tokens)
        if row.session is not None and len(self.sessions) < SAMPLE:
            self.sessions.add(row.session)
        if row.model is not None and len(self.models) < 100:
            self.models.add(row.model)


class _Tally:
    """Lengths: number, sum and greatest of all, and the first `sample` of them."""

    def __init__(self, sample: int) -> None:
        self.sample = sample
        self.n = self.sum = self.most = 0
        self.head: list[int] = []

    def add(self, length: int) -> None:
        self.n += 1
        self.sum += length
        self.most = max(self.most, length)
        if self.n <= self.sample:
            self.head.append(length)

    def spread(self) -> tuple[float, float, float, float, int] | None:
        if not self.n:
            return None
        p50, p90, p99 = np.quantile(np.array(self.head, dtype=np.int64), (0.5, 0.9, 0.99), method="inverted_cdf")
        return self.sum / self.n, float(p50), float(p90), float(p99), self.most
