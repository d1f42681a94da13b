"""`loadgen workloads`: the definitions of what is sent, those that come with the program and one's own."""

from __future__ import annotations

import csv
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import Exit, UsageError
from .values import Whole, screen_width

if TYPE_CHECKING:
    from ..workload.check import Checked
    from ..workload.definition import Workload

EPILOG = """\
\b
Examples:
  loadgen workloads list
  loadgen workloads show sharegpt-first-turn
  loadgen workloads sample sharegpt-first-turn -n 1000 > lengths.csv
  loadgen workloads check mine.toml
  loadgen sweep http://localhost:8000 -w sharegpt-first-turn
"""

_JSON = click.option("--json", "as_json", is_flag=True, help="As JSON.")
_NAME = click.argument("name", metavar="NAME|FILE")
_TOTAL = click.option(
    "--max-total-len", type=Whole(2), metavar="N", help="Draw again what has more tokens, input and output together."
)
POINTS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


@click.group(epilog=EPILOG)
def workloads() -> None:
    """List, show, sample and check the definitions that --workload takes."""


@workloads.command("list")
@_JSON
def list_(as_json: bool) -> int:
    """List the workloads that come with the program."""
    from ..report.numbers import shortened
    from ..workload.library import load_workload, names

    found = [load_workload(name) for name in names()]
    if as_json:
        _write([_object(workload, quantiles=False) for workload in found])
        return Exit.DONE
    wide = max(len(workload.name) for workload in found)
    click.echo(f"{'workload':<{wide}}  {'in p50':>8}  {'out p50':>8}  licence and source")
    for workload in found:
        inputs, outputs = (workload.lengths.figures(side).p50 for side in ("input", "output"))
        licence = workload.licence.partition(" (")[0].partition(";")[0]
        whose = " · ".join(part for part in (licence, workload.source) if part)
        line = f"{workload.name:<{wide}}  {inputs:>8,.0f}  {outputs:>8,.0f}  "
        click.echo(line + (shortened(whose, screen_width() - len(line)) if sys.stdout.isatty() else whose))
    return Exit.DONE


@workloads.command()
@_NAME
@_TOTAL
@_JSON
def show(name: str, max_total_len: int | None, as_json: bool) -> int:
    """Show all there is to know of a workload."""
    workload = _load(name, max_total_len)
    if as_json:
        _write(_object(workload, quantiles=True))
        return Exit.DONE
    rows = [
        ("workload", workload.name),
        ("source", workload.source),
        ("attribution", workload.attribution),
        ("licence", workload.licence),
        ("tokenizer", workload.tokenizer),
        ("input", workload.lengths.source.text("input")),
        ("output", workload.lengths.source.text("output")),
        ("at most", f"{workload.lengths.most_total:,.0f} tokens, input and output together"),
        ("refused", f"{100 * workload.lengths.refused:.2g} % of draws, by the limits" if _refuses(workload) else ""),
        ("arrivals", str(workload.arrivals or "")),
        ("sessions", str(workload.sessions or "")),
        ("sharing", str(workload.sharing or "")),
        ("objectives", ", ".join(workload.slo)),
        ("measured on", f"{workload.reference_n:,} requests" if workload.reference_n else ""),
        ("hash", workload.hash),
    ]
    rows += [("" if i else "known faults", note) for i, note in enumerate(workload.notes)]
    for label, value in rows:
        if value:
            click.echo(f"{label:<14}{value}")
    click.echo("\n" + f"{'tokens':<14}{'mean':>11}" + "".join(f"{f'p{100 * p:g}':>10}" for p in POINTS))
    for side, (mean, points) in _quantiles(workload).items():
        click.echo(f"{side:<14}{mean:>11,.1f}" + "".join(f"{value:>10,}" for value in points))
    return Exit.DONE


