"""`loadgen plan --run`: a measured run beside the hardware's ceilings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ..errors import Exit, LogError, UsageError
from .streams import reader_may_go
from .values import screen_width

if TYPE_CHECKING:
    from ..hardware.deployment import Deployment
    from ..hardware.model import Model
    from ..simulator.engine import Machine

_HARDWARE = ("gpu", "memory", "bandwidth", "peak", "tp", "pp", "ep", "kv_bits")


def print_beside(
    given: Mapping[str, Any],
    model_of: Callable[[dict[str, Any]], Model],
    deployment_of: Callable[[dict[str, Any]], Deployment],
) -> int:
    """The plan for the run's own lengths, and under it the run. Exit 1 where no load holds the objectives."""
    import orjson

    from ..analysis import summarise_run
    from ..analysis.ceiling import ceilings
    from ..analysis.planning import plan as planned
    from ..log.quick import read_columns
    from ..log.store import open_run
    from ..report.ceiling import ceiling_lines, ceiling_object
    from ..report.memory_chart import write_memory_chart
    from ..report.planned import as_json, render
    from ..slo import parse_slo
    from .report import manifest_slo, marks_of

    if wrong := next((name for name in ("workload", "input_len", "output_len") if given[name] is not None), None):
        raise UsageError(f"--{wrong.replace('_', '-')} is the run's own with --run", "leave it out")
    run = open_run(given["run_path"])
    table = read_columns(run).without(run.uncounted)
    slo = parse_slo(given["slo"]) if given["slo"] else manifest_slo(run.manifest)
    summaries = summarise_run(table, slo, run.observations, run.server, uncounted=run.uncounted)
    model, on = _machine(run.manifest or {}, dict(given), model_of, deployment_of)
    marks = marks_of(run, summaries, slo, again=bool(given["slo"]))
    found = ceilings(model, on, summaries, {step: mark.verdict for step, mark in marks.items()}, has_slo=bool(slo))
    if found is None:
        raise LogError(
            f"{run.source} has no request that went well and whose tokens are known", "give a run that measured one"
        )
    result = planned(model, on, _lengths(table, found.lengths))
    if given["plot"]:
        from pathlib import Path

        write_memory_chart(result, Path(given["plot"]))
    told = found, run.source, given["rps"], given["price"]
    with reader_may_go():
        if given["as_json"]:
            click.echo(orjson.dumps({**as_json(result), "beside": ceiling_object(*told)}, option=orjson.OPT_INDENT_2))
        else:
            width = screen_width()
            click.echo("\n".join([render(result, width), "", *ceiling_lines(*told, width=width)]))
    return Exit.DONE if found.best is not None else Exit.NO


def _lengths(table: Any, means: Any) -> Any:
    """The run's measured lengths with their 99th percentiles."""
    from ..analysis.metrics import input_tokens
    from ..analysis.planning import Lengths
    from ..analysis.window import has_outcome, is_phase
    from ..log.columns import NULL

    ok = table.where(is_phase(table, "measured") & has_outcome(table, "ok"))
    inputs, outputs = input_tokens(ok), ok.output_count
    known = (inputs != NULL) & (outputs != NULL)
    return Lengths.of(inputs[known], outputs[known]) if known.any() else means


def _machine(
    manifest: Mapping[str, Any],
    given: dict[str, Any],
    model_of: Callable[[dict[str, Any]], Model],
    deployment_of: Callable[[dict[str, Any]], Deployment],
) -> tuple[Model, Deployment]:
    """Model and hardware: as typed, else as the run tells them."""
    typed_model = any(given[name] is not None for name in ("model", "config_file", "params"))
    context = click.get_current_context()
    typed = {name for name in given if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
    machine = _simulated(manifest)
    if machine is not None and not typed_model and not typed & {*_HARDWARE}:
        tokens, most = _batch(manifest)
        return machine.model, replace(machine.on, batch_tokens=tokens, max_sequences=most)
    described = manifest.get("describe")
    described = described if isinstance(described, Mapping) else {}
    server = manifest.get("server")
    server = server if isinstance(server, Mapping) else {}
    if not typed_model:
        name = server.get("model") or described.get("model")
        if not name:
            raise UsageError(
                "the run does not tell its model", "give --model NAME (--list shows them) or --config FILE"
            )
        given["model"] = str(name)
    if given["gpu"] is None and not {"memory", "bandwidth", "peak"} <= typed:
        gpu = next((described[key] for key in ("gpu", "GPU", "accelerator") if key in described), None)
        if gpu is None:
            raise UsageError("the run does not tell its GPU", "give --gpu NAME (--list shows them)")
        given["gpu"] = str(gpu)
    return model_of(given), deployment_of(given)


def _simulated(manifest: Mapping[str, Any]) -> Machine | None:
    from ..simulator.engine import config_of

    engine = (manifest.get("simulator") or {}).get("engine") if isinstance(manifest.get("simulator"), Mapping) else None
    try:
        return config_of(engine).machine if isinstance(engine, Mapping) else None
    except (TypeError, KeyError, UsageError):
        return None


def _batch(manifest: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens a step and sequences at once, for which the engine reserves memory."""
    engine = manifest["simulator"]["engine"]
    tokens = engine.get("max_batched_tokens") or engine.get("max_prefill_tokens") or 8192
    most = engine.get("max_batch") or 256
    return min(tokens, most * engine.get("context_length", tokens)), most
