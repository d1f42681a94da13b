"""Drives one step: keeps N requests in flight (closed loop), and what any loop needs to start, follow and end requests.

A step in time, for concurrency N (closed loop):

    start ── warm-up: until N requests have completed ──► window opens ── measured ──► window closes ── filler ──► end
             nothing drains at a boundary: a slot that falls free is filled at once, with the next phase's tag

The sample is the requests sent inside the window, each followed to its own end while fillers hold the load. All times
come from the `clock` handed in (ns) and all waiting from anyio, so that a whole step runs in virtual time in the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import anyio
import anyio.abc

from ..records import Prompt, Record, RequestSpec
from ..results import Observation
from .budget import Budget
from .retry import RetryingSender
from .sender import Sender
from .step import Control, Ended, Progress, Step, StepPlan, too_many

__all__ = ["Budget", "Control", "Ended", "Flow", "Progress", "StepPlan", "run_step", "too_many"]

POLL_S = 0.25  # how often the brake and the deadline are looked at while requests are in flight
BACKOFF_S = (0.1, 5.0)  # first and longest pause of a slot whose request reached no server


class Flow:
    """One step as it flows: requests are started by a loop, followed to their records, and ended in time."""

    def __init__(
        self,
        sender: Sender,
        step: Step,
        *,
        on_record: Callable[[Record], None],
        clock: Callable[[], int],
        zero_ns: int,
    ) -> None:
        self.step = step
        step.wake = self.settle
        self.on_record, self.clock, self.zero_ns = on_record, clock, zero_ns
        self._end = anyio.Event()  # nothing more is to be sent
        self._quiet = anyio.Event()  # …and nothing is outstanding
        retry = step.plan.retry
        self.sender = RetryingSender(sender, retry, step.budget, self._end) if retry.times else sender

    async def run(self, start: Callable[[anyio.abc.TaskGroup], object]) -> None:
        """To the end of the step. `start` starts the loop's own tasks; they call `follow` for each request, and
        `settle` when they have no more."""
        step = self.step
        step.control.on_quit.append(self._cut)
        try:
            async with anyio.create_task_group() as group:
                start(group)
                group.start_soon(self._supervise, group.cancel_scope)
        finally:
            step.control.on_quit.remove(self._cut)

    def now(self) -> int:
        return self.clock() - self.zero_ns

    async def follow(self, spec: RequestSpec, at_ns: int, scheduled_ns: int) -> tuple[int, Prompt] | None:
        """Send a request taken for `at_ns` and due at `scheduled_ns`, and close its record. Of a conversation, returns
        when the next turn is due, and that turn."""
        record = self.step.placed(await self.sender.send(spec, scheduled_ns + self.zero_ns))
        after, then = None, spec.prompt.then
        if then is not None:
            after = then.next(record)
            if then.cut:
                record = replace(record, flags=(*record.flags, "context_cut"))
        self.on_record(record)
        self.step.done(record, self.now(), at_ns)
        self.settle()
        return None if after is None else (record.done_ns + after[0], after[1])

    def settle(self) -> None:
        if self.step.over:
            self._end.set()
            if not self.step.outstanding:
                self._quiet.set()

    def _cut(self) -> None:
        self.sender.cut("cancelled" if self.step.control.state == "quit" else "cut")

    async def _supervise(self, scope: anyio.CancelScope) -> None:
        step, budget = self.step, self.step.budget
        deadline = math.inf if budget.deadline is None else budget.deadline
        while not self._end.is_set():
            with anyio.CancelScope(deadline=min(deadline, anyio.current_time() + POLL_S)):
                await self._end.wait()
            now = self.now()
            step.tick(now)
            if anyio.current_time() >= deadline:
                budget.spent = budget.spent or "time"
                step.end("budget", "time", now)
            elif step.control.state != "go":
                step.end("interrupted", now_ns=now)
            self.settle()
        with anyio.CancelScope(deadline=min(deadline, anyio.current_time() + step.drain_s)):
            await self._quiet.wait()
        self._cut()
        await self._quiet.wait()
        scope.cancel()  # tasks still asleep (staggered start, back-off, the next arrival) have nothing in flight


async def run_step(
    sender: Sender,
    prompts: Iterator[Prompt],
    plan: StepPlan,
    *,
    on_record: Callable[[Record], None],
    clock: Callable[[], int],
    zero_ns: int,
    budget: Budget | None = None,
    control: Control | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    start_ns: int | None = None,
    step: Step | None = None,
) -> Observation:
    """Run one closed-loop step to its end and return what was seen; stamps in the result are relative to `zero_ns`.

    `on_record` gets each record before its slot is refilled. The step ends when its sample is complete, on an error, at
    the end of the budget, or by `control`. `start_ns`, on `clock`, is when the first request is sent, by default at
    once. `step` is the bookkeeping, where it is not to be made of prompts, plan, budget and control.
    """
    step = step or Step(plan, prompts, budget or Budget(), control or Control())
    flow = Flow(sender, step, on_record=on_record, clock=clock, zero_ns=zero_ns)
    if on_progress is not None:
        on_progress(step.progress)

    async def slot(index: int) -> None:
        place = index * plan.workers + plan.worker  # among all slots of the step
        wait_s = max(0.0, (start_ns - clock()) / 1e9) if start_ns is not None else 0.0
        wait_s += plan.stagger_s * place / plan.concurrency
        if wait_s:
            await anyio.sleep(wait_s)
        turn: tuple[int, Prompt] | None = None
        while True:
            now = flow.now()
            if turn is not None and turn[0] > now:  # its user thinks: nothing else takes the slot
                await anyio.sleep((turn[0] - now) / 1e9)
                now = max(flow.now(), turn[0])
            step.reach(now)
            spec = step.take(now, None if turn is None else turn[1])
            if spec is None:
                return flow.settle()
            step.tick(now)
            turn = await flow.follow(spec, now, now)
            if step.refused and not step.over:
                await anyio.sleep(min(BACKOFF_S[0] * 2 ** min(step.refused - 1, 10), BACKOFF_S[1]))

    def start(group: anyio.abc.TaskGroup) -> None:
        for index in range(plan.part(plan.concurrency)):
            group.start_soon(slot, index)

    await flow.run(start)
    return step.observation(flow.now())
