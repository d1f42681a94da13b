"""Our own httpx transport: every read carries the kernel's receive time, and no task wakes for a token.

The rules of the hot path, which is `_Connection._read` and what it calls:
1. Stamp first: the kernel's time comes with the bytes, before any of them is parsed.
2. No task switch per token: the read feeds the HTTP parser, which hands body bytes to the request's tally; the waiting
task
   wakes once for the headers and once at the end.
3. JSON waits: held bytes are parsed in slices when nothing is to be read, except what must be acted on at once.
4. Nothing here allocates per token what it could reuse; no logging, no formatting.

HTTP/1.1 over TCP or TLS. What it does not do (HTTP/2, proxies) is the business of httpx's own transport.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import ssl
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import httptools
import httpx

from ..records import Connect
from .clock import ANCILLARY_BYTES, SECOND_NS, SLACK_NS, ask_for_stamps, timespec
from .decode import decoder
from .probe import Probe, format_address
from .reactor import Reactor
from .tcpinfo import SocketStats

READ_BYTES = 65536
KEEPALIVE_S = 4.0  # an idle connection is dropped before the server drops it
LINGER_S = 0.25  # how long the end of the body is waited for after the stream's own end
PARSE_EVERY_S = 0.05  # held bytes wait for so long at the most, while the loop has time
PARSE_SLICE = 64  # events parsed before the sockets are looked at again
MAX_HEADER_BYTES = 1 << 20
MAX_BODY_BYTES = 64 << 20  # of an answer that is not a stream
LAG_BIN_NS, LAG_BINS = 1024, 4096

Key = tuple[str, str, int]


class Sink(Protocol):
    """Takes the body of one streamed answer: a `Tally`."""

    def hold(self, data: bytes, stamp_ns: int, previous_read_ns: int) -> bool: ...
    def parse_pending(self, limit_events: int = ...) -> int: ...

    @property
    def pending_bytes(self) -> int: ...
    @property
    def finished(self) -> bool: ...
    @property
    def failed(self) -> bool: ...
    @property
    def output_events(self) -> int: ...


class ReadStats:
    """What the reads of a step were like. `lag` counts reads by (user - kernel time) in bins of about 1 µs."""

    __slots__ = ("lag", "lag_beyond", "reads", "sockets", "unstamped")

    def __init__(self) -> None:
        self.sockets = SocketStats()  # of those that are closed
        self.reads = 0
        self.unstamped = 0
        self.lag = array("L", bytes(array("L").itemsize * LAG_BINS))
        self.lag_beyond: list[int] = []  # ns, of the few beyond the last bin


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
        self.size = 0  # of headers and body that are kept here
        self.linger: asyncio.TimerHandle | None = None
        self.seen = 0  # output events that the timers know of
        self.connection: _Connection | None = None
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


class _Connection:
    """One socket: bytes out, bytes in, HTTP framing; at most one answer at a time."""

    __slots__ = (
        "_clock",
        "_out",
        "_parser",
        "_reactor",
        "_rearm_ns",
        "_recvmsg",
        "_stats",
        "_status",
        "_tls",
        "answer",
        "closed",
        "complete",
        "decode",
        "fd",
        "headers",
        "held",
        "idle_since",
        "keep",
        "key",
        "last_read_ns",
        "peer",
        "sock",
        "stamp_ns",
        "streaming",
        "transport",
        "until_close",
        "urgent",
    )  # fmt: skip

    def __init__(self, transport: KernelTransport, sock: socket.socket, key: Key, tls: _Tls | None) -> None:
        self.transport = transport
        self.sock = sock
        self.fd = sock.fileno()
        self.key = key
        self.peer = format_address(sock.getpeername())
        self.answer: Answer | None = None
        self.closed = False
        self.idle_since = 0.0
        self.held = False  # is it on the list of those with bytes to parse?
        self._tls = tls
        self._reactor = transport.reactor
        self._clock = transport.reactor.clock
        self._stats = transport.stats
        self._recvmsg = sock.recvmsg
        self._out = b""
        self._parser: Any = None
        self.last_read_ns = 0
        self.stamp_ns = 0
        self._rearm_ns = 0
        self.urgent = False

    # --- the loop's side --------------------------------------------------------------------------------------------

    def begin(self, answer: Answer) -> None:
        """Take a request; its bytes are still to be written."""
        self.answer = answer
        answer.connection = self
        answer.probe.peer = self.peer
        self._parser = httptools.HttpResponseParser(self)
        self.headers: list[tuple[bytes, bytes]] = []
        self._status = 0
        self.streaming = self.complete = self.until_close = self.urgent = False
        self.keep = True
        self.decode: Callable[[bytes], bytes] | None = None
        self._rearm_ns = 0

    def write(self, wire: bytes) -> None:
        """Send the request now; what the kernel does not take at once follows when it does. Runs where sockets are
        served when the request was scheduled."""
        answer = self.answer
        if answer is None or self.closed:
            return
        probe = answer.probe
        probe.sent_ns = self.last_read_ns = probe.previous_read_ns = probe.last_read_ns = time.monotonic_ns()
        try:
            sent = self.sock.send(wire)
            probe.write_ns = time.monotonic_ns() - probe.sent_ns
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._broke(httpx.WriteError(str(error)), error)
            return
        if sent < len(wire):
            self._out = wire[sent:]
            self._reactor.want_write(self.fd, True)
        self._reactor.post(probe.on_sent)

    def close(self) -> None:
        """Drop the socket, and the cycle between connection and parser with it."""
        if not self.closed:
            self.closed = True
            self._reactor.remove(self.fd)
            self._stats.sockets.add(self.sock)
            self.sock.close()
            self._parser = None
            self._tls = None

    # --- where sockets are served -----------------------------------------------------------------------------------

    def on_ready(self, mask: int) -> None:
        if self.closed:
            return
        try:
            if mask & select.EPOLLOUT:
                self._flush()
            if mask & ~select.EPOLLOUT and not self.closed:
                self._read()
        except Exception as error:  # whatever it is, the request that waits must hear of it
            self._broke(httpx.RemoteProtocolError(f"{type(error).__name__}: {error}"), error)

    def _flush(self) -> None:
        try:
            sent = self.sock.send(self._out)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._broke(httpx.WriteError(str(error)), error)
            return
        if sent and self.answer is not None and not self.answer.probe.write_ns:  # the first byte had to wait
            self.answer.probe.write_ns = time.monotonic_ns() - (self.answer.probe.sent_ns or 0)
        self._out = self._out[sent:]
        if not self._out:
            self._reactor.want_write(self.fd, False)

    def _read(self) -> None:
        try:
            data, ancillary, _, _ = self._recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._broke(httpx.ReadError(str(error)), error)
            return
        now = time.monotonic_ns()
        stats = self._stats
        stats.reads += 1
        if ancillary:
            seconds, nanoseconds = timespec(ancillary[0][2])
            real = seconds * SECOND_NS + nanoseconds
            stamp = real - self._clock.offset
            if stamp > now or stamp < self._reactor.looked_ns - SLACK_NS:
                stamp = self._clock.doubted(real, now, self._reactor.looked_ns)
            lag = now - stamp
            if lag < LAG_BIN_NS * LAG_BINS:
                stats.lag[lag // LAG_BIN_NS] += 1
            else:
                stats.lag_beyond.append(lag)
        else:
            stamp = now
            stats.unstamped += 1
        answer = self.answer
        if not data:
            self._ended()
            return
        closed = False
        if self._tls is not None:
            try:
                data, closed, reply = self._tls.opened(data)
                if reply:
                    self.sock.send(reply)
            except OSError as error:  # SSLError is one
                self._broke(httpx.ReadError(str(error)), error)
                return
            if not data and not closed:
                return  # a part of a record, or none of ours (a session ticket)
        if answer is None:
            self._ended()
            return
        probe = answer.probe
        if probe.first_read_ns is None and data:
            probe.first_read_ns = stamp
        # A read that filled the buffer may have left bytes that were there already: the one before bounds the next,
        # too.
        previous = self.last_read_ns
        probe.previous_read_ns, probe.last_read_ns = previous, stamp
        if len(data) < READ_BYTES:
            self.last_read_ns = stamp
        self.stamp_ns = stamp
        if data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserCallbackError as error:
                why = error.__context__
                known = (
                    why
                    if isinstance(why, httpx.HTTPError)
                    else httpx.RemoteProtocolError(f"{type(why).__name__}: {why}")
                )
                self._broke(known, why)
                return
            except httptools.HttpParserError as error:
                self._broke(httpx.RemoteProtocolError(f"the answer is not HTTP: {error}"), error)
                return
            if self.streaming and not self.complete:
                self._parse_or_hold(answer, stamp)
        if closed:
            self._ended()

    def _parse_or_hold(self, answer: Answer, stamp: int) -> None:
        """Until its first token, at a timer's check and when something must be acted on, a stream is parsed at once."""
        sink = answer.sink
        if sink is None:
            return
        if self.urgent or stamp > self._rearm_ns:
            self.urgent = False
            if sink.output_events:
                self._rearm_ns = stamp + self.transport.rearm_ns
            self._reactor.post(self._act, answer)
        elif not self.held:
            self.held = True
            self.transport.held.append(self)

    # httptools' callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        self._keep(len(name) + len(value), MAX_HEADER_BYTES, "headers")
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        answer = self.answer
        if answer is None or self._parser is None:
            return  # bytes after the end of the answer
        self._status = self._parser.get_status_code()
        if 100 <= self._status < 200:
            return
        known = {name.lower(): value for name, value in self.headers}
        self.until_close = b"content-length" not in known and b"transfer-encoding" not in known
        kind = known.get(b"content-type", b"").split(b";")[0].strip().lower()
        if answer.sink is not None and self._status == 200 and kind in (b"text/event-stream", b""):
            self.streaming = True
            self.decode = decoder(known.get(b"content-encoding", b"").decode("latin-1"))
        self._reactor.post(self._headed, answer, self._status, self.headers)

    def on_body(self, data: bytes) -> None:
        answer = self.answer
        if answer is None:
            return
        if self.streaming:
            if self.decode is not None:
                data = self.decode(data)
            assert answer.sink is not None
            if answer.sink.hold(data, self.stamp_ns, answer.probe.previous_read_ns):
                self.urgent = True
        else:
            self._keep(len(data), MAX_BODY_BYTES, "body")
            answer.body.append(data)

    def _keep(self, size: int, most: int, what: str) -> None:
        """Count what is kept in memory; raises where a server sends without end."""
        answer = self.answer
        if answer is not None:
            answer.size += size
            if answer.size > most:
                raise httpx.RemoteProtocolError(f"the answer's {what} are longer than {most >> 20} MiB")

    def on_message_complete(self) -> None:
        answer = self.answer
        if answer is None or self._parser is None:
            return
        if 100 <= self._status < 200:
            self.headers = []
            return
        self.complete = True
        self.keep = bool(self._parser.should_keep_alive()) and not self.until_close
        self._reactor.post(self._completed, answer)

    # --- ends -------------------------------------------------------------------------------------------------------

    def _ended(self) -> None:
        """The peer has closed, or sent what nobody asked for."""
        answer = self.answer
        if answer is not None and not self.complete:
            if self._status and self.until_close:  # the body was delimited by this close
                self.keep = False
                self.complete = True
                self._reactor.post(self._completed, answer)
                return
            early = "in the middle of its answer" if self._status else "without an answer"
            self._broke(httpx.RemoteProtocolError(f"the server closed the connection {early}"), None)
        else:
            self._reactor.post(self.transport.drop, self)

    def _broke(self, error: Exception, cause: BaseException | None) -> None:
        error.__cause__ = cause
        self._reactor.post(self._failed, self.answer, error)

    # in the loop

    def _headed(self, answer: Answer, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if not answer.head.done():
            answer.head.set_result((status, headers))

    def _act(self, answer: Answer) -> None:
        """Parse what is held and act on it: the stream's own end, an error, a token for the timers."""
        sink = answer.sink
        if sink is None or answer.resolved:
            return
        self._parse_all(sink)
        if sink.output_events > answer.seen:
            answer.seen = sink.output_events
            answer.on_token()
        if (sink.finished or sink.failed) and not self.complete:
            answer.linger = asyncio.get_running_loop().call_later(LINGER_S, self._give_up, answer)

    def _give_up(self, answer: Answer) -> None:
        """The stream said that it ended, but its body goes on: the answer is taken, the connection is not kept."""
        if not answer.resolved:
            self.keep = False
            self._completed(answer)

    def _completed(self, answer: Answer) -> None:
        if answer.resolved:
            return
        if answer.sink is not None:
            self._parse_all(answer.sink)
        self.answer = None
        answer.connection = None
        self._parser = None
        self.transport.release(self)
        answer.finish()

    def _failed(self, answer: Answer | None, error: Exception) -> None:
        self.answer = None
        self.transport.drop(self)
        if answer is not None and not answer.resolved:
            answer.connection = None
            if answer.sink is not None:
                self._parse_all(answer.sink)
                if answer.sink.finished or answer.sink.failed:  # the stream's own end came before the connection's
                    answer.finish()
                    return
            answer.fail(error)

    @staticmethod
    def _parse_all(sink: Sink) -> None:
        while sink.pending_bytes:
            sink.parse_pending(1 << 30)


class _Tls:
    """TLS over bytes in memory, so that the socket's own reads keep their stamps."""

    __slots__ = ("_in", "_out", "_tls")

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)

    async def handshake(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        while True:
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            finally:
                if out := self._out.read():  # also the alert that tells the server why not
                    with contextlib.suppress(OSError):
                        await loop.sock_sendall(sock, out)
            if done:
                return
            data = await loop.sock_recv(sock, READ_BYTES)
            if not data:
                raise ssl.SSLEOFError("the server closed the connection during the TLS handshake")
            self._in.write(data)

    def sealed(self, data: bytes) -> bytes:
        self._tls.write(data)
        return self._out.read()

    def opened(self, data: bytes) -> tuple[bytes, bool, bytes]:
        """Plain bytes in these records, whether the peer closed (a close_notify may come with data before it), and what
        is to be sent back (a key update)."""
        self._in.write(data)
        parts: list[bytes] = []
        closed = False
        try:
            while not closed:
                part = self._tls.read(READ_BYTES)
                closed = not part
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            closed = True
        return parts[0] if len(parts) == 1 else b"".join(parts), closed, self._out.read() if self._out.pending else b""


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
        self._context = context
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Key, list[_Connection]] = {}
        self._all: set[_Connection] = set()
        self.rearm_ns = round(rearm_s * SECOND_NS)
        self.stats = ReadStats()
        self.reactor = Reactor(threaded=threaded)
        self.held: deque[_Connection] = deque()
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
            if connection._tls is not None:
                wire = connection._tls.sealed(wire)
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

    def release(self, connection: _Connection) -> None:
        """An answer is complete: keep its connection if it may be used again."""
        if connection.keep and not connection.closed:
            connection.idle_since = self._loop.time()
            self._idle.setdefault(connection.key, []).append(connection)
        else:
            self.drop(connection)

    def drop(self, connection: _Connection) -> None:
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

    async def _acquire(self, url: httpx.URL, probe: Probe) -> _Connection:
        idle = self._idle.get(_key(url))
        while idle:
            connection = idle.pop()
            if self._loop.time() - connection.idle_since < self._keepalive_s:
                return connection
            self.drop(connection)
        return await self._connect(url, probe)

    async def _connect(self, url: httpx.URL, probe: Probe) -> _Connection:
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
            tls = _Tls(self._context, url.host)
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
        connection = _Connection(self, sock, key, tls)
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
                connection._act(answer)
        if held:
            self._parse_timer = self._loop.call_later(0, self._parse_held)
        else:
            self._parse_timer = self._loop.call_later(PARSE_EVERY_S, self._parse_held)


def _key(url: httpx.URL) -> Key:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


def _nothing() -> None:
    pass
