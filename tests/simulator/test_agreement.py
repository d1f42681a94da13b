"""The engine behind HTTP is the engine of the virtual runs: the same percentiles, within what a machine adds."""

from __future__ import annotations

import asyncio
import json
import time
from urllib.parse import urlsplit

import numpy as np
import pytest

from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.engine.virtual import Closed, Mix, Requests, simulate
from loadgen.simulator.process import SimulatorProcess

CONFIG = EngineConfig(step_ms=10, decode_ms=0.3, prefill_ms=0.05, overhead_ms=15, max_batch=6, noise_sigma=0.05)
MIX = Mix(200, 12, spread=0.5)
IN_FLIGHT, COUNT = 8, 120


def test_percentiles_behind_http_are_those_of_the_virtual_run() -> None:
    requests = MIX.draw(COUNT, seed=3)
    virtual = simulate(CONFIG, requests, Closed(IN_FLIGHT))
    with SimulatorProcess(CONFIG) as simulator:
        begun = time.monotonic()
        rows = asyncio.run(_closed_loop(simulator.url, requests))
        wall_s = time.monotonic() - begun
        lost = simulator.lag_note()
    ttft_s, tpot_s = np.array(rows).T
    # The schedule is absolute, so a late wake-up moves a token and not the mean; a machine that is busy with other work
    # stretches everything by what it says of itself or by what the whole run took longer.
    stretch = wall_s / float(virtual.done_s.max())
    assert stretch > 0.98 and (stretch < 1.25 or lost)
    for real, truth, least in ((ttft_s, virtual.ttft_s, 0.9), (tpot_s, virtual.tpot_s, 0.95)):
        for percent in (25, 50, 75):
            ratio = float(np.percentile(real, percent) / np.percentile(truth, percent))
            assert least < ratio < 1.15 * max(1.0, stretch), (percent, ratio, stretch)


async def _closed_loop(url: str, requests: Requests) -> list[tuple[float, float]]:
    order = iter(zip(requests.prompt.tolist(), requests.output.tolist(), strict=True))
    rows: list[tuple[float, float]] = []

    async def one_place() -> None:
        for prompt, output in order:
            rows.append(await _ask(url, prompt, output))

    await asyncio.gather(*(one_place() for _ in range(IN_FLIGHT)))
    return rows


async def _ask(url: str, prompt: int, output: int) -> tuple[float, float]:
    """TTFT and TPOT in seconds, as they came off the socket."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    body = json.dumps({"prompt": [1] * prompt, "max_tokens": output, "ignore_eos": True, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    sent = time.monotonic()
    writer.write(head + body)
    times: list[float] = []
    while len(times) < output:
        data = await reader.read(65536)
        assert data, "the stream broke off"
        times += [time.monotonic()] * data.count(b'"text":')
    writer.close()
    return times[0] - sent, (times[-1] - times[0]) / (output - 1)


def test_the_same_seed_gives_the_same_engine_behind_http() -> None:
    """One request at a time: every gap is the virtual run's, to the wake-up."""
    config = EngineConfig(step_ms=20, decode_ms=0, prefill_ms=0, overhead_ms=0, noise_sigma=0.5, seed=8)
    virtual = simulate(config, Requests(np.array([1]), np.array([30])), Closed(1))
    with SimulatorProcess(config) as simulator:
        _, tpot_s = asyncio.run(_ask(simulator.url, 1, 30))
        slow = simulator.lag_note()
    assert slow or tpot_s == pytest.approx(float(virtual.tpot_s[0]), rel=0.1)
