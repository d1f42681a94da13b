"""Looks at a trace before it is sent: at all of it, or at the beginning of a long one; opens it again elsewhere."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from ...errors import UsageError
from .describe import no_requests
from .linked import waits
from .open import Trace, open_trace
from .origin import Origin, origin_of
from .replayed import Choice, Replayed, timed
from .row import MOST_TOKENS, Mapped, TraceRow
from .source import BLOCK
from .timing import Due, quantum_of

LOOKED_AT = 100_000  # rows of a trace without times that are read before the start
TIMED_LOOKED_AT = 20_000  # …and of one with times, whose rows are sorted and made ready besides;
LARGE_BYTES, LARGE_LOOKED_AT = 16 << 20, 5_000  # fewer of a file that has many more
HASHED_BYTES = 1 << 20


def look(choice: Choice, count: Callable[[str], int] | None = None, origin: Origin | None = None) -> Replayed:
    """Look through a trace as far as it is to be sent. `origin` is where its prompts come from, if not made. Raises
    UsageError, with the line, for what cannot be."""
    trace = _opened(choice, count, origin)
    if choice.timed and not trace.timed:
        raise UsageError(f"{trace.path} ({trace.format}) has no times", "add --rate N, or -c N, to send its lengths")
    quantum = quantum_of(trace) if choice.timed and not choice.as_recorded else 0.0
    dropped: Counter[str] = Counter()
    rows = timed(trace, choice, quantum, dropped) if choice.timed else _first(trace, dropped)
    inputs, outputs = _Span(), _Span()
    models: dict[str, None] = {}
    n, arrivals, span, texts, hashes, wait_s = 0, 0, 0.0, False, False, 0.0
    turns: Counter[str] = Counter()
    most = _looked_at(choice, trace.path) if choice.timed else LOOKED_AT
    while block := list(islice(rows, max(0, min(BLOCK, most - n)))):
        some = [one for _, row in block for one in (row, *row.rest)]
        n, arrivals, span = n + len(some), arrivals + len(block), block[-1].at_ns / 1e9
        bare = next((row for row in some if row.text is None and row.input_tokens is None), None)
        if bare is not None and origin is None:
            raise UsageError(
                f"line {bare.line:,} of {trace.path} tells no input length", "give a trace with the lengths of inputs"
            )
        inputs.add([row.input_tokens for row in some])
        outputs.add([choice.output_len if row.output_tokens is None else row.output_tokens for row in some])
        texts = texts or any(row.text is not None for row in some)
        hashes = hashes or any(row.hash_ids and row.block_tokens for row in some)
        turns.update(row.session for row in some if row.session is not None)
        wait_s = max(wait_s, max(waits(row) for _, row in block) / choice.scale)
        if len(models) < 1000:
            models |= dict.fromkeys(row.model for row in some if row.model is not None)
    if not n:
        raise no_requests(trace, dropped)
    complete = n < most or next(rows, None) is None
    found = Replayed(
        choice, trace, quantum, n, span, inputs.found(), outputs.found(), texts, tuple(models), hashes, dict(dropped)
    )
    return replace(
        found,
        content_hash=_hash(trace.path),
        origin=origin,
        complete=complete,
        arrivals=arrivals,
        sessions=bool(turns),
        longest=(max(turns.values(), default=1), wait_s),
    )


def _looked_at(choice: Choice, path: Path) -> int:
    if choice.looked_at is not None:
        return choice.looked_at
    return LARGE_LOOKED_AT if path.is_file() and path.stat().st_size > LARGE_BYTES else TIMED_LOOKED_AT


class _Span:
    """The least, mean and most of lengths, if all of them are known."""

    def __init__(self) -> None:
        self.least, self.sum, self.most, self.n = MOST_TOKENS, 0, 0, 0
        self.known = True

    def add(self, lengths: list[int | None]) -> None:
        some = [one for one in lengths if one is not None]
        self.known = self.known and len(some) == len(lengths)
        if self.known:
            self.least, self.most = min(self.least, *some), max(self.most, *some)
            self.sum, self.n = self.sum + sum(some), self.n + len(some)

    def found(self) -> tuple[int, float, int] | None:
        return (self.least, self.sum / self.n, self.most) if self.known and self.n else None


def replayed_of(found: Mapping[str, Any], count: Callable[[str], int] | None) -> Replayed:
    """The replay whose fields came as JSON; its trace is opened, and not looked through again."""
    choice = Choice(**{**found["choice"], "mapped": Mapped(**found["choice"]["mapped"])})
    origin = origin_of(found["origin"])
    trace = _opened(choice, count, origin)
    if _hash(trace.path) != found["content_hash"]:
        raise UsageError(f"the trace {trace.path} has changed since the run began", "leave it alone while a run lasts")
    fields = {name: value for name, value in found.items() if name != "choice"}
    for name in ("inputs", "outputs", "longest"):
        fields[name] = tuple(fields[name]) if fields[name] is not None else None
    fields["origin"] = origin
    return Replayed(choice, trace, **fields)


def _opened(choice: Choice, count: Callable[[str], int] | None, origin: Origin | None) -> Trace:
    trace = open_trace(choice.path, choice.mapped, seed=choice.seed, count=count)
    if origin is not None and origin.conversations:
        trace = replace(trace, history=True)
    most = choice.max_total
    if most is None:
        return trace

    def within(dropped: Counter[str]) -> Iterator[TraceRow]:
        for row in trace.rows(dropped):
            if (row.input_tokens or 0) + (row.output_tokens or choice.output_len or 0) <= most:
                yield row
            else:
                dropped[f"more than {most:,} tokens"] += 1

    return replace(trace, rows=within)


def _first(trace: Trace, dropped: Counter[str]) -> Iterator[Due]:
    return (Due(0, row) for row in trace.rows(dropped))


def _hash(path: Path) -> str:
    """Of a file's size and its first part: all of a large one would take too long to read."""
    if path.is_dir():
        return hashlib.sha256("\n".join(sorted(one.name for one in path.iterdir())).encode()).hexdigest()
    try:
        with path.open("rb") as file:
            return hashlib.sha256(b"%d " % path.stat().st_size + file.read(HASHED_BYTES)).hexdigest()
    except OSError as error:
        raise UsageError(f"the trace {path} cannot be read: {error.strerror}", "give a readable file") from None
