"""`loadgen calibrate`: what this machine carries and how wrong it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import Exit, LogError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..runner.calibrate import Stage

EPILOG = """\
\b
Examples:
  loadgen calibrate
  loadgen calibrate --quick
  loadgen calibrate -o this-machine.json
  loadgen calibrate --json | jq '.capacity.events_per_s'
"""


@click.command(epilog=EPILOG)
@click.option("-o", "--output", metavar="FILE", help="Also write the result to this file.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON instead of a table.")
@click.option("--quick", is_flag=True, help="A quarter of the time: fewer levels and shorter windows.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@click.option("--seconds", type=click.FloatRange(0.05, 10), hidden=True, help="Of each window.")
@click.option("--levels", hidden=True, help="Of smooth streams, such as 16,64.")
@click.option("--rates", hidden=True, help="Of dispatch, in requests/s, such as 100,500.")
@click.option("--servers", type=click.IntRange(1, 16), hidden=True, help="Server processes.")
def calibrate(
    output: str | None,
    as_json: bool,
    quick: bool,
    quiet: bool,
    seconds: float | None,
    levels: str | None,
    rates: str | None,
    servers: int | None,
) -> int:
    """Measure this machine itself: what load its client carries, and how wrong its figures are.

    In under a minute, against servers of its own on this machine whose every token says when it was sent: events per
    second and streams that one client process carries, the error of its token stamps and of TTFT, smooth and in
    lockstep, plain and over TLS, and how late it sends requests at a rate.

    The result is kept in ~/.cache/loadgen/calibration.json (XDG_CACHE_HOME is honoured), and later runs on this machine
    cite it. Run it on a machine that does nothing else.
    """
    import os
    from dataclasses import replace
    from pathlib import Path

    import orjson

    from ..client.loop import run
    from ..report.calibration import render
    from ..report.numbers import plural
    from ..runner.calibrate import Ground, Plan, calibrate, default_path, save
    from ..runner.calibrate.store import host_facts
    from ..simulator.truth_process import TruthServers, check_platform, cpu_siblings, place

    check_platform()
    plan = Plan()
    if quick:
        plan = replace(plan, window_s=0.6, dispatch_s=1.0, levels=(64, 256, 1024, 4096), refinements=1, checks=(64,))
    if seconds is not None:
        plan = replace(plan, window_s=seconds, dispatch_s=seconds)
    if levels is not None:
        counts = tuple(round(value) for value in _numbers("--levels", levels))
        plan = replace(plan, levels=counts, checks=counts[:1])
    if rates is not None:
        plan = replace(plan, rates=tuple(_numbers("--rates", rates)))

    paths = _places(default_path(), Path(output) if output else None, save)
    host = host_facts()  # as it is before this process keeps to its own CPUs
    usable = os.sched_getaffinity(0)
    placement = place(cpu_siblings(), servers)
    count = servers or max(1, len(placement.servers))

    def say(stage: Stage) -> None:
        if not quiet:
            click.echo(_progress(stage), err=True)

    async def measure(ground: Ground) -> dict[str, Any]:
        return await calibrate(ground, plan, host=host, on_stage=say)

    if not quiet:
        click.echo(f"calibrating against {plural(count, 'server')} on this machine, in under a minute", err=True)
    with TruthServers(count, cpus=placement.servers) as truth:
        ground = Ground(tuple(truth.urls), tuple(truth.tls_urls), truth.ca_file, apart=bool(placement.servers))
        if placement.client:
            os.sched_setaffinity(0, placement.client)
        try:
            result = run(measure, ground)
        finally:
            os.sched_setaffinity(0, usable)

    for path in paths:
        save(result, path)
    if as_json:
        click.echo(orjson.dumps(result, option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo(render(result))
        click.echo(f"\nkept in   {' · '.join(map(str, paths)) or 'no file'}")
    return Exit.DONE


def _places(cache: Path, output: Path | None, save: Callable[[None, Path], None]) -> list[Path]:
    """Where the result goes, found out before a minute is spent on it. A cache that cannot be written is no reason not
    to measure; a file that was asked for is."""
    paths = []
    try:
        save(None, cache)
        paths.append(cache)
    except LogError as error:
        click.echo(f"{error.message}; later runs will not know of this calibration", err=True)
    if output is not None:
        if output.is_dir():
            raise LogError(f"the calibration cannot be written to {output}: it is a folder", "name a file in it")
        save(None, output)
        paths.append(output)
    return paths


def _progress(stage: Stage) -> str:
    from ..runner.calibrate import StreamStage

    if not isinstance(stage, StreamStage):
        lag = stage.wire_lag
        return f"  {stage.rate:,.0f} requests/s" + (f" · late on the wire p99 {lag.p99:,.0f} µs" if lag else "")
    error = stage.stamps.all
    return (
        f"  {stage.mode}{' over TLS' if stage.tls else ''} · {stage.streams:,} streams · "
        f"{stage.events_per_s:,.0f} events/s"
        + (f" · stamp error p99 {error.p99:,.0f} µs" if error else "")
        + (f" · too much: {stage.limited_by}" if stage.limited_by else "")
    )


def _numbers(flag: str, text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 1 or sorted(values) != values:
        raise UsageError(f"{flag} {text} is not a rising list of numbers", f"write {flag} 16,64")
    return values
