"""The time limits of one request, and the one timer that holds it to them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

import anyio

from ..records import TimeoutKind


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Four separate limits in seconds, each its own outcome."""

    connect: float = 10.0
    first_token: float = 600.0
    idle: float = 60.0
    total: float = 3600.0


class Live:
    """A request in flight: its limits, and what ends it. Made inside a running asyncio loop; `close` it in the end.

    A limit moves with each phase, nearly always to a later time, and is hardly ever reached. So its timer stays where
    it is and looks, when it fires, whether the limit has moved.
    """

    __slots__ = ("_deadline", "_idle_set", "_limits", "_loop", "_start", "_timer", "phase", "scope", "why")

    def __init__(self, limits: Timeouts) -> None:
        self.phase: TimeoutKind = "connect" if limits.connect < limits.total else "total"
        self.scope = anyio.CancelScope()
        self.why: Literal["cut", "cancelled"] | None = None
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self._idle_set = 0.0
        self._deadline = self._start + min(limits.connect, limits.total)
        self._timer = self._loop.call_at(self._deadline, self._look)

    def sent(self) -> None:
        self._arm("first_token", self._loop.time(), self._limits.first_token)

    def token(self) -> None:
        # The limit is set 1/16 late and moved when that is used up, not for each token.
        now = self._loop.time()
        if self.phase == "first_token" or now - self._idle_set > self._limits.idle / 16:
            self._idle_set = now
            self._arm("idle", now, self._limits.idle * 17 / 16)

    def close(self) -> None:
        self._timer.cancel()

    def _arm(self, phase: TimeoutKind, now: float, limit: float) -> None:
        end = self._start + self._limits.total
        self.phase = phase if now + limit < end else "total"
        self._deadline = min(now + limit, end)
        if self._deadline < self._timer.when() and not self._timer.cancelled():  # closed: a write may come after
            self._timer.cancel()
            self._timer = self._loop.call_at(self._deadline, self._look)

    def _look(self) -> None:
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._look)
        else:
            self.scope.cancel()
