"""What the engine knows of itself, as a server would tell in its metrics."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class EngineTruth:
    """Gauges between two steps, and counts since the start. Tokens of a prefix cache are counted as vLLM does: asked
    for are all prompt tokens of first-time admissions, found those that needed no computing."""

    running: int
    waiting: int
    kv_blocks: int | None  # None: memory without a limit
    kv_blocks_used: int
    kv_tokens: int  # tokens that have their KV
    kv_waste: float  # share of the used blocks' room that holds no token: fragmentation
    steps: int
    busy_s: float
    prompt_tokens: int  # computed, again after a preemption
    generation_tokens: int
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    drafts: int  # times a sequence was drafted for
    draft_tokens: int
    accepted_tokens: int

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use, 0 … 1."""
        return self.kv_blocks_used / self.kv_blocks if self.kv_blocks else 0.0


def added(one: EngineTruth, other: EngineTruth) -> EngineTruth:
    """Two pools as one: everything is summed; the waste is that of the larger use."""
    sums = {field.name: getattr(one, field.name) for field in fields(one)}
    for name, value in sums.items():
        more = getattr(other, name)
        sums[name] = None if value is None or more is None else value + more
    sums["kv_waste"] = max(one, other, key=lambda pool: pool.kv_blocks_used).kv_waste
    return EngineTruth(**sums)
