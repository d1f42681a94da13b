"""A run that was logged, opened for reading: a run folder (`store`), finished or not, a stream of its lines, or what
another tool wrote.

A line is believed only if it is whole: a last line without its newline that does not parse is dropped and counted.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import re
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from ..errors import LogError
from ..records import SCHEMA_VERSION, Record
from ..results import Observation, ServerSample, Stop
from . import codec, foreign
from .formats import read_csv
from .serverlog import decode_server

MANIFEST, REQUESTS, STEPS, SERVER = "manifest.json", "requests.jsonl", "steps.jsonl", "server.jsonl"
GIVE = "give a run folder, its requests.jsonl, a CSV with the six columns, or - for stdin"


@dataclass(frozen=True, slots=True)
class Block:
    """Some records of a run: as they were read, and as the lines of the log where it has such."""

    lines: list[bytes] | None
    records: Callable[[], Iterator[Record]]


@dataclass(frozen=True, slots=True)
class Span:
    """Whole lines of a log's file: its bytes from `start` to `end`; None is all that follow."""

    start: int
    end: int | None


@dataclass(slots=True)
class Run:
    """A run that was read: its facts at once, its records one by one.

    `status` is the manifest's; `interrupted` where the run never got to its end, `imported` where it is not ours.
    `truncated_lines` counts half-written lines and is complete once `records()` and the steps were read. `verdicts` are
    those that the run came to as each step ended: step → (verdict, broken objectives); `sent` how many measured
    requests it had in its log then, where all of that log is read.
    """

    source: str
    manifest: dict[str, Any] | None = None
    observations: list[Observation] = field(default_factory=list)
    server: list[ServerSample] = field(default_factory=list)
    verdicts: dict[int, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    truncated_lines: int = 0
    is_csv: bool = False
    foreign: foreign.Foreign | None = None  # where another tool wrote the log
    truncated_beside: int = 0  # of `truncated_lines`, those of the steps and of the server's samples
    _files: list[tuple[str, Path | BinaryIO]] = field(default_factory=list)
    _loaded: list[Record] | None = None

    @property
    def status(self) -> str:
        if self.manifest is None:
            return "imported"
        status = self.manifest.get("status")
        return "interrupted" if status in (None, "running") else str(status)

    @property
    def stop(self) -> Stop | None:
        return codec.decode_stop(self.manifest.get("stop")) if self.manifest else None

    @property
    def uncounted(self) -> frozenset[int]:
        """Steps that an interruption cut short and that were measured again, as other steps, when the run was resumed:
        their requests are kept, and stand for nothing."""
        resumed = (self.manifest or {}).get("resumed")
        entries = [one for one in resumed if isinstance(one, dict)] if isinstance(resumed, list) else []
        steps = [one.get("uncounted") for one in entries]
        return frozenset(step for listed in steps if isinstance(listed, list) for step in listed if type(step) is int)

    @property
    def newer(self) -> int | None:
        """The version of its form, where a later one than this program knows wrote it."""
        version = (self.manifest or {}).get("schema_version")
        return version if type(version) is int and version > SCHEMA_VERSION else None

    def records(self) -> Iterator[Record]:
        """Every record of the run, in the order of the log. LogError, naming file and line, for a line that is none;
        at the end, for one that was there before."""
        if self._loaded is not None:
            yield from self._loaded
            return
        # A merge that was interrupted leaves records both in their part file and in the merged one.
        seen: set[str] | None = set() if len(self._files) > 1 else None
        hashes = array("q")
        self.truncated_lines = self.truncated_beside
        for name, file in self._files:
            for number, obj in self._lines(name, file):
                if obj.get("kind", "request") != "request":
                    continue
                record = codec.decode_record(obj, name, number)
                if seen is not None:
                    if record.id in seen:
                        continue
                    seen.add(record.id)
                else:
                    hashes.append(hash(record.id))
                yield record
        self.refuse_repeated(hashes)

    def refuse_repeated(self, hashes: array[int]) -> None:
        """LogError, naming file and line, where a request is in the log twice, as the hashes of all ids (eight bytes
        each, where a set takes a hundred) say that one may be."""
        if not _some_alike(hashes):
            return
        truncated = self.truncated_lines
        for name, file in self._files:
            known: dict[str, int] = {}
            for number, obj in self._lines(name, file):
                found = obj.get("id") if obj.get("kind", "request") == "request" else None
                if found in known:
                    raise LogError(
                        f"{name} line {number}: the request {found} is there already, in line {known[found]}",
                        "a request is logged once; was the file put together from others? take out what is repeated",
                    )
                if isinstance(found, str):
                    known[found] = number
        self.truncated_lines = truncated

    @property
    def in_lines(self) -> bool:
        """Is the log one file of lines, which holds each request once?"""
        return self._loaded is None and len(self._files) == 1

    def files(self) -> list[Path]:
        """The files of a run folder that hold its records; none where it was read from elsewhere."""
        found = [file for _, file in self._files if isinstance(file, Path)]
        return found if self._loaded is None and len(found) == len(self._files) else []

    def spans(self, size: int) -> list[Span]:
        """The log in spans of some `size` bytes, where it is a single file on disk."""
        if len(files := self.files()) != 1:
            return []
        cuts = [0]
        with _open(files[0]) as file:
            length = file.seek(0, io.SEEK_END)
            while (at := cuts[-1] + size) < length:
                file.seek(at)
                file.readline()
                if file.tell() >= length:  # perhaps within a line that is being written
                    break
                cuts.append(file.tell())
        return [Span(start, end) for start, end in zip(cuts, [*cuts[1:], None], strict=True)]

    def blocks(self, size: int, span: Span | None = None) -> Iterator[Block]:
        """The same records, `size` lines at a time where they are lines of one file, else all at once; or those of a
        span, whose lines are counted from its first."""
        if not self.in_lines:
            yield Block(None, self.records)
            return
        self.truncated_lines = self.truncated_beside
        ((name, file),) = self._files
        with _opened(file) as whole:
            lines = whole if span is None else _part(whole, span)
            number = 1
            while block := list(itertools.islice(lines, size)):
                yield Block(block, functools.partial(self._decoded, name, block, number))
                number += len(block)

    def _decoded(self, name: str, lines: Iterable[bytes], first: int) -> Iterator[Record]:
        for number, obj in self._objects(name, lines, first):
            if obj.get("kind", "request") == "request":
                yield codec.decode_record(obj, name, number)

    def _lines(self, name: str, file: Path | BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
        with _opened(file) as lines:
            yield from self._objects(name, lines, 1)

    def _objects(self, name: str, lines: Iterable[bytes], first: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in enumerate(lines, first):
            if not line.strip():
                continue
            try:
                yield number, codec.decode_line(line, name, number)
            except LogError:
                if line.endswith(b"\n"):
                    raise
                self.truncated_lines += 1


def _some_alike(hashes: array[int]) -> bool:
    import numpy as np  # here, as it takes longer to load than most logs to open

    found = np.sort(np.frombuffer(hashes, dtype=np.int64)) if hashes else np.empty(0)
    return bool((found[1:] == found[:-1]).any())


def open_run(path: str | Path) -> Run:
    """A run folder, one of its request files, a tagged stream, a CSV, another tool's log, or `-` for stdin, opened for
    reading.

    Raises LogError when there is nothing to read there, or it is none of these."""
    if str(path) == "-":
        return _open_file("stdin", _spooled(sys.stdin.buffer))
    path = Path(path)
    try:
        path.stat()
    except (OSError, ValueError) as error:
        if not isinstance(error, FileNotFoundError):
            raise LogError(f"{str(path)[:200]!r} cannot be read: {why(error)}", GIVE) from error
    if path.is_dir():
        return _open_folder(path, str(path), [])
    if path.name == REQUESTS or re.fullmatch(r"requests-.*\.jsonl", path.name):
        return _open_folder(path.parent, str(path), [path])
    if not path.is_file() and path.exists():  # a pipe such as <(…): it can be read only once
        with _open(path) as pipe:
            return _open_file(str(path), _spooled(pipe))
    try:
        with _open(path) as file:
            start = file.read(4096)
    except OSError as error:
        raise LogError(f"{path} cannot be read: {why(error)}", GIVE) from error
    return _open_start(str(path), path, start)


def _open_folder(folder: Path, source: str, files: list[Path]) -> Run:
    manifest = _manifest(folder / MANIFEST)
    whole = all(file.name == REQUESTS for file in files)  # a worker's part is less than was sent
    if not files:
        merged = folder / REQUESTS
        files = [merged] if merged.is_file() else []
        files += sorted(folder.glob("requests-*.jsonl"))
        if not files and manifest is None:
            raise LogError(f"{folder} is not a run folder: it has neither {MANIFEST} nor {REQUESTS}", GIVE)
    else:
        _open(files[0]).close()
    run = Run(source, manifest)
    run._files = [(str(file), file) for file in files]
    if (folder / STEPS).is_file():
        name = str(folder / STEPS)
        for number, obj in run._lines(name, folder / STEPS):
            run.observations.append(codec.decode_observation(obj, name, number))
            run.verdicts.update(codec.decode_levels([obj]))
            run.sent.update(codec.decode_sent(obj) if whole else {})
    if (folder / SERVER).is_file():
        name = str(folder / SERVER)
        run.server = [decode_server(obj, name, number) for number, obj in run._lines(name, folder / SERVER)]
    run.truncated_beside = run.truncated_lines
    return run


def _open_file(name: str, file: BinaryIO) -> Run:
    start = file.read(4096)
    file.seek(0)
    return _open_start(name, file, start)


def _open_start(name: str, file: Path | BinaryIO, start: bytes) -> Run:
    """Tell a CSV, our own JSON lines and other tools' logs apart by what they hold."""
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    ours = text.startswith((b'{"kind"', b'{ "kind"')) or b'"scheduled_ns"' in text
    if text.startswith((b"{", b"[")) and not ours:
        with contextlib.ExitStack() as stack:
            whole = stack.enter_context(_open(file)) if isinstance(file, Path) else file
            data = whole.read()
            whole.seek(0)
        log = foreign.read(data, name)
        if log is not None:
            more = foreign.beside(log, file) if isinstance(file, Path) else None
            if more is not None and more.is_file():
                with _open(more) as summary:
                    foreign.complete(log, summary.read(), str(more))
            return Run(name, log.manifest, foreign=log, _loaded=log.records)
    if not text.startswith(b"{"):
        with contextlib.ExitStack() as stack:
            binary = stack.enter_context(_open(file)) if isinstance(file, Path) else file
            # newline="" leaves line ends to the csv module, which knows quoted ones.
            wrapped = io.TextIOWrapper(binary, encoding="utf-8-sig", newline="")
            try:
                return Run(name, is_csv=True, _loaded=read_csv(wrapped, name))
            finally:
                wrapped.detach()
    run = Run(name)
    run._files = [(name, file)]
    if text.startswith((b'{"kind"', b'{ "kind"')):
        for number, obj in run._lines(name, file):
            kind = obj.get("kind")
            if kind == "manifest" and isinstance(obj.get("manifest"), dict):
                run.manifest = obj["manifest"]  # the last one written is the one that holds
            elif kind == "step":
                run.observations.append(codec.decode_observation(obj, name, number))
                run.verdicts.update(codec.decode_levels([obj]))
                run.sent.update(codec.decode_sent(obj))
            elif kind == "server":
                run.server.append(decode_server(obj, name, number))
        run.truncated_lines = 0
    return run


def _manifest(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        manifest = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise LogError(
            f"{path} cannot be read: {error}", "move it away: the requests can be read without it"
        ) from error
    if not isinstance(manifest, dict):
        raise LogError(f"{path} is not a manifest: it holds no JSON object", "move it away")
    return manifest


@contextlib.contextmanager
def _opened(file: Path | BinaryIO) -> Iterator[BinaryIO]:
    """A log at its start."""
    if isinstance(file, Path):
        with _open(file) as opened:
            yield opened
    else:
        file.seek(0)
        yield file


def _part(file: BinaryIO, span: Span) -> BinaryIO:
    file.seek(span.start)
    return io.BytesIO(file.read() if span.end is None else file.read(span.end - span.start))


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise LogError(f"{path} does not exist", GIVE) from error
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror or error}", GIVE) from error


def why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _spooled(stream: BinaryIO) -> BinaryIO:
    """What can be read only once, as a file that can be read again."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the run that reads it
    while block := stream.read(1 << 20):
        file.write(block)
    file.seek(0)
    return file
