"""The ground-truth server: a stream of tokens, each of which says when it was sent.

Every token's content is `R<realtime ns> M<monotonic ns> I<index>`, stamped just before its write; the first event of an
answer says when the kernel received the request. A client that knows both ends of the wire knows its own error.

Plain epoll and a timerfd in one thread, no event loop of anybody's, everything rendered ahead but the stamps. A body
may set `ttft_us`, `itl_us`, `max_tokens` and `lockstep`. A stream's steps lie on an absolute schedule: `smooth` gives
each stream a phase of its own, `lockstep` puts all streams on one grid, as an engine does that steps its whole batch at
once. One more step after the last token ends the answer, so that the last token is the last event of its write.

`GET /truth` tells how late the server's own steps were since it was last asked with `?reset`: when they were late, the
server was the limit and not its client. A stream whose socket is full waits for its client; that is not lateness.

TLS is an `ssl.MemoryBIO` pair on the same sockets, so that requests keep their kernel stamps. A token is stamped before
it is encrypted: its error then includes that.
"""

from __future__ import annotations

import heapq
import json
import os
import select
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from typing import Any

from .truth_clock import Lateness, Timer, clock_offset, run_queue_wait_ns
from .truth_wire import closing, opening, token_template

_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)
_TIMESPEC = struct.Struct("qq")
_STEPS_A_TURN = 128  # so many steps at most before sockets are looked at again
_ACCEPTS_A_TURN = 64
_MAX_TOKENS = 999_999  # six digits
_REASONS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found"}


@dataclass(frozen=True, slots=True)
class TruthConfig:
    """What a request gets that does not say otherwise; times in µs. `worker` makes ids unique across processes."""

    ttft_us: int = 50_000
    itl_us: int = 20_000
    max_tokens: int = 100
    lockstep: bool = False
    worker: int = 0


