"""Work shared out among this process and copies of it.

A copy (`os.fork`) sees all that this process holds, so that nothing need be sent to it. What it makes comes back
through memory that both see, as bytes: `pack` and `unpack` of each kind of result say how.

1. The same result: a job that a copy did not bring to an end, whatever the reason, is done by this process, which so
   says what it would have said alone.
2. No process is left behind: all are waited for, or ended, however this ends. One whose parent was killed sees that at
   its next job.
3. Only where it is safe: on Linux, in a process of one thread. Elsewhere this process does all the jobs.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, NoReturn, TypeVar

import numpy as np

T = TypeVar("T")
R = TypeVar("R")

_ALIGNED = 64  # bytes: where a result begins
_HEAD = np.dtype([("job", "<i8"), ("bytes", "<i8")])


class Way(NamedTuple, Generic[R]):
    """How a result comes to another process, as bytes of any length in any pieces. What `unpack` makes may be of the
    memory that it is given, which is for reading only."""

    pack: Callable[[R], Iterable[bytes | memoryview]]
    unpack: Callable[[memoryview], R]


def usable_cpus() -> int:
    """The CPUs that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def each(
    work: Callable[[T], R],
    jobs: Sequence[T],
    way: Way[R],
    processes: int | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> list[R]:
    """What `work` makes of each job, in their order, by so many processes, else one for each CPU. `meanwhile` is what
    this process does first, where there are copies. Raises what `work` raises."""
    wanted = min(usable_cpus() if processes is None else processes, len(jobs))
    found: dict[int, R] = {}
    if wanted > 1 and _safe():
        with contextlib.suppress(OSError):  # no process or no memory to be had: nothing is lost but time
            _shared_out(work, jobs, way, wanted - 1, found, meanwhile)
    return [found[i] if i in found else work(job) for i, job in enumerate(jobs)]


def _safe() -> bool:
    alone = threading.active_count() == 1 and threading.current_thread() is threading.main_thread()
    return alone and hasattr(os, "memfd_create") and hasattr(os, "fork")


def _shared_out(
    work: Callable[[T], R],
    jobs: Sequence[T],
    way: Way[R],
    copies: int,
    found: dict[int, R],
    meanwhile: Callable[[], object] | None,
) -> None:
    with contextlib.ExitStack() as stack:
        # Whoever reads the next four bytes has the job of that number: all share the place they have read to.
        queue = stack.enter_context(_memory())
        os.write(queue, np.arange(len(jobs), dtype="<u4").tobytes())
        os.lseek(queue, 0, os.SEEK_SET)
        parent = os.getpid()
        running: dict[int, int] = {}  # process → where it leaves its results
        stack.callback(_end, running)
        for _ in range(copies):
            out = stack.enter_context(_memory())
            with contextlib.suppress(OSError), _undisturbed():
                if (pid := _fork()) == 0:
                    _copy(queue, work, jobs, way, out, parent)
                running[pid] = out
        if running and meanwhile is not None:
            meanwhile()
        for number in _taken(queue):
            try:
                found[number] = work(jobs[number])
            except Exception:  # `each` comes upon it again, unless a copy has come upon another one before
                _empty(queue)
        while running:
            pid, out = next(iter(running.items()))
            _, status = os.waitpid(pid, 0)
            del running[pid]
            if status == 0:
                found.update(_results(out, way))


@contextlib.contextmanager
def _memory() -> Iterator[int]:
    descriptor = os.memfd_create("loadgen")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C waits until it is known which process this is."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which NumPy's libraries may have had
        return os.fork()


def _end(running: dict[int, int]) -> None:
    for pid in running:
        with contextlib.suppress(OSError):  # it has ended
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _taken(queue: int) -> Iterator[int]:
    while number := os.read(queue, 4):
        yield int.from_bytes(number, "little")


def _empty(queue: int) -> None:
    """Nobody begins another job: those before this one are done, or being done."""
    os.lseek(queue, 0, os.SEEK_END)


def _copy(queue: int, work: Callable[[T], R], jobs: Sequence[T], way: Way[R], out: int, parent: int) -> NoReturn:
    """The life of a copy: nothing of what it inherited is ended, flushed or told."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        with open(out, "wb", closefd=False) as file:
            for number in _taken(queue):
                if os.getppid() != parent:  # it was killed
                    break
                try:
                    result = work(jobs[number])
                except Exception:  # the parent will say what is wrong, as it does this job again
                    _empty(queue)
                    break
                parts = [memoryview(part) for part in way.pack(result)]
                size = sum(part.nbytes for part in parts)
                file.write(np.array((number, size), dtype=_HEAD).tobytes().ljust(_ALIGNED, b"\0"))
                for part in parts:
                    file.write(part)
                file.write(bytes(-size % _ALIGNED))
        status = 0
    finally:
        os._exit(status)


def _results(out: int, way: Way[R]) -> Iterator[tuple[int, R]]:
    """What a copy has left there, (job, result) one after the other."""
    size = os.fstat(out).st_size
    if not size:
        return
    data = memoryview(mmap.mmap(out, size, prot=mmap.PROT_READ))
    at = 0
    while at < size:
        number, length = (int(one) for one in np.frombuffer(data, dtype=_HEAD, count=1, offset=at)[0])
        at += _ALIGNED
        yield number, way.unpack(data[at : at + length])
        at += length + -length % _ALIGNED
