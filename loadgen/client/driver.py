"""One step: keeps N requests in flight, tags each with its place, and says what it saw.

A step in time, for concurrency N (closed loop):

    start ── warm-up: until N requests have completed ──► window opens ── measured ──► window closes ── filler ──► end
             nothing drains at a boundary: a slot that falls free is filled at once, with the next phase's tag

The sample is the requests sent inside the window, each followed to its own end while fillers hold the load. All times
come from the `clock` handed in (ns) and all waiting from anyio, so that a whole step runs in virtual time in the tests.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import anyio

from ..records import FAILED_OUTCOMES, Observation, Phase, Prompt, Record, RequestSpec, Window
from .sender import Sender

Ended = Literal["complete", "errors", "budget", "interrupted", "unauthorized", "client"]

ERROR_WINDOW = 20  # completions looked back on, or the concurrency where that is larger
UNAUTHORIZED = {401, 402, 403}
POLL_S = 0.25  # how often the brake and the deadline are looked at while requests are in flight
BACKOFF_S = (0.1, 5.0)  # first and longest pause of a slot whose connection was refused


@dataclass(slots=True)
class Budget:
    """What the whole run may still spend; None is no limit. A request is paid for before it is sent, with the tokens it
    asks for, so the promise holds whatever the server does."""

    requests: int | None = None
    tokens: int | None = None
    deadline: float | None = None  # on anyio's clock
    cost: float | None = None
    price: tuple[float, float] = (0.0, 0.0)  # per million input and output tokens
    spent: str | None = None  # the first limit met: time, requests, tokens or cost

    def take(self, prompt: Prompt) -> bool:
        """Pay for one request, or say that it cannot be sent (and remember why)."""
        inputs, outputs = prompt.input_tokens or 0, prompt.output_tokens or 0
        cost = (inputs * self.price[0] + outputs * self.price[1]) / 1e6
        if self.spent is None:
            if self.deadline is not None and anyio.current_time() >= self.deadline:
                self.spent = "time"
            elif self.requests is not None and self.requests < 1:
                self.spent = "requests"
            elif self.tokens is not None and self.tokens < inputs + outputs:
                self.spent = "tokens"
            elif self.cost is not None and self.cost < cost:
                self.spent = "cost"
        if self.spent is not None:
            return False
        if self.requests is not None:
            self.requests -= 1
        if self.tokens is not None:
            self.tokens -= inputs + outputs
        if self.cost is not None:
            self.cost -= cost
        return True

    def tighten(self, requests: int, tokens: int, seconds: float) -> tuple[int, int, float]:
        """Lower what is left to a forecast's figures where it is higher or unlimited; returns what is left then."""
        now = anyio.current_time()
        self.requests = requests if self.requests is None else min(requests, self.requests)
        self.tokens = tokens if self.tokens is None else min(tokens, self.tokens)
        self.deadline = now + seconds if self.deadline is None else self.deadline
        return self.requests, self.tokens, self.deadline - now


@dataclass(slots=True)
class Progress:
    """A step as it runs: what `StepPlan.enough` decides from and what the live display shows."""

    step: int
    concurrency: int
    phase: Literal["warmup", "measured", "filler"] = "warmup"
    opened_ns: int | None = None
    now_ns: int = 0
    in_flight: int = 0
    measured_sent: int = 0
    measured_done: int = 0
    failed: int = 0
    completed: int = 0

    @property
    def window_s(self) -> float:
        return 0.0 if self.opened_ns is None else (self.now_ns - self.opened_ns) / 1e9


@dataclass(frozen=True, slots=True)
class StepPlan:
    """How one step is run. `enough` is asked at every completion once the window is open; True closes the window.

    `requests` sends exactly so many measured requests. `stagger_s` spreads the first sends over that time. `drain_s` is
    how long fillers may run on after the sample is complete; what is left then is cut.
    """

    step: int
    concurrency: int
    enough: Callable[[Progress], bool]
    warmup: int
    requests: int | None = None
    stagger_s: float = 0.0
    drain_s: float = 30.0
    max_error_rate: float = 0.01


