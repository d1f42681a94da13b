"""httpx's own transport, with a stamp on every read: for proxies, HTTP/2 and platforms without kernel stamps.

The stamp is taken in the network backend, right after the read returned and before h11 has parsed anything. httpcore
runs a request's connect, writes and reads in the task that sends it, so its `Probe` is found in a context variable.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable
from typing import Any

import anyio
import httpcore
import httpx

from ..records import Connect
from .addresses import Addresses, Place
from .failures import system_words
from .probe import PROBE, format_address


def stamp_reads(client: httpx.AsyncClient, addresses: Addresses | None = None, reconnect_every: int = 0) -> None:
    """Put the stamping backend under every transport of a client. A connection is closed after `reconnect_every`
    requests, if that is not 0."""
    backend = StampedBackend(addresses or Addresses(), reconnect_every)
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx.AsyncHTTPTransport):
            # httpx offers no argument for httpcore's `network_backend`; a test holds this name.
            transport._pool._network_backend = backend


class _StampedStream(httpcore.AsyncNetworkStream):
    def __init__(self, inner: httpcore.AsyncNetworkStream, place: Place | None, reconnect_every: int) -> None:
        """On a connection to a place that is already taken."""
        self._inner = inner
        self._place = place
        self._reconnect_every = reconnect_every
        self._served = 0
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
        if probe is None or probe.sent_ns is not None or buffer[:1] in _SOCKS:
            await self._inner.write(buffer, timeout)
            return
        self._served += 1
        probe.peer = self._peer
        probe.on_sent()
        probe.sent_ns = time.monotonic_ns()
        await self._inner.write(buffer, timeout)
        probe.write_ns = time.monotonic_ns() - probe.sent_ns

    async def aclose(self) -> None:
        if self._place is not None:
            self._place.leave()
            self._place = None
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        start = time.monotonic_ns()
        place, self._place = self._place, None
        try:
            inner = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            if place is not None:
                place.leave()
            raise
        probe = PROBE.get()
        if probe is not None and probe.connect is not None:
            tls_us = (time.monotonic_ns() - start) // 1000
            probe.connect = Connect(probe.connect.dns_us, probe.connect.tcp_us, tls_us)
            probe.sent_ns = probe.first_read_ns = None  # a CONNECT to a proxy is not the request
        return _StampedStream(inner, place, self._reconnect_every)

    def get_extra_info(self, info: str) -> Any:
        # httpcore asks it of an idle connection: one that may be read from was closed by the server, and is dropped.
        if info == "is_readable" and self._served == self._reconnect_every > 0:
            return True
        return self._inner.get_extra_info(info)


# What a SOCKS 5 client says before any request begins so (RFC 1928, RFC 1929); no request does.
_SOCKS = (b"\x05", b"\x01")


class StampedBackend(httpcore.AsyncNetworkBackend):
    """Looks names up and connects in two steps, so that each is timed apart. Connections are spread over the addresses
    of a name; which of them a request then gets is httpcore's choice."""

    def __init__(self, addresses: Addresses, reconnect_every: int) -> None:
        self._inner = httpcore.AnyIOBackend()
        self._addresses = addresses
        self._reconnect_every = reconnect_every

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        async def dial(place: Place) -> httpcore.AsyncNetworkStream:
            return await self._inner.connect_tcp(str(place.address[0]), port, None, local_address, socket_options)

        start = time.monotonic_ns()
        try:
            with anyio.fail_after(timeout):
                stream, place, dns_us = await self._addresses.open(host, port, dial, _close)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(str(error)) from error
        except socket.gaierror as error:
            raise httpcore.ConnectError(f"the name {host} does not resolve: {error.strerror or error}") from error
        except (OSError, httpcore.ConnectError) as error:
            raise httpcore.ConnectError(f"{host}:{port}: {system_words(error)}") from error
        self._opened(start, dns_us)
        return _StampedStream(stream, place, self._reconnect_every)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        start = time.monotonic_ns()
        stream = await self._inner.connect_unix_socket(path, timeout, socket_options)
        self._opened(start, None)
        return _StampedStream(stream, None, self._reconnect_every)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    @staticmethod
    def _opened(start_ns: int, dns_us: int | None) -> None:
        probe = PROBE.get()
        if probe is not None:
            probe.connect = Connect(dns_us, (time.monotonic_ns() - start_ns) // 1000 - (dns_us or 0), None)


async def _close(stream: httpcore.AsyncNetworkStream) -> None:
    await stream.aclose()
