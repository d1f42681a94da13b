"""Prompts of a wanted number of tokens. Pure and seeded.

With a `Vocabulary`, which needs someone who counts, the number is met exactly. Without, text is made of common words,
each of which is one token of most tokenizers, and a prompt has about the number: what a word really costs at a server,
and what its chat template adds, is then learnt from its own counts (`fit`). Or a prompt is token ids, exactly so many.

Rules:
1. A prompt opens with words that spell a hash of (run nonce, index): no prefix cache can serve it, in this run or the
   next. The rest is cut from one pool. `same_text` takes the seed in place of the nonce: the text repeats.
2. The seed fixes lengths and which part of the pool is taken; the nonce changes the opening words alone.
3. Making a prompt costs a hash and a slice of the pool, not a join over its words.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from ..errors import UsageError
from ..records import Prompt
from .lengths import Apart, Distribution, Fixed, Lengths, LengthStream, Uniform
from .sharing import Head, Seen, Sharing, fitting, place_of
from .vocabulary import Piece, Vocabulary, vocabulary_of
from .words import POOL_WORDS, ROW, WORDS, pool_of

ROWS = POOL_WORDS // ROW
ROW_STEP = 619  # has no factor in common with ROWS, a power of two
EVERY_WORD = len(WORDS)  # after the opening, a text of this many words from row 0 holds every word once
OPENING_WORDS = 10  # of the 64 commonest, which are one token nearly everywhere: 6 bits each

DEFAULT_TOKENS_PER_WORD = 1.0  # until a server has counted
# A fit outside these is no tokenizer's: the server's counts do not follow the text.
PLAUSIBLE_TOKENS_PER_WORD = (0.5, 8.0)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What our text costs at a server: `overhead_tokens`, one token for each opening word (they are the commonest there
    are), and `tokens_per_word` for each word after them.

    `overhead_tokens` are those of the chat template and start tokens; set it to 0 to have them added to the length
    asked for instead of counted in it. Where there is a `vocabulary`, lengths are met by it. Where there are `ids`, a
    prompt is token ids, drawn from these.
    """

    overhead_tokens: float = 0.0
    tokens_per_word: float = DEFAULT_TOKENS_PER_WORD
    vocabulary: Vocabulary | None = None
    ids: tuple[int, ...] = ()

    def prompt(self, tokens: int, nonce: str, row: int = 0, heads: Sequence[Head] = ()) -> Prompt:
        """The prompt that comes nearest to `tokens`, opening with a hash of `nonce`; `row` says where it is cut. Before
        that come `heads`, whose texts follow from their keys, as far as they fit."""
        pieces = [(key, n, place_of(key, ROWS)) for key, n in heads]
        if self.ids:
            return Prompt(input_tokens=tokens, token_ids=self._ids(tokens, [*pieces, (nonce, tokens, row)]))
        text = self.vocabulary.text(tokens, nonce, row, pieces) if self.vocabulary is not None else None
        if text is None:
            text = make_text(self.words(tokens), nonce, row, [(key, self._words(n), at) for key, n, at in pieces])
        return Prompt(text, tokens)

    def text(self, tokens: int, nonce: str, row: int = 0) -> str:
        """A text that costs `tokens` itself, without what the server puts around a prompt; a word at the least."""
        known = self.vocabulary
        if known is not None:
            for n in (tokens, tokens - tokens % known.cost, known.cost):  # a short one may have no filling
                found = known.text(known.base - known.cost + n, nonce, row)
                if found is not None:
                    return found
        return make_text(max(1, self._words(tokens)), nonce, row)

    @property
    def around(self) -> int:
        """The most tokens that the server puts around a text."""
        return max(0, math.ceil(self.overhead_tokens) if self.vocabulary is None else self.vocabulary.base - 1)

    def _words(self, tokens: float) -> int:
        return max(0, round(min(tokens, OPENING_WORDS) + max(0.0, tokens - OPENING_WORDS) / self.tokens_per_word))

    def _ids(self, tokens: int, pieces: Sequence[Piece]) -> tuple[int, ...]:
        found: tuple[int, ...] = ()
        for key, n, row in pieces:
            found += make_ids(self.ids, min(n, tokens - len(found)), key, row)
        return found

    def words(self, tokens: int) -> int:
        """The number of words whose prompt comes nearest to `tokens`; at least one."""
        rest = tokens - self.overhead_tokens - OPENING_WORDS
        return max(1, OPENING_WORDS + round(rest / self.tokens_per_word if rest > 0 else rest))

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Calibration:
        """The calibration whose fields came as JSON."""
        vocabulary = found["vocabulary"]
        return cls(
            found["overhead_tokens"],
            found["tokens_per_word"],
            None if vocabulary is None else vocabulary_of(vocabulary),
            tuple(found["ids"]),
        )

    def tokens(self, words: int) -> float:
        """The tokens that a prompt of `words` words is expected to have."""
        return self.overhead_tokens + min(words, OPENING_WORDS) + self.tokens_per_word * max(0, words - OPENING_WORDS)


