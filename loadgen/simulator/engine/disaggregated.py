"""Prefill and decode in two pools (Zhong et al. 2024): a prompt is computed in the one, which also emits the first
token; its KV crosses a link; the rest is decoded in the other. Neither delays the other's steps.

Both pools are the configured engine, each with accelerators of its own. The link carries one prompt's KV after the
other: latency + bytes / bandwidth. Until its KV has left, a prompt keeps its blocks in the prefill pool. A sequence
that the decode pool preempts is computed again there.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

from .config import EngineConfig
from .core import Core, Step
from .sequence import Sequence
from .truth import EngineTruth, added

KV_TOKEN_BYTES = 131072  # without a machine: as a model of 8 G parameters has in bf16


class Disaggregated:
    """The two pools behind the interface of one. Steps overlap: each call of `step` runs on to the earliest end."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.pools = (Core(config), Core(replace(config, seed=config.seed + 1, prefix_cache=False)))
        self._pending: list[Step | None] = [None, None]
        self._ended_s = [-math.inf, -math.inf]  # the end of each pool's last step
        self._moving: dict[int, Sequence] = {}  # in the prefill pool, as they were submitted
        self._leaving: deque[tuple[float, int]] = deque()  # whose KV crosses, and until when
        self._short = False  # a prompt waits for memory that a transfer will free
        self._link_free_s = -math.inf
        machine = config.machine
        each = machine.kv_token_bytes if machine else KV_TOKEN_BYTES
        self.token_transfer_s = each / (config.link_gb_s * 1e9)

    @property
    def running(self) -> int:
        return sum(pool.running for pool in self.pools)

    @property
    def waiting(self) -> int:
        return sum(pool.waiting for pool in self.pools)

    def submit(self, sequence: Sequence) -> None:
        """Queue it for prefill. ValueError if it can never run in one of the pools."""
        prefill, decode = self.pools
        if not decode.memory.fits(sequence.prompt + sequence.output - 1):
            raise ValueError(f"{sequence.prompt} + {sequence.output} tokens exceed the KV memory")
        handle, submitted = sequence.handle, sequence.submitted_s
        prefill.submit(Sequence(handle, sequence.prompt, 1, submitted, sequence.ready_s, sequence.blocks))
        self._moving[handle] = sequence

    def cancel(self, handle: int) -> bool:
        moving = self._moving.pop(handle, None) is not None
        self.pools[0].let_go(handle)
        return self.pools[0].cancel(handle) or self.pools[1].cancel(handle) or moving

    def next_ready(self) -> float | None:
        times = []
        for pool, pending in zip(self.pools, self._pending, strict=True):
            if pending is not None:
                ready: float | None = pending.start_s + pending.duration_s
            elif pool is self.pools[0] and self._short and self._leaving:
                ready = self._leaving[0][0]
            else:
                ready = pool.next_ready()
            if ready is not None:
                times.append(ready)
        return min(times, default=None)

    def step(self, now: float, until: float = math.inf) -> Step | None:
        """Start what can start, and run on to the earliest end of a step; None if that is after `until`, or none is.

        A pool starts when its work was ready, also if that is before `now`: another pool's step does not hold it up. If
        its step has then ended before `now` already, it counts as ending now.
        """
        for number, pool in enumerate(self.pools):
            if self._pending[number] is None:
                ready = pool.next_ready()
                start = now if ready is None else min(now, max(ready, self._ended_s[number]))
                # Idle, a pool lets go of what it has finished.
                self._pending[number] = pool.step(start) if number else self._prefill(start, now)
        ends = [math.inf if step is None else step.start_s + step.duration_s for step in self._pending]
        first = ends.index(min(ends))
        step, end = self._pending[first], ends[first]
        if step is None or end > until:
            return None
        self._pending[first], self._ended_s[first] = None, end
        if first == 0:
            ended = tuple(sequence for moved in step.ended if (sequence := self._hand_over(moved)) is not None)
        else:
            ended = step.ended
        return replace(step, start_s=now, duration_s=max(0.0, end - now), ended=ended)

    def _prefill(self, start: float, now: float) -> Step | None:
        """A step of the prefill pool from `start`, or from when a transfer has freed the memory for it, until `now`."""
        pool = self.pools[0]
        while True:
            while self._leaving and self._leaving[0][0] <= start:
                pool.let_go(self._leaving.popleft()[1])
            step = pool.step(start)
            ready = pool.next_ready()
            self._short = step is None and ready is not None and ready <= now
            if step is not None or not self._leaving or self._leaving[0][0] > now:
                return step
            start = self._leaving[0][0]

    def _hand_over(self, prefilled: Sequence) -> Sequence | None:
        """Send a prompt's KV on its way; returns the request if it asked for one token only, and so is done."""
        sequence = self._moving.pop(prefilled.handle, None)
        if sequence is None:
            return None  # cancelled
        sequence.scheduled_s, sequence.first_s = prefilled.scheduled_s, prefilled.first_s
        sequence.cached, sequence.emitted = prefilled.cached, 1
        if sequence.output == 1:
            sequence.done_s = sequence.first_s
            return sequence
        begin = max(self._link_free_s, sequence.first_s)
        self._link_free_s = begin + sequence.prompt * self.token_transfer_s
        sequence.ready_s = self._link_free_s + self.config.link_latency_ms / 1e3
        sequence.kv_given, sequence.blocks = sequence.prompt, ()
        self.pools[0].kept[sequence.handle] = None
        self._leaving.append((sequence.ready_s, sequence.handle))
        self.pools[1].submit(sequence)
        return None

    def truth(self) -> EngineTruth:
        """Both pools together."""
        return added(self.pools[0].truth(), self.pools[1].truth())


def core_for(config: EngineConfig) -> Core | Disaggregated:
    return Disaggregated(config) if config.disaggregated else Core(config)
