"""Files of lines that only ever grow: a line is there whole, or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from ..errors import LogError
from ..records import Record
from . import codec

ABSORBED_BYTES = 1 << 20  # copied at a time


class Lines:
    """A file that lines are appended to, each with one write. Every method raises LogError, in one sentence, when the
    disk refuses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = 0  # written and whole
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise not_written(path.parent, error) from error

    def hold(self) -> bool:
        """Keep every other process from holding the file, until this one closes it or ends. False: another does."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            pass
        return True

    def append(self, record: Record) -> None:
        self.write(codec.encode_record(record))
        self.records += 1

    def write(self, lines: bytes) -> None:
        written = 0
        try:
            written = os.write(self._file, lines)
            while written < len(lines):  # a nearly full disk takes a part of a line, and only then says so
                written += os.write(self._file, lines[written:])
        except OSError as error:
            if written:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise self.failed(error) from error

    def sync(self) -> None:
        """To the disk itself. Slow (milliseconds)."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self.failed(error) from error

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def failed(self, error: OSError) -> LogError:
        folder = self.path.parent
        kept = f"{self.records:,} records are kept in {folder}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return LogError(
                f"no room left for the log ({error.strerror}); {kept}",
                f"free some space or write elsewhere with --output; loadgen report {folder} reads what is there",
            )
        return LogError(
            f"the log cannot be written ({error.strerror or error}); {kept}", "write elsewhere with --output"
        )


def absorb(part: Path, into: Lines, each: Callable[[Record], None]) -> None:
    """Move the records of a worker's file, which nobody writes to now, to the end of `into`, and hand each to `each`.

    They are on the disk there before they are gone here: a kill in between leaves them twice, which readers know of. A
    last line that was cut by the end of its process is dropped.
    """
    if not part.exists():
        return
    try:
        with part.open("r+b") as file:
            block = bytearray()
            for number, line in enumerate(file, 1):
                try:
                    record = codec.decode_record(line, str(part), number)
                except LogError:
                    if line.endswith(b"\n"):
                        raise
                    continue
                each(record)
                into.records += 1
                block += line if line.endswith(b"\n") else line + b"\n"
                if len(block) >= ABSORBED_BYTES:
                    into.write(bytes(block))
                    block.clear()
            if block:
                into.write(bytes(block))
            into.sync()
            file.truncate(0)
    except OSError as error:
        raise into.failed(error) from error


def not_written(path: Path, error: OSError) -> LogError:
    return LogError(
        f"{path} cannot be written: {error.strerror or error}", "give a folder that can be written with --output"
    )
