"""One of several processes that share each step's load: what it does, told through a pipe.

It runs the same drivers as a single process, on a `Part` of the step: which requests are its own follows from its
number; when the window opens and closes it is told, a little ahead, in times of the one clock. Each record is in this
worker's own file before its slot is refilled; a summary of it goes to the process that decides. When the pipe closes it
ends at once, wherever it is: nobody is left to tell it anything.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

import anyio
import httpx

from ..errors import LoadgenError
from ..records import Prompt, Record
from ..workload.arrivals import Offsets, Schedule, parse_arrivals
from ..workload.passed import passed_workload
from ..workload.prompts import Calibration
from ..workload.tokenizer import LocalTokenizer
from .addresses import Addresses
from .budget import Budget
from .counting import ahead
from .dialects import find_dialect
from .dialects.base import RequestOptions
from .driver import run_step
from .exchange import HttpxSender, Timeouts
from .health import Watch, quiet, tune_process
from .openloop import run_open_step
from .peers import in_turn
from .pipe import LinePipe, pack
from .retry import Retry
from .step import Control, Part, StepPlan
from .transport import Access, open_client

BEAT_S = 0.05  # how often what has happened is told
LIFE_S = 0.25  # …and that nothing has


async def serve(
    source: int, sink: int, open_log: Callable[[str], Callable[[Record], None]], keeper: int | None = None
) -> None:
    """Do what comes from `source` until it ends; never returns. `open_log` is given the part file's path, and returns
    what appends a record to it. Of a worker on another machine, lines also come from `keeper`, the end of which is its
    end too."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_fatal)
    worker = _Worker(source, sink, open_log)
    if keeper is not None:
        worker.listen(keeper)
    async with anyio.create_task_group() as group:
        group.start_soon(worker.beat)
        group.start_soon(worker.work)


class _Worker:
    def __init__(self, source: int, sink: int, open_log: Callable[[str], Callable[[Record], None]]) -> None:
        self.pipe = LinePipe(source, sink, self._heard, lambda: os._exit(0))
        self.open_log = open_log
        self.task: _Task | None = None
        self.config: Mapping[str, Any] = {}
        self.zero_ns = 0
        self._timed = False  # is it known when the run began, on this machine's clock?
        self._asked: list[Mapping[str, Any]] = []
        self._news = anyio.Event()

    def listen(self, source: int) -> None:
        """Take lines from there as well."""
        self._more = LinePipe(source, os.open(os.devnull, os.O_WRONLY), self._heard, lambda: os._exit(0))

    def _heard(self, message: Any) -> None:
        if isinstance(message, dict):
            self._configure(message)
        elif message[0] == "step":
            self._asked.append(message[1])
            self._news.set()
        elif message[0] == "clock":
            self.pipe.say("clock", message[1], time.monotonic_ns())
            self.pipe.flush()
        elif message[0] == "zero":
            self.zero_ns, self._timed = message[1], True
        elif self.task is not None:
            self.task.told(message[0], message[1:])

    def _configure(self, config: Mapping[str, Any]) -> None:
        self.config = config
        if config["zero_ns"] is not None:
            self.zero_ns, self._timed = config["zero_ns"], True
        self.addresses = Addresses(unix_socket=config["access"]["unix_socket"])
        tune_process()
        try:
            self.tokenizer = LocalTokenizer(config["tokenizer"]) if config["tokenizer"] is not None else None
            count = self.tokenizer.count if self.tokenizer is not None else None
            self.workload = passed_workload(config["workload"], count)
            self.append = self.open_log(config["part"])
            self.pipe.say("ready")
        except LoadgenError as fault:
            self.pipe.say("fault", fault.message, fault.remedy)
        self.pipe.flush()

    async def work(self) -> None:
        """One step after the other."""
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            while self._asked:
                self.task = _Task(self, self._asked.pop(0))
                with self.task.over:
                    over = await self.task.run()
                self.task = None
                self.pipe.say("over", over)
                self.pipe.flush()

    async def beat(self) -> None:
        said = 0.0
        while True:
            await anyio.sleep(BEAT_S)
            now = time.monotonic()
            if self._timed and ((self.task is not None and self.task.fresh) or now - said >= LIFE_S):
                said = now
                self.tell()

    def tell(self) -> None:
        """How things stand; then, queued, what has ended. In this order nothing has ended that was not sent."""
        counters, lines = ({}, []) if self.task is None else self.task.news()
        self.pipe.say("now", time.monotonic_ns() - self.zero_ns, counters)
        for line in lines:
            self.pipe.add(line)
        self.pipe.flush()


