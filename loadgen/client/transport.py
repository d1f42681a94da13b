"""How the server is reached, and the client that reaches it."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.request import getproxies, proxy_bypass

import httpx

from ..errors import UsageError
from .addresses import Addresses
from .kernel import KEEPALIVE_S, KernelTransport
from .tally import Tally


@dataclass(frozen=True, slots=True)
class Access:
    """How the server is reached. `headers` and `proxy` may hold secrets: they are never logged (`redacted` is what may
    be), nor shown where an object is."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: str | None = None
    insecure: bool = False
    client_cert: str | None = None
    proxy: str | None = field(default=None, repr=False)
    trust_env: bool = False
    http2: bool = False
    httpx_pool: bool = False  # httpx's own transport though ours could do it
    threaded: bool = False  # read the sockets in a thread of their own
    unix_socket: str | None = None  # every URL is reached through it
    reconnect_every: int | None = None  # requests, after which a connection is closed

    @property
    def transport(self) -> Literal["kernel", "httpx"]:
        """Which transport serves this: ours, unless only httpx's can."""
        plain = not (self.httpx_pool or self.http2 or self.proxy or self.trust_env)
        return "kernel" if plain and sys.platform.startswith("linux") and hasattr(Tally, "hold") else "httpx"

    def proxy_for(self, url: str) -> str | None:
        """The proxy that requests to this URL go through, without its password; None where they go straight."""
        proxy = self.proxy
        target = httpx.URL(url)
        if proxy is None and self.trust_env and not proxy_bypass(target.netloc.decode()):
            proxies = getproxies()
            proxy = proxies.get(target.scheme) or proxies.get("all")
        if not proxy:
            return None
        found = httpx.URL(proxy if "://" in proxy else f"http://{proxy}")
        return f"{found.scheme}://{found.netloc.decode()}"

    def redacted(self, url: str) -> dict[str, Any]:
        """The same, fit for a manifest: header names without their values, the proxy to `url` without its password."""
        return {
            "headers": sorted(self.headers),
            "ca_file": self.ca_file,
            "insecure": self.insecure,
            "client_cert": self.client_cert is not None,
            "proxy": self.proxy_for(url),
            "trust_env": self.trust_env,
            "http2": self.http2,
            "transport": self.transport,
            "threaded": self.threaded,
            "unix_socket": self.unix_socket,
            "reconnect_every": self.reconnect_every,
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


def open_client(
    access: Access,
    connections: int,
    *,
    tls: bool,
    connect_timeout_s: float = 10.0,
    idle_timeout_s: float = 60.0,
    addresses: Addresses | None = None,
) -> httpx.AsyncClient:
    """An httpx client with room for exactly `connections` requests at once, redirects off, environment ignored unless
    asked. Every timeout but the connection's is the exchange's own. `addresses` is what is known of names from other
    clients of the run."""
    context = ssl_context(access) if tls else None
    addresses = addresses or Addresses(unix_socket=access.unix_socket)
    common: dict[str, Any] = {
        "follow_redirects": False,
        "timeout": httpx.Timeout(None, connect=connect_timeout_s),
        "headers": {"user-agent": "loadgen", "accept-encoding": "identity", **access.headers},
    }
    if access.transport == "kernel":
        transport = KernelTransport(
            context=context,
            threaded=access.threaded,
            rearm_s=min(1.0, idle_timeout_s / 16),
            addresses=addresses,
            reconnect_every=access.reconnect_every,
        )
        return httpx.AsyncClient(transport=transport, trust_env=False, **common)
    from .pool import stamp_reads  # which imports httpcore

    limits = httpx.Limits(
        max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=KEEPALIVE_S
    )
    verify = context or False
    if access.unix_socket is not None:
        over = httpx.AsyncHTTPTransport(
            verify=verify, limits=limits, http2=access.http2, trust_env=False, uds=access.unix_socket
        )
        client = httpx.AsyncClient(transport=over, trust_env=False, **common)
    else:
        client = httpx.AsyncClient(
            verify=verify,
            limits=limits,
            http1=True,
            http2=access.http2,
            proxy=access.proxy,
            trust_env=access.trust_env,
            **common,
        )
    stamp_reads(client, addresses, access.reconnect_every or 0)
    return client
