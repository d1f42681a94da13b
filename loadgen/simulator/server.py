"""The step model behind real HTTP and SSE: an ASGI application and uvicorn around it. `realtime.py` runs the engine."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..errors import UsageError
from . import protocol
from .engine import EngineConfig
from .metrics import Served, render
from .protocol import WORDS, ApiError, Envelope, Kind
from .realtime import EngineTask

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MODEL = "simulated"
# Extensions of a scope: the connection itself, and when the request had come whole, on the loop's clock.
TRANSPORT, ARRIVED = "loadgen.transport", "loadgen.arrived"
_WORDS = tuple(word.encode() for word in WORDS)

_GENERATE: dict[str, Kind] = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
_JSON = "application/json"


class Simulator:
    """The ASGI application. `api_key`, if given, is asked for under /v1 as `Authorization: Bearer KEY`."""

    def __init__(self, config: EngineConfig, model: str = MODEL, api_key: str | None = None) -> None:
        self.config = config
        self.model = model
        self.api_key = api_key
        self.engine = EngineTask(config)
        self.context_length = config.room
        self.finished = {"stop": 0, "length": 0, "abort": 0}
        self._random = random.Random(config.seed)
        self._created = int(time.time())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError(f"this server speaks HTTP alone, not {scope['type']}")
        method, path = scope["method"], scope["path"]
        if path.startswith("/v1") and not self._authorized(scope):
            await _respond(send, 401, b'{"error":"Unauthorized"}')
        elif path in _GENERATE and method == "POST":
            await self._generate(_GENERATE[path], scope, receive, send)
        elif method in ("GET", "HEAD") and (answer := self._page(path)) is not None:
            await _respond(send, 200, *answer)
        elif path in _GENERATE or self._page(path) is not None:
            await _respond(send, 405, b'{"detail":"Method Not Allowed"}')
        else:
            await _respond(send, 404, b'{"detail":"Not Found"}')

    def _authorized(self, scope: Message) -> bool:
        if self.api_key is None:
            return True
        sent = dict(scope["headers"]).get(b"authorization", b"")
        return bool(sent == f"Bearer {self.api_key}".encode())

    def _page(self, path: str) -> tuple[bytes, str] | None:
        match path:
            case "/v1/models":
                return protocol.models(self.model, self.context_length, self._created), _JSON
            case "/version":
                return protocol.dumps({"version": protocol.VERSION}), _JSON
            case "/health":
                return b"", "text/plain"
            case "/metrics":
                return self.metrics().encode(), "text/plain; version=1.0.0; charset=utf-8"
        return None

    def metrics(self) -> str:
        """The state in Prometheus' text format, under vLLM's names."""
        task, pace = self.engine, self.engine.pace
        served = Served(
            model=self.model,
            block_tokens=self.config.block_tokens,
            finished=self.finished,
            prompt_tokens=task.prompt_tokens,
            generation_tokens=task.generation_tokens,
            lag_s=pace.lag_s,
            lost_s=pace.lost_s,
            saturated=pace.saturated(asyncio.get_running_loop().time()),
        )
        return render(task.engine.truth(), task.requests, served)

    async def _generate(self, kind: Kind, scope: Message, receive: Receive, send: Send) -> None:
        raw = await _read(receive)
        if raw is None:
            return
        try:
            hashed = self.config.block_tokens if self.config.prefix_cache else 0
            request = protocol.parse(kind, raw, self.model, self.context_length, self._random, hashed)
        except ApiError as error:
            await _respond(send, error.status, error.body)
            return
        request_id = ("chatcmpl-" if kind == "chat" else "cmpl-") + uuid.uuid4().hex[:16]
        envelope = Envelope(request, request_id, self.model, int(time.time()))
        first_word = self._random.randrange(len(WORDS))
        if request.stream:
            await send(_start(200, "text/event-stream; charset=utf-8"))
            deliver = Events(envelope, first_word, scope["extensions"][TRANSPORT]).deliver
        else:
            deliver = _nowhere
        arrived_s = scope.get("extensions", {}).get(ARRIVED)
        end = self.engine.submit(
            request_id, request.prompt_tokens, request.output_tokens, deliver, request.blocks, arrived_s
        )
        watch = asyncio.ensure_future(self._cancel_on_disconnect(request_id, receive))
        try:
            ended = await end
            if ended is None:
                self.finished["abort"] += 1
                return
            self.finished[request.finish_reason] += 1
            cached = ended.cached if self.config.prefix_cache else None
            if request.stream:
                await self._close_stream(envelope, cached, send)
            else:
                await _respond(send, 200, envelope.whole(text_of(first_word, request.output_tokens), cached))
        finally:
            watch.cancel()
            self.engine.cancel(request_id)

    async def _cancel_on_disconnect(self, request_id: str, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.engine.cancel(request_id)

    async def _close_stream(self, envelope: Envelope, cached: int | None, send: Send) -> None:
        if envelope.request.include_usage:
            await send(_body(envelope.usage(cached)))
        await send(_body(b"data: [DONE]\n\n"))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Events:
    """Writes a stream's tokens as chunks of HTTP/1.1 straight to its connection. Through ASGI's `send` a token would
    wake the request's task and pass a queue, which doubles its cost and puts a step's last token milliseconds behind
    its first. A client that reads slowly makes the connection's buffer grow, by its own answer at most."""

    def __init__(self, envelope: Envelope, first_word: int, transport: asyncio.WriteTransport) -> None:
        self._envelope, self._transport = envelope, transport
        self._word, self._sent = first_word, 0
        self._total = envelope.request.output_tokens
        self._around = envelope.around()

    def deliver(self, count: int) -> None:
        if self._transport.is_closing():
            return  # the client is gone, and the engine will hear of it
        if self._sent and count == 1 and self._around and self._sent + 1 < self._total:
            self._sent += 1
            head, tail, size = self._around
            word = _WORDS[(self._word + self._sent) % len(_WORDS)]
            self._transport.write(b"%x\r\n%b%b%b\r\n" % (size + len(word), head, word, tail))
            return
        events = [] if self._sent or self._envelope.request.kind != "chat" else [self._envelope.role()]
        for _ in range(count):
            self._sent += 1
            events.append(self._envelope.token(WORDS[(self._word + self._sent) % len(WORDS)], self._sent))
        self._transport.write(b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events))


