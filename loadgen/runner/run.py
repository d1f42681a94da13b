"""One run from its address to its answer. Read `execute` as a table of contents.

Nothing is lost on the way: a record is on disk before its slot is refilled, a step's line before the next step starts,
and the manifest says `running` until it says how it ended.
"""

from __future__ import annotations

import itertools
import random
import secrets
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import anyio
import anyio.abc
import httpx
import orjson

from ..analysis import summarise
from ..client.dialects import DIALECTS
from ..client.dialects.base import Dialect, RequestOptions
from ..client.driver import Control, Progress, StepPlan, run_step
from ..client.exchange import HttpxSender
from ..client.health import Watch, quiet, stamps_of, tune_process
from ..client.openloop import run_open_step
from ..client.preflight import Prepared, preflight, shape_prompt, wait_ready
from ..client.remedies import PreflightError
from ..client.target import Target, resolve
from ..client.transport import open_client
from ..errors import Exit, LoadgenError, ReaderGoneError, TargetError, UsageError
from ..log.columns import ColumnBuilder
from ..log.store import RunFolder, Sink, StreamLog, check_folder
from ..records import FAILED_OUTCOMES, LevelResult, NextLevel, Prompt, Record, StepSummary, Stop
from ..search.effort import baseline_rule, rate_warmup_s, step_rule
from ..search.rate import settle_rate
from ..search.sweep import decide
from ..search.verdict import judge
from ..workload.arrivals import Schedule
from ..workload.plain import PlainWorkload, plain_workload
from ..workload.prompts import count_words
from . import host
from .budgets import announced, budget_of, unloaded_s
from .config import Finished, Nobody, Opening, RunConfig, Watcher
from .looks import Looks
from .manifest import closing_manifest, opening_manifest

PREFLIGHT_CONNECTIONS = 4
CLOCKS = {"kernel": "kernel stamps", "user": "user stamps, taken as each read returns"}


async def execute(config: RunConfig, watcher: Watcher | None = None) -> Finished:
    """Run to the end and return what it came to. Raises LoadgenError where there is nothing to report."""
    run = _Run(config, watcher or Nobody())
    ended: Finished | LoadgenError
    async with anyio.create_task_group() as group:
        await group.start(_listen, run)
        try:
            prepared = await run.prepare()
            run.announce(prepared)
            ended = await run.measure(prepared)
        except LoadgenError as error:  # carried out of the group, which would wrap it
            ended = error
        group.cancel_scope.cancel()
    if isinstance(ended, LoadgenError):
        raise ended
    return ended


