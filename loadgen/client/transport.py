"""httpx's own transport, with a stamp on every read.

The stamp is taken in the network backend, right after the read returned and before h11 has parsed anything. httpcore
runs a request's connect, writes and reads in the task that sends it, so its `Probe` is found in a context variable.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpcore
import httpx

from ..errors import UsageError
from ..records import Connect

# Idle connections are dropped before the server drops them (uvicorn does after 5 s): a request never meets a dead one.
KEEPALIVE_EXPIRY_S = 4.0


class Probe:
    """What the wire told of one request; stamps in ns of CLOCK_MONOTONIC, None until they happen."""

    __slots__ = ("connect", "first_read_ns", "last_read_ns", "on_sent", "peer", "previous_read_ns", "sent_ns")

    def __init__(self, on_sent: Callable[[], None]) -> None:
        self.on_sent = on_sent  # called at the first write
        self.connect: Connect | None = None
        self.peer: str | None = None
        self.sent_ns: int | None = None
        self.first_read_ns: int | None = None
        self.last_read_ns = 0
        self.previous_read_ns = 0


PROBE: ContextVar[Probe | None] = ContextVar("loadgen_probe", default=None)


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
        if probe is not None and probe.sent_ns is None:
            probe.peer = self._peer
            probe.on_sent()
            probe.sent_ns = time.monotonic_ns()
        await self._inner.write(buffer, timeout)

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


class _StampedBackend(httpcore.AsyncNetworkBackend):
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


def format_address(address: Any) -> str:
    """A socket address as host:port, with brackets around IPv6."""
    if isinstance(address, tuple):
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(address)


@dataclass(frozen=True, slots=True)
class Access:
    """How the server is reached. `headers` may hold secrets: they are never logged (`redacted` is what may be)."""

    headers: Mapping[str, str] = field(default_factory=dict)
    ca_file: str | None = None
    insecure: bool = False
    client_cert: str | None = None
    proxy: str | None = None
    trust_env: bool = False
    http2: bool = False

    def redacted(self) -> dict[str, Any]:
        """The same, fit for a manifest: header names without their values, a proxy without its password."""
        return {
            "headers": sorted(self.headers),
            "ca_file": self.ca_file,
            "insecure": self.insecure,
            "client_cert": self.client_cert is not None,
            "proxy": httpx.URL(self.proxy).host if self.proxy else None,
            "trust_env": self.trust_env,
            "http2": self.http2,
        }


def ssl_context(access: Access) -> ssl.SSLContext:
    """One context for the whole run: parsing the CA bundle takes tens of milliseconds.

    Raises UsageError for a CA file or client certificate that cannot be read.
    """
    try:
        context = ssl.create_default_context(cafile=access.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"the CA file {access.ca_file} cannot be used: {error}", "give a readable PEM file to --ca-file"
        ) from None
    if access.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if access.client_cert:
        try:
            context.load_cert_chain(access.client_cert)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"the client certificate {access.client_cert} cannot be used: {error}",
                "give a PEM file that holds the certificate and its private key to --client-cert",
            ) from None
    return context


def open_client(access: Access, connections: int, *, tls: bool, connect_timeout_s: float = 10.0) -> httpx.AsyncClient:
    """An httpx client with room for exactly `connections` requests at once, redirects off, environment ignored unless
    asked. Every other timeout is the exchange's own."""
    context: ssl.SSLContext | bool = ssl_context(access) if tls else False
    limits = httpx.Limits(
        max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=KEEPALIVE_EXPIRY_S
    )
    client = httpx.AsyncClient(
        verify=context,
        limits=limits,
        http1=True,
        http2=access.http2,
        proxy=access.proxy,
        trust_env=access.trust_env,
        follow_redirects=False,
        timeout=httpx.Timeout(None, connect=connect_timeout_s),
        headers={"user-agent": "loadgen", "accept-encoding": "identity", **access.headers},
    )
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx.AsyncHTTPTransport):
            # httpx offers no argument for httpcore's `network_backend`; a test holds this name.
            transport._pool._network_backend = _StampedBackend()
    return client
