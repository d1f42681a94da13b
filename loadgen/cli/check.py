"""`loadgen check`: has it become worse? The exit code is the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import Exit, LogError, UsageError
from .options import shared
from .sections import SectionedCommand, section
from .streams import reader_may_go
from .values import Share, Whole, keep_apart, screen_width, typed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..analysis.compare import Comparison
    from ..analysis.regression import Check, Objection
    from ..results import StepSummary

EPILOG = """\
\b
Examples:
  loadgen check results/RUN --against results/BASE --max-regression 5%
  loadgen check results/RUN --against results/BASE --slo ttft_p95=500ms --junit check.xml --markdown check.md
  loadgen check --pairs 8 http://old:8000 http://new:8000 -c 32 --requests 600
  loadgen check results/RUN --against results/BASE --json | jq '.questions[] | {metric, load, answer, loss_share}'
"""

LEAST_PAIRS = 5
PAIR_REQUESTS = 600  # of each run, where nothing says how long it is to be
DEFAULT = 8  # requests in flight
# What a check of two logs obeys; all other flags are for measuring.
_READING = frozenset(("urls", "against", "max_regression", "slo", "anyway", "junit", "markdown", "as_json", "quiet"))
_BUDGETS = ("max_time", "max_requests", "max_tokens", "max_cost")

_CHECK = section(
    "Check",
    click.option("--against", metavar="BASE", help="The run that RUN is held against."),
    click.option("--max-regression", type=Share(), default="5%", show_default=True, help="Loss that is still allowed."),
    click.option("--pairs", type=Whole(2, 100), metavar="N", help="Measure two URLs in turn instead, N times each."),
    click.option("--anyway", is_flag=True, help="Check although more than one main variable was changed."),
    click.option("--junit", type=click.Path(dir_okay=False), metavar="FILE", help="Write the answers as JUnit XML."),
    click.option("--markdown", type=click.Path(dir_okay=False), metavar="FILE", help="Write them as Markdown."),
)


@click.command(cls=SectionedCommand, epilog=EPILOG)
@shared(
    click.option("-c", "--concurrency", type=Whole(1), metavar="N", help="With --pairs: in flight.  [default: 8]"),
    own=_CHECK,
)
def check(
    urls: tuple[str, ...],
    against: str | None,
    max_regression: float,
    pairs: int | None,
    anyway: bool,
    junit: str | None,
    markdown: str | None,
    concurrency: int | None,
    **flags: Any,
) -> int:
    """Say whether a run is worse than another by more than a margin.

    `check RUN --against BASE` reads two logs; `check --pairs N URL_A URL_B` measures both servers in turn, A B B A,
    which holds where a server drifts or stalls. Judged are output throughput, p95 TTFT and p95 TPOT at three loads at
    the most, the failures, and, of two logs, the objectives of --slo.

    The exit code is 1 where a loss above the margin is proven, 0 where each is proven to be below it, else 4.
    """
    import sys

    from ..log.codec import encode, plain
    from ..report import checked

    for flag, file in (("--junit", junit), ("--markdown", markdown)):
        if file is not None:
            keep_apart(file, *urls, *([against] if against is not None else []), flag=flag)
    if pairs is None:
        if against is None or len(urls) != 1:
            raise UsageError(
                "a check needs one run and what to hold it against",
                "loadgen check RUN --against BASE, or loadgen check --pairs 8 URL_A URL_B",
            )
        if name := typed(*sorted(click.get_current_context().params.keys() - _READING)):
            raise UsageError(f"--{name} is for measuring, and --against reads what was measured", "leave it out")
        found, notes = _of_logs(urls[0], against, max_regression, flags["slo"], anyway=anyway)
    else:
        if against is not None:
            raise UsageError("--pairs and --against exclude each other", "leave one of the two out")
        if pairs < LEAST_PAIRS:
            raise UsageError(f"{pairs} pairs are too few to tell a difference from chance", "give --pairs 5 or more")
        if len(urls) != 2 or flags["simulate"] or flags["dry_run"] or flags["output"] == "-":
            raise UsageError("--pairs measures two servers into run folders", "give URL_A and URL_B, and no more")
        if max_regression >= 1:
            raise UsageError("--max-regression of all there is allows anything", "give a smaller share, as in 5%")
        _check_pairs()
        measured = _pairs(urls, pairs, concurrency or DEFAULT, flags)
        if isinstance(measured, Exit):
            return measured
        found, notes = _of_pairs(*measured, max_regression)
    _write(junit, lambda: checked.junit(found))
    _write(markdown, lambda: checked.markdown(found, notes).encode())
    with reader_may_go():
        if flags["as_json"]:
            sys.stdout.buffer.write(encode(plain(checked.checked_object(found, notes))))
        else:
            click.echo("\n".join(checked.checked_lines(found, notes, screen_width())))
    return {"regression": Exit.NO, "held": Exit.DONE, "undecided": Exit.UNDECIDED}[found.answer]


def _check_pairs() -> None:
    """Raises UsageError for flags that say nothing of pairs."""
    if typed("slo"):
        raise UsageError(
            "--pairs judges no objectives",
            "leave --slo out, or check one of its runs: loadgen check RUN --against BASE",
        )
    if name := typed(*_BUDGETS):
        raise UsageError(
            f"--{name} is of one run, and --pairs measures many", "bound each of them with --requests or --duration"
        )
    if typed("anyway"):
        raise UsageError("--anyway does nothing with --pairs, which compares no conditions", "leave it out")


def _of_logs(
    path: str, base: str, margin: float, slo_texts: Sequence[str], *, anyway: bool
) -> tuple[Check, tuple[str, ...]]:
    from ..analysis.compare import compare
    from ..analysis.conditions import conditions, unknown
    from ..analysis.regression import Check, judge_losses
    from ..report.compared import notes, refusal
    from ..slo import parse_slo
    from .compare import left_out, nothing_left, run_side

    if path == base == "-":
        raise UsageError("stdin can be read only once", "give - for one of the runs")
    if margin >= 1:
        raise UsageError("--max-regression of all there is allows anything", "give a smaller share, as in 5%")
    slo = parse_slo(slo_texts)
    a, b = run_side(base, slo), run_side(path, slo)
    told = conditions([a.manifest, b.manifest], [a.summaries, b.summaries])
    found = compare(a, b)
    refused = "" if anyway else refusal(told)
    if found.overlap and not found.primary:
        refused = refused or "the runs were asked for other lengths: give both the same workload and seed"
    invalid = [*left_out(a, "A"), *left_out(b, "B")]
    nothing = nothing_left([a, b]) if invalid and not found.loads else ""
    said = [] if nothing else notes(found, "B")
    more = [f"not told by both: {', '.join(unknown(told))}"] if unknown(told) else []
    judged = judge_losses(found.primary, margin)
    return Check(judged, found.failing, _objections(found), refused or nothing), (*said, *invalid, *more)


def _objections(found: Comparison) -> tuple[Objection, ...]:
    """Objectives that B breaks, or is not proven to hold, at a load where A is not proven to break them."""
    from ..analysis.regression import Objection

    objections: list[Objection] = []
    for load, (a, b) in zip(found.loads, found.matched, strict=True):
        broken = {check.objective for check in a.summary.objectives if check.verdict == "fail"}
        objections += [
            Objection(load, check.objective, undecided=check.verdict == "inconclusive")
            for check in b.summary.objectives
            if check.objective not in broken and check.verdict in ("fail", "inconclusive")
        ]
    return tuple(objections)


def _pairs(
    urls: Sequence[str], pairs: int, concurrency: int, flags: dict[str, Any]
) -> tuple[list[StepSummary], list[StepSummary]] | Exit:
    """All runs, in the order ABBA, each pair with a seed of its own; an exit code where one was broken off."""
    import random

    from ..analysis.interleaved import order
    from ..client.loop import run
    from ..runner import execute
    from ..search.sweep import SweepPlan
    from .definitions import use_definition
    from .options import run_config

    use_definition(flags)
    if flags["requests"] is None and flags["duration"] is None:
        flags["requests"] = PAIR_REQUESTS
    first = flags["seed"] if flags["seed"] is not None else random.randrange(1 << 31)
    plan = SweepPlan(levels=(concurrency,), has_slo=bool(flags["slo"]))
    measured: dict[str, list[StepSummary]] = {"A": [], "B": []}
    for number, which in enumerate(order(pairs)):
        url = urls["AB".index(which)]
        config = run_config("run", plan, {**flags, "seed": first + number // 2}, urls=[url], simulator=None)
        finished = run(execute, config)
        if not flags["quiet"]:
            click.echo(f"{which} {number // 2 + 1}/{pairs}  {_told(finished.summaries)}  {finished.where}", err=True)
        if finished.exit_code in (Exit.TARGET, Exit.INTERRUPTED, Exit.TERMINATED) or not finished.summaries:
            return Exit(finished.exit_code) if finished.exit_code else Exit.UNDECIDED
        measured[which].append(finished.summaries[-1])
    return measured["A"], measured["B"]


def _told(summaries: Sequence[StepSummary]) -> str:
    from ..report.text import headline

    return headline(summaries[-1]) if summaries else "nothing was measured"


def _of_pairs(a: list[StepSummary], b: list[StepSummary], margin: float) -> tuple[Check, tuple[str, ...]]:
    from ..analysis.interleaved import failing, run_level
    from ..analysis.regression import Check, judge_losses

    limits = [s.client_limit for s in (*a, *b) if s.client_limit is not None]
    refused = f"the client may have shaped {len(limits)} of {len(a) + len(b)} runs: {limits[0].what}" if limits else ""
    notes = (limits[0].remedy,) if limits else ()
    return Check(judge_losses(run_level(a, b), margin), failing(a, b), refused=refused), notes


def _write(path: str | None, content: Callable[[], bytes]) -> None:
    from pathlib import Path

    from ..log.whole import write_whole

    if path is None:
        return
    try:
        write_whole(Path(path), content())
    except OSError as error:
        raise LogError(f"{path} cannot be written: {error.strerror or error}", "give another file") from error
