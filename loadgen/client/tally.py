"""Turns the stamped bytes of one answer into the figures of its record. Pure: stamps are passed in, never read.

All stamps are integers in ns on one clock. The definitions are those of the metrics page; what it leaves open is
settled here:

- An event that is not JSON, or JSON of no known shape, is counted and the stream goes on.
- After `[DONE]` or an error event nothing counts any more.
- Token counts of single events come from cumulative usage: the growth since the event before. Where that event gave no
  count, the growth belongs to several events and is unknown for each. A usage that came only once, at the end,
  therefore says nothing of single events. Counts that add up to more than the server's total, or to nothing, are
  dropped.
- An event without output that shows new tokens stands among the events with its tokens. Before the first output its
  tokens belong to the first output event. A usage event without choices is a sum, not an arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from ..errors import Failure
from ..records import FLAGS, Events, Flag, Outcome, TokenSource
from .dialects.base import Dialect, MalformedEvent, Piece, Usage
from .sse import MAX_EVENT_BYTES, EventTooLong, SSEEvent, SSEParser

EXCERPT_BYTES = 2048


@dataclass(frozen=True, slots=True)
class TallyResult:
    """What one answer came to; the fields are those of `Record`, and stamps are on the clock they were given in.

    `outcome` is what the bytes alone imply: ok, empty, incomplete or error. `error` is set unless it is ok.
    """

    outcome: Outcome
    error: Failure | None
    flags: tuple[Flag, ...]
    first_token_ns: int | None
    first_content_ns: int | None
    last_token_ns: int | None
    done_ns: int | None
    input_server: int | None
    input_cached: int | None
    output_count: int | None
    output_source: TokenSource | None
    first_event_tokens: int | None
    events: Events
    finish_reason: str | None
    server_id: str | None
    excerpt: str | None
    malformed_events: int
    ignored_events: int


class Tally:
    """The accumulator of one answer: `feed` each read, `close` at the end of the body, then `result`.

    `sent_ns` may be set until the first read. A result can be had without a close (a timeout): it is then incomplete.
    """

    def __init__(
        self,
        dialect: Dialect,
        sent_ns: int,
        max_event_bytes: int = MAX_EVENT_BYTES,
        excerpt_bytes: int = EXCERPT_BYTES,
    ) -> None:
        self.sent_ns = sent_ns
        self._dialect = dialect
        self._parser = SSEParser(max_event_bytes)
        self._excerpt_bytes = excerpt_bytes
        self._raw = bytearray()  # the first bytes as received, at most excerpt_bytes
        self._text: list[str] = []
        self._text_bytes = 0
        self._last_read_ns: int | None = None
        self._previous_read_ns = 0
        self._done_ns: int | None = None
        self._done = False
        self._closed = False
        self._error: Failure | None = None
        self._whole = False

        # One entry for each event that carries output or shows new tokens.
        self._at_ns: list[int] = []
        self._late_ns: list[int] = []
        self._cumulative: list[int | None] = []
        self._ids: list[int | None] = []
        self._choice: list[int] = []  # -1 where an event carries several
        self._has_output: list[bool] = []

        self._output_events = 0
        self._first_content_ns: int | None = None
        self._last_token_ns: int | None = None
        self._early_ids = 0  # token ids that came before the first output
        self._usage: Usage | None = None
        self._finish_reason: str | None = None
        self._server_id: str | None = None
        self._choices: set[int] = set()
        self._finished: set[int] = set()
        self._malformed = 0
        self._ignored = 0

    @property
    def finished(self) -> bool:
        """`[DONE]` came: there is nothing more to wait for."""
        return self._done

    @property
    def failed(self) -> bool:
        """The server sent an error, or an event above the limit: there is nothing more to wait for."""
        return self._error is not None

    @property
    def output_events(self) -> int:
        """Output events so far, for the timers of the first token and of the gap between tokens."""
        return self._output_events

    def feed(self, data: bytes, stamp_ns: int, previous_read_ns: int) -> None:
        """A read, or a part of it: its bytes, its arrival, and the arrival of the read before it. Never raises.

        One read from the socket may hold several HTTP chunks; parts of a read come with the same stamps.
        """
        if self._over():
            return
        if len(self._raw) < self._excerpt_bytes:
            self._raw += data[: self._excerpt_bytes - len(self._raw)]
        self._last_read_ns, self._previous_read_ns = stamp_ns, previous_read_ns
        try:
            events = self._parser.feed(data)
        except EventTooLong as error:
            self._take(error.events, stamp_ns, previous_read_ns)
            self._too_long(error)
        else:
            self._take(events, stamp_ns, previous_read_ns)

    def close(self, stamp_ns: int, ended_cleanly: bool = True) -> None:
        """The end of the body: as the protocol says, or (not `ended_cleanly`) by a reset, a timeout or a cut."""
        if self._closed:
            return
        if not self._over():
            # What lacks only its empty line arrived with the last read. Half an event is no fault of the server's
            # when the connection broke.
            malformed, ignored = self._malformed, self._ignored
            arrived = stamp_ns if self._last_read_ns is None else self._last_read_ns
            try:
                self._take(self._parser.close(), arrived, self._previous_read_ns)
            except EventTooLong as error:
                self._too_long(error)
            if not ended_cleanly:
                self._malformed, self._ignored = malformed, ignored
        self._closed = True
        if self._done_ns is None:
            self._done_ns = stamp_ns

    def whole(
        self, payload: bytes, stamp_ns: int, asked_output: int | None, *, usage_asked: bool = True
    ) -> TallyResult:
        """The result where a whole JSON completion came in place of a stream, complete at `stamp_ns`.

        It has an end and counts but no first token and no events, and is flagged `not_streamed`.
        """
        self._whole = True
        self._raw += payload[: self._excerpt_bytes]
        try:
            piece = self._dialect.read_whole(payload)
        except MalformedEvent as error:
            self._error = Failure("content_type", f"the answer is neither an event stream nor a completion: {error}")
        else:
            self._note(piece)
            if piece.ignored and self._error is None:
                self._error = Failure(
                    "content_type", "the answer is JSON, but neither an event stream nor a completion"
                )
            if piece.has_output:
                self._output_events = 1
                self._last_token_ns = stamp_ns
                self._early_ids = piece.token_ids or 0
            self._done = self._error is None
        self.close(stamp_ns)
        return self.result(asked_output, usage_asked=usage_asked)

    def result(self, asked_output: int | None, *, usage_asked: bool = True) -> TallyResult:
        """The figures. `asked_output` is the length asked for, per choice; `usage_asked` whether usage was."""
        outcome, error = self._outcome()
        tokens = self._event_tokens()
        count, source = self._count(tokens)
        events = self._events(tokens)
        first_event_tokens = next(iter(compress(tokens, self._has_output)), None)
        first_token_ns = next(iter(compress(self._at_ns, self._has_output)), None)

        flags: set[Flag] = set()
        if outcome in ("ok", "empty") and usage_asked and source != "usage":
            flags.add("usage_missing")
        if outcome == "ok" and self._is_short(asked_output, count, source):
            flags.add("short_output")
        if self._malformed:
            flags.add("malformed_events")
        if self._ignored:
            flags.add("ignored_events")
        if events.bounded:
            flags.add("bounded")
        if self._whole:
            flags.add("not_streamed")
        usage = self._usage or Usage()
        return TallyResult(
            outcome=outcome,
            error=error,
            flags=tuple(sorted(flags, key=FLAGS.index)),
            first_token_ns=first_token_ns,
            first_content_ns=self._first_content_ns,
            last_token_ns=self._last_token_ns,
            done_ns=self._done_ns,
            input_server=usage.prompt,
            input_cached=usage.cached,
            output_count=count,
            output_source=source,
            first_event_tokens=first_event_tokens,
            events=events,
            finish_reason=self._finish_reason,
            server_id=self._server_id,
            excerpt=None if outcome == "ok" else self._excerpt(),
            malformed_events=self._malformed,
            ignored_events=self._ignored,
        )

    # --- taking events in -------------------------------------------------------------------------------------------

    def _over(self) -> bool:
        return self._done or self._closed or self._error is not None

    def _too_long(self, error: EventTooLong) -> None:
        if not self._over():
            self._error = Failure("event_too_long", str(error))

    def _take(self, events: Sequence[SSEEvent], stamp_ns: int, previous_read_ns: int) -> None:
        """The events of one read: the last is exact, those before it are at most a read's distance late."""
        late_ns = max(0, stamp_ns - max(previous_read_ns, self.sent_ns))  # nothing arrives before it was asked for
        last = len(events) - 1
        if events and self._at_ns and self._at_ns[-1] == stamp_ns:
            self._late_ns[-1] = late_ns  # an earlier part of this read ended with it: it was not the read's last event
        for place, event in enumerate(events):
            try:
                piece = self._dialect.read(event)
            except MalformedEvent:
                self._malformed += 1
                continue
            self._note(piece)
            if piece.done:
                self._done = True
                self._done_ns = stamp_ns
            else:
                self._add(piece, stamp_ns, late_ns if place < last else 0)
            if self._over():
                return

    def _note(self, piece: Piece) -> None:
        """What does not depend on when it came."""
        if piece.error is not None:
            self._error = piece.error
        if piece.ignored:
            self._ignored += 1
        if piece.usage is not None:
            old, new = self._usage or Usage(), piece.usage
            self._usage = Usage(*(a if b is None else b for a, b in zip(old, new, strict=True)))
        if piece.finish_reason is not None and self._finish_reason is None:
            self._finish_reason = piece.finish_reason
        if self._server_id is None:
            self._server_id = piece.server_id
        self._choices.update(piece.choices)
        self._finished.update(piece.finished)
        if piece.text and self._text_bytes < self._excerpt_bytes:
            text = piece.text[: self._excerpt_bytes - self._text_bytes]
            self._text.append(text)
            self._text_bytes += len(text.encode("utf-8", "replace"))

    def _add(self, piece: Piece, stamp_ns: int, late_ns: int) -> None:
        """Adds an entry for an event with output, or one that may turn out to show new tokens."""
        ids = piece.token_ids
        cumulative = piece.usage.completion if piece.usage is not None and piece.choices else None
        if piece.has_output:
            if self._output_events == 0 and ids is not None:
                ids += self._early_ids
            self._output_events += 1
            self._last_token_ns = stamp_ns
            if piece.has_content and self._first_content_ns is None:
                self._first_content_ns = stamp_ns
        elif self._output_events == 0:
            self._early_ids += ids or 0
            return
        elif cumulative is None and not ids:
            return
        self._at_ns.append(stamp_ns)
        self._late_ns.append(late_ns)
        self._cumulative.append(cumulative)
        self._ids.append(ids)
        self._choice.append(piece.choices[0] if len(piece.choices) == 1 else -1)
        self._has_output.append(piece.has_output)

    # --- figures ----------------------------------------------------------------------------------------------------

    def _outcome(self) -> tuple[Outcome, Failure | None]:
        if self._error is not None:
            return "error", self._error
        # Without [DONE], each choice must have said that it ended.
        if not self._done and not (
            self._closed and self._finish_reason is not None and self._choices <= self._finished
        ):
            return "incomplete", Failure("incomplete", "the stream ended without [DONE] and without a finish reason")
        if self._output_events == 0:
            return "empty", Failure("empty", "the answer ended as it should but held no output")
        return "ok", None

    def _total(self) -> int | None:
        """The server's count; a zero beside output is a counter that never ran."""
        total = self._usage.completion if self._usage is not None else None
        return None if total == 0 and self._output_events else total

    def _event_tokens(self) -> list[int | None]:
        """The tokens of each entry, None where unknown."""
        total = self._total()
        growth = self._growth(total)
        tokens = [own if own is not None else ids for own, ids in zip(growth, self._ids, strict=True)]
        known = sum(own or 0 for own in tokens)
        if known == 0 or (total is not None and known > total):
            return [None] * len(tokens)
        if tokens and tokens[0] == 0:
            tokens[0] = None  # the server counts one event behind: the first cannot be without a token
        return tokens

    def _growth(self, total: int | None) -> list[int | None]:
        """By how much the cumulative usage grew with each entry.

        With several choices a server counts either all of them together or each on its own (vLLM): the way that adds up
        to the total is taken.
        """
        if len(self._choices) > 1 and -1 not in self._choice:
            each = growth_of(self._cumulative, self._choice)
            if total is not None and sum(own or 0 for own in each) == total:
                return each
        return growth_of(self._cumulative, [0] * len(self._cumulative))

    def _count(self, tokens: Sequence[int | None]) -> tuple[int | None, TokenSource | None]:
        total = self._total()
        if total is not None:
            return total, "usage"
        if self._whole:
            return (self._early_ids, "token_ids") if self._early_ids else (None, None)
        outputs = list(compress(self._ids, self._has_output))
        if outputs and None not in outputs:
            return sum(ids or 0 for ids in self._ids), "token_ids"
        return self._output_events, "events"

    def _is_short(self, asked: int | None, count: int | None, source: TokenSource | None) -> bool:
        if asked is None or count is None or self._finish_reason is None:
            return False
        if source == "events" and self._finish_reason == "length":
            return False  # events are not tokens, and the server says that it reached the length
        return count < asked * max(1, len(self._choices))

    def _events(self, tokens: Sequence[int | None]) -> Events:
        """Entries without output stay only where they are known to bring tokens."""
        events = Events()
        before_us = 0
        for at, late, own, output in zip(self._at_ns, self._late_ns, tokens, self._has_output, strict=True):
            if not output and not own:
                continue
            # Rounding each offset, not each gap, keeps the running sum within half a µs of the stamps.
            offset_us = (at - self.sent_ns + 500) // 1000
            if late:
                events.bounded.append((len(events.gap_us), -(-late // 1000)))
            events.gap_us.append(offset_us - before_us)
            events.tokens.append(own)
            before_us = offset_us
        return events

    def _excerpt(self) -> str | None:
        """The output's text, or the raw answer where there was none; at most `excerpt_bytes` of UTF-8."""
        raw = "".join(self._text).encode("utf-8", "replace") or bytes(self._raw)
        text = raw.decode("utf-8", "replace").encode()[: self._excerpt_bytes]
        return text.decode("utf-8", "ignore") or None


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
