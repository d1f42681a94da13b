"""httpx's own transport, with a stamp on every read: for proxies, HTTP/2 and platforms without kernel stamps.

The stamp is taken in the network backend, right after the read returned and before h11 has parsed anything. httpcore
runs a request's connect, writes and reads in the task that sends it, so its `Probe` is found in a context variable.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable
from typing import Any

import anyio
import httpcore
import httpx

from ..records import Connect
from .probe import PROBE, format_address


def stamp_reads(client: httpx.AsyncClient) -> None:
    """Put the stamping backend under every transport of a client."""
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx.AsyncHTTPTransport):
            # httpx offers no argument for httpcore's `network_backend`; a test holds this name.
            transport._pool._network_backend = StampedBackend()


class _StampedStream(httpcore.AsyncNetworkStream):
    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner
        address = inner.get_extra_info("server_addr")
        self._peer = format_address(address) if address else None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._inner.read(max_bytes, timeout)
        now = time.monotonic_ns()
        probe = PROBE.get()
        if probe is not None:
            if probe.first_read_ns is None and data:
                probe.first_read_ns = now
            # What was read before this request was sent says nothing about when its bytes can have come.
            probe.previous_read_ns = max(probe.last_read_ns, probe.sent_ns or 0)
            probe.last_read_ns = now
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        probe = PROBE.get()
        if probe is None or probe.sent_ns is not None:
            await self._inner.write(buffer, timeout)
            return
        probe.peer = self._peer
        probe.on_sent()
        probe.sent_ns = time.monotonic_ns()
        await self._inner.write(buffer, timeout)
        probe.write_ns = time.monotonic_ns() - probe.sent_ns

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        start = time.monotonic_ns()
        inner = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        probe = PROBE.get()
        if probe is not None and probe.connect is not None:
            tls_us = (time.monotonic_ns() - start) // 1000
            probe.connect = Connect(probe.connect.dns_us, probe.connect.tcp_us, tls_us)
            probe.sent_ns = None  # a CONNECT to a proxy is not the request
        return _StampedStream(inner)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class StampedBackend(httpcore.AsyncNetworkBackend):
    """Resolves and connects in two steps, so that each is timed apart."""

    def __init__(self) -> None:
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        start = time.monotonic_ns()
        try:
            found = await anyio.getaddrinfo(host, port, type=1)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        resolved = time.monotonic_ns()
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        stream = None
        for i, address in enumerate(addresses):
            share = None if timeout is None else timeout / len(addresses)
            try:
                stream = await self._inner.connect_tcp(address, port, share, local_address, socket_options)
                break
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if i == len(addresses) - 1:
                    raise
        assert stream is not None
        probe = PROBE.get()
        if probe is not None:
            probe.connect = Connect((resolved - start) // 1000, (time.monotonic_ns() - resolved) // 1000, None)
        return _StampedStream(stream)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _StampedStream(await self._inner.connect_unix_socket(path, timeout, socket_options))

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)
