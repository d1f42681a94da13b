"""Time and self-knowledge of the ground-truth server: its timer, its clocks, and how late it is."""

from __future__ import annotations

import ctypes
import os
import time
from array import array
from typing import Any

LATENESS_KEPT = 1 << 17  # the last so many steps give the percentiles; a power of two
LIMITED_SHARE = 0.01  # of steps late by more than half their gap: the server was the limit


class Lateness:
    """How late steps were, in ns, and how many were late by more than they may be. Bounded in memory."""

    def __init__(self, kept: int = LATENESS_KEPT) -> None:
        self.kept = array("q", bytes(8 * kept))
        self.mask = kept - 1
        self.reset()

    def reset(self) -> None:
        self.steps = 0
        self.late = 0
        self.worst = 0

    def add(self, late_ns: int, tolerance_ns: int) -> None:
        self.kept[self.steps & self.mask] = late_ns
        self.steps += 1
        if late_ns > tolerance_ns:
            self.late += 1
        if late_ns > self.worst:
            self.worst = late_ns

    def report(self) -> dict[str, Any]:
        """Percentiles (of the steps still kept) and maximum in µs, the late share, and whether that is too many."""
        kept = sorted(self.kept[: min(self.steps, len(self.kept))])
        share = self.late / self.steps if self.steps else 0.0
        return {
            "lateness_us": {
                "p50": kept[len(kept) // 2] / 1e3 if kept else None,
                "p99": kept[len(kept) * 99 // 100] / 1e3 if kept else None,
                "max": self.worst / 1e3 if kept else None,
            },
            "late_share": share,
            "limited": share > LIMITED_SHARE,
        }


class Timer:
    """A timerfd on CLOCK_MONOTONIC: `os.timerfd_create` came only with Python 3.13, and epoll's own timeout counts in
    whole milliseconds."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._settime = libc.timerfd_settime
        self._settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._spec = (ctypes.c_long * 4)()
        self._address = ctypes.addressof(self._spec)
        self.due = 0

    def arm(self, due_ns: int) -> None:
        """Be readable from `due_ns` on, and not before; 0 is never."""
        if due_ns != self.due:
            self.due = due_ns
            self._spec[2], self._spec[3] = divmod(due_ns, 1_000_000_000)
            self._settime(self.fd, 1, self._address, None)


def clock_offset() -> int:
    """CLOCK_REALTIME − CLOCK_MONOTONIC in ns: the narrowest of five brackets."""
    brackets = []
    for _ in range(5):
        before, real, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        brackets.append((after - before, real - (before + after) // 2))
    return min(brackets)[1]


def run_queue_wait_ns() -> int:
    """How long this process's main thread has been ready without a CPU so far; 0 where the kernel does not tell."""
    try:
        with open("/proc/self/schedstat", "rb") as file:  # noqa: PTH123 - pathlib is a slow import for a small child
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