class _Task:
    """A part of one step, from its announcement to its end."""

    def __init__(self, worker: _Worker, asked: Mapping[str, Any]) -> None:
        self.worker = worker
        config = worker.config
        self.plan = StepPlan(
            enough=lambda progress: False, **{**asked["plan"], "retry": Retry(**asked["plan"]["retry"])}
        )
        self.control = Control()
        self.budget = Budget(**asked["budget"])
        self.arrivals = asked["arrivals"]
        self.events = bool(asked["events"])
        self.over = ExitStack()  # closed with the step
        self.part = Part(self.plan, self._prompts(asked["nonce"]), self.budget, self.control)
        self.part.on_done = self._done
        self.token_log = bool(config["token_log"])
        self.fresh = False
        self._lines: list[bytes] = []
        self._phase = ""
        self._start_ns: int | None = None
        self._going = anyio.Event()

    def told(self, kind: str, args: list[Any]) -> None:
        part = self.part
        if kind == "go":
            self._start_ns = args[0]
            self._going.set()
        elif kind == "open":
            part.open_at(*args)
        elif kind == "close":
            part.close_at(*args)
        elif kind == "end":
            part.drained_s = args[2]
            part.end(args[0], args[1])
            self._going.set()
            part.wake()
        elif kind == "quit":
            self.control.quit()
            self._going.set()

    async def run(self) -> dict[str, Any]:
        worker, config, plan = self.worker, self.worker.config, self.plan
        # This process goes on in each list of addresses where the one before it leaves off.
        most = plan.concurrency or plan.most_in_flight or 1
        worker.addresses.first = sum(replace(plan, worker=one).part(most) for one in range(plan.worker))
        client = open_client(
            Access(**config["access"]),
            plan.part(most) * len(config["urls"]),
            tls=config["tls"],
            connect_timeout_s=config["timeouts"]["connect"],
            idle_timeout_s=config["timeouts"]["idle"],
            addresses=worker.addresses,
        )
        async with client:
            sender = in_turn({url: self._sender(client, url) for url in config["urls"]})
            with quiet(), Watch(client, zero_ns=worker.zero_ns) as watch:
                worker.pipe.say("set")
                worker.pipe.flush()
                await self._going.wait()

                def keep(record: Record) -> None:
                    self._keep(record)
                    watch.ended(record)

                how: dict[str, Any] = {
                    "on_record": keep,
                    "clock": time.monotonic_ns,
                    "zero_ns": worker.zero_ns,
                    "on_progress": watch.follow,
                    "start_ns": (self._start_ns or 0) + worker.zero_ns,
                    "step": self.part,
                }
                if self.arrivals is None:
                    seen = await run_step(sender, self.part.prompts, plan, **how)
                else:
                    schedule = self._schedule()
                    seen = await run_open_step(sender, self.part.prompts, plan, schedule, end_ns=schedule.end_ns, **how)
        worker.tell()
        budget = self.budget
        return {
            "not_dispatched": seen.not_dispatched,
            "left": [budget.requests, budget.tokens, budget.cost, budget.excess],
            "health": asdict(watch.health()),
            "faults": worker.addresses.faults,
        }

    def _sender(self, client: httpx.AsyncClient, url: str) -> HttpxSender:
        config = self.worker.config
        return HttpxSender(
            client,
            url,
            find_dialect(config["endpoint"]),
            RequestOptions(**config["options"]),
            zero_ns=self.worker.zero_ns,
            timeouts=Timeouts(**config["timeouts"]),
            run=config["run"],
            tokenizer=self.worker.tokenizer,
        )

    def news(self) -> tuple[dict[str, Any], list[bytes]]:
        """The counters as they are, and the summaries of what has ended since this was last asked."""
        part, progress = self.part, self.part.progress
        now = time.monotonic_ns() - self.worker.zero_ns
        if self._start_ns is not None and now >= self._start_ns:
            part.reach(max(now, progress.now_ns))  # phases pass though nothing is sent
        lines, self._lines, self.fresh = self._lines, [], False
        return {
            "measured_sent": progress.measured_sent,
            "in_flight": progress.in_flight,
            "held_back": progress.held_back,
            "passed": part.passed,
            "ended": part.ended if part.over else None,
            "detail": part.detail,
        }, lines

    def _keep(self, record: Record) -> None:
        try:
            self.worker.append(record if self.token_log else replace(record, events=None))
        except LoadgenError as fault:  # what cannot be kept is not sent any more
            if self.control.state == "go":
                self.worker.pipe.say("fault", fault.message, fault.remedy)
            self.control.drain()

    def _done(self, record: Record, start_ns: int, end_ns: int) -> None:
        self._lines.append(b'["done",%d,%d,%b]' % (start_ns, end_ns, pack(record, events=self.events)))
        self.fresh = True

    def _prompts(self, nonce: str) -> Iterator[Prompt]:
        config = self.worker.config
        calibration = Calibration.of(config["calibration"]) if config["calibration"] is not None else None
        stream = self.worker.workload.stream(
            config["seed"],
            nonce,
            calibration,
            worker=self.plan.worker,
            workers=self.plan.workers,
            context=config["context"],
        )
        return self.over.enter_context(ahead(stream, self.worker.tokenizer))

    def _schedule(self) -> Offsets:
        assert self.plan.rate is not None
        trace = self.worker.workload.trace
        if self.arrivals == "trace" and trace is not None:
            return trace.offsets(self.plan.worker, self.plan.workers)
        return Schedule(
            parse_arrivals(self.arrivals),
            self.plan.rate,
            self.worker.config["seed"],
            worker=self.plan.worker,
            workers=self.plan.workers,
        )


def _fatal(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A fault in a callback would otherwise be told, and gone on from, as if nothing had been."""
    loop.default_exception_handler(context)
    os._exit(1)
