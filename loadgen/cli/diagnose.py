"""`loadgen diagnose`: a log → the cause, what speaks for it, and one change to try."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..errors import Exit, LoadgenError, UsageError
from .values import screen_width

if TYPE_CHECKING:
    from ..analysis.diagnose import Measured
    from .reading import Told

MOST_REQUESTS = 200_000  # of a run whose cause is named at its end without being asked for

EPILOG = """\
\b
Examples:
  loadgen diagnose results/RUN
  loadgen diagnose results/RUN --slo ttft_p95=500ms
  loadgen diagnose results/TP1 results/TP4
  loadgen diagnose results/RUN --json | jq -r '.findings[] | [.level, .cause, .sentence] | @tsv'
  loadgen export results/RUN --format jsonl | loadgen diagnose -
"""


@click.command(epilog=EPILOG)
@click.argument("path", metavar="RUN")
@click.argument("other", metavar="[RUN2]", required=False)
@click.option("--slo", "slo_texts", multiple=True, metavar="OBJECTIVE", help="Judge by these instead of the run's own.")
@click.option("--json", "as_json", is_flag=True, help="Print the diagnosis as JSON.")
def diagnose(path: str, other: str | None, slo_texts: tuple[str, ...], as_json: bool) -> int:
    """Say what holds a server up, how sure that is, and one change to try.

    RUN is what `loadgen report` reads; a sweep tells most, as every load is held against the lowest. RUN2 is the same
    model on another number of GPUs: how far it is from the ideal speed-up.

    First come the questions that stand before every cause: is there an objective, is the workload what was asked for,
    do weights and KV fit. Then the findings. The server's own metrics, where the run kept them, make them surer.

    The exit code is 1 where a finding is an error (figures that do not answer the question, or requests that are
    lost), 4 where there are too few requests to say anything.
    """
    import sys

    from ..analysis.diagnose import diagnose as diagnosed
    from ..log.codec import encode, plain
    from ..report.diagnosed import diagnosed_lines, diagnosed_object
    from .streams import reader_may_go

    if path == other == "-":
        raise UsageError("stdin can be read only once", "give - for one of the runs")
    told = [_read(one, slo_texts) for one in (path, other) if one is not None]
    runs = [measured(one) for one in told]
    found = diagnosed(*runs)
    sources = [one.run.source for one in told]
    with reader_may_go():
        if as_json:
            sys.stdout.buffer.write(encode(plain(diagnosed_object(found, sources))))
        else:
            click.echo("\n".join(diagnosed_lines(found, sources, screen_width())))
    if found.failed:
        return Exit.NO
    return Exit.DONE if found.levels else Exit.UNDECIDED


def _read(path: str, slo_texts: tuple[str, ...]) -> Told:
    from .reading import read_run

    return read_run(path, slo_texts)


def measured(told: Told) -> Measured:
    """A run that was read, as a diagnosis takes it."""
    from ..analysis.diagnose import Measured

    return Measured(told.summaries, told.counted, told.run.manifest or {}, told.slo, apart=told.facts.apart)


def cause_of(path: str, requests: int) -> str:
    """What holds up the server of a run that has just ended, in a line; empty where nothing does, or it would take long
    to find."""
    from ..analysis.diagnose import FACTS_ONLY
    from ..analysis.diagnose import diagnose as diagnosed
    from ..report.diagnosed import cause_text

    if requests > MOST_REQUESTS:
        return ""
    try:
        found = diagnosed(measured(_read(path, ())))
    except LoadgenError:  # the log is told of elsewhere
        return ""
    first = next((one for one in found.findings if one.cause not in FACTS_ONLY), None)
    if first is None or first.cause == "client_bound":  # of which the report itself says more
        return ""
    return cause_text(first)
