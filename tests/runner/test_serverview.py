"""Scraping beside a step: it ends with the step, and what it cannot keep ends the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from loadgen.client.budget import Budget
from loadgen.client.driver import Control
from loadgen.client.target import resolve
from loadgen.errors import LogError, TargetError
from loadgen.results import ServerSample
from loadgen.runner import RunConfig, Scraping
from loadgen.runner.serverview import Found, ServerWatch, find_metrics
from loadgen.runner.setting import Setting
from loadgen.simulator.script import reply
from loadgen.simulator.scripted import ThreadedServer
from loadgen.workload.plain import plain_workload

PAGE = reply(b"tgi_queue_size 1\ntgi_batch_current_size 2\n")


class Log:
    """Keeps samples until it is `full`."""

    def __init__(self, full: int = 1 << 30) -> None:
        self.samples: list[ServerSample] = []
        self.full = full

    def append_server(self, sample: ServerSample) -> None:
        if len(self.samples) >= self.full:
            raise LogError("no room left for the log", "free some space")
        self.samples.append(sample)


@contextmanager
def watched(
    log: Log, *, script: Any = PAGE, url: str = "/metrics", interval_s: float = 0.02
) -> Iterator[tuple[ServerWatch, Control, Setting]]:
    with ThreadedServer(lambda request: script) as server:
        urls = (server.url + url,)
        config = RunConfig("run", server.url, scraping=Scraping(interval_s, urls))
        setting = Setting(config, resolve(server.url), plain_workload("8", "8"), 0, "n", 0)
        control = Control()
        sink: Any = log
        yield ServerWatch(setting, Found(urls), lambda: sink, control, Budget()), control, setting


def test_it_looks_at_the_start_all_through_and_at_the_end() -> None:
    log = Log()
    with watched(log) as (watch, _, _):

        async def main() -> list[ServerSample]:
            async with watch.during(3) as seen:
                await anyio.sleep(0.3)
                before = len(seen)
            assert len(seen) - before in (1, 2)  # one may have been under way
            return seen

        seen = anyio.run(main)
    assert log.samples == seen
    assert len(seen) > 4
    assert {(s.step, s.values["waiting"], s.values["running"]) for s in seen} == {(3, 1, 2)}
    closing = watch.closing()
    assert closing is not None
    assert (closing["scrapes"], closing["scrapes_failed"]) == (len(seen), 0)


def test_what_cannot_be_kept_drains_the_run_and_is_raised_at_the_steps_end() -> None:
    with watched(Log(full=2)) as (watch, control, _):

        async def main() -> None:
            async with watch.during(1):
                with anyio.fail_after(5):
                    while control.state == "go":  # noqa: ASYNC110 - as the driver looks at it
                        await anyio.sleep(0.01)

        with pytest.raises(LogError, match="no room left"):
            anyio.run(main)
    assert control.state == "drain"


def test_a_fault_of_the_step_itself_comes_through_as_it_is() -> None:
    with watched(Log()) as (watch, _, _):

        async def main() -> None:
            async with watch.during(1):
                raise LogError("the step's own", "do something")

        with pytest.raises(LogError, match="the step's own"):
            anyio.run(main)


def test_a_run_that_quits_is_not_kept_waiting() -> None:
    log = Log()
    with watched(log, interval_s=60.0) as (watch, control, _):  # so that none is under way as it quits

        async def main() -> None:
            async with watch.during(1) as seen:
                with anyio.fail_after(10):
                    while not seen:  # noqa: ASYNC110 - a list
                        await anyio.sleep(0.01)
                control.quit()

        anyio.run(main)
    assert len(log.samples) == 1, "no last look"


def test_where_nothing_was_found_nothing_is_asked() -> None:
    log = Log()
    with watched(log) as (watch, _, _):
        watch.found = Found()

        async def main() -> list[ServerSample]:
            async with watch.during(1) as seen:
                await anyio.sleep(0.05)
            return seen

        assert anyio.run(main) == []


def test_what_a_page_tells_is_found_and_one_that_was_typed_must_tell_something() -> None:
    with watched(Log()) as (watch, _, setting):
        found = anyio.run(find_metrics, setting)
    assert found == Found(watch.found.urls, ("running", "waiting"))
    with (
        watched(Log(), script=reply(b"hello")) as (_, _, setting),
        pytest.raises(TargetError, match="no Prometheus text"),
    ):
        anyio.run(find_metrics, setting)
