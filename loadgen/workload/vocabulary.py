"""Text of exactly N tokens: words whose cost in tokens is known, and how it is learnt. Pure.

Nearly every tokenizer first cuts text at spaces, so that a word after a space costs the same wherever it stands. Then
the cost of a text is that of its first word, with all that the server puts around it (`base`), and a sum. Whether that
holds is not believed but tried, on whole texts, by who learns (`samples`).

No I/O: `learn` asks for counts by yielding texts. A word costs one token at the least, so that n words that cost n
tokens together cost one each: whole groups are settled by one count, and a group that costs more is halved.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .words import WORDS, pool_of

OPENING = 10  # words that spell the nonce, the first one among them
ENOUGH = 128  # words of one cost; more would not make the text any better
LEAST = 24  # fewer make openings that may repeat, and a text that is hardly one

Learning = Generator[str, int | None, "Vocabulary | None"]
Piece = tuple[str, int, int]  # of a text: what its first words spell a hash of, its tokens, where the rest is cut


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words that all cost `cost` tokens after a space. `base` is what a prompt of one of `openers` alone costs. Where
    `cost` is above 1, `fills[r]` are words that cost `fill_costs[r]` together, which is r more than a multiple of it.
    """

    base: int
    openers: tuple[str, ...]
    words: tuple[str, ...]
    cost: int = 1
    fills: tuple[tuple[str, ...], ...] = ((),)
    fill_costs: tuple[int, ...] = (0,)

    def text(self, tokens: int, nonce: str, start: int = 0, heads: Sequence[Piece] = ()) -> str | None:
        """A text whose prompt costs exactly `tokens`, which opens with words that spell a hash of `nonce`; `start` says
        where the rest is cut. It begins with `heads`, as far as they fit. None where that is too short to be met."""
        rest = tokens - self.base
        fill = rest % self.cost
        count = (rest - self.fill_costs[fill]) // self.cost
        if count < 0:
            return None
        parts: list[str] = []
        left = count + 1
        for piece in (*heads, (nonce, left * self.cost, start)):
            words = min(piece[1] // self.cost, left)
            left -= words
            if words:
                parts += self._spelt(piece[0], words, piece[2], opens=not parts)
        return " ".join((*parts, *self.fills[fill]))

    def _spelt(self, nonce: str, words: int, start: int, *, opens: bool) -> list[str]:
        """So many words, of which the first ones spell a hash of `nonce`: one of `openers` where the text begins."""
        digest = hashlib.blake2b(nonce.encode(), digest_size=2 * OPENING).digest()
        picks = [int.from_bytes(digest[i : i + 2], "big") for i in range(0, 2 * OPENING, 2)]
        first = self.openers if opens else self.words
        parts = [first[picks[0] % len(first)]]
        parts += [self.words[pick % len(self.words)] for pick in picks[1:words]]
        if words > OPENING:
            parts += pool_of(self.words).cut(start, words - OPENING)
        return parts

    def samples(self, nonce: str, most: int) -> list[tuple[str, int]]:
        """Some texts, of at most about `most` tokens, and the tokens that each must cost if the sums are right."""
        lengths = sorted({self.base + max(self.fill_costs) + max(1, most * part // 16) for part in (1, 3, 7, 12, 16)})
        found = [(self.text(n, f"sample {nonce} {n}", 911 * n), n) for n in lengths]
        return [(text, n) for text, n in found if text is not None]


def vocabulary_of(found: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary whose fields came as JSON."""
    words = {key: tuple(found[key]) for key in ("openers", "words", "fill_costs")}
    return Vocabulary(found["base"], cost=found["cost"], fills=tuple(map(tuple, found["fills"])), **words)


def learn(budget: int, nonce: str, most_words: int = len(WORDS), openers: int = 16) -> Learning:
    """A generator that yields texts, is sent the tokens that a prompt of each costs, and returns the vocabulary; None
    where the counts follow no such rule, or too few words of one cost are found in `budget` counts. To send None says
    that a text could not be counted. No text has more than `most_words` words and an opener; so many `openers` are
    tried, for one count each. The `nonce` orders each text's words, so that no run's is in the server's prefix cache.
    """
    rng = random.Random(nonce)
    bases: dict[str, int] = {}
    for word in WORDS[:openers]:
        tokens = yield word
        if tokens is None:
            return None
        bases[word] = tokens
    base = max(Counter(bases.values()).items(), key=lambda item: (item[1], -item[0]))[0]
    opening = tuple(word for word, own in bases.items() if own == base)
    costs: dict[str, int] = {}
    groups: list[tuple[float, int, int, int]] = []  # (tokens a word, from, to, tokens), the cheapest first

    def settle(start: int, end: int, tokens: int) -> bool:
        """What is known now that these words cost `tokens`; False where that is less than they can."""
        n = end - start
        if tokens == n or n == 1:
            costs.update(dict.fromkeys(WORDS[start:end], tokens // n))
        elif n:
            heapq.heappush(groups, (tokens / n, start, end, tokens))
        return tokens >= n

    def asked(start: int, end: int) -> str:
        return " ".join((opening[0], *rng.sample(WORDS[start:end], end - start)))

    chunks = [(start, min(start + most_words, len(WORDS))) for start in range(0, len(WORDS), most_words)]
    while budget > 0 and max(Counter(costs.values()).values(), default=0) < ENOUGH:
        if chunks:
            start, end = chunks.pop(0)
            tokens, of_both = (yield asked(start, end)), None
        elif groups:
            _, start, stop, of_both = heapq.heappop(groups)
            end = (start + stop) // 2
            tokens = yield asked(start, end)
        else:
            break
        budget -= 1
        if tokens is None:
            return None
        tokens -= base
        if not settle(start, end, tokens) or (of_both is not None and not settle(end, stop, of_both - tokens)):
            return None
    return _vocabulary(base, opening, costs)


def _vocabulary(base: int, openers: tuple[str, ...], costs: Mapping[str, int]) -> Vocabulary | None:
    """The words of the most frequent cost, with what fills the gaps between its multiples."""
    classes = Counter(costs.values())
    if not classes:
        return None
    cost, n = max(classes.items(), key=lambda item: (item[1], -item[0]))
    fills: dict[int, tuple[str, ...]] = {0: ()}
    found = [(0, 0)]  # (tokens, residue), the fewest first
    of_cost = {other: word for word, other in reversed(list(costs.items()))}
    spent = {0: 0}
    while found and len(fills) < cost:
        tokens, residue = heapq.heappop(found)
        for other, word in sorted(of_cost.items()):
            after = (residue + other) % cost
            if after not in fills:
                fills[after], spent[after] = (*fills[residue], word), tokens + other
                heapq.heappush(found, (tokens + other, after))
    if n < LEAST or len(fills) < cost:
        return None
    words = tuple(word for word, own in costs.items() if own == cost)
    residues: Sequence[int] = range(cost)
    return Vocabulary(base, openers, words, cost, tuple(fills[r] for r in residues), tuple(spent[r] for r in residues))
