"""What a run's processes say to each other: JSON lines through pipes, none of which ever blocks an event loop. Between
machines the pipe is a TCP connection.

A line is an array, its kind first; all times are ns of CLOCK_MONOTONIC since the run's start, which all processes
share. A worker on another machine has a clock of its own: it is told when on that clock the run began.

    to a worker     {configuration}                     the first line
                    clock n · zero at                   of another machine: tell your clock; the run's start on it
                    step {part} · go at · open at, sample · close at · end why, detail, drain_s · quit
    from a worker   ready · set                         configured; the step's connections can be opened
                    clock n, at                         what was asked for
                    now at, {counters}                  some times a second, also as a sign of life
                    done start, end, [record]           a request has ended and is in the part file
                    over {observation}                  nothing is in flight any more
                    fault message, remedy               the part file cannot be written
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import orjson

from ..errors import Failure
from ..records import Attempt, Connect, Events, InputTokens, OutputTokens, Record
from ..results import ClientHealth, Lag

READ_BYTES = 1 << 18
# What the deciding process has no use for; the part file holds it.
_LEFT_OUT = {"finish_reason", "excerpt", "server_id", "peer", "model", "source_id"}
_NAMES = tuple(field.name for field in fields(Record) if field.name not in _LEFT_OUT)
_VALUES = attrgetter(*_NAMES)
_EVENTS, _ERROR = _NAMES.index("events"), _NAMES.index("error")
_PARTS: dict[str, type] = {
    "connect": Connect,
    "input_tokens": InputTokens,
    "output_tokens": OutputTokens,
    "events": Events,
    "error": Failure,
}


class LinePipe:
    """Lines over two descriptors of this process, on the running event loop. `heard` gets each line as it comes,
    `ended` is called once, when the other side has gone; `close` closes both."""

    def __init__(self, source: int, sink: int, heard: Callable[[Any], None], ended: Callable[[], None]) -> None:
        self._source, self._sink = source, sink
        self._heard, self._ended = heard, ended
        self._in, self._out = bytearray(), bytearray()
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._waits = False  # for room in the sink
        os.set_blocking(source, False)
        os.set_blocking(sink, False)
        self._loop.add_reader(source, self.read)

    def say(self, *message: Any) -> None:
        """Queue a line; `flush` sends what is queued."""
        self.add(orjson.dumps(message))

    def add(self, line: bytes) -> None:
        self._out += line
        self._out += b"\n"

    def flush(self) -> None:
        if not self._open or self._waits:
            return
        while self._out:
            try:
                del self._out[: os.write(self._sink, self._out)]
            except BlockingIOError:
                self._waits = True
                self._loop.add_writer(self._sink, self._room)
                return
            except OSError:  # who does not read any more is found to have gone by reading
                self._out.clear()

    def read(self) -> None:
        """Take what has come. Called by the loop; it does no harm at other times."""
        while self._open:
            try:
                data = os.read(self._source, READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                self._ended()
                return
            start = len(self._in)
            self._in += data
            last = self._in.rfind(b"\n", start)
            if last >= 0:
                lines = bytes(self._in[:last]).split(b"\n")
                del self._in[: last + 1]
                for line in lines:
                    self._heard(orjson.loads(line))

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._source)
        if self._waits:
            self._loop.remove_writer(self._sink)
        for descriptor in (self._source, self._sink):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _room(self) -> None:
        self._loop.remove_writer(self._sink)
        self._waits = False
        self.flush()


def pack(record: Record, *, events: bool) -> bytes:
    """A record without what only its log needs, as a JSON array; its events only where they are asked for."""
    values = list(_VALUES(record))
    if not events:
        values[_EVENTS] = None
    if record.error is not None:
        # A server's words may hold what is no Unicode; a code may be past 64 bits.
        words = record.error.message.encode("utf-8", "replace").decode()
        values[_ERROR] = Failure(record.error.kind, words)
    return orjson.dumps(values)


def unpack(values: Sequence[Any]) -> Record:
    """What was packed."""
    found: dict[str, Any] = {**dict.fromkeys(_LEFT_OUT), **dict(zip(_NAMES, values, strict=True))}
    for name, kind in _PARTS.items():
        if found[name] is not None:
            found[name] = kind(**found[name])
    if found["events"] is not None:
        found["events"].bounded[:] = [(index, bound_us) for index, bound_us in found["events"].bounded]
    found["flags"] = tuple(found["flags"])
    found["shared"] = None if found["shared"] is None else tuple(found["shared"])
    found["attempts"] = tuple(Attempt(**attempt) for attempt in found["attempts"])
    return Record(**found)


def unpack_health(found: dict[str, Any]) -> ClientHealth:
    """The fields of a `ClientHealth`, as JSON has them → the figures."""
    figures: dict[str, Any] = {k: Lag(**v) if isinstance(v, dict) else v for k, v in found.items()}
    return ClientHealth(**figures)
