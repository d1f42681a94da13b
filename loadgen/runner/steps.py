"""Measures one step after the other, in this process or, where one is not enough, in several, here or elsewhere."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Self

from ..client.budget import Budget
from ..client.dialects import find_dialect
from ..client.driver import Control, Progress, StepPlan, run_step
from ..client.health import Watch, quiet
from ..client.openloop import run_open_step
from ..client.preflight import Prepared
from ..client.remote import RemoteFleet, Seats
from ..client.workers import Fleet, configuration
from ..errors import LoadgenError, ReaderGoneError
from ..log.columns import ColumnBuilder
from ..log.store import RunFolder, Sink
from ..records import Record
from ..results import Observation
from ..workload.arrivals import Offsets, Schedule
from ..workload.plain import PlainWorkload
from .config import RunConfig
from .setting import Setting

# What one process keeps up with, with room to spare.
EVENTS_S, REQUESTS_S = 40_000, 300


class Steps:
    """A context manager: it ends what it started. `on_record` gets every request of the load as it has ended."""

    def __init__(
        self,
        setting: Setting,
        prepared: Prepared,
        *,
        log: Sink,
        budget: Budget,
        control: Control,
        on_record: Callable[[Record], None],
        seats: Seats | None = None,
    ) -> None:
        self.setting, self.prepared = setting, prepared
        self.log, self.budget, self.control = log, budget, control
        self.on_record = on_record
        self.seats = seats
        self._fleet: Fleet | None = None
        self._stack = AsyncExitStack()
        self._fault: LoadgenError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        if self._fleet is not None and isinstance(self.log, RunFolder):
            self.log.drop_parts()

    async def measure(
        self,
        plan: StepPlan,
        rows: ColumnBuilder,
        workers: int,
        *,
        events: bool,
        on_progress: Callable[[Progress], None],
    ) -> tuple[Observation, ColumnBuilder]:
        """Run one step to its end: what was seen of it, and its rows. `rows` gets those of the requests that have ended
        while it runs, with their events if `events` or where this process is the only one.

        Raises LoadgenError where what was measured cannot be kept.
        """
        if workers > 1 or self.seats is not None:
            result = await self._shared(plan, rows, workers, events, on_progress)
        else:
            result = await self._alone(plan, rows, on_progress), rows
        if self._fault is not None:
            raise self._fault
        return result

    async def _alone(self, plan: StepPlan, rows: ColumnBuilder, on_progress: Callable[[Progress], None]) -> Observation:
        setting, prepared = self.setting, self.prepared
        token_log = setting.config.token_log
        async with setting.client(plan.concurrency or plan.most_in_flight or 1) as client:
            sender = setting.sender(client, find_dialect(setting.target.endpoint), prepared.options)
            made = setting.prompts(plan.step, prepared.calibration, prepared.facts.context_length)
            with made as prompts, quiet(), Watch(client, zero_ns=setting.zero_ns) as watch:

                def keep(record: Record) -> None:
                    if not token_log:
                        record = replace(record, events=None)
                    try:
                        self.log.append(record)
                    except LoadgenError as fault:
                        self._failed(fault)
                    rows.add(record)
                    self.on_record(record)
                    watch.ended(record)

                def started(progress: Progress) -> None:
                    watch.follow(progress)
                    on_progress(progress)

                how: dict[str, Any] = {
                    "on_record": keep,
                    "clock": time.monotonic_ns,
                    "zero_ns": setting.zero_ns,
                    "budget": self.budget,
                    "control": self.control,
                    "on_progress": started,
                }
                schedule = self._schedule(plan)
                if schedule is not None:
                    seen = await run_open_step(sender, prompts, plan, schedule, end_ns=schedule.end_ns, **how)
                else:
                    seen = await run_step(sender, prompts, plan, **how)
        return replace(seen, health=watch.health())

    async def _shared(
        self,
        plan: StepPlan,
        rows: ColumnBuilder,
        workers: int,
        events: bool,
        on_progress: Callable[[Progress], None],
    ) -> tuple[Observation, ColumnBuilder]:
        setting, folder = self.setting, self.log
        assert isinstance(folder, RunFolder)

        def keep(record: Record) -> None:
            rows.add(record)
            self.on_record(record)

        fleet = await self._grown(folder, workers)
        seen = await fleet.measure(
            plan,
            workers,
            nonce=setting.step_nonce(plan.step),
            on_record=keep,
            budget=self.budget,
            control=self.control,
            schedule=self._schedule(plan),
            events=events,
            on_progress=on_progress,
            on_fault=self._failed,
        )
        setting.addresses.faults.update(fleet.faults)
        whole = ColumnBuilder(ids=False)
        if self._fault is None:
            folder.gather(workers, whole.add)
        return seen, whole

    async def _grown(self, folder: RunFolder, workers: int) -> Fleet:
        if self._fleet is None:
            setting, config = self.setting, self.setting.config
            known = configuration(
                [target.url for target in setting.targets],
                setting.target.endpoint,
                access=config.access,
                options=self.prepared.options,
                timeouts=config.timeouts,
                workload=setting.workload,
                calibration=self.prepared.calibration,
                seed=setting.seed,
                run=setting.nonce,
                token_log=config.token_log,
                tokenizer=config.tokenizer,
                context=self.prepared.facts.context_length,
            )

            def part_of(worker: int) -> str:
                return str(folder.part(worker))

            fleet = (
                Fleet(known, part_of, zero_ns=setting.zero_ns)
                if self.seats is None
                else RemoteFleet(known, part_of, zero_ns=setting.zero_ns, seats=self.seats)
            )
            self._fleet = await self._stack.enter_async_context(fleet)
        await self._fleet.grow(workers)
        return self._fleet

    @property
    def remote(self) -> RemoteFleet | None:
        """The workers on other machines, once there are any."""
        return self._fleet if isinstance(self._fleet, RemoteFleet) else None

    def _failed(self, fault: LoadgenError) -> None:
        """What cannot be kept is not sent any more."""
        self._fault = self._fault or fault
        if isinstance(fault, ReaderGoneError):
            self.control.quit()
        self.control.drain()

    def _schedule(self, plan: StepPlan) -> Offsets | None:
        open_loop = self.setting.config.open_loop
        if open_loop is None:
            return None
        trace = self.setting.workload.trace
        if trace is not None and trace.timed:
            return trace.offsets()
        return Schedule(open_loop.arrivals, plan.rate or open_loop.rate, self.setting.seed)


def workers_for(config: RunConfig, concurrency: int, request_s: float, tokens: float) -> int:
    """How many processes share a step, where a request takes about `request_s` and has about so many tokens."""
    if config.output == "-":  # one stream, and no files of their own that could be merged into it
        return 1
    most, requests_s = concurrency, concurrency / request_s
    if config.open_loop is not None:
        most, requests_s = config.open_loop.max_in_flight or 0, config.open_loop.rate
    wanted = config.workers or enough_workers(requests_s, tokens, usable_cpus())
    return min(wanted, most) if most else wanted


def tokens_of(workload: PlainWorkload, prepared: Prepared) -> float:
    """Output tokens of a request, as far as is known before the load."""
    seen = max((record.output_tokens.count or 0 for record in prepared.records), default=0)
    return workload.mean_output_tokens or seen


def enough_workers(requests_s: float, tokens: float, cpus: int) -> int:
    """How many processes so many requests per second, each answered with about so many events, need: one if it can, and
    never so many that this one, which decides, has no CPU left."""
    needed = max(requests_s / REQUESTS_S, requests_s * tokens / EVENTS_S)
    return max(1, min(math.ceil(needed), cpus - 1))


def usable_cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
