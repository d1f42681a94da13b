"""Field cases M that take a whole step: failures among answers, windows, rates, the start burst, the client's skew."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from loadgen.log.columns import columns
from loadgen.results import Slo
from loadgen.search.verdict import judge
from loadgen.simulator.scripted import CU, DONE, FIN, C, Request, T, U, error_reply
from tests.cases.support import MakeSender, step, summary_of, texts

Handler = Callable[[Request], Any]


def test_m08_failures_are_in_no_latency_and_beside_every_figure(make_sender: MakeSender) -> None:
    def every_second(request: Request) -> Any:
        return error_reply(503, "busy") if request.number % 2 else [T(60), C("a"), FIN("stop"), U(3, 1), DONE]

    records, seen, _ = step(make_sender, every_second, 4, 24)
    summary = summary_of(records, observation=seen)
    ok = summary.requests["ok"]
    assert ok + summary.failed == summary.sent == 24
    assert summary.failed >= 8
    assert summary.latency["ttft"].n == ok
    median = summary.latency["e2e"].at(50.0)
    assert median is not None
    assert median.value >= 58
    assert summary.completion_rate is not None
    assert summary.attempt_rate is not None
    assert summary.attempt_rate > 1.5 * summary.completion_rate.value
    text, json = texts(summary)
    assert f"{summary.failed} of 24 failed" in text
    assert "http 503: busy" in text
    assert (json["completed"], json["failed"]) == (ok, summary.failed)
    level = judge(summary, Slo())
    assert (level.verdict, level.broke) == ("fail", ("errors",))


def test_m08_failures_stop_a_step_that_allows_few(make_sender: MakeSender) -> None:
    records, seen, fake = step(
        make_sender, lambda request: error_reply(503, "busy"), 4, 400, max_error_rate=0.01, warmup=0
    )
    assert seen.ended == "errors"
    assert "busy" in seen.detail
    assert len(fake.requests) == len(records) < 50


# --- windows and rates ------------------------------------------------------------------------------------------


def test_m12_the_tail_of_a_step_is_outside_its_window(make_sender: MakeSender) -> None:
    def one_long(request: Request) -> Any:
        wait = 600 if request.number == 20 else 30
        return [CU("a", 1), T(wait), CU("a", 2), FIN("stop"), U(3, 2), DONE]

    records, seen, _ = step(make_sender, one_long, 8, 20)
    summary = summary_of(records, observation=seen)
    assert summary.requests == {"ok": 20}
    assert summary.window is not None
    assert summary.output_throughput is not None
    assert summary.output_throughput_classic is not None
    assert summary.window.seconds < 0.5
    assert summary.output_throughput.value > 2 * summary.output_throughput_classic, "the tail is only in the classic"
    assert summary.concurrency_peak == 8
    assert summary.concurrency_mean == pytest.approx(8, rel=0.15)
    text, json = texts(summary)
    assert "(classic, over" in text
    assert "in the window" in text
    assert json["window_end_ns"] - json["window_start_ns"] == pytest.approx(summary.window.seconds * 1e9)


def test_m13_a_longer_step_has_the_same_percentiles(make_sender: MakeSender) -> None:
    """Prefill one after the other: the start burst queues as the steady state does, or is no part of the sample."""

    took: list[float] = []  # how long each prefill really took: a busy machine stretches them all

    def handler() -> Handler:
        lock = asyncio.Lock()

        async def serve(request: Request) -> Any:
            async with lock:
                start = time.monotonic()
                await asyncio.sleep(0.006)
                took.append(time.monotonic() - start)
            for piece in (C("a"), FIN("stop"), U(3, 1), DONE):
                yield piece

        return serve

    for requests in (16, 64):
        took.clear()
        records, _, _ = step(make_sender, handler(), 8, requests)
        assert {r.phase for r in records[:8]} == {"warmup"}
        assert sum(r.phase == "measured" for r in records) == requests
        median = summary_of(records).latency["ttft"].at(50.0)
        assert median is not None
        queue_ms = 8e3 * statistics.median(took)  # eight in flight, one served at a time
        assert 0.6 * queue_ms < median.value < 2 * queue_ms


def test_m17_a_throughput_is_a_total_over_a_time(make_sender: MakeSender) -> None:
    """Answers that end in bursts: the rate is what came in the window divided by it, and no median of gaps."""

    async def burst(request: Request) -> Any:
        await asyncio.sleep(0.1 - asyncio.get_running_loop().time() % 0.1)
        for piece in (CU("a", 1), CU("a", 2), FIN("stop"), U(3, 2), DONE):
            yield piece

    records, seen, _ = step(make_sender, burst, 4, 16)
    summary = summary_of(records, observation=seen)
    window = summary.window
    assert window is not None
    done = [r for r in records if r.outcome == "ok" and window.start_ns < r.done_ns <= window.end_ns]
    assert summary.completion_rate is not None
    assert summary.completion_rate.value == pytest.approx(len(done) / window.seconds)
    assert summary.output_throughput is not None
    assert summary.output_throughput.value == pytest.approx(2 * len(done) / window.seconds, rel=0.26)


def test_m20_arrivals_follow_the_servers_own_stamps(make_sender: MakeSender) -> None:
    """Each event tells when it was written; what the record says it waited is that, but for a small skew."""

    async def stamped(request: Request) -> Any:
        for _ in range(20):
            await asyncio.sleep(0.01)
            stamps[request.number].append(time.monotonic_ns())
            yield C("a", t_ns=stamps[request.number][-1])
        yield FIN("stop")
        yield DONE

    stamps: defaultdict[int, list[int]] = defaultdict(list)
    records, _, fake = step(make_sender, stamped, 10, 20, warmup=10)
    by_id = {f.headers["x-request-id"]: f.number for f in fake.requests}
    ok = [r for r in records if r.outcome == "ok"]
    c = columns(ok)
    sent = np.concatenate([stamps[by_id[r.id]] for r in ok])
    skew = (c.event_ns - sent) / 1e6
    assert skew.min() > -0.01
    assert np.median(skew) < 10
    assert all(r.connect is not None for r in ok[:10]), "a new connection's time is told"
    assert any(r.connect is None for r in ok), "and a connection is used again"
