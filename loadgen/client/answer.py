"""One response on its way through our own transport, where its body goes, and what its reads were like."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from .probe import Probe
from .tcpinfo import SocketStats

if TYPE_CHECKING:
    from .connection import Connection

LAG_BIN_NS, LAG_BINS = 1024, 4096
FAR_BITS = 16  # of lags beyond these bins, 65 µs and less are told as the same


class Sink(Protocol):
    """Takes the body of one streamed answer: a `Tally`."""

    sent_ns: int

    def hold(self, data: bytes, stamp_ns: int, previous_read_ns: int) -> bool: ...
    def doubt(self, stamp_ns: int, previous_read_ns: int) -> None: ...
    def parse_pending(self, limit_events: int = ...) -> int: ...

    @property
    def media(self) -> str: ...
    @property
    def last_is_next(self) -> bool: ...
    @property
    def pending_bytes(self) -> int: ...
    @property
    def finished(self) -> bool: ...
    @property
    def failed(self) -> bool: ...
    @property
    def output_events(self) -> int: ...


class ReadStats:
    """What the reads of a step were like. `lag` counts reads by (user - kernel time) in bins of about 1 µs, and
    `lag_beyond` those beyond the last bin by that time >> FAR_BITS: of many streams in lockstep these are most."""

    __slots__ = ("lag", "lag_beyond", "reads", "sockets", "unstamped")

    def __init__(self) -> None:
        self.sockets = SocketStats()  # of those that are closed
        self.reads = 0
        self.unstamped = 0
        self.lag = array("L", bytes(array("L").itemsize * LAG_BINS))
        self.lag_beyond: dict[int, int] = {}


class Answer:
    """One response on its way: `head` resolves with status and headers, `end` when the body is complete."""

    __slots__ = ("body", "connection", "end", "head", "linger", "on_token", "probe", "resolved", "seen", "sink", "size")

    def __init__(self, loop: asyncio.AbstractEventLoop, probe: Probe, sink: Sink | None, on_token: Callable[[], None]):
        self.head: asyncio.Future[tuple[int, list[tuple[bytes, bytes]]]] = loop.create_future()
        self.end: asyncio.Future[None] = loop.create_future()
        self.probe = probe
        self.sink = sink
        self.on_token = on_token
        self.body: list[bytes] = []
        self.size = 0  # of the body that is kept here
        self.linger: asyncio.TimerHandle | None = None
        self.seen = 0  # output events that the timers know of
        self.connection: Connection | None = None
        self.resolved = False

    def fail(self, error: Exception) -> None:
        self._resolve()
        for future in (self.head, self.end):
            if not future.done():
                future.set_exception(error)
                future.exception()  # one of the two may never be awaited

    def _resolve(self) -> None:
        self.resolved = True
        if self.linger is not None:
            self.linger.cancel()

    def finish(self) -> None:
        self._resolve()
        if not self.end.done():
            self.end.set_result(None)
