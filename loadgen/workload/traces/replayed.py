"""A trace as a step sends it: at its own times, once; or its lengths alone, in its order, over and over."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...records import Prompt
from ..prompts import ROWS, Calibration
from ..sharing import Head, Seen, blocks, fitting
from .describe import no_requests
from .open import Trace, open_trace
from .origin import Origin, origin_of
from .row import Mapped, TraceRow
from .timing import Timing, due, quantum_of

LOOKED_AT = 100_000  # rows of a trace without times that are read before the start
HASHED_BYTES = 1 << 20
MOST_KEYS = 2_000_000  # blocks sent, until it is no longer told what a cache may hold


@dataclass(frozen=True, slots=True)
class Choice:
    """Which trace, and how it is used: `--trace` and its flags. Without `timed` its times are left alone. `models`
    asks for the models that it names."""

    path: str
    mapped: Mapped = field(default_factory=Mapped)
    timed: bool = True
    scale: float = 1.0
    as_recorded: bool = False
    seed: int = 0
    seconds: float | None = None  # of the replay; None: all of it
    requests: int | None = None
    output_len: int | None = None  # where a row tells none
    models: bool = False
    max_total: int | None = None  # rows with more tokens, input and output, are left out
    run: Mapping[str, Any] = field(default_factory=dict)  # the run of our own that it is: its name and hash


@dataclass(frozen=True, slots=True)
class Replayed:
    """A trace that was looked through as far as it is sent. Of a timed one, `requests` and `span_s` (from the first to
    the last, as sent) are all there is; of another, what was looked at. `inputs` and `outputs` are (least, mean, most)
    tokens, None where a row tells none."""

    choice: Choice
    trace: Trace
    quantum_s: float
    requests: int
    span_s: float
    inputs: tuple[int, float, int] | None
    outputs: tuple[int, float, int] | None
    texts: bool
    models: tuple[str, ...] = ()
    hashes: bool = False
    dropped: Mapping[str, int] = field(default_factory=dict)
    content_hash: str = ""
    origin: Origin | None = None  # where the requests of a run come from, instead of being made

    @property
    def timed(self) -> bool:
        return self.choice.timed

    @property
    def given(self) -> bool:
        """Is any of its text given, so that it is not made to a length?"""
        return self.texts or (self.origin is not None and self.origin.file is not None)

    @property
    def complete(self) -> bool:
        """Was all that is sent looked at?"""
        return self.timed or self.requests < LOOKED_AT

    @property
    def name(self) -> str:
        return str(self.choice.run.get("name") or self.trace.path.name)

    @property
    def rate(self) -> float:
        """Requests/s as sent, in the mean."""
        return (self.requests - 1) / self.span_s if self.span_s > 0 and self.requests > 1 else float(self.requests)

    @property
    def end_ns(self) -> int:
        """When the last request's turn is over, as it is for those before it: with n requests until then, n / end is
        the rate."""
        return round((self.span_s + 1 / self.rate) * 1e9)

    def offsets(self, worker: int = 0, workers: int = 1) -> Times:
        return Times(self, worker, workers)

    def prompts(
        self, nonce: str, calibration: Calibration | None, worker: int = 0, workers: int = 1
    ) -> Iterator[Prompt]:
        """The prompts of worker i of W: those of the rows i, i + W, …; of a timed trace they come to an end. The first
        of them is read here."""
        made = self._prompts(nonce, calibration or Calibration(), worker, workers)
        first = list(islice(made, 1))
        return chain(first, made)

    def _prompts(self, nonce: str, calibration: Calibration, worker: int, workers: int) -> Iterator[Prompt]:
        origin = self.origin.opened() if self.origin is not None else None
        seen: Seen | None = Seen() if self.hashes else None
        keys = 0
        for index, row in enumerate(self._rows()):
            shared = None
            if seen is not None:
                room = (row.input_tokens or 0) - calibration.around
                held = seen.shared(fitting(_heads(row, nonce), room))
                shared = (held, min(held + calibration.around, row.input_tokens or 0) if held else calibration.around)
                keys += len(row.hash_ids)
                seen = seen if keys <= MOST_KEYS else None  # it would grow without end
            if index % workers == worker and origin is not None and row.place is not None:
                given = origin.prompt(*row.place, calibration)
                model = row.model if self.choice.models else given.model
                yield replace(given, output_tokens=self._output(row), model=model)
            elif index % workers == worker:
                yield self._prompt(row, index, nonce, calibration, shared)

    def _prompt(
        self, row: TraceRow, index: int, nonce: str, calibration: Calibration, shared: tuple[int, int] | None
    ) -> Prompt:
        output = self._output(row)
        model = row.model if self.choice.models else None
        if row.text is not None:
            return Prompt(row.text, output_tokens=output)
        place = int.from_bytes(hashlib.blake2b(f"row {index}".encode(), digest_size=4).digest(), "big") % ROWS
        made = calibration.prompt(
            row.input_tokens or 1, f"nonce {nonce} {index}", place, _heads(row, nonce) if self.hashes else ()
        )
        return replace(made, output_tokens=output, model=model, shared=shared)

    def _output(self, row: TraceRow) -> int | None:
        return row.output_tokens if row.output_tokens is not None else self.choice.output_len

    def _rows(self) -> Iterator[TraceRow]:
        if self.timed:
            return (row for _, row in islice(self.due(), self.requests))
        return chain.from_iterable(self.trace.rows(Counter()) for _ in count())

    def due(self) -> Iterator[Any]:
        return due(self.trace, self._timing, Counter())

    @property
    def _timing(self) -> Timing:
        return Timing(self.choice.scale, self.quantum_s, self.choice.seed)

    def describe(self) -> str:
        """One line for the screen."""
        parts = [f"{self.name} ({'a run again' if self.choice.run else self.trace.format})"]
        if self.timed:
            scale = f", {self.choice.scale:g} times as fast" if self.choice.scale != 1 else ""
            parts.append(f"{self.requests:,} requests in {self.span_s:,.1f} s{scale}")
        for name, lengths in (("in", self.inputs), ("out", self.outputs)):
            if lengths is not None:
                least, mean, most = lengths
                parts.append(f"{name} {mean:,.0f} ({least:,}–{most:,})")
        return " · ".join(parts)

    def notes(self) -> tuple[str, ...]:
        """What a user should be told."""
        notes = list(self.trace.notes)
        if self.timed and self.quantum_s:
            how = f"its stamps come in steps of {self.quantum_s:g} s"
            notes.append(f"{how}: requests are spread inside them, by the seed (--as-recorded leaves them)")
        notes += [f"{n:,} rows of the trace are left out: {why}" for why, n in sorted(self.dropped.items())]
        if not self.timed:
            notes.append("past its end the trace is sent from its beginning again, with another text")
        if self.hashes and self.trace.block_tokens:
            notes.append(f"prompts share their text by the trace's blocks of {self.trace.block_tokens} tokens")
        return tuple(notes)

    def manifest(self) -> dict[str, Any]:
        choice = self.choice
        return {
            "trace": {
                "format": self.trace.format,
                "unit": self.trace.unit or None,
                "timed": self.timed,
                "time_scale": choice.scale,
                "quantum_s": self.quantum_s or None,
                "spread": bool(self.quantum_s),
                "block_tokens": self.trace.block_tokens or None,
                "requests": self.requests,
                "span_s": self.span_s,
                "dropped": dict(self.dropped),
                **({"replay_of": dict(choice.run)} if choice.run else {}),
            }
        }

    def as_object(self) -> dict[str, Any]:
        """For another process (`replayed_of`)."""
        origin = None if self.origin is None else asdict(self.origin)
        names = ("quantum_s", "requests", "span_s", "inputs", "outputs", "texts", "hashes", "content_hash")
        return {"choice": asdict(self.choice), "origin": origin, **{name: getattr(self, name) for name in names}}


class Times:
    """When the requests of a trace are due, as `workload.arrivals.Schedule` says it of a process; but they end. Any of
    them is found by its number, in ascending order without reading the trace again."""

    spec = "trace"

    def __init__(self, replayed: Replayed, worker: int = 0, workers: int = 1) -> None:
        self._replayed = replayed
        self._numbers = iter(range(worker, replayed.requests, workers))
        self.end_ns: int | None = replayed.end_ns
        self._due = replayed.due()
        self._read = 0
        self._latest = 0
        if replayed.requests:
            self.offset_ns(0)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return self.offset_ns(next(self._numbers))

    def offset_ns(self, k: int) -> int:
        """When arrival k (of all workers, from 0) is due; those after the last, which are never sent, would go on from
        the end at the mean rate."""
        beyond = k - self._replayed.requests
        if beyond >= 0:
            return self._replayed.end_ns + round(beyond * 1e9 / self._replayed.rate)
        if k < self._read - 1:
            self._due, self._read = self._replayed.due(), 0
        while self._read <= k:
            found = next(self._due, None)
            if found is None:
                raise UsageError(f"{self._replayed.trace.path} has changed since the run began", "leave it alone")
            self._latest = found.at_ns
            self._read += 1
        return self._latest


def look(choice: Choice, count: Callable[[str], int] | None = None, origin: Origin | None = None) -> Replayed:
    """Look through a trace as far as it is to be sent. `origin` is where its prompts come from, if not made. Raises
    UsageError, with the line, for what cannot be."""
    trace = _opened(choice, count)
    if choice.timed and not trace.timed:
        raise UsageError(f"{trace.path} ({trace.format}) has no times", "add --rate N, or -c N, to send its lengths")
    quantum = quantum_of(trace) if choice.timed and not choice.as_recorded else 0.0
    dropped: Counter[str] = Counter()
    rows = _timed(trace, choice, quantum, dropped) if choice.timed else _first(trace, dropped)
    lengths: tuple[list[int], list[int]] = ([0, 0, 0], [0, 0, 0])  # least, sum, most
    known = [0, 0]
    models: dict[str, None] = {}
    n, span, texts, hashes = 0, 0.0, False, False
    for at, row in rows:
        n, span = n + 1, at
        output = choice.output_len if row.output_tokens is None else row.output_tokens
        if row.text is None and row.input_tokens is None and origin is None:
            raise UsageError(
                f"line {row.line:,} of {trace.path} tells no input length", "give a trace with the lengths of inputs"
            )
        for i, value in ((0, row.input_tokens), (1, output)):
            if value is not None:
                known[i] += 1
                least, total, most = lengths[i]
                lengths[i][:] = (min(least or value, value), total + value, max(most, value))
        texts = texts or row.text is not None
        hashes = hashes or bool(row.hash_ids and row.block_tokens)
        if row.model is not None and len(models) < 1000:
            models[row.model] = None
    if not n:
        raise no_requests(trace, dropped)
    inputs, outputs = (
        (low, total / n, high) if k == n else None for k, (low, total, high) in zip(known, lengths, strict=True)
    )
    content = _hash(trace.path)
    return Replayed(
        choice, trace, quantum, n, span, inputs, outputs, texts, tuple(models), hashes, dict(dropped), content, origin
    )


def replayed_of(found: Mapping[str, Any], count: Callable[[str], int] | None) -> Replayed:
    """The replay whose fields came as JSON; its trace is opened, and not looked through again."""
    choice = Choice(**{**found["choice"], "mapped": Mapped(**found["choice"]["mapped"])})
    trace = _opened(choice, count)
    if _hash(trace.path) != found["content_hash"]:
        raise UsageError(f"the trace {trace.path} has changed since the run began", "leave it alone while a run lasts")
    fields = {name: value for name, value in found.items() if name != "choice"}
    for name in ("inputs", "outputs"):
        fields[name] = tuple(fields[name]) if fields[name] is not None else None
    fields["origin"] = origin_of(fields["origin"])
    return Replayed(choice, trace, **fields)


def _opened(choice: Choice, count: Callable[[str], int] | None) -> Trace:
    trace = open_trace(choice.path, choice.mapped, seed=choice.seed, count=count)
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


def _timed(trace: Trace, choice: Choice, quantum: float, dropped: Counter[str]) -> Iterator[tuple[float, TraceRow]]:
    for n, (at_ns, row) in enumerate(due(trace, Timing(choice.scale, quantum, choice.seed), dropped)):
        if choice.seconds is not None and at_ns >= choice.seconds * 1e9:
            return
        if choice.requests is not None and n >= choice.requests:
            return
        yield at_ns / 1e9, row


def _first(trace: Trace, dropped: Counter[str]) -> Iterator[tuple[float, TraceRow]]:
    return ((0.0, row) for row in islice(trace.rows(dropped), LOOKED_AT))


def _heads(row: TraceRow, nonce: str) -> list[Head]:
    return [Head(f"nonce {nonce} {key}", n) for key, n in blocks(row.hash_ids, row.block_tokens, row.input_tokens or 0)]


def _hash(path: Path) -> str:
    """Of a file's size and its first part: all of a large one would take too long to read."""
    if path.is_dir():
        return hashlib.sha256("\n".join(sorted(one.name for one in path.iterdir())).encode()).hexdigest()
    try:
        with path.open("rb") as file:
            return hashlib.sha256(b"%d " % path.stat().st_size + file.read(HASHED_BYTES)).hexdigest()
    except OSError as error:
        raise UsageError(f"the trace {path} cannot be read: {error.strerror}", "give a readable file") from None
