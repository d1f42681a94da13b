"""What the server says of itself during a run: scraped, read and written down; it never disturbs the load."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from ..analysis.serverside import NoMetricsError, read_page
from ..client.budget import Budget
from ..client.driver import Control
from ..client.scrape import TIMEOUT_S, Page, Scraper, candidates
from ..client.target import mask
from ..errors import LoadgenError, TargetError
from ..log.store import Sink
from ..results import ServerSample
from .setting import Setting


@dataclass(frozen=True, slots=True)
class Found:
    """Where the server's metrics are, without any where it has none; and what they tell, by term."""

    urls: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()


async def find_metrics(setting: Setting) -> Found:
    """Look once at each place where the server's metrics may be.

    Raises TargetError where an address that was typed tells nothing; a server that has no metrics is no fault.
    """
    scraping = setting.config.scraping
    if scraping is None:
        return Found()
    typed = scraping.urls
    usual = [candidates(target) for target in setting.targets]
    urls = typed or tuple(dict.fromkeys(url for urls in usual for url in urls))
    terms: dict[str, list[str]] = {}
    async with _scraper(setting, urls) as scraper:
        for url, page in zip(urls, await scraper.look(), strict=True):
            sample = await _read(page, 0)
            if sample.error is None:
                terms[url] = sorted(term for term in sample.values if ":" not in term)
            elif typed:
                raise TargetError(
                    f"the metrics at {page.source} tell nothing: {sample.error}",
                    "correct --metrics-url, or leave it out to measure without them",
                )
    # Of each server the first place that tells anything.
    first = (next((url for url in urls if url in terms), None) for urls in usual)
    found = typed or tuple(dict.fromkeys(url for url in first if url is not None))
    return Found(found, tuple(sorted({term for url in found for term in terms[url]})))


class ServerWatch:
    """Scrapes a run's steps. `scrapes` counts by outcome: `ok` and `failed`."""

    def __init__(self, setting: Setting, found: Found, log: Callable[[], Sink], control: Control, budget: Budget):
        self.found = found
        self.scrapes: Counter[str] = Counter()
        self._setting, self._log, self._control, self._budget = setting, log, control, budget
        self._fault: LoadgenError | None = None

    @asynccontextmanager
    async def during(self, step: int) -> AsyncIterator[list[ServerSample]]:
        """Look at the server at the step's start, all through it and at its end; the list fills as it goes.

        Raises LoadgenError at the end where what was seen cannot be kept.
        """
        samples: list[ServerSample] = []
        scraping = self._setting.config.scraping
        if scraping is None or not self.found.urls:
            yield samples
            return

        async def keep(pages: Sequence[Page]) -> None:
            for page in pages:
                sample = await _read(page, step)
                self.scrapes["ok" if sample.error is None else "failed"] += 1
                samples.append(sample)
                if self._fault is None:
                    try:
                        self._log().append_server(sample)
                    except LoadgenError as fault:
                        self._fault = fault
                        self._control.drain()  # what cannot be kept is not sent any more

        ended: LoadgenError | None = None
        async with _scraper(self._setting, self.found.urls) as scraper:
            async with anyio.create_task_group() as group:
                group.start_soon(scraper.follow, scraping.interval_s, keep)
                try:
                    yield samples
                except LoadgenError as error:  # carried out of the group, which would wrap it
                    ended = error
                group.cancel_scope.cancel()
            left_s = TIMEOUT_S
            if self._budget.deadline is not None:
                left_s = min(left_s, self._budget.deadline - anyio.current_time())
            if self._control.state == "go" and ended is None and left_s > 0:
                await keep(await scraper.look(left_s))
        fault = ended or self._fault
        if fault is not None:
            raise fault

    def opening(self) -> dict[str, Any] | None:
        """What the manifest says of it before the load; None where it was not asked for."""
        scraping = self._setting.config.scraping
        if scraping is None:
            return None
        return {
            "interval_s": scraping.interval_s,
            "timeout_s": TIMEOUT_S,
            "urls": [mask(url) for url in self.found.urls],
            "found": list(self.found.terms),
        }

    def closing(self) -> dict[str, Any] | None:
        """The same with what came of it."""
        opening = self.opening()
        return opening and {**opening, "scrapes": self.scrapes["ok"], "scrapes_failed": self.scrapes["failed"]}


def _scraper(setting: Setting, urls: Sequence[str]) -> Scraper:
    return Scraper(urls, setting.config.access, setting.targets, zero_ns=setting.zero_ns)


async def _read(page: Page, step: int) -> ServerSample:
    """Read in a thread: a page of many engines takes a millisecond, which the event loop has better uses for."""
    error = page.error
    if error is None:
        try:
            reading = await anyio.to_thread.run_sync(read_page, page.text)
            return ServerSample(page.at_ns, page.took_us, step, page.source, reading.values, reading.engines)
        except NoMetricsError as unread:
            error = str(unread)
    return ServerSample(page.at_ns, page.took_us, step, page.source, error=error)
