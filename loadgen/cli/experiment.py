"""`loadgen experiment`: one changed variable, two arms, one verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import Exit, UsageError
from .options import shared
from .sections import SectionedCommand, section
from .streams import reader_may_go
from .values import Whole, screen_width, typed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..experiments.definition import Experiment, Setting
    from ..experiments.verdict import Judged

EPILOG = """\
\b
Examples:
  loadgen experiment --list
  loadgen experiment prefix-cache                        # both arms simulated, in virtual time
  loadgen experiment prefix-cache --dry-run              # what would be run, with the flags of vLLM, SGLang and TGI
  loadgen experiment prefix-cache http://off:8000 http://on:8000
  loadgen experiment prefix-cache http://localhost:8000  # pauses for the server's flags to be changed
  loadgen experiment ./mine.toml --seed 7 --repeats 10 --json | jq '.settings[].answer'
"""

# The file says these.
_SAID = (
    *("workload", "max_total_len", "input_len", "output_len", "prompts", "natural_length", "slo", "effort", "duration"),
    *("shared_prefix_len", "prefix_groups", "turns", "turn_input_len", "think_time", "history"),
    *("max_time", "max_requests", "max_tokens", "max_cost", "price", "simulate", "token_log"),
)

_FLAGS = section(
    "Experiment",
    click.option("--list", "listed", is_flag=True, help="The experiments there are."),
    click.option("--repeats", type=Whole(5, 100), metavar="N", help="Pairs of runs, A B B A …  [default: the file's]"),
    click.option(
        "--setting",
        "settings",
        type=Whole(1, 2),
        multiple=True,
        metavar="1|2",
        help="1 is the effect, 2 its boundary.  [default: both; of URLs, those that the same servers do]",
    ),
    click.option("--http", is_flag=True, help="Simulated arms over HTTP and in real time, not in virtual time."),
    click.option("--plot", type=click.Path(dir_okay=False), metavar="FILE", help="The ratios as .svg or .png."),
)


@click.command(cls=SectionedCommand, epilog=EPILOG)
@click.argument("name", required=False, metavar="[NAME|FILE]")
@shared(own=_FLAGS)
def experiment(
    name: str | None,
    urls: tuple[str, ...],
    listed: bool,
    repeats: int | None,
    settings: tuple[int, ...],
    http: bool,
    plot: str | None,
    **flags: Any,
) -> int:
    """Ask what one technique gains: two arms that differ in one variable, measured in turn.

    NAME is one of --list, or the path of a TOML file (docs/experiments.md). Without a URL both arms are simulated. Of
    two URLs the first is A; several with commas are the replicas of one arm. Of one URL, the run pauses where its flags
    are to be changed, until it comes back or Enter is pressed.

    The exit code is 0 where all is as expected, 1 where something is contrary, else 4.
    """
    import sys

    from ..experiments.library import load_experiment
    from ..log.codec import encode, plain
    from ..report.experiment import plan_lines, plan_object, result_lines, result_object

    if listed:
        click.echo(_listing())
        return Exit.DONE
    if name is None:
        raise UsageError("no experiment is named", "loadgen experiment --list shows them; or give the path of a file")
    if option := typed(*_SAID):
        raise UsageError(f"--{option} is for the experiment's file to say", "leave it out, or write a file of your own")
    if len(urls) > 2:
        raise UsageError(f"an experiment has two arms, and {len(urls)} URLs were given", "join replicas with commas")
    if http and urls:
        raise UsageError("--http is of simulated arms, and a URL is given", "leave one of the two out")
    if flags["output"] == "-":
        raise UsageError("an experiment makes many runs, and one stream holds one", "give a folder to --output")
    found = load_experiment(name)
    chosen = [one.shortened(flags["requests"], repeats) for one in _chosen(found, settings, urls)]
    if flags["dry_run"]:
        if flags["as_json"]:
            sys.stdout.buffer.write(encode(plain(plan_object(found, chosen))))
        else:
            click.echo("\n".join(plan_lines(found, chosen, screen_width())))
        return Exit.DONE
    if plot is not None:
        from ..report.experiment_chart import check_plot

        check_plot(plot)
    measured = _measured(found, chosen, urls, http, flags)
    if isinstance(measured, Exit):
        return measured
    results, how = measured
    with reader_may_go():
        if flags["as_json"]:
            sys.stdout.buffer.write(encode(plain(result_object(found, results, how))))
        else:
            click.echo("\n".join(result_lines(found, results, how, screen_width())))
    if plot is not None:
        from ..report.experiment_chart import write_experiment_chart

        write_experiment_chart(found, results, plot)
    answers = {one.answer for one in results}
    if "contrary" in answers:
        return Exit.NO
    return Exit.UNDECIDED if "undecided" in answers else Exit.DONE


def _listing() -> str:
    from ..experiments.library import load_experiment, names

    return "\n".join(f"  {name:22} {load_experiment(name).question}" for name in names())


def _chosen(found: Experiment, numbers: Sequence[int], urls: Sequence[str]) -> list[Setting]:
    """The settings to run. Those of real servers are the ones that the same servers can do."""
    if numbers:
        if max(numbers) > len(found.settings):
            raise UsageError(f"{found.name} has no second setting", "leave --setting out")
        return [found.settings[number - 1] for number in sorted(set(numbers))]
    if not urls:
        return list(found.settings)
    first = found.settings[0]
    return [one for one in found.settings if (one.a.flags, one.b.flags) == (first.a.flags, first.b.flags)]


def _measured(
    found: Experiment, chosen: Sequence[Setting], urls: Sequence[str], http: bool, flags: dict[str, Any]
) -> tuple[list[Judged], str] | Exit:
    import random

    from ..experiments.verdict import judged_runs
    from ..experiments.virtual import both

    seed = flags["seed"] if flags["seed"] is not None else random.randrange(1 << 20)
    results = []
    for setting in chosen:
        if urls or http:
            from .arms import measure_arms

            sides = measure_arms(setting, urls, seed, flags)
            if isinstance(sides, Exit):
                return sides
        else:
            if not flags["quiet"]:
                click.echo(f"… {found.name}: {setting.title}", err=True)
            sides = both(setting, seed, (setting.a, setting.b))
        results.append(judged_runs(setting, *sides))
    if urls:
        how = f"{' against '.join(urls)} · seed {seed}" if len(urls) > 1 else f"{urls[0]}, restarted · seed {seed}"
    else:
        how = f"both arms simulated, {'over HTTP' if http else 'in virtual time'} · seed {seed}"
    return results, how


for _param in experiment.params:  # refused, so the help need not list them
    if isinstance(_param, click.Option) and _param.name in _SAID:
        _param.hidden = True
