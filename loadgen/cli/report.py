"""`loadgen report`: a log → what it means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import Exit, LogError, UsageError
from .streams import reader_may_go
from .values import Number, Whole, screen_width

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ..log.store import Run
    from ..report.text import Mark
    from ..results import Slo, StepSummary, Stop

TOOLS = ("vllm", "sglang", "guidellm", "aiperf", "inference-perf")
AXES = "input, output, concurrency, time, model, peer, turn, cached"

EPILOG = """\
\b
Examples:
  loadgen report results/20261129T134500Z-made-text
  loadgen report results/RUN --slo ttft_p95=300ms --slo tpot_p95=40ms
  loadgen report results/RUN --details --step 3
  loadgen report results/RUN --by input,output
  loadgen report results/RUN --html page.html --gpus 8 --price 2.50
  loadgen report measured-by-anyone.csv
  loadgen report vllm-bench.json --definitions guidellm
  loadgen report results/RUN --json | jq '.steps[] | {max_concurrency, output_throughput, p95_ttft_ms, failed}'
  loadgen export results/RUN --format csv | loadgen report -
"""


@click.command(epilog=EPILOG)
@click.argument("path")
@click.option("--slo", "slo_texts", multiple=True, metavar="OBJECTIVE", help="Judge by these instead of the run's own.")
@click.option("--details", is_flag=True, help="All latencies, rates and checks of every step.")
@click.option("--by", metavar="AXES", help=f"Latencies by bucket: {AXES} (several, with commas).")
@click.option("--definitions", type=click.Choice(TOOLS), help="Also as this tool would count the same requests.")
@click.option("--step", type=Whole(0), metavar="N", help="Only this step, with its details.")
@click.option("--json", "as_json", is_flag=True, help="JSON with the keys of `vllm bench serve` where it has one.")
@click.option("--html", metavar="FILE", help="A page with charts instead, complete in itself; - is stdout.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of the page.")
@click.option(
    "--gpus", type=Whole(1, 1_000_000), metavar="N", help="GPUs that served it: the page tells what each gave."
)
@click.option("--price", type=Number(above=0), metavar="AMOUNT", help="Of one GPU for an hour, in any currency.")
def report(
    path: str,
    slo_texts: tuple[str, ...],
    details: bool,
    by: str | None,
    definitions: str | None,
    step: int | None,
    as_json: bool,
    html: str | None,
    lang: str,
    gpus: int | None,
    price: float | None,
) -> int:
    """Say what a log means.

    PATH is a run folder, its requests.jsonl, a stream written with `-o -`, a CSV with the columns request_id, start_ts,
    first_token_ts, end_ts, input_tokens and output_tokens (seconds), the log of vllm bench, SGLang, AIPerf, GuideLLM or
    inference-perf, or - for stdin.

    With --slo the exit code is the answer: 0 a level held, 1 none did, 4 undecided.
    """
    import sys

    from ..analysis.buckets import by_buckets
    from ..analysis.conventions import counted as counted_by
    from ..log.codec import encode, plain
    from ..report.bucketed import bucket_lines, buckets_object
    from ..report.conventions import counted_lines, counted_object
    from ..report.jsonout import report_object
    from ..report.text import render
    from .reading import check_page, check_price, findings_of, read_run, view_of, write_page

    axes = _axes(by) if by is not None else ()
    if html is not None:
        check_page(html, path, as_json=as_json)
        check_price(gpus, price)
    told = read_run(path, slo_texts, step)
    run, facts = told.run, told.facts
    summaries, marks, stop, slo = told.summaries, told.marks, told.stop, told.slo
    if html is not None:
        from ..report.page.run import run_page

        view = view_of(told, gpus=gpus, price=price, language=lang, by=axes)
        write_page(html, run_page(view, findings_of(told, lang)))
        if not as_json:
            return _exit(stop) if told.judged_again else Exit.DONE
    buckets = by_buckets(told.counted, axes, summaries) if axes else []
    durations = run.foreign.durations_s if run.foreign else {}
    named = definitions or ""
    others = [counted_by(named, told.counted, s.step, durations.get(s.step)) for s in summaries if definitions]
    with reader_may_go():
        if as_json:
            whole_report = report_object(facts, summaries, marks, stop, slo)
            more = {"by": plain(buckets_object(buckets))} if axes else {}
            more |= {"counted_as": plain(counted_object(others))} if definitions else {}
            sys.stdout.buffer.write(encode({**whole_report, **more}))
        else:
            whole = details or step is not None
            click.echo(render(facts, summaries, marks, stop, slo, details=whole, width=screen_width()), nl=False)
            if axes:
                click.echo("\n" + "\n".join(bucket_lines(buckets, screen_width())))
            if definitions:
                click.echo("\n" + "\n".join(counted_lines(others, summaries)))
    return _exit(stop) if told.judged_again else Exit.DONE


def _axes(text: str) -> tuple[str, ...]:
    """`input,output` → the axes of the buckets."""
    from ..analysis.buckets import AXES as KNOWN

    axes = tuple(dict.fromkeys(word.strip().lower() for word in text.split(",") if word.strip()))
    wrong = next((axis for axis in axes if axis not in KNOWN), None)
    if wrong is not None or not axes:
        raise UsageError(f"--by {text} names no axis", f"say one or more of {AXES}, with commas")
    return axes


def manifest_slo(manifest: Mapping[str, Any] | None) -> Slo:
    """The objectives a run was made with: the manifest's `slo`, its objectives as they were typed."""
    from dataclasses import replace

    from ..results import Slo
    from ..slo import parse_slo

    found = (manifest or {}).get("slo")
    try:
        if not isinstance(found, dict) or not found.get("objectives"):
            return Slo()
        slo = parse_slo([str(text) for text in found["objectives"]])
        return replace(slo, attainment=float(found.get("attainment", slo.attainment)))
    except (TypeError, ValueError, UsageError) as error:
        raise LogError(f"the manifest's objectives cannot be read: {error}", "give them again with --slo") from error


