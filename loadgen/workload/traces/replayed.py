"""A trace as a step sends it: at its own times, once; or its lengths alone, in its order, over and over."""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, count, islice, takewhile
from typing import Any

from ...errors import UsageError
from ...records import Prompt
from ..prompts import ROWS, Calibration
from ..sharing import Head, Seen, blocks, fitting
from .linked import Link, Sessions, Turns, length, shortened, together
from .open import Trace
from .origin import Origin
from .row import Mapped, TraceRow
from .timing import Due, Timing, due

TO_ITS_END = 10**12  # requests of a trace whose number is not known before it has come to its end
MOST_KEYS = 1_000_000  # blocks sent, until it is no longer told what a cache may hold: 100 MB


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
    looked_at: int | None = None  # rows of a timed one that are read before the start; None: as many as its size asks
    max_total: int | None = None  # rows with more tokens, input and output, are left out
    run: Mapping[str, Any] = field(default_factory=dict)  # the run of our own that it is: its name and hash


@dataclass(frozen=True, slots=True)
class Replayed:
    """A trace that was looked through as far as it is sent, or, of a longer one (not `complete`), its beginning:
    `requests`, `span_s` (from the first to the last, as sent) and `inputs` and `outputs` (least, mean and most tokens,
    None where a row tells none) are of what was looked at."""

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
    complete: bool = True
    arrivals: int = 0  # rows that come at a time of their own; the other `requests` follow one of them
    sessions: bool = False  # are some of its rows turns of conversations?
    longest: tuple[int, float] = (1, 0.0)  # turns of one conversation, and s that one waits in all, at the most

    @property
    def timed(self) -> bool:
        return self.choice.timed

    @property
    def given(self) -> bool:
        """Is any of its text given, so that it is not made to a length?"""
        return self.texts or (self.origin is not None and self.origin.file is not None)

    @property
    def shares(self) -> bool:
        """Have its prompts text in common?"""
        origin = self.origin
        made = origin is not None and (origin.sharing is not None or origin.conversations)
        return bool(self.hashes and self.trace.block_tokens) or self.goes_on or made

    @property
    def goes_on(self) -> bool:
        """Are there turns sent with what was said before them?"""
        return self.sessions and self.trace.history

    @property
    def most_requests(self) -> int:
        """How many of them can be sent at most, of a timed one: exactly as many, if it is `complete`."""
        return self.requests if self.complete else self.choice.requests or TO_ITS_END

    @property
    def name(self) -> str:
        return str(self.choice.run.get("name") or self.trace.path.name)

    @property
    def rate(self) -> float:
        """Requests/s as sent, in the mean: of those that come at a time of their own."""
        n = self.arrivals
        return (n - 1) / self.span_s if self.span_s > 0 and n > 1 else float(n)

    @property
    def end_ns(self) -> int | None:
        """When the last request's turn is over, as it is for those before it: with n requests until then, n / end is
        the rate. None where the last one is not known."""
        return round((self.span_s + 1 / self.rate) * 1e9) if self.complete else None

    def offsets(self, worker: int = 0, workers: int = 1) -> Times:
        return Times(self, worker, workers)

    def prompts(
        self,
        nonce: str,
        calibration: Calibration | None,
        worker: int = 0,
        workers: int = 1,
        *,
        context: int | None = None,
    ) -> Iterator[Prompt]:
        """The prompts of worker i of W: those of the rows i, i + W, …, and of a session all; of a timed trace they come
        to an end. No conversation grows beyond `context` tokens. The first of them is read here."""
        made = self._prompts(nonce, calibration or Calibration(), worker, workers, context)
        first = list(islice(made, 1))
        return chain(first, made)

    def _prompts(
        self, nonce: str, calibration: Calibration, worker: int, workers: int, context: int | None
    ) -> Iterator[Prompt]:
        def make(row: TraceRow, name: str) -> Prompt:
            return self._prompt(row, name, nonce, calibration, None)

        origin = self.origin.opened(nonce) if self.origin is not None else None
        history = self.trace.history and origin is None  # else the run's conversations say what was said
        link = Link(make, history, self.choice.scale, context, calibration.around)
        sessions = Sessions(link)
        seen: Seen | None = Seen() if self.hashes else None
        for index, row in enumerate(self._rows()):
            shared = None
            if seen is not None:
                room = (row.input_tokens or 0) - calibration.around
                held = seen.shared(fitting(_heads(row, nonce), room))
                shared = (held, min(held + calibration.around, row.input_tokens or 0) if held else calibration.around)
                seen = seen if len(seen) <= MOST_KEYS else None  # it would grow without end
            if not self.takes(row, index, worker, workers):
                continue
            talk = None
            if origin is not None and row.place is not None and row.turn in (None, 1):
                given = origin.prompt(*row.place, calibration)
                model = row.model if self.choice.models else given.model
                prompt = replace(given, output_tokens=self._output(row), model=model)
                if row.turn == 1:
                    talk = origin.conversation(*row.place, calibration, context)
            else:
                prompt = self._prompt(row, str(index), nonce, calibration, shared)
            if self.timed:
                prompt = sessions.linked(row, index, prompt, talk)
            elif row.rest:
                prompt = Turns(link, row, str(index)).open(prompt, index, 1)
            yield prompt

    def takes(self, row: TraceRow, index: int, worker: int, workers: int) -> bool:
        """Is it this worker that sends row `index`? The rows of a session are sent by one."""
        if self.timed and row.session is not None:
            index = zlib.crc32(row.session.encode("utf-8", "surrogatepass"))
        return index % workers == worker

    def _prompt(
        self, row: TraceRow, name: str, nonce: str, calibration: Calibration, shared: tuple[int, int] | None
    ) -> Prompt:
        output = self._output(row)
        model = row.model if self.choice.models else None
        if row.text is not None:
            return Prompt(row.text, output_tokens=output)
        place = int.from_bytes(hashlib.blake2b(f"row {name}".encode(), digest_size=4).digest(), "big") % ROWS
        made = calibration.prompt(
            row.input_tokens or 1, f"nonce {nonce} {name}", place, _heads(row, nonce) if self.hashes else ()
        )
        return replace(made, output_tokens=output, model=model, shared=shared)

    def _output(self, row: TraceRow) -> int | None:
        return row.output_tokens if row.output_tokens is not None else self.choice.output_len

    def _rows(self) -> Iterator[TraceRow]:
        if self.timed:
            return (row for _, row in self.due())
        passes = (self.trace.rows(Counter()) for _ in count())
        return chain.from_iterable(map(together, passes) if self.trace.history else passes)

    def due(self) -> Iterator[Due]:
        """The requests that are sent, ascending by their times."""
        found = timed(self.trace, self.choice, self.quantum_s, Counter())
        return islice(found, self.arrivals) if self.complete else found

    def describe(self) -> str:
        """One line for the screen."""
        parts = [f"{self.name} ({'a run again' if self.choice.run else self.trace.format})"]
        if self.timed:
            scale = f", {self.choice.scale:g} times as fast" if self.choice.scale != 1 else ""
            first = "" if self.complete else "the first "
            parts.append(f"{first}{self.requests:,} requests in {self.span_s:,.1f} s{scale}")
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
        if self.timed and not self.complete:
            looked = f"the first {self.requests:,} requests of the trace were looked at before the start"
            notes.append(f"{looked}; the rest is read as it is sent")
        if not self.timed:
            notes.append("past its end the trace is sent from its beginning again, with another text")
        if self.goes_on:
            when = ", none before its time" if self.choice.run else ""
            notes.append(f"turns of a conversation are sent one after the other, each with what was said before{when}")
        elif self.sessions and self.timed:
            notes.append("turns of a session are sent at the trace's times, none before the one before it has ended")
        if self.choice.run.get("shared") and self.origin is None:
            notes.append("what that run's prompts shared is not sent again: each is as long, with a text of its own")
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
                "requests": self.requests if self.complete or not self.timed else None,
                "span_s": self.span_s if self.complete or not self.timed else None,
                "looked_at": self.requests,
                "linked": self.sessions and (self.timed or self.trace.history),
                "shared": self.shares,
                "dropped": dict(self.dropped),
                **({"replay_of": dict(choice.run)} if choice.run else {}),
            }
        }

    def as_object(self) -> dict[str, Any]:
        """For another process (`replayed_of`)."""
        origin = None if self.origin is None else asdict(self.origin)
        names = (
            "quantum_s",
            "requests",
            "span_s",
            "inputs",
            "outputs",
            "texts",
            "hashes",
            "content_hash",
            "complete",
            "arrivals",
            "sessions",
            "longest",
        )
        return {"choice": asdict(self.choice), "origin": origin, **{name: getattr(self, name) for name in names}}


