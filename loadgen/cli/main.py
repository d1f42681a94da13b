"""The command group. Verbs are imported when they are used, so that `loadgen --help` answers at once."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from .. import __version__
from ..errors import Exit, LoadgenError

# verb → (module in this package, one line for the help)
VERBS = {
    "sweep": ("sweep", "Raise the load step by step until it stops paying or an objective breaks."),
    "run": ("run", "Measure one load."),
    "report": ("report", "Say what a log means."),
    "export": ("export", "Write the request log as CSV or JSON lines."),
    "simulate": ("simulate", "Serve a simulated engine whose true capacity is known."),
}

EPILOG = """\
\b
Examples:
  loadgen sweep http://localhost:8000 --slo ttft_p95=500ms --slo tpot_p95=50ms
  loadgen sweep --simulate --slo ttft_p95=500ms
  loadgen run http://localhost:8000 -c 32 --input-len 1000 --output-len 200
  loadgen report results/RUN --json | jq .answer
  loadgen export results/RUN --format csv | head
"""


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f".{VERBS[cmd_name][0]}", __package__)
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])


@click.group(
    cls=_Verbs, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="loadgen")
def cli() -> None:
    """Measure how much load an LLM inference server takes, at what latency, and how sure that is.

    Point it at any OpenAI-compatible URL. It keeps a log of every request and says what the numbers mean.
    """


def main(args: list[str] | None = None) -> Any:
    """Run the command line; the process exits with one of `errors.Exit`."""
    try:
        code = cli.main(args=args, prog_name="loadgen", standalone_mode=False)
    except LoadgenError as error:
        click.echo(f"loadgen: {error}", err=True)
        code = error.exit_code
    except click.UsageError as error:
        hint = f"\n  → {error.ctx.command_path} --help" if error.ctx else ""
        click.echo(f"loadgen: {error.format_message().rstrip('.')}{hint}", err=True)
        code = Exit.USAGE
    except click.ClickException as error:
        click.echo(f"loadgen: {error.format_message()}", err=True)
        code = Exit.USAGE
    except (click.Abort, KeyboardInterrupt):
        code = Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): that is its right.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = Exit.DONE
    sys.exit(int(code or 0))
