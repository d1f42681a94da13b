"""One run from its address to its answer. Read `execute` as a table of contents.

Nothing is lost on the way: a record is on disk before its slot is refilled, a step's line before the next step starts,
and the manifest says `running` until it says how it ended.
"""

from __future__ import annotations

import itertools
import math
import random
import secrets
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.abc

from ..analysis import beside_server, summarise
from ..analysis.stability import overloaded
from ..client.addresses import Addresses
from ..client.dialects import find_dialect
from ..client.driver import Control, Progress
from ..client.health import tune_process
from ..client.preflight import Prepared, wait_ready
from ..client.remedies import PreflightError
from ..client.remote import RemoteFleet, Seats
from ..client.shared import OVERLAP_S
from ..errors import LoadgenError, TargetError
from ..log.columns import ColumnBuilder
from ..log.store import check_folder
from ..records import Record
from ..results import LevelResult, NextLevel, Slo, StepSummary, Stop
from ..search.effort import baseline_rule, rate_rule, rule_of, step_rule
from ..search.rate import settle_rate
from ..search.rates import decide_rate, piled
from ..search.sweep import decide
from ..search.verdict import judge
from ..workload.tokenizer import LocalTokenizer
from . import host
from .before import since_the_one_before
from .budgets import all_measured, announced, budget_of, foretold, unloaded_s, within_budget
from .calibrate.cite import cite
from .calibrate.store import load as load_calibration
from .config import Finished, Nobody, Opening, RunConfig, Watcher
from .ending import InterruptedRunError, exit_code, signal_code
from .exporter import exporting
from .journal import Journal
from .looks import Looks
from .manifest import closing_manifest, exactly, opening_manifest, with_earlier
from .placing import placed
from .plans import planned_levels, step_plan
from .preparing import Ready, ask
from .recovery import Recovery
from .resume import Earlier, check_server, exhausted, go_on, paused_s
from .serverview import Found, ServerWatch
from .setting import Setting, options_of, others_of, target_of, workload_of
from .steps import Steps, tokens_of, workers_for

PREFLIGHT_CONNECTIONS = 4
CLOCKS = {"kernel": "kernel stamps", "user": "user stamps, taken as each read returns"}


async def execute(config: RunConfig, watcher: Watcher | None = None) -> Finished:
    """Run to the end and return what it came to. Raises LoadgenError where there is nothing to report."""
    async with exporting(config.metrics_address, watcher or Nobody()) as told:
        return await _execute(config, told)


async def _execute(config: RunConfig, watcher: Watcher) -> Finished:
    async with placed(config, watcher.waiting) as seats:
        return await _measured(_Run(config, watcher, seats), config)


async def _measured(run: _Run, config: RunConfig) -> Finished:
    ended: Finished | LoadgenError
    async with anyio.create_task_group() as group:
        if config.signals:
            await group.start(_listen, run)
        try:
            stop = run.already()
            if stop is not None:
                ended = run.finish(stop)
            else:
                prepared = await run.prepare()
                run.announce(prepared)
                ended = await run.measure(prepared)
        except LoadgenError as error:  # carried out of the group, which would wrap it
            ended = error
        except anyio.get_cancelled_exc_class():
            run.cancelled()
            raise
        group.cancel_scope.cancel()
    if isinstance(ended, LoadgenError):
        raise ended
    return ended