def fit(counts: Sequence[tuple[int, int]]) -> Calibration | None:
    """Least squares through (words, prompt_tokens) pairs of texts made here. None when they do not tell: fewer than two
    different lengths, or a slope that no tokenizer has (the server's count does not follow the text)."""
    points = [(max(0, words - OPENING_WORDS), tokens - min(words, OPENING_WORDS)) for words, tokens in counts]
    if len({x for x, _ in points}) < 2:
        return None
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    if not PLAUSIBLE_TOKENS_PER_WORD[0] <= slope <= PLAUSIBLE_TOKENS_PER_WORD[1]:
        return None
    return Calibration(mean_y - slope * mean_x, slope)


@dataclass(frozen=True, slots=True)
class LengthRange:
    """A number of tokens: fixed when low = high, else uniform over both ends."""

    low: int
    high: int

    @property
    def distribution(self) -> Distribution:
        return Fixed(self.low) if self.low == self.high else Uniform(self.low, self.high)

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    def __str__(self) -> str:
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,}–{self.high:,}"


def parse_length(text: str | int, flag: str) -> LengthRange:
    """`512`, or `100-200` for a uniform range. Raises UsageError naming `flag`."""
    match = re.fullmatch(r"\s*([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?\s*", str(text), re.ASCII)
    if match:
        low = int(match.group(1))
        high = int(match.group(2)) if match.group(2) else low
        if 1 <= low <= high:
            return LengthRange(low, high)
    raise UsageError(
        f"{flag} is {text!r}, not a length in tokens", f"write {flag} 512, or {flag} 100-200 for a uniform range"
    )


class PromptStream:
    """An endless iterator of prompts. Worker i of W gets the prompts i, i + W, … of the stream: those of all workers
    together are the same for any W. Their lengths are those of `lengths`, else uniform over the two ranges.

    `Prompt.input_tokens` is the length asked for; where the template alone is longer, it cannot be met.
    """

    def __init__(
        self,
        seed: int,
        nonce: str,
        input_len: LengthRange,
        output_len: LengthRange,
        calibration: Calibration | None = None,
        *,
        worker: int = 0,
        workers: int = 1,
        same_text: bool = False,
        lengths: Lengths | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        self._seed = seed
        self._lengths = LengthStream(lengths or Lengths(Apart(input_len.distribution, output_len.distribution)), seed)
        self._first_row = int.from_bytes(hashlib.blake2b(f"row {seed}".encode(), digest_size=4).digest(), "big") % ROWS
        self._key = f"seed {seed}" if same_text else f"nonce {nonce}"
        self._calibration = calibration or Calibration()
        self._numbers = count(worker, workers)
        self._sharing, self._seen, self._looked_at = sharing, Seen(), 0

    def __iter__(self) -> Iterator[Prompt]:
        return self

    def __next__(self) -> Prompt:
        return self.at(next(self._numbers))

    def at(self, index: int) -> Prompt:
        """Prompt `index` of the stream; with sharing, those asked for must ascend."""
        asked, output = self._lengths.at(index)
        row = (self._first_row + index * ROW_STEP) % ROWS  # no two of ROWS prompts in a row are cut at the same place
        nonce = f"{self._key} {index}"
        if self._sharing is None:
            return replace(self._calibration.prompt(asked, nonce, row), output_tokens=output)
        heads = self._sharing.heads(self._seed, index)
        made = self._calibration.prompt(asked, nonce, row, [Head(f"{self._key} {key}", n) for key, n in heads])
        return replace(made, output_tokens=output, shared=self._shared(self._sharing, index, asked))

    def _shared(self, sharing: Sharing, index: int, asked: int) -> tuple[int, int]:
        """How many tokens of this prompt were sent before it, by any worker: at least, and at most."""
        while self._looked_at < index:
            self._look_at(sharing, self._looked_at)
            self._looked_at += 1
        self._looked_at = max(self._looked_at, index + 1)
        held = self._look_at(sharing, index)
        around = self._calibration.around
        return held, min(held + around, asked) if held else around

    def _look_at(self, sharing: Sharing, index: int) -> int:
        room = self._lengths.at(index)[0] - self._calibration.around
        return self._seen.shared(fitting(sharing.heads(self._seed, index), room))


def make_text(words: int, nonce: str, row: int = 0, heads: Sequence[Piece] = ()) -> str:
    """Exactly `words` words separated by single spaces: an opening that spells a hash of `nonce`, then the pool from
    its `row`-th row on, over and over where it is too short. Before that come `heads`, each made alike, as far as they
    fit."""
    parts: list[str] = []
    for key, n, first in (*heads, (nonce, words, row)):
        n = min(n, words)
        words -= n
        digest = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
        parts += [WORDS[(digest >> 6 * i) & 63] for i in range(min(n, OPENING_WORDS))]
        parts += pool_of(WORDS).cut(first, n - OPENING_WORDS)
    return " ".join(parts)


def make_ids(ids: tuple[int, ...], tokens: int, nonce: str, row: int = 0) -> tuple[int, ...]:
    """Exactly `tokens` of the ids: an opening that spells a hash of `nonce`, then all of them over and over."""
    digest = int.from_bytes(hashlib.blake2b(nonce.encode(), digest_size=32).digest(), "big")
    opening = tuple(ids[(digest >> 16 * i & 0xFFFF) % len(ids)] for i in range(min(tokens, 16)))
    first = row * ROW % len(ids)
    rest = tokens - len(opening)
    return opening + (ids[first:] + ids * (rest // len(ids) + 1))[:rest]


def count_words(text: str) -> int:
    """The words of a text made here: what `fit` takes."""
    return text.count(" ") + 1 if text else 0
