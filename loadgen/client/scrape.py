"""A server's own metrics, read lightly while it is measured, over connections of their own.

    async with Scraper(urls, access, targets, zero_ns=…) as scraper:
        await scraper.follow(interval_s, keep)        until it is cancelled

What a page says is for others to read: here is when it was asked for, and its text. A scrape that fails is a page with
an error, and nothing worse. The headers of the load, which may hold a key, go to the load's own origin alone.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import urlsplit

import anyio
import httpx

from ..errors import UsageError
from .addresses import Addresses, Resolver
from .discovery import get
from .health import GOLDEN
from .target import Target, mask
from .transport import Access, open_client

INTERVAL_S = 1.0
TIMEOUT_S = 2.0
PATH = "/metrics"


@dataclass(frozen=True, slots=True)
class Page:
    """What one scrape brought: the text, or why there is none. `at_ns` is the middle between request and answer on the
    run's clock, `took_us` the time between them; `source` is the address without secrets."""

    source: str
    at_ns: int
    took_us: int
    text: str = ""
    error: str | None = None


def candidates(target: Target) -> tuple[str, ...]:
    """Where a server's metrics usually are: at its own root and, where that has a path, at its host's."""
    parts = urlsplit(target.root)
    own = target.at_root(PATH)
    query = f"?{target.query}" if target.query else ""
    return (own,) if not parts.path.strip("/") else (own, f"{parts.scheme}://{parts.netloc}{PATH}{query}")


def metrics_url(text: str) -> str:
    """The address typed for a server's metrics; without a path it is that of `PATH`. Raises UsageError, without
    secrets, for what is none."""
    url = text.strip()
    url = url if "://" in url else f"http://{url}"
    shown = mask(url)
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        valid = False
    if not valid or any(c.isspace() for c in url):
        raise UsageError(f"--metrics-url {shown} is no address", "write it as http://HOST:PORT/metrics")
    if "@" in parts.netloc:
        raise UsageError(
            f"--metrics-url {shown} holds a user name or password, which other users of this machine could read",
            "leave it out, and let the metrics be read without one",
        )
    if parts.path in ("", "/"):
        parts = parts._replace(path=PATH)
    return parts._replace(fragment="").geturl()


def access_to(url: str, access: Access, targets: Sequence[Target]) -> Access:
    """How a page of metrics is reached: like the load, but without its headers and its socket where it is another's."""
    if any(_origin(url) == _origin(target.url) for target in targets):
        return replace(access, threaded=False)
    return replace(access, threaded=False, headers={}, unix_socket=None)


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or {"http": 80, "https": 443}.get(parts.scheme)


class Scraper:
    """Reads the pages at `urls`, each over a connection of its own. `zero_ns` is the run's start.

    Where a name has several addresses, a page is read from the one that answered first, for as long as the scraper
    lives: the counters of two replicas are not one series. Through a proxy the address is the proxy's choice.
    """

    def __init__(
        self,
        urls: Sequence[str],
        access: Access,
        targets: Sequence[Target],
        *,
        zero_ns: int,
        resolver: Resolver | None = None,
    ) -> None:
        self.urls, self._access, self._targets, self._zero_ns = urls, access, targets, zero_ns
        self._resolver = resolver
        self._stack = AsyncExitStack()
        self._clients: list[tuple[str, httpx.AsyncClient]] = []

    async def __aenter__(self) -> Self:
        for url in self.urls:
            access = access_to(url, self._access, self._targets)
            tls = url.startswith("https") or access.proxy is not None
            addresses = Addresses(self._resolver, pinned=True, unix_socket=access.unix_socket)
            client = open_client(access, 1, tls=tls, connect_timeout_s=TIMEOUT_S, addresses=addresses)
            self._clients.append((url, await self._stack.enter_async_context(client)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def look(self, timeout_s: float = TIMEOUT_S) -> list[Page]:
        """All pages, asked for at once, in the order of the addresses."""
        pages: dict[str, Page] = {}

        async def ask(url: str, client: httpx.AsyncClient) -> None:
            pages[url] = await self._page(url, client, timeout_s)

        async with anyio.create_task_group() as group:
            for url, client in self._clients:
                group.start_soon(ask, url, client)
        return [pages[url] for url in self.urls]

    async def follow(self, interval_s: float, keep: Callable[[list[Page]], Awaitable[None]]) -> None:
        """Look at once, and then again and again: every `interval_s` in the mean, but irregularly, as a regular beat
        could always fall into the same phase of what the load repeats. Never two at once. Ends when it is cancelled."""
        due, count = anyio.current_time(), 0
        while True:
            await keep(await self.look())
            count += 1
            due = max(due + interval_s * (0.5 + count * GOLDEN % 1.0), anyio.current_time())
            await anyio.sleep_until(due)

    async def _page(self, url: str, client: httpx.AsyncClient, timeout_s: float) -> Page:
        start = time.monotonic_ns()
        answer = await get(client, url, timeout_s)
        end = time.monotonic_ns()
        error = None
        if answer.failure is not None:
            error = answer.failure.message
        elif answer.status != 200:
            error = f"answered {answer.status}"
        text = answer.text if error is None else ""
        return Page(mask(url), (start + end) // 2 - self._zero_ns, (end - start) // 1000, text, error)
