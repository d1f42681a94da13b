"""`loadgen run`: measure one load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from .definitions import arrivals_of, use_definition
from .options import shared
from .sections import SectionedCommand
from .tracing import TRACE_FLAGS, profile_load, use_trace
from .values import Rate, Whole

if TYPE_CHECKING:
    from ..search.sweep import SweepPlan

EPILOG = """\
\b
Examples:
  loadgen run http://localhost:8000 -c 32
  loadgen run http://localhost:8000 -c 64 --input-len 1000 --output-len 200 --requests 500
  loadgen run http://localhost:8000 -c 16 --duration 60s --slo ttft_p95=500ms --json | jq '.steps[0].p95_ttft_ms'
  loadgen run http://gpu1:8000 http://gpu2:8000 -c 64 --json | jq '.steps[0].by_peer'
  loadgen run http://localhost --unix-socket /run/engine.sock -c 8
  loadgen run http://localhost:8000 --rate 20 --arrivals gamma:0.5 --slo ttft_scheduled_p95=500ms
  loadgen run http://localhost:8000 --arrivals ramp:1-20:60s
  loadgen run http://localhost:8000 --trace AzureLLMInferenceTrace_conv.csv --duration 10m --time-scale 2
  loadgen run http://localhost:8000 --prompts batch.jsonl --dry-run
  loadgen run http://localhost:8000 -c 16 --model base=0.7 --model lora-a=0.3 --json | jq '.steps[0].by_model'
  loadgen run --simulate -c 8 -o - | loadgen export - --format csv > requests.csv
"""

DEFAULT = 8  # requests in flight


@click.command(cls=SectionedCommand, epilog=EPILOG)
@shared(
    click.option(
        "-c",
        "--concurrency",
        "--max-concurrency",
        "--max-in-flight",
        type=Whole(1),
        metavar="N",
        help="Requests in flight; with --rate, the most there may be.  [default: 8; with --rate, no limit]",
    ),
    click.option(
        "--rate",
        "--request-rate",
        type=Rate(),
        metavar="N",
        help="Requests per second instead, whatever is in flight (open loop).",
    ),
    click.option(
        "--arrivals",
        metavar="PROCESS",
        help="With --rate: constant, poisson or gamma:BURSTINESS; without: ramp:1-20:60s or stages:5@60s,20@120s."
        "  [default: poisson]",
    ),
    own=TRACE_FLAGS,
)
def run(**flags: Any) -> int:
    """Measure one load: so many requests in flight, each slot refilled as it falls free.

    With --rate, requests are sent when an arrival process says, whether or not earlier ones have been answered. Of
    several URLs each gets the next request in turn, and all addresses of a name are used evenly.
    """
    from .measure import measure

    return measure("run", *load_of(**flags))


def load_of(
    concurrency: int | None, rate: float | None, arrivals: str | None, **flags: Any
) -> tuple[SweepPlan, dict[str, Any]]:
    """The one load that the flags mean, and the flags that are left. Raises UsageError."""
    from ..search.sweep import SweepPlan

    use_definition(flags)
    slo = bool(flags["slo"])
    timed = use_trace(flags, concurrency=concurrency, rate=rate)
    if timed is not None:
        if arrivals is not None:
            raise UsageError("--trace says when each request is sent", "add --rate N, or leave --arrivals out")
        return SweepPlan(has_slo=slo), {**flags, "open_loop": timed}
    profile = profile_load(flags, arrivals, concurrency) if arrivals is not None else None
    if profile is not None:
        if rate is not None:
            raise UsageError(f"--arrivals {arrivals} says its own rates", "leave --rate out")
        return SweepPlan(has_slo=slo), {**flags, "open_loop": profile}
    if rate is None:
        if arrivals is not None:
            raise UsageError("--arrivals says how the requests of a rate are spread", "add --rate N, or leave it out")
        return SweepPlan(levels=(concurrency or DEFAULT,), has_slo=bool(flags["slo"])), flags

    from ..runner import OpenLoop

    open_loop = OpenLoop(rate, arrivals_of(flags, arrivals), concurrency)
    return SweepPlan(has_slo=bool(flags["slo"])), {**flags, "open_loop": open_loop}
