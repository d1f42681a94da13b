"""`loadgen sweep`: raise the load until it stops paying or an objective breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from .definitions import arrivals_of, use_definition
from .options import shared
from .sections import SectionedCommand
from .values import Levels, Number, Rate, Share, Whole, typed

if TYPE_CHECKING:
    from ..search.sweep import SweepPlan

EPILOG = """\
\b
Examples:
  loadgen sweep http://localhost:8000 --slo ttft_p95=500ms --slo tpot_p95=50ms
  loadgen sweep http://localhost:8000 --levels 1,8,64 --input-len 1000 --output-len 200 --effort quick
  loadgen sweep https://llm.example.com/v1 --api-key-file key --max-time 20m --max-tokens 5M
  loadgen sweep http://localhost:8000 --rate 1 --slo ttft_p95=500ms
  loadgen sweep --simulate --slo ttft_p95=200ms
  loadgen sweep http://localhost:8000 --json | jq .answer
  loadgen sweep --resume results/20261129T134500Z-sweep-512-128
  loadgen sweep http://localhost:8000 -o - | loadgen report -

\b
Exit: 0 a level held, 1 none did, 3 the server cannot be measured, 4 undecided, 130 interrupted (the log is kept).
"""

# A minute's demonstration on the embedded simulator: a short shape, and objectives that break past its batch limit.
DEMO = {"input_len": "32-96", "output_len": "8-24", "effort": "quick", "slo": ("ttft_p95=300ms", "tpot_p95=50ms")}


@click.command(cls=SectionedCommand, epilog=EPILOG)
@shared(
    click.option("--start", type=Whole(1), metavar="N", default=1, show_default=True, help="Concurrency to start at."),
    click.option("--factor", type=Number(above=1), metavar="X", default=2.0, show_default=True, help="Raise by this."),
    click.option("--max-level", type=Whole(1), metavar="N", default=256, show_default=True, help="Go no higher."),
    click.option("--levels", type=Levels(), metavar="N,N,…", help="Measure exactly these instead."),
    click.option(
        "--repeats",
        type=Whole(1, 100),
        metavar="N",
        default=1,
        show_default=True,
        help="On a server that is not steady: measure N windows of each level of the answer, in turn, and pool them.",
    ),
    click.option(
        "--precision",
        type=Share(),
        metavar="X%",
        help="Measure on until the highest throughput is known to ±X%.  [default: as far as the search needs it]",
    ),
    click.option(
        "--rate",
        "--request-rate",
        type=Rate(),
        metavar="N",
        help="Raise the arrival rate instead, from N requests per second (open loop).",
    ),
    click.option(
        "--max-rate", type=Rate(), metavar="N", help="With --rate: go no higher.  [default: 256 times --rate]"
    ),
    click.option("--arrivals", metavar="PROCESS", help="With --rate: as for run.  [default: poisson]"),
    click.option("--demo", is_flag=True, help="With --simulate: a whole sweep in about a minute."),
    click.option(
        "--resume",
        type=click.Path(),
        metavar="RUN",
        help="Go on with a sweep that was interrupted, from its folder; its flags hold.",
    ),
    click.option("--anyway", is_flag=True, help="With --resume: also where the server has changed."),
)
def sweep(resume: str | None, anyway: bool, **flags: Any) -> int:
    """Raise the load step by step until throughput stops growing or an objective breaks.

    URL is any form of the server's address; requests go to several in turn. Each step holds a number of requests in
    flight; the answer is the highest number that held every objective, and the lowest that did not. With --rate it is
    the highest rate of arrivals that the server keeps up with, known to about 8 %.
    """
    if resume is not None:
        from .resume import go_on

        return go_on(click.get_current_context(), resume, _climb)
    if anyway:
        raise UsageError("--anyway does nothing without --resume", "leave it out")
    check(**flags)
    return _climb(flags)


def check(rate: float | None, demo: bool, levels: tuple[int, ...] | None, **flags: Any) -> None:
    """Raises UsageError for flags that do not go together."""
    max_rate, arrivals = flags["max_rate"], flags["arrivals"]
    if rate is None and (max_rate is not None or arrivals is not None):
        raise UsageError("--max-rate and --arrivals are of a sweep of rates", "add --rate N, or leave them out")
    if rate is not None and (demo or (name := typed("start", "max_level", "levels", "repeats"))):
        raise UsageError(f"--rate and --{'demo' if demo else name} exclude each other", "leave one of the two out")
    if demo and not flags["simulate"]:
        raise UsageError("--demo is a demonstration on the simulated server", "add --simulate, or leave --demo out")
    if levels is not None and (name := typed("start", "factor", "max_level")):
        raise UsageError(f"--levels and --{name} exclude each other", "leave one of the two out")
    if flags["precision"] is not None:
        if fixed := typed("rate", "repeats", "requests", "duration"):
            raise UsageError(f"--precision and --{fixed} exclude each other", "leave one of the two out")
        if levels is not None and flags["slo"]:
            raise UsageError(
                "--precision with --levels is for sweeps without objectives, whose steps it ends",
                "leave --precision, --levels or --slo out",
            )


def _climb(flags: dict[str, Any]) -> int:
    from .measure import measure

    return measure("sweep", *load_of(**flags))


def load_of(**flags: Any) -> tuple[SweepPlan, dict[str, Any]]:
    """The ladder of loads that the flags mean, and the flags that are left. Raises UsageError."""
    from ..search.sweep import SweepPlan

    demo, rate, max_rate, arrivals, factor = map(flags.pop, ("demo", "rate", "max_rate", "arrivals", "factor"))
    use_definition(flags)
    if demo:
        flags.update({name: value for name, value in DEMO.items() if not flags[name] or name == "effort"})
        factor = 6.0
    plan = SweepPlan(
        start=flags.pop("start"),
        factor=factor,
        max_level=flags.pop("max_level"),
        levels=flags.pop("levels"),
        has_slo=bool(flags["slo"]),
        refine=2 if demo else None,
        revisit=not demo,
        repeats=flags.pop("repeats"),
        precision=flags.pop("precision"),
    )
    if rate is not None:
        from ..runner import OpenLoop
        from ..search.rates import RatePlan
        from ..workload.arrivals import RATES

        process = arrivals_of(flags, arrivals)
        if process.stages:
            raise UsageError(
                f"a sweep of rates cannot raise arrivals whose rates are given, as {str(process)[:80]}",
                "give a process, as in --arrivals poisson, or measure them with loadgen run",
            )
        flags["open_loop"] = OpenLoop(rate, process)
        flags["rates"] = RatePlan(rate, factor, max_rate if max_rate is not None else min(256 * rate, RATES[1]))
    return plan, flags
