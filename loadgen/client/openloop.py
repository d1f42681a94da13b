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
5. Of conversations, the arrivals are their first turns. A later turn is due when the answer before it is complete and
   its user has thought: it is a request as any other, but no arrival, and moves none.
6. An arrival that is a turn of a trace's conversation is not sent before the turn before it has ended: then it is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import anyio
import anyio.abc

from ..errors import LoadgenError
from ..records import After, Prompt, Record, RequestSpec
from ..results import Observation
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
    end_ns: int | None = None,
) -> Observation:
    """Run one open-loop step to its end and return what was seen; stamps in the result are relative to `zero_ns`.

    `arrivals` are offsets in ns from `start_ns` (on `clock`; left out: as soon as the first can be made), endless and
    ascending; or they come to an end, and the window closes `end_ns` after the start, or, of those whose end is not
    known before, a mean gap after the last of them, if it is still open. `plan.rate` is the rate they have,
    `plan.concurrency` is 0. The rest is as in `driver.run_step`.
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

    def following() -> int | None:
        try:
            offset = next(arrivals, None)
        except LoadgenError as fault:  # a trace that has changed
            step.end("client", fault.message, flow.now())
            return None
        return None if offset is None else start + offset

    due = following()
    latest, gap_ns = due or 0, round(1e9 / plan.rate) if plan.rate else 0

    async def reached(due: int) -> bool:
        """Wait until a request that is due then is to be made, and until there is room; was there none at first?"""
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
        step.tick(now)
        step.reach(max(due, now))
        return limited

    def taken(due: int, limited: bool, prompt: Prompt | None = None) -> tuple[RequestSpec, int] | None:
        """What to send, and for when."""
        now = flow.now()
        at = max(due, now)
        if plan.most_in_flight is not None and step.outstanding >= plan.part(plan.most_in_flight):
            step.end("client", f"{step.outstanding:,} requests in flight, and no open files for more", now)
        spec = step.take(at, prompt)
        if spec is None:
            return None
        step.progress.held_back += limited and now > due
        return spec, at

    playing = 0  # conversations with turns to come
    waiting: list[int] = []  # when turns were due whose turn before has not ended yet

    async def play(spec: RequestSpec, at: int, due: int) -> None:
        """A request and, of a conversation, the turns after it."""
        nonlocal playing
        going = more(spec.prompt)
        while (turn := await flow.follow(spec, at, due)) is not None:
            due, prompt = turn
            limited = await reached(due)
            found = None if limited and step.missed(due) else taken(due, limited, prompt)
            if found is None:
                break
            spec, at = found
            if going and not more(spec.prompt):
                going = False
                playing -= 1
                finish()
        if going:
            playing -= 1
            finish()
        flow.settle()

    async def held(prompt: Prompt, due: int, after: After) -> None:
        """A turn, once the one before it has ended; it is among those waiting."""
        nonlocal playing
        ended = anyio.Event()
        after.call(ended.set)
        await ended.wait()
        since, due = due, max(due, after.done_ns or 0)
        limited = await reached(due)
        found = None if step.missed(due) else taken(due, limited, prompt)
        waiting.remove(since)
        playing += found is not None and more(prompt)
        finish()
        if found is not None:
            await play(*found, due)
        flow.settle()

    def finish() -> None:
        """Where nothing comes any more, the window need not stay open for it."""
        if due is None and not waiting and not playing:
            step.exhausted = True
            step.reach(max(latest + gap_ns if end_ns is None else start + end_ns, flow.now()))

    async def feed(group: anyio.abc.TaskGroup) -> None:
        nonlocal due, latest, playing
        while not step.over and due is not None:
            latest = due
            limited = await reached(due)
            if step.missed(due):
                due = following()
                continue
            prompt = step.draw()
            if prompt is not None and prompt.after is not None and prompt.after.done_ns is None:
                waiting.append(due)
                group.start_soon(held, prompt, due, prompt.after)
                due = following()
                continue
            found = None if prompt is None else taken(due, limited, prompt)
            if found is None:
                break
            playing += more(found[0].prompt)
            group.start_soon(play, *found, due)
            due = following()
        finish()
        flow.settle()

    await flow.run(lambda group: group.start_soon(feed, group))
    for turn in waiting:
        step.missed(turn)
    while due is not None and step.missed(due):
        due = following()
    return step.observation(flow.now())


def more(prompt: Prompt) -> bool:
    """May a turn follow it?"""
    return prompt.then is not None and prompt.then.more
