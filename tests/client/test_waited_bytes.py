"""Bytes that had to wait for others, which the network lost or overtook, bear a stamp from when they came. When they
could be read is known only as between two reads, and none of it is the client's lag."""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from loadgen.client.addresses import Place
from loadgen.client.answer import Answer, ReadStats
from loadgen.client.clock import SECOND_NS, Clock
from loadgen.client.connection import Connection
from loadgen.client.dialects import DIALECTS
from loadgen.client.probe import Probe, nothing
from loadgen.client.tally import Tally
from loadgen.client.tcpinfo import INFO_BYTES, OUT_OF_ORDER
from tests.client.streams import MS, C, chunk

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"


class Socket:
    """Gives its reads out, each with a stamp that many ms ago, on a connection with so many segments in disorder."""

    def __init__(self, reads: list[tuple[bytes, int]], disordered: int) -> None:
        self.reads, self.disordered = reads[::-1], disordered
        self.real: list[int] = []

    def fileno(self) -> int:
        return -1

    def getpeername(self) -> tuple[str, int]:
        return "h", 1

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        info = bytearray(INFO_BYTES)
        struct.pack_into("=I", info, OUT_OF_ORDER, self.disordered)
        return bytes(info)

    def recvmsg(self, size: int, room: int) -> tuple[bytes, list[Any], int, None]:
        data, ago_ms = self.reads.pop()
        real = time.time_ns() - ago_ms * MS
        self.real.append(real)
        return data, [(0, 0, struct.pack("qq", *divmod(real, SECOND_NS)))], 0, None


def read_all(reads: list[tuple[bytes, int]], disordered: int, look_ms: int) -> tuple[Tally, ReadStats, Clock]:
    """Each read finds that the sockets were last looked at `look_ms` before it."""

    async def main() -> tuple[Tally, ReadStats, Clock]:
        stats, clock = ReadStats(), Clock()
        reactor = SimpleNamespace(clock=clock, looked_ns=0, leave=nothing, post=lambda call, *words: call(*words))
        owner: Any = SimpleNamespace(reactor=reactor, stats=stats, held=[], rearm_ns=0, release=lambda connection: None)
        fake: Any = Socket(reads, disordered)
        connection = Connection(owner, fake, ("http", "h", 1), Place("h", 2, ("h", 1)), None)
        sent = time.monotonic_ns() - 1000 * MS
        tally = Tally(DIALECTS["chat"], sent)
        probe = Probe(nothing)
        answer = Answer(asyncio.get_running_loop(), probe, tally, nothing)
        connection.begin(answer)
        connection.last_read_ns = probe.last_read_ns = probe.sent_ns = sent
        for _ in range(len(reads)):
            reactor.looked_ns = time.monotonic_ns() - look_ms * MS
            connection._read()
        tally.close(time.monotonic_ns())
        return tally, stats, clock

    return asyncio.run(main())


# The event that is told late; the last one ends the answer with the same read.
@pytest.mark.parametrize("late", [1, 2, 3])
@pytest.mark.parametrize("look_ms", [3, 50], ids=["looked at since", "not looked at since"])
@pytest.mark.parametrize("disordered", [0, 2])
def test_l31_an_event_that_waited_is_bounded(disordered: int, look_ms: int, late: int) -> None:
    last = chunk("stop", content="d")
    events = [C("a"), C("b"), C("c"), last]
    reads = [(HEAD % sum(map(len, events)) + events[0], 0), *((event, 0) for event in events[1:])]
    reads[late] = (reads[late][0], 20)
    tally, stats, clock = read_all(reads, disordered, look_ms)
    result = tally.result(None)
    bounded = [place for place, _ in result.events.bounded]
    assert bounded == ([late] if disordered else [])
    if disordered:
        assert clock.rejected == 0
        assert not any(stats.lag[2000:]) and not stats.lag_beyond, "none of it is the client's lag"
    else:
        assert clock.rejected == (look_ms < 20), "before the last look nothing came that was not read then"
    assert result.output_count == 4


def test_a_worker_starts_without_what_it_may_never_need() -> None:
    code = (
        "import sys, loadgen.worker; print([m for m in ('httpcore', 'rich', 'scipy', 'pygments') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
