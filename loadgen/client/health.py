"""The client looks at itself while it measures: lag, CPU, pauses, sockets. Measured here, judged by the analysis.

    tune_process()                                 once a run
    with quiet(), Watch(client) as watch:          each step
        … run_step(on_record=watch.ended, on_progress=watch.follow) …
    watch.health()                                 after the client is closed: sockets tell at their end

The cost is that of ten wake-ups a second, a clock read for each request, and a few files in /proc at the edges of the
window; nothing is done for each token.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import sys
import threading
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import httpx

from ..records import Record
from ..results import ClientHealth, Lag
from .answer import FAR_BITS, LAG_BIN_NS
from .clock import TimerFd, exact_timers
from .kernel import KernelTransport

SAMPLE_NS = 100_000_000  # between two looks at the event loop, in the mean
GOLDEN = 0.6180339887498949
SHORTEST_WINDOW_S = 0.3  # below it the kernel's accounting, which is brought up to date each tick, is too coarse
SWITCH_S = 0.0002
PROC = Path("/proc")


def tune_process() -> None:
    """What makes this process exact, once and early: timers without slack, threads that yield soon, and a heap that
    keeps its read buffers."""
    exact_timers()
    # A thread that waits for the interpreter gets it after this long; the default of 5 ms would be a late request.
    sys.setswitchinterval(SWITCH_S)
    # asyncio reads into 256 KiB. glibc maps and unmaps so large a block each time, 12 µs a read, until one of that
    # size has been freed: this one raises its threshold.
    bytes(1 << 22)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection meanwhile: a pause of it is a late request. What is there already is never looked at again
    until the end, which keeps the collection after it short."""
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


def stamps_of(client: httpx.AsyncClient) -> Literal["kernel", "user"]:
    """Whose stamps this client's reads had so far."""
    transport = client._transport
    kernel = isinstance(transport, KernelTransport) and transport.stats.reads > transport.stats.unstamped
    return "kernel" if kernel else "user"


# --- pure -----------------------------------------------------------------------------------------------------------


