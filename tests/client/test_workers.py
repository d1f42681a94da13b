"""Several real processes that share a step, against a server that counts."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from loadgen.client.budget import Budget
from loadgen.client.dialects.base import RequestOptions
from loadgen.client.exchange import Timeouts
from loadgen.client.shared import SILENT_S
from loadgen.client.step import Control, StepPlan
from loadgen.client.transport import Access
from loadgen.client.workers import Fleet, configuration
from loadgen.errors import LoadgenError
from loadgen.log.append import Lines, absorb
from loadgen.records import Observation, Record
from loadgen.simulator.scripted import Action, Request, ThreadedServer
from loadgen.workload.arrivals import Arrivals, Schedule
from loadgen.workload.plain import PlainWorkload, plain_workload
from tests.cli.command import answer

WORKLOAD = plain_workload("20-60", "3-9")


class Outcome:
    """What a step came to: the observation, the records as they were told, and those of the part files."""

    def __init__(self) -> None:
        self.told: list[Record] = []
        self.kept: list[Record] = []
        self.parts: list[int] = []
        self.faults: list[LoadgenError] = []
        self.seen: Observation
        self.exits: list[int | None] = []
        self.budget = Budget()

    @property
    def ids(self) -> list[str]:
        return sorted(r.id for r in self.kept)

    def phases(self) -> Counter[str]:
        return Counter(r.phase for r in self.kept)


During = Callable[[Fleet, Control], Any]


def share(
    handler: Any,
    workers: int,
    tmp_path: Path,
    *,
    during: During | None = None,
    rate: float | None = None,
    concurrency: int = 4,
    budget: Callable[[], Budget] = Budget,
    workload: PlainWorkload = WORKLOAD,
    events: bool = False,
    part: str = "w{}.jsonl",
    **plan: Any,
) -> tuple[Outcome, Any]:
    """One step by `workers` processes; `during` is an async function that may do them harm."""
    out = Outcome()
    plan = {"warmup": concurrency, "enough": lambda p: p.window_s >= 0.4, "max_error_rate": 1.0, **plan}

    async def main(url: str) -> None:
        config = configuration(
            f"{url}/v1/chat/completions", "chat", access=Access(), options=RequestOptions("m"), timeouts=Timeouts(),
            workload=workload, calibration=None, seed=3,
        )  # fmt: skip
        zero, control, out.budget = time.monotonic_ns(), Control(), budget()
        parts = [tmp_path / part.format(i) for i in range(workers)]
        async with Fleet(config, lambda i: str(parts[i]), zero_ns=zero) as fleet:
            await fleet.grow(workers)
            async with anyio.create_task_group() as group:
                if during is not None:
                    group.start_soon(during, fleet, control)
                out.seen = await fleet.measure(
                    StepPlan(step=1, concurrency=0 if rate else concurrency, rate=rate, **plan),
                    workers,
                    nonce="n",
                    on_record=out.told.append,
                    budget=out.budget,
                    control=control,
                    schedule=Schedule(Arrivals("poisson"), rate, 3) if rate else None,
                    events=events,
                    on_fault=out.faults.append,
                )
                group.cancel_scope.cancel()
            processes = fleet.processes
        out.exits = [process.poll() for process in processes]
        merged = Lines(tmp_path / "merged.jsonl")
        for path in parts:
            before = len(out.kept)
            absorb(path, merged, out.kept.append)
            out.parts.append(len(out.kept) - before)
        merged.close()

    with ThreadedServer(handler) as server:
        anyio.run(main, server.url)
        deadline = time.monotonic() + 5
        while server.open_connections and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not server.open_connections
    assert not any(code is None for code in out.exits), "no process is left behind"
    return out, server


def slow(wait_ms: float) -> Callable[[Request], list[Action]]:
    return lambda request: answer(request, wait_ms)


@pytest.mark.parametrize(("workers", "concurrency"), [(2, 4), (3, 7), (3, 3)])
def test_shares_add_up_to_the_load(tmp_path: Path, workers: int, concurrency: int) -> None:
    out, server = share(slow(30), workers, tmp_path, concurrency=concurrency)
    assert server.peak_in_flight == concurrency == out.seen.in_flight_peak
    assert out.seen.ended == "complete" and out.seen.window is not None and out.seen.workers == workers
    assert out.seen.in_flight_integral_ns / (out.seen.window.seconds * 1e9) == pytest.approx(concurrency, rel=0.05)
    assert len(server.requests) == len(out.kept) == len(out.told)
    assert len(set(out.ids)) == len(out.ids)
    window = out.seen.window
    for record in out.kept:
        assert (record.phase == "measured") == (window.start_ns <= record.scheduled_ns < window.end_ns), record.id
        assert record.concurrency == concurrency
        assert int(record.id.split("-")[1]) % workers == record.worker
    assert {r.worker for r in out.kept} == set(range(workers))
