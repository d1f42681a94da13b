"""The three standard streams as every verb may rely on them: open, able to take any text, and never a fault because
who read them has gone."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import sys
from collections.abc import Iterator


def prepare() -> None:
    """Once, before anything is read or written. What was closed (`>&-`) reads as empty and takes what is written."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _open_nothing(descriptor)
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", encoding="utf-8", closefd=False))
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() not in ("utf-8", "ascii"):
            stream.reconfigure(errors="replace")  # of ASCII, click knows that it is mistaken
    told = sys.stderr
    if isinstance(told, io.TextIOWrapper):
        raw = _Patient(told.fileno(), "wb", closefd=False)
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding=told.encoding, errors="backslashreplace", line_buffering=True
        )


class _Patient(io.FileIO):
    """A descriptor whose reader may go: what is written after that goes nowhere."""

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            if not gone(error, self.fileno()):
                raise
            _drop(self.fileno())
            return len(memoryview(data).cast("B"))  # type: ignore[arg-type]


@contextlib.contextmanager
def reader_may_go() -> Iterator[None]:
    """Around what is written to stdout: its reader may leave (`| head`), or the terminal close, and no more is meant by
    it than that. Left to click, it would end the process with 1, which here means that the answer is no."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if not gone(error, 1):
            raise
        drop_stdout()


def gone(error: OSError, descriptor: int) -> bool:
    """Does it mean no more than that nobody reads this descriptor: a pipe without a reader, a terminal that closed?"""
    if error.errno == errno.EIO:
        return stat.S_ISCHR(os.fstat(descriptor).st_mode)
    return isinstance(error, BrokenPipeError)


def drop_stdout() -> None:
    """What is still buffered for stdout goes nowhere, in silence; else it would fail again at the very end."""
    _drop(sys.stdout.fileno())


def _drop(descriptor: int) -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)


def _open_nothing(descriptor: int) -> None:
    """/dev/null as this descriptor, for this program and those it starts."""
    nothing = os.open(os.devnull, os.O_RDWR)
    if nothing != descriptor:
        os.dup2(nothing, descriptor)
        os.close(nothing)
    os.set_inheritable(descriptor, True)
