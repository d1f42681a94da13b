"""KV memory, in blocks of a fixed number of tokens: paged, or reserved in one piece for the longest possible answer.

Blocks are counted, not numbered: nothing about time depends on which block it is. `held` of a sequence says how many
are its; what it shares in the prefix cache is told there (`prefix.py`).
"""

from __future__ import annotations

from .config import EngineConfig
from .sequence import Sequence


class Pages:
    """Blocks are given as tokens come (Kwon et al. 2023), so at most one block a sequence is only partly used."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.total = blocks
        self.block_tokens = block_tokens
        self.private = 0  # blocks that one sequence alone holds
        self.queries = 0  # prompt tokens looked up in a prefix cache, and found there
        self.hits = 0

    @property
    def used(self) -> int:
        """Blocks that running sequences hold."""
        return self.private

    @property
    def available(self) -> int:
        return self.total - self.used

    def fits(self, tokens: int) -> bool:
        """Whether a sequence that grows to `tokens` can run at all."""
        return -(-tokens // self.block_tokens) <= self.total

    def found(self, sequence: Sequence) -> int:
        """Tokens of it that need no computing; looks, and takes nothing."""
        return 0

    def admit(self, sequence: Sequence) -> int | None:
        """Take blocks for all its known tokens. Returns how many of these need no computing; None where too few
        blocks are free, and then nothing is taken."""
        need = -(-sequence.known // self.block_tokens)
        if need > self.available:
            return None
        sequence.held = need
        self.private += need
        return 0

    def room(self, sequence: Sequence) -> int:
        """Tokens that its blocks hold."""
        return sequence.held * self.block_tokens

    def grow(self, blocks: int) -> None:
        """Take so many more for sequences that run; the caller has looked at `available`."""
        self.private += blocks

    def computed(self, sequence: Sequence, tokens: int) -> None:
        """Its first `tokens` tokens have their KV."""

    def release(self, sequence: Sequence) -> None:
        self.private -= sequence.held
        sequence.held = 0


class Reservations(Pages):
    """Every sequence gets the room of the longest one in one piece, as engines did before paging."""

    def __init__(self, blocks: int, block_tokens: int, longest: int) -> None:
        super().__init__(blocks, block_tokens)
        self._each = -(-longest // block_tokens)

    def admit(self, sequence: Sequence) -> int | None:
        if self._each > self.available:
            return None
        sequence.held = self._each
        self.private += self._each
        return 0


def memory_for(config: EngineConfig) -> Pages:
    if config.kv == "contiguous":
        return Reservations(config.blocks, config.block_tokens, config.context_length)
    if config.prefix_cache:
        from .prefix import PrefixCache

        return PrefixCache(config.blocks, config.block_tokens)
    return Pages(config.blocks, config.block_tokens)
