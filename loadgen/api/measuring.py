"""`await loadgen.run(…)` and `await loadgen.sweep(…)`: the verbs of the command line, from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import anyio.to_thread
import click

from ..errors import UsageError
from .keywords import RunOptions, SweepOptions, arguments
from .table import Requests, load

if TYPE_CHECKING:
    from ..results import LevelResult, Slo, StepSummary, Stop
    from ..runner import Finished, Watcher
    from ..search.sweep import SweepPlan

WIDTH = 120  # columns of the text


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to. `print(result)` shows what the command line would."""

    _finished: Finished = field(repr=False)
    _slo: Slo = field(repr=False)

    @property
    def folder(self) -> Path:
        """Where its log lies."""
        return Path(self._finished.where)

    @property
    def status(self) -> Literal["complete", "interrupted", "failed"]:
        return self._finished.status

    @property
    def exit_code(self) -> int:
        """What the command line would exit with: 0 done, 1 no level held, 3 the server cannot be measured, 4
        undecided."""
        return self._finished.exit_code

    @property
    def steps(self) -> tuple[StepSummary, ...]:
        """Each load's figures, in the order measured: `step.latency["ttft"].percentiles`, `step.output_throughput`."""
        return self._finished.summaries

    @property
    def levels(self) -> tuple[LevelResult, ...]:
        """The verdict on each load, as long as `steps`."""
        return self._finished.levels

    @property
    def stop(self) -> Stop:
        """Why it ended, and the answer: `stop.held`, `stop.broke`, `stop.sentence`."""
        return self._finished.stop

    @property
    def outcomes(self) -> Mapping[str, int]:
        """Outcome → requests, of every request sent."""
        return self._finished.outcomes

    @property
    def manifest(self) -> Mapping[str, Any]:
        return self._finished.manifest

    def report(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        from ..cli.measure import told
        from ..report.jsonout import report_object

        facts, marks = told(self._finished)
        return report_object(facts, self.steps, marks, self.stop, self._slo)

    def load(self, *, everything: bool = False) -> Requests:
        """Its request log, as `loadgen.load` reads it."""
        return load(self.folder, everything=everything)

    def __str__(self) -> str:
        from ..cli.measure import told
        from ..report.text import render

        facts, marks = told(self._finished)
        return render(facts, self.steps, marks, self.stop, self._slo, width=WIDTH).rstrip("\n")


async def run(
    *urls: str, tell: Callable[[str], None] | None = None, watcher: Watcher | None = None, **options: Unpack[RunOptions]
) -> Result:
    """Measure one load, as `loadgen run URL…` does, and return what it came to.

    `urls`: any form of the server's address; several are used in turn; none with `simulate=True`. `options`: the flags
    of the verb with underscores, listed in `loadgen.api.keywords`. `tell` gets a line as each step ends; `watcher`
    every event. The log goes into a new folder under `output` (`results`). Ends early, with its log closed, when its
    task is cancelled. Needs an asyncio loop, also one that runs already, as in a notebook.

    Raises UsageError for what cannot be meant, TargetError where the server cannot be measured, LogError where the log
    cannot be written; all are LoadgenErrors.
    """
    from ..cli.run import load_of
    from ..cli.run import run as command

    return await _measured("run", command, load_of, urls, dict(options), tell, watcher)


async def sweep(
    *urls: str,
    tell: Callable[[str], None] | None = None,
    watcher: Watcher | None = None,
    **options: Unpack[SweepOptions],
) -> Result:
    """Raise the load step by step until it stops paying or an objective breaks, as `loadgen sweep URL…` does.

    `resume=FOLDER` goes on with a sweep that was interrupted. All else is as with `run`.
    """
    from ..cli.sweep import check, load_of
    from ..cli.sweep import sweep as command

    def loads(*, resume: str | None, anyway: bool, **flags: Any) -> tuple[SweepPlan, dict[str, Any]]:
        if resume is not None:
            from ..cli.resume import taken_up

            taken = taken_up(click.get_current_context(), resume)
            if not isinstance(taken, dict):
                raise UsageError(f"the run in {resume} came to its end", "read it with loadgen.load")
            return load_of(**taken)
        if anyway:
            raise UsageError("anyway does nothing without resume", "leave it out")
        check(**flags)
        return load_of(**flags)

    return await _measured("sweep", command, loads, urls, dict(options), tell, watcher)


async def _measured(
    verb: Literal["run", "sweep"],
    command: click.Command,
    loads: Callable[..., tuple[SweepPlan, dict[str, Any]]],
    urls: tuple[str, ...],
    options: dict[str, Any],
    tell: Callable[[str], None] | None,
    watcher: Watcher | None,
) -> Result:
    from ..cli.measure import EmbeddedSimulator, urls_of
    from ..cli.options import run_config
    from ..report.live import Lines
    from ..runner import execute

    if tell is not None and watcher is not None:
        raise UsageError("tell and watcher exclude each other", "leave one of the two out")
    key = options.pop("api_key", None)
    words = arguments(command, urls, options)
    try:
        with command.make_context(verb, list(words)) as context:
            plan, flags = loads(**context.params)
            urls = urls_of(flags)
    except click.UsageError as error:
        raise UsageError(error.format_message().rstrip("."), f"loadgen {verb} --help") from None
    if flags["output"] == "-":
        raise UsageError("output is a folder here", "leave it out, or name one")
    flags |= {"api_key": key, "command": [verb, *words]}
    async with AsyncExitStack() as stack:
        truth = note = None
        if flags["simulate"]:
            simulator = EmbeddedSimulator(flags)
            stack.push(simulator.__exit__)
            url, truth = await anyio.to_thread.run_sync(simulator.__enter__)
            urls, note = (url,), simulator.closing_note
        config = run_config(verb, plan, flags, urls=urls, simulator=truth)
        config = replace(config, closing_note=note, signals=False)
        finished = await execute(config, Lines(config.slo, tell, WIDTH) if tell is not None else watcher)
    return Result(finished, config.slo)
