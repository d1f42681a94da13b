"""The conversations of a trace as they are sent: what of their rows waits for what. Pure.

    a row with a time     at its time, and not before the answer to its session's row before it is complete (`after`)
    a row with a delay    so long after that answer (`then`)
    a text of a session   likewise, with all that was said before: the user's texts and the server's answers (`then`)
    a turn of our own run as its conversation made it, at its time, and not before that answer is complete (`then`)

A turn that fails ends what was to follow it by `then`, not the rows with times of their own. A conversation whose next
turn might not fit the server's context is ended before it, and its last record flagged `context_cut`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ...records import Prompt, Record
from ..sessions import READ_AGAIN, SLACK_TOKENS, Conversation
from .row import TraceRow

SESSIONS = 50_000  # whose latest turn is known: of more, those that have been silent longest are forgotten
MOST_ROWS = 10_000  # of one conversation, that stand together


@dataclass(frozen=True, slots=True)
class Link:
    """How the rows of a trace follow each other: with what was said before (`history`), within `context` tokens, of
    which a template takes `around`; waits are divided by `scale`. `make` makes the prompt of a row that has no text."""

    make: Callable[[TraceRow, str], Prompt]
    history: bool = False
    scale: float = 1.0
    context: int | None = None
    around: int = 0


_NONE = Prompt()


def _nothing() -> None:
    pass


class Turns:
    """A row and those that follow it by `then` (`records.Then`); what waits for the last of them (`records.After`)."""

    # Many are kept (`SESSIONS`).
    __slots__ = (
        "_answer",
        "_at_s",
        "_began_ns",
        "_link",
        "_name",
        "_prompt",
        "_rest",
        "_talk",
        "_wake",
        "cut",
        "done_ns",
        "keeps",
    )

    def __init__(self, link: Link, row: TraceRow, name: str, talk: Conversation | None = None) -> None:
        self._link, self._name = link, name
        self._talk = talk  # of a run of our own: it says what comes next
        self._rest = list(row.rest)
        self._prompt = _NONE
        self._answer = ""
        self._began_ns: int | None = None
        self._at_s = row.at_s
        self._wake: Callable[[], None] = _nothing
        self.keeps = (link.history if talk is None else talk.keeps) and bool(self._rest)
        self.cut = False
        self.done_ns: int | None = None

    @property
    def more(self) -> bool:
        return bool(self._rest)

    def open(self, prompt: Prompt, session: int, turn: int) -> Prompt:
        """The first of them, whose text is made."""
        if self._talk is not None:
            prompt = self._talk.open(prompt)
        first = replace(prompt, session=session, turn=turn, then=self)
        if self._rest:
            self._prompt = first
        else:  # nobody needs them any more, and many of these are kept
            self._talk = None
        return first

    def call(self, wake: Callable[[], None]) -> None:
        """Have this called once the last of them has ended; at once, if it has."""
        if self.done_ns is None:
            self._wake = wake
        else:
            wake()

    def heard(self, text: str) -> None:
        """The answer to the turn that was sent last."""
        self._answer = text
        if self._talk is not None:
            self._talk.heard(text)

    def next(self, record: Record) -> tuple[int, Prompt] | None:
        """The row after the one of this record, and how long it waits in ns; None where no more follows."""
        if self._began_ns is None:
            self._began_ns = record.scheduled_ns
        following = self._following(record) if record.outcome == "ok" and self._rest else None
        if following is None:
            self.done_ns = record.done_ns
            self._prompt, self._rest, self._answer, self._talk = _NONE, [], "", None
            self._wake()
            self._wake = _nothing
        return following

    def _following(self, record: Record) -> tuple[int, Prompt] | None:
        row, last, link = self._rest.pop(0), self._prompt, self._link
        if self._talk is not None:
            said = self._talk.next(record)
            if said is None:
                self.cut = self._talk.cut
                return None
            self._prompt = replace(said[1], session=last.session, then=self)
            self.keeps = self._talk.keeps and bool(self._rest)
            return self._wait_ns(row, record), self._prompt
        spoken = record.output_tokens.count or record.output_tokens.asked or 0
        if link.history and row.text is not None:
            spoken = min(math.ceil(spoken * READ_AGAIN), len(self._answer.encode("utf-8", "replace")))
            before = record.input_tokens.server or last.input_tokens or 0
            needed = before + spoken + (row.input_tokens or 0) + (row.output_tokens or 0) + link.around + SLACK_TOKENS
            if link.context is not None and needed > link.context:
                self.cut = True
                return None
        prompt = link.make(row, f"{self._name}.{(last.turn or 1) + 1}")
        history = (*last.history, last.text, self._answer) if link.history else ()
        self._answer = ""
        self._prompt = replace(
            prompt, session=last.session, turn=(last.turn or 1) + 1, history=history, then=self, shared=None
        )
        self.keeps = link.history and bool(self._rest)
        return self._wait_ns(row, record), self._prompt

    def _wait_ns(self, row: TraceRow, record: Record) -> int:
        if row.delay_s is not None:
            return max(0, round(row.delay_s * 1e9 / self._link.scale))
        if row.at_s is not None and self._at_s is not None:
            due = (self._began_ns or 0) + (row.at_s - self._at_s) * 1e9 / self._link.scale
            return max(0, round(due - record.done_ns))
        return 0


class Sessions:
    """The latest turn of each session of a trace that is sent at its times."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._latest: OrderedDict[str, tuple[int, int, Turns]] = OrderedDict()

    def linked(self, row: TraceRow, index: int, prompt: Prompt, talk: Conversation | None = None) -> Prompt:
        """The prompt of row `index` as a turn of its session, which waits for the one before it."""
        if row.session is None:
            return prompt
        turns = Turns(self._link, row, str(index), talk)
        number, turn, before = self._latest.pop(row.session, (index, 0, None))
        self._latest[row.session] = number, turn + 1 + len(row.rest), turns
        if len(self._latest) > SESSIONS:
            self._latest.popitem(last=False)
        return replace(turns.open(prompt, number, turn + 1), after=before)


def together(rows: Iterator[TraceRow]) -> Iterator[TraceRow]:
    """The rows with those that follow each in the file and are of its session as their `rest`."""
    first: TraceRow | None = None
    rest: list[TraceRow] = []
    for row in rows:
        if first is not None and _goes_on(first, row) and len(rest) < MOST_ROWS:
            rest.append(row)
            continue
        if first is not None:
            yield first._replace(rest=rest)
        first, rest = row, []
    if first is not None:
        yield first._replace(rest=rest)


def _goes_on(first: TraceRow, row: TraceRow) -> bool:
    return row.session is not None and row.session == first.session and row.turn != 1


def length(row: TraceRow) -> int:
    """How many requests it is, with those that follow it."""
    return 1 + len(row.rest)


def waits(row: TraceRow) -> float:
    """How long those that follow a row wait in all, in s of the trace."""
    last = row.rest[-1].at_s if row.rest else None
    return sum(one.delay_s or 0.0 for one in row.rest) + (last - (row.at_s or 0.0) if last is not None else 0.0)


def shortened(row: TraceRow, most: int) -> TraceRow:
    """The row with those that follow it, `most` requests in all."""
    return row if len(row.rest) < most else row._replace(rest=row.rest[: most - 1])
