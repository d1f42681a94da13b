"""`loadgen run`: measure one load."""

from __future__ import annotations

from typing import Any

import click

from .options import shared

EPILOG = """\
\b
Examples:
  loadgen run http://localhost:8000 -c 32
  loadgen run http://localhost:8000 -c 64 --input-len 1000 --output-len 200 --requests 500
  loadgen run http://localhost:8000 -c 16 --duration 60s --slo ttft_p95=500ms --json | jq '.steps[0].p95_ttft_ms'
  loadgen run http://localhost:8000 --prompts prompts.jsonl --endpoint completions --dry-run
  loadgen run --simulate -c 8 -o - | loadgen export - --format csv > requests.csv
"""


@click.command(epilog=EPILOG)
@shared
@click.option(
    "-c",
    "--concurrency",
    "--max-concurrency",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Requests in flight.",
)
def run(concurrency: int, **flags: Any) -> int:
    """Measure one load: so many requests in flight, each slot refilled as it falls free."""
    from ..search.sweep import SweepPlan
    from .measure import measure

    return measure("run", SweepPlan(levels=(concurrency,), has_slo=bool(flags["slo"])), flags)
