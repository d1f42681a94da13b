"""When did a request leave? By the kernel, where it tells; else between the time before the write and the one after."""

from __future__ import annotations

import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import anyio
import httpx
import pytest

from loadgen.client.addresses import Addresses, Place
from loadgen.client.clock import (
    SECOND_NS,
    SO_TIMESTAMPING,
    Clock,
    ask_for_stamps,
    ask_for_transmit_stamps,
    timespec,
    transmit_stamp,
)
from loadgen.client.dialects import DIALECTS
from loadgen.client.kernel import KernelTransport
from loadgen.client.probe import Probe, nothing
from loadgen.client.tally import Tally

CHAT = DIALECTS["chat"]
LATE_S = 0.02
BODY = b'data: {"id":"r","choices":[{"index":0,"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


def told_here() -> bool:
    """Does this kernel say when a packet left?"""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        if not ask_for_transmit_stamps(sock, True):
            return False
        sock.send(b"x")
        return transmit_stamp(sock) is not None


pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not told_here(), reason="this kernel does not tell when a packet left"
)


class Slow(socket.socket):
    """Something holds the sender up within its send: the bytes leave long after the call."""

    begun_ns: list[int]
    asked: list[int]

    def send(self, data: Any, flags: int = 0) -> int:
        time.sleep(LATE_S)
        self.begun_ns.append(time.monotonic_ns())
        return super().send(data, flags)

    def setsockopt(self, level: int, name: int, value: Any, *more: Any) -> None:
        if name == SO_TIMESTAMPING and value:
            self.asked.append(value)
        super().setsockopt(level, name, value, *more)


class Untold(Slow):
    """The device tells later than it is asked."""

    missed = 0

    def recvmsg(self, size: int, ancillary: int = 0, flags: int = 0) -> Any:
        if flags & socket.MSG_ERRQUEUE and not self.missed:
            self.missed += 1
            raise BlockingIOError
        return super().recvmsg(size, ancillary, flags)


class Dialled(Addresses):
    """Connects with a socket of a class of its own."""

    def __init__(self, kind: type[Slow], sockets: list[Slow]) -> None:
        super().__init__()
        self._kind, self._sockets = kind, sockets

    async def open(self, host: str, port: int, dial: Any, close: Any) -> Any:
        async def ours(place: Place) -> Slow:
            opened = await dial(place)
            assert isinstance(opened, socket.socket)
            slow = self._kind(opened.family, opened.type, fileno=opened.detach())
            slow.setblocking(False)
            slow.begun_ns, slow.asked = [], []
            self._sockets.append(slow)
            return slow

        return await super().open(host, port, ours, close)


class Server:
    """Answers each request of one connection, and tells when the kernel had its first bytes."""

    def __init__(self, requests: int) -> None:
        self.arrived_ns: list[int] = []
        self.over = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        ask_for_stamps(self.listener)
        self.thread = threading.Thread(target=self._serve, args=(requests,))
        self.thread.start()

    @property
    def url(self) -> httpx.URL:
        return httpx.URL(f"http://127.0.0.1:{self.listener.getsockname()[1]}{CHAT.path}")

    def _serve(self, requests: int) -> None:
        connection, _ = self.listener.accept()
        clock = Clock()
        with connection:
            for _ in range(requests):
                data, ancillary, _, _ = connection.recvmsg(1, 64)
                if not data:
                    return  # the client has given up
                seconds, ns = timespec(ancillary[0][2])
                self.arrived_ns.append(seconds * SECOND_NS + ns - clock.offset)
                while not data.endswith(b"}"):
                    data += connection.recv(1 << 20)
                connection.sendall(ANSWER)
            self.over.wait(10)

    def close(self) -> None:
        self.over.set()
        self.thread.join()
        self.listener.close()


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server(3)
    yield one
    one.close()


async def exchanged(
    server: Server, kind: type[Slow], *, body: int = 2, threaded: bool = False, ahead_s: float = 0.0, off_ns: int = 0
) -> tuple[list[Probe], Slow]:
    """Three requests, one after the other, on one connection; what each left, and the socket."""
    sockets: list[Slow] = []
    probes: list[Probe] = []
    transport = KernelTransport(addresses=Dialled(kind, sockets), threaded=threaded)
    wire = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (body, b"{".ljust(body - 1) + b"}")
    try:
        for _ in range(3):
            probe, tally = Probe(nothing), Tally(CHAT, 0)
            at_ns = time.monotonic_ns() + round(ahead_s * SECOND_NS) if ahead_s else 0
            transport.reactor.clock.refresh()
            transport.reactor.clock.offset += off_ns
            with anyio.fail_after(10):
                answer = await transport.exchange(server.url, wire, probe, tally, nothing, at_ns)
                await answer.end
            assert tally.sent_ns == probe.sent_ns and tally.finished
            probes.append(probe)
        poll = select.poll()
        poll.register(sockets[0].fileno(), 0)
        assert poll.poll(0) == [], "what the kernel told lies there for good"
    finally:
        await transport.aclose()
    assert len(sockets) == 1
    return probes, sockets[0]


@pytest.mark.parametrize("ahead_s", [0.0, 0.03], ids=["now", "scheduled"])
def test_a_request_left_when_the_kernel_says_so(server: Server, ahead_s: float) -> None:
    probes, sock = anyio.run(lambda: exchanged(server, Slow, ahead_s=ahead_s))
    for probe, begun_ns, arrived_ns in zip(probes, sock.begun_ns, server.arrived_ns, strict=True):
        assert probe.sent_ns is not None and begun_ns <= probe.sent_ns <= arrived_ns + 1000
        assert probe.write_ns == 0, "an exact time has no bound"


def test_in_a_reader_thread_it_is_the_kernels_where_the_thread_sends(server: Server) -> None:
    probes, sock = anyio.run(lambda: exchanged(server, Slow, threaded=True, ahead_s=0.03))
    assert all((probe.sent_ns or 0) >= begun for probe, begun in zip(probes, sock.begun_ns, strict=True))


CASES: dict[str, tuple[type[Slow], dict[str, Any], int]] = {
    "told late": (Untold, {}, 1),  # and not asked again
    "more than a packet": (Slow, {"body": 20_000}, 0),
    "the wall clock was stepped": (Slow, {"off_ns": 5 * SECOND_NS}, 3),
    "another thread reads": (Slow, {"threaded": True}, 0),
}


@pytest.mark.parametrize(("kind", "how", "asked"), CASES.values(), ids=CASES)
def test_else_it_left_within_the_time_of_the_write(
    server: Server, kind: type[Slow], how: dict[str, Any], asked: int
) -> None:
    probes, sock = anyio.run(lambda: exchanged(server, kind, **how))
    assert len(sock.asked) == asked
    for probe, begun_ns, arrived_ns in zip(probes, sock.begun_ns, server.arrived_ns, strict=True):
        assert probe.sent_ns is not None and probe.sent_ns <= begun_ns - LATE_S * SECOND_NS / 2
        assert probe.sent_ns <= arrived_ns <= probe.sent_ns + probe.write_ns + 1000
