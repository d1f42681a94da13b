"""`loadgen plot`: a log → a chart as a picture."""

from __future__ import annotations

import click

from ..errors import Exit, UsageError
from .values import Number, Whole, keep_apart

# Written here too, so that --help and --list need no plotting library; a test holds it against the charts themselves.
NAMES = {
    "throughput": "output tokens/s against load, with intervals, the knee and the answer",
    "latency": "p50 and a tail percentile of TTFT, TPOT and E2E against load, with intervals and objectives",
    "pareto": "tokens/s per user against tokens/s in all; per GPU and per million tokens with --gpus and --price",
    "timeline": "requests in flight, tokens/s, failures and the server's metrics over time",
    "distributions": "TTFT, TPOT and E2E by load",
    "itl": "gaps between tokens by load",
    "input": "TTFT against input length",
    "buckets": "latencies by load and lengths, as heat maps",
    "failures": "failures by load and kind",
    "instrument": "the client's own error beside what it measured",
}

EPILOG = """\
\b
Examples:
  loadgen plot results/RUN -o throughput.svg
  loadgen plot results/RUN --chart latency -o latency.png --slo ttft_p95=300ms
  loadgen plot results/RUN --chart pareto --gpus 8 --price 2.50 -o pareto.png
  for chart in throughput latency itl; do loadgen plot results/RUN --chart $chart -o $chart.svg; done
"""


@click.command(epilog=EPILOG)
@click.argument("path", required=False)
@click.option("-o", "--output", metavar="FILE", help="The picture, as .svg or .png.")
@click.option("--chart", default="throughput", show_default=True, metavar="NAME", help="Which one; --list names them.")
@click.option("--list", "listed", is_flag=True, help="The charts there are.")
@click.option("--slo", "slo_texts", multiple=True, metavar="OBJECTIVE", help="Judge by these instead of the run's own.")
@click.option("--step", type=Whole(0), metavar="N", help="Only this step.")
@click.option("--gpus", type=Whole(1, 1_000_000), metavar="N", help="GPUs that served it: throughput is per GPU.")
@click.option("--price", type=Number(above=0), metavar="AMOUNT", help="Of one GPU for an hour, in any currency.")
@click.option(
    "--width", type=Whole(200, 4000), default=340, show_default=True, metavar="PX", help="Of the plot itself."
)
@click.option(
    "--scale", type=Number(0.5, 8), default=2.0, show_default=True, metavar="N", help="Pixels of a PNG per px."
)
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of its words.")
def plot(
    path: str | None,
    output: str | None,
    chart: str,
    listed: bool,
    slo_texts: tuple[str, ...],
    step: int | None,
    gpus: int | None,
    price: float | None,
    width: int,
    scale: float,
    lang: str,
) -> int:
    """Draw one chart of a log as SVG or PNG, without browser or network.

    PATH is whatever `loadgen report` reads. The charts are those of the page of `loadgen report --html`.
    """
    import difflib
    from pathlib import Path

    from .reading import check_price, need_charts, read_run, view_of

    if listed:
        click.echo("\n".join(f"{name:<15}{about}" for name, about in NAMES.items()))
        return Exit.DONE
    if path is None:
        raise UsageError("there is nothing to draw", "give a run: loadgen plot RUN -o throughput.svg")
    if not output:
        raise UsageError("the picture has no name", "give one with -o, as .svg or .png")
    if chart not in NAMES:
        close = difflib.get_close_matches(chart, NAMES, n=1)
        raise UsageError(
            f"there is no chart {chart}", f"did you mean {close[0]}?" if close else f"there are {', '.join(NAMES)}"
        )
    if Path(output).suffix.lower() not in (".svg", ".png"):
        raise UsageError(f"{output} is neither .svg nor .png", "name the file one or the other")
    check_price(gpus, price)
    keep_apart(output, path, flag="-o")
    need_charts()
    from ..report.charts import draw
    from ..report.charts.render import write

    told = read_run(path, slo_texts, step)
    figure = draw(chart, view_of(told, gpus=gpus, price=price, language=lang, width=width))
    if figure is None:
        raise UsageError(f"{told.run.source} has nothing for the chart {chart}", "loadgen plot --list names the others")
    write(figure.spec, figure.title, Path(output), scale=scale)
    click.echo(f"{chart} → {output} · {figure.caption}", err=True)
    return Exit.DONE
