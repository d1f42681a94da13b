"""`loadgen compare`: logs side by side → what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..errors import Exit, UsageError
from .values import screen_width

if TYPE_CHECKING:
    from ..analysis.compare import RunSide
    from ..results import Slo

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
    --anyway. Runs of one workload and one seed are paired by equal work, which finds much smaller differences.

    The exit code is 4 where it is refused, or no load was measured by two of them.
    """
    import sys

    from ..analysis.compare import Compared, guarded
    from ..analysis.compare import compare as compared_with
    from ..analysis.conditions import conditions
    from ..log.codec import encode, plain
    from ..report.compared import compared_lines, compared_object, refusal
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
    if as_json:
        sys.stdout.buffer.write(encode(plain(compared_object(result, refused=refused))))
        sys.stdout.buffer.flush()
    elif html is None:
        click.echo("\n".join(compared_lines(result, refused=refused, width=screen_width())))
    return Exit.UNDECIDED if refused or not any(one.loads for one in against) else Exit.DONE


def run_side(path: str, slo: Slo | None = None) -> RunSide:
    """A log as one side of a comparison."""
    from ..analysis import summarise_run
    from ..analysis.compare import RunSide
    from ..log.quick import read_columns
    from ..log.store import open_run
    from ..results import Slo

    run = open_run(path)
    table = read_columns(run).without(run.uncounted)
    seen = [one for one in run.observations if one.step not in run.uncounted]
    return RunSide(run.source, run.manifest, table, summarise_run(table, slo or Slo(), seen, run.server))