def marks_of(
    run: Run, summaries: Sequence[StepSummary], slo: Slo, *, again: bool, anew: Collection[int] = ()
) -> dict[int, Mark]:
    """The verdict of each step: the one that the run itself came to, else judged from the records, as are the steps
    `anew`."""
    from ..log.codec import decode_levels
    from ..report.text import Mark
    from ..search.verdict import judge

    manifest = run.manifest or {}
    plan = manifest.get("plan")
    rate = plan.get("max_error_rate") if isinstance(plan, dict) else None
    written = {} if again else {**run.verdicts, **decode_levels(manifest.get("levels"))}
    marks = {}
    for i, summary in enumerate(summaries):
        if summary.step in written and summary.step not in anew:
            marks[summary.step] = Mark(*written[summary.step])
            continue
        level = judge(
            summary,
            slo,
            max_error_rate=float(rate) if isinstance(rate, int | float) else 0.01,
            baseline=i == 0 and len(summaries) > 1,
        )
        marks[summary.step] = Mark(level.verdict, level.broke)
    return marks


def answer_again(summaries: Sequence[StepSummary], marks: Mapping[int, Mark]) -> Stop | None:
    """What the measured levels say under other objectives; of a level measured twice the longer step counts, of equal
    ones the later."""
    from ..results import Stop
    from ..slo import broken_names

    last = {s.load: (s, marks[s.step]) for s in sorted(summaries, key=lambda s: s.judged)}
    unit = "requests/s" if any(s.rate is not None for s in summaries) else "concurrent requests"
    if not last:
        return None
    broke = min((c for c, (_, mark) in last.items() if mark.verdict == "fail"), default=None)
    held = max(
        (c for c, (_, mark) in last.items() if mark.verdict == "pass" and (broke is None or c < broke)), default=None
    )
    names = broken_names(last[broke][1].broke, last[broke][0].objectives) if broke is not None else ""
    if held is not None and broke is not None:
        sentence = f"{_load(held, unit)} hold, {broke:,g} do not ({names})"
    elif held is not None:
        sentence = f"{_load(held, unit)} hold" + (
            ", and no other level measured is proven to break" if len(last) > 1 else ""
        )
    elif broke is not None:
        sentence = f"no measured level holds: {_load(broke, unit)} break {names}"
    else:
        sentence = "undecided: no measured level is proven to hold or to break; measure longer"
    above = tuple(c for c in sorted(last) if broke is not None and c > broke and last[c][1].verdict == "pass")
    if above:
        start = sentence if held is not None else f"{_load(broke or 0, unit)} break {names}"
        sentence = f"{start}; above that, {', '.join(f'{c:,g}' for c in above)} hold again"
    peak = max((s.output_throughput for s in summaries if s.output_throughput), key=lambda e: e.value, default=None)
    reason = f"slo:{last[broke][1].broke[0]}" if broke is not None else "max_level"
    return Stop(reason, held, broke, peak, sentence, held_again=above)


def _load(load: float, unit: str) -> str:
    return f"{load:,g} {unit}" if load else "these requests"  # a CSV may not tell


def _exit(answer: Stop | None) -> Exit:
    if answer is not None and answer.held is not None:
        return Exit.DONE
    return Exit.NO if answer is not None and answer.broke is not None else Exit.UNDECIDED
