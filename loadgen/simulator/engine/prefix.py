"""The prefix cache: full blocks are kept under the hash of all tokens up to their end, and the least recently used go
first when room is needed.

A block in the cache is either in use (by one or more sequences) or idle. Idle blocks count as free: they are evicted
when a block is needed. A sequence gives its blocks back last block first, so that the end of a prefix goes before its
beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from collections.abc import Sequence as Several

from .memory import Pages
from .sequence import Sequence


class PrefixCache(Pages):
    def __init__(self, blocks: int, block_tokens: int) -> None:
        super().__init__(blocks, block_tokens)
        self.users: dict[int, int] = {}  # hash → sequences that use the block
        self.idle: OrderedDict[int, None] = OrderedDict()  # hashes, least recently used first

    @property
    def used(self) -> int:
        return self.private + len(self.users)

    def _prefix(self, sequence: Sequence) -> int:
        """Leading blocks of it that are in the cache. The last known token is always computed: something must be, to
        say the next one."""
        most = min(len(sequence.blocks), (sequence.known - 1) // self.block_tokens)
        for number in range(most):
            block = sequence.blocks[number]
            if block not in self.users and block not in self.idle:
                return number
        return most

    def found(self, sequence: Sequence) -> int:
        return self._prefix(sequence) * self.block_tokens

    def admit(self, sequence: Sequence) -> int | None:
        hits = sequence.blocks[: self._prefix(sequence)]
        need = -(-sequence.known // self.block_tokens) - len(hits)
        if need > self.available - sum(block in self.idle for block in hits):
            return None
        for block in hits:
            self.idle.pop(block, None)
            self.users[block] = self.users.get(block, 0) + 1
        self.grow(need)
        sequence.held = len(hits) + need
        sequence.shared = list(hits)
        sequence.registered = len(hits)
        if not sequence.preemptions:
            self.queries += sequence.prompt
            self.hits += len(hits) * self.block_tokens
        return len(hits) * self.block_tokens

    def grow(self, blocks: int) -> None:
        self.private += blocks
        for _ in range(self.used + len(self.idle) - self.total):
            self.idle.popitem(last=False)

    def computed(self, sequence: Sequence, tokens: int) -> None:
        """Offer its full blocks to the cache. One that another sequence computed at the same time stays private."""
        full = min(tokens // self.block_tokens, len(sequence.blocks))
        for block in sequence.blocks[sequence.registered : full]:
            if block not in self.users and block not in self.idle:
                self.private -= 1
                self.users[block] = 1
                sequence.shared.append(block)
        sequence.registered = max(sequence.registered, full)

    def release(self, sequence: Sequence) -> None:
        for block in reversed(sequence.shared):
            self.users[block] -= 1
            if not self.users[block]:
                del self.users[block]
                self.idle[block] = None
        self.private -= sequence.held - len(sequence.shared)
        sequence.held, sequence.shared = 0, []


def chain(tokens: Several[Hashable], block_tokens: int) -> tuple[int, ...]:
    """The chained hashes of the full blocks of `tokens`: equal exactly where all tokens up to a block's end are."""
    hashes, before = [], 0
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        before = hash((before, tuple(tokens[start : start + block_tokens])))
        hashes.append(before)
    return tuple(hashes)


def shared_prefix(name: Hashable, tokens: int, block_tokens: int) -> tuple[int, ...]:
    """The hashes of a prompt that begins with `tokens` tokens known as `name`, and goes on with text of its own."""
    return tuple(hash((name, number)) for number in range(tokens // block_tokens))
