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

from collections import deque
from dataclasses import dataclass

from ..errors import Failure
from ..records import FLAGS, Events, Flag, Outcome, TokenSource
from .dialects.base import CallPart, Dialect, MalformedEvent
from .intake import Intake
from .lines import LineParser
from .plain import Plain
from .sse import MAX_EVENT_BYTES, EventTooLong, SSEParser

EXCERPT_BYTES = 2048
HOLD_BYTES = 32 * 1024  # of a stream's raw text
LINES = "application/x-ndjson"
SHORT_READ = 64  # bytes; the end of a stream is shorter, a delta hardly ever


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
    calls: tuple[CallPart, ...] = ()  # as far as the excerpt goes


class Tally(Intake):
    """The accumulator of one answer: `feed` each read, `close` at the end of the body, then `result`.

    Or `hold` each read where reading must not wait, and `parse_pending` when there is time. One thread may hold while
    another parses; everything else is for one thread at a time. However the reads are held and parsed, the figures are
    the same.

    `sent_ns` may be set until the first read. A result can be had without a close (a timeout): it is then incomplete.
    """

    __slots__ = (
        *("_parser", "_ends", "_limit", "_excerpt_bytes", "_raw", "_last_read_ns", "_previous_read_ns", "_whole"),
        *("_pending", "_held", "_parsed", "_parsing", "_split", "_in_a_read"),
        "asked_events",
    )

    def __init__(
        self,
        dialect: Dialect,
        sent_ns: int,
        max_event_bytes: int = MAX_EVENT_BYTES,
        excerpt_bytes: int = EXCERPT_BYTES,
        text_bytes: int = 0,
    ) -> None:
        self._parser = (LineParser if dialect.media == LINES else SSEParser)(max_event_bytes)
        super().__init__(dialect, sent_ns, max(text_bytes, excerpt_bytes), self._parser.around)
        self._ends = self._parser.ends
        self._limit = max_event_bytes
        self._excerpt_bytes = excerpt_bytes
        self.asked_events: int | None = None  # how many output events there will be, if each is one token
        self._raw = bytearray()  # the first bytes as received, at most excerpt_bytes, until there is text
        self._last_read_ns: int | None = None
        self._previous_read_ns = 0
        self._whole = False

        # Reads that were held and are not parsed yet. Each counter has one writer.
        self._pending: deque[tuple[bytes, int, int]] = deque()
        self._held = 0
        self._parsed = 0
        self._parsing = False
        self._split = False  # the last read held ended within an event
        self._in_a_read: Plain | None = None  # what the next read is, if it is one plain delta

    @property
    def media(self) -> str:
        """The content type of the streams that are read here."""
        return self._dialect.media

    @property
    def finished(self) -> bool:
        """`[DONE]` was parsed: there is nothing more to wait for."""
        return self._done

    @property
    def failed(self) -> bool:
        """The server sent an error, or an event above the limit: there is nothing more to wait for."""
        return self._error is not None

    @property
    def output_events(self) -> int:
        """Output events parsed so far, for the timers of the first token and of the gap between tokens."""
        return self._output_events

    @property
    def last_is_next(self) -> bool:
        """Does one output event lack to those asked for?"""
        return self._output_events + 1 == self.asked_events

    @property
    def pending_bytes(self) -> int:
        """What is held and not parsed yet."""
        return self._held - self._parsed

    def hold(self, data: bytes, stamp_ns: int, previous_read_ns: int) -> bool:
        """A read as in `feed`, to be parsed later. Never raises.

        True: act on it now, by calling `parse_pending` until nothing is pending. It may be an error or the end of the
        stream, or too much is held. A plain delta like the ones before it needs no parsing and is taken at once.
        """
        # In this order: only this thread adds to what is pending; once that is empty and no parse runs, none can begin.
        if not self._pending and not self._parsing:
            form = self._in_a_read
            if form and len(data) <= self._limit and self._is_plain(form, data, stamp_ns, previous_read_ns):
                return False
        if self._over():
            return False
        split, self._split = self._split, not data.endswith(self._ends)
        self._pending.append((data, stamp_ns, previous_read_ns))
        self._held += len(data)
        return (
            self._split  # the rest of an error's name may come with the next read
            or split
            or len(data) < SHORT_READ
            or b"error" in data
            or b"[DONE]" in data
            or self._held - self._parsed > HOLD_BYTES
        )

    def doubt(self, stamp_ns: int, previous_read_ns: int) -> None:
        """Not even the last event of the read that was held last is exact: it came between these two."""
        self._pending.append((b"", stamp_ns, previous_read_ns))

    def parse_pending(self, limit_events: int = 64) -> int:
        """Parse what is held, in order, whole reads until about `limit_events`; returns the number of events.

        Whole reads: the last one may bring more. 0 means that nothing is left.
        """
        pending = self._pending
        self._parsing = True
        count = 0
        while pending and count < limit_events:
            data, stamp_ns, previous_read_ns = pending.popleft()
            count += self._read(data, stamp_ns, previous_read_ns)
            self._parsed += len(data)
        self._parsing = False
        return count

    def feed(self, data: bytes, stamp_ns: int, previous_read_ns: int) -> None:
        """A read, or a part of it: its bytes, its arrival, and the arrival of the read before it. Never raises.

        One read from the socket may hold several HTTP chunks; parts of a read come with the same stamps.
        """
        if self._pending:
            self._parse_all()
        self._split = not data.endswith(self._ends)
        self._read(data, stamp_ns, previous_read_ns)

    def close(self, stamp_ns: int, ended_cleanly: bool = True) -> None:
        """The end of the body: as the protocol says, or (not `ended_cleanly`) by a reset, a timeout or a cut."""
        self._parse_all()
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
        self._in_a_read = None
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
        self._parse_all()
        outcome, error = self._outcome()
        tokens = self._entries.tokens(self._total())
        count, source = self._count()
        events = self._entries.events(tokens)

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
        return TallyResult(
            outcome=outcome,
            error=error,
            flags=tuple(sorted(flags, key=FLAGS.index)),
            first_token_ns=self._first_token_ns,
            first_content_ns=self._first_content_ns,
            last_token_ns=self._last_token_ns,
            done_ns=self._done_ns,
            input_server=self._prompt,
            input_cached=self._cached,
            output_count=count,
            output_source=source,
            first_event_tokens=tokens[0] if tokens else None,  # the first entry always has output
            events=events,
            finish_reason=self._finish_reason,
            server_id=self._server_id,
            excerpt=None if outcome == "ok" else self._excerpt(),
            malformed_events=self._malformed,
            ignored_events=self._ignored,
            calls=self._call_parts() if self._calls else (),
        )

    def texts(self) -> list[str]:
        """The output's text, one for each choice and each tool call (its name and arguments). None at all where it is
        longer than what is kept, `text_bytes`."""
        self._parse_all()
        if self._room <= 0:
            return []
        choices: dict[int, bytearray] = {}
        ends = [start for _, start in self._turns[1:]] + [len(self._text)]
        for (choice, start), end in zip(self._turns, ends, strict=False):
            choices.setdefault(choice, bytearray()).extend(self._text[start:end])
        calls = (call.name + call.arguments for call in self._calls.values())
        return [text.decode("utf-8", "replace") for text in (*choices.values(), *calls) if text]

    def answer(self) -> str:
        """What the first choice said, without its reasoning: what a conversation goes on from."""
        self._parse_all()
        if not self._turns or self._content_at < 0:
            return ""
        said = bytearray()
        ends = [start for _, start in self._turns[1:]] + [len(self._text)]
        for (choice, start), end in zip(self._turns, ends, strict=True):
            if choice == self._turns[0][0] and end > self._content_at:
                said += self._text[max(start, self._content_at) : end]
        return said.decode("utf-8", "replace")

    # --- reads --------------------------------------------------------------------------------------------------------

    def _too_long(self, error: EventTooLong) -> None:
        if not self._over():
            self._error = Failure("event_too_long", str(error))

    def _parse_all(self) -> None:
        while self._pending:
            self.parse_pending()

    def _read(self, data: bytes, stamp_ns: int, previous_read_ns: int) -> int:
        """One read; the number of events in it."""
        if not data:  # see `doubt`
            self._not_the_last(stamp_ns, previous_read_ns)
            return 0
        form = self._in_a_read
        if form and len(data) <= self._limit and self._is_plain(form, data, stamp_ns, previous_read_ns):
            return 1
        if self._over():
            return 0
        if not self._text and not self._calls and len(self._raw) < self._excerpt_bytes:
            self._raw += data[: self._excerpt_bytes - len(self._raw)]
        self._last_read_ns, self._previous_read_ns = stamp_ns, previous_read_ns
        try:
            events = self._parser.feed(data)
        except EventTooLong as error:
            events = error.events
            self._take(events, stamp_ns, previous_read_ns)
            self._too_long(error)
        else:
            self._take(events, stamp_ns, previous_read_ns)
        self._in_a_read = None if self._over() or not self._parser.at_rest else self._plain_read
        return len(events)

    # --- figures ----------------------------------------------------------------------------------------------------

    def _call_parts(self) -> tuple[CallPart, ...]:
        return tuple(
            CallPart(*place, call.name.decode("utf-8", "ignore"), call.arguments.decode("utf-8", "ignore"))
            for place, call in sorted(self._calls.items())
        )

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
        return None if self._completion == 0 and self._output_events else self._completion

    def _count(self) -> tuple[int | None, TokenSource | None]:
        total = self._total()
        if total is not None:
            return total, "usage"
        if self._whole:
            return (self._early_ids, "token_ids") if self._early_ids else (None, None)
        ids = self._entries.token_ids()
        return (self._output_events, "events") if ids is None else (ids, "token_ids")

    def _is_short(self, asked: int | None, count: int | None, source: TokenSource | None) -> bool:
        if asked is None or count is None:
            return False
        if source == "events" and self._finish_reason in ("length", None):
            return False  # events are not tokens, and the server says that it reached the length, or nothing
        return count < asked * max(1, len(self._choices))

    def _excerpt(self) -> str | None:
        """The output's text and its tool calls, or the raw answer where there were none; at most `excerpt_bytes` of
        UTF-8."""
        if self._text or self._calls:
            calls = [b"%b(%b)" % (bytes(call.name), bytes(call.arguments)) for _, call in sorted(self._calls.items())]
            said = b"\n".join([*([self._text] if self._text else []), *calls])[: self._excerpt_bytes]
            return said.decode("utf-8", "ignore")  # only a character cut in two at the end is left out
        text = self._raw.decode("utf-8", "replace").encode()[: self._excerpt_bytes]
        return text.decode("utf-8", "ignore") or None
