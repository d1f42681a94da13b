"""Run a command and account for it whole: CPU by time, memory and lifetime of it and of every process it starts.

Linux only: /proc, and PR_SET_CHILD_SUBREAPER so that a daemonised worker is still found and reaped here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .truth import place

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
PR_SET_CHILD_SUBREAPER = 36
SAMPLE_S = 0.1


@dataclass(slots=True)
class Usage:
    """What a command took. `cpu` holds (monotonic ns, CPU seconds so far, busy seconds of its cores so far)."""

    started_ns: int
    wall_s: float = 0.0
    code: int | None = None  # None where it was ended for lasting too long
    cpu_s: float = 0.0
    rss_bytes: int = 0  # the largest sum over its processes; shared pages count in each
    cpu: list[tuple[int, float, float]] = field(default_factory=list)

    def between(self, start_ns: int, end_ns: int) -> tuple[float, float]:
        """(its CPU seconds, the busy seconds of its cores) between two monotonic times."""
        if len(self.cpu) < 2:
            return float("nan"), float("nan")
        times, own, busy = (np.array(column, dtype=float) for column in zip(*self.cpu, strict=True))
        spans = [np.interp([start_ns, end_ns], times, column) for column in (own, busy)]
        return float(spans[0][1] - spans[0][0]), float(spans[1][1] - spans[1][0])


def run(
    command: Sequence[str],
    *,
    cores: set[int],
    timeout_s: float,
    out: Path,
    folder: Path,
    env: Mapping[str, str],
    nice: int = 0,
) -> Usage:
    """Run `command` in `folder` on `cores`, its output into `out`; whatever of it is left at the end is ended too."""
    keep = set(_children(os.getpid()))  # children of ours from before are none of its own
    _subreaper(True)
    try:
        return _run(command, cores, timeout_s, out, folder, env, nice, keep)
    finally:
        _subreaper(False)


def _subreaper(on: bool) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def _run(
    command: Sequence[str],
    cores: set[int],
    timeout_s: float,
    out: Path,
    folder: Path,
    env: Mapping[str, str],
    nice: int,
    keep: set[int],
) -> Usage:
    usage = Usage(time.monotonic_ns())
    with out.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(env),
            start_new_session=True,
            preexec_fn=lambda: place(cores, nice),
        )
    done = threading.Event()
    sampler = threading.Thread(target=_sample, args=(usage, keep, cores, done), daemon=True)
    sampler.start()
    deadline = time.monotonic() + timeout_s
    # Not Popen.wait: it would reap the process, and its CPU time would be lost to the sampler before the last sample.
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    usage.wall_s = (time.monotonic_ns() - usage.started_ns) / 1e9
    done.set()
    sampler.join()
    finished = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    for pid in list(_descendants(keep)):
        _end(pid)
    for pid in [p for p in _children(os.getpid()) if p not in keep]:
        _end(pid)  # what was orphaned by the kills above
        _, status, spent = os.wait4(pid, 0)
        usage.cpu_s += spent.ru_utime + spent.ru_stime
        if pid == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            usage.code = process.returncode if finished else None
    return usage


def _sample(usage: Usage, keep: set[int], cores: set[int], done: threading.Event) -> None:
    last = False
    while not last:
        last = done.wait(SAMPLE_S)
        cpu, rss = 0.0, 0
        for pid in _descendants(keep):
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            cpu += sum(map(int, fields[11:15])) * TICK_S  # its own time and that of the children it has reaped
            rss += int(fields[21]) * PAGE
        usage.cpu.append((time.monotonic_ns(), cpu, _busy(cores)))
        usage.rss_bytes = max(usage.rss_bytes, rss)


def _busy(cores: set[int]) -> float:
    """Seconds that these cores were not idle, by /proc/stat."""
    total = 0.0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *numbers = line.split()
        if name in {f"cpu{core}" for core in cores}:
            user, nice, system, _idle, _iowait, *others = map(int, numbers[:8])
            total += (user + nice + system + sum(others)) * TICK_S
    return total


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except OSError:
            continue
    return found


def _descendants(keep: set[int]) -> Iterator[int]:
    waiting = [p for p in _children(os.getpid()) if p not in keep]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += _children(pid)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
