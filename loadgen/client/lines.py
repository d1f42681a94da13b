"""One JSON value a line (NDJSON): bytes in, events out, as `sse` does it for its framing. No I/O and no clock.

1.  A line ends at LF; a CR before it is dropped. Lines that are empty or blank are none.
2.  What a stream leaves without a line end is its last line, delivered by `close()`.
3.  How the bytes were cut into reads never shows, and no byte is looked at twice.
4.  A line above `max_event_bytes` raises `EventTooLong`.
"""

from __future__ import annotations

from .sse import MAX_EVENT_BYTES, EventTooLong, SSEEvent

_BOM = b"\xef\xbb\xbf"


class LineParser:
    """An incremental parser of one stream, with the methods of `SSEParser`."""

    ends = (b"\n",)

    @staticmethod
    def around(name: str) -> tuple[bytes, bytes]:
        """What stands before and after the value of a line."""
        return b"", b"\n"

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._line: list[bytes] = []  # what came of the line that is not complete yet
        self._size = 0
        self._begun = False

    @property
    def at_rest(self) -> bool:
        """Between two lines."""
        return self._begun and not self._line

    def feed(self, data: bytes) -> list[SSEEvent]:
        """The lines that `data` completes, in order. Raises `EventTooLong`."""
        events: list[SSEEvent] = []
        *whole, rest = data.split(b"\n")
        for line in whole:
            self._add(line, events)
            self._end(events)
        if rest:
            self._add(rest, events)
        return events

    def close(self) -> list[SSEEvent]:
        """The end of the stream: what it left without a line end."""
        events: list[SSEEvent] = []
        self._end(events)
        return events

    def _add(self, data: bytes, events: list[SSEEvent]) -> None:
        self._size += len(data)
        if self._size > self._limit:
            raise EventTooLong(self._limit, events)
        self._line.append(data)

    def _end(self, events: list[SSEEvent]) -> None:
        line = b"".join(self._line)
        if not self._begun:
            line = line.removeprefix(_BOM)
        line = line.strip()
        if line:
            events.append(SSEEvent("message", line))
        self._line, self._size, self._begun = [], 0, True
