"""A request inside the engine, and what the engine can tell of it when it has ended."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Sequence:
    """`blocks` are the chained hashes of its full KV blocks, prompt first; they may go on into the answer. Empty: its
    text is shared with nobody. Times are seconds on the engine's clock, NaN until they are known."""

    handle: int
    prompt: int
    output: int
    submitted_s: float
    ready_s: float  # from here on the scheduler sees it
    blocks: tuple[int, ...] = ()
    emitted: int = 0
    kv_given: int = 0  # tokens whose KV came from another pool
    scheduled_s: float = math.nan  # its first step's start
    first_s: float = math.nan  # its first token
    done_s: float = math.nan  # its last
    cached: int = 0  # prompt tokens found in the prefix cache when it was first scheduled
    preemptions: int = 0
    held: int = 0  # KV blocks while it runs …
    shared: list[int] = field(default_factory=list)  # … of which these are in the prefix cache
    registered: int = 0  # full blocks that were offered to the prefix cache

    @property
    def known(self) -> int:
        """Tokens whose KV it needs before it can go on: the prompt, and after a preemption its answer so far."""
        return self.prompt + self.emitted

    @property
    def queue_s(self) -> float:
        return self.scheduled_s - self.submitted_s

    @property
    def prefill_s(self) -> float:
        return self.first_s - self.scheduled_s

    @property
    def decode_s(self) -> float:
        return self.done_s - self.first_s