async def _listen(run: _Run, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """First Ctrl-C stops sending and drains, the second quits at once; SIGTERM quits at once, as its sender waits, and
    SIGHUP as its terminal has gone, unless it is to be outlived (nohup)."""
    ends = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        ends.append(signal.SIGHUP)
    with anyio.open_signal_receiver(*ends) as received:
        task_status.started()
        async for number in received:
            again = run.interrupted is not None
            run.interrupted = signal.Signals(number)
            run.preparing.cancel()
            if number != signal.SIGINT or again:
                run.watcher.signalled("quitting: what is in flight is dropped")
                run.control.quit()
            else:
                run.watcher.signalled("draining: nothing more is sent; Ctrl-C again quits at once")
                run.control.drain()


class _Run:
    def __init__(self, config: RunConfig, watcher: Watcher, seats: Seats | None = None) -> None:
        if config.open_loop is not None:  # requests leave on time while the loop is busy making others
            config = replace(config, access=replace(config.access, threaded=True))
        self.config = config
        self.watcher = watcher
        self.seats = seats  # of workers on other machines
        self.remote: RemoteFleet | None = None
        self.workload = workload_of(config)
        self.target = target_of(config, self.workload)
        self.dialect = find_dialect(self.target.endpoint)
        self.options = options_of(config, self.target.endpoint)
        self.started_epoch_ns = time.time_ns()
        self.rule = step_rule(
            config.effort,
            config.slo,
            requests=config.requests,
            duration=config.duration_s,
            precision=config.plan.precision,
        )
        if config.rates is not None:
            self.rule = rate_rule(self.rule)
        self.budget = budget_of(config, self.workload)
        self.foretold: frozenset[str] = frozenset()  # the limits of the budget that the user did not set
        self.journal = Journal(config.output, f"{config.verb}-{self.workload.label}")
        self.earlier: Earlier | None = None
        if config.resume is not None:
            self.earlier = go_on(config.resume.folder, config, self.workload, self.budget, self.rule, self.journal)
        self.setting = Setting(
            config,
            self.target,
            self.workload,
            seed=self._seed(),
            nonce=secrets.token_hex(4),
            zero_ns=time.monotonic_ns() - (self.earlier.now_ns() if self.earlier is not None else 0),
            others=others_of(config, self.target),
            addresses=Addresses(unix_socket=config.access.unix_socket),
            tokenizer=LocalTokenizer(config.tokenizer) if config.tokenizer is not None else None,
        )
        self.control = Control()
        self.preparing = anyio.CancelScope()
        self.interrupted: signal.Signals | None = None
        self.manifest: dict[str, Any] = {}
        self.levels: list[tuple[int, LevelResult]] = []
        self.recovery = Recovery(config.wait_ready_s)
        self.summaries: list[StepSummary] = []
        self.step = 1  # the number of the next one
        self.lost = 0  # requests of an earlier part that were in flight when it was killed, at the most
        if self.earlier is not None:
            self.manifest = dict(self.earlier.manifest)
            self.levels, self.summaries = list(self.earlier.levels), list(self.earlier.summaries)
            self.step = self.earlier.next_step
        self.server = self._server_watch(Found())
        self.request_s = 0.0
        self.faults_told: set[str] = set()  # addresses, when the run began
        self.clock: Literal["kernel", "user"] = "user"
        tune_process()
        if config.output != "-" and config.resume is None:
            check_folder(config.output)
        self.most_in_flight = (
            host.most_connections() if config.open_loop is not None else max(planned_levels(config.plan))
        )
        if config.open_loop is not None and config.open_loop.max_in_flight is not None:
            self.most_in_flight = config.open_loop.max_in_flight
        host.raise_descriptor_limit(-(-self.most_in_flight // (config.workers or 1)))

    # --- an earlier part of it --------------------------------------------------------------------------------------

    def _seed(self) -> int:
        given = self.config.workload.seed
        if self.earlier is not None:
            return self.earlier.seed
        return given if given is not None else random.randrange(1 << 32)

    def already(self) -> Stop | None:
        """The end of a resumed run of which no more than the answer is missing."""
        earlier = self.earlier
        if earlier is None:
            return None
        self.request_s = self._e2e_s(self.summaries[-1]) if self.summaries else 0.0
        decision = self._decide()
        if isinstance(decision, NextLevel):
            self.lost = earlier.pay_for_lost(self.budget, self.workload, decision)
            exhausted(self.budget, self.workload, anyio.current_time())
            decision = self._decide()
        if isinstance(decision, NextLevel):
            return None
        self.manifest = earlier.gone_on(self.setting, self.started_epoch_ns, self.step, self.lost)
        return decision

    # --- before any load --------------------------------------------------------------------------------------------

    async def prepare(self) -> Prepared:
        """Preflight, with its requests already in the log. Raises TargetError, in one sentence, where it fails."""
        config = self.config
        ids = itertools.count(1 if self.earlier is None else self.earlier.next_probe)
        async with self.setting.client(PREFLIGHT_CONNECTIONS) as client:

            async def attempt() -> Ready:
                return await ask(self.setting, self.options, client, self.journal, self.budget, ids)

            def not_ready(error: PreflightError, pause_s: float) -> None:
                self.watcher.waiting(f"not ready: {error.message}; again in {pause_s:.1f} s")

            self.watcher.waiting(f"preflight of {self._targets()}")
            if self.budget.deadline is not None:
                self.preparing.deadline = self.budget.deadline
            try:
                with self.preparing:
                    if config.wait_ready_s is None:
                        found = await attempt()
                    else:
                        found = await wait_ready(attempt, config.wait_ready_s, not_ready)
                    self.clock, self.server = found.clock, self._server_watch(found.metrics)
                    self.faults_told = set(self.setting.addresses.faults)
                    return found.prepared
            except LoadgenError as error:
                self._failed(error)
                raise
        if self.interrupted is not None:
            stopped: LoadgenError = InterruptedRunError(self.interrupted)
        else:
            stopped = TargetError(
                f"the preflight of {self._targets()} did not end within --max-time",
                "raise --max-time, or see why the server takes so long for one small request",
            )
        self._failed(stopped)
        raise stopped

    def announce(self, prepared: Prepared) -> None:
        """Say what may be sent, and write it down, before anything is."""
        config, facts, tokenizer, earlier = self.config, prepared.facts, self.setting.tokenizer, self.earlier
        changed = self._changed(prepared)
        request_s = unloaded_s(prepared.records[-1], self.workload.usual[1])
        levels = planned_levels(config.plan) if config.open_loop is None else ()
        shared = workers_for(config, max(levels, default=0), request_s, tokens_of(self.workload, prepared)) > 1
        overlap_s = OVERLAP_S if shared else 0.0
        own = replace(self.budget)
        expected = announced(config, self.workload, self.budget, self.rule, levels, request_s, overlap_s)
        self.foretold = foretold(own, self.budget)
        self.request_s = request_s
        opening = opening_manifest(
            config,
            prepared,
            self.workload,
            seed=self.setting.seed,
            nonce=self.setting.nonce,
            started_epoch_ns=self.started_epoch_ns,
            forecast=expected,
            rule=self.rule,
            clock=self.clock,
            tokenizer=None if tokenizer is None else {"file": tokenizer.path, "sha256": tokenizer.sha256},
            scraping=self.server.opening(),
        )
        self.manifest = (
            opening if earlier is None else earlier.gone_on(self.setting, self.started_epoch_ns, self.step, self.lost)
        )
        if self.seats is not None:
            placed_now = {**self.seats.facts(), "steps": [], "lost": []}
            self.manifest["workers"] = with_earlier(self.manifest.get("workers"), placed_now)
        if changed is not None:
            self.manifest["notes"] = [*self.manifest["notes"], changed]
        self.journal.log().write_manifest(self.manifest)
        self.watcher.opened(
            Opening(
                target=self._targets(),
                facts=facts,
                workload=f"{self.workload.describe()}{exactly(prepared)} · seed {self.setting.seed}",
                clock=CLOCKS[self.clock],
                plan=expected.describe(),
                seconds=expected.seconds,
                rate=config.open_loop.rate if config.open_loop is not None else None,
                notes=(*prepared.notes, *self.workload.notes, *facts.warnings)
                if earlier is None
                else tuple(self.manifest["notes"]),
            )
        )
        for summary, (_, level) in zip(self.summaries, self.levels, strict=True):  # of an earlier part
            self.watcher.step_ended(summary, level)

    def _changed(self, prepared: Prepared) -> str | None:
        if self.earlier is None or self.config.resume is None:
            return None
        try:
            return check_server(self.earlier.manifest, prepared, anyway=self.config.resume.anyway)
        except LoadgenError as error:
            self._failed(error)
            raise

    # --- the load ---------------------------------------------------------------------------------------------------

    async def measure(self, prepared: Prepared) -> Finished:
        """Step after step until the search, a limit or a signal ends it; then the answer and the exit code."""
        error: LoadgenError | None = None
        stop: Stop
        steps = Steps(
            self.setting,
            prepared,
            log=self.journal.log(),
            budget=self.budget,
            control=self.control,
            on_record=self._ended,
            seats=self.seats,
        )
        try:
            async with steps:
                while True:
                    decision = self._decide()
                    if isinstance(decision, Stop):
                        stop = decision
                        break
                    await self._step(steps, decision)
                    host.release_memory()  # the step's rows
                    self.remote = steps.remote
                    await self._recover(prepared)
        except LoadgenError as fault:  # the log cannot be written
            error = fault
            stop = Stop("interrupted", None, None, None, f"stopped by a fault: {fault.message}")
        return self.finish(stop, error)

    async def _recover(self, prepared: Prepared) -> None:
        self.preparing = anyio.CancelScope(deadline=self.budget.deadline or math.inf)
        with self.preparing:
            await self.recovery.after(
                *self.levels[-1], self.setting, prepared, self.journal, self.budget, self.watcher.waiting
            )

    def _results(self) -> list[LevelResult]:
        """What counts: a level whose server went away and came back is measured again."""
        return [result for number, result in self.levels if number not in self.recovery.again]

    async def _step(self, steps: Steps, level: NextLevel) -> None:
        config = self.config
        rising = config.rates is not None
        if config.open_loop is not None and level.rate is not None:
            config = replace(config, open_loop=replace(config.open_loop, rate=level.rate))
        number, self.step = self.step, self.step + 1
        # The first level of a climb shows the server without load: it is shorter, and not judged where it decides
        # nothing.
        climbs = config.verb == "sweep" and config.plan.levels is None and not rising
        first = climbs and level.concurrency <= 2 and all(one.verdict == "invalid" for one in self._results())
        slo = Slo() if level.check else config.slo
        rule = baseline_rule(self.rule) if first else rule_of(self.rule, level, repeats=config.plan.repeats)
        rows = ColumnBuilder(ids=False)
        looks = Looks(rule, slo, level.concurrency, rows, config.max_error_rate, rising=rising)
        plan = step_plan(
            config,
            self.workload,
            number,
            level.concurrency,
            rule,
            looks.enough,
            seed=self.setting.seed,
            request_s=self.request_s,
            most_in_flight=self.most_in_flight,
        )

        def started(progress: Progress) -> None:
            self.watcher.step_started(
                progress,
                level.why,
                lambda: rule.share_done(progress.concurrency, progress.measured_done, progress.window_s),
            )

        tokens = tokens_of(self.workload, steps.prepared)
        workers = workers_for(config, level.concurrency, self.request_s, tokens)
        try:
            async with self.server.during(number) as seen:
                observation, whole = await steps.measure(
                    plan, rows, workers, events=looks.needs_events, on_progress=started
                )
        finally:
            looks.close()
        observation = replace(observation, looks=looks.planned, decided=looks.decided, cache_block=config.cache_block)
        table = whole.columns()
        promised = observation.ended == "budget" and observation.detail in self.foretold
        if promised and all_measured(observation, rule, table):
            observation = replace(observation, ended="complete", detail="")
        summary = beside_server(summarise(table, number, config.slo, observation), table, seen)
        self.request_s = self._e2e_s(summary)
        verdict = judge(summary, slo, max_error_rate=config.max_error_rate, baseline=first, looks=looks.planned)
        if rising and summary.window is not None:
            verdict = piled(verdict, looks.grew or overloaded(table, summary.window, looks.planned))
        log = self.journal.log()
        log.append_step(observation, summary, verdict)
        log.sync()
        self.levels.append((number, verdict))
        self.summaries.append(summary)
        self.watcher.step_ended(summary, verdict)

    def _e2e_s(self, summary: StepSummary) -> float:
        e2e = summary.latency.get("e2e")
        return e2e.mean.value / 1e3 if e2e is not None and e2e.mean is not None else self.request_s

    def _ended(self, record: Record) -> None:
        self.journal.outcomes[record.outcome] += 1
        self.recovery.ended(record)
        self.watcher.request_ended(record)

    def _decide(self) -> NextLevel | Stop:
        """The search's decision; what ends a run from outside comes before it."""
        config = self.config
        history = self._results()
        if self.interrupted is not None and not history:
            return Stop("interrupted", None, None, None, "interrupted before the first step")
        if config.rates is not None and not history:
            return decide_rate(history, config.rates)
        if config.open_loop is not None and not history:
            return NextLevel(0, f"{config.open_loop.process} arrivals")
        if self.interrupted is not None and history[-1].ended == "complete":
            history[-1] = replace(history[-1], ended="interrupted")
        return within_budget(history, self.budget.spent, self.foretold, self._next)

    def _next(self, history: Sequence[LevelResult]) -> NextLevel | Stop:
        """What the search itself makes of the history."""
        config = self.config
        if config.rates is not None:
            return decide_rate(history, config.rates)
        if config.open_loop is not None:
            chosen = not (config.open_loop.timed or config.open_loop.arrivals.stages)
            return settle_rate(history[-1], self.summaries[-1], has_slo=bool(config.slo), chosen=chosen)
        plan = config.plan
        if config.verb != "sweep":
            plan = replace(plan, refine=0, revisit=False, second_tries=0)
        return decide(history, plan, config.verb)

    def finish(self, stop: Stop, error: LoadgenError | None = None) -> Finished:
        """Close the log, and say what the run came to. Raises the error that ended it."""
        seconds = (time.monotonic_ns() - self.setting.zero_ns) / 1e9 - paused_s(self.manifest)
        status: Literal["complete", "interrupted", "failed"] = "complete"
        if error is not None:
            status, code = "failed", error.exit_code
        elif self.interrupted is not None:
            status, code = "interrupted", signal_code(self.interrupted)
        else:
            code = exit_code(stop, self.summaries, self._results(), has_slo=bool(self.config.slo))
        log = self.journal.log()
        calibration = load_calibration()
        most = max((s.output_throughput.value for s in self.summaries if s.output_throughput), default=0.0)
        streams = max((s.concurrency_peak or 0 for s in self.summaries), default=0)
        self.manifest["notes"] = [*self.manifest.get("notes", ()), *self.recovery.notes]
        if self.remote is not None:
            self.manifest["workers"] = with_earlier(self.manifest.get("workers"), self.remote.facts())
        self.manifest = closing_manifest(
            self.manifest,
            status=status,
            stop=stop,
            levels=self.levels,
            seconds=seconds,
            exit_code=int(code),
            error=str(error) if error else None,
            scraping=self.server.closing(),
            carries=cite(calibration, most, streams) if calibration and self.seats is None else None,
            notes=self._closing_notes(stop),
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
            dict(self.journal.outcomes),
            self.manifest,
        )

    # --- parts ------------------------------------------------------------------------------------------------------

    def _server_watch(self, found: Found) -> ServerWatch:
        return ServerWatch(self.setting, found, self.journal.log, self.control, self.budget)

    def _closing_notes(self, stop: Stop) -> list[str]:
        faults = self.setting.addresses.faults
        notes = [] if self.remote is None else [self.remote.note()]
        notes += [
            f"{address} did not always answer ({words}): its connections went to other addresses of that name"
            for address, words in faults.items()
            if address not in self.faults_told
        ]
        note = self.config.closing_note(stop, self.summaries) if self.config.closing_note else None
        where = self.journal.log().where
        before = None
        if where != "-":
            before = since_the_one_before(Path(where), self.manifest, self.summaries, self.levels)
        return [*notes, *(said for said in (note, before) if said)]

    def _targets(self) -> str:
        return " + ".join(target.display() for target in self.setting.targets)

    def cancelled(self) -> None:
        """Close the log of a run whose task was cancelled; what was in flight is lost, what had ended is in it."""
        self._failed(InterruptedRunError(None, "interrupted: its task was cancelled"))

    def _failed(self, error: LoadgenError) -> None:
        sink = self.journal.sink
        if sink is not None:
            if self.earlier is not None:  # the pause is none of the run's time, and what was lost is paid for
                self.manifest = self.earlier.gone_on(self.setting, self.started_epoch_ns, self.step, self.lost)
            status = "interrupted" if isinstance(error, InterruptedRunError) else "failed"
            sink.write_manifest({**self.manifest, "status": status, "error": str(error)})
            sink.close()
