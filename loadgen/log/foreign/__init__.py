"""Logs that other tools wrote, read as runs. Pure over bytes.

A log is known by what it holds, not by its name. What it does not tell is None in the records, and what cannot be told
without that is null in every report. `docs/foreign-logs.md` says what is read from where.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson

from ...errors import LogError
from . import aiperf, guidellm, inference_perf, sglang, vllm
from .entry import Entry, Foreign

__all__ = ["Foreign", "beside", "complete", "read"]

_READERS = (vllm, sglang, aiperf, guidellm, inference_perf)


def read(data: bytes, source: str) -> Foreign | None:
    """The log of another tool, from the whole file; None where it is none that is known.

    Raises LogError, naming file, entry and field, for a log that is known but damaged, or that holds no requests."""
    found = _documents(data)
    reader = next((one for one in _READERS if found and one.recognises(found[0])), None)
    if reader is None:
        return None
    documents = [Entry(source if len(found) == 1 else f"{source} line {i}", one) for i, one in enumerate(found, 1)]
    log: Foreign = reader.read(documents)
    if not log.records:
        raise LogError(f"{source} is a log of {log.tool} without requests", "give one of a run that sent some")
    return log


def beside(log: Foreign, path: Path) -> Path | None:
    """The file that would lie beside this log and tell more of its run."""
    return path.with_name(f"{path.stem}_aiperf.json") if log.tool == aiperf.TOOL else None


def complete(log: Foreign, data: bytes, source: str) -> None:
    """Add what the file beside tells. Raises LogError where it is damaged."""
    found = _documents(data)
    if len(found) == 1 and isinstance(found[0], dict):
        aiperf.add_summary(log, Entry(source, found[0]))


def _documents(data: bytes) -> list[Any]:
    """One JSON document, or one a line; a half-written last line is left out. Nothing where it is neither."""
    try:
        return [_loads(data)]
    except ValueError:
        pass
    lines = [line for line in data.splitlines(keepends=True) if line.strip()]
    found = []
    for i, line in enumerate(lines):
        try:
            found.append(_loads(line))
        except ValueError:
            if i == len(lines) - 1 and i and not line.endswith(b"\n"):
                break
            return []
    return found


def _loads(data: bytes) -> Any:
    """JSON, also with Infinity and NaN, as Python writes an unlimited rate. ValueError for anything else."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            return json.loads(data)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
