"""What was made of a long log, kept beside it so that the next reader need not read the log again.

    results/RUN/.loadgen-cache/     safe to delete at any time
      columns                       the packed columns
      digest-….json                 what they say, for one set of objectives

1. Never stale: the file names the log's files as they were before they were read (name, size, number, times of change,
   the checksum of the end of each) and what its codes stand for. One that is not exactly so is not used, and is written
   anew.
2. Never in the way: a folder that cannot be written to, a full disk or a damaged file only costs the time to read the
   log.
3. Never half-written: written under another name, then renamed.

Layout of `columns`: one line of JSON (`head`), then the arrays it tells of, each as its bytes, one after the other.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from ..errors import Failure
from ..records import FLAGS, OUTCOMES, PHASES, TOKEN_SOURCES
from . import codec
from .columns import Block, ColumnBuilder
from .packed import Packed
from .rows import ROW, TIMEOUTS

if TYPE_CHECKING:
    from .opened import Run

FOLDER, COLUMNS = ".loadgen-cache", "columns"
VERSION = 2  # of this layout, and of what is refused before it is kept
LEAST_BYTES = 16 << 20  # of a log; a shorter one is read in less than a second
MOST_DIGESTS = 8
REQUEST_FILE = re.compile(r"requests(-.*)?\.jsonl")
_TAIL = 1 << 16
_KINDS = (None, np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.uint32), np.dtype(np.int64))


class Identity(NamedTuple):
    """What a log's files were at one moment."""

    files: tuple[tuple[str, int, int, int, int, int], ...]  # name, size, inode, mtime and ctime in ns, checksum
    size: int


def identity(files: Sequence[Path]) -> Identity | None:
    """Of these files now; None where one cannot be read."""
    found = []
    try:
        for path in files:
            with path.open("rb") as file:
                told = os.fstat(file.fileno())
                file.seek(max(0, told.st_size - _TAIL))
                changed = told.st_mtime_ns, told.st_ctime_ns
                found.append((path.name, told.st_size, told.st_ino, *changed, zlib.crc32(file.read(_TAIL))))
    except OSError:
        return None
    return Identity(tuple(found), sum(one[1] for one in found))


def place_of(run: Run) -> tuple[Path, Identity] | None:
    """Where what is made of this run's log can be kept, and what the log is now; None for one that is not of a run
    folder, or so short that it is read as fast."""
    files = run.files()
    if not files or any(not REQUEST_FILE.fullmatch(file.name) for file in files):
        return None
    now = identity(files)
    return None if now is None or now.size < LEAST_BYTES else (files[0].parent, now)


