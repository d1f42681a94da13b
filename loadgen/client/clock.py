"""Kernel stamps on the monotonic clock, and timers exact to the microsecond.

The kernel stamps what comes and what leaves on CLOCK_REALTIME; everything else here is on CLOCK_MONOTONIC. Both share
the rate that NTP steers, so their offset changes only when the wall clock is stepped. It is sampled every second, and
at once when a stamp is implausible, so that a stepped clock never shows up as a latency.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import socket
import struct
import sys
import time

SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)
SO_TIMESTAMPING = getattr(socket, "SO_TIMESTAMPING", 37)
ANCILLARY_BYTES = 64  # one control message with a timespec
TRANSMIT_BYTES = 256  # three timespecs, and what the kernel says of the packet
SECOND_NS = 1_000_000_000
SLACK_NS = 1_000_000  # a stamp this much before the last look at the socket cannot be true
STEP_NS = 20_000  # a larger change of the offset is a stepped wall clock

timespec = struct.Struct("qq").unpack


class Clock:
    """The offset CLOCK_REALTIME - CLOCK_MONOTONIC, and what its stamps were worth."""

    __slots__ = ("offset", "refreshed_ns", "rejected", "steps")

    def __init__(self) -> None:
        self.offset = 0
        self.steps = 0  # times the wall clock was found stepped
        self.rejected = 0  # stamps that stayed implausible and were replaced by the time of the read
        self.refreshed_ns = 0
        self.refresh()
        self.steps = 0

    def refresh(self) -> None:
        """Sample the offset: the narrowest of five brackets."""
        best, offset = 1 << 62, 0
        for _ in range(5):
            before = time.monotonic_ns()
            real = time.time_ns()
            after = time.monotonic_ns()
            if after - before < best:
                best, offset = after - before, real - (before + after) // 2
        if abs(offset - self.offset) > STEP_NS:
            self.steps += 1
        self.offset = offset
        self.refreshed_ns = time.monotonic_ns()

    def restamp(self, real_ns: int) -> int:
        """The monotonic time of a stamp that was implausible, with a fresh offset."""
        self.refresh()
        return real_ns - self.offset


_keeper: socket.socket | None = None


def keep_stamping() -> None:
    """Have the kernel stamp from now on and until this process ends.

    It stamps nothing while no socket asks for it, and takes milliseconds to begin: without one socket that always asks,
    the first reads of every step would come without.
    """
    global _keeper
    if _keeper is None:
        _keeper = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        atexit.register(_keeper.close)
        ask_for_stamps(_keeper)


def ask_for_stamps(sock: socket.socket) -> bool:
    """Switch on kernel receive stamps; False where the platform has none."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


_TRANSMIT = 1 << 1 | 1 << 4 | 1 << 11  # SOF_TIMESTAMPING_TX_SOFTWARE | _SOFTWARE | _OPT_TSONLY


def ask_for_transmit_stamps(sock: socket.socket, wanted: bool) -> bool:
    """Have the kernel stamp what is sent from now on, or no longer; False where it cannot.

    Only around a send: while it is asked for, kernels before 6.12 add a second control message to every read.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, _TRANSMIT if wanted else 0)
    except OSError:
        return False
    return True


def transmit_stamp(sock: socket.socket) -> int | None:
    """When the device took the last byte of a send, on CLOCK_REALTIME; None where the kernel has not told."""
    try:
        _, ancillary, _, _ = sock.recvmsg(0, TRANSMIT_BYTES, socket.MSG_ERRQUEUE)
    except OSError:
        return None
    for _, kind, data in ancillary:
        if kind == SO_TIMESTAMPING:
            seconds, nanoseconds = timespec(data[:16])
            return int(seconds * SECOND_NS + nanoseconds)
    return None


# --- timers ---------------------------------------------------------------------------------------------------------

_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC  # TFD_NONBLOCK | TFD_CLOEXEC
_TFD_TIMER_ABSTIME = 1
_PR_SET_TIMERSLACK = 29


class _Itimerspec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class TimerFd:
    """A timerfd on CLOCK_MONOTONIC, readable when its time has come. OSError where the platform has none.

    An event loop's own timers are late by up to a millisecond, as epoll's timeout is rounded; this is late by the
    wake-up.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        try:
            self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_FLAGS)
        except AttributeError:
            raise OSError("this platform has no timerfd") from None
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._spec = _Itimerspec()

    def fileno(self) -> int:
        return int(self._fd)

    def set(self, at_ns: int) -> None:
        """Fire at `at_ns` (CLOCK_MONOTONIC), at once when that is past; 0 disarms."""
        self._spec.value_s, self._spec.value_ns = divmod(at_ns, SECOND_NS)
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None)

    def clear(self) -> None:
        """Take note of an expiry."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def exact_timers() -> None:
    """Ask the kernel not to delay this thread's timers (the default slack is 50 µs). Harmless where unknown."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
