"""What all readers of other tools' logs share: fields by their type, and the making of a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ...errors import Failure, LogError
from ...records import Events, Flag, InputTokens, Outcome, OutputTokens, Record

_REMEDY = "the file was changed, or the tool writes it otherwise now; give it as it was written"
_FARTHEST = 4e18  # ns of wall time are near 2e18, and 64 bits hold 9e18


@dataclass(slots=True)
class Foreign:
    """A log of another tool: its `records`, and what it says of the run.

    `durations_s` is the time that the tool divides by, by step, where the log tells it. `notes` say what a reader of
    the figures has to know. `epoch_ns` is the wall time of the records' zero."""

    tool: str
    records: list[Record]
    version: str | None = None
    model: str | None = None
    url: str | None = None
    durations_s: dict[int, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    epoch_ns: int | None = None

    @property
    def manifest(self) -> dict[str, Any]:
        """What is known, under the names of our own manifest."""
        written = f"written by {self.tool}" + (f" {self.version}" if self.version else "")
        return {
            "status": "imported",
            "tool": {"name": self.tool, "version": self.version},
            "target": {"url": self.url} if self.url else None,
            "server": {"model": self.model} if self.model else None,
            "started_epoch_ns": self.epoch_ns,
            "notes": [written, *self.notes],
        }


class Entry:
    """A JSON value of a log, and where it stands there. Every method raises LogError for a value of another kind."""

    __slots__ = ("value", "where")

    def __init__(self, where: str, value: Any) -> None:
        self.where = where
        self.value = value

    def fault(self, what: str) -> LogError:
        return LogError(f"{self.where}: {what}", _REMEDY)

    def get(self, key: str) -> Any:
        if not isinstance(self.value, Mapping):
            raise self.fault(f"not a JSON object but {shown(self.value)}")
        return self.value.get(key)

    def object(self, key: str) -> Entry:
        """The object of this name; an empty one where there is none."""
        value = self.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.fault(f"{key} is {shown(value)}, not an object")
        return Entry(self.where, value or {})

    def items(self, key: str, size: int | None = None) -> list[Any] | None:
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.fault(f"{key} is {shown(value)}, not a list")
        if size is not None and len(value) != size:
            raise self.fault(f"{key} has {len(value):,} entries where there are {size:,} requests")
        return value

    def text(self, key: str) -> str | None:
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.fault(f"{key} is {shown(value)}, not text")
        return value

    def number(self, key: str) -> float | None:
        value = self.get(key)
        return None if value is None else self._finite(key, value)

    def must(self, key: str) -> float:
        value = self.number(key)
        if value is None:
            raise self.fault(f"{key} is missing")
        return value

    def count(self, key: str) -> int | None:
        """A whole number, not negative."""
        value = self.number(key)
        if value is not None and (value < 0 or value != int(value)):
            raise self.fault(f"{key} is {shown(self.get(key))}, not a count")
        return None if value is None else int(value)

    def numbers(self, key: str) -> list[float] | None:
        found = self.items(key)
        return None if found is None else [self._finite(f"{key}[{i}]", one) for i, one in enumerate(found)]

    def _finite(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise self.fault(f"{key} is {shown(value)}, not a number")
        if not -_FARTHEST <= value <= _FARTHEST:
            raise self.fault(f"{key} is {shown(value)}, which is out of range")
        return value


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "…"


def make_record(
    entry: Entry,
    *,
    name: str,
    step: int,
    concurrency: int,
    sent_ns: int | None,
    first_ns: int | None,
    last_ns: int | None,
    done_ns: int | None = None,
    scheduled_ns: int | None = None,
    event_ns: Sequence[int] | None = None,
    event_tokens: Sequence[int | None] | None = None,
    tokens_in: InputTokens,
    tokens_out: OutputTokens,
    outcome: Outcome = "ok",
    error: Failure | None = None,
    flags: tuple[Flag, ...] = (),
    finish_reason: str | None = None,
    model: str | None = None,
    phase: Any = "measured",
) -> Record:
    """A record of what an entry tells; LogError where its times cannot have been. `event_ns` are the output events'
    stamps, `event_tokens` their tokens; None is not logged. Unless told, a request was due when it was sent, and done
    with its last token."""
    stamps = [t for t in (sent_ns, first_ns, *(event_ns or ())[1:], last_ns) if t is not None]
    if any(abs(t) > _FARTHEST for t in (*stamps, done_ns or 0, scheduled_ns or 0)):
        raise entry.fault("a time is out of range")
    # The last event and the end may come from two sums of the same numbers: microseconds do not matter.
    wrong = next(((a, b) for a, b in pairwise(stamps) if b < a - 2000), None)
    if wrong:
        raise entry.fault(f"a time runs backwards, by {(wrong[0] - wrong[1]) / 1e6:g} ms, from the sending to the end")
    due = next((t for t in (scheduled_ns, sent_ns) if t is not None), 0)
    return Record(
        id=name,
        step=step,
        concurrency=concurrency,
        phase=phase,
        worker=0,
        scheduled_ns=due,
        sent_ns=sent_ns,
        connect=None,
        first_byte_ns=None,
        first_token_ns=first_ns,
        first_content_ns=None,
        last_token_ns=last_ns,
        done_ns=max([t for t in (done_ns, last_ns, first_ns, sent_ns) if t is not None], default=due),
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        first_event_tokens=None,
        events=None if event_ns is None or sent_ns is None else _events(sent_ns, event_ns, event_tokens),
        outcome=outcome,
        flags=flags,
        finish_reason=finish_reason,
        error=error,
        model=model,
    )


def _events(sent_ns: int, stamps: Sequence[int], tokens: Sequence[int | None] | None) -> Events:
    """Gaps in µs whose running sum does not drift from the stamps."""
    at = [0, *(max(0, round((stamp - sent_ns) / 1000)) for stamp in stamps)]
    return Events([max(0, b - a) for a, b in pairwise(at)], list(tokens) if tokens else [None] * len(stamps))
