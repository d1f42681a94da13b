"""A server that sends the bytes it is told to, and requests to it through our own transport."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx

from loadgen.client.dialects import DIALECTS
from loadgen.client.kernel import KernelTransport
from loadgen.client.probe import Probe
from loadgen.client.tally import Tally

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

EVENT = b'data: {"id":"r","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
END = b'data: {"id":"r","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


PLAIN = EVENT + EVENT + END
WHOLE = STREAM_HEAD + chunk(EVENT) + chunk(EVENT) + chunk(END) + b"0\r\n\r\n"
SPLIT = STREAM_HEAD + b"|" + chunk(EVENT) + b"|" + chunk(EVENT) + b"|" + chunk(END) + b"|0\r\n\r\n"


@contextlib.asynccontextmanager
async def serve(handler: Handler, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A raw server; `handler` gets each connection once, and its errors are the client's business."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            await handler(reader, writer)
        writer.close()

    server = await asyncio.start_server(connected, host, 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"{'https' if tls else 'http'}://{shown}:{port}/v1/chat/completions"
    finally:
        server.close()


async def request_of(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """One request: its head and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    return head, await reader.readexactly(length)


def answering(*answers: bytes, pause: float = 0.0) -> Handler:
    """Answers the n-th request of a connection with the n-th of `answers`, the last one for ever."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for i in range(1000):
            await request_of(reader)
            for part in answers[min(i, len(answers) - 1)].split(b"|"):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause)

    return handler


def tally_of() -> Tally:
    return Tally(DIALECTS["chat"], 0, 1 << 23, 2048)


async def post(
    transport: KernelTransport, url: str, *, body: bytes = b"{}", at_ns: int | None = None
) -> tuple[httpx.Response, Tally, Probe]:
    """One streamed request to its end."""
    tally = tally_of()

    def sent() -> None:
        tally.sent_ns = probe.sent_ns or 0

    probe = Probe(sent)
    extensions = {"probe": probe, "tally": tally, "on_token": lambda: None}
    if at_ns is not None:
        extensions["send_at_ns"] = at_ns  # type: ignore[assignment]
    async with httpx.AsyncClient(transport=_Borrowed(transport)) as client:
        request = client.build_request("POST", url, content=body, extensions=extensions)
        response = await client.send(request, stream=True)
        try:
            await response.aread()
        finally:
            await response.aclose()
    tally.close(probe.last_read_ns)
    return response, tally, probe


class _Borrowed(httpx.AsyncBaseTransport):
    """A transport that outlives the client that uses it."""

    def __init__(self, inner: KernelTransport) -> None:
        self.inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self.inner.handle_async_request(request)


def run(main: Callable[[KernelTransport], Awaitable[None]], **options: object) -> None:
    async def whole() -> None:
        transport = KernelTransport(**options)  # type: ignore[arg-type]
        try:
            await asyncio.wait_for(main(transport), 20)
        finally:
            await transport.aclose()

    asyncio.run(whole())


def events(tally: Tally) -> int:
    return len(tally.result(None).events.gap_us)
