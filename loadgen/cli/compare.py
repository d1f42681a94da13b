"""`loadgen compare`: logs side by side → what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..errors import Exit, UsageError
from .streams import reader_may_go
from .values import screen_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..analysis.compare import RunSide
    from ..results import Slo, StepSummary

EPILOG = """\
\b
Examples:
  loadgen compare results/RUN_A results/RUN_B
  loadgen compare results/RUN_A results/RUN_B results/RUN_C --json | jq '.comparisons[].differences[] | select(.found)'
  loadgen export results/RUN_B | loadgen compare results/RUN_A - --anyway
  loadgen compare results/RUN_A results/RUN_B --html compared.html
"""


@click.command(epilog=EPILOG)
@click.argument("paths", nargs=-1, metavar="A B...")
@click.option("--anyway", is_flag=True, help="Compare although more than one main variable was changed.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--html", metavar="FILE", help="A page with charts instead, complete in itself; - is stdout.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of the page.")
def compare(paths: tuple[str, ...], anyway: bool, as_json: bool, html: str | None, lang: str) -> int:
    """Say how runs differ from the first one, and how sure that is.

    Each is what `loadgen report` reads; one of them may be - for stdin. First the conditions stand side by side: where
    more than one main variable was changed, what each did cannot be told apart, and nothing is compared without
    --anyway. Runs of one workload and one seed are paired by equal work, which finds much smaller differences. Steps of
    which this client was the limit are left out, and named.

    The exit code is 4 where it is refused, or no load was measured by two of them.
    """
    import sys
    from dataclasses import replace

    from ..analysis.compare import Compared, guarded
    from ..analysis.compare import compare as compared_with
    from ..analysis.conditions import conditions
    from ..log.codec import encode, plain
    from ..report.compared import compared_lines, compared_object, letter, refusal, wrapped
    from .reading import check_page, write_page

    if len(paths) < 2:
        raise UsageError("there is nothing to compare", "give two runs or more: loadgen compare RUN_A RUN_B")
    if paths.count("-") > 1:
        raise UsageError("stdin can be read only once", "give - for one of the runs")
    if html is not None:
        check_page(html, *paths, as_json=as_json)
    sides = [run_side(path) for path in paths]
    found = conditions([side.manifest for side in sides], [side.summaries for side in sides])
    refused = "" if anyway else refusal(found)
    against = [] if refused else guarded([compared_with(sides[0], side) for side in sides[1:]])
    result = Compared(tuple(side.name for side in sides), tuple(found), tuple(against))
    if html is not None:
        from ..report.charts.compared import Several
        from ..report.page.compared import compared_page
        from ..report.words import Words

        names, steps = [side.name for side in sides], [side.summaries for side in sides]
        write_page(html, compared_page(Several(names, steps, result, refused, Words(lang))))
    told = [] if refused else [left_out(side, letter(i)) for i, side in enumerate(sides)]
    nothing = nothing_left(sides) if any(told) and not any(one.loads for one in against) else ""
    if nothing:
        result = replace(result, against_first=())
    with reader_may_go():
        if as_json:
            shown = compared_object(result, refused=refused or nothing)
            for i, one in enumerate(shown["comparisons"], 1):
                one["notes"] += [*told[0], *told[i]]
            sys.stdout.buffer.write(encode(plain(shown)))
        elif html is None:
            width = screen_width()
            more = [f"note      {note}" for note in [*(note for notes in told for note in notes), nothing] if note]
            lines = compared_lines(result, refused=refused, width=width) + (["", *wrapped(more, width)] if more else [])
            click.echo("\n".join(lines))
    return Exit.UNDECIDED if refused or not any(one.loads for one in against) else Exit.DONE


def run_side(path: str, slo: Slo | None = None) -> RunSide:
    """A log as one side of a comparison."""
    from ..analysis import summarise_run
    from ..analysis.compare import RunSide
    from ..log.quick import read_columns
    from ..log.store import open_run
    from ..results import Slo
    from .report import marks_of

    run, slo = open_run(path), slo or Slo()
    table = read_columns(run).without(run.uncounted)
    seen = [one for one in run.observations if one.step not in run.uncounted]
    summaries = summarise_run(table, slo, seen, run.server)
    marks = marks_of(run, summaries, slo, again=False)
    invalid = {s.step: _limit(s) for s in summaries if marks[s.step].verdict == "invalid"}
    return RunSide(run.source, run.manifest, table, summaries, invalid)


def _limit(summary: StepSummary) -> str:
    from ..search.verdict import sent_late

    limit = summary.client_limit.what if summary.client_limit is not None else sent_late(summary)
    return limit or summary.detail or "it ran into a limit of this machine"


def left_out(side: RunSide, name: str) -> list[str]:
    """The loads of which nothing is left without invalid steps, and why."""
    from ..analysis.compare import load_of
    from ..report.compared import load_text

    sound = {load_of(s) for s in side.summaries if s.step not in side.invalid}
    why = {load_of(s): side.invalid[s.step] for s in side.summaries if s.step in side.invalid}
    return [
        f"{name} says nothing of the server at {load_text(load)}, which is left out: this client was the limit ({text})"
        for load, text in why.items()
        if load not in sound
    ]


def nothing_left(sides: Sequence[RunSide]) -> str:
    """That invalid steps leave nothing to compare, and what to do."""
    limits = [s.client_limit for side in sides for s in side.summaries if s.step in side.invalid]
    remedy = next((limit.remedy for limit in limits if limit is not None), "measure from another machine")
    return f"nothing can be compared: no load is left that both measured and this client did not limit; {remedy}"
