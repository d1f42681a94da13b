"""Proxies before a server on this machine, as people have them: plain, ending TLS, or holding answers back."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from loadgen.simulator.certificate import self_signed

ALL = 1 << 30


@dataclass(frozen=True)
class Proxy:
    """What a proxy does: `old` becomes `new` on the way to the server; the bytes of a streamed answer wait for
    `hold_ms`, for `hold_bytes` of them, or for its end, whatever comes first."""

    old: bytes = b""
    new: bytes = b""
    tls: bool = False
    hold_ms: float = 0.0
    hold_bytes: int = ALL


def start(to: str, proxies: Mapping[str, Proxy]) -> dict[str, str]:
    """Starts the proxies to the server at `to` in a thread of their own; → the URL of each. They end with the
    process."""
    ready: Future[dict[str, str]] = Future()
    Thread(target=lambda: asyncio.run(_serve(to, proxies, ready)), daemon=True).start()
    return ready.result()


async def _serve(to: str, proxies: Mapping[str, Proxy], ready: Future[dict[str, str]]) -> None:
    context = _context()
    urls = {}
    for name, proxy in proxies.items():
        tls = context if proxy.tls else None
        server = await asyncio.start_server(_connection(to, proxy), "127.0.0.1", 0, ssl=tls)
        urls[name] = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    ready.set_result(urls)
    await asyncio.Event().wait()


def _connection(to: str, proxy: Proxy) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    host, port = to.removeprefix("http://").split(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_forth(reader, forth, proxy), _back(back, writer, proxy))

    return serve


async def _forth(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proxy: Proxy) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data.replace(proxy.old, proxy.new) if proxy.old else data)
            await writer.drain()
    writer.close()


async def _back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proxy: Proxy) -> None:
    streamed = False
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            if data.startswith(b"HTTP/"):
                streamed = b"transfer-encoding: chunked" in data.lower()
            until = loop.time() + proxy.hold_ms / 1e3
            while streamed and not data.endswith(b"0\r\n\r\n") and len(data) < proxy.hold_bytes:
                try:
                    more = await asyncio.wait_for(reader.read(1 << 16), until - loop.time())
                except TimeoutError:
                    break
                if not more:
                    break
                data += more
            writer.write(data)
            await writer.drain()
    writer.close()


def _context() -> ssl.SSLContext:
    certificate, key = self_signed()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:
        Path(both.name).write_text(certificate + key)
        context.load_cert_chain(both.name)
    return context