@dataclass(slots=True)
class Control:
    """The run's brake: `drain` sends nothing more and lets what is in flight finish, `quit` cuts it."""

    state: Literal["go", "drain", "quit"] = "go"
    on_quit: list[Callable[[], None]] = field(default_factory=list)

    def drain(self) -> None:
        if self.state == "go":
            self.state = "drain"

    def quit(self) -> None:
        self.state = "quit"
        for call in self.on_quit:
            call()


class _Step:
    """The bookkeeping of one step: pure counting, no waiting."""

    def __init__(self, plan: StepPlan, prompts: Iterator[Prompt], budget: Budget, control: Control) -> None:
        self.plan, self.prompts, self.budget, self.control = plan, prompts, budget, control
        self.progress = Progress(plan.step, plan.concurrency)
        self.closed_ns: int | None = None
        self.integral = 0
        self.changed_ns = 0
        self.peak = 0
        self.sent = 0
        self.refused = 0  # connections refused in a row
        self.recent: deque[bool] = deque(maxlen=max(ERROR_WINDOW, plan.concurrency))
        self.ended: Ended = "complete"
        self.detail = ""
        self.faults: Counter[str] = Counter()
        self.over = False

    def next(self, now_ns: int) -> RequestSpec | None:
        """The request to send at `now_ns`, or None when this slot is done."""
        progress = self.progress
        progress.now_ns = now_ns
        if self.control.state != "go":
            self.end("interrupted")
        if progress.phase == "warmup" and progress.completed >= self.plan.warmup:
            self._open(now_ns)
        if progress.phase == "measured" and self._enough():
            self._close(now_ns)
        if progress.phase == "filler" and progress.measured_done == progress.measured_sent:
            self.over = True
        if self.over:
            return None
        prompt = next(self.prompts)
        if not self.budget.take(prompt):
            self.end("budget", self.budget.spent or "")
            return None
        phase: Phase = progress.phase
        spec = RequestSpec(f"s{self.plan.step}-{self.sent:06d}", prompt, self.plan.step, self.plan.concurrency, phase)
        self.sent += 1
        progress.measured_sent += phase == "measured"
        self._flight(now_ns, +1)
        return spec

    def done(self, record: Record, now_ns: int) -> None:
        progress = self.progress
        self._flight(now_ns, -1)
        progress.now_ns = now_ns
        progress.completed += 1
        progress.measured_done += record.phase == "measured"
        failed = record.outcome in FAILED_OUTCOMES
        progress.failed += failed
        self.refused = self.refused + 1 if record.error is not None and record.error.kind == "connect" else 0
        if record.outcome in ("cut", "cancelled"):
            return
        self.recent.append(failed)
        if failed:
            self._failed(record)
        # The step may be over for good here, with every other slot still in flight: nobody waits for the next free one.
        if progress.phase == "filler" and progress.measured_done == progress.measured_sent:
            self.over = True

    def end(self, ended: Ended, detail: str = "") -> None:
        """The first reason to end early wins; the window closes with it."""
        if not self.over:
            self.ended, self.detail, self.over = ended, detail, True
            if self.progress.phase == "measured":
                self._close(self.progress.now_ns)

    def observation(self, now_ns: int) -> Observation:
        opened = self.progress.opened_ns
        if opened is not None and self.closed_ns is None:
            self._close(now_ns)
        window = None if opened is None else Window(opened, self.closed_ns or now_ns)
        return Observation(
            self.plan.step, self.plan.concurrency, window, self.integral, self.peak, self.ended, self.detail
        )

    def _failed(self, record: Record) -> None:
        if record.outcome == "client_error":
            self.end("client", record.error.message if record.error else "")
        if record.status in UNAUTHORIZED:
            self.end("unauthorized", f"status {record.status}")
        what = record.error.message if record.error else record.outcome
        self.faults[what] += 1
        failures = sum(self.recent)
        if len(self.recent) >= min(10, self.plan.concurrency) and too_many(
            failures, len(self.recent), self.plan.max_error_rate
        ):
            self.end("errors", f"{failures} of the last {len(self.recent)} failed: {self.faults.most_common(1)[0][0]}")

    def _enough(self) -> bool:
        if self.plan.requests is not None:
            return self.progress.measured_sent >= self.plan.requests
        return self.plan.enough(self.progress)

    def _open(self, now_ns: int) -> None:
        self.progress.phase = "measured"
        self.progress.opened_ns = now_ns
        self.changed_ns = now_ns

    def _close(self, now_ns: int) -> None:
        self._flight(now_ns, 0)
        self.progress.phase = "filler"
        self.closed_ns = now_ns

    def _flight(self, now_ns: int, change: int) -> None:
        progress = self.progress
        if progress.phase == "measured":
            self.integral += progress.in_flight * (now_ns - self.changed_ns)
        self.changed_ns = now_ns
        progress.in_flight += change
        self.peak = max(self.peak, progress.in_flight)


