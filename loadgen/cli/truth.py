"""`loadgen simulate --truth`: the simulated engine's true answers, without a server."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import click

from ..errors import UsageError

if TYPE_CHECKING:
    from ..results import Objective as Asked
    from ..simulator.engine import EngineConfig
    from ..simulator.engine.virtual import Mix
    from ..simulator.oracle import Crossing, Effort, Exact, Level, Loop, Metric
    from ..workload.prompts import LengthRange

METRICS = ("ttft", "tpot", "itl", "e2e")


class Rates(click.ParamType[tuple[float, ...]]):
    """A list of request rates: `0.5,1,2`, rising, each above 0."""

    name = "rates"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        try:
            rates = tuple(float(word) for word in re.split(r"[,\s]+", str(value).strip()) if word)
        except ValueError:
            rates = ()
        rising = all(a < b for a, b in itertools.pairwise((0.0, *rates)))
        if not rates or not rising or not math.isfinite(rates[-1]):
            self.fail(f"{value!r} is no list of rates: write rising numbers above 0, as in 0.5,1,2", param, ctx)
        return rates


def print_truth(config: EngineConfig, asked: Mapping[str, Any]) -> None:
    """Figures of each load and the crossing of each objective, each with its standard error."""
    from ..simulator.oracle import Effort, at, saturation

    mix = _mix(asked, config)
    objectives = _objectives(asked["slo"])
    effort = Effort(replications=asked["replications"] or 8, requests=asked["requests"] or 4000, seed=config.seed)
    if asked["levels"] and asked["rates"]:
        raise UsageError("--levels and --rates exclude each other", "leave one of the two out")
    loop: Loop = "open" if asked["rates"] else "closed"
    loads = asked["rates"] or asked["levels"] or _doubling(config.max_batch)
    levels = []
    for load in loads:
        click.echo(f"{load:g} {_unit(loop)} …", err=True)
        levels.append(at(config, mix, load, loop=loop, effort=effort))
    most = saturation(config, mix, effort=effort)
    crossings = {}
    for name, objective in objectives.items():
        click.echo(f"where {name} breaks …", err=True)
        crossings[name] = _crossing(config, mix, objective, levels, loop, effort)
    if asked["as_json"]:
        import orjson

        found = _as_json(config, mix, loop, effort, levels, most, crossings)
        click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    else:
        click.echo(_table(loop, effort, levels, most, crossings))


def _crossing(
    config: EngineConfig, mix: Mix, asked: Asked, levels: Sequence[Level], loop: Loop, effort: Effort
) -> Crossing:
    from ..simulator.oracle import Objective, crossing

    assert asked.percentile is not None
    objective = Objective(cast("Metric", asked.metric), asked.limit_ms, asked.percentile / 100)
    return crossing(config, mix, objective, levels[0].load, levels[-1].load, loop=loop, effort=effort)


def _mix(asked: Mapping[str, Any], config: EngineConfig) -> Mix:
    from ..simulator.engine.virtual import Mix
    from ..workload.plain import DEFAULT_INPUT_LEN, DEFAULT_OUTPUT_LEN
    from ..workload.prompts import parse_length

    ranges = [
        parse_length(asked[name], f"--{name.replace('_', '-')}") if asked[name] else default
        for name, default in (("input_len", DEFAULT_INPUT_LEN), ("output_len", DEFAULT_OUTPUT_LEN))
    ]
    longest = min(config.context_length, config.blocks * config.block_tokens)
    if sum(one.high for one in ranges) > longest:
        raise UsageError(
            f"requests of up to {ranges[0].high} + {ranges[1].high} tokens exceed what this engine holds, {longest:,}",
            "shorten --input-len or --output-len",
        )
    (prompt, in_spread), (output, out_spread) = map(_mean_and_spread, ranges)
    return Mix(prompt, output, spread=out_spread, input_spread=in_spread)


def _mean_and_spread(lengths: LengthRange) -> tuple[float, float]:
    """Whole numbers from low to high, all equally likely: what is drawn within half a token beyond, and rounded."""
    mean = (lengths.low + lengths.high) / 2
    return mean, 0.0 if lengths.low == lengths.high else (lengths.high - lengths.low + 1) / 2 / mean


def _objectives(texts: Sequence[str]) -> dict[str, Asked]:
    """By name; a bound of each request is its percentile at the attainment."""
    from dataclasses import replace

    from ..slo import objective_name, parse_slo

    if not texts:
        return {}
    slo = parse_slo(texts)
    found = {}
    for objective in slo.objectives:
        if objective.metric not in METRICS:
            raise UsageError(f"the engine knows no {objective.metric}", f"choose one of {', '.join(METRICS)}")
        name = f"{objective_name(objective)} {objective.limit_ms:g} ms"
        if objective.percentile is None:
            objective = replace(objective, percentile=100 * slo.attainment)
        found[name] = objective
    return found


def _doubling(batch: int) -> tuple[int, ...]:
    return tuple(1 << power for power in range(max(1, math.ceil(math.log2(2 * batch))) + 1))


def _unit(loop: Loop) -> str:
    return "in flight" if loop == "closed" else "requests/s"


def _table(loop: Loop, effort: Effort, levels: Sequence[Level], most: Exact, crossings: Mapping[str, Crossing]) -> str:
    """Columns of value ± standard error."""
    names = ["throughput", *(f"{metric}_{at}_ms" for metric in METRICS for at in ("p50", "p95"))]
    rows = [[_unit(loop), "output tok/s", *(name.replace("_ms", "").replace("_", " ") for name in names[1:])]]
    for level in levels:
        figures = {"throughput": level.throughput, **level.figures}
        rows.append([f"{level.load:g}", *(_shown(figures[name]) if name in figures else "-" for name in names)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.append("")
    lines.append(f"saturated  {_shown(most)} output tokens/s")
    for name, found in crossings.items():
        if found.load == 0:
            told = f"not even at {min(found.met):g} {_unit(loop)}"
        elif math.isinf(found.load):
            told = f"also at {max(found.met):g} {_unit(loop)}"
        else:
            told = f"up to {_shown_pair(found.load, found.error)} {_unit(loop)}"
        lines.append(f"{name}  holds {told}")
    lines.append(
        f"in ms; ± is the standard error of {effort.replications} runs of {effort.requests:,} requests and more"
    )
    return "\n".join(lines)


def _shown(exact: Exact) -> str:
    return _shown_pair(exact.value, exact.error)


def _shown_pair(value: float, error: float) -> str:
    """To the second digit of the error, at most four decimals."""
    digits = 1 if error <= 0 else min(4, max(0, 1 - math.floor(math.log10(error))))
    return f"{value:,.{digits}f} ±{error:,.{digits}f}"


def _as_json(
    config: EngineConfig,
    mix: Mix,
    loop: Loop,
    effort: Effort,
    levels: Sequence[Level],
    most: Exact,
    crossings: Mapping[str, Crossing],
) -> dict[str, Any]:
    """Infinite and undefined numbers become null."""
    return {
        "engine": asdict(config),
        "workload": asdict(mix),
        "loop": loop,
        "effort": asdict(effort),
        "saturated_output_throughput": asdict(most),
        "levels": [
            {
                "load": level.load,
                "requests": level.requests,
                "output_throughput": asdict(level.throughput),
                **{name: asdict(exact) for name, exact in level.figures.items()},
            }
            for level in levels
        ],
        "crossings": {
            name: {
                "load": found.load,
                "error": found.error,
                "holds": "always" if math.isinf(found.load) else "never" if found.load == 0 else "up to load",
                "probability": {f"{load:g}": asdict(exact) for load, exact in sorted(found.met.items())},
            }
            for name, found in crossings.items()
        },
    }
