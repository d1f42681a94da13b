"""Seats in processes of this machine, in the place of another machine's."""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from loadgen.client.remote import SeatGoneError
from tests.client.far import far

AHEAD_S = 100_000


@cache
def other_clock() -> tuple[str, ...] | None:
    """What a program is started by so that its CLOCK_MONOTONIC is AHEAD_S ahead; None where that cannot be."""
    for options in (("-T",), ("-Ur", "-T")):
        words = ("unshare", *options, "--monotonic", str(AHEAD_S), "--fork", "--kill-child", "--")
        if (
            shutil.which("unshare")
            and not subprocess.run([*words, "true"], capture_output=True, check=False).returncode
        ):
            return words
    return None


class ProcessSeats:
    """Seats of this machine. See `remote.Seats`."""

    host = "127.0.0.1"

    def __init__(
        self,
        workers: int,
        temporary: Path,
        ahead: Sequence[int] = (),
        away: Mapping[int, tuple[float, float]] | None = None,
    ) -> None:
        """Those in `ahead` have another clock, those in `away` are so many seconds away, there and back; their folders
        are in `temporary`."""
        self.away = away or {}
        self.processes = [
            subprocess.Popen(
                [
                    *((other_clock() or ()) if number in ahead else ()),
                    sys.executable,
                    "-m",
                    "tests.client.seat_process",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "TMPDIR": str(temporary)},
            )
            for number in range(workers)
        ]
        self.asking = [threading.Lock() for _ in self.processes]  # or one call would read the answer to another
        self.names = [f"machine {number + 1}" for number in range(workers)]

    async def call(self, number: int, method: str, *args: Any) -> Any:
        if method == "start" and number in self.away:
            host, port, *rest = args
            args = "127.0.0.1", far(host, port, *self.away[number]), *rest
        return await asyncio.to_thread(self.ask, number, method, *args)

    def ask(self, number: int, method: str, *args: Any) -> Any:
        process = self.processes[number]
        assert process.stdin and process.stdout
        try:
            with self.asking[number]:
                pickle.dump((method, args), process.stdin)
                process.stdin.flush()
                return pickle.load(process.stdout)
        except (OSError, EOFError, ValueError) as error:
            raise SeatGoneError(f"has gone ({type(error).__name__})") from None

    def tell(self, number: int, method: str) -> None:
        asyncio.get_running_loop().create_task(self.call(number, method))

    def where(self, workers: int) -> str:
        return f"{workers} made-up machines"

    def facts(self) -> dict[str, Any]:
        return {"by": "test"}

    def worker(self, number: int) -> int:
        """The process of that seat's worker."""
        seat = self.processes[number].pid
        found = [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if _command(pid)[-2:-1] == ["loadgen.worker"]
        ]
        return next(pid for pid in found if seat in _parents(pid))

    def close(self) -> None:
        for process in self.processes:
            assert process.stdin and process.stdout
            process.kill()
            process.wait()
            with suppress(BrokenPipeError):  # of a call that came too late
                process.stdin.close()
            process.stdout.close()


def _command(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode().split("\0")[:-1]
    except OSError:
        return []


def _parents(pid: int) -> list[int]:
    found = []
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            break
        found.append(pid)
    return found
