"""What a step has to compute, and how long that takes without a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .config import EngineConfig


@dataclass(slots=True)
class Work:
    """One step's work in tokens. A context counts the tokens attended to, the query's own included."""

    decoding: int = 0  # sequences; a static batch counts its finished ones too, as padding costs the same
    decode_tokens: int = 0  # 1 for each, and with speculation the drafted ones
    decode_context: int = 0  # summed over the sequences: KV tokens to read
    prefilled: int = 0  # prompt tokens
    prefill_pairs: int = 0  # (query, context) pairs of causal attention
    prefill_context: int = 0  # summed over the prompts: KV tokens to read
    prefill_cells: int = 0  # of the score matrices, queries x context, masked cells too
    prompts_done: int = 0  # prompts whose last token is in this step: one sampled token each


class Cost(Protocol):
    """Milliseconds of a step, before noise."""

    def milliseconds(self, work: Work) -> float: ...


class Affine:
    """A step without a machine: fixed, for each decoding sequence, for each prompt token."""

    def __init__(self, config: EngineConfig) -> None:
        self._step, self._decode, self._prefill = config.step_ms, config.decode_ms, config.prefill_ms

    def milliseconds(self, work: Work) -> float:
        return self._step + self._decode * work.decoding + self._prefill * work.prefilled
