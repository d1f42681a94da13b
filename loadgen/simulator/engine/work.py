"""What a step has to compute, and how long that takes without a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...hardware.model import Model
from .config import EngineConfig


@dataclass(slots=True)
class Work:
    """One step's work in tokens. A context counts the tokens attended to, the query's own included; where layers see a
    window of it only, the mean over the layers."""

    decoding: int = 0  # sequences; a static batch counts its finished ones too, as padding costs the same
    decode_tokens: int = 0  # 1 for each, and with speculation the drafted ones
    decode_context: float = 0  # summed over the sequences: KV tokens to read
    prefilled: int = 0  # prompt tokens
    prefill_pairs: float = 0  # (query, context) pairs of causal attention
    prefill_context: float = 0  # summed over the prompts: KV tokens to read
    prefill_cells: float = 0  # of the score matrices, queries x context, masked cells too
    prompts_done: int = 0  # prompts whose last token is in this step: one sampled token each


class Sight:
    """How much of a context a model's layers see, as the mean over them."""

    def __init__(self, model: Model) -> None:
        count = model.attention_layers
        self._windows = [(group.count / count, group.window) for group in model.attention if group.window is not None]
        self._open = 1.0 if not self._windows else sum(g.count for g in model.attention if g.window is None) / count

    def decoding(self, kv: NDArray[np.int64]) -> float:
        """KV tokens that queries of sequences with so much KV read, their own included."""
        seen = self._open * float(kv.sum() + len(kv))
        for share, window in self._windows:
            seen += share * float(np.minimum(kv + 1, window).sum())
        return seen

    def prefill(self, work: Work, before: int, share: int) -> None:
        """Add a piece of a prompt: `share` tokens after `before` others."""
        self._add(work, self._open, before, share, None)
        for weight, window in self._windows:
            self._add(work, weight, before, share, window)

    @staticmethod
    def _add(work: Work, weight: float, before: int, share: int, window: int | None) -> None:
        rising = share if window is None else min(share, max(0, window - before))  # queries that see all before them
        pairs = rising * before + rising * (rising + 1) // 2 + (share - rising) * (window or 0)
        context = share + (before if window is None else min(before, window))
        work.prefill_pairs += weight * pairs
        work.prefill_context += weight * context
        work.prefill_cells += weight * share * context


class Cost(Protocol):
    """Milliseconds of a step, before noise."""

    def milliseconds(self, work: Work) -> float: ...


class Affine:
    """A step without a machine: fixed, for each decoding sequence and the KV it reads, for each prompt token."""

    def __init__(self, config: EngineConfig) -> None:
        self._step, self._decode, self._prefill = config.step_ms, config.decode_ms, config.prefill_ms
        self._context = config.context_us / 1e3

    def milliseconds(self, work: Work) -> float:
        return (
            self._step
            + self._decode * work.decoding
            + self._context * work.decode_context
            + self._prefill * work.prefilled
        )
