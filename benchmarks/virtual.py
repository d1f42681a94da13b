"""The real sweep in virtual time: the engine's step loop in place of a server, and no sockets.

    server = VirtualServer(EngineConfig(max_batch=64), Mix(200, 32, sigma=0.6), seed=1)
    found = sweep(server, SweepPlan(has_slo=True), parse_slo(["ttft_p95=500ms"]))
    found.stop.held, found.stop.broke, found.requests

What a step measures becomes `Columns`, and from there everything is the product's own: looks, summaries, verdicts, the
search. Only the driver's bookkeeping (phases, the window) is done again here, as in `client/step.py`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadgen.analysis import summarise
from loadgen.client.driver import Progress
from loadgen.experiments.columns import columns_of
from loadgen.log.columns import Columns
from loadgen.records import PHASES
from loadgen.results import LevelResult, NextLevel, Observation, Slo, StepSummary, Stop, Window
from loadgen.runner.looks import Looks
from loadgen.search import SweepPlan, decide, judge
from loadgen.search.effort import StepRule, baseline_rule, rule_of, step_rule
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.engine.disaggregated import core_for
from loadgen.simulator.engine.sequence import Sequence
from loadgen.simulator.engine.virtual import Mix

BLOCK = 2048  # lengths are drawn so many at a time
WARMUP, MEASURED, FILLER = (PHASES.index(name) for name in ("warmup", "measured", "filler"))


@dataclass(frozen=True, slots=True)
class VirtualServer:
    """An engine and what it is asked. The lengths are the same in every step, as in a real run; the engine's noise is
    not."""

    config: EngineConfig
    mix: Mix
    seed: int = 0


@dataclass(frozen=True, slots=True)
class VirtualStep:
    summary: StepSummary
    level: LevelResult
    columns: Columns


@dataclass(frozen=True, slots=True)
class VirtualSweep:
    stop: Stop
    history: tuple[LevelResult, ...]
    summaries: tuple[StepSummary, ...]

    @property
    def requests(self) -> int:
        """Measured requests, all steps together."""
        return sum(summary.sent for summary in self.summaries)


class Inline(Executor):
    """Does at once what it is given."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class Load:
    """Requests on an engine, one engine step at a time: in a closed loop of `concurrency`, the first ones over
    `ramp_s`, or at the times that `arrivals` gives."""

    def __init__(
        self,
        server: VirtualServer,
        step: int,
        *,
        concurrency: int = 0,
        ramp_s: float = 0.0,
        arrivals: Callable[[], float] | None = None,
        start_s: float = 0.0,
    ) -> None:
        config = replace(server.config, seed=server.seed * 1000 + step)
        self.core = core_for(config)
        self.server, self.overhead_s = server, config.overhead_ms / 1e3
        self.longest = config.room
        self.now = start_s
        self.phase = WARMUP
        self.everyone: list[Sequence] = []
        self.phases: list[int] = []
        self._drawn: list[tuple[int, int, tuple[int, ...]]] = []
        self._closed = concurrency > 0
        self._arrivals = arrivals
        self._due = [start_s + ramp_s * place / concurrency for place in range(concurrency)]
        if arrivals is not None:
            self._due = [arrivals()]

    def step(self) -> tuple[Sequence, ...]:
        """To the end of the next engine step: what ended in it. A freed slot is due again at once, but is not filled
        before the next call, so that the phase may change first."""
        while True:
            while self._due and self._due[0] <= self.now:
                self._submit(heapq.heappop(self._due))
            coming = self._due[0] if self._due else math.inf
            done = self.core.step(self.now, coming)
            if done is None:
                ready = self.core.next_ready()
                self.now = max(self.now, min(coming, math.inf if ready is None else ready))
                continue
            self.now += done.duration_s
            if self._closed:
                for _ in done.ended:
                    heapq.heappush(self._due, self.now)
            return done.ended

    def _submit(self, at: float) -> None:
        number = len(self.everyone)
        if number == len(self._drawn):
            server = self.server
            drawn = server.mix.draw(
                BLOCK,
                server.seed * 100_003 + number // BLOCK,
                block_tokens=server.config.block_tokens,
                longest=self.longest,
            )
            hashes = drawn.blocks or ((),) * BLOCK
            self._drawn += zip(drawn.prompt.tolist(), drawn.output.tolist(), hashes, strict=True)
        prompt, output, blocks = self._drawn[number]
        sequence = Sequence(number, prompt, output, at, at + self.overhead_s, blocks)
        self.everyone.append(sequence)
        self.phases.append(self.phase)
        self.core.submit(sequence)
        if self._arrivals is not None:
            heapq.heappush(self._due, self._arrivals())


