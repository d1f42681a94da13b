"""The bookkeeping of one step: pure counting, no waiting. What a closed and an open loop have in common.

The driver reports each request's place in time (`take`, `done`); the step says which phase it belongs to, when the
window opens and closes, and when all is over. All times are ns on the run's clock.

    Phases          decides: from requests that ended, wherever they ran
    └── Step        …and starts them, in this process
        └── Part    …of a step that several processes share: it does not decide, it is told
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from ..errors import LoadgenError
from ..records import FAILED_OUTCOMES, Phase, Prompt, Record, RequestSpec
from ..results import Observation, Window
from .budget import Budget, apportion
from .retry import NO_RETRY, Retry

Ended = Literal["complete", "errors", "budget", "interrupted", "unauthorized", "client"]

ERROR_WINDOW = 20  # completions looked back on, or the concurrency where that is larger
UNAUTHORIZED = {401, 402, 403}


@dataclass(slots=True)
class Progress:
    """A step as it runs: what `StepPlan.enough` decides from and what the live display shows. `concurrency` is 0 in an
    open loop, `rate` None in a closed one."""

    step: int
    concurrency: int
    rate: float | None = None
    phase: Literal["warmup", "measured", "filler"] = "warmup"
    opened_ns: int | None = None
    now_ns: int = 0
    in_flight: int = 0
    measured_sent: int = 0
    measured_done: int = 0
    failed: int = 0
    completed: int = 0
    held_back: int = 0

    @property
    def window_s(self) -> float:
        return 0.0 if self.opened_ns is None else (self.now_ns - self.opened_ns) / 1e9


@dataclass(frozen=True, slots=True)
class StepPlan:
    """How one step is run: with `concurrency` requests in flight or, where `rate` (requests/s) is given, open loop.

    `enough` is asked at every request to be sent once the window is open; True closes the window. It opens when
    `warmup` requests have completed and `warmup_s` has passed. `requests` sends exactly so many measured requests.
    `stagger_s` spreads the first sends of a closed loop over that time. `drain_s` is how long fillers may run on after
    the sample is complete; what is left then is cut. Of an open loop, `max_in_flight` holds back what is due while so
    many are in flight, and `most_in_flight` is how many this process can have at all: to need more ends the step.
    Where several processes share the step, this one is `worker` (from 0) of `workers`: `part` of any of these numbers
    is its share, and requests `worker`, `worker + workers`, … are its requests.
    """

    step: int
    concurrency: int
    enough: Callable[[Progress], bool]
    warmup: int
    requests: int | None = None
    stagger_s: float = 0.0
    drain_s: float = 30.0
    max_error_rate: float = 0.01
    rate: float | None = None
    warmup_s: float = 0.0
    max_in_flight: int | None = None
    most_in_flight: int | None = None
    worker: int = 0
    workers: int = 1
    retry: Retry = NO_RETRY

    def part(self, whole: int) -> int:
        """This process's share of `whole` of something; the shares of all make up the whole."""
        return apportion(whole, [1] * self.workers)[self.worker]


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