class Times:
    """When the requests of a trace are due, as `workload.arrivals.Schedule` says it of a process; but they end. Any of
    them is found by its number, in ascending order without reading the trace again."""

    spec = "trace"

    def __init__(self, replayed: Replayed, worker: int = 0, workers: int = 1) -> None:
        self._replayed = replayed
        self._worker, self._workers, self._next = worker, workers, 0
        self.end_ns = replayed.end_ns
        self._total = replayed.arrivals if replayed.complete else None
        self._due = replayed.due()
        self._read = 0
        self._latest = 0
        self._row: TraceRow | None = None  # of the latest
        self.offset_ns(0)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        while True:
            k, self._next = self._next, self._next + 1
            at = self.offset_ns(k)
            if self._total is not None and k >= self._total:
                raise StopIteration
            if self._row is None or self._replayed.takes(self._row, k, self._worker, self._workers):
                return at

    def weights(self, workers: int) -> list[int]:
        """Of a trace that is known to its end, the requests of each worker; else even."""
        replayed = self._replayed
        if not replayed.complete:
            return [1] * workers
        found = [0] * workers
        for index, (_, row) in enumerate(replayed.due()):
            for worker in range(workers):
                found[worker] += length(row) if replayed.takes(row, index, worker, workers) else 0
        return found

    def offset_ns(self, k: int) -> int:
        """When arrival k (of all workers, from 0) is due; those after the last, which are never sent, would go on from
        the end at the mean rate."""
        if self._total is not None and k >= self._total:
            return (self.end_ns or 0) + round((k - self._total) * 1e9 / self._replayed.rate)
        if k < self._read - 1:
            self._due, self._read = self._replayed.due(), 0
        while self._read <= k:
            found = next(self._due, None)
            if found is None:
                if self._replayed.complete:
                    raise UsageError(f"{self._replayed.trace.path} has changed since the run began", "leave it alone")
                self._total = self._read  # the end, which was not known
                self.end_ns = self._latest + round(1e9 / self._replayed.rate)
                return self.offset_ns(k)
            self._latest, self._row = found
            self._read += 1
        return self._latest


def timed(trace: Trace, choice: Choice, quantum: float, dropped: Counter[str]) -> Iterator[Due]:
    found: Iterator[Due] = due(trace, Timing(choice.scale, quantum, choice.seed), dropped)
    if choice.requests is not None:
        found = _at_most(found, choice.requests)
    if choice.seconds is None:
        return found
    end_ns = choice.seconds * 1e9
    return takewhile(lambda one: one.at_ns < end_ns, found)


def _at_most(found: Iterator[Due], most: int) -> Iterator[Due]:
    for at_ns, row in found:
        yield Due(at_ns, shortened(row, most))
        most -= length(row)
        if most <= 0:
            return


def _heads(row: TraceRow, nonce: str) -> list[Head]:
    return [Head(f"nonce {nonce} {key}", n) for key, n in blocks(row.hash_ids, row.block_tokens, row.input_tokens or 0)]
