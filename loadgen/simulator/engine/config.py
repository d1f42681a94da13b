"""What an engine is told: its times or its machine, and a switch for each mechanism."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from ...errors import UsageError
from ...hardware.deployment import cache
from .machine import Machine, machine_of

Batching = Literal["continuous", "static"]
Reservation = Literal["paged", "contiguous"]

UNLIMITED = 1 << 60  # KV blocks of an engine whose memory nobody stated


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The knobs of the model. Without a `machine` a step lasts `step_ms + decode_ms x (decoding sequences) +
    context_us x (KV tokens that they read) + prefill_ms x (prompt tokens)`; with one, what its roofline says. The
    defaults saturate at about 900 output tokens/s with 64 tokens in and 32 out, give an idle TTFT of about 40 ms there,
    and switch every further mechanism off."""

    step_ms: float = 12.0  # of every step
    decode_ms: float = 0.2  # for each sequence decoding in a step
    context_us: float = 0.0  # for each token of KV that a decoding sequence reads, in µs
    prefill_ms: float = 0.085  # for each prompt token
    overhead_ms: float = 22.0  # from arrival until the scheduler sees a request; costs no engine time
    max_batch: int = 16  # running sequences
    max_prefill_tokens: int = 2048  # prompt tokens a step
    noise_sigma: float = 0.03  # of the log of a step's duration
    seed: int = 0
    context_length: int = 32768  # prompt and output together
    max_batched_tokens: int = 0  # prompt and decoded tokens a step; 0: no limit
    batching: Batching = "continuous"
    chunked_prefill: bool = True
    kv: Reservation = "paged"
    kv_blocks: int = 0  # 0: what the machine's memory holds; without a machine, no limit
    block_tokens: int = 16
    prefix_cache: bool = False
    speculate: int = 0  # tokens drafted for each sequence in a step
    acceptance: float = 0.7  # chance that a drafted token is accepted, given that those before it were
    draft_ms: float = 0.0  # for each drafted position of a step
    disaggregated: bool = False
    link_gb_s: float = 50.0  # from the prefill pool to the decode pool
    link_latency_ms: float = 1.0
    drift: float = 0.0  # amplitude of a slow sine on the step time, as a share of it
    drift_period_s: float = 60.0
    stall_every_s: float = 0.0  # mean time between stalls while the engine is busy; 0: none
    stall_ms: float = 200.0
    machine: Machine | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _LOWEST and (not math.isfinite(value) or value < _LOWEST[field.name]):
                raise UsageError(
                    f"{field.name} must be at least {_LOWEST[field.name]}, not {value}", "give a larger value"
                )
            if field.name in _HIGHEST and value >= _HIGHEST[field.name]:
                raise UsageError(
                    f"{field.name} must be below {_HIGHEST[field.name]}, not {value}", "give a smaller value"
                )
            if field.name in _WORDS and value not in _WORDS[field.name]:
                raise UsageError(f"{field.name} is {value!r}", f"say {' or '.join(_WORDS[field.name])}")
        if self.machine is None and self.step_ms + min(self.decode_ms, self.prefill_ms) <= 0:
            raise UsageError("step_ms, decode_ms and prefill_ms leave steps that take no time", "give step_ms a value")
        least = self.max_batch * (1 + self.speculate)
        if 0 < self.max_batched_tokens <= least:
            raise UsageError(
                f"max_batched_tokens={self.max_batched_tokens} leaves no room for a prompt beside {least} decoded ones",
                "raise max_batched_tokens or lower max_batch",
            )
        if self.prefix_cache and self.kv == "contiguous":
            raise UsageError("a prefix cache shares blocks, contiguous reservations have none", 'use kv="paged"')
        if self.kv == "contiguous" and self.blocks * self.block_tokens < self.context_length:
            raise UsageError(
                f"KV memory of {self.blocks * self.block_tokens} tokens holds no reservation of {self.context_length}",
                "lower context_length or raise kv_blocks",
            )

    @property
    def room(self) -> int:
        """Tokens that one request may have, prompt and output together."""
        return min(self.context_length, self.blocks * self.block_tokens)

    @property
    def blocks(self) -> int:
        """KV blocks there are. UsageError where the machine's memory does not hold the weights and one block."""
        if self.kv_blocks or self.machine is None:
            return self.kv_blocks or UNLIMITED
        on = replace(
            self.machine.on,
            block=self.block_tokens,
            batch_tokens=min(self.max_batched_tokens or self.max_prefill_tokens, self.max_batch * self.context_length),
            max_sequences=self.max_batch,
        )
        blocks = cache(self.machine.model, on).blocks
        if blocks < 1:
            raise UsageError(
                f"{self.machine.model.name} does not fit on {on.gpus} x {on.gpu.name}",
                "take more accelerators, or weights of fewer bits; loadgen plan says what would do",
            )
        return blocks

    @property
    def simple(self) -> bool:
        """Whether the closed form of `capacity` holds: times without a machine, and no further mechanism."""
        default = EngineConfig()
        return all(getattr(self, name) == getattr(default, name) for name in _MECHANISMS)


def config_of(values: Mapping[str, Any]) -> EngineConfig:
    """The config that `dataclasses.asdict` wrote down, also after JSON."""
    machine = values.get("machine")
    return EngineConfig(**{**values, "machine": None if machine is None else machine_of(machine)})


_LOWEST: dict[str, float] = {
    "step_ms": 0,
    "decode_ms": 0,
    "context_us": 0,
    "prefill_ms": 0,
    "overhead_ms": 0,
    "max_batch": 1,
    "max_prefill_tokens": 1,
    "noise_sigma": 0,
    "seed": 0,
    "context_length": 2,
    "max_batched_tokens": 0,
    "kv_blocks": 0,
    "block_tokens": 1,
    "speculate": 0,
    "acceptance": 0,
    "draft_ms": 0,
    "link_gb_s": 0.001,
    "link_latency_ms": 0,
    "drift": 0,
    "drift_period_s": 0.001,
    "stall_every_s": 0,
    "stall_ms": 0,
}
_HIGHEST: dict[str, float] = {"acceptance": 1, "drift": 1}
_WORDS = {"batching": ("continuous", "static"), "kv": ("paged", "contiguous")}
_MECHANISMS = (
    *("machine", "max_batched_tokens", "batching", "chunked_prefill", "kv", "kv_blocks", "prefix_cache", "speculate"),
    *("disaggregated", "drift", "stall_every_s", "context_us"),
)
