"""What the events of one answer add up to, taken in as they come. Pure: stamps are passed in, never read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import Failure
from .dialects.base import CallPart, Dialect, MalformedEvent, Piece
from .dialects.reading import parse_json
from .entries import UNKNOWN, Entries
from .plain import Plain, counts_at, learn, text_at
from .sse import SSEEvent

LESSONS = 8  # how often the form of plain deltas may be learned in vain


class Call(NamedTuple):
    """A tool call as it is put together, as UTF-8."""

    name: bytearray
    arguments: bytearray


class Intake:
    """The running sums of one answer. `_take` adds the events of a read; see `Tally`, which is what others use."""

    __slots__ = (
        *("sent_ns", "_dialect", "_text", "_room", "_done_ns", "_done", "_closed", "_error"),
        *("_entries", "_output_events", "_first_token_ns", "_first_content_ns", "_last_token_ns", "_early_ids"),
        *("_prompt", "_completion", "_cached", "_finish_reason", "_server_id", "_choices", "_finished"),
        *("_malformed", "_ignored", "_plain", "_plain_read", "_tries", "_learned_at", "_calls", "_voice", "_around"),
        *("_speaker", "_turns", "_content_at"),
    )

    def __init__(
        self, dialect: Dialect, sent_ns: int, text_bytes: int, around: Callable[[str], tuple[bytes, bytes]]
    ) -> None:
        self.sent_ns = sent_ns
        self._dialect = dialect
        self._around = around  # what the framing puts around the data of an event of that name
        self._text = bytearray()  # the first text as UTF-8, at most text_bytes
        self._speaker = UNKNOWN  # the choice that spoke last
        self._turns: list[tuple[int, int]] = []  # (choice, where its text starts), whenever another one spoke
        self._content_at = -1  # where in it the first text is that is no reasoning
        self._calls: dict[tuple[int, int], Call] = {}  # by choice and index
        self._voice = self._text  # where plain deltas speak
        self._room = text_bytes  # what may still be added to text and calls
        self._done_ns: int | None = None
        self._done = False
        self._closed = False
        self._error: Failure | None = None

        self._entries = Entries()
        self._output_events = 0
        self._first_token_ns: int | None = None
        self._first_content_ns: int | None = None
        self._last_token_ns: int | None = None
        self._early_ids = 0  # token ids that came before the first output
        self._prompt: int | None = None  # the server's counts, the latest of each
        self._completion: int | None = None
        self._cached: int | None = None
        self._finish_reason: str | None = None
        self._server_id: str | None = None
        self._choices: set[int] = set()
        self._finished: set[int] = set()
        self._malformed = 0
        self._ignored = 0

        self._plain: Plain | None = None  # the form of plain deltas, once one was read
        self._plain_read: Plain | None = None  # the same for a whole read
        self._tries = LESSONS
        self._learned_at = -2 * LESSONS  # by output events

    def _over(self) -> bool:
        return self._done or self._closed or self._error is not None

    def _take(self, events: Sequence[SSEEvent], stamp_ns: int, previous_read_ns: int) -> None:
        """The events of one read: the last is exact, those before it are at most a read's distance late."""
        for place, event in enumerate(events):
            form = self._plain
            if form and event.name == form.name and self._is_plain(form, event.data, stamp_ns, previous_read_ns):
                continue
            self._not_the_last(stamp_ns, previous_read_ns)
            try:
                piece = self._dialect.read(event)
            except MalformedEvent:
                self._malformed += 1
                continue
            self._note(piece)
            if piece.has_output or not piece.done:
                self._add(piece, stamp_ns)
            if piece.done:
                self._done = True
                self._done_ns = stamp_ns
            if self._over():
                if place < len(events) - 1:
                    self._not_the_last(stamp_ns, previous_read_ns)
                return
            if piece.has_output and self._tries:
                self._learn(event, piece)

    def _not_the_last(self, stamp_ns: int, previous_read_ns: int) -> None:
        """Another event came in this read: the entry of this read, if any, was not its last event."""
        if self._entries.stamp_ns == stamp_ns:
            # Nothing arrives before it was asked for.
            self._entries.bound(stamp_ns - max(previous_read_ns, self.sent_ns))

    def _is_plain(self, form: Plain, data: bytes, stamp_ns: int, previous_read_ns: int) -> bool:
        """Takes an event that has this form; False, and nothing done, where it has not. The hot path: no JSON."""
        before, start, after, rest, choice, _ = form
        if not data.startswith(before):
            return False
        end = text_at(data, start).end()  # type: ignore[union-attr]  # it always matches, at the least nothing
        count = UNKNOWN
        if rest is None:
            if end == start or data[end:] != after:
                return False
        else:
            if end == start or not data.startswith(after, end):
                return False
            counts = counts_at(data, end + len(after))
            if counts is None or data[counts.end() :] != rest:
                return False
            if counts.lastindex:
                self._completion = count = int(counts[counts.lastindex])
        entries = self._entries
        if entries.stamp_ns == stamp_ns:
            self._not_the_last(stamp_ns, previous_read_ns)
        entries.stamp_ns = self._last_token_ns = stamp_ns
        self._output_events += 1
        try:
            entries.offsets_us.append((stamp_ns - self.sent_ns + 500) // 1000)
        except OverflowError:
            entries.push((stamp_ns - self.sent_ns + 500) // 1000)
        if count >= 0 or entries.beside:
            entries.put(count, UNKNOWN, choice)
        if self._room > 0:
            if choice != self._speaker:
                self._turn(choice)
            self._say(data[start:end])
        return True

    def _learn(self, event: SSEEvent, piece: Piece) -> None:
        """Learn the form of plain deltas from this event. A stream whose events hardly repeat one is given up."""
        if self._output_events - self._learned_at < 2 * LESSONS:
            self._tries -= 1
        self._plain = learn(self._dialect.read, event.data, piece, event.name)
        self._plain_read = None if self._plain is None else self._plain.in_a_read(*self._around(event.name))
        self._voice = self._text
        if self._plain is not None and piece.calls and self._room > 0:
            self._voice = self._call(piece.calls[0]).arguments
        self._learned_at = self._output_events

    def _note(self, piece: Piece) -> None:
        """What does not depend on when it came."""
        if piece.error is not None:
            self._error = piece.error
        if piece.ignored:
            self._ignored += 1
        if piece.usage is not None:
            prompt, completion, cached = piece.usage
            self._prompt = self._prompt if prompt is None else prompt
            self._completion = self._completion if completion is None else completion
            self._cached = self._cached if cached is None else cached
            if self._plain is not None and self._plain.rest is not None:
                self._plain = self._plain_read = None  # its events repeat what was the prompt's count then
        if piece.finish_reason is not None and self._finish_reason is None:
            self._finish_reason = piece.finish_reason
        if self._server_id is None:
            self._server_id = piece.server_id
        self._choices.update(piece.choices)
        self._finished.update(piece.finished)
        if self._room > 0:
            if piece.text:
                if piece.has_content and self._content_at < 0:
                    self._content_at = len(self._text)
                choice = piece.choices[0] if len(piece.choices) == 1 else UNKNOWN
                if choice != self._speaker:
                    self._turn(choice)
                self._add_text(piece.text, self._text)
            for part in piece.calls:
                self._add_call(part)

    def _turn(self, choice: int) -> None:
        self._speaker = choice
        self._turns.append((choice, len(self._text)))

    def _add_text(self, text: str, to: bytearray) -> None:
        data = text[: self._room].encode("utf-8", "replace")[: self._room]
        to += data
        self._room -= len(data)

    def _call(self, part: CallPart) -> Call:
        return self._calls.setdefault((part.choice, part.place), Call(bytearray(), bytearray()))

    def _add_call(self, part: CallPart) -> None:
        if self._room <= 0:
            return  # so there are never more calls than bytes to keep
        call = self._call(part)
        if part.name and part.name.encode("utf-8", "replace") != call.name:  # some servers say it with every part
            self._add_text(part.name, call.name)
        self._add_text(part.arguments, call.arguments)

    def _say(self, raw: bytes) -> None:
        """The inside of a JSON string."""
        if raw.isascii() and b"\\" not in raw:
            self._voice += raw[: self._room]
            self._room -= len(raw)
        else:
            self._add_text(parse_json(b'"%b"' % raw), self._voice)

    def _add(self, piece: Piece, stamp_ns: int) -> None:
        """Adds an entry for an event with output, or one that may turn out to show new tokens."""
        ids = piece.token_ids
        cumulative = piece.usage.completion if piece.usage is not None and piece.choices else None
        if piece.has_output:
            if self._output_events == 0:
                self._first_token_ns = stamp_ns
                ids = ids if ids is None else ids + self._early_ids
            self._output_events += 1
            self._last_token_ns = stamp_ns
            if piece.has_content and self._first_content_ns is None:
                self._first_content_ns = stamp_ns
        elif self._output_events == 0:
            self._early_ids += ids or 0
            return
        elif cumulative is None and not ids:
            return
        entries = self._entries
        entries.stamp_ns = stamp_ns
        entries.push((stamp_ns - self.sent_ns + 500) // 1000)
        entries.put(
            UNKNOWN if cumulative is None else cumulative,
            UNKNOWN if ids is None else ids,
            piece.choices[0] if len(piece.choices) == 1 else UNKNOWN,
            piece.has_output,
        )