class Http(HttpToolsProtocol):
    """uvicorn's HTTP/1.1; the application is told the connection itself, and when a request had come whole."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {TRANSPORT: self.transport}  # type: ignore[dict-item]

    def on_message_complete(self) -> None:
        self.scope["extensions"][ARRIVED] = self.loop.time()  # type: ignore[assignment]
        super().on_message_complete()


def text_of(first_word: int, tokens: int) -> str:
    """A whole answer of so many tokens."""
    return "".join(WORDS[(first_word + number) % len(WORDS)] for number in range(1, tokens + 1))


def _nowhere(count: int) -> None:
    """For an answer that is sent whole."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. UsageError if the address cannot be had."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(4096)  # clients may come at once, and wait for the server to accept
        except OSError:
            sock.close()
            raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"the simulator cannot listen on {host}:{port}: {reason}",
            "choose another --port; 0 takes a free one"
            if error.errno in (errno.EADDRINUSE, errno.EACCES)
            else "give an address of this machine to --host",
        ) from error
    return sock


def make_server(simulator: Simulator, *, timeout_keep_alive: int = 5) -> uvicorn.Server:
    """uvicorn around the application; run it with `server.run(sockets=[bind(host, port)])`. An idle connection is
    closed after `timeout_keep_alive` seconds."""
    config = uvicorn.Config(
        simulator,
        loop="asyncio",
        http=Http,
        lifespan="off",
        ws="none",
        access_log=False,
        log_level="warning",
        server_header=False,
        headers=[("server", protocol.FINGERPRINT)],
        timeout_keep_alive=timeout_keep_alive,
        timeout_graceful_shutdown=1,
        backlog=4096,
    )
    return uvicorn.Server(config)


def _start(status: int, content_type: str, length: int | None = None) -> Message:
    headers = [(b"content-type", content_type.encode())]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    return {"type": "http.response.start", "status": status, "headers": headers}


def _body(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}


async def _respond(send: Send, status: int, body: bytes, content_type: str = _JSON) -> None:
    await send(_start(status, content_type, len(body)))
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _read(receive: Receive) -> bytes | None:
    """The request's body, None if the client left before it was whole."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)