class Phases:
    """Which phase a step is in, what was counted in it, and how it ended."""

    def __init__(self, plan: StepPlan, control: Control) -> None:
        self.plan, self.control = plan, control
        self.progress = Progress(plan.step, plan.concurrency, plan.rate)
        self.started_ns: int | None = None
        self.closed_ns: int | None = None
        self.integral = 0
        self.peak = 0
        self.not_dispatched = 0
        self.refused = 0  # requests in a row that reached no server
        self.recent: deque[bool] = deque(maxlen=max(ERROR_WINDOW, plan.concurrency))
        self.ended: Ended = "complete"
        self.detail = ""
        self.faults: Counter[str] = Counter()
        self.over = False
        self.exhausted = False  # no more arrivals come, however many were wanted

    def reach(self, at_ns: int) -> None:
        """Time has come to `at_ns`, or a request for that time is about to be taken: pass into the phase it is in."""
        progress = self.progress
        progress.now_ns = at_ns
        if self.started_ns is None:
            self.started_ns = at_ns
        if self.control.state != "go":
            self.end("interrupted")
        if progress.phase == "warmup" and not self.over and self._warm(at_ns):
            self._open(at_ns)
        if progress.phase == "measured" and not self.over and self._enough():
            self._close(at_ns)
        if self._sampled():
            self.over = True

    def count(self, record: Record, start_ns: int, end_ns: int) -> None:
        """A request that was in flight from `start_ns` to `end_ns` has ended."""
        progress = self.progress
        self._reside(start_ns, end_ns)
        progress.completed += 1
        progress.measured_done += record.phase == "measured"
        failed = record.outcome in FAILED_OUTCOMES
        progress.failed += failed
        self.refused = self.refused + 1 if _unreached(record) else 0
        if record.outcome in ("cut", "cancelled"):
            return
        self.recent.append(failed)
        if failed:
            self._failed(record)
        # The step may be over for good here, with every other slot still in flight: nobody waits for the next free one.
        if self._sampled():
            self.over = True

    def end(self, ended: Ended, detail: str = "", now_ns: int = 0) -> None:
        """The first reason to end early wins; the window closes with it, at `now_ns` or the latest time known."""
        if not self.over:
            self.ended, self.detail, self.over = ended, detail, True
            if self.progress.phase == "measured":
                self._close(max(now_ns, self.progress.now_ns))

    @property
    def drain_s(self) -> float:
        """How long what is in flight may run on once the step is over."""
        return 0.0 if self.ended == "unauthorized" else self.plan.drain_s

    def observation(self, now_ns: int) -> Observation:
        """What was seen, once nothing is outstanding any more."""
        opened = self.progress.opened_ns
        if opened is not None and self.closed_ns is None:
            self._close(now_ns)
        window = None if opened is None else Window(opened, self.closed_ns or now_ns)
        return Observation(
            step=self.plan.step,
            concurrency=self.plan.concurrency,
            window=window,
            in_flight_integral_ns=self.integral,
            in_flight_peak=self.peak,
            ended=self.ended,
            detail=self.detail,
            rate=self.plan.rate,
            max_in_flight=self.plan.max_in_flight,
            held_back=self.progress.held_back,
            not_dispatched=self.not_dispatched,
        )

    def _failed(self, record: Record) -> None:
        if record.outcome == "client_error":
            self.end("client", record.error.message if record.error else "")
        if record.status in UNAUTHORIZED:
            self.end("unauthorized", f"status {record.status}")
        what = record.error.message if record.error else record.outcome
        if record.status not in (None, 200):
            what = f"{record.status}: {what}"
        self.faults[what] += 1
        failures = sum(self.recent)
        if len(self.recent) >= min(10, self.plan.concurrency or 10) and too_many(
            failures, len(self.recent), self.plan.max_error_rate
        ):
            self.end("errors", f"{failures} of the last {len(self.recent)} failed: {self.faults.most_common(1)[0][0]}")

    def _warm(self, at_ns: int) -> bool:
        waited = at_ns - (self.started_ns or 0)
        return self.progress.completed >= self.plan.warmup and waited >= self.plan.warmup_s * 1e9

    def _enough(self) -> bool:
        if self.exhausted:
            return True
        if self.plan.requests is not None:
            return self.progress.measured_sent >= self.plan.requests
        return self.plan.enough(self.progress)

    def _sampled(self) -> bool:
        """Has the last request of the sample ended?"""
        return self.progress.phase == "filler" and self.progress.measured_done == self.progress.measured_sent

    def _open(self, at_ns: int) -> None:
        self.progress.phase, self.progress.opened_ns = "measured", at_ns

    def _close(self, at_ns: int) -> None:
        self.progress.phase = "filler"
        self.closed_ns = max(at_ns, self.progress.opened_ns or 0)

    def _reside(self, start_ns: int, end_ns: int) -> None:
        """Add what this request's time in flight has in common with the window: the sum is the window's integral of
        requests in flight, as each request is known from start to end when the step is over."""
        opened = self.progress.opened_ns
        if opened is not None:
            end_ns = end_ns if self.closed_ns is None else min(end_ns, self.closed_ns)
            self.integral += max(0, end_ns - max(start_ns, opened))


class Step(Phases):
    """A step whose requests are sent from here. Open-loop requests are taken ahead of the time they are sent at, so the
    phase they belong to may begin in the near future; a request counts as in flight from that time on."""

    def __init__(self, plan: StepPlan, prompts: Iterator[Prompt], budget: Budget, control: Control) -> None:
        super().__init__(plan, control)
        self.prompts, self.budget = prompts, budget
        self.sent = 0
        self.outstanding = 0  # in flight, or waiting for the time they are sent at
        self.wake: Callable[[], None] = lambda: None  # whoever waits for the end
        self._coming: deque[int] = deque()  # when the requests that wait will be in flight, ascending

    def take(self, at_ns: int, prompt: Prompt | None = None) -> RequestSpec | None:
        """The request to send at `at_ns`, in the phase reached: of this prompt, or of the next one of the stream; None
        when nothing more is to be sent."""
        if self.over:
            return None
        plan = self.plan
        prompt = prompt or self.draw()
        if prompt is None:
            return None
        phase: Phase = self.progress.phase
        if phase == "measured" and at_ns < (self.progress.opened_ns or 0):  # opened ahead, for a later request
            phase = "warmup"
        number = self.sent * plan.workers + plan.worker
        spec = RequestSpec(
            f"s{plan.step}-{number:06d}", prompt, plan.step, plan.concurrency, phase, plan.worker, number
        )
        if not self.budget.take(spec.id, prompt):
            self.end("budget", self.budget.spent or "")
            return None
        self.sent += 1
        self.outstanding += 1
        self.progress.measured_sent += phase == "measured"
        if self._coming and at_ns < self._coming[-1]:  # a turn that is due before an arrival taken ahead
            insort(self._coming, at_ns)
        else:
            self._coming.append(at_ns)
        return spec

    def draw(self) -> Prompt | None:
        """The next prompt of the stream; None where there is none."""
        try:
            return next(self.prompts)
        except StopIteration:  # a trace has come to its end
            return None
        except LoadgenError as fault:  # a line of a large file that is no prompt
            self.end("client", fault.message)
            return None

    def placed(self, record: Record) -> Record:
        """The record in its phase, where that has become known only since it was taken."""
        return record

    def missed(self, scheduled_ns: int) -> bool:
        """Was this arrival due in the window and is unsent at its end? Then it is counted, and never sent."""
        missed = self.closed_ns is not None and scheduled_ns < self.closed_ns
        self.not_dispatched += missed
        return missed

    def tick(self, now_ns: int) -> None:
        """Bring the number in flight up to date: those whose time has come are."""
        while self._coming and self._coming[0] <= now_ns:
            self._coming.popleft()
            self.progress.in_flight += 1
        self.peak = max(self.peak, self.progress.in_flight)

    def done(self, record: Record, now_ns: int, at_ns: int) -> None:
        """The request that was taken for `at_ns` has ended."""
        self.budget.settle(record)
        self.tick(now_ns)
        self.outstanding -= 1
        if at_ns > now_ns:
            self._coming.remove(at_ns)  # it was ended before its time
        else:
            self.progress.in_flight -= 1
        self.progress.now_ns = now_ns
        self.count(record, at_ns, now_ns)


