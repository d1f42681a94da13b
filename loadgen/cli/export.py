"""`loadgen export`: a log → rows for other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..errors import Exit, LogError, UsageError
from .streams import reader_may_go
from .values import Whole, keep_apart

if TYPE_CHECKING:
    from typing import BinaryIO

    from ..log.store import Run
    from ..records import Record

EPILOG = """\
\b
Examples:
  loadgen export results/RUN --format csv -o requests.csv
  loadgen export results/RUN --all | head
  loadgen export results/RUN --format parquet -o requests.parquet
  loadgen export results/RUN --format vllm --step 2 -o vllm.json
  loadgen export results/RUN --format jsonl --all | jq -r 'select(.outcome != "ok") | .error.message' | sort | uniq -c
  loadgen run http://localhost:8000 -c 8 -o - | loadgen export - --format csv > requests.csv
"""


@click.command(epilog=EPILOG)
@click.argument("path")
@click.option(
    "--format", "form", type=click.Choice(["csv", "jsonl", "parquet", "vllm"]), default="csv", show_default=True
)
@click.option("-o", "--output", default="-", metavar="FILE", help="Where to; - is stdout.  [default: -]")
@click.option("--step", type=Whole(0), metavar="N", help="Only this step.")
@click.option("--all", "everything", is_flag=True, help="Every request: warm-up, failed and cut ones too.")
def export(path: str, form: str, output: str, step: int | None, everything: bool) -> int:
    """Write the request log as CSV, JSON lines, Parquet, or the JSON of `vllm bench serve --save-detailed`.

    PATH is a run folder, its requests.jsonl, a stream written with `-o -`, a CSV, another tool's log, or - for stdin.
    Written are the measured requests that ended ok; with --all every one. The JSON of vLLM is of one step, and holds
    its failed requests too.

    The CSV begins with request_id, start_ts, first_token_ts, end_ts, input_tokens, output_tokens: times in seconds from
    the run's start, with all their nanoseconds.
    """
    import io
    import sys
    from pathlib import Path

    from ..log.formats import write_csv, write_jsonl
    from ..log.parquet import write_parquet
    from ..log.store import open_run
    from ..log.whole import whole_file

    if not output:
        raise UsageError("--output is empty", "give a file, or - for stdout")
    if output != "-":
        keep_apart(output, path, flag="-o")
    run = open_run(path)
    uncounted = () if everything else run.uncounted
    records = (r for r in run.records() if r.step not in uncounted and (step is None or r.step == step))
    if form == "vllm" and everything:
        raise UsageError("the JSON of vLLM has no place for warm-up", "leave out --all: failed requests are in it")

    whole = io.BytesIO()  # of what is made at once: a file is opened only when it can be filled
    if form == "vllm":
        made = _write_vllm(run, list(records), whole)
    elif form == "parquet":
        made = write_parquet(records, whole, everything=everything)

    def write(file: BinaryIO) -> int:
        if whole.tell():
            file.write(whole.getbuffer())
            return made
        if form == "jsonl":
            return write_jsonl(records, file, everything=everything)
        # newline="": the line ends are the csv module's business.
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        try:
            return write_csv(records, text, everything=everything)
        finally:
            text.detach()

    if output == "-":
        with reader_may_go():
            write(sys.stdout.buffer)
    else:
        try:
            with whole_file(Path(output)) as place, place.open("wb") as file:
                count = write(file)
        except OSError as error:
            raise LogError(
                f"{output} cannot be written: {error.strerror or error}", "give another file with -o"
            ) from error
        click.echo(f"{count:,} requests → {output}", err=True)
    return Exit.DONE


def _write_vllm(run: Run, records: list[Record], file: BinaryIO) -> int:
    from ..analysis.conventions import counted
    from ..log.codec import encode
    from ..log.columns import columns
    from ..report.vllm_json import vllm_object, vllm_requests

    table = columns(records)
    steps = table.steps()
    if len(steps) != 1:
        what = "has several steps, and the JSON of vLLM is of one" if steps else "has no such step"
        raise UsageError(
            f"{run.source} {what}", f"choose one with --step: {', '.join(map(str, steps))}" if steps else "leave it out"
        )
    durations = run.foreign.durations_s if run.foreign else {}
    rate = next((o.rate for o in run.observations if o.step == steps[0]), None)
    chosen = vllm_requests(records, steps[0])
    found = counted("vllm", table, steps[0], durations.get(steps[0]))
    file.write(encode(vllm_object(chosen, found, run.manifest, rate)))
    return len(chosen)
