"""The step model behind real HTTP and SSE: an ASGI application, the task that runs its engine, and uvicorn around it.

The engine runs on an absolute schedule: a step begins where the step before was due to end, so that a late wake-up
delays that step's tokens but never adds up. Only when it has fallen more than `MAX_LATE_S` behind does the schedule
move, and the time lost is told in `loadgen:simulator_late_seconds`: then the machine, not the model, was the limit.
"""

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

from ..errors import UsageError
from . import protocol
from .engine import Engine, EngineConfig
from .metrics import Phases, render
from .protocol import WORDS, ApiError, Envelope, Generation, Kind

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MODEL = "simulated"
MAX_LATE_S = 0.05

_GENERATE: dict[str, Kind] = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
_JSON = "application/json"


class Stream(asyncio.Queue[int]):
    """Brings the number of tokens of each step, and 0 if the request is cancelled. `cached`, known with the last token,
    is how many prompt tokens a prefix cache held; None without one."""

    cached: int | None = None


class EngineTask:
    """Runs an engine in real time and hands each request its tokens as they fall due."""

    def __init__(self, config: EngineConfig) -> None:
        self.engine = Engine(config)
        self.phases = Phases()
        self.late_s = 0.0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self._streams: dict[str, Stream] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def submit(self, request_id: str, prompt_tokens: int, output_tokens: int, blocks: tuple[int, ...] = ()) -> Stream:
        """Queue a request."""
        loop = asyncio.get_running_loop()
        self.engine.submit(request_id, prompt_tokens, output_tokens, loop.time(), blocks)
        stream = self._streams[request_id] = Stream()
        if self._task is None:
            self._task = loop.create_task(self._run())
        self._wake.set()
        return stream

    def cancel(self, request_id: str) -> bool:
        """Drop a request; False if it had already got its last token."""
        stream = self._streams.pop(request_id, None)
        if stream is None:
            return False
        self.engine.cancel(request_id)
        stream.put_nowait(0)
        return True

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        while True:
            result = self.engine.step(now)
            if result is None:
                ready = self.engine.next_ready()
                if ready is None:
                    self._wake.clear()
                    await self._wake.wait()
                    now = loop.time()
                else:
                    await asyncio.sleep(ready - loop.time())
                    now = max(now, ready)
                continue
            due = now + result.duration_s
            await asyncio.sleep(due - loop.time())
            self.prompt_tokens += result.prefilled_tokens
            for request_id, count in result.tokens.items():
                if stream := self._streams.get(request_id):
                    self.generation_tokens += count
                    stream.put_nowait(count)
            for request_id, sequence in zip(result.finished, result.ended, strict=True):
                stream = self._streams.pop(request_id, None)
                if stream is not None and self.engine.config.prefix_cache:
                    stream.cached = sequence.cached
                self.phases.add(sequence)
            late = loop.time() - due
            if late > MAX_LATE_S:
                self.late_s += late
                now = due + late
            else:
                now = due


class Simulator:
    """The ASGI application. `api_key`, if given, is asked for under /v1 as `Authorization: Bearer KEY`."""

    def __init__(self, config: EngineConfig, model: str = MODEL, api_key: str | None = None) -> None:
        self.config = config
        self.model = model
        self.api_key = api_key
        self.engine = EngineTask(config)
        self.context_length = min(config.context_length, config.blocks * config.block_tokens)
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
            await self._generate(_GENERATE[path], receive, send)
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
        task = self.engine
        tokens = (task.prompt_tokens, task.generation_tokens)
        return render(task.engine.truth(), task.phases, self.finished, self.model, tokens, task.late_s)

    async def _generate(self, kind: Kind, receive: Receive, send: Send) -> None:
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
        tokens = self.engine.submit(request_id, request.prompt_tokens, request.output_tokens, request.blocks)
        watch = asyncio.ensure_future(self._cancel_on_disconnect(request_id, receive))
        try:
            answer = self._stream if request.stream else self._whole
            if await answer(request, envelope, first_word, tokens, send):
                self.finished[request.finish_reason] += 1
            else:
                self.finished["abort"] += 1
        finally:
            watch.cancel()
            self.engine.cancel(request_id)

    async def _cancel_on_disconnect(self, request_id: str, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.engine.cancel(request_id)

    async def _stream(
        self, request: Generation, envelope: Envelope, first_word: int, tokens: Stream, send: Send
    ) -> bool:
        await send(_start(200, "text/event-stream; charset=utf-8"))
        sent = 0
        while sent < request.output_tokens:
            count = await tokens.get()
            if not count:
                return False
            if not sent and request.kind == "chat":
                await send(_body(envelope.role()))
            for _ in range(count):
                sent += 1
                await send(_body(envelope.token(WORDS[(first_word + sent) % len(WORDS)], sent)))
        if request.include_usage:
            await send(_body(envelope.usage(tokens.cached)))
        await send(_body(b"data: [DONE]\n\n"))
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return True

    async def _whole(
        self, request: Generation, envelope: Envelope, first_word: int, tokens: Stream, send: Send
    ) -> bool:
        made = 0
        while made < request.output_tokens:
            count = await tokens.get()
            if not count:
                return False
            made += count
        text = "".join(WORDS[(first_word + number) % len(WORDS)] for number in range(1, made + 1))
        await _respond(send, 200, envelope.whole(text, tokens.cached))
        return True


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
