"""The command group. Verbs are imported when they are used, so that `loadgen --help` answers at once."""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import os
import signal
import sys
from typing import Any

import click

from .. import __version__
from ..errors import Exit, LoadgenError, ReaderGoneError, UsageError
from .streams import drop_stdout, gone, prepare

# verb → (module in this package, one line for the help)
VERBS = {
    "sweep": ("sweep", "Raise the load step by step until it stops paying or an objective breaks."),
    "run": ("run", "Measure one load."),
    "replay": ("replay", "Send what a run sent, again, to another server."),
    "report": ("report", "Say what a log means."),
    "plot": ("plot", "Draw a chart of a log as SVG or PNG."),
    "export": ("export", "Write the request log as CSV or JSON lines."),
    "diagnose": ("diagnose", "Say what holds a server up, and one change to try."),
    "compare": ("compare", "Say how runs differ, and how sure that is."),
    "check": ("check", "Say whether a run has become worse: the exit code is the answer."),
    "experiment": ("experiment", "Ask what one technique gains: two arms, one changed variable, one verdict."),
    "plan": ("plan", "Say whether a model fits, what it holds, and what the hardware would allow."),
    "workloads": ("workloads", "List, show, sample and check the definitions of what is sent."),
    "simulate": ("simulate", "Serve a simulated engine whose true capacity is known."),
    "calibrate": ("calibrate", "Measure this machine itself: what it carries, and how wrong it is."),
    "completion": ("completion", "Write a completion script for bash, zsh or fish."),
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
            close = difflib.get_close_matches(cmd_name, VERBS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the verbs are {', '.join(VERBS)}"
            raise UsageError(f"there is no verb {cmd_name}", hint)
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
    if args is None:
        prepare()
    try:
        code = _invoke(args)
    except (click.Abort, KeyboardInterrupt):
        code = Exit.INTERRUPTED
    if args is None and code in (Exit.INTERRUPTED, Exit.TERMINATED):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # one more must not change the exit code
            signal.signal(number, signal.SIG_IGN)
    sys.exit(int(code))


def _invoke(args: list[str] | None) -> int:
    try:
        words = sys.argv[1:] if args is None else args
        _check_text(words)
        if args is None and "_LOADGEN_COMPLETE" in os.environ:  # a shell asks what could be typed next
            with contextlib.suppress(LoadgenError, click.ClickException, SystemExit):
                cli.main(prog_name="loadgen", complete_var="_LOADGEN_COMPLETE")
            return Exit.DONE
        return _called(words)
    except ReaderGoneError:
        drop_stdout()
        return Exit.DONE
    except LoadgenError as error:
        return _tell(error.message, error.remedy, error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return Exit.USAGE
    except click.NoSuchOption as error:
        return _tell(f"there is no option {error.option_name}", _similar(error), Exit.USAGE)
    except click.UsageError as error:
        see = error.ctx.command_path if error.ctx else "loadgen"
        return _tell(error.format_message().rstrip("."), f"{see} --help", Exit.USAGE)
    except click.ClickException as error:
        return _tell(error.format_message(), "", Exit.USAGE)
    except OSError as error:
        if gone(error, 1):  # the reader of our output (`| head`): that is its right
            drop_stdout()
            return Exit.DONE
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        drop_stdout()
        return _tell(f"stdout cannot be written: {error.strerror}", "make room, or send it elsewhere", Exit.USAGE)


def _called(words: list[str]) -> int:
    """The verb's exit code. Not by click's own `main`, which ends the process with 1 where a reader has gone."""
    try:
        with cli.make_context("loadgen", [*words], obj=words) as context:
            code = int(cli.invoke(context) or 0)
    except click.exceptions.Exit as ended:
        code = ended.exit_code
    except (EOFError, KeyboardInterrupt):
        click.echo(err=True)  # ends the line of the ^C
        code = Exit.INTERRUPTED
    if not sys.stdout.closed:  # as what wrapped it does where its reader has gone
        sys.stdout.flush()
    return code


def _tell(message: str, remedy: str, code: Exit) -> Exit:
    """What went wrong in one sentence and what to do about it in another, without what could drive the terminal."""
    from ..report.numbers import clean

    click.echo(f"loadgen: {clean(message)}" + (f"\n  → {clean(remedy)}" if remedy else ""), err=True)
    return code


def _check_text(args: list[str]) -> None:
    """Text that is not UTF-8 fits into no request, log or manifest."""
    for arg in args:
        if not arg.isascii() and any("\ud800" <= letter <= "\udfff" for letter in arg):
            raise UsageError(f"the argument {arg!a} is not UTF-8 text", "check the terminal's encoding")


def _similar(error: click.NoSuchOption) -> str:
    names = [name for param in error.ctx.command.params for name in param.opts] if error.ctx else []
    close = difflib.get_close_matches(error.option_name, names, n=2, cutoff=0.7)
    close = [name for name in names if name.startswith(error.option_name)] or close
    path = f"{error.ctx.command_path} --help" if error.ctx else "--help"
    return f"did you mean {' or '.join(close)}?" if close else f"{path} lists them"
