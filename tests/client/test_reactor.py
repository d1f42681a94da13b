"""Sockets that come and go while a thread reads them."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable

import pytest

from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import RequestOptions
from loadgen.client.exchange import HttpxSender
from loadgen.client.kernel import KernelTransport
from loadgen.client.reactor import Reactor
from loadgen.client.transport import Access, open_client
from loadgen.records import Prompt, RequestSpec
from loadgen.simulator.scripted import DONE, FIN, Action, C, Close, Head, Raw, Request, T, ThreadedServer

WAIT_S = 5.0


def eventually(true: Callable[[], bool]) -> None:
    """The loop waits as well: what happens meanwhile is the thread's doing."""
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


class Slow:
    """A handler that is in the middle of a read until it is told to go on."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reading, self.go_on = threading.Event(), threading.Event()
        self.got: list[bytes] = []

    def on_ready(self, mask: int) -> None:
        self.reading.set()
        assert self.go_on.wait(WAIT_S)
        self.got.append(self.sock.recv(100))


def test_a_number_is_not_given_again_while_a_read_of_it_is_under_way() -> None:
    async def main() -> None:
        reactor = Reactor(threaded=True)
        ours, theirs = socket.socketpair()
        number = ours.fileno()
        handler = Slow(ours)
        reactor.add(number, handler)
        theirs.send(b"old")
        assert handler.reading.wait(WAIT_S)
        reactor.drop(ours)
        others = socket.socketpair()
        assert number not in [one.fileno() for one in others]
        handler.go_on.set()
        eventually(lambda: ours.fileno() == -1)
        assert handler.got == [b"old"]
        for one in (theirs, *others):
            one.close()
        reactor.close()

    asyncio.run(main())


@pytest.mark.parametrize("threaded", [False, True], ids=["loop", "thread"])
def test_what_is_dropped_is_closed_whatever_the_timer_was_set_for(threaded: bool) -> None:
    async def main() -> None:
        reactor = Reactor(threaded=threaded)
        for late_s in (0.0, 0.0001, 0.001, 60.0):
            fired = threading.Event()
            for _ in range(50):
                ours, theirs = socket.socketpair()
                reactor.add(ours.fileno(), Slow(ours))
                reactor.at(time.monotonic_ns() + round(late_s * 1e9), fired.set)
                reactor.drop(ours)
                eventually(lambda ours=ours: ours.fileno() == -1)  # type: ignore[misc]
                theirs.close()
            if late_s < 1:
                await asyncio.to_thread(fired.wait, WAIT_S)
                assert fired.is_set()
        ours, theirs = socket.socketpair()
        reactor.add(ours.fileno(), Slow(ours))
        reactor.drop(ours)
        reactor.close()
        assert ours.fileno() == -1
        reactor.drop(theirs)
        assert theirs.fileno() == -1
        assert not reactor.handlers

    asyncio.run(main())


def test_the_thread_asks_once_for_the_end_of_a_connection() -> None:
    """Else it would read that end over and over until the loop, which may be busy, hears of it."""

    def script(request: Request) -> list[Action]:
        body = C("a").encode() + FIN("stop").encode() + DONE.encode()
        return [Head(200, {"Content-Length": str(len(body))}, chunked=False), Raw(body), T(30), Close]

    async def main(url: str) -> None:
        async with open_client(Access(threaded=True), 1, tls=False) as client:
            transport = client._transport
            assert isinstance(transport, KernelTransport)
            address = f"{url}/v1/chat/completions"
            sender = HttpxSender(client, address, DIALECTS["chat"], RequestOptions("m"), zero_ns=0)
            for number in range(3):
                spec = RequestSpec(f"s1-{number:06d}", Prompt("hi"), 1, 1, "measured")
                record = await sender.send(spec, time.monotonic_ns())
                assert record.outcome == "ok"
                assert record.connect is not None, "a connection that has ended is not used again"
                eventually(lambda: not transport.reactor.handlers)

    with ThreadedServer(script) as server:
        asyncio.run(main(server.url))
