"""A workload as JSON: for another process, and for the manifest, from which a replay makes its prompts again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .definition import workload_of
from .files import read_prompts
from .models import ModelMix
from .plain import PlainWorkload, defined_workload, traced_workload
from .prompts import LengthRange
from .sessions import sessions_object, sessions_of
from .sharing import sharing_of
from .traces.looking import replayed_of


def told_object(workload: PlainWorkload) -> dict[str, Any] | None:
    """For the manifest, what a replay makes the text again from; None where each prompt is on its own or was given. Of
    a trace whose requests have text in common it is the trace, and how it was sent."""
    trace = workload.trace
    if trace is None:
        return made_object(workload) if workload.sized else None
    if not (trace.timed and trace.shares):
        return None
    found = trace.as_object()
    return {"trace": {**found, "choice": {**found["choice"], "path": str(trace.trace.path.resolve())}}}


def made_object(workload: PlainWorkload) -> dict[str, Any]:
    """What the made text of a workload follows from, but for its seed and nonce."""
    defined = None if workload.definition is None else workload.definition.sessions  # it knows them by itself
    lengths = {"input_len": workload.input_len, "output_len": workload.output_len}
    return {
        **{name: None if length is None else [length.low, length.high] for name, length in lengths.items()},
        "definition": None if workload.definition is None else dict(workload.definition.table),
        "sharing": None if workload.sharing is None else workload.sharing.as_object(),
        "sessions": None if workload.sessions == defined else sessions_object(workload.sessions),
    }


def made_workload(found: Mapping[str, Any]) -> PlainWorkload:
    """The workload of `made_object`. Raises UsageError, or, for what is none, KeyError, TypeError or ValueError."""
    sharing, sessions = sharing_of(found["sharing"]), sessions_of(found["sessions"])
    if found["definition"] is not None:
        workload = defined_workload(workload_of(found["definition"], "the workload"))
        return replace(workload, sharing=sharing, sessions=sessions or workload.sessions)
    input_len, output_len = (LengthRange(*found[k]) if found[k] else None for k in ("input_len", "output_len"))
    return PlainWorkload(input_len, output_len, sharing=sharing, sessions=sessions)


def workload_object(workload: PlainWorkload) -> dict[str, Any]:
    """All that its stream of prompts is made from."""
    return {
        **made_object(workload),
        "file": None if workload.file is None else str(workload.file.path),
        "content_hash": workload.content_hash,
        "models": None if workload.models is None else asdict(workload.models),
        "trace": None if workload.trace is None else workload.trace.as_object(),
    }


def passed_workload(found: Mapping[str, Any], count: Callable[[str], int] | None) -> PlainWorkload:
    """The workload of `workload_object`. `count` counts the tokens of a trace's texts. Raises UsageError where a file
    is no longer what it was."""
    mix = found["models"]
    models = None if mix is None else ModelMix(tuple(mix["names"]), tuple(mix["shares"]))
    if found["trace"] is not None:
        return replace(traced_workload(replayed_of(found["trace"], count)), models=models)
    workload = made_workload(found)
    if found["file"] is None:
        return replace(workload, models=models)
    output_len = workload.output_len
    file = read_prompts(Path(found["file"]), None if output_len is None else output_len.low)
    if file.content_hash != found["content_hash"]:
        raise UsageError(
            f"the prompts file {found['file']} has changed since the run began", "leave it alone while a run lasts"
        )
    return PlainWorkload(None, output_len, file.head, file=file, models=models)