def lag_of(values: Sequence[float]) -> Lag | None:
    """Delays in ns → their distribution in µs; see `Lag` for its p99. None without any."""
    if not len(values):
        return None
    ranked = sorted(values)
    n = len(ranked)
    return Lag(n, ranked[(n - 1) // 2] / 1e3, ranked[_rank99(n)] / 1e3, ranked[-1] / 1e3)


def lag_of_bins(counts: Sequence[int], beyond: Mapping[int, int], width_ns: int = LAG_BIN_NS) -> Lag | None:
    """The same from counts by bins of `width_ns`, and of those beyond the last by their time >> FAR_BITS; each bin is
    read as its upper edge."""
    n = sum(counts) + sum(beyond.values())
    if not n:
        return None
    wanted = ((n - 1) // 2, _rank99(n), n - 1)
    found: list[float] = []
    seen = 0
    edges = (((place + 1) * width_ns, count) for place, count in enumerate(counts))
    far = (((place + 1) << FAR_BITS, count) for place, count in sorted(beyond.items()))
    for edge_ns, count in chain(edges, far):
        seen += count
        while len(found) < 3 and wanted[len(found)] < seen:
            found.append(edge_ns / 1e3)
    return Lag(n, *found)


def _rank99(n: int) -> int:
    """The place, from 0, of the 99th percentile among n ranked values: below two others, but never below the median."""
    return max((n - 1) // 2, min((99 * n - 1) // 100, n - 3))


def combined(healths: Sequence[ClientHealth]) -> ClientHealth:
    """Several processes that shared one step: counts add up; of shares and lags the worst counts, as one that is late
    is enough to shape the figures. ValueError without any."""
    if not healths:
        raise ValueError("no health to combine")

    def worst(name: str) -> Any:
        return max((v for h in healths if (v := getattr(h, name)) is not None), default=None)

    def total(name: str) -> Any:
        known = [v for h in healths if (v := getattr(h, name)) is not None]
        return sum(known) if known else None

    def lag(name: str) -> Lag | None:
        known: list[Lag] = [v for h in healths if (v := getattr(h, name)) is not None]
        if not known:
            return None
        return Lag(sum(v.n for v in known), *(max(getattr(v, key) for v in known) for key in ("p50", "p99", "max")))

    tightest = max(healths, key=lambda h: (h.descriptors or 0) / (h.descriptor_limit or 1))
    figures: dict[str, Any] = {
        "stamps": "user" if any(h.stamps == "user" for h in healths) else "kernel",
        "descriptors": tightest.descriptors,
        "descriptor_limit": tightest.descriptor_limit,
    }
    for name in ("seconds", "cpu_share", "wait_share", "process_cpu_share", "steal_share", "clock_steps"):
        figures[name] = worst(name)
    for name in ("gc_pause_max_us", "ports", "port_limit"):  # ports are the machine's
        figures[name] = worst(name)
    for name in ("reads", "stamped", "rejected", "gc_pauses", "retransmits", "out_of_order", "dropped"):
        figures[name] = total(name)
    for name in ("read_lag_us", "loop_lag_us", "refill_lag_us"):
        figures[name] = lag(name)
    return ClientHealth(**figures)


# --- what the kernel tells ------------------------------------------------------------------------------------------


def schedstat(thread_id: int) -> tuple[int, int] | None:
    """(ns on a CPU, ns ready to run without one) of a thread of this process; None where the kernel does not tell."""
    words = _read(PROC / "self" / "task" / str(thread_id) / "schedstat").split()
    return (int(words[0]), int(words[1])) if len(words) >= 2 else None


def stolen() -> tuple[int, int] | None:
    """(ticks taken by the hypervisor, all ticks) of all of the machine's CPUs since it started."""
    words = _read(PROC / "stat").split(b"\n", 1)[0].split()
    if len(words) < 9 or words[0] != b"cpu":
        return None
    ticks = [int(word) for word in words[1:9]]  # guest time, after these, is in user time already
    return ticks[7], sum(ticks)


def ports() -> tuple[int | None, int | None]:
    """(TCP sockets of this network namespace, in use or in TIME_WAIT; ephemeral ports there are)."""
    used = None
    for line in (_read(PROC / "net" / "sockstat") + _read(PROC / "net" / "sockstat6")).splitlines():
        name, _, rest = line.partition(b":")
        words = rest.split()
        if name in (b"TCP", b"TCP6"):
            told = dict(zip(words[::2], words[1::2], strict=False))
            used = (used or 0) + int(told.get(b"inuse", 0)) + int(told.get(b"tw", 0))
    span = _read(PROC / "sys" / "net" / "ipv4" / "ip_local_port_range").split()
    return used, int(span[1]) - int(span[0]) + 1 if len(span) == 2 else None


def descriptors() -> tuple[int | None, int | None]:
    """(open descriptors of this process, how many it may have)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(os.listdir("/proc/self/fd")) - 1  # noqa: PTH208 - iterating Paths would cost three times as much
    except OSError:
        used = None
    return used, None if soft == resource.RLIM_INFINITY else soft


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


# --- the watch ------------------------------------------------------------------------------------------------------


class Step(Protocol):
    """A step as it runs: which phase it is in."""

    @property
    def phase(self) -> str: ...


@dataclass(slots=True)
class _Mark:
    """All counters at one moment."""

    at_ns: int
    threads: list[tuple[int, int] | None]
    process_s: float
    stolen: tuple[int, int] | None
    reads: int
    unstamped: int
    rejected: int
    steps: int
    bins: array[int]
    beyond: Mapping[int, int]
    loop: int
    refills: int


class Watch:
    """Watches one step of one client, from inside its event loop (asyncio). `zero_ns` is the run's start."""

    def __init__(self, client: httpx.AsyncClient, *, zero_ns: int = 0) -> None:
        transport = client._transport
        self._kernel = transport if isinstance(transport, KernelTransport) else None
        self._zero = zero_ns
        self._threads = [threading.get_native_id()]
        if self._kernel is not None and (reader := self._kernel.reactor.thread_id) is not None:
            self._threads.append(reader)
        self._step: Step | None = None
        self._phase = "warmup"
        self._loop_lags = array("q")
        self._refills = array("q")
        self._marks: list[_Mark] = []  # start; window opens; window closes; end
        self._gc_ns: list[int] = []
        self._gc_began = 0
        self._open = descriptors()
        self._ports = ports()

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        gc.callbacks.append(self._collected)
        self._marks = [self._mark()]
        self._due = 0
        self._count = 0
        self._timer: TimerFd | None = None
        self._handle: asyncio.TimerHandle | None = None
        try:
            self._timer = TimerFd()
            self._loop.add_reader(self._timer.fileno(), self._expired)
        except (OSError, NotImplementedError):  # the loop's own timers, which are up to 1 ms late themselves
            self._timer = None
        self._arm(time.monotonic_ns())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._loop.remove_reader(self._timer.fileno())
            self._timer.close()
        if self._handle is not None:
            self._handle.cancel()
        gc.callbacks.remove(self._collected)
        self._marks.append(self._mark())
        self._open, self._ports = descriptors(), ports()

    def follow(self, step: Step) -> None:
        """This is the step; its window is watched for."""
        self._step = step

    def ended(self, record: Record) -> None:
        """Call as each request has ended, when its slot is free: later than its last byte by the client's own delay."""
        if record.outcome == "ok":
            self._refills.append(time.monotonic_ns() - self._zero - record.done_ns)
        self._look()

    def health(self) -> ClientHealth:
        """What was measured. Ask after the client was closed."""
        start, end = self._window()
        seconds = (end.at_ns - start.at_ns) / 1e9
        cpu = wait = None
        known = [
            (b[0] - a[0], b[1] - a[1])
            for a, b in zip(start.threads, end.threads, strict=True)
            if a is not None and b is not None
        ]
        if known and seconds > 0:
            cpu, wait = (min(1.0, sum(part) / 1e9 / seconds) for part in zip(*known, strict=True))
        steal = None
        if start.stolen is not None and end.stolen is not None and end.stolen[1] > start.stolen[1]:
            steal = (end.stolen[0] - start.stolen[0]) / (end.stolen[1] - start.stolen[1])
        reads, unstamped = end.reads - start.reads, end.unstamped - start.unstamped
        stats = None if self._kernel is None else self._kernel.stats
        bins = [b - a for a, b in zip(start.bins, end.bins, strict=True)]
        beyond = {far: count - start.beyond.get(far, 0) for far, count in end.beyond.items()}
        return ClientHealth(
            stamps="kernel" if reads > unstamped else "user",
            seconds=seconds,
            cpu_share=cpu,
            wait_share=wait,
            process_cpu_share=(end.process_s - start.process_s) / seconds if seconds > 0 else None,
            steal_share=steal,
            reads=reads,
            stamped=reads - unstamped,
            rejected=end.rejected - start.rejected,
            clock_steps=end.steps - start.steps,
            read_lag_us=lag_of_bins(bins, beyond) if stats is not None else None,
            loop_lag_us=lag_of(self._loop_lags[start.loop : end.loop]),
            refill_lag_us=lag_of(self._refills[start.refills : end.refills]),
            gc_pauses=len(self._gc_ns),
            gc_pause_max_us=max(self._gc_ns, default=0) / 1e3,
            retransmits=stats.sockets.retransmits if stats is not None else None,
            out_of_order=stats.sockets.out_of_order if stats is not None else None,
            dropped=stats.sockets.dropped if stats is not None else None,
            descriptors=self._open[0],
            descriptor_limit=self._open[1],
            ports=self._ports[0],
            port_limit=self._ports[1],
        )

    def _window(self) -> tuple[_Mark, _Mark]:
        """The marks between which to measure: the window's, where it was seen and is long enough, else the step's."""
        marks = self._marks
        if len(marks) >= 3:
            opened, closed = marks[1], marks[2]
            if (closed.at_ns - opened.at_ns) / 1e9 >= SHORTEST_WINDOW_S:
                return opened, closed
        return marks[0], marks[-1]

    def _look(self) -> None:
        """Note the window's opening and closing as they are seen."""
        step = self._step
        if step is not None and step.phase != self._phase:
            if self._phase == "warmup" and step.phase == "filler":  # a window that came and went unseen
                self._marks.append(self._mark())
            self._phase = step.phase
            self._marks.append(self._mark())

    def _mark(self) -> _Mark:
        kernel = self._kernel
        stats, clock = (None, None) if kernel is None else (kernel.stats, kernel.reactor.clock)
        return _Mark(
            at_ns=time.monotonic_ns(),
            threads=[schedstat(thread) for thread in self._threads],
            process_s=time.process_time(),
            stolen=stolen(),
            reads=0 if stats is None else stats.reads,
            unstamped=0 if stats is None else stats.unstamped,
            rejected=0 if clock is None else clock.rejected,
            steps=0 if clock is None else clock.steps,
            bins=array("L") if stats is None else stats.lag[:],
            beyond={} if stats is None else dict(stats.lag_beyond),
            loop=len(self._loop_lags),
            refills=len(self._refills),
        )

    # the event loop

    def _arm(self, now: int) -> None:
        """Irregular, but evenly spread: a regular beat could always fall between, or always into, an engine's steps."""
        self._count += 1
        self._due = now + SAMPLE_NS // 2 + int(SAMPLE_NS * (self._count * GOLDEN % 1.0))
        if self._timer is not None:
            self._timer.set(self._due)
        else:
            self._handle = self._loop.call_later((self._due - now) / 1e9, self._sample)

    def _expired(self) -> None:
        assert self._timer is not None
        self._timer.clear()
        self._sample()

    def _sample(self) -> None:
        now = time.monotonic_ns()
        self._loop_lags.append(max(0, now - self._due))
        self._look()
        self._arm(now)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_began = time.monotonic_ns()
        else:
            self._gc_ns.append(time.monotonic_ns() - self._gc_began)
