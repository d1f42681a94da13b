"""Server-sent events: bytes in, events out. No I/O and no clock, so that a caller stamps a read before it is parsed.

The rules, which follow the WHATWG text except where said:

1.  A line ends at LF, CR or CR LF and at nothing else: U+2028, U+0085, VT and FF are text. A CR ends its line at once;
    an LF that turns out to follow it, even in the next read, belongs to it.
2.  An empty line ends an event. An event without a `data` line is none.
3.  `data` lines are joined with LF; one space after the colon is dropped; a line without a colon is a field with an
    empty value. `event` names the event; `id`, `retry`, comments and unknown fields are ignored.
4.  A byte order mark is dropped at the very start, once, also when it comes in pieces.
5.  How the bytes were cut into reads never shows: the same bytes give the same events and leave the same state. No byte
    is scanned twice, so that the work is linear in the bytes however small the reads are.

Departures:

6.  `close()` delivers an event whose last empty line never came (the standard drops it): servers end with
    `data: [DONE]` and then the end of the body.
7.  An `error: {…}` line (llama.cpp) is delivered as an event named "error". With `data` in the same block, the error
    comes first.
8.  A line, or the data of one event, above `max_event_bytes` raises `EventTooLong`: no server can fill the memory.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_EVENT_BYTES = 8 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n?|\n")


class SSEEvent(NamedTuple):
    """One event: its name ("message" unless the server gave one) and its data, undecoded."""

    name: str
    data: bytes


class EventTooLong(Exception):  # noqa: N818
    """A line or an event is longer than `limit` bytes. `events` are those that the same read completed before it.

    The parser is of no further use.
    """

    def __init__(self, limit: int, events: list[SSEEvent]) -> None:
        super().__init__(f"one event of the stream is longer than {limit:,} bytes")
        self.limit = limit
        self.events = events


class SSEParser:
    """An incremental parser of one stream; see the module's rules. `vars()` of it is its whole state."""

    ends = (b"\n\n", b"\n\r\n", b"\r\r")  # of an event

    @staticmethod
    def around(name: str) -> tuple[bytes, bytes]:
        """What nearly all servers write before and after the data of an event of this name."""
        return b"data: " if name == "message" else b"event: %b\ndata: " % name.encode(), b"\n\n"

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._bom: bytes | None = b""  # what of a byte order mark was seen; None once that is settled
        self._after_cr = False  # the last byte was a CR: an LF right after it ends no second line
        self._line = bytearray()  # the line that is not complete yet
        self._data: list[bytes] | None = None  # the `data` lines of the event that is not complete yet
        self._error: list[bytes] | None = None  # its `error` lines
        self._held = 0  # bytes in these two
        self._name = ""

    def feed(self, data: bytes) -> list[SSEEvent]:
        """The events that `data` completes, in order. Raises `EventTooLong`."""
        if self._bom is not None:
            data = self._bom + data
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._bom = data
                return []
            self._bom = None
            data = data.removeprefix(_BOM)
        events: list[SSEEvent] = []
        if data.endswith(b"\n\n") and self.at_rest and b"\r" not in data:
            self._whole_events(data, events)
        else:
            self._any_bytes(data, events)
        return events

    def close(self) -> list[SSEEvent]:
        """The end of the stream: what it left incomplete, as if its line and its event had been ended."""
        events: list[SSEEvent] = []
        if self._bom:
            self._any_bytes(self._bom, events)
        self._bom = None
        if self._line:
            self._any_bytes(b"\n", events)
        self._dispatch(events)
        self._after_cr = False
        return events

    @property
    def at_rest(self) -> bool:
        """Between two events, with nothing remembered."""
        if self._bom is not None or self._after_cr or self._line or self._name:
            return False
        return self._data is None and self._error is None

    def _whole_events(self, data: bytes, events: list[SSEEvent]) -> None:
        """The fast path: whole events with LF endings, nearly always one `data` line each."""
        limit = self._limit
        blocks = data.split(b"\n\n")
        blocks.pop()  # what follows the last empty line: nothing
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block and len(block) <= limit:
                events.append(SSEEvent("message", block[6:]))
            elif block.startswith(b"event: ") and block.count(b"\n") == 1 and len(block) <= limit:
                name, _, line = block.partition(b"\n")
                if line.startswith(b"data: "):
                    events.append(SSEEvent(name[7:].decode("utf-8", "replace") or "message", line[6:]))
                else:
                    self._any_bytes(block + b"\n\n", events)
            else:
                self._any_bytes(block + b"\n\n", events)

    def _any_bytes(self, data: bytes, events: list[SSEEvent]) -> None:
        """The general path: any bytes, in any state."""
        start = 0
        if self._after_cr and data:
            self._after_cr = False
            if data.startswith(b"\n"):
                start = 1
        for match in _LINE_END.finditer(data, start):
            end = match.start()
            line = data[start:end]
            start = match.end()
            if self._line:
                self._line += line
                line = bytes(self._line)
                self._line.clear()
            if line:
                self._field(line, events)
            else:
                self._dispatch(events)
            if start == len(data) and data.endswith(b"\r"):
                self._after_cr = True
        self._line += data[start:]
        if len(self._line) > self._limit:
            raise EventTooLong(self._limit, events)

    def _field(self, line: bytes, events: list[SSEEvent]) -> None:
        """One line that is not empty, without its end."""
        if len(line) > self._limit:
            raise EventTooLong(self._limit, events)
        if line.startswith(b"data:"):
            value = line[6:] if line.startswith(b" ", 5) else line[5:]
            self._data = [] if self._data is None else self._data
            lines = self._data
        elif line.startswith(b":"):
            return
        else:
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                self._data = [] if self._data is None else self._data
                lines = self._data
            elif name == b"error" and value:
                self._error = [] if self._error is None else self._error
                lines = self._error
            else:
                if name == b"event":
                    self._name = value.decode("utf-8", "replace")
                return
        lines.append(value)
        self._held += len(value) + 1
        if self._held > self._limit + 1:  # the last line brings no LF
            raise EventTooLong(self._limit, events)

    def _dispatch(self, events: list[SSEEvent]) -> None:
        """An empty line."""
        if self._error is not None:
            events.append(SSEEvent("error", b"\n".join(self._error)))
            self._error = None
        if self._data is not None:
            events.append(SSEEvent(self._name or "message", b"\n".join(self._data)))
            self._data = None
        self._held = 0
        self._name = ""
