"""One step whose requests several processes send, as it is decided.

    step ──► set ──► go at T ── done, done, … ──► open at T' ── … ──► close at T'' ── … ──► end ──► over
             │       all times are announced ahead, on the clock that all processes share: every worker passes into
             │       the next phase at that time
             └ the workers' connections can be opened, their garbage collection is off

`Phases` decides (warm, enough, errors, all done) from what the workers tell of each request that has ended. Budgets are
promises: each worker has a share of its own, and what is left of it comes back at the end. A worker that dies, or is
silent for SILENT_S while it could run, voids the step.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import anyio
import numpy as np

from ..errors import LoadgenError
from ..records import Record
from ..results import Observation
from ..workload.arrivals import Offsets
from . import openloop
from .budget import Budget, apportion
from .health import combined
from .pipe import LinePipe, unpack, unpack_health
from .processes import Process
from .step import Control, Phases, StepPlan

# So long before its time a phase is announced: in an open loop its requests are made ahead themselves.
LEAD_NS, OPEN_LEAD_NS = 40_000_000, 40_000_000 + openloop.LEAD_NS
OVERLAP_S = 0.3  # for how long, in all of a step, load goes on that one process would not have sent
TICK_S = 0.05
SILENT_S = 1.8  # so that with a tick and a beat it is known within 2 s
STARVED_S = 10.0  # …or for so long, while it only waits for a CPU: what that does to the figures, its health says
SET_S = 60.0  # until connections can be opened
GRACE_S = 10.0  # after the drain, until a worker must have come to its end


@dataclass(slots=True)
class Worker:
    """A process, as it is known from here. `lost` says why it is not to be counted on any more. Its clock is ahead of
    ours by `offset_ns`; a line and the answer to it take up to `delay_ns` more than on one machine."""

    number: int
    beat_ns: int
    process: Process | None = None
    offset_ns: int = 0
    delay_ns: int = 0
    pipe: LinePipe | None = None
    ready: bool = False
    set: bool = False
    over: Mapping[str, Any] | None = None
    lost: str = ""
    faults: list[LoadgenError] = field(default_factory=list)

    def say(self, *message: Any) -> None:
        if self.pipe is not None and not self.lost:
            self.pipe.say(*message)
            self.pipe.flush()

    def called(self, of: int) -> str:
        """What a sentence calls it, one of so many."""
        return f"worker {self.number + 1} of {of}{self.process.where if self.process is not None else ''}"

    def how(self) -> str:
        return self.process.how() if self.process is not None else "was never started"

    def waits(self) -> bool:
        return self.process is not None and self.process.waits()


class Shared:
    """One step, as it is decided here."""

    def __init__(
        self,
        team: Sequence[Worker],
        plan: StepPlan,
        schedule: Offsets | None,
        budget: Budget,
        control: Control,
        now: Callable[[], int],
        on_record: Callable[[Record], None],
        on_fault: Callable[[LoadgenError], None],
    ) -> None:
        self.team, self.plan, self.schedule = team, plan, schedule
        self.budget, self.control, self.now = budget, control, now
        self.on_record, self.on_fault = on_record, on_fault
        self.step = SharedStep(plan, control, len(team))
        self.lead_ns = LEAD_NS if schedule is None else OPEN_LEAD_NS
        self.lead_ns += max(worker.delay_ns for worker in team)
        self.start_ns = 0
        self._arrival = 0  # of the schedule, the next that a phase could begin with
        self._turns = False  # are requests turns of conversations, of which the schedule knows the first alone?
        self._announced: set[str] = set()
        self._news = anyio.Event()
        self._looked_ns = now()

    async def run(self, nonce: str, events: bool) -> Observation:
        plan, step = self.plan, self.step
        # Of a closed loop a share is as large as its slots; arrivals are dealt in turn.
        weights = (
            apportion(plan.concurrency, [1] * len(self.team))
            if self.schedule is None
            else self.schedule.weights(len(self.team))
        )
        budgets = self.budget.split(weights)
        for worker, share in zip(self.team, budgets, strict=True):
            worker.set, worker.over = False, None
            worker.say("step", self._part(worker, share, nonce, events))
        await self._until(lambda worker: worker.set)
        self.start_ns = self.now() + self.lead_ns
        self._tell("go", self.start_ns)
        self._advance(self.start_ns)
        deadline = self.budget.deadline
        while not step.over:
            await self._wait()
            if deadline is not None and anyio.current_time() >= deadline:
                step.end("budget", "time", self.now())
            self._advance()
        if step.ended == "budget":
            self.budget.spent = self.budget.spent or step.detail
        await self._until(lambda worker: worker.over is not None, self._drain_s() + GRACE_S)
        return self._observed()

    def heard(self, worker: Worker, message: Sequence[Any]) -> None:
        kind = message[0]
        if kind == "done":
            record = unpack(message[3])
            self.on_record(record)
            self._turns = self._turns or record.session is not None
            self.step.count(record, message[1], message[2])
        elif kind == "now":
            if message[2]:
                self.step.told(worker.number, message[2])
        elif kind == "set":
            worker.set = True
        elif kind == "over":
            worker.over = message[1]
        elif kind == "fault":
            self.step.end("client", worker.faults[-1].message, self.now())
            self.on_fault(worker.faults[-1])
        if self.step.over or kind == "set":
            self.changed()

    def changed(self) -> None:
        """Something to act on before the next tick."""
        self._news.set()

    def quit(self) -> None:
        for worker in self.team:
            if self.control.state == "quit":
                worker.say("quit")

    def _part(self, worker: Worker, budget: Budget, nonce: str, events: bool) -> dict[str, Any]:
        """What a worker is told of the step."""
        plan, deadline = self.plan, budget.deadline
        if deadline is not None:
            deadline += time.monotonic() - anyio.current_time() + worker.offset_ns / 1e9
        names = ("step", "concurrency", "warmup", "stagger_s", "drain_s", "rate", "max_in_flight", "most_in_flight")
        limits = ("requests", "tokens", "cost", "price", "output_limit", "choices", "excess")
        return {
            # Errors and the sample's end are looked at here, across the workers.
            "plan": {name: getattr(plan, name) for name in names}
            | {"worker": worker.number, "workers": len(self.team), "max_error_rate": 1.0, "retry": asdict(plan.retry)},
            "budget": {name: getattr(budget, name) for name in limits} | {"deadline": deadline},
            "arrivals": None if self.schedule is None else self.schedule.spec,
            "nonce": nonce,
            "events": events,
        }

    def _advance(self, at_ns: int | None = None) -> None:
        """Decide what can be decided by now, and announce it: a phase that begins does so at `at_ns`, by default the
        earliest that can still be announced."""
        step, now = self.step, self.now()
        if self.control.state != "go":
            step.end("interrupted", now_ns=now)
        if not step.over:
            step.reach(self._ahead(now) if at_ns is None else at_ns)
            step.progress.now_ns = now
        opened = step.progress.opened_ns
        if opened is not None and self._once("open"):
            for worker, sample in zip(self.team, self._samples(), strict=True):
                worker.say("open", opened, sample)
        if step.closed_ns is not None and self._once("close"):
            self._tell("close", step.closed_ns)
        if step.over and self._once("end"):
            self._tell("end", step.ended, step.detail, self._drain_s())

    def _ahead(self, now: int) -> int:
        """When a phase can begin: in an open loop with an arrival."""
        progress, fixed = self.step.progress, self.plan.requests
        at = now + self.lead_ns
        if progress.phase == "measured" and fixed is not None:  # each worker knows when to close: there is no hurry
            at = now
            if self.schedule is not None and progress.measured_sent >= fixed and not self._turns:
                at = max(now, self.start_ns + self.schedule.offset_ns(self._arrival + fixed))
        elif self.schedule is not None:
            while self.start_ns + self.schedule.offset_ns(self._arrival) < at:
                self._arrival += 1
            at = self.start_ns + self.schedule.offset_ns(self._arrival)
        return at

    def _samples(self) -> list[int | None]:
        """How many measured requests each worker sends, where their number is fixed."""
        n, parts = self.plan.requests, len(self.team)
        if n is None:
            return [None] * parts
        if self.schedule is not None and self.schedule.spec == "trace":  # each sends its rows to their end
            return [n] * parts
        if self.schedule is None:
            return list(apportion(n, apportion(self.plan.concurrency, [1] * parts)))
        # The window opens at arrival `_arrival`; arrival k is worker `k % parts`'s.
        return [len(range((i - self._arrival) % parts, n, parts)) for i in range(parts)]

    def _observed(self) -> Observation:
        step = self.step
        told = [worker.over for worker in self.team if worker.over is not None]
        for over in told:
            self.budget.rejoin(*over["left"])
        step.not_dispatched = sum(over["not_dispatched"] for over in told)
        seen = step.observation(self.now())
        if told:
            seen = replace(seen, health=combined([unpack_health(over["health"]) for over in told]))
        if lost := self._lost():
            seen = replace(seen, ended="client", detail=lost)
        return replace(seen, workers=len(self.team))

    async def _until(self, reached: Callable[[Worker], bool], timeout_s: float = SET_S) -> None:
        """Wait until every worker has got there, or is lost: as one is that takes too long."""
        end = self.now() + round(timeout_s * 1e9)
        while not all(reached(worker) or worker.lost for worker in self.team):
            await self._wait()
            if self.now() > end:
                for worker in self.team:
                    if not reached(worker):
                        self._lose(worker, "did not come to its end")

    async def _wait(self) -> None:
        """Until the next tick, or what cannot wait for it; then look after the workers."""
        with anyio.move_on_after(TICK_S):
            await self._news.wait()
        self._news = anyio.Event()
        now = self.now()
        # Who was away itself has not heard what it missed: it reads first, and judges the next time.
        if now - self._looked_ns < SILENT_S * 1e9 / 2:
            for worker in self.team:
                silent_s = (now - worker.beat_ns) / 1e9
                if not worker.lost and silent_s > SILENT_S and not (silent_s < STARVED_S and worker.waits()):
                    self._lose(worker, f"was silent for {silent_s:.1f} s")
        self._looked_ns = now
        if lost := self._lost():  # without one of its workers a step is void
            self.step.end("client", lost, now)
            self._advance()

    def _lose(self, worker: Worker, how: str) -> None:
        worker.lost = f"{worker.called(len(self.team))} {how}"
        if worker.process is not None:
            worker.process.kill()

    def _lost(self) -> str:
        return next((worker.lost for worker in self.team if worker.lost), "")

    def _drain_s(self) -> float:
        return 0.0 if self._lost() else self.step.drain_s

    def _tell(self, *message: Any) -> None:
        for worker in self.team:
            worker.say(*message)

    def _once(self, what: str) -> bool:
        new = what not in self._announced
        self._announced.add(what)
        return new


class SharedStep(Phases):
    """The phases of a step whose requests other processes send: their counters are added up, and when each request was
    in flight is kept for the most that were at once, of all workers together."""

    def __init__(self, plan: StepPlan, control: Control, workers: int) -> None:
        super().__init__(plan, control)
        self._told: list[Mapping[str, Any]] = [{}] * workers
        self._began, self._ended = array("q"), array("q")

    def count(self, record: Record, start_ns: int, end_ns: int) -> None:
        if start_ns < end_ns:  # else it was ended before its time
            self._began.append(start_ns)
            self._ended.append(end_ns)
        super().count(record, start_ns, end_ns)

    def observation(self, now_ns: int) -> Observation:
        self.peak = most_at_once(self._began, self._ended)
        return super().observation(now_ns)

    def told(self, worker: int, counters: Mapping[str, Any]) -> None:
        """A worker's counters, as they are now."""
        self._told[worker] = counters
        for name in ("measured_sent", "in_flight", "held_back"):
            setattr(self.progress, name, sum(one.get(name, 0) for one in self._told))
        if counters["ended"] not in (None, "complete"):
            self.end(counters["ended"], counters["detail"])

    def _enough(self) -> bool:
        return super()._enough() or self._passed()

    def _sampled(self) -> bool:
        return super()._sampled() and self._passed()

    def _passed(self) -> bool:
        """Will no worker send any more of the sample?"""
        return all(one.get("passed") for one in self._told)


def most_at_once(began: Sequence[int], ended: Sequence[int]) -> int:
    """Of requests that were in flight from one time to another, the most at once; one that ends as another begins does
    not overlap it."""
    if not len(began):
        return 0
    starts, ends = np.sort(np.asarray(began)), np.sort(np.asarray(ended))
    over = np.searchsorted(ends, starts, side="right")  # of them, by then
    return int((np.arange(1, len(starts) + 1) - over).max())