async def _listen(run: _Run, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """First Ctrl-C stops sending and drains, the second quits at once; SIGTERM quits at once, as its sender waits."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        task_status.started()
        async for number in received:
            again = run.interrupted is not None
            run.interrupted = signal.Signals(number)
            run.preparing.cancel()
            if number == signal.SIGTERM or again:
                run.watcher.signalled("quitting: what is in flight is dropped")
                run.control.quit()
            else:
                run.watcher.signalled("draining: nothing more is sent; Ctrl-C again quits at once")
                run.control.drain()


class _Run:
    def __init__(self, config: RunConfig, watcher: Watcher) -> None:
        if config.open_loop is not None:  # requests leave on time while the loop is busy making others
            config = replace(config, access=replace(config.access, threaded=True))
        self.config = config
        self.watcher = watcher
        self.target = resolve(config.url, config.endpoint)
        self.dialect = DIALECTS[self.target.endpoint]
        choice = config.workload
        self.workload = _workload(config)
        self.seed = choice.seed if choice.seed is not None else random.randrange(1 << 32)
        self.nonce = secrets.token_hex(4)
        self.started_epoch_ns = time.time_ns()
        self.zero_ns = time.monotonic_ns()
        self.control = Control()
        self.preparing = anyio.CancelScope()
        self.interrupted: signal.Signals | None = None
        self.fault: LoadgenError | None = None
        self.unlogged: list[Record] = []
        self.outcomes: Counter[str] = Counter()
        self.sink: Sink | None = None
        self.manifest: dict[str, Any] = {}
        self.levels: list[tuple[int, LevelResult]] = []
        self.summaries: list[StepSummary] = []
        self.rule = step_rule(config.effort, config.slo, requests=config.requests, duration=config.duration_s)
        self.budget = budget_of(config, self.workload)
        self.request_s = 0.0
        self.clock: Literal["kernel", "user"] = "user"
        tune_process()
        if config.output != "-":
            check_folder(config.output)
        self.most_in_flight = host.most_connections() if config.open_loop is not None else max(self._planned_levels())
        if config.open_loop is not None and config.open_loop.max_in_flight is not None:
            self.most_in_flight = config.open_loop.max_in_flight
        host.raise_descriptor_limit(self.most_in_flight)

    # --- before any load --------------------------------------------------------------------------------------------

    async def prepare(self) -> Prepared:
        """Preflight, with its requests already in the log. Raises TargetError, in one sentence, where it fails."""
        config = self.config
        options = RequestOptions(
            model=config.model or "",
            force_length=config.force_length,
            temperature=config.sampling.get("temperature"),
            top_p=config.sampling.get("top_p"),
            extra_body=config.extra_body,
        )
        ids = itertools.count(1)
        async with self._client(PREFLIGHT_CONNECTIONS) as client:

            async def attempt() -> Prepared:
                prepared = await preflight(
                    self.target,
                    self.dialect,
                    options,
                    self.workload,
                    client=client,
                    make_sender=lambda chosen, dialect: _Logged(self, self._sender(client, dialect, chosen)),
                    nonce=self.nonce,
                    ids=ids,
                    proxy=config.access.proxy_for(self.target.url),
                )
                self.clock = stamps_of(client)
                return prepared

            def not_ready(error: PreflightError, pause_s: float) -> None:
                self.watcher.waiting(f"not ready: {error.message}; again in {pause_s:.1f} s")

            self.watcher.waiting(f"preflight of {self.target.display()}")
            if self.budget.deadline is not None:
                self.preparing.deadline = self.budget.deadline
            try:
                with self.preparing:
                    if config.wait_ready_s is None:
                        return await attempt()
                    return await wait_ready(attempt, config.wait_ready_s, not_ready)
            except LoadgenError as error:
                self._failed(error)
                raise
        if self.interrupted is not None:
            stopped: LoadgenError = _InterruptedError(self.interrupted)
        else:
            stopped = TargetError(
                f"the preflight of {self.target.display()} did not end within --max-time",
                "raise --max-time, or see why the server takes so long for one small request",
            )
        self._failed(stopped)
        raise stopped

    def announce(self, prepared: Prepared) -> None:
        """Say what may be sent, and write it down, before anything is."""
        config, facts = self.config, prepared.facts
        request_s = unloaded_s(prepared.records[-1], self.workload.max_output_tokens)
        levels = self._planned_levels()
        expected = announced(config, self.workload, self.budget, self.rule, levels, request_s)
        self.request_s = request_s
        self.manifest = opening_manifest(
            config,
            prepared,
            self.workload,
            seed=self.seed,
            nonce=self.nonce,
            started_epoch_ns=self.started_epoch_ns,
            forecast=expected,
            rule=self.rule,
            clock=self.clock,
        )
        self._log().write_manifest(self.manifest)
        self.watcher.opened(
            Opening(
                target=prepared.target.display(),
                facts=facts,
                workload=f"{self.workload.describe()} · seed {self.seed}",
                clock=CLOCKS[self.clock],
                plan=expected.describe(),
                seconds=expected.seconds,
                rate=config.open_loop.rate if config.open_loop is not None else None,
                notes=(*prepared.notes, *self.workload.notes, *facts.warnings),
            )
        )

    # --- the load ---------------------------------------------------------------------------------------------------

    async def measure(self, prepared: Prepared) -> Finished:
        """Step after step until the search, a limit or a signal ends it; then the answer and the exit code."""
        error: LoadgenError | None = None
        stop: Stop
        try:
            while True:
                decision = self._decide()
                if isinstance(decision, Stop):
                    stop = decision
                    break
                await self._step(prepared, decision)
                host.release_memory()  # the step's rows
        except LoadgenError as fault:  # the log cannot be written
            error = fault
            stop = Stop("interrupted", None, None, None, f"stopped by a fault: {fault.message}")
        return self._finish(stop, error)

    async def _step(self, prepared: Prepared, level: NextLevel) -> None:
        config = self.config
        number = len(self.levels) + 1
        # The first level of a climb shows the server without load: it is shorter, and not judged where it decides
        # nothing.
        first = config.verb == "sweep" and config.plan.levels is None and number == 1 and level.concurrency <= 2
        rule = baseline_rule(self.rule) if first else self.rule
        rows = ColumnBuilder(ids=False)
        looks = Looks(rule, config.slo, level.concurrency, rows)
        log = self._log()

        def keep(record: Record) -> None:
            if not config.token_log:
                record = replace(record, events=None)
            try:
                log.append(record)
            except LoadgenError as fault:  # what cannot be kept is not sent any more
                self.fault = self.fault or fault
                if isinstance(fault, ReaderGoneError):
                    self.control.quit()
                self.control.drain()
            rows.add(record)
            self.outcomes[record.outcome] += 1
            self.watcher.request_ended(record)
            watch.ended(record)

        def started(progress: Progress) -> None:
            watch.follow(progress)
            self.watcher.step_started(
                progress,
                level.why,
                lambda: rule.share_done(progress.concurrency, progress.measured_done, progress.window_s),
            )

        plan = StepPlan(
            step=number,
            concurrency=level.concurrency,
            enough=looks.enough,
            stagger_s=self.request_s,
            warmup=level.concurrency if config.warmup is None else config.warmup,
            requests=rule.requests,
            drain_s=config.drain_s,
            max_error_rate=config.max_error_rate,
        )
        how: dict[str, Any] = {
            "on_record": keep,
            "clock": time.monotonic_ns,
            "zero_ns": self.zero_ns,
            "budget": self.budget,
            "control": self.control,
            "on_progress": started,
        }
        async with self._client(level.concurrency or self.most_in_flight) as client:
            sender = self._sender(client, self.dialect, prepared.options)
            prompts = self._prompts(prepared, number)
            with quiet(), Watch(client, zero_ns=self.zero_ns) as watch:
                if config.open_loop is not None:
                    schedule = Schedule(config.open_loop.arrivals, config.open_loop.rate, self.seed)
                    observation = await run_open_step(sender, prompts, self._open_plan(plan), schedule, **how)
                else:
                    observation = await run_step(sender, prompts, plan, **how)
        looks.close()
        if self.fault is not None:
            raise self.fault
        observation = replace(observation, health=watch.health())
        summary = summarise(rows.columns(), number, config.slo, observation, looks=looks.planned)
        e2e = summary.latency.get("e2e")
        if e2e is not None and e2e.mean is not None:
            self.request_s = e2e.mean.value / 1e3
        log.append_step(observation, summary)
        log.sync()
        result = looks.settle(judge(summary, config.slo, max_error_rate=config.max_error_rate, baseline=first))
        self.levels.append((number, result))
        self.summaries.append(summary)
        self.watcher.step_ended(summary, result)

    def _decide(self) -> NextLevel | Stop:
        """The search's decision; what ends a run from outside comes before it."""
        config = self.config
        history = [result for _, result in self.levels]
        if self.interrupted is not None and not history:
            return Stop("interrupted", None, None, None, "interrupted before the first step")
        if config.open_loop is not None and not history:
            return NextLevel(0, f"{config.open_loop.arrivals} arrivals")
        plan = config.plan if config.verb == "sweep" else replace(config.plan, confirm=False, refine=0)
        if self.interrupted is not None and history[-1].ended == "complete":
            history[-1] = replace(history[-1], ended="interrupted")
        if self.budget.spent and history and history[-1].ended in ("complete", "budget"):
            history[-1] = replace(history[-1], ended=f"budget:{self.budget.spent}")
        if config.open_loop is not None:
            return settle_rate(history[-1], self.summaries[-1], has_slo=bool(config.slo))
        return decide(history, plan)

    def _finish(self, stop: Stop, error: LoadgenError | None) -> Finished:
        seconds = (time.monotonic_ns() - self.zero_ns) / 1e9
        status: Literal["complete", "interrupted", "failed"] = "complete"
        if error is not None:
            status, code = "failed", error.exit_code
        elif self.interrupted is not None:
            status = "interrupted"
            code = Exit.TERMINATED if self.interrupted == signal.SIGTERM else Exit.INTERRUPTED
        else:
            code = self._exit_code(stop)
        log = self._log()
        self.manifest = closing_manifest(
            self.manifest,
            status=status,
            stop=stop,
            levels=self.levels,
            seconds=seconds,
            exit_code=int(code),
            error=str(error) if error else None,
            note=self.config.closing_note(stop, self.summaries) if self.config.closing_note else None,
        )
        try:
            log.write_manifest(self.manifest)
            log.close()
        except LoadgenError:
            if error is None:
                raise
        if error is not None:
            raise error
        return Finished(
            log.where,
            status,
            int(code),
            stop,
            tuple(self.summaries),
            tuple(result for _, result in self.levels),
            dict(self.outcomes),
            self.manifest,
        )

    def _exit_code(self, stop: Stop) -> Exit:
        ok = sum(summary.requests.get("ok", 0) for summary in self.summaries)
        if not ok and (any(summary.failed for summary in self.summaries) or stop.reason == "errors"):
            return Exit.TARGET
        if not ok:  # the budget ended before anything was measured
            return Exit.UNDECIDED
        if stop.reason == "errors":
            return Exit.NO
        if stop.reason == "client_bound":
            return Exit.UNDECIDED
        if self.config.slo and stop.held is None:
            undecided = all(result.verdict in ("inconclusive", "marginal", "baseline") for _, result in self.levels)
            return Exit.UNDECIDED if undecided else Exit.NO
        return Exit.DONE

    # --- parts ------------------------------------------------------------------------------------------------------

    def _client(self, connections: int) -> Any:
        return open_client(
            self.config.access,
            connections,
            tls=self.target.url.startswith("https") or self.config.access.proxy is not None,
            connect_timeout_s=self.config.timeouts.connect,
        )

    def _sender(self, client: httpx.AsyncClient, dialect: Dialect, options: RequestOptions) -> HttpxSender:
        return HttpxSender(
            client, self.target.url, dialect, options, zero_ns=self.zero_ns, timeouts=self.config.timeouts
        )

    def _prompts(self, prepared: Prepared, step: int) -> Iterator[Prompt]:
        """A step's endless stream: each replays the same lengths, so that levels are compared on equal work, with a
        text of its own, so that none finds the prefix cache warmed by another."""
        nonce = f"seed {self.seed}" if self.config.workload.same_text else self.nonce
        return self.workload.stream(self.seed, f"{nonce}-{step}", prepared.calibration)

    def _open_plan(self, plan: StepPlan) -> StepPlan:
        """The same step as an open loop. Without a number it warms up for a time, and at least one request."""
        config = self.config
        assert config.open_loop is not None
        return replace(
            plan,
            rate=config.open_loop.rate,
            warmup=1 if config.warmup is None else config.warmup,
            warmup_s=rate_warmup_s(self.request_s) if config.warmup is None else 0.0,
            max_in_flight=config.open_loop.max_in_flight,
            most_in_flight=self.most_in_flight,
        )

    def _planned_levels(self) -> tuple[int, ...]:
        plan = self.config.plan
        if self.config.open_loop is not None:
            return ()
        if plan.levels is not None:
            return plan.levels
        levels = [plan.start]
        while levels[-1] < plan.max_level:
            levels.append(min(plan.max_level, max(levels[-1] + 1, round(levels[-1] * plan.factor))))
        return tuple(levels)

    def _log(self) -> Sink:
        """The run's log, made when there is first something to keep: a wrong address leaves no folder behind."""
        if self.sink is None:
            if self.config.output == "-":
                self.sink = _Stream()
            else:
                self.sink = RunFolder.create(self.config.output, self._name())
        return self.sink

    def _name(self) -> str:
        if self.workload.sized:
            return f"{self.config.verb}-{self.workload.input_len}-{self.workload.output_len}"
        return f"{self.config.verb}-{self.workload.source}"

    def _failed(self, error: LoadgenError) -> None:
        if self.sink is not None:
            status = "interrupted" if isinstance(error, _InterruptedError) else "failed"
            self.sink.write_manifest({**self.manifest, "status": status, "error": str(error)})
            self.sink.close()


class _Stream(StreamLog):
    """The log on stdout, for whom a reader that has gone is the end of the run."""

    def _write(self, kind: str, obj: Mapping[str, Any]) -> None:
        try:
            super()._write(kind, obj)
        except BrokenPipeError as error:
            raise ReaderGoneError from error


class _Logged:
    """A sender that logs each preflight request as it ends, once the server has answered one."""

    def __init__(self, run: _Run, inner: HttpxSender) -> None:
        self._run = run
        self._inner = inner

    async def send(self, spec: Any, scheduled_ns: int) -> Record:
        run, prompt = self._run, spec.prompt
        if run.workload.sized and prompt.input_tokens is None:
            # Text made to learn what a word costs: common words, nearly all of them one token.
            prompt = replace(prompt, input_tokens=2 * count_words(prompt.text))
        if not run.budget.take(spec.id, prompt):
            raise UsageError(
                f"the budget of {run.budget.spent} does not even allow the preflight",
                f"raise --max-{run.budget.spent}",
            )
        record = await self._inner.send(spec, scheduled_ns)
        run.budget.settle(record)
        run.unlogged.append(record)
        run.outcomes[record.outcome] += 1
        if record.outcome not in FAILED_OUTCOMES or run.sink is not None:
            log = run._log()
            for one in run.unlogged:
                log.append(one)
            run.unlogged.clear()
        return record

    def cut(self, outcome: Literal["cut", "cancelled"]) -> None:
        self._inner.cut(outcome)


class _InterruptedError(LoadgenError):
    """A signal came before the first step."""

    def __init__(self, number: signal.Signals | None) -> None:
        super().__init__("interrupted before any load was sent")
        self.exit_code = Exit.TERMINATED if number == signal.SIGTERM else Exit.INTERRUPTED


def _workload(config: RunConfig) -> PlainWorkload:
    return plain_workload(config.workload.input_len, config.workload.output_len, config.workload.prompts)


def dry_run(config: RunConfig) -> dict[str, Any]:
    """The address and the body that a run would send first, without sending anything at all."""
    target: Target = resolve(config.url, config.endpoint)
    workload = _workload(config)
    dialect = DIALECTS[target.endpoint]
    options = RequestOptions(
        model=config.model or "<from /v1/models>",
        force_length=config.force_length,
        temperature=config.sampling.get("temperature"),
        top_p=config.sampling.get("top_p"),
        extra_body=config.extra_body,
    )
    body = dialect.body(shape_prompt(workload, None, None, "00000000"), options)
    return {
        "method": "POST",
        "url": target.display(),
        "headers": ["content-type", "accept", "x-request-id", *sorted(config.access.headers)],
        "body": orjson.loads(orjson.dumps(body)),
    }
