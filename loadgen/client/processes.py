"""The process of a worker: how it is looked after, and how it came to its end."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

COMMAND = (sys.executable, "-m", "loadgen.worker")


class Process(Protocol):
    """A worker's process, here or on another machine. No call waits for long."""

    @property
    def where(self) -> str:
        """The machine it runs on, as a sentence goes on; empty for this one."""

    def kill(self) -> None: ...

    def waits(self) -> bool:
        """Is it ready to run, and has no CPU? Unknown is no."""

    def how(self) -> str:
        """How it came to its end, as far as is known at once."""


class LocalProcess:
    """A process of this machine. `said` is a file with what it writes to stderr."""

    where = ""

    def __init__(self, process: subprocess.Popen[bytes], said: Any) -> None:
        self._process, self._said = process, said

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()

    def waits(self) -> bool:
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[:1] == ["R"]

    def how(self) -> str:
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was killed ({signal.Signals(-code).name})"
        self._said.seek(0)
        text = self._said.read()[-4000:].decode("utf-8", "replace")
        # A group of errors is drawn as a tree.
        lines = [line.strip(" |+-") for line in text.splitlines() if line.strip(" |+-")]
        return f"ended by itself (exit {code}{': ' + lines[-1] if lines else ''})"

    def close(self) -> None:
        """Kill it, if it still runs."""
        self._process.kill()
        self._process.wait()
        self._said.close()
