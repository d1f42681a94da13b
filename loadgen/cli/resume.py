"""`loadgen sweep --resume`: the flags of a run that was interrupted, from its manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import Exit, UsageError
from .options import SECRET_FLAGS

if TYPE_CHECKING:
    from ..log.store import Run

# How the server is reached, and what is shown: these may be given again.
AGAIN = frozenset(
    (
        *("urls", "wait_ready", "api_key_env", "api_key_file", "header", "ca_file", "insecure", "client_cert"),
        *("proxy", "trust_env", "unix_socket", "metrics_url", "metrics_port", "quiet", "as_json", "ray"),
    )
)
_OURS = ("resume", "anyway")
_KEYS = ("api_key_env", "api_key_file")
MASK = "***"


def go_on(context: click.Context, path: str, climb: Callable[[dict[str, Any]], int]) -> int:
    """Take up the run in the folder `path`, or show its answer where there is nothing more to measure. `climb` is the
    verb, from its flags."""
    taken = taken_up(context, path)
    if isinstance(taken, dict):
        return climb(taken)
    from .report import report

    click.echo("nothing to resume: the run came to its end", err=True)
    context.invoke(report, path=path, as_json=context.params["as_json"])
    return taken


def taken_up(context: click.Context, path: str) -> dict[str, Any] | int:
    """The flags that go on with the run in the folder `path`, or its exit code where it came to its end. Raises
    UsageError."""
    from ..log.store import open_run
    from ..runner.config import Resume
    from ..runner.resume import is_finished

    run = open_run(path)
    manifest = _resumable(run, path)
    if is_finished(run):
        code = manifest.get("exit_code")
        return code if isinstance(code, int) else Exit.DONE
    stored, hidden = _stored(context, manifest)
    flags = _laid_over(context, stored, hidden, manifest)
    flags["resume_from"] = Resume(Path(path), anyway=context.params["anyway"])
    flags["output"] = str(Path(path).parent)
    return flags


def _resumable(run: Run, path: str) -> Mapping[str, Any]:
    if not Path(path).is_dir() or run.is_csv:
        raise UsageError(f"{path} is not a run folder", "give the folder of a sweep to --resume")
    manifest = run.manifest
    if manifest is None or not isinstance((manifest.get("workload") or {}).get("seed"), int):
        raise UsageError(
            f"the run in {path} was ended before its first step: there is nothing to go on from", "start it again"
        )
    command = manifest.get("command")
    if manifest.get("verb") != "sweep" or not isinstance(command, list) or command[:1] != ["sweep"]:
        raise UsageError(f"the run in {path} is no sweep", "measure it again: --resume is for sweeps")
    return manifest


def _stored(context: click.Context, manifest: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The flags of the run's command, and the names of those whose values it does not tell, as they may be secrets."""
    words, kept, hidden = iter(map(str, manifest["command"][1:])), list[str](), list[str]()
    for word in words:
        flag, equals, _ = word.partition("=")
        if flag in SECRET_FLAGS:
            hidden.append(flag)
            if not equals:
                next(words, None)
        elif MASK not in word:
            kept.append(word)
        elif flag.startswith("--"):
            hidden.append(flag)
        elif kept and kept[-1] == "--metrics-url":
            hidden.append(kept.pop())
        else:
            hidden.append("URL")
    own = context.command.make_context("sweep", kept, parent=context.parent)
    return dict(own.params), list(dict.fromkeys(hidden))


def _laid_over(
    context: click.Context, stored: dict[str, Any], hidden: list[str], manifest: Mapping[str, Any]
) -> dict[str, Any]:
    """The run's flags with what was given again. Raises UsageError for what contradicts them, or is missing."""
    given = {
        name
        for name in context.params
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE and name not in _OURS
    }
    flags, now = dict(stored), context.params
    for flag in hidden:
        name = "urls" if flag == "URL" else flag.removeprefix("--").replace("-", "_")
        if name not in given:
            raise UsageError(
                f"the run was started with {flag}, whose value is not kept, as it may be a secret",
                f"give {flag} again, the same as then",
            )
    if "--extra-body" in hidden:
        _check_body(now["extra_body"], manifest)
        flags["extra_body"] = now["extra_body"]
        given.discard("extra_body")
    for name in sorted(given):
        if name in AGAIN:
            flags[name] = now[name]
        elif now[name] != stored[name]:
            flag = name.replace("_", "-")
            raise UsageError(
                f"--{flag} contradicts the run, which is to go on as it began",
                f"leave --{flag} out; the URL, and how the server is reached, may be given again",
            )
    for name in _KEYS:
        if given & {*_KEYS} and name not in given:
            flags[name] = None
    return {name: value for name, value in flags.items() if name not in _OURS}


def _check_body(fields: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    from ..client.secrets import masked_body

    if masked_body(fields) != (manifest.get("request") or {}).get("extra_body"):
        raise UsageError(
            "--extra-body contradicts the run, which is to go on as it began", "give it the same as then, with its keys"
        )
