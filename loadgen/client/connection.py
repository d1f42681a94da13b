"""One socket of our own transport: bytes out, bytes in, stamps, HTTP framing.

The rules of the hot path, which is `Connection._read` and what it calls:
1. Stamp first: the kernel's time comes with the bytes, before any of them is parsed.
2. No task switch per token: the read feeds the HTTP parser, which hands body bytes to the request's tally; the waiting
   task wakes once for the headers and once at the end.
3. JSON waits: held bytes are parsed in slices when nothing is to be read, except what must be acted on at once.
4. Nothing here allocates per token what it could reuse; no logging, no formatting.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import httptools
import httpx

from .addresses import Place
from .answer import FAR_BITS, LAG_BIN_NS, LAG_BINS, Answer, ReadStats, Sink
from .clock import ANCILLARY_BYTES, SECOND_NS, SLACK_NS, ask_for_transmit_stamps, timespec, transmit_stamp
from .decode import decoder
from .probe import format_address
from .reactor import Reactor
from .tcpinfo import disordered
from .tls import Tls

READ_BYTES = 65536
# After the stream's own end its body should end at once, and the connection serve the next request. An answer waits so
# long for that, less once it was in vain; its connection so long for another use.
GRACE_S, SHORT_GRACE_S, LINGER_S = 0.008, 0.001, 0.25
ONE_PACKET = 8192  # bytes of a request which the kernel hands to the device at once
MAX_HEADER_BYTES = 1 << 20
MAX_BODY_BYTES = 64 << 20  # of an answer that is not a stream

Key = tuple[str, str, int]


class Owner(Protocol):
    """What a connection needs of the transport that owns it."""

    reactor: Reactor
    stats: ReadStats
    held: deque[Connection]
    rearm_ns: int
    grace_s: float

    def release(self, connection: Connection) -> None: ...
    def drop(self, connection: Connection) -> None: ...


class Connection:
    """One socket: bytes out, bytes in, HTTP framing; at most one answer at a time."""

    __slots__ = (
        "_broke_ns",
        "_clock",
        "_full",
        "_head_bytes",
        "_out",
        "_parser",
        "_reactor",
        "_rearm_ns",
        "_recvmsg",
        "_stats",
        "_status",
        "answer",
        "closed",
        "complete",
        "decode",
        "fd",
        "headers",
        "held",
        "idle_since",
        "in_use",
        "keep",
        "key",
        "last_read_ns",
        "peer",
        "place",
        "round_ns",
        "served",
        "sock",
        "stamp_ns",
        "stamps_sent",
        "streaming",
        "tls",
        "transport",
        "until_close",
        "urgent",
    )  # fmt: skip

    def __init__(self, transport: Owner, sock: socket.socket, key: Key, place: Place, tls: Tls | None) -> None:
        """On a connected socket to a place that is already taken."""
        self.transport = transport
        self.sock = sock
        self.fd = sock.fileno()
        self.key = key
        self.place = place
        self.in_use = True  # of its place
        self.served = 0  # requests
        self.peer = format_address(sock.getpeername())
        self.answer: Answer | None = None
        self.closed = False
        self.idle_since = 0.0
        self.round_ns = 0  # of its handshake
        self._broke_ns = 0
        self.held = False  # is it on the list of those with bytes to parse?
        self.tls = tls
        self._reactor = transport.reactor
        self._clock = transport.reactor.clock
        self._stats = transport.stats
        self._recvmsg = sock.recvmsg
        self._out = b""
        self._parser: Any = None
        self.last_read_ns = 0
        self._full = False  # did the last read fill its buffer?
        self.stamp_ns = 0
        self._rearm_ns = 0
        self.urgent = False
        self.stamps_sent = place.family != socket.AF_UNIX  # does the kernel tell when a request leaves?

    # --- the loop's side --------------------------------------------------------------------------------------------

    def take(self) -> None:
        self.in_use = True
        self.place.take()

    def leave(self) -> None:
        if self.in_use:
            self.in_use = False
            self.place.leave()

    def begin(self, answer: Answer) -> None:
        """Take a request; its bytes are still to be written."""
        self.served += 1
        self.answer = answer
        answer.connection = self
        answer.probe.peer = self.peer
        answer.probe.round_ns = self.round_ns
        self._parser = httptools.HttpResponseParser(self)
        self.headers: list[tuple[bytes, bytes]] = []
        self._status = self._head_bytes = 0
        self.streaming = self.complete = self.until_close = self.urgent = False
        self.keep = True
        self.decode: Callable[[bytes], bytes] | None = None
        self._rearm_ns = 0

    def is_quiet(self) -> bool:
        """Is there nothing to read on this kept connection? What is there, its end or bytes, answers no request.
        Over TLS it may be a session ticket, which is read here; a thread does that on its own."""
        poll = select.poll()  # a read that finds nothing would cost an exception
        poll.register(self.fd, select.POLLIN)
        if not poll.poll(0):
            return True
        if self.tls is None:
            return False
        if self._reactor.here:
            self.on_ready(select.EPOLLIN)
        return not self.closed

    def write(self, wire: bytes) -> None:
        """Send the request now; what the kernel does not take at once follows when it does. Runs where sockets are
        served when the request was scheduled."""
        answer = self.answer
        if answer is None or self.closed:
            return
        probe = answer.probe
        stamped = self.stamps_sent and len(wire) <= ONE_PACKET and self._reactor.here
        if stamped:
            stamped = self.stamps_sent = ask_for_transmit_stamps(self.sock, True)
        probe.sent_ns = self.last_read_ns = probe.previous_read_ns = probe.last_read_ns = time.monotonic_ns()
        if answer.sink is not None:  # now: a thread may read the first token before the loop hears of the write
            answer.sink.sent_ns = probe.sent_ns
        try:
            sent = self.sock.send(wire)
            probe.write_ns = time.monotonic_ns() - probe.sent_ns
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._hung_up(error)
            return
        if stamped:
            self._take_transmit_stamp(answer)
        if sent < len(wire):
            self._out = wire[sent:]
            self._reactor.want_write(self.fd, True)
        self._reactor.post(probe.on_sent)

    def _take_transmit_stamp(self, answer: Answer) -> None:
        """Take the kernel's word for when the request left, if it has it at once; where it tells late or never it is
        not asked again."""
        probe = answer.probe
        real = transmit_stamp(self.sock)
        ask_for_transmit_stamps(self.sock, False)
        if real is None or probe.sent_ns is None:
            self.stamps_sent = False
            return
        left = real - self._clock.offset
        if probe.sent_ns <= left <= probe.sent_ns + probe.write_ns:  # else the wall clock was stepped
            probe.sent_ns = probe.last_read_ns = left
            probe.write_ns = 0
            if answer.sink is not None:
                answer.sink.sent_ns = left

    def close(self) -> None:
        """Drop the socket, and the cycle between connection and parser with it."""
        if not self.closed:
            self.closed = True
            self._stats.sockets.add(self.sock)
            self._reactor.drop(self.sock)
            self._parser = None
            self.tls = None

    # --- where sockets are served -----------------------------------------------------------------------------------

    def on_ready(self, mask: int) -> None:
        if self.closed:
            return
        try:
            if mask & select.EPOLLERR:
                transmit_stamp(self.sock)  # one that was told late would be an event for good
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
            self._hung_up(error)
            return
        if sent and self.answer is not None and not self.answer.probe.write_ns:  # the first byte had to wait
            self.answer.probe.write_ns = time.monotonic_ns() - (self.answer.probe.sent_ns or 0)
        self._out = self._out[sent:]
        if not self._out:
            self._reactor.want_write(self.fd, False)

    def _hung_up(self, error: OSError) -> None:
        """The server takes no more of the request. What it had to say before that lies here, if anything."""
        self._out = b""
        self._reactor.want_write(self.fd, False)
        reads = self._stats.reads
        self._read()
        if self._stats.reads == reads:
            self._broke(httpx.WriteError(str(error)), error)
        self.keep = False

    def _read(self, rest: bool = False) -> None:
        answer = self.answer
        size = READ_BYTES
        if answer is not None and answer.sink is not None and answer.sink.last_is_next and not rest:
            size = self._last_alone()
        try:
            data, ancillary, _, _ = self._recvmsg(size, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._broke(httpx.ReadError(str(error)), error)
            return
        now = time.monotonic_ns()
        inexact = False
        if not data:
            self._ended()
            return
        stats = self._stats
        stats.reads += 1
        if ancillary:
            seconds, nanoseconds = timespec(ancillary[0][2])
            real = seconds * SECOND_NS + nanoseconds
            stamp = real - self._clock.offset
            # What the read before left behind, as its buffer was full, may be older than the last look.
            if stamp > now or (stamp < self._reactor.looked_ns - SLACK_NS and not self._full):
                stamp = self._doubted(real, now)
            lag = now - stamp
            if lag > SLACK_NS and disordered(self.sock):
                # Bytes that had to wait for others, which were lost or overtaken, bear the time when they came: when
                # they could be read is known from the last look alone.
                stamp, lag, inexact = now, 0, True
            if lag < LAG_BIN_NS * LAG_BINS:
                stats.lag[lag // LAG_BIN_NS] += 1
            else:
                far = lag >> FAR_BITS
                stats.lag_beyond[far] = stats.lag_beyond.get(far, 0) + 1
        else:
            stamp = now
            stats.unstamped += 1
        if size < READ_BYTES and self._may_be_merged(ancillary):
            inexact = True
        full = len(data) == size
        closed = False
        if self.tls is not None:
            try:
                data, closed, reply = self.tls.opened(data)
                if reply:
                    self.sock.send(reply)
            except OSError as error:  # SSLError is one
                self._broke(httpx.ReadError(str(error)), error)
                return
            if not data and not closed:
                return  # a part of a record, or none of ours (a session ticket)
        before = self.complete
        if answer is None or before:
            self._ended()
            return
        probe = answer.probe
        sent = probe.sent_ns
        if data and (sent is None or (stamp < sent - SLACK_NS and self._early(ancillary, sent))):
            self._broke(httpx.RemoteProtocolError("the connection held an answer that nobody asked for"), None)
            return
        if stamp < probe.last_read_ns:  # by the clocks' few ns, or bytes that were there before the request
            stamp = probe.last_read_ns
        if probe.first_read_ns is None and data:
            probe.first_read_ns = stamp
        # What is read now came after the read before, and after the sockets were last looked at, as it would have been
        # read then; unless the read before filled its buffer and left something.
        previous = self.last_read_ns if self._full else max(self.last_read_ns, self._reactor.looked_ns)
        probe.previous_read_ns, probe.last_read_ns = previous, stamp
        self._full = full
        if not full:
            self.last_read_ns = stamp
        self.stamp_ns = stamp
        if data:
            try:
                self._parser.feed_data(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                if not self.complete:
                    self._broke(*_told(error))
                    return
                self.keep = False  # the answer is whole; what follows it is nobody's
            if inexact and self.streaming and answer.sink is not None:
                answer.sink.doubt(stamp, previous)
            if self.complete:
                self._reactor.post(self._completed, answer)
            elif self.streaming:
                self._parse_or_hold(answer, stamp)
        if closed:
            self._ended()
        elif size < READ_BYTES and self.answer is answer and not self.closed:
            self._read(rest=True)

    def _last_alone(self) -> int:
        """How much to read where a stream's last token is due and more waits behind it: servers send what ends a stream
        within microseconds, and one read would give the token the stamp of that."""
        if self.tls is not None:
            return READ_BYTES
        try:
            data = self.sock.recv(READ_BYTES, socket.MSG_PEEK)
        except OSError:  # which the read itself meets as well
            return READ_BYTES
        end = data.find(b"\n\n") + 2
        if data.startswith(b"\r\n", end):  # of the chunk
            end += 2
        return end if 4 < end < len(data) else READ_BYTES

    def _may_be_merged(self, ancillary: list[tuple[int, int, bytes]]) -> bool:
        """Does the next byte's stamp fail to show that what was read came before it? The kernel puts segments that wait
        together, with the last one's stamp."""
        try:
            _, following, _, _ = self._recvmsg(1, ANCILLARY_BYTES, socket.MSG_PEEK)
        except OSError:
            return True
        return not ancillary or not following or following[0][2] == ancillary[0][2]

    def _doubted(self, real: int, now: int) -> int:
        """The time of an implausible stamp, by a fresh offset; if that is no better, of its read."""
        stamp = self._clock.restamp(real)
        if stamp > now or (stamp < self._reactor.looked_ns - SLACK_NS and not disordered(self.sock)):
            self._clock.rejected += 1
            return now
        return stamp

    def _early(self, ancillary: list[tuple[int, int, bytes]], sent_ns: int) -> bool:
        """Did the bytes come before the request left, also by a fresh look at the clocks? They answer another one."""
        seconds, nanoseconds = timespec(ancillary[0][2])
        return self._clock.restamp(seconds * SECOND_NS + nanoseconds) < sent_ns - SLACK_NS

    def _parse_or_hold(self, answer: Answer, stamp: int) -> None:
        """Until its first token, at a timer's check and when something must be acted on, a stream is parsed at once."""
        sink = answer.sink
        if sink is None:
            return
        if self.urgent or stamp > self._rearm_ns:
            self.urgent = False
            if sink.output_events:
                self._rearm_ns = stamp + self.transport.rearm_ns
            self._reactor.post(self.act, answer)
        elif not self.held:
            self.held = True
            self.transport.held.append(self)

    # httptools' callbacks

    def on_message_begin(self) -> None:
        if self.complete:
            raise httpx.RemoteProtocolError("the server sent more than the answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEADER_BYTES:
            raise _endless("headers", MAX_HEADER_BYTES)
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
        self._reactor.post(self._headed, answer, self._status, self.headers)
        if answer.sink is not None and self._status == 200 and kind in (answer.sink.media.encode(), b""):
            self.streaming = True
            self.decode = decoder(known.get(b"content-encoding", b"").decode("latin-1"))

    def on_body(self, data: bytes) -> None:
        answer = self.answer
        if answer is None:
            return
        if self.streaming:
            if self.decode is not None:
                data = self.decode(data)
                if not data:
                    return
            assert answer.sink is not None
            if answer.sink.hold(data, self.stamp_ns, answer.probe.previous_read_ns):
                self.urgent = True
        else:
            answer.size += len(data)
            if answer.size > MAX_BODY_BYTES:
                raise _endless("body", MAX_BODY_BYTES)
            answer.body.append(data)

    def on_message_complete(self) -> None:
        answer = self.answer
        if answer is None or self._parser is None:
            return
        if 100 <= self._status < 200:
            self.headers = []
            return
        self.complete = True
        # Answered before the request was all sent: what is left of it would stand before the next one.
        self.keep = bool(self._parser.should_keep_alive()) and not self.until_close and not self._out

    # --- ends -------------------------------------------------------------------------------------------------------

    def _ended(self) -> None:
        """The peer has closed, or sent what nobody asked for."""
        self._reactor.leave(self.fd)
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
            self._broke(httpx.RemoteProtocolError("the server closed the connection without an answer"), None)

    def _broke(self, error: Exception, cause: BaseException | None) -> None:
        self._reactor.leave(self.fd)
        self._broke_ns = time.monotonic_ns()
        if cause is not error:  # it would keep itself
            error.__cause__ = cause
        self._reactor.post(self._failed, error)

    # in the loop

    def _headed(self, answer: Answer, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if not answer.head.done():
            answer.head.set_result((status, headers))

    def act(self, answer: Answer) -> None:
        """Parse what is held and act on it: the stream's own end, an error, a token for the timers."""
        sink = answer.sink
        if sink is None or answer.resolved:
            return
        self._parse_all(sink)
        if sink.output_events > answer.seen:
            answer.seen = sink.output_events
            answer.on_token()
        if (sink.finished or sink.failed) and not self.complete:
            answer.linger = asyncio.get_running_loop().call_later(self.transport.grace_s, self._let_go, answer)

    def _let_go(self, answer: Answer) -> None:
        """The stream said that it ended, but its body goes on: the answer is taken, and the connection waits for the
        rest on its own."""
        if answer.resolved:
            return
        answer.connection = None
        answer.finish()
        self.transport.grace_s = SHORT_GRACE_S
        answer.linger = asyncio.get_running_loop().call_later(LINGER_S, self._give_up, answer)

    def _give_up(self, answer: Answer) -> None:
        if self.answer is answer:
            self.answer = None
            self.transport.drop(self)

    def _completed(self, answer: Answer) -> None:
        if self.answer is not answer:
            return
        if answer.linger is not None:
            answer.linger.cancel()
        if answer.sink is not None and not answer.resolved:
            self._parse_all(answer.sink)
        self.answer = None
        answer.connection = None
        self._parser = None
        self.transport.release(self)
        if not answer.resolved:
            answer.finish()

    def _failed(self, error: Exception) -> None:
        """Nothing more comes of this connection, also where a thread saw that before the loop began the request that is
        here now."""
        answer, self.answer = self.answer, None
        self.transport.drop(self)
        if answer is not None and not answer.resolved:
            answer.connection = None
            answer.probe.broke_ns = self._broke_ns
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


def _endless(what: str, most: int) -> Exception:
    """A server that sends without end is kept no further."""
    return httpx.RemoteProtocolError(f"the answer's {what} would be longer than {most >> 20} MiB")


def _told(error: Exception) -> tuple[Exception, BaseException | None]:
    """A parser's error in httpx's terms, and what caused it."""
    if isinstance(error, httptools.HttpParserUpgrade):
        return httpx.RemoteProtocolError("the server switched to another protocol, which nobody asked for"), error
    why = error.__context__
    if not isinstance(error, httptools.HttpParserCallbackError):
        return httpx.RemoteProtocolError(f"the answer is not HTTP: {error}"), error
    known = why if isinstance(why, httpx.HTTPError) else httpx.RemoteProtocolError(f"{type(why).__name__}: {why}")
    return known, why
