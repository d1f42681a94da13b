"""One private epoll for all of a transport's sockets, in the event loop or in a thread of its own.

An epoll descriptor is itself pollable: the event loop watches that one, and a single callback reads every socket that
is ready. Asking the loop to watch each socket would cost more than reading it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from .clock import SECOND_NS, Clock, TimerFd
from .loop import Loop

THREAD_POLL_S = 0.5


class Ready(Protocol):
    """What is called when its descriptor is ready, with epoll's event mask."""

    def on_ready(self, mask: int) -> None: ...


class Reactor:
    """`handlers` by descriptor, timers by time. With `threaded` the callbacks run in a thread, and `post` brings a call
    back to the loop; without, everything runs in the loop and `post` is a plain call. A thread needs a timerfd.

    Sockets are closed where they are served. Were one closed elsewhere, a read of it that is under way in the thread
    would come from the connection that gets its number next.

    `looked_ns` is when the sockets were asked in the round before: no byte that is read now came earlier.
    """

    def __init__(self, *, threaded: bool = False) -> None:
        self.clock = Clock()
        self.handlers: dict[int, Ready] = {}
        self.looked_ns = self._looking_ns = time.monotonic_ns()
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._timer_lock = threading.Lock()
        self._timerfd: TimerFd | None = None
        try:
            self._timerfd = TimerFd()
            self._epoll.register(self._timerfd.fileno(), select.EPOLLIN)
        except OSError:  # the loop's own timers have to do
            self._timerfd = None
        self._leaving: deque[socket.socket] = deque()
        self._closed = False
        self._thread: threading.Thread | None = None
        self.threaded = threaded and self._timerfd is not None
        # What asyncio waits for, where its loop waits in here.
        self._loop_fd = self._loop.enter(self) if isinstance(self._loop, Loop) and not self.threaded else None
        self._posted = False  # may the loop have something to do?
        if self._loop_fd is not None:
            self._epoll.register(self._loop_fd, select.EPOLLIN)
        elif self.threaded:
            self._thread = threading.Thread(target=self._run, name="loadgen-reader", daemon=True)
            self._thread.start()
        else:
            self._loop.add_reader(self._epoll.fileno(), self._drain)

    @property
    def thread_id(self) -> int | None:
        """The kernel's id of the thread that reads the sockets; None where it is the event loop's."""
        return None if self._thread is None else self._thread.native_id

    @property
    def here(self) -> bool:
        """Does the caller run where the sockets are served?"""
        return self._thread is None or self._thread is threading.current_thread()

    def post(self, call: Callable[..., None], *args: Any) -> None:
        """Call in the event loop: now if this is it, else soon."""
        if self._thread is None:
            self._posted = True
            call(*args)
        elif not self._closed:
            self._loop.call_soon_threadsafe(call, *args)

    def add(self, fd: int, handler: Ready) -> None:
        self.handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def want_write(self, fd: int, wanted: bool) -> None:
        with suppress(FileNotFoundError):  # the thread has just left it
            self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT if wanted else select.EPOLLIN)

    def serves(self, fd: int) -> bool:
        return fd in self.handlers

    def leave(self, fd: int) -> None:
        """Ask no more of a descriptor that has come to its end: it would be ready for good. Where they are served."""
        if self.handlers.pop(fd, None) is not None and not self._epoll.closed:
            self._epoll.unregister(fd)

    def drop(self, sock: socket.socket) -> None:
        """Leave a socket and close it; a thread does so within its round."""
        self._leaving.append(sock)
        if self._thread is None or self._closed:
            self._close_dropped()
        else:
            self._wake()

    def at(self, when_ns: int, call: Callable[[], None]) -> None:
        """Call at that time of CLOCK_MONOTONIC, where the sockets are served."""
        if self._timerfd is None:
            delay = max(0.0, (when_ns - time.monotonic_ns()) / SECOND_NS)
            self._loop.call_later(delay, call)
            return
        with self._timer_lock:
            heapq.heappush(self._timers, (when_ns, next(self._count), call))
            if self._timers[0][0] == when_ns:
                self._timerfd.set(when_ns)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._loop_fd is not None:
            assert isinstance(self._loop, Loop)
            self._loop.leave()
        elif self._thread is None:
            self._loop.remove_reader(self._epoll.fileno())
        else:
            self._wake()
            self._thread.join()
        self._close_dropped()
        self._epoll.close()
        if self._timerfd is not None:
            self._timerfd.close()

    # --- where the sockets are served -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            self._serve(THREAD_POLL_S)

    def _drain(self) -> None:
        self._serve(0)

    def wait(self, timeout_s: float | None) -> bool:
        """See `Waiter`."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        self._posted = False
        while not self._serve(timeout_s):
            if self._posted:
                return False
            if end is not None:
                timeout_s = end - time.monotonic()
                if timeout_s <= 0:
                    return False
        return True

    def _serve(self, timeout_s: float | None) -> bool:
        """One round; is there something of the loop's own?"""
        looking = time.monotonic_ns()
        # Room for all of them: a socket that is not named had nothing to read.
        ready = self._epoll.poll(timeout_s, len(self.handlers) + 3)
        if self._closed:
            return False
        self.looked_ns, self._looking_ns = self._looking_ns, looking
        if looking - self.clock.refreshed_ns > SECOND_NS:
            self.clock.refresh()
        get = self.handlers.get
        own = False
        for fd, mask in ready:
            handler = get(fd)
            if handler is not None:
                handler.on_ready(mask)
            elif fd == self._loop_fd:
                own = True
            elif self._timerfd is not None and fd == self._timerfd.fileno():
                self._expire(self._timerfd)
        return own

    def _wake(self) -> None:
        with self._timer_lock:
            if self._timerfd is not None:
                self._timerfd.set(1)  # a time that has passed

    def _close_dropped(self) -> None:
        while self._leaving:
            sock = self._leaving.popleft()
            self.leave(sock.fileno())
            sock.close()

    def _expire(self, timerfd: TimerFd) -> None:
        timerfd.clear()
        while not self._closed:
            self._close_dropped()
            with self._timer_lock:
                if self._leaving:
                    continue  # to set the timer now would undo the wake-up for it
                if not self._timers:
                    return
                if self._timers[0][0] > time.monotonic_ns():
                    timerfd.set(self._timers[0][0])
                    return
                call = heapq.heappop(self._timers)[2]
            self._posted = True
            try:
                call()
            except Exception as error:  # it is nobody's here, and must not end who serves the sockets
                said = {"message": "a scheduled call failed", "exception": error}
                self._loop.call_soon_threadsafe(self._loop.call_exception_handler, said)
