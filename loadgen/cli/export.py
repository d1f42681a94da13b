"""`loadgen export`: a log → rows for other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..errors import Exit, LogError, UsageError

if TYPE_CHECKING:
    from typing import BinaryIO

EPILOG = """\
\b
Examples:
  loadgen export results/RUN --format csv -o requests.csv
  loadgen export results/RUN --all | head
  loadgen export results/RUN --format jsonl --all | jq -r 'select(.outcome != "ok") | .error.message' | sort | uniq -c
  loadgen run http://localhost:8000 -c 8 -o - | loadgen export - --format csv > requests.csv
"""


@click.command(epilog=EPILOG)
@click.argument("path")
@click.option("--format", "form", type=click.Choice(["csv", "jsonl"]), default="csv", show_default=True)
@click.option("-o", "--output", default="-", metavar="FILE", help="Where to; - is stdout.  [default: -]")
@click.option("--all", "everything", is_flag=True, help="Every request: warm-up, failed and cut ones too.")
def export(path: str, form: str, output: str, everything: bool) -> int:
    """Write the request log as CSV or JSON lines.

    PATH is a run folder, its requests.jsonl, a stream written with `-o -`, a CSV, or - for stdin. Written are the
    measured requests that ended ok; with --all every one.

    The CSV begins with request_id, start_ts, first_token_ts, end_ts, input_tokens, output_tokens: times in seconds from
    the run's start, with all their nanoseconds.
    """
    import io
    import sys
    from pathlib import Path

    from ..log.formats import write_csv, write_jsonl
    from ..log.store import open_run

    if not output:
        raise UsageError("--output is empty", "give a file, or - for stdout")
    if output != "-" and Path(output).exists() and Path(path).exists() and Path(output).samefile(path):
        raise UsageError(f"{output} is the log itself, which an export would overwrite", "give another file with -o")
    run = open_run(path)

    def write(file: BinaryIO) -> int:
        if form == "jsonl":
            return write_jsonl(run.records(), file, everything=everything)
        # newline="": the line ends are the csv module's business.
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        try:
            return write_csv(run.records(), text, everything=everything)
        finally:
            text.detach()

    if output == "-":
        try:
            write(sys.stdout.buffer)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            reader_gone()
    else:
        try:
            with Path(output).open("wb") as file:
                count = write(file)
        except OSError as error:
            raise LogError(
                f"{output} cannot be written: {error.strerror or error}", "give another file with -o"
            ) from error
        click.echo(f"{count:,} requests → {output}", err=True)
    return Exit.DONE


def reader_gone() -> None:
    """The reader of our stdout has gone (`| head`), as is its right: let what is still buffered go nowhere, in silence.
    Left to click, it would end the process with 1, which here means that the answer is no."""
    import os
    import sys

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
