"""Our own httpx transport: every read carries the kernel's receive time, and no task wakes for a token.

Here are the connections as a whole: opening, keeping, dropping them, and the parsing of what they held back. What
happens on one of them is in `connection`. HTTP/1.1 over TCP or TLS; what it does not do (HTTP/2, proxies) is the
business of httpx's own transport.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

from ..records import Connect
from .answer import Answer, ReadStats, Sink
from .clock import SECOND_NS, ask_for_stamps, keep_stamping
from .connection import Connection, Key
from .probe import Probe
from .reactor import Reactor
from .tls import Tls

KEEPALIVE_S = 4.0  # an idle connection is dropped before the server drops it
PARSE_EVERY_S = 0.05  # held bytes wait for so long at the most, while the loop has time
PARSE_SLICE = 64  # events parsed before the sockets are looked at again


class _Body(httpx.AsyncByteStream):
    """The body as httpx sees it: complete when it is iterated, as nothing here wakes before the end."""

    def __init__(self, transport: KernelTransport, answer: Answer) -> None:
        self._transport = transport
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await self._answer.end
        for part in self._answer.body:
            yield part

    async def aclose(self) -> None:
        self._transport.abandon(self._answer)


class KernelTransport(httpx.AsyncBaseTransport):
    """An httpx transport with kernel stamps. Made and used inside a running asyncio loop.

    `exchange` is what a sender calls. As a plain httpx transport it serves any client; of a request's extensions it
    then knows `probe`, `tally`, `on_token` and `send_at_ns`, which are `exchange`'s arguments.
    """

    def __init__(
        self,
        *,
        context: ssl.SSLContext | None = None,
        threaded: bool = False,
        keepalive_s: float = KEEPALIVE_S,
        rearm_s: float = 1.0,
    ) -> None:
        keep_stamping()
        self._context = context
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Key, list[Connection]] = {}
        self._all: set[Connection] = set()
        self.rearm_ns = round(rearm_s * SECOND_NS)
        self.stats = ReadStats()
        self.reactor = Reactor(threaded=threaded)
        self.held: deque[Connection] = deque()
        self._parse_timer: asyncio.TimerHandle | None = self._loop.call_later(PARSE_EVERY_S, self._parse_held)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        extensions = request.extensions
        body = await request.aread()
        head = b"".join(b"%s: %s\r\n" % pair for pair in request.headers.raw)
        wire = b"%s %s HTTP/1.1\r\n%s\r\n%s" % (request.method.encode(), request.url.raw_path, head, body)
        answer = await self.exchange(
            request.url,
            wire,
            extensions.get("probe") or Probe(_nothing),
            extensions.get("tally"),
            extensions.get("on_token") or _nothing,
            extensions.get("send_at_ns", 0),
        )
        status, headers = answer.head.result()
        return httpx.Response(
            status, headers=headers, stream=_Body(self, answer), extensions={"http_version": b"HTTP/1.1"}
        )

    async def exchange(
        self,
        url: httpx.URL,
        wire: bytes,
        probe: Probe,
        sink: Sink | None,
        on_token: Callable[[], None],
        send_at_ns: int = 0,
    ) -> Answer:
        """Send a whole request as bytes and return with the head of its answer; `Answer.end` may then be awaited.

        A streamed body goes to `sink`, any other is collected in `Answer.body`. The caller ends with `abandon`, which
        is harmless for an answer that is complete. Raises httpx's errors.
        """
        connection = await self._acquire(url, probe)
        answer = Answer(self._loop, probe, sink, on_token)
        connection.begin(answer)
        try:
            if connection.tls is not None:
                wire = connection.tls.sealed(wire)
            if send_at_ns > time.monotonic_ns():
                self.reactor.at(send_at_ns, lambda: connection.write(wire))
            else:
                connection.write(wire)
            await answer.head
        except BaseException:
            self.abandon(answer)
            raise
        return answer

    async def warm(self, url: httpx.URL, connections: int) -> None:
        """Open so many connections ahead, to be taken by the next requests."""
        opened = await asyncio.gather(*(self._connect(url, Probe(_nothing)) for _ in range(connections)))
        for connection in opened:
            self.release(connection)

    def release(self, connection: Connection) -> None:
        """An answer is complete: keep its connection if it may be used again."""
        if connection.keep and not connection.closed:
            connection.idle_since = self._loop.time()
            self._idle.setdefault(connection.key, []).append(connection)
        else:
            self.drop(connection)

    def drop(self, connection: Connection) -> None:
        self._all.discard(connection)
        idle = self._idle.get(connection.key)
        if idle and connection in idle:
            idle.remove(connection)
        connection.close()

    def abandon(self, answer: Answer) -> None:
        """The request is given up: a connection in the middle of an answer cannot be used again."""
        connection, answer.connection = answer.connection, None
        answer.resolved = True
        if connection is not None:
            connection.answer = None
            self.drop(connection)

    async def aclose(self) -> None:
        if self._parse_timer is not None:
            self._parse_timer.cancel()
            self._parse_timer = None
        for connection in list(self._all):
            if connection.answer is not None:
                connection.answer.fail(httpx.ReadError("the transport was closed"))
            self.drop(connection)
        self.reactor.close()

    # --- connections ------------------------------------------------------------------------------------------------

    async def _acquire(self, url: httpx.URL, probe: Probe) -> Connection:
        idle = self._idle.get(_key(url))
        while idle:
            connection = idle.pop()
            if self._loop.time() - connection.idle_since < self._keepalive_s:
                return connection
            self.drop(connection)
        return await self._connect(url, probe)

    async def _connect(self, url: httpx.URL, probe: Probe) -> Connection:
        """Name, TCP and TLS, each timed. The addresses of a name are tried in order. Raises httpx.ConnectError."""
        loop = self._loop
        key = _key(url)
        start = time.monotonic_ns()
        try:
            found = await loop.getaddrinfo(url.host, key[2], type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpx.ConnectError(f"the name {url.host} does not resolve: {error.strerror or error}") from error
        resolved = time.monotonic_ns()
        sock = await self._open(found, key)
        connected = time.monotonic_ns()
        tls = None
        tls_us = None
        if url.scheme == "https":
            assert self._context is not None, "an https address needs a TLS context"
            tls = Tls(self._context, url.host)
            try:
                await tls.handshake(loop, sock)
            except (OSError, ssl.SSLError) as error:
                sock.close()
                raise httpx.ConnectError(str(error)) from error
            except BaseException:
                sock.close()
                raise
            tls_us = (time.monotonic_ns() - connected) // 1000
        probe.connect = Connect((resolved - start) // 1000, (connected - resolved) // 1000, tls_us)
        connection = Connection(self, sock, key, tls)
        connection.keep = True
        self._all.add(connection)
        self.reactor.add(connection.fd, connection)
        return connection

    async def _open(self, found: list[Any], key: Key) -> socket.socket:
        last: OSError | None = None
        for family, kind, protocol, _, address in found:
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError as error:
                last = error
                continue
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ask_for_stamps(sock)
                await self._loop.sock_connect(sock, address)
                return sock
            except OSError as error:
                sock.close()
                last = error
            except BaseException:
                sock.close()
                raise
        where = f"{key[1]}:{key[2]}"
        # asyncio puts words of its own over the system's.
        words = os.strerror(last.errno) if last is not None and last.errno else str(last)
        raise httpx.ConnectError(f"{where}: {words}") from last

    # --- parsing what was held --------------------------------------------------------------------------------------

    def _parse_held(self) -> None:
        """A slice of what was held; then the sockets get their turn. Runs again at once while there is more."""
        budget = PARSE_SLICE
        held = self.held
        while held and budget > 0:
            connection = held.popleft()
            connection.held = False
            answer = connection.answer
            if answer is None or answer.sink is None or answer.resolved:
                continue
            budget -= answer.sink.parse_pending(budget)
            if answer.sink.pending_bytes and not connection.held:
                connection.held = True
                held.append(connection)
            elif answer.sink.finished or answer.sink.failed:
                connection.act(answer)
        if held:
            self._parse_timer = self._loop.call_later(0, self._parse_held)
        else:
            self._parse_timer = self._loop.call_later(PARSE_EVERY_S, self._parse_held)


def _key(url: httpx.URL) -> Key:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


def _nothing() -> None:
    pass
