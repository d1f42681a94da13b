"""A run folder that an interrupted run left, made fit to be written to again."""

from __future__ import annotations

import os
from pathlib import Path

import orjson

from ..errors import LogError
from . import codec
from .append import Lines, absorb, not_written
from .store import REQUESTS, SERVER, STEPS, RunFolder

_BLOCK = 1 << 16


def reopen(path: Path) -> RunFolder:
    """The folder, open for writing: nobody else writes to it, each file ends with a whole line, and what workers had
    kept for themselves lies among the run's requests, once.

    Raises LogError where the run still goes on, or the disk refuses."""
    folder = RunFolder(path)  # holds it before anything is changed
    try:
        for name in (REQUESTS, STEPS, SERVER):
            mend(path / name)
        _gather(path)
    except OSError as error:
        folder.close()
        raise not_written(Path(error.filename or path), error) from error
    except BaseException:
        folder.close()
        raise
    return folder


def mend(path: Path) -> bool:
    """Cut off a last line that is not whole, or end it where only its newline is missing. True if there was one."""
    try:
        if not path.exists():
            return False
        with path.open("r+b") as file:
            size = end = file.seek(0, os.SEEK_END)
            tail = b""
            while end and b"\n" not in tail:
                start = max(0, end - _BLOCK)
                file.seek(start)
                tail, end = file.read(end - start) + tail, start
            line = tail[tail.rfind(b"\n") + 1 :]
            if not line:
                return False
            try:
                orjson.loads(line)
            except orjson.JSONDecodeError:
                file.truncate(size - len(line))
            else:
                file.seek(size)
                file.write(b"\n")
            return True
    except OSError as error:
        raise not_written(path, error) from error


def _gather(path: Path) -> None:
    """Move the records in the workers' files to those of the run. A move that was interrupted has left some in both."""
    parts = [part for part in sorted(path.glob("requests-w*.jsonl")) if part.stat().st_size]
    if parts:
        known = set()
        with (path / REQUESTS).open("rb") as file:
            for number, line in enumerate(file, 1):
                known.add(codec.decode_line(line, str(path / REQUESTS), number).get("id"))
        into = Lines(path / REQUESTS)
        try:
            for part in parts:
                _drop(part, known)
                absorb(part, into, lambda record: None)
        finally:
            into.close()
    for part in path.glob("requests-w*.jsonl"):
        part.unlink()  # a worker that outlived its run writes to what nobody reads


def _drop(part: Path, known: set[object]) -> None:
    """Take those out of a worker's file that the run has."""
    with part.open("rb") as file:
        lines = file.readlines()
    kept = []
    for number, line in enumerate(lines, 1):
        try:
            if codec.decode_line(line, str(part), number).get("id") not in known:
                kept.append(line)
        except LogError:  # a last line that is not whole
            if line.endswith(b"\n"):
                raise
    if len(kept) < len(lines):
        temporary = part.with_name(part.name + ".tmp")
        temporary.write_bytes(b"".join(kept))
        temporary.replace(part)
