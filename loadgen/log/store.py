"""The run folder: written as the run goes, readable at any moment, never lost to a kill.

    results/20261129T134500Z-name/
      manifest.json    replaced whole: written to a temporary file, synced, renamed
      requests.jsonl   appended, one write of one whole line as each request ends
      requests-w0.jsonl …  the same of each worker, where there are several; moved to requests.jsonl after each step,
                           worker by worker
      steps.jsonl      appended, one line as each step ends
      server.jsonl     appended, one line a look at the server's own metrics; only where there was one

1. A line goes to the kernel in one write on an O_APPEND descriptor before the request's slot is refilled: SIGKILL loses
   nothing that was written. A crash of the machine loses what was not yet synced (`sync`, after each step).
2. A line that does not fit on the disk is taken back, so that the log always ends with a whole line.
3. Reading (`opened`) believes a line only if it is whole.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import orjson

from ..errors import LogError
from ..records import Record
from ..results import LevelResult, Observation, ServerSample, StepSummary
from . import codec
from .append import Lines, absorb, not_written
from .opened import MANIFEST, REQUESTS, SERVER, STEPS, Run, open_run, why
from .serverlog import server_object

__all__ = ["REQUESTS", "SERVER", "STEPS", "Run", "RunFolder", "Sink", "StreamLog", "check_folder", "open_run"]


class Sink(Protocol):
    """Where a run's log goes: a folder, or one stream."""

    where: str

    def write_manifest(self, manifest: Mapping[str, Any]) -> None: ...
    def append(self, record: Record) -> None: ...
    def append_step(
        self, observation: Observation, summary: StepSummary | None = None, level: LevelResult | None = None
    ) -> None: ...
    def append_server(self, sample: ServerSample) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class RunFolder:
    """A run folder, open for writing. Every method raises LogError, in one sentence, when the disk refuses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.where = str(path)
        self._requests = Lines(path / REQUESTS)
        self._steps = Lines(path / STEPS)
        self._server: Lines | None = None
        if not self._requests.hold():
            self.close()
            raise LogError(f"the run in {path} is still going on", "wait for its end, or end it with Ctrl-C")

    @property
    def records(self) -> int:
        """Written and whole."""
        return self._requests.records

    @classmethod
    def create(cls, parent: str | Path, name: str, started: datetime | None = None) -> Self:
        """A new folder `<UTC time>-<name>` in `parent`, which is made if need be; never one that is there already."""
        stamp = (started or datetime.now(UTC)).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        slug = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")[:60].rstrip("-.") or "run"
        parent = Path(parent)
        try:
            parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise not_written(parent, error) from error
        count = 1
        while True:
            path = parent / (f"{stamp}-{slug}" if count == 1 else f"{stamp}-{slug}-{count}")
            try:
                path.mkdir(0o755)
            except FileExistsError:
                count += 1
                continue
            except OSError as error:
                raise not_written(parent, error) from error
            return cls(path)

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace manifest.json: a reader sees the one before or this one, never a part."""
        target, temporary = self.path / MANIFEST, self.path / (MANIFEST + ".tmp")
        data = orjson.dumps(codec.plain(manifest), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        try:
            made = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            with os.fdopen(made, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
            directory = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(directory)  # the rename itself, not only what it names
            finally:
                os.close(directory)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise self._requests.failed(error) from error

    def append(self, record: Record) -> None:
        self._requests.append(record)

    def append_step(
        self, observation: Observation, summary: StepSummary | None = None, level: LevelResult | None = None
    ) -> None:
        self._steps.write(codec.encode(codec.step_object(observation, summary, level)))

    def append_server(self, sample: ServerSample) -> None:
        if self._server is None:
            self._server = Lines(self.path / SERVER)
        self._server.write(codec.encode(server_object(sample)))

    def part(self, worker: int) -> Path:
        """Where a worker keeps the records of the step at hand."""
        return self.path / f"requests-w{worker}.jsonl"

    def gather(self, workers: int, each: Callable[[Record], None]) -> None:
        """A step is over: move the records that the workers kept to those of the run, and hand each to `each`."""
        for worker in range(workers):
            absorb(self.part(worker), self._requests, each)

    def drop_parts(self) -> None:
        """Remove the workers' files, where nothing is left in them."""
        for path in self.path.glob("requests-w*.jsonl"):
            with contextlib.suppress(OSError):
                if not path.stat().st_size:
                    path.unlink()

    def sync(self) -> None:
        """To the disk itself. Slow (milliseconds): between steps, never within one."""
        for lines in self._files():
            lines.sync()

    def close(self) -> None:
        for lines in self._files():
            lines.close()

    def _files(self) -> list[Lines]:
        return [self._requests, self._steps, *([self._server] if self._server is not None else [])]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class StreamLog:
    """`-o -`: the same lines on one descriptor, each tagged with its kind. A reader that goes away ends the run with
    BrokenPipeError, which means no more than that."""

    def __init__(self, descriptor: int = 1, where: str = "-") -> None:
        self.where = where
        self.records = 0
        self._descriptor = descriptor

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        self._write("manifest", {"manifest": codec.plain(manifest)})

    def append(self, record: Record) -> None:
        self._write("request", codec.record_object(record))
        self.records += 1

    def append_step(
        self, observation: Observation, summary: StepSummary | None = None, level: LevelResult | None = None
    ) -> None:
        self._write("step", codec.step_object(observation, summary, level))

    def append_server(self, sample: ServerSample) -> None:
        self._write("server", server_object(sample))

    def sync(self) -> None:
        return

    def close(self) -> None:
        return  # stdout is not ours to close

    def _write(self, kind: str, obj: Mapping[str, Any]) -> None:
        line = codec.encode({"kind": kind, **obj})
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise LogError(
                f"the log cannot be written to {self.where} ({error.strerror or error}) after {self.records:,} records",
                "send it to a file with more room, or to a folder with --output",
            ) from error


def check_folder(parent: str | Path) -> None:
    """Raise LogError where a run folder surely cannot be made: cheap, and leaves nothing behind."""
    path = Path(parent)
    try:
        nearest = next((place for place in (path, *path.parents) if place.exists()), path)
        if not nearest.is_dir():
            raise LogError(f"{nearest} is a file, and run folders go into a folder", "give a folder with --output")
    except (OSError, ValueError) as error:
        raise LogError(f"{str(path)[:200]!r} cannot be written: {why(error)}", "give a folder with --output") from None
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise LogError(f"{nearest} cannot be written: permission denied", "give another folder with --output")
