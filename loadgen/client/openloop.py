"""Open loop: requests are sent when an arrival process says, whatever the server makes of it.

    arrival  ──── LEAD ahead: prompt, body, task ──► the sender holds it ──► sent at its time ──► followed to its end

Rules:
1. The schedule is absolute. A late feeder, a stalled loop or a full client delays a request, never the ones after it.
2. `scheduled_ns` stays the arrival's time, so that what a delay cost is seen in `ttft_scheduled`: no coordinated
   omission.
3. An arrival becomes a record, or is counted: those due but unsent at the window's end (the limit of requests in
   flight, a client too slow) are `not_dispatched`, those sent late because of that limit are `held_back`.
4. The window opens and closes at an arrival: with n arrivals in it, n / window is the rate without bias. After it the
   arrivals go on, as fillers, until the sample is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import anyio
import anyio.abc

from ..records import Observation, Prompt, Record
from .budget import Budget
from .driver import POLL_S, Flow
from .sender import Sender
from .step import Control, Progress, Step, StepPlan

LEAD_NS = 50_000_000  # how far ahead of its time a request is made


async def run_open_step(
    sender: Sender,
    prompts: Iterator[Prompt],
    plan: StepPlan,
    arrivals: Iterator[int],
    *,
    on_record: Callable[[Record], None],
    clock: Callable[[], int],
    zero_ns: int,
    start_ns: int | None = None,
    budget: Budget | None = None,
    control: Control | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    step: Step | None = None,
) -> Observation:
    """Run one open-loop step to its end and return what was seen; stamps in the result are relative to `zero_ns`.

    `arrivals` are offsets in ns from `start_ns` (on `clock`; left out: as soon as the first can be made), endless and
    ascending. `plan.rate` is the rate they have, `plan.concurrency` is 0. The rest is as in `driver.run_step`.
    """
    step = step or Step(plan, prompts, budget or Budget(), control or Control())
    room = anyio.Event()  # one of the requests in flight has ended

    def keep(record: Record) -> None:
        nonlocal room
        on_record(record)
        room.set()
        room = anyio.Event()

    flow = Flow(sender, step, on_record=keep, clock=clock, zero_ns=zero_ns)
    most = None if plan.max_in_flight is None else plan.part(plan.max_in_flight)
    if on_progress is not None:
        on_progress(step.progress)
    start = (clock() + LEAD_NS if start_ns is None else start_ns) - zero_ns
    due = start + next(arrivals)

    async def feed(group: anyio.abc.TaskGroup) -> None:
        nonlocal due
        while not step.over:
            await anyio.sleep(max(0, due - LEAD_NS - flow.now()) / 1e9)
            limited = False
            while most is not None and step.outstanding >= most and not step.over:
                limited = True
                with anyio.move_on_after(POLL_S):
                    await room.wait()
                # What nothing is sent for, nobody else would notice: the window may be long enough.
                if step.progress.phase == "measured" and flow.now() > due:
                    step.reach(flow.now())
                    if step.closed_ns is not None:
                        break
            now = flow.now()
            at = max(due, now)
            step.tick(now)
            step.reach(at)
            if step.missed(due):
                due = start + next(arrivals)
                continue
            if plan.most_in_flight is not None and step.outstanding >= plan.part(plan.most_in_flight):
                step.end("client", f"{step.outstanding:,} requests in flight, and no open files for more", now)
            spec = step.take(at)
            if spec is None:
                break
            step.progress.held_back += limited and now > due
            group.start_soon(flow.follow, spec, at, due)
            due = start + next(arrivals)
        flow.settle()

    await flow.run(lambda group: group.start_soon(feed, group))
    while step.missed(due):
        due = start + next(arrivals)
    return step.observation(flow.now())