class Part(Step):
    """What one of several processes does of a step. Its phases are told, ahead of their time; should that come late,
    the requests in flight are put into the phase they belong to. The window closes at the time told, or for this part
    once `sample` measured requests were sent; it is all over when `end` is called, or on a fault of its own."""

    def __init__(self, plan: StepPlan, prompts: Iterator[Prompt], budget: Budget, control: Control) -> None:
        super().__init__(plan, prompts, budget, control)
        self.open_ns: int | None = None
        self.close_ns: int | None = None
        self.sample: int | None = None
        self.drained_s: float | None = None  # what `drain_s` is, where that was told
        self.on_done: Callable[[Record, int, int], None] = lambda record, start_ns, end_ns: None
        self._places: dict[str, tuple[int, Phase]] = {}  # of the requests in flight

    @property
    def drain_s(self) -> float:
        return super().drain_s if self.drained_s is None else self.drained_s

    @property
    def passed(self) -> bool:
        """Will no more measured requests be sent?"""
        return self.over or self.progress.phase == "filler"

    def open_at(self, at_ns: int, sample: int | None) -> None:
        """The window opens at `at_ns`; where a number of requests is fixed, this part's is `sample`."""
        self.open_ns, self.sample = at_ns, sample
        self._late("warmup", "measured", at_ns)

    def close_at(self, at_ns: int) -> None:
        """The window closes at `at_ns`."""
        self.close_ns = at_ns
        if self.sample is None:
            self._late("measured", "filler", at_ns)

    def take(self, at_ns: int, prompt: Prompt | None = None) -> RequestSpec | None:
        spec = super().take(at_ns, prompt)
        if spec is not None:
            self._places[spec.id] = at_ns, spec.phase
        return spec

    def placed(self, record: Record) -> Record:
        _, phase = self._places.pop(record.id)
        return record if phase == record.phase else replace(record, phase=phase)

    def done(self, record: Record, now_ns: int, at_ns: int) -> None:
        super().done(record, now_ns, at_ns)
        self.on_done(record, at_ns, now_ns)

    def _late(self, believed: Phase, truly: Phase, from_ns: int) -> None:
        """Requests taken for `from_ns` or later are in another phase than was known then."""
        for name, (at_ns, phase) in self._places.items():
            if phase == believed and at_ns >= from_ns:
                self._places[name] = at_ns, truly
                self.progress.measured_sent += (truly == "measured") - (believed == "measured")

    def _warm(self, at_ns: int) -> bool:
        return self.open_ns is not None and at_ns >= self.open_ns

    def _enough(self) -> bool:
        if self.exhausted or (self.sample is not None and self.progress.measured_sent >= self.sample):
            return True
        return self.close_ns is not None and self.progress.now_ns >= self.close_ns

    def _sampled(self) -> bool:
        return False

    def _open(self, at_ns: int) -> None:
        super()._open(at_ns if self.open_ns is None else self.open_ns)

    def _close(self, at_ns: int) -> None:
        super()._close(at_ns if self.close_ns is None else min(at_ns, self.close_ns))


def _unreached(record: Record) -> bool:
    """Did no server take the request? It was refused, or the connection broke before a byte of an answer."""
    if record.error is None or record.first_byte_ns is not None:
        return False
    return record.status is None and record.error.kind in ("connect", "dns", "tls", "reset", "protocol")


def too_many(failures: int, n: int, allowed: float) -> bool:
    """Is the failure share above `allowed` beyond doubt (exact binomial, one-sided 99.9 %, as it is asked at every
    failure)? Then going on is a waste."""
    if failures < 2 or failures <= allowed * n:
        return False
    tail = 1.0 - sum(math.comb(n, k) * allowed**k * (1 - allowed) ** (n - k) for k in range(failures))
    return tail < 0.001
