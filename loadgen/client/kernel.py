"""Our own httpx transport: every read carries the kernel's receive time, and no task wakes for a token.

Here are the connections as a whole: opening, keeping, dropping them, and the parsing of what they held back. What
happens on one of them is in `connection`. HTTP/1.1 over TCP or TLS; what it does not do (HTTP/2, proxies) is the
business of httpx's own transport.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

import httpx

from ..records import Connect
from .addresses import Addresses, Place, connect
from .answer import Answer, ReadStats, Sink
from .clock import SECOND_NS, keep_stamping
from .connection import GRACE_S, Connection, Key
from .failures import system_words
from .probe import Probe, nothing
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
        addresses: Addresses | None = None,
        reconnect_every: int | None = None,
    ) -> None:
        keep_stamping()
        self._context = context
        self._addresses = addresses or Addresses()
        self._reconnect_every = reconnect_every or 0
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._idle: dict[tuple[Key, Place], list[Connection]] = {}
        self._all: set[Connection] = set()
        self.rearm_ns = round(rearm_s * SECOND_NS)
        self.grace_s = GRACE_S
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
            extensions.get("probe") or Probe(nothing),
            extensions.get("tally"),
            extensions.get("on_token") or nothing,
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
        opened = await asyncio.gather(*(self._connect(url, Probe(nothing)) for _ in range(connections)))
        for connection in opened:
            self.release(connection)

    def release(self, connection: Connection) -> None:
        """An answer is complete: keep its connection if it may be used again."""
        worn = connection.served == self._reconnect_every > 0
        if connection.keep and not connection.closed and not worn:
            connection.leave()
            connection.idle_since = self._loop.time()
            self._idle.setdefault((connection.key, connection.place), []).append(connection)
        else:
            self.drop(connection)

    def drop(self, connection: Connection) -> None:
        connection.leave()
        self._all.discard(connection)
        idle = self._idle.get((connection.key, connection.place))
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
        """A connection to the address whose turn it is, kept from before if there is one."""
        key = _key(url)
        places = self._addresses.known(*key[1:])
        idle = self._idle.get((key, self._addresses.pick(places))) if places else None
        while idle:
            connection = idle.pop()
            fresh = self._loop.time() - connection.idle_since < self._keepalive_s
            if fresh and self.reactor.serves(connection.fd) and connection.is_quiet():
                connection.take()
                return connection
            self.drop(connection)
        return await self._connect(url, probe)

    async def _connect(self, url: httpx.URL, probe: Probe) -> Connection:
        """Name, TCP and TLS, each timed. Raises httpx.ConnectError."""
        loop = self._loop
        key = _key(url)
        start = time.monotonic_ns()
        try:
            sock, place, dns_us = await self._addresses.open(*key[1:], connect, _close)
        except socket.gaierror as error:
            raise httpx.ConnectError(f"the name {url.host} does not resolve: {error.strerror or error}") from error
        except OSError as error:
            where = f"{key[1]}:{key[2]}"
            raise httpx.ConnectError(f"{where}: {system_words(error)}") from error
        connected = time.monotonic_ns()
        tls = None
        tls_us = None
        try:
            if url.scheme == "https":
                assert self._context is not None, "an https address needs a TLS context"
                tls = Tls(self._context, url.host)
                await tls.handshake(loop, sock)
                tls_us = (time.monotonic_ns() - connected) // 1000
            connection = Connection(self, sock, key, place, tls)
            connection.round_ns = connected - start - 1000 * (dns_us or 0)
        except (OSError, ssl.SSLError) as error:
            place.leave()
            sock.close()
            raise httpx.ConnectError(str(error)) from error
        except BaseException:
            place.leave()
            sock.close()
            raise
        probe.connect = Connect(dns_us, (connected - start) // 1000 - (dns_us or 0), tls_us)
        connection.keep = True
        self._all.add(connection)
        self.reactor.add(connection.fd, connection)
        return connection

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


async def _close(sock: socket.socket) -> None:
    sock.close()


def _key(url: httpx.URL) -> Key:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)
