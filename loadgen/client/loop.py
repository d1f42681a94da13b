"""An event loop that serves one reactor's sockets while it waits.

In another's loop each round of reading goes through its selector, its list of callbacks and back; that is a quarter
of what a token costs where they come one by one. Here the loop waits in the reactor, and the reactor returns to it only
when there is something for it to do.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

import anyio

T = TypeVar("T")


class Waiter(Protocol):
    """What is waited in instead of the selector: a reactor."""

    def wait(self, timeout_s: float | None) -> bool:
        """Until there is something for the loop to do, or the time is over; is one of the loop's own files ready?"""


class _Selector(selectors.BaseSelector):
    """The platform's, but that the `waiter`, where there is one, waits in its place and watches it among others."""

    def __init__(self) -> None:
        self.inner = selectors.DefaultSelector()
        self.waiter: Waiter | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.waiter is None:
            return self.inner.select(timeout)
        return self.inner.select(0) if self.waiter.wait(timeout) else []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self.inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self.inner.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self.inner.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self.inner.get_map()

    def close(self) -> None:
        self.inner.close()


class Loop(asyncio.SelectorEventLoop):
    """asyncio's own, but for what it waits in."""

    def __init__(self) -> None:
        self._waiting = _Selector()
        super().__init__(self._waiting)

    def enter(self, waiter: Waiter) -> int | None:
        """Wait in this from now on; what it is to watch for the loop. None where another is waited in already."""
        if self._waiting.waiter is not None or not hasattr(self._waiting.inner, "fileno"):
            return None
        self._waiting.waiter = waiter
        return int(self._waiting.inner.fileno())

    def leave(self) -> None:
        self._waiting.waiter = None


def run(main: Callable[..., Awaitable[T]], *args: Any) -> T:
    """`anyio.run` in such a loop."""
    return anyio.run(main, *args, backend_options={"loop_factory": Loop})
