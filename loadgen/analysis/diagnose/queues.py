"""Is there a queue: does the median request wait beyond its TTFT without load? Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .levels import Level, Levels, median

WAIT_SHARE = 0.12  # of a request's time, spent waiting: less is no queue
WAIT_TPOTS = 3.0  # and a queue is longer than so many steps
ALONE_SHARE = 0.3  # the same of one single load, where waiting and prefill cannot be told apart


@dataclass(frozen=True, slots=True)
class Queue:
    """Of a level: how long the median request waits (ms), the share of its time, and for one single load what that
    rests on."""

    level: Level
    wait_ms: float
    share: float
    alone: bool


def longest_queue(run: Levels) -> Queue | None:
    """That of the highest load, if there is one."""
    for level in reversed(run.by_load):
        queue = queue_of(run, level)
        if queue is not None:
            return queue
    return None


def queue_of(run: Levels, level: Level) -> Queue | None:
    e2e, tpot = median(level.e2e), median(level.tpot, 0.0)
    wait = run.queue_ms(level)
    if wait is not None:
        share = wait / e2e if e2e > 0 else 0.0
        return Queue(level, wait, share, False) if share >= WAIT_SHARE and wait >= WAIT_TPOTS * tpot else None
    wait = median(level.ttft)
    if not e2e > 0 or not wait / e2e >= ALONE_SHARE or wait < 2 * WAIT_TPOTS * tpot or level.users < 2:
        return None
    return Queue(level, wait, wait / e2e, True)
