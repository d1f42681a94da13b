"""The engine in real time: each step's tokens are handed on when the step is due to end.

It runs on an absolute schedule: a step begins where the step before was due to end, so that a late wake-up delays that
step's tokens but never adds up. Only when it has fallen more than `MAX_LATE_S` behind does the schedule move, and the
time lost is counted (`Pace`): then the machine, not the model, was the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections import deque
from collections.abc import Callable
from types import TracebackType

from .engine import Engine, EngineConfig
from .engine.sequence import Sequence
from .metrics import Requests
from .truth_clock import Timer

MAX_LATE_S = 0.05
WINDOW_S = 10.0
MOST_LOST = 0.01  # of a window, before the server calls itself saturated
SMOOTHING = 1 / 32  # of the lag, a step


class Pace:
    """How far real time is behind the engine's: `lag_s`, smoothed over some 32 steps, and `lost_s` in all."""

    def __init__(self) -> None:
        self.lag_s = 0.0
        self.lost_s = 0.0
        self._losses: deque[tuple[float, float]] = deque()  # when, how much

    def handed_on(self, late_s: float, now: float) -> float:
        """A step's tokens are out `late_s` after they were due. Returns by how much the schedule must move."""
        self.lag_s += (late_s - self.lag_s) * SMOOTHING
        if late_s <= MAX_LATE_S:
            return 0.0
        self.lost_s += late_s
        self._losses.append((now, late_s))
        return late_s

    def saturated(self, now: float) -> bool:
        """Whether more than `MOST_LOST` of the last `WINDOW_S` was lost."""
        while self._losses and self._losses[0][0] < now - WINDOW_S:
            self._losses.popleft()
        return sum(lost for _, lost in self._losses) > MOST_LOST * WINDOW_S


class Alarm:
    """Waits for a moment of the loop's clock, and is late only by the wake-up: the loop's own timers come up to a
    millisecond after their time, which is a large part of a fast engine's step. Entered inside a running loop."""

    def __enter__(self) -> Alarm:
        self._loop = asyncio.get_running_loop()
        self._rung: asyncio.Future[None] | None = None
        self._timer: Timer | None = None
        try:
            self._timer = Timer()
            self._loop.add_reader(self._timer.fd, self._ring)
        except (AttributeError, OSError, NotImplementedError):  # no timerfd here, or a loop that watches no descriptors
            self.__exit__(None, None, None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(timer.fd)
            os.close(timer.fd)

    async def at(self, when_s: float) -> None:
        """Return at `when_s`, never before; other tasks get their turn even where that is past."""
        wait_s = when_s - self._loop.time()
        if self._timer is None or wait_s <= 0:
            await asyncio.sleep(wait_s)
            return
        self._rung = self._loop.create_future()
        self._timer.arm(math.ceil(when_s * 1e9))
        await self._rung

    def _ring(self) -> None:
        assert self._timer is not None
        with contextlib.suppress(BlockingIOError):
            os.read(self._timer.fd, 8)  # or it would ring again
        if self._rung is not None and not self._rung.done():
            self._rung.set_result(None)


class _Open:
    """A request in the engine: who takes its tokens, and its end (None if it is cancelled)."""

    __slots__ = ("deliver", "end")

    def __init__(self, deliver: Callable[[int], None], end: asyncio.Future[Sequence | None]) -> None:
        self.deliver = deliver
        self.end = end


class EngineTask:
    """Runs an engine in real time; see the top."""

    def __init__(self, config: EngineConfig) -> None:
        self.engine = Engine(config)
        self.requests = Requests()
        self.pace = Pace()
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self._open: dict[str, _Open] = {}
        self._arrived_s = -math.inf  # of the last one: the engine takes them in order
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def submit(
        self,
        request_id: str,
        prompt_tokens: int,
        output_tokens: int,
        deliver: Callable[[int], None],
        blocks: tuple[int, ...] = (),
        arrived_s: float | None = None,
    ) -> asyncio.Future[Sequence | None]:
        """Queue a request that arrived then, or now: reading it is a part of the engine's overhead, and no time on top
        of that. `deliver` is called with the number of tokens of each step, within the step's own turn of
        the loop: it must not wait. The future is done after the last of them, or with None if it is cancelled."""
        loop = asyncio.get_running_loop()
        self._arrived_s = max(self._arrived_s, loop.time() if arrived_s is None else arrived_s)
        self.engine.submit(request_id, prompt_tokens, output_tokens, self._arrived_s, blocks)
        end: asyncio.Future[Sequence | None] = loop.create_future()
        self._open[request_id] = _Open(deliver, end)
        if self._task is None:
            self._task = loop.create_task(self._run())
        self._wake.set()
        return end

    def cancel(self, request_id: str) -> bool:
        """Drop a request; False if it had already got its last token."""
        request = self._open.pop(request_id, None)
        if request is None:
            return False
        self.engine.cancel(request_id)
        if not request.end.done():
            request.end.set_result(None)
        return True

    async def _run(self) -> None:
        with Alarm() as alarm:
            await self._steps(alarm)

    async def _steps(self, alarm: Alarm) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        while True:
            result = self.engine.step(now)
            if result is None:
                ready = self.engine.next_ready()
                if ready is None:
                    self._wake.clear()
                    await self._wake.wait()
                    now = loop.time()
                else:
                    await alarm.at(ready)
                    now = max(now, ready)
                continue
            due = now + result.duration_s
            await alarm.at(due)
            self.prompt_tokens += result.prefilled_tokens
            made = 0
            for request_id, count in result.tokens.items():
                if request := self._open.get(request_id):
                    made += count
                    request.deliver(count)
            self.generation_tokens += made
            self.requests.step(result.prefilled_tokens + made)
            for request_id, sequence in zip(result.finished, result.ended, strict=True):
                request = self._open.pop(request_id, None)
                if request is not None and not request.end.done():
                    request.end.set_result(sequence)
                    self.requests.ended(sequence)
            after = loop.time()
            now = due + self.pace.handed_on(after - due, after)
