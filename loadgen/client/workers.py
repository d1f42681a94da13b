"""The processes of a run that share its load: started, told, looked after and ended. What they do is `worker`, what is
decided for them `shared`.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import anyio
import orjson

from ..errors import LoadgenError
from ..records import Record
from ..results import Observation
from ..workload.arrivals import Offsets
from ..workload.passed import workload_object
from ..workload.plain import PlainWorkload
from ..workload.prompts import Calibration
from .budget import Budget
from .dialects.base import RequestOptions
from .exchange import Timeouts
from .pipe import LinePipe
from .processes import COMMAND, LocalProcess
from .shared import Shared, Worker
from .step import Control, Progress, StepPlan
from .transport import Access

START_S = 60.0  # until a process must have started; a slow disk's imports take their time


def configuration(
    urls: Sequence[str],
    endpoint: str,
    *,
    access: Access,
    options: RequestOptions,
    timeouts: Timeouts,
    workload: PlainWorkload,
    calibration: Calibration | None,
    seed: int,
    run: str,
    token_log: bool = True,
    tokenizer: str | None = None,
    context: int | None = None,
) -> dict[str, Any]:
    """What a worker needs to know of the run, as JSON has it. It may hold secrets."""
    return {
        "urls": list(urls),
        "endpoint": endpoint,
        "tls": any(url.startswith("https") for url in urls) or access.proxy is not None,
        "access": asdict(access),
        "options": asdict(options),
        "timeouts": asdict(timeouts),
        "workload": workload_object(workload),
        "calibration": None if calibration is None else asdict(calibration),
        "seed": seed,
        "run": run,
        "token_log": token_log,
        "tokenizer": tokenizer,
        "context": context,
    }


class Fleet:
    """The workers of a run. `configuration` is what each needs to know, but for its number and its part file's path,
    which `part_of` gives; it may hold secrets, and goes nowhere but through the pipe. Use as a context manager."""

    hint = "measure with --workers 1, or see whether this machine has the memory and processes to spare"

    def __init__(self, configuration: Mapping[str, Any], part_of: Callable[[int], str], *, zero_ns: int) -> None:
        self._configuration = configuration
        self._part_of = part_of
        self._zero = zero_ns
        self.faults: dict[str, str] = {}  # of addresses, see `Addresses`
        self._workers: list[Worker] = []
        self._shared: Shared | None = None

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        """End every worker: each ends by itself when its pipe closes, or is killed."""
        self._hang_up()
        end = time.monotonic() + 1.0
        for process in self.processes:
            while process.poll() is None and time.monotonic() < end:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.005)
            process.close()

    def _hang_up(self) -> None:
        for worker in self._workers:
            if worker.pipe is not None:
                worker.pipe.close()

    @property
    def processes(self) -> list[LocalProcess]:
        """Those of this machine."""
        return [worker.process for worker in self._workers if isinstance(worker.process, LocalProcess)]

    @property
    def parts(self) -> list[str]:
        """The workers' files, of those that were started."""
        return [self._part_of(worker.number) for worker in self._workers]

    def now(self) -> int:
        return time.monotonic_ns() - self._zero

    async def grow(self, n: int) -> None:
        """Have at least `n` workers, started and configured. Raises LoadgenError where one does not start."""
        new = [Worker(number, self.now()) for number in range(len(self._workers), n)]
        self._workers += new
        await self._start(new)
        with anyio.move_on_after(START_S):
            while not all(worker.ready or worker.lost or worker.faults for worker in self._workers):  # noqa: ASYNC110
                await anyio.sleep(0.01)
        for worker in self._workers:
            if worker.faults:
                raise worker.faults[0]
            if not worker.ready:
                await self._explain(worker)
                raise LoadgenError(
                    f"{worker.lost or f'{worker.called(n)} did not start within {START_S:g} s'}", self.hint
                )

    async def _start(self, workers: Sequence[Worker]) -> None:
        """Give each a process and a pipe to it, and tell it what it is to know. Raises LoadgenError."""
        for worker in workers:
            source, their_sink = os.pipe()
            their_source, sink = os.pipe()
            said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
            process = subprocess.Popen(  # noqa: S603, ASYNC220 - our own interpreter and module; it takes no time
                COMMAND, stdin=their_source, stdout=their_sink, stderr=said, start_new_session=True
            )
            os.close(their_source)
            os.close(their_sink)
            worker.process = LocalProcess(process, said)
            pipe = self._joined(worker, source, sink)
            settings = {**self._configuration, "zero_ns": self._zero, "part": self._part_of(worker.number)}
            pipe.add(orjson.dumps(settings))
            pipe.flush()

    def _joined(self, worker: Worker, source: int, sink: int) -> LinePipe:
        worker.pipe = LinePipe(source, sink, lambda m: self._heard(worker, m), lambda: self._gone(worker))
        return worker.pipe

    async def _explain(self, worker: Worker) -> None:
        """Find out more of how a worker was lost, where that is not known at once."""

    async def measure(
        self,
        plan: StepPlan,
        workers: int,
        *,
        nonce: str,
        on_record: Callable[[Record], None],
        budget: Budget | None = None,
        control: Control | None = None,
        schedule: Offsets | None = None,
        events: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
        on_fault: Callable[[LoadgenError], None] = lambda fault: None,
    ) -> Observation:
        """Run one step, shared by the first `workers` of the fleet, to its end, and return what was seen.

        `nonce` is that of the step's prompts. `schedule` (the whole one) makes it an open loop. `on_record` gets each
        request as it has ended, when it is in its worker's file, with its events only if `events`. `on_fault` gets what
        a worker could not write, which voids the step. The rest is as in `driver.run_step`.
        """
        team = self._workers[:workers]
        shared = Shared(team, plan, schedule, budget or Budget(), control or Control(), self.now, on_record, on_fault)
        if on_progress is not None:
            on_progress(shared.step.progress)
        self._shared = shared
        shared.control.on_quit.append(shared.quit)
        try:
            return await shared.run(nonce, events)
        finally:
            for worker in team:
                self.faults.update(worker.over["faults"] if worker.over is not None else {})
            shared.control.on_quit.remove(shared.quit)
            self._shared = None

    def _heard(self, worker: Worker, message: Any) -> None:
        kind = message[0]
        if kind == "now":
            worker.beat_ns = max(worker.beat_ns, message[1])
        elif kind == "ready":
            worker.ready = True
            worker.beat_ns = self.now()  # it was started long ago, and its first beat is still to come
        elif kind == "fault":
            worker.faults.append(LoadgenError(*message[1:]))
        if self._shared is not None and worker in self._shared.team:
            self._shared.heard(worker, message)

    def _gone(self, worker: Worker) -> None:
        """The pipe has ended, and with it the process."""
        if not worker.lost:
            worker.lost = f"{worker.called(len(self._workers))} {worker.how()}"
        if self._shared is not None:
            self._shared.changed()