def too_many(failures: int, n: int, allowed: float) -> bool:
    """Is the failure share above `allowed` beyond doubt (one-sided 99 %, exact binomial)? Then going on is a waste."""
    if failures < 2 or failures <= allowed * n:
        return False
    tail = 1.0 - sum(math.comb(n, k) * allowed**k * (1 - allowed) ** (n - k) for k in range(failures))
    return tail < 0.01


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
) -> Observation:
    """Run one closed-loop step to its end and return what was seen; stamps in the result are relative to `zero_ns`.

    `on_record` gets each record before its slot is refilled. The step ends when its sample is complete, on an error, at
    the end of the budget, or by `control`.
    """
    budget = budget or Budget()
    control = control or Control()
    step = _Step(plan, prompts, budget, control)
    if on_progress is not None:
        on_progress(step.progress)
    end = anyio.Event()  # nothing more is to be sent
    quiet = anyio.Event()  # …and nothing is in flight

    def settle() -> None:
        if step.over:
            end.set()
            if not step.progress.in_flight:
                quiet.set()

    async def slot(index: int) -> None:
        if plan.stagger_s and index:
            await anyio.sleep(plan.stagger_s * index / plan.concurrency)
        while True:
            now = clock()
            spec = step.next(now - zero_ns)
            if spec is None:
                return settle()
            record = await sender.send(spec, now)
            on_record(record)
            step.done(record, clock() - zero_ns)
            settle()
            if step.refused and not step.over:
                await anyio.sleep(min(BACKOFF_S[0] * 2 ** min(step.refused - 1, 10), BACKOFF_S[1]))

    def cut() -> None:
        sender.cut("cancelled" if control.state == "quit" else "cut")

    async def supervise(scope: anyio.CancelScope) -> None:
        deadline = math.inf if budget.deadline is None else budget.deadline
        while not end.is_set():
            with anyio.CancelScope(deadline=min(deadline, anyio.current_time() + POLL_S)):
                await end.wait()
            if anyio.current_time() >= deadline:
                budget.spent = budget.spent or "time"
                step.end("budget", "time")
            elif control.state != "go":
                step.end("interrupted")
            settle()
        drain_s = 0.0 if step.ended == "unauthorized" else plan.drain_s
        with anyio.CancelScope(deadline=min(deadline, anyio.current_time() + drain_s)):
            await quiet.wait()
        cut()
        await quiet.wait()
        scope.cancel()  # slots still asleep (staggered start, back-off) have nothing in flight

    control.on_quit.append(cut)
    try:
        async with anyio.create_task_group() as group:
            for index in range(plan.concurrency):
                group.start_soon(slot, index)
            group.start_soon(supervise, group.cancel_scope)
    finally:
        control.on_quit.remove(cut)
    return step.observation(clock() - zero_ns)