@dataclass(slots=True)
class _Rows:
    """What has ended so far, for a look."""

    load: Load
    step: int
    concurrency: int

    def snapshot(self) -> _Rows:
        return self

    def columns(self, *, events: bool) -> Columns:
        load = self.load
        ended = [s for s in load.everyone if not math.isnan(s.done_s)]
        stamps = np.array([(s.submitted_s, s.first_s, s.done_s) for s in ended]).reshape(-1, 3)
        phases = np.array([load.phases[s.handle] for s in ended], np.int8)
        lengths = np.array([(s.prompt, s.output) for s in ended], np.int64).reshape(-1, 2)
        return columns_of(stamps, lengths, phases, self.step, self.concurrency)


def measure(
    server: VirtualServer,
    number: int,
    concurrency: int,
    rule: StepRule,
    slo: Slo,
    *,
    ramp_s: float = 0.0,
    baseline: bool = False,
    start_s: float = 0.0,
) -> VirtualStep:
    """One closed-loop step, as `runner` measures it: warm-up of `concurrency` completions, then the window. It begins
    at `start_s` on the server's clock, which its drift follows."""
    load = Load(server, number, concurrency=concurrency, ramp_s=ramp_s, start_s=start_s)
    rows = _Rows(load, number, concurrency)
    looks = Looks(rule, slo, concurrency, rows, 0.01, Inline())
    window, _ = _followed(load, looks, Progress(number, concurrency), rule, warmup=concurrency)
    seen = Observation(
        number, concurrency, window, round(concurrency * window.seconds * 1e9), concurrency, "complete",
        looks=looks.planned, decided=looks.decided,
    )  # fmt: skip
    table = rows.columns(events=False)
    summary = summarise(table, number, slo, seen)
    level = judge(summary, slo, baseline=baseline, looks=looks.planned)
    return VirtualStep(summary, level, table)


def _followed(
    load: Load, looks: Looks, progress: Progress, rule: StepRule, *, warmup: int, warmup_s: float = 0.0
) -> tuple[Window, Progress]:
    """Run until the sample is complete; the window and what was counted."""
    window_end = 0
    while True:
        sent = len(load.phases)
        ended = load.step()
        now = round(load.now * 1e9)
        if load.phase == MEASURED:
            progress.measured_sent += len(load.phases) - sent
        for sequence in ended:
            progress.completed += 1
            progress.measured_done += load.phases[sequence.handle] == MEASURED
        progress.now_ns = now
        if load.phase == WARMUP:
            if progress.completed >= warmup and load.now >= warmup_s:
                load.phase, progress.opened_ns = MEASURED, now
                progress.measured_sent = 0
        elif load.phase == MEASURED:
            full = rule.requests is not None and progress.measured_sent >= rule.requests
            if full or (ended and looks.enough(progress)):
                load.phase, window_end = FILLER, now
        elif progress.measured_done >= progress.measured_sent:
            return Window(progress.opened_ns or 0, window_end), progress


def sweep(
    server: VirtualServer, plan: SweepPlan, slo: Slo, *, effort: str = "normal", fixed: int | None = None
) -> VirtualSweep:
    """A whole sweep, as `runner.run` does it. With `fixed`, as it is often done by hand: exactly so many requests a
    level (2.5 times as many for a p99), and a level holds when its percentile is below the limit."""
    whole = step_rule(effort, slo)
    if fixed is not None:
        whole = step_rule(effort, slo, requests=fixed * whole.requests_cap // step_rule(effort, Slo()).requests_cap)
    history: list[LevelResult] = []
    summaries: list[StepSummary] = []
    ramp_s = start_s = 0.0
    while True:
        decision = decide(history, plan)
        if isinstance(decision, Stop):
            return VirtualSweep(decision, tuple(history), tuple(summaries))
        assert isinstance(decision, NextLevel)
        number = len(history) + 1
        first = plan.levels is None and number == 1 and decision.concurrency <= 2
        found = measure(
            server,
            number,
            decision.concurrency,
            baseline_rule(whole) if first else rule_of(whole, decision, repeats=plan.repeats),
            Slo() if decision.check else slo,
            ramp_s=ramp_s,
            baseline=first,
            start_s=start_s,
        )
        start_s = found.summary.window.end_ns / 1e9 if found.summary.window else start_s
        e2e = found.summary.latency["e2e"].mean
        ramp_s = e2e.value / 1e3 if e2e is not None else 0.0
        level = found.level
        if fixed is not None:
            level = replace(level, verdict="fail" if level.p_hat_beyond else "pass")
        history.append(level)
        summaries.append(found.summary)
