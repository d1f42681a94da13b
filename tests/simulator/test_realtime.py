from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.realtime import MAX_LATE_S, WINDOW_S, Alarm, EngineTask, Pace


def engine(step_ms: float) -> EngineTask:
    return EngineTask(EngineConfig(step_ms=step_ms, decode_ms=0, prefill_ms=0, overhead_ms=0, noise_sigma=0))


def test_late_wake_ups_do_not_add_up() -> None:
    def sometimes_busy() -> Callable[[int], None]:
        steps = iter(range(200))

        def deliver(count: int) -> None:
            assert count == 1
            if next(steps) % 10 == 5:
                time.sleep(0.02)  # the loop is busy: the next step's tokens are 17.5 ms late

        return deliver

    async def measure() -> tuple[float, float]:
        task = engine(2.5)
        start = asyncio.get_running_loop().time()
        await task.submit("a", 1, 200, sometimes_busy())
        return asyncio.get_running_loop().time() - start, task.pace.lost_s

    elapsed, lost = asyncio.run(measure())
    assert elapsed >= 0.499  # 200 steps of 2.5 ms: never early
    assert elapsed <= 0.5 + lost + 2 * MAX_LATE_S  # the delays, if they added up, would come to 0.35 s


def test_a_stalled_machine_is_told_and_the_schedule_moves_on() -> None:
    async def measure() -> tuple[EngineTask, float, bool, bool]:
        loop, times = asyncio.get_running_loop(), list[float]()

        def deliver(count: int) -> None:
            if not times:
                time.sleep(0.2)  # the stall
            times.append(loop.time())

        task = engine(5)
        before = task.pace.saturated(loop.time())
        await task.submit("a", 1, 20, deliver)
        return task, times[-1] - times[0], before, task.pace.saturated(loop.time())

    task, rest, before, after = asyncio.run(measure())
    assert task.pace.lost_s >= 0.15 and task.pace.lag_s > 0
    assert (before, after) == (False, True)
    assert rest >= 19 * 0.005 - 0.001  # no burst to catch up


def test_a_server_is_saturated_for_as_long_as_it_loses_time() -> None:
    pace = Pace()
    assert pace.handed_on(MAX_LATE_S, 0.0) == 0 and not pace.saturated(0.0)  # caught up again
    assert pace.handed_on(0.06, 1.0) == 0.06 and not pace.saturated(1.0)  # below 1 % of the window
    pace.handed_on(0.06, 2.0)
    assert pace.saturated(2.0) and pace.lost_s == 0.12
    assert not pace.saturated(2.0 + WINDOW_S) and pace.lost_s == 0.12
    assert 0 < pace.lag_s < 0.06


def test_a_cancelled_request_ends_without_a_sequence() -> None:
    async def cancel() -> tuple[object, object, bool, bool]:
        task = engine(1)
        end = task.submit("a", 1, 1000, lambda count: None)
        other = task.submit("b", 1, 2, lambda count: None)
        ended = await other
        return ended, await end if task.cancel("a") else None, task.cancel("a"), task.cancel("b")

    ended, cancelled, again, over = asyncio.run(cancel())
    assert ended is not None and cancelled is None and not again and not over


def test_an_alarm_is_never_early_and_lets_others_run_while_it_waits() -> None:
    async def measure() -> tuple[list[float], int]:
        loop, early, turns = asyncio.get_running_loop(), list[float](), 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        with Alarm() as alarm:
            for wait_s in (0.0, -1.0, 1e-9, 0.0003, 0.002, 0.0003):
                when = loop.time() + wait_s
                before = turns
                await alarm.at(when)
                early.append(when - loop.time())
                assert turns > before  # also where the moment was past
        beside.cancel()
        return early, turns

    early, _ = asyncio.run(measure())
    assert max(early) <= 0


def test_an_engine_leaves_no_descriptor_behind() -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def serve() -> None:
        task = engine(1)
        await task.submit("a", 1, 3, lambda count: None)

    asyncio.run(serve())
    before = opened()
    for _ in range(3):
        asyncio.run(serve())
    assert opened() == before
