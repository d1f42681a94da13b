"""What prompts have in common at their start, and how much of it a prefix cache can save. Pure and seeded.

A prompt that shares opens with one or more heads, each a text that follows from its key alone, and goes on with a text
of its own. A key stands for its text *and all that comes before it*: as the block ids of a recorded trace do.

How much of a prompt could come from a cache is then counted, not guessed: in the order of the stream, a cache that
forgets nothing holds every head once sent (`Seen`). A server's cache holds whole blocks, so that what is expected of it
is that number rounded down to its block (`analysis.caching`).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from ..errors import UsageError

MOST_GROUPS = 100_000
MOST_EXPONENT = 10.0  # of Zipf's law; beyond it there is but one group


class Head(NamedTuple):
    """A text of `tokens` tokens at the start of a prompt, the same wherever `key` is the same."""

    key: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Sharing:
    """All prompts open with the same `system_tokens` tokens; then each with the `prefix_tokens` of one of `groups`
    groups, drawn evenly or, with a `zipf` exponent above 0, group k with a weight of 1 / k^zipf. Both are part of the
    input length asked for; a prompt too short for them is cut from them."""

    system_tokens: int = 0
    prefix_tokens: int = 0
    groups: int = 1
    zipf: float = 0.0

    def __post_init__(self) -> None:
        if self.system_tokens < 0 or self.prefix_tokens < 0 or self.system_tokens + self.prefix_tokens < 1:
            raise ValueError("nothing is shared")
        if not 1 <= self.groups <= MOST_GROUPS or not 0 <= self.zipf <= MOST_EXPONENT:
            raise ValueError(f"{self.groups} groups with an exponent of {self.zipf}")

    @property
    def tokens(self) -> int:
        """How many tokens of a prompt stand in its heads."""
        return self.system_tokens + self.prefix_tokens

    def heads(self, seed: int, index: int) -> tuple[Head, ...]:
        """Of prompt `index` of a stream: its own draw, whoever makes the prompts before it."""
        found = [Head("system", self.system_tokens)] if self.system_tokens else []
        if self.prefix_tokens:
            found.append(Head(f"group {self._group(seed, index)}", self.prefix_tokens))
        return tuple(found)

    def _group(self, seed: int, index: int) -> int:
        if self.groups == 1:
            return 0
        digest = hashlib.blake2b(f"group {seed} {index}".encode(), digest_size=8).digest()
        u = int.from_bytes(digest, "big") / 2**64
        if not self.zipf:
            return int(u * self.groups)
        ends = _ends(self.groups, self.zipf)
        return min(bisect_right(ends, u * ends[-1]), self.groups - 1)

    def __str__(self) -> str:
        parts = [f"{self.system_tokens:,} tokens shared by all"] if self.system_tokens else []
        if self.prefix_tokens and self.groups == 1:
            parts = [f"{self.tokens:,} tokens shared by all"]
        elif self.prefix_tokens:
            how = f" by Zipf's law {self.zipf:g}" if self.zipf else ""
            parts.append(f"{self.prefix_tokens:,} tokens shared in {self.groups:,} groups{how}")
        return ", ".join(parts)

    def as_object(self) -> dict[str, Any]:
        """For the manifest, and for another process (`sharing_of`)."""
        return asdict(self)


def sharing_of(found: dict[str, Any] | None) -> Sharing | None:
    """The sharing whose fields came as JSON."""
    return None if found is None else Sharing(**found)


def parse_sharing(
    prefix_tokens: int | None, groups: int | None, shortest_input: int | None = None, *, made: bool = True
) -> Sharing | None:
    """The values of `--shared-prefix-len` and `--prefix-groups`; None without any. `shortest_input` is the shortest
    input of a shape; `made` is False where prompts are given. Raises UsageError."""
    if prefix_tokens is None:
        if groups is not None:
            raise UsageError("--prefix-groups says how many groups, but not of what", "add --shared-prefix-len TOKENS")
        return None
    if not made:
        raise UsageError(
            "--shared-prefix-len is for made text: given prompts, and those of a trace, share what they share",
            "leave it out, or give --input-len in place of the file",
        )
    if prefix_tokens < 1:
        raise UsageError(f"--shared-prefix-len is {prefix_tokens}", "give a number of tokens above zero")
    if shortest_input is not None and prefix_tokens >= shortest_input:
        raise UsageError(
            f"--shared-prefix-len of {prefix_tokens:,} tokens leaves nothing of an input of {shortest_input:,}, of"
            " which it is a part",
            "raise --input-len above it",
        )
    if groups is not None and not 1 <= groups <= MOST_GROUPS:
        raise UsageError(f"--prefix-groups is {groups:,}", f"give 1 to {MOST_GROUPS:,}")
    return Sharing(prefix_tokens=prefix_tokens, groups=groups or 1)


def blocks(ids: Sequence[int | str], block_tokens: int, input_tokens: int) -> tuple[Head, ...]:
    """The heads of a prompt of a trace that names the blocks it is made of: `block_tokens` each, the last one less. An
    id stands for its block and all before it."""
    return fitting([Head(f"block {name}", block_tokens) for name in ids], input_tokens)


class Seen:
    """A prefix cache that forgets nothing, in tokens of heads."""

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}  # by the hashes of their keys, which are smaller

    def __len__(self) -> int:
        return len(self._tokens)

    def shared(self, heads: Sequence[Head]) -> int:
        """How many tokens of these heads were sent before, from the first on; from now on, all of them were."""
        held, open_ = 0, True
        for name, tokens in heads:
            key = hash(name)
            known = self._tokens.get(key, 0)
            if open_:
                held += min(known, tokens)
                open_ = known >= tokens
            if known < tokens:
                self._tokens[key] = tokens
        return held


def fitting(heads: Sequence[Head], tokens: int) -> tuple[Head, ...]:
    """The heads as far as they fit into so many tokens."""
    found = []
    for key, n in heads:
        if tokens > 0:
            found.append(Head(key, min(n, tokens)))
        tokens -= n
    return tuple(found)


def place_of(key: str, rows: int) -> int:
    """Where in the pool of words the text of a head is cut."""
    return int.from_bytes(hashlib.blake2b(f"head {key}".encode(), digest_size=4).digest(), "big") % rows


@lru_cache(maxsize=8)
def _ends(groups: int, exponent: float) -> list[float]:
    """The running sums of the groups' weights."""
    return list(accumulate(k**-exponent for k in range(1, groups + 1)))
