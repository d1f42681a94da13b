"""A stream's last token and what ends the stream come together: is the token's stamp its own, or said to be late?"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from pathlib import Path

import anyio
import pytest

from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import RequestOptions
from loadgen.client.exchange import HttpxSender
from loadgen.client.transport import Access, open_client
from loadgen.records import Prompt, Record, RequestSpec

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's stamps are Linux's")

CHAT = DIALECTS["chat"]
# Tokens read one by one before: what is acknowledged the kernel may merge, and a new connection acknowledges at once.
FEW, MANY = 2, 60
APART_S = 0.002
EVENT = b'data: {"id":"r","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"id":"r","choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n%s\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


TOKEN, END = chunk(EVENT), b"0\r\n\r\n"
# What is written at a time, and which of them completes the last token.
PIECES = {
    "each by itself": ([TOKEN, chunk(FINISH), chunk(DONE) + END], 0),
    "the end with the token": ([TOKEN + chunk(FINISH), chunk(DONE) + END], 0),
    "the token in two": ([TOKEN[:30], TOKEN[30:], chunk(FINISH) + chunk(DONE) + END], 1),
    "the token's chunk ended later": ([TOKEN[:-2], b"\r\n" + chunk(FINISH), chunk(DONE) + END], 0),
    "a comment first": ([chunk(b": here\n\n"), TOKEN, chunk(FINISH), chunk(DONE) + END], 1),
    "two tokens": ([TOKEN, TOKEN, chunk(FINISH), chunk(DONE) + END], 1),
    "the token with the one before it": ([TOKEN + TOKEN, chunk(FINISH), chunk(DONE) + END], 0),
    "no chunks": ([EVENT, FINISH, DONE], 0),
    "the end alone": ([chunk(FINISH), chunk(DONE) + END], -1),
    "nothing more": ([TOKEN + chunk(FINISH) + chunk(DONE) + END], 0),
}


class Server:
    """One answer a connection: tokens one by one, then `pieces`, each written apart, while the client looks away. At a
    `path` it is a Unix socket, of which no kernel stamps a read."""

    def __init__(self, before: int, pieces: list[bytes], path: Path | None = None) -> None:
        self.before, self.pieces, self.chunked = before, pieces, pieces[0] != EVENT
        self.read, self.written = threading.Event(), threading.Event()
        self.times: list[int] = []  # before each piece
        self.path = path
        if path is None:
            self.listener = socket.create_server(("127.0.0.1", 0))
        else:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(str(path))
            self.listener.listen()
        self.thread = threading.Thread(target=self._answer)
        self.thread.start()

    @property
    def url(self) -> str:
        port = self.listener.getsockname()[1] if self.path is None else 80
        return f"http://127.0.0.1:{port}{CHAT.path}"

    def _answer(self) -> None:
        connection, _ = self.listener.accept()
        with connection:
            if self.path is None:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asked = b""
            while not asked.endswith(b"}"):
                asked += connection.recv(65536)
            connection.sendall(HEAD % (b"Transfer-Encoding: chunked\r\n" if self.chunked else b""))
            for _ in range(self.before):
                connection.sendall(TOKEN if self.chunked else EVENT)
                time.sleep(APART_S / 4)
            self.read.wait(10)
            for piece in self.pieces:
                self.times.append(time.monotonic_ns())
                connection.sendall(piece)
                time.sleep(APART_S)
            self.written.set()

    def close(self) -> None:
        self.read.set()
        self.thread.join()
        self.listener.close()


async def request(server: Server, tokens: int, threaded: bool) -> Record:
    access = Access(threaded=threaded, unix_socket=None if server.path is None else str(server.path))
    async with open_client(access, 1, tls=False) as client:
        sender = HttpxSender(client, server.url, CHAT, RequestOptions("m"), zero_ns=0)
        spec = RequestSpec("s1-000001", Prompt("hi", 5, tokens), 1, 1, "measured")

        async def look_away() -> None:
            await asyncio.sleep(server.before * APART_S / 4 + 0.1)
            server.read.set()
            server.written.wait(10)  # the loop stands still

        async with anyio.create_task_group() as group:
            group.start_soon(look_away)
            return await sender.send(spec, time.monotonic_ns())


@pytest.mark.parametrize("threaded", [False, True], ids=["loop", "thread"])
@pytest.mark.parametrize("before", [FEW, MANY])
@pytest.mark.parametrize(("pieces", "last"), PIECES.values(), ids=PIECES)
def test_it_is_exact_or_bounded_and_the_bound_holds(
    pieces: list[bytes], last: int, before: int, threaded: bool
) -> None:
    holds(Server(before, pieces), last, threaded)


@pytest.mark.parametrize("threaded", [False, True], ids=["loop", "thread"])
@pytest.mark.parametrize(("pieces", "last"), PIECES.values(), ids=PIECES)
def test_without_the_kernels_stamps_too(pieces: list[bytes], last: int, threaded: bool, tmp_path: Path) -> None:
    holds(Server(FEW, pieces, tmp_path / "s"), last, threaded)


def holds(server: Server, last: int, threaded: bool) -> None:
    tokens = server.before + b"".join(server.pieces).count(b'"a"')
    try:
        record = anyio.run(request, server, tokens, threaded)
    finally:
        server.close()
    assert (record.outcome, record.output_tokens.count) == ("ok", tokens), record.error
    assert record.events is not None and record.sent_ns is not None and record.last_token_ns is not None
    if last < 0:
        return
    bounds = dict(record.events.bounded)
    earliest = record.last_token_ns - 1_000 * bounds.get(tokens - 1, 0)
    times = [*server.times, sys.maxsize]
    assert earliest < times[last + 1], "too late, and not said to be"
    assert record.last_token_ns > times[last] - 20_000, "before it was sent"
    assert min(record.events.gap_us) >= 0


@pytest.mark.parametrize("name", ["each by itself", "the token in two", "no chunks"])
def test_one_that_was_sent_apart_has_its_own_stamp(name: str) -> None:
    """Of several tries, as the kernel may merge any two segments that wait."""
    pieces, last = PIECES[name]
    for _ in range(5):
        server = Server(MANY, pieces)
        try:
            record = anyio.run(request, server, MANY + 1, False)
        finally:
            server.close()
        assert record.events is not None and record.last_token_ns is not None
        if MANY not in dict(record.events.bounded):
            assert server.times[last] - 20_000 < record.last_token_ns < server.times[last + 1]
            return
    pytest.fail("each of five was merged with what came after it")
