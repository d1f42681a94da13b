"""A fake server that does what a script says, byte by byte: for tests of clients, faults included.

    async with ScriptedServer([T(50), C("a"), FIN("stop"), U(3, 1), DONE]) as server:
        ...  # POST to server.url + "/v1/chat/completions"
        assert server.peak_in_flight == 1

A handler instead of a script sees each request and returns its script: any iterable or async iterable of actions (an
async generator may wait on locks and events between actions), or None for the default: GET /v1/models lists one model
"m", anything else is 404. A fixed script answers all but GETs. `ThreadedServer` is the same in a thread of its own.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Literal, cast

from .script import (
    CU,
    DONE,
    EOF,
    FIN,
    RC,
    ROLE,
    RST,
    Action,
    C,
    Close,
    Comment,
    End,
    Event,
    Hang,
    Head,
    J,
    R,
    Raw,
    Reject,
    T,
    U,
    error_reply,
    json_reply,
    models_reply,
    reply,
)
from .wire import Request, parse_json, parse_request

__all__ = [
    "CU",
    "DONE",
    "EOF",
    "FIN",
    "RC",
    "ROLE",
    "RST",
    "Action",
    "C",
    "Close",
    "Comment",
    "Event",
    "Hang",
    "Head",
    "J",
    "R",
    "Raw",
    "Reject",
    "Request",
    "ScriptedServer",
    "T",
    "ThreadedServer",
    "U",
    "error_reply",
    "json_reply",
    "models_reply",
    "reply",
]


Script = Iterable[Action] | AsyncIterable[Action]
Handler = Callable[[Request], Script | None]
Flush = Literal["action", "wait"] | int


class ScriptedServer:
    """The server; an async context manager. All counters may be read at any time.

    `flush`: "action" writes each action by itself, "wait" only before waits and ends, a number cuts everything (HTTP
    framing too) into writes of that many bytes. `eol` ends the lines of events. `idle_close` closes a connection that
    has waited that many seconds for a request. `reject` closes connections on accept: all, or those whose number it
    accepts (numbers start at 0). `ssl` serves TLS. `unix` is the path of a socket to listen on instead of a port.
    """

    def __init__(
        self,
        script: Handler | Script | End,
        *,
        flush: Flush = "action",
        eol: str = "\n",
        idle_close: float | None = None,
        reject: bool | Callable[[int], bool] = False,
        ssl: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        unix: str | None = None,
    ) -> None:
        if isinstance(flush, int) and flush < 1:
            raise ValueError(f"flush must be at least 1 byte, not {flush}")
        self._handler = _handler(script)
        self.flush: Flush = flush
        self.eol = eol
        self.idle_close = idle_close
        self._reject: bool | Callable[[int], bool] = True if script is Reject else reject
        self._ssl = ssl
        self.host = host
        self.port = port
        self.unix = unix
        self.requests: list[Request] = []
        self.connections = 0  # accepted, those rejected too
        self.open_connections = 0
        self.in_flight = 0  # requests being answered
        self.peak_in_flight = 0
        self.aborted = 0  # requests whose client went away before the script ended
        self.errors: list[BaseException] = []  # raised by handlers and scripts; such a connection is reset
        self._live: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The address without a path, such as http://127.0.0.1:40123."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self._ssl else 'http'}://{host}:{self.port}"

    async def __aenter__(self) -> ScriptedServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen. After `stop` it may be called again and takes the same port."""
        loop = asyncio.get_running_loop()
        if self.unix is not None:
            self._server = await loop.create_unix_server(lambda: _Connection(self), self.unix, ssl=self._ssl)
            return
        self._server = await loop.create_server(
            lambda: _Connection(self), self.host, self.port, ssl=self._ssl, backlog=2048, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and reset every connection."""
        if self._server is None:
            return
        self._server.close()
        tasks = [connection.abort() for connection in list(self._live)]
        await asyncio.gather(*(task for task in tasks if task), return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    # --- for connections ---

    def _rejects(self, number: int) -> bool:
        return self._reject(number) if callable(self._reject) else self._reject

    def _script(self, request: Request) -> Script:
        answer = self._handler(request)
        if answer is not None:
            return answer
        if request.method == "GET" and request.path.split("?")[0] == "/v1/models":
            return models_reply(["m"])
        return json_reply({"detail": "Not Found"}, 404)


class ThreadedServer:
    """A `ScriptedServer` on an event loop in a thread of its own, for blocking callers; takes the same arguments."""

    def __init__(self, script: Handler | Script | End, **options: Any) -> None:
        self.server = ScriptedServer(script, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="scripted-server")

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self.server.start(), self._loop).result()
        except BaseException:
            self._end()
            raise
        return self.server

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self.server.stop(), self._loop).result()
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Connection(asyncio.Protocol):
    """One connection: parses requests as bytes come, answers them one after the other."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.number = -1
        self.buffer = bytearray()
        self.transport: asyncio.Transport
        self.task: asyncio.Task[None] | None = None
        self.gone = False
        self.writable = asyncio.Event()
        self.writable.set()
        self.idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.number = self.server.connections
        self.server.connections += 1
        self.server.open_connections += 1
        self.server._live.add(self)
        if self.server._rejects(self.number):
            self.transport.close()
        else:
            self._wait_for_request()

    def connection_lost(self, error: Exception | None) -> None:
        self.gone = True
        self.writable.set()
        self.server.open_connections -= 1
        self.server._live.discard(self)
        if self.idle:
            self.idle.cancel()
        if self.task:
            self.task.cancel()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self._next_request()

    def abort(self) -> asyncio.Task[None] | None:
        self.transport.abort()
        return self.task

    def reset(self) -> None:
        sock = self.transport.get_extra_info("socket")
        if sock is not None and not self.gone:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _wait_for_request(self) -> None:
        if self.server.idle_close is not None:
            self.idle = asyncio.get_running_loop().call_later(self.server.idle_close, self.transport.close)

    def _next_request(self) -> None:
        if self.task or self.gone or self.transport.is_closing():
            return
        parsed = parse_request(self.buffer)
        if parsed is None:
            return
        if self.idle:
            self.idle.cancel()
        method, path, headers, body, used = parsed
        del self.buffer[:used]
        request = Request(method, path, headers, body, parse_json(body), len(self.server.requests), self.number)
        self.server.requests.append(request)
        self.task = asyncio.get_running_loop().create_task(self._answer(request))

    async def _answer(self, request: Request) -> None:
        server = self.server
        server.in_flight += 1
        server.peak_in_flight = max(server.peak_in_flight, server.in_flight)
        answer = _Answer(self)
        try:
            await answer.play(server._script(request))
        except asyncio.CancelledError:
            server.aborted += 1
            raise
        except Exception as error:
            server.errors.append(error)
            self.reset()
        finally:
            server.in_flight -= 1
            self.task = None
        if answer.close or request.headers.get("connection", "").lower() == "close":
            self.transport.close()
        elif not self.gone:
            self._wait_for_request()
            self._next_request()


class _Answer:
    """Plays one script onto a connection."""

    def __init__(self, connection: _Connection) -> None:
        self.connection = connection
        self.pending = bytearray()  # written, not yet flushed
        self.head: Head | None = None
        self.close = False  # the connection ends with the answer

    async def play(self, script: Script) -> None:
        async with aclosing(_iterate(script)) as actions:
            async for action in actions:
                match action:
                    case T(ms):
                        await self._flush()
                        await asyncio.sleep(ms / 1e3)
                    case Hang(seconds):
                        await self._flush()
                        await asyncio.sleep(seconds)
                    case Head():
                        self._start(action)
                    case Event():
                        self._body(action.encode(self.connection.server.eol))
                    case Raw(data):
                        self._body(data)
                    case End(how):
                        await self._end(how)
                        return
                if self.connection.server.flush == "action":
                    await self._flush()
        await self._end("eof")

    async def _end(self, how: str) -> None:
        if how == "eof":
            if self.head is None:
                self._start(Head())
            if self.head and self.head.chunked:
                self.pending += b"0\r\n\r\n"
            elif self.head and not any(name.lower() == "content-length" for name in self.head.headers):
                self.close = True
        await self._flush()
        if how == "rst":
            self.connection.reset()
        elif how in ("close", "reject"):
            self.close = True

    def _start(self, head: Head) -> None:
        if self.head is not None:
            raise ValueError("a script can send only one Head, and before any body")
        self.head = head
        self.pending += head.encode()

    def _body(self, data: bytes) -> None:
        if self.head is None:
            self._start(Head())
        if self.head and self.head.chunked:
            if data:  # an empty chunk would end the body
                self.pending += b"%x\r\n%b\r\n" % (len(data), data)
        else:
            self.pending += data

    async def _flush(self) -> None:
        data, self.pending = bytes(self.pending), bytearray()
        if not data:
            return
        size = self.connection.server.flush
        if isinstance(size, int):
            for start in range(0, len(data), size):
                await self._write(data[start : start + size])
        else:
            await self._write(data)

    async def _write(self, data: bytes) -> None:
        if self.connection.gone:
            raise asyncio.CancelledError
        self.connection.transport.write(data)
        await asyncio.sleep(0)  # lets the loop see a client that went away, and other connections run
        await self.connection.writable.wait()


async def _iterate(script: Script) -> AsyncGenerator[Action, None]:
    if isinstance(script, AsyncGenerator):  # closed at once when the client leaves, so that it gives back its locks
        async with aclosing(script):
            async for action in script:
                yield action
    elif isinstance(script, AsyncIterable):
        async for action in script:
            yield action
    else:
        for action in script:
            yield action


def _handler(script: Handler | Script | End) -> Handler:
    if isinstance(script, End):
        script = [script]
    if callable(script):
        return script
    if not isinstance(script, list | tuple):
        raise TypeError("a fixed script must be a list or tuple: it is played once for each request")
    actions = list(script)
    return lambda request: None if request.method == "GET" else actions
