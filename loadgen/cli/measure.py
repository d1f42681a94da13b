"""What `run` and `sweep` do alike: flags → config → run → screen → exit code."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..errors import Exit, UsageError
from .options import run_config

if TYPE_CHECKING:
    from ..runner import Finished, RunConfig
    from ..search.sweep import SweepPlan


def measure(verb: str, plan: SweepPlan, flags: Mapping[str, Any]) -> int:
    """Measure a URL, or the embedded simulator, and print what it came to."""
    import anyio

    from ..runner import dry_run, execute

    url = flags["url"]
    if flags["simulate"] and url:
        raise UsageError("--simulate and a URL exclude each other", "leave one of the two out")
    if not flags["simulate"] and not url:
        raise UsageError("there is nothing to measure", "give a URL, or --simulate for an embedded simulated server")
    with ExitStack() as stack:
        truth: dict[str, Any] | None = None
        if flags["simulate"] and not flags["dry_run"]:
            url, truth = stack.enter_context(_Simulator(flags))
        config = run_config(verb, plan, flags, url=url or "http://127.0.0.1:8000", simulator=truth)
        if flags["dry_run"]:
            from ..log.codec import encode

            sys.stdout.buffer.write(encode(dry_run(config)))
            return Exit.DONE
        watcher = _watcher(config, flags)
        finished: Finished
        try:
            finished = anyio.run(execute, config, watcher)
        finally:
            watcher.close()
    _show(finished, config, as_json=flags["as_json"])
    return finished.exit_code


class _Simulator:
    """The simulated server in a process of its own, with its computed capacity."""

    def __init__(self, flags: Mapping[str, Any]) -> None:
        from ..simulator.engine import EngineConfig
        from ..simulator.process import SimulatorProcess

        seed = flags["seed"]
        self.config = EngineConfig(seed=seed if seed is not None else 0)
        self.process = SimulatorProcess(self.config)

    def __enter__(self) -> tuple[str, dict[str, Any]]:
        self.process.start()
        return self.process.url, {"engine": asdict(self.config)}

    def __exit__(self, *_: object) -> None:
        self.process.stop()


def _watcher(config: RunConfig, flags: Mapping[str, Any]) -> Any:
    from ..report.live import Lines, Terminal

    if flags["quiet"] or flags["as_json"]:
        return Lines(config.slo, lambda text: None)
    if sys.stderr.isatty():
        from rich.console import Console

        console = Console(stderr=True)
        if console.is_terminal and not console.is_dumb_terminal:
            return Terminal(config.slo, console)
    return Lines(config.slo, lambda text: click.echo(text, err=True))


def _show(finished: Finished, config: RunConfig, *, as_json: bool) -> None:
    """The report of the run, from what it kept; beside a log on stdout it goes to stderr."""
    from ..log.codec import encode
    from ..records import FAILED_OUTCOMES
    from ..report.facts import facts_of
    from ..report.jsonout import report_object
    from ..report.text import Mark, render

    marks = {
        summary.step: Mark(level.verdict, level.broke)
        for summary, level in zip(finished.summaries, finished.levels, strict=True)
    }
    facts = facts_of(
        finished.manifest,
        source=finished.where,
        status=finished.status,
        requests=sum(finished.outcomes.values()),
        failed=sum(n for outcome, n in finished.outcomes.items() if outcome in FAILED_OUTCOMES),
    )
    beside = config.output == "-"
    if as_json:
        text = encode(report_object(facts, finished.summaries, marks, finished.stop, config.slo)).decode()
    else:
        text = render(facts, finished.summaries, marks, finished.stop, config.slo)
    click.echo(text.rstrip("\n"), err=beside)