def load(folder: Path, of: Identity) -> tuple[ColumnBuilder, int] | None:
    """The columns kept for exactly these files, and how many half-written lines the log had; None where there are none.
    Their arrays are read from the file as they are looked at."""
    try:
        with (folder / FOLDER / COLUMNS).open("rb") as file:
            head = orjson.loads(file.readline(1 << 30))
            if head["version"] != VERSION or head["files"] != [list(one) for one in of.files]:
                return None
            if head["names"] != list(ROW) or head["codes"] != _codes():
                return None
            return unpacked(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except (OSError, ValueError, KeyError, TypeError, IndexError, codec.FaultError):
        return None


def keep(folder: Path, of: Identity, builder: ColumnBuilder, truncated_lines: int) -> None:
    """Keep the columns read from these files. Nothing is said where that cannot be done: it is only slower then."""
    head = {"version": VERSION, "files": of.files, "names": ROW, "codes": _codes()}
    _write(folder / FOLDER, COLUMNS, packed(builder, truncated_lines, **head))


def packed(builder: ColumnBuilder, truncated_lines: int, **more: Any) -> Iterator[bytes | memoryview]:
    """Columns as bytes, which begin with a line of JSON that has `more` in it."""
    blocks, ids, errors, models, peers = builder.packed()
    listed = [_column(one) for block in blocks for one in _columns_of(block)]
    text = orjson.dumps(ids)
    head = {
        **more,
        "truncated_lines": truncated_lines,
        "columns": len(listed),
        "bounds": [len(block.bounds) for block in blocks],
        "models": models,
        "peers": peers,
        "errors": [[row, codec.failure_object(one)] for row, one in errors.items()],
        "ids": len(text),
    }
    yield codec.encode(head)
    yield text
    yield np.array(listed, dtype=np.int64).tobytes()
    for block in blocks:
        for one in _columns_of(block):
            if one is not None and one.codes is not None:
                yield np.ascontiguousarray(one.codes).data
        yield np.ascontiguousarray(block.bounds).data


def recall(folder: Path, key: str) -> bytes | None:
    """What was kept under this key."""
    try:
        return (folder / FOLDER / f"digest-{key}.json").read_bytes()
    except OSError:
        return None


def remember(folder: Path, key: str, text: bytes) -> None:
    """Keep this; of those kept before, the latest few stay."""
    _write(folder / FOLDER, f"digest-{key}.json", iter([text]))
    with contextlib.suppress(OSError):
        kept = sorted((folder / FOLDER).glob("digest-*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in kept[:-MOST_DIGESTS]:
            path.unlink()


def _write(place: Path, name: str, parts: Iterable[bytes | memoryview]) -> None:
    temporary = place / f"{name}.{os.getpid()}.tmp"
    try:
        place.mkdir(exist_ok=True)
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
        temporary.replace(place / name)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        with contextlib.suppress(OSError):
            place.rmdir()  # only if there is nothing in it


def _codes() -> list[list[str]]:
    """What the codes and bits in the columns stand for, by their places."""
    return [list(names) for names in (PHASES, OUTCOMES, TOKEN_SOURCES, TIMEOUTS, FLAGS)]


def _columns_of(block: Block) -> tuple[Packed | None, ...]:
    return (*block.rows, block.gaps, block.tokens)


def _column(packed: Packed | None) -> tuple[int, int, int]:
    """How many values (-1: there is no such column), the base, which kind of codes."""
    if packed is None:
        return -1, 0, 0
    return packed.n, packed.base, 0 if packed.codes is None else _KINDS.index(packed.codes.dtype)


def unpacked(data: memoryview) -> tuple[ColumnBuilder, int]:
    """The columns that were `packed`, and how many half-written lines there were. Raises ValueError where the bytes end
    too early."""
    at = _line_end(data)
    head: Mapping[str, Any] = orjson.loads(data[:at])
    ids: list[str] = orjson.loads(data[at : at + head["ids"]])
    at += head["ids"]
    listed = np.frombuffer(data, dtype=np.int64, count=3 * head["columns"], offset=at).reshape(-1, 3).tolist()
    at += 24 * len(listed)
    width = len(ROW) + 2
    blocks = []
    for i, n_bounds in enumerate(head["bounds"]):
        columns: list[Packed | None] = []
        for n, base, kind in listed[i * width : (i + 1) * width]:
            dtype = _KINDS[kind]
            codes = None
            if dtype is not None:
                codes = np.frombuffer(data, dtype=dtype, count=n, offset=at)
                at += codes.nbytes
            columns.append(None if n < 0 else Packed(n, base, codes))
        bounds = np.frombuffer(data, dtype=np.int64, count=2 * n_bounds, offset=at).reshape(-1, 2)
        at += bounds.nbytes
        *rows, gaps, tokens = columns
        blocks.append(Block(tuple(one for one in rows if one is not None), gaps, tokens, bounds))
    if at != len(data):
        raise ValueError("not the length it should have")
    errors: dict[int, Failure] = {int(row): codec.decode_failure(told) for row, told in head["errors"]}
    return ColumnBuilder.of(blocks, ids, errors, head["models"], head["peers"]), int(head["truncated_lines"])


def _line_end(data: memoryview) -> int:
    """How long the first line is."""
    for size in (1 << 16, len(data)):
        if (found := bytes(data[:size]).find(b"\n")) >= 0:
            return found + 1
    raise ValueError("no line")
