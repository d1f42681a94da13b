"""`loadgen simulate --like`: the step model fitted to a measured run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ..errors import LogError, UsageError
from .values import screen_width

if TYPE_CHECKING:
    from ..experiments.fitted import MeasuredLevel
    from ..log.columns import Columns
    from ..log.store import Run
    from ..simulator.engine import EngineConfig

_FITTED = ("overhead_ms", "step_ms", "decode_ms", "context_us", "prefill_ms", "noise_sigma")
LEAST_REQUESTS = 10  # of a level, to fit to it
_TRUTH = ("rates", "slo", "input_len", "output_len", "requests", "replications")


def print_like(path: str, named: Mapping[str, str | None], given: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Fit, then print the table. LogError where the run has no closed-loop level to fit to."""
    import orjson

    from ..experiments.fitted import fit
    from ..log.quick import read_columns
    from ..log.store import open_run
    from ..report.fitted import fit_lines, fit_object

    if wrong := next((name for name, value in named.items() if value), None):
        raise UsageError(f"--{wrong} is an engine of its own, and --like fits one", f"leave --{wrong} out")
    if wrong := next((name for name in _FITTED if name in given), None):
        raise UsageError(f"--{wrong.replace('_', '-')} is what --like fits", "leave it out")
    if wrong := next((name for name in _TRUTH if asked[name]), None):
        raise UsageError(f"--{wrong.replace('_', '-')} goes with --truth only", "leave it out: the run says it")
    run = open_run(path)
    table = read_columns(run).without(run.uncounted)
    levels = _levels(run, table)
    if not levels:
        raise LogError(
            f"{run.source} has no closed-loop load whose requests have a TTFT, a TPOT and their tokens",
            "give a run made with -c or --levels",
        )
    like, notes = _like(run, given, max(level.concurrency for level in levels))
    highest = max(level.concurrency for level in levels)
    loads = asked["levels"] or (round(1.5 * highest), 2 * highest)
    found = fit(levels, like, loads, told=lambda text: click.echo(f"… fitting: {text}", err=True))
    if asked["as_json"]:
        click.echo(orjson.dumps(fit_object(found, run.source, notes), option=orjson.OPT_INDENT_2))
    else:
        click.echo("\n".join(fit_lines(found, run.source, notes, screen_width())))


def _levels(run: Run, table: Columns) -> list[MeasuredLevel]:
    """The closed-loop loads; of one measured twice, the later."""
    import numpy as np

    from ..analysis import metrics, summarise_run
    from ..analysis.window import has_outcome, is_phase
    from ..experiments.fitted import MeasuredLevel, figures_of
    from ..log.columns import NULL
    from ..results import Slo

    found: dict[int, MeasuredLevel] = {}
    for summary in summarise_run(table, Slo(), run.observations, run.server, uncounted=run.uncounted):
        if summary.rate is not None or summary.concurrency < 1 or summary.output_throughput is None:
            continue
        mine = table.where((table.step == summary.step) & is_phase(table, "measured") & has_outcome(table, "ok"))
        inputs, ttft, tpot = metrics.input_tokens(mine), metrics.ttft(mine), metrics.tpot(mine)
        known = (inputs != NULL) & (mine.output_count != NULL) & np.isfinite(ttft) & np.isfinite(tpot)
        if known.sum() < LEAST_REQUESTS:
            continue
        mine = mine.where(known)
        found[summary.concurrency] = MeasuredLevel(
            summary.concurrency, figures_of(summary), inputs[known], mine.output_count, ttft[known], tpot[known]
        )
    return list(found.values())


def _like(run: Run, given: Mapping[str, Any], highest: int) -> tuple[EngineConfig, list[str]]:
    """What is not fitted: as typed, else as the server told, else without a limit."""
    from ..simulator.configured import configured

    server = (run.manifest or {}).get("server")
    told = server.get("flags") if isinstance(server, Mapping) else None
    flags = told if isinstance(told, Mapping) else {}
    simulator = (run.manifest or {}).get("simulator")
    engine = simulator.get("engine") if isinstance(simulator, Mapping) else None
    flags = {**flags, **(engine if isinstance(engine, Mapping) else {})}
    settings: dict[str, Any] = {"context_length": 1 << 24}
    notes = []
    for name, other in (
        ("max_batch", "max_num_seqs"),
        ("max_prefill_tokens", "max_num_batched_tokens"),
        ("max_batched_tokens", "max_num_batched_tokens"),
        ("kv_blocks", "num_gpu_blocks"),
        ("block_tokens", "block_size"),
    ):
        value = given.get(name, flags.get(name, flags.get(other)))
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            settings[name] = value
        elif name == "max_batch":
            settings[name] = max(256, 4 * highest)
            notes.append("the server did not tell how many requests it runs at once: no limit is taken (--max-batch)")
    settings |= {name: value for name, value in given.items() if name not in settings and name != "seed"}
    if settings.get("max_batched_tokens", 1 << 30) <= settings["max_batch"]:
        del settings["max_batched_tokens"]
    return configured(settings), notes
