"""What `run` and `sweep` do alike: flags → config → run → screen → exit code."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from ..errors import Exit, UsageError
from .options import run_config
from .streams import reader_may_go
from .values import screen_width

if TYPE_CHECKING:
    from ..report.facts import RunFacts
    from ..report.text import Mark
    from ..results import StepSummary, Stop
    from ..runner import Finished, RunConfig
    from ..search.sweep import SweepPlan


def measure(verb: str, plan: SweepPlan, flags: Mapping[str, Any]) -> int:
    """Measure a URL, or the embedded simulator, and print what it came to."""
    from ..client.loop import run
    from ..runner import dry_run, execute

    urls = urls_of(flags)
    with ExitStack() as stack:
        truth: dict[str, Any] | None = None
        note = None
        if flags["simulate"] and not flags["dry_run"]:
            simulator = EmbeddedSimulator(flags)
            url, truth = stack.enter_context(simulator)
            urls = (url,)
            note = simulator.closing_note
        config = run_config(verb, plan, flags, urls=urls or ("http://127.0.0.1:8000",), simulator=truth)
        config = replace(config, closing_note=note)
        if flags["dry_run"]:
            from ..log.codec import encode

            sys.stdout.buffer.write(encode(dry_run(config)))
            return Exit.DONE
        watcher = _watcher(config, flags)
        finished: Finished
        try:
            finished = run(execute, config, watcher)
        finally:
            watcher.close()
    with reader_may_go():
        _show(finished, config, watcher, as_json=flags["as_json"])
    return finished.exit_code


def urls_of(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """What is measured: addresses, or none where it is the embedded simulator. Raises UsageError."""
    urls: tuple[str, ...] = flags["urls"]
    if flags["simulate"] and urls:
        raise UsageError("--simulate and a URL exclude each other", "leave one of the two out")
    if not flags["simulate"] and not urls:
        raise UsageError("there is nothing to measure", "give a URL, or --simulate for an embedded simulated server")
    return urls


class EmbeddedSimulator:
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

    def closing_note(self, stop: Stop, summaries: Sequence[StepSummary]) -> str | None:
        """What its computed capacity is, and whether the server itself kept up with its engine."""
        notes = (self._capacity_note(stop, summaries), self.process.lag_note())
        return "; ".join(note for note in notes if note) or None

    def _capacity_note(self, stop: Stop, summaries: Sequence[StepSummary]) -> str | None:
        """The highest throughput found beside what the simulator can carry at that step's mean lengths."""
        from ..simulator.capacity import capacity

        known = [(s.output_throughput.value, s) for s in summaries if s.output_throughput]
        value, best = max(known, key=lambda pair: pair[0], default=(0.0, None))
        if best is None or not best.input_tokens_mean or not best.output_tokens_mean:
            return None
        if stop.peak_throughput is not None:
            value = stop.peak_throughput.value
        most = capacity(self.config, best.input_tokens_mean, best.output_tokens_mean)
        return (
            f"the simulator's computed capacity for this workload is {most:,.0f} output tokens/s;"
            f" {100 * value / most:.0f} % of it was measured"
        )


def _watcher(config: RunConfig, flags: Mapping[str, Any]) -> Any:
    from ..report.live import Lines, Terminal

    if flags["quiet"] or flags["as_json"]:
        return Lines(config.slo, lambda text: None)
    if sys.stderr.isatty():
        from rich.console import Console

        console = Console(stderr=True)
        if console.is_terminal and not console.is_dumb_terminal:
            return Terminal(config.slo, console)
    return Lines(config.slo, lambda text: click.echo(text, err=True), screen_width(err=True))


def _show(finished: Finished, config: RunConfig, watcher: Any, *, as_json: bool) -> None:
    """The report of the run, from what it kept; beside a log on stdout it goes to stderr."""
    from ..log.codec import encode
    from ..report.jsonout import report_object
    from ..report.live import Terminal
    from ..report.text import render
    from .diagnose import cause_of

    facts, marks = told(finished)
    beside = config.output == "-"
    if as_json:
        text = encode(report_object(facts, finished.summaries, marks, finished.stop, config.slo)).decode()
    else:
        # On a terminal head and table stand there already, each line written as it came.
        notes = watcher.notes if isinstance(watcher, Terminal) and sys.stdout.isatty() else None
        if notes is not None:
            facts = replace(facts, notes=tuple(note for note in facts.notes if note not in notes))
        if config.verb == "sweep" and not beside:
            facts = replace(facts, cause=cause_of(finished.where, facts.requests))
        width = screen_width(err=beside)
        text = render(facts, finished.summaries, marks, finished.stop, config.slo, width=width, rest=notes is not None)
        text = text if notes is None else "\n" + text
    click.echo(text.rstrip("\n"), err=beside)


def told(finished: Finished) -> tuple[RunFacts, dict[int, Mark]]:
    """What a report says of a run besides its steps, and the verdict on each step by its number."""
    from ..records import FAILED_OUTCOMES
    from ..report.facts import facts_of
    from ..report.text import Mark

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
    return facts, marks
