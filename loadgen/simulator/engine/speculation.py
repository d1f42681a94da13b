"""Speculative decoding (Leviathan et al. 2023): k tokens are drafted; the step keeps the first run of them that the
model accepts, and one token of its own. With acceptance a, independent of each other, that makes
(1 - a^(k+1)) / (1 - a) tokens a step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .config import EngineConfig


def expected_tokens(drafted: int, acceptance: float) -> float:
    """Tokens a step and sequence, (1 - a^(k+1)) / (1 - a)."""
    return float((1 - acceptance ** (drafted + 1)) / (1 - acceptance))


class Speculation:
    """Draws how many drafted tokens are accepted, and counts."""

    def __init__(self, config: EngineConfig) -> None:
        self.length = config.speculate
        self.drafts = 0  # one for each sequence and step
        self.drafted = 0
        self.accepted_tokens = 0
        self._reject = 1 - config.acceptance
        self._random = np.random.default_rng([config.seed, 1])

    def accepted(self, sequences: int) -> NDArray[np.int64]:
        """Accepted tokens for each of so many sequences: 0 … k, at least i with probability a^i."""
        runs = np.minimum(self._random.geometric(self._reject, sequences) - 1, self.length)
        self.drafts += sequences
        self.drafted += sequences * self.length
        self.accepted_tokens += int(runs.sum())
        return runs
