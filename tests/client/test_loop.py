"""The loop that waits in a reactor is asyncio's own to everybody else: its timers, files, threads and signals come on
time, also while sockets are never silent."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from loadgen.client.loop import Loop, run
from loadgen.client.reactor import Reactor

WAIT_S = 5.0


class Chatter:
    """A handler of a socket that is ready again as soon as it was read."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.reads = 0
        self.theirs.send(b"x")

    def on_ready(self, mask: int) -> None:
        self.reads += len(self.ours.recv(10))
        self.theirs.send(b"x")


@contextmanager
def chatting(busy: bool) -> Iterator[tuple[Reactor, Chatter | None]]:
    reactor = Reactor()
    chatter = Chatter() if busy else None
    if chatter is not None:
        reactor.add(chatter.ours.fileno(), chatter)
    try:
        yield reactor, chatter
    finally:
        if chatter is not None:
            reactor.drop(chatter.ours)
            chatter.theirs.close()
        reactor.close()


async def timers() -> None:
    for wait_s in (0.0, 0.001, 0.02, 0.05):
        begun = time.monotonic()
        await asyncio.sleep(wait_s)
        assert time.monotonic() - begun >= wait_s


async def files() -> None:
    loop = asyncio.get_running_loop()
    reading, writing = os.pipe()
    came = asyncio.Queue[bytes]()
    loop.add_reader(reading, lambda: came.put_nowait(os.read(reading, 10)))
    for wait_s in (0, 0.02):
        loop.call_later(wait_s, os.write, writing, b"now")
        assert await came.get() == b"now"
    assert loop.remove_reader(reading)
    os.close(reading)
    os.close(writing)


async def threads() -> None:
    assert await asyncio.to_thread(sum, (3, 4)) == 7
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    threading.Timer(0.02, lambda: loop.call_soon_threadsafe(came.set)).start()
    await came.wait()


async def signals() -> None:
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, came.set)
    threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    await came.wait()
    assert loop.remove_signal_handler(signal.SIGUSR1)


async def streams() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hello\n")
    assert await reader.read() == b"hello\n"
    writer.close()
    server.close()


async def scheduled(reactor: Reactor) -> None:
    came = asyncio.Event()
    for late_ms in (0, 1, 20):
        reactor.at(time.monotonic_ns() + late_ms * 1_000_000, lambda: reactor.post(came.set))
        await came.wait()
        came.clear()


@pytest.mark.parametrize("busy", [False, True], ids=["silent", "busy"])
@pytest.mark.parametrize("what", [timers, files, threads, signals, streams, scheduled], ids=lambda one: one.__name__)
def test_everything_of_asyncio_goes_on(what: Callable[..., Awaitable[None]], busy: bool) -> None:
    async def main() -> None:
        assert isinstance(asyncio.get_running_loop(), Loop)
        with chatting(busy) as (reactor, chatter):
            for _ in range(2):
                await asyncio.wait_for(what(reactor) if what is scheduled else what(), WAIT_S)
            if chatter is not None:
                assert chatter.reads > 10
        await asyncio.wait_for(timers(), WAIT_S)  # without a reactor it is asyncio's again

    run(main)


def test_a_second_reactor_is_served_too() -> None:
    async def main() -> None:
        with chatting(busy=True) as (_, first), chatting(busy=True) as (_, second):
            await asyncio.sleep(0.05)
            assert first is not None
            assert second is not None
            assert min(first.reads, second.reads) > 10
        with chatting(busy=True) as (_, third):  # the place of the first is free again
            await asyncio.sleep(0.02)
            assert third is not None
            assert third.reads > 10

    run(main)


def test_a_scheduled_call_that_fails_is_told_and_ends_nothing() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    async def main() -> None:
        said: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
        with chatting(busy=True) as (reactor, _):
            reactor.at(time.monotonic_ns(), fail)
            await scheduled(reactor)
            await asyncio.sleep(0)
        assert isinstance(said[0]["exception"], ZeroDivisionError)

    run(main)


def test_an_interrupt_ends_it() -> None:
    async def main() -> None:
        with chatting(busy=True):
            threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            await asyncio.sleep(WAIT_S)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            run(main)
    finally:
        signal.signal(signal.SIGINT, before)