@workloads.command()
@_NAME
@click.option("-n", "count", type=Whole(1, 10_000_000), default=1000, show_default=True, metavar="N", help="Requests.")
@click.option("--seed", type=Whole(0), default=0, show_default=True, metavar="N", help="As of a run.")
@_TOTAL
@click.option("--csv", "as_csv", is_flag=True, help="As CSV, which it is anyway.")
@click.option("--json", "as_json", is_flag=True, help="As JSON lines instead of CSV.")
def sample(name: str, count: int, seed: int, max_total_len: int | None, as_csv: bool, as_json: bool) -> int:
    """Print the lengths of a run's first N requests: of sessions, their first turns."""
    from ..workload.lengths import BLOCK

    if as_csv and as_json:
        raise UsageError("--csv and --json exclude each other", "leave one of the two out")
    workload = _load(name, max_total_len)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if not as_json:
        writer.writerow(["number", "input_tokens", "output_tokens"])
    for first in range(0, count, BLOCK):
        inputs, outputs, _ = workload.lengths.block(seed, first // BLOCK)
        rows = zip(range(first, min(count, first + BLOCK)), inputs.tolist(), outputs.tolist(), strict=False)
        if not as_json:
            writer.writerows(rows)
            continue
        for number, one, other in rows:
            sys.stdout.write(f'{{"number":{number},"input_tokens":{one},"output_tokens":{other}}}\n')
    sys.stdout.flush()
    return Exit.DONE


@workloads.command()
@_NAME
@_TOTAL
@click.option(
    "-n", "draws", type=Whole(1000, 10_000_000), default=100_000, show_default=True, metavar="N", help="Draws."
)
@_JSON
def check(name: str, max_total_len: int | None, draws: int, as_json: bool) -> int:
    """Check a definition, and that what it draws has the figures it asks for. Exit 1: it has not.

    Of a trace, say what is in it: any file that --trace takes, if its name does not end in .toml.
    """
    from ..workload.check import check as checked_of
    from ..workload.library import names
    from ..workload.paths import asked

    remedy = "give the name of a workload, a TOML file or a trace"
    if name not in names() and not name.endswith(".toml") and asked(Path(name), "file", remedy).is_file():
        return _show_trace(name, as_json=as_json)
    workload = _load(name, max_total_len)
    checked = checked_of(workload, draws)
    if as_json:
        _write({"workload": workload.name, "hash": workload.hash, **_checked_object(checked)})
    else:
        _show_check(workload, checked)
    return Exit.NO if checked.findings else Exit.DONE


def _show_trace(path: str, *, as_json: bool) -> int:
    from ..workload.traces import describe_trace

    summary = describe_trace(path)
    if as_json:
        _write({**asdict(summary), "path": str(summary.path), "rate_req_s": summary.rate})
    else:
        click.echo("\n".join(summary.lines()))
    return Exit.DONE


def _show_check(workload: Workload, checked: Checked) -> None:
    click.echo(f"{workload.name}: {checked.draws:,} draws, {100 * checked.refused:.2g} % of them refused by the limits")
    click.echo(f"{'tokens':<20}{'mean':>12}{'p50':>10}{'p90':>10}{'p99':>10}{'KS':>10}")
    for side, one in checked.sides.items():
        for label, figures in ((f"{side} asked for", one.asked), (f"{side} drawn", one.drawn)):
            row = f"{label:<20}{figures.mean:>12,.1f}{figures.p50:>10,.0f}{figures.p90:>10,.0f}{figures.p99:>10,.0f}"
            ks = "" if one.ks is None or label.endswith("for") else f"{one.ks:.4f}"
            click.echo((row + f"{ks:>10}").rstrip())
        click.echo(f"  {_BY[one.by]}")
    for finding in checked.findings:
        click.echo(f"finding   {finding}")
    if not checked.findings:
        click.echo("the draws are what is asked for")


_BY = {
    "reference": "asked for: the source's own figures",
    "formula": "asked for: by formula",
    "trial": "asked for: by draws of another seed, as limits refuse pairs",
}


def _checked_object(checked: Checked) -> dict[str, Any]:
    return {
        "draws": checked.draws,
        "refused_share": checked.refused,
        "sides": {
            side: {
                "asked": one.asked.as_object(),
                "asked_by": one.by,
                "drawn": one.drawn.as_object(),
                "ks": one.ks,
            }
            for side, one in checked.sides.items()
        },
        "findings": list(checked.findings),
    }


def _load(name: str, total: int | None) -> Workload:
    from ..workload.library import load_workload

    workload = load_workload(name, "the command")
    return workload if total is None else workload.limited(total, "--max-total-len")


def _refuses(workload: Workload) -> bool:
    return workload.lengths.refused >= 1e-4


def _quantiles(workload: Workload) -> dict[str, tuple[float, list[int]]]:
    lengths = workload.lengths
    return {
        side: (lengths.figures(side).mean, [lengths.quantile(side, p) for p in POINTS]) for side in ("input", "output")
    }


def _object(workload: Workload, *, quantiles: bool) -> dict[str, Any]:
    figures = {
        side: {"mean": round(mean, 2), **{f"p{100 * p:g}": value for p, value in zip(POINTS, points, strict=True)}}
        for side, (mean, points) in (_quantiles(workload) if quantiles else {}).items()
    }
    return {
        **workload.manifest(),
        "attribution": workload.attribution or None,
        "notes": list(workload.notes),
        "most_tokens": workload.lengths.most_total,
        "arrivals": str(workload.arrivals) if workload.arrivals is not None else None,
        "sessions": str(workload.sessions) if workload.sessions is not None else None,
        "sharing": str(workload.sharing) if workload.sharing is not None else None,
        "reference_n": workload.reference_n,
        **({"quantiles": figures} if quantiles else {}),
    }


def _write(value: Any) -> None:
    from ..log.codec import encode

    sys.stdout.buffer.write(encode(value))
    sys.stdout.flush()