class _Connection:
    """One client connection, and the answer that is under way on it."""

    __slots__ = (
        "active",
        "arrival_real_ns",
        "bios",
        "count",
        "fd",
        "inbox",
        "index",
        "itl_ns",
        "outbox",
        "parked",
        "rid",
        "sock",
        "template",
        "tls",
        "tolerance_ns",
    )

    def __init__(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.inbox = bytearray()
        self.outbox = b""
        self.active = False
        self.parked = False  # its next step waits for its client to read
        self.arrival_real_ns = 0
        self.rid = self.template = b""
        self.index = self.count = self.itl_ns = self.tolerance_ns = 0
        self.tls: ssl.SSLObject | None = None
        self.bios = (ssl.MemoryBIO(), ssl.MemoryBIO())
        if context is not None:
            self.tls = context.wrap_bio(*self.bios, server_side=True)

    def seal(self, data: bytes) -> bytes:
        """What goes onto the wire for `data`."""
        if self.tls is None:
            return data
        self.tls.write(data)
        return self.bios[1].read()

    def unseal(self, data: bytes) -> bytes:
        """What the wire's `data` says. Raises ssl.SSLError; what the handshake answers is left in the outgoing BIO."""
        if self.tls is None:
            return data
        self.bios[0].write(data)
        out = b""
        try:
            if self.tls.version() is None:
                self.tls.do_handshake()
            while part := self.tls.read(65536):
                out += part
        except ssl.SSLWantReadError:
            pass
        return out


class TruthServer:
    """One process's server: `listeners` are bound sockets, each with a TLS context or None. `serve` until `stop_fd`
    (a pipe whose other end the parent holds) says that the parent is gone."""

    def __init__(
        self,
        listeners: list[tuple[socket.socket, ssl.SSLContext | None]],
        config: TruthConfig | None = None,
        *,
        stop_fd: int | None = None,
    ) -> None:
        self.config = config or TruthConfig()
        self.lateness = Lateness()
        self._epoll = select.epoll()
        self._timer = Timer()
        self._stop_fd = stop_fd
        self._listeners = {}
        for sock, context in listeners:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)  # accepted sockets inherit both
            self._listeners[sock.fileno()] = (sock, context)
        for fd in (*self._listeners, self._timer.fd, *(() if stop_fd is None else (stop_fd,))):
            self._epoll.register(fd, select.EPOLLIN)
        self._connections: dict[int, _Connection] = {}
        self._due: list[tuple[int, int, _Connection]] = []  # a heap: (when, a number of its own, whose step)
        self._numbers = self._answers = 0
        self._offset_ns, self._offset_at = clock_offset(), time.monotonic_ns()
        self._reset()

    def serve(self) -> None:
        """Serve until the parent is gone."""
        due, timer, poll, monotonic = self._due, self._timer, self._epoll.poll, time.monotonic_ns
        while True:
            self._take_steps()
            wait = -1
            if not due:
                timer.arm(0)
            elif due[0][0] > monotonic():
                timer.arm(due[0][0])
            else:
                wait = 0
            for fd, events in poll(wait, 256):
                connection = self._connections.get(fd)
                if connection is not None:
                    self._serve(connection, events)
                elif fd in self._listeners:
                    self._accept(*self._listeners[fd])
                elif fd == self._stop_fd and not os.read(fd, 4096):
                    return

    def report(self) -> dict[str, Any]:
        """What `GET /truth` answers."""
        seconds = (time.monotonic_ns() - self._since) / 1e9
        waited = run_queue_wait_ns() - self._waited
        return {
            "worker": self.config.worker,
            "seconds": seconds,
            "requests": self._requests,
            "tokens": self.lateness.steps,
            "active": self._active,
            "active_max": self._active_max,
            "blocked": self._blocked,
            "cpu_share": (time.process_time() - self._cpu) / seconds if seconds > 0 else 0.0,
            "waited_share": waited / 1e9 / seconds if seconds > 0 else 0.0,
            **self.lateness.report(),
        }

    def _reset(self) -> None:
        self._since = time.monotonic_ns()
        self._cpu = time.process_time()
        self._waited = run_queue_wait_ns()
        self._requests = self._blocked = 0
        self._active = self._active_max = sum(one.active for one in self._connections.values())
        self.lateness.reset()

    # --- tokens -----------------------------------------------------------------------------------------------------

    def _take_steps(self) -> None:
        """Send what is due. The path of every token: nothing here looks anything up that it could hold."""
        due, replace = self._due, heapq.heapreplace
        realtime, monotonic, add = time.time_ns, time.monotonic_ns, self.lateness.add
        now = monotonic()
        for _ in range(_STEPS_A_TURN):
            if not due or due[0][0] > now:
                now = monotonic()
                if not due or due[0][0] > now:
                    return
            when, number, connection = due[0]
            if not connection.active:  # it went away
                heapq.heappop(due)
                continue
            if connection.index == connection.count:
                heapq.heappop(due)
                self._finish(connection)
                continue
            if connection.outbox:
                heapq.heappop(due)
                connection.parked = True
                continue
            real = realtime()
            now = monotonic()
            data = connection.template % (real, now, connection.index)
            if connection.tls is not None:
                data = connection.seal(data)
            try:
                sent = connection.sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                heapq.heappop(due)
                self._close(connection)
                continue
            add(now - when, connection.tolerance_ns)
            connection.index += 1
            if sent == len(data):
                replace(due, (when + connection.itl_ns, number, connection))
            else:
                heapq.heappop(due)
                connection.parked = True
                self._hold(connection, data[sent:])

    def _schedule(self, connection: _Connection, when_ns: int) -> None:
        self._numbers += 1
        heapq.heappush(self._due, (when_ns, self._numbers, connection))

    def _begin(self, connection: _Connection, body: bytes) -> None:
        """Answer a completion request: head and role now, tokens on schedule."""
        try:
            asked = json.loads(body)
        except ValueError:
            asked = None
        if not isinstance(asked, dict):
            self._answer(connection, 400, {"error": {"message": "the body is not a JSON object", "code": 400}})
            return
        config = self.config
        ttft_ns = 1000 * _count(asked, "ttft_us", config.ttft_us)
        itl_ns = 1000 * _count(asked, "itl_us", config.itl_us)
        now = time.monotonic_ns()
        if now - self._offset_at > 1_000_000_000:
            self._offset_ns, self._offset_at = clock_offset(), now
        real = connection.arrival_real_ns
        kernel = real != 0
        arrival = real - self._offset_ns if kernel else now
        self._requests += 1
        self._answers += 1
        connection.rid = b"%02x%08x" % (config.worker & 255, self._answers)
        connection.template = token_template(connection.rid)
        connection.index = 0
        connection.count = min(_MAX_TOKENS, _count(asked, "max_tokens", config.max_tokens))
        connection.itl_ns = itl_ns
        connection.tolerance_ns = itl_ns // 2
        connection.active = True
        self._active += 1
        self._active_max = max(self._active_max, self._active)
        first = arrival + ttft_ns
        if itl_ns and asked.get("lockstep", config.lockstep):
            first += -first % itl_ns
        elif itl_ns:
            first += int(self._answers * 0.6180339887 % 1 * itl_ns)  # phases as even as can be for any number
        self._schedule(connection, first)
        self._write(connection, opening(connection.rid, real or time.time_ns(), arrival, kernel))

    def _finish(self, connection: _Connection) -> None:
        connection.active = False
        self._active -= 1
        self._write(connection, closing(connection.rid, connection.count))
        self._next_request(connection)

    # --- connections ------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            try:
                sock, _address = listener.accept()
            except OSError:  # nobody is waiting any more, or there are no descriptors left
                return
            sock.setblocking(False)
            connection = _Connection(sock, context)
            self._connections[connection.fd] = connection
            self._epoll.register(connection.fd, select.EPOLLIN)

    def _serve(self, connection: _Connection, events: int) -> None:
        if events & select.EPOLLOUT and not self._flush(connection):
            return
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            self._read(connection)

    def _read(self, connection: _Connection) -> None:
        try:
            data, ancillary, _flags, _address = connection.sock.recvmsg(65536, 64)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self._close(connection)
            return
        if ancillary:
            seconds, ns = _TIMESPEC.unpack(ancillary[0][2])
            connection.arrival_real_ns = seconds * 1_000_000_000 + ns
        try:
            connection.inbox += connection.unseal(data)
        except ssl.SSLError:
            self._close(connection)
            return
        if connection.tls is not None and (answer := connection.bios[1].read()):
            self._send(connection, answer)
        self._next_request(connection)

    def _next_request(self, connection: _Connection) -> None:
        """Take the next whole request from the inbox, if the last one has been answered."""
        while not connection.active and connection.fd in self._connections:
            head, end, rest = connection.inbox.partition(b"\r\n\r\n")
            if not end:
                return
            lines = bytes(head).split(b"\r\n")
            length = 0
            for line in lines[1:]:
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length" and value.strip().isdigit():
                    length = int(value)
            if len(rest) < length:
                return
            connection.inbox = rest[length:]
            method, _, target = lines[0].partition(b" ")
            self._route(connection, method, target.split(b" ")[0], bytes(rest[:length]))

    def _route(self, connection: _Connection, method: bytes, target: bytes, body: bytes) -> None:
        path, _, query = target.partition(b"?")
        if method == b"POST" and path.endswith(b"/chat/completions"):
            self._begin(connection, body)
        elif method == b"GET" and path == b"/truth":
            self._answer(connection, 200, self.report())
            if b"reset" in query:
                self._reset()
        elif method == b"GET" and path.endswith(b"/models"):
            self._answer(connection, 200, {"object": "list", "data": [{"id": "truth", "object": "model"}]})
        else:
            self._answer(connection, 404, {"error": {"message": "there is no such page here", "code": 404}})

    def _answer(self, connection: _Connection, status: int, value: dict[str, Any]) -> None:
        payload = json.dumps(value).encode()
        self._write(
            connection,
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (status, _REASONS[status], len(payload), payload),
        )

    def _write(self, connection: _Connection, data: bytes) -> None:
        self._send(connection, connection.seal(data))

    def _send(self, connection: _Connection, data: bytes) -> None:
        """Bytes as they go onto the wire, behind what waits there."""
        if connection.outbox:
            connection.outbox += data
            return
        try:
            sent = connection.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close(connection)
            return
        if sent < len(data):
            self._hold(connection, data[sent:])

    def _hold(self, connection: _Connection, data: bytes) -> None:
        """The socket is full: the rest waits until its client has read."""
        self._blocked += 1
        connection.outbox = data
        self._epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLOUT)

    def _flush(self, connection: _Connection) -> bool:
        """Send what waited; whether the connection still stands."""
        try:
            sent = connection.sock.send(connection.outbox)
        except BlockingIOError:
            return True
        except OSError:
            self._close(connection)
            return False
        connection.outbox = connection.outbox[sent:]
        if not connection.outbox:
            self._epoll.modify(connection.fd, select.EPOLLIN)
            if connection.parked:
                connection.parked = False
                self._schedule(connection, time.monotonic_ns())
        return True

    def _close(self, connection: _Connection) -> None:
        if self._connections.pop(connection.fd, None) is None:
            return
        if connection.active:
            connection.active = False
            self._active -= 1
        self._epoll.unregister(connection.fd)
        connection.sock.close()


def _count(asked: dict[str, Any], key: str, default: int) -> int:
    value = asked.get(key, default)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
