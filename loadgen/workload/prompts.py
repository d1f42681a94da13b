"""Prompt text of a wanted number of tokens, without a tokenizer. Pure and seeded.

Text is made of common short English words, each of which is one token of most tokenizers when a space precedes it. What
a word really costs at a server, and what its chat template adds, is learnt from the server's own counts (`fit`).

Rules:
1. A prompt opens with words that spell a hash of (run nonce, index): no prefix cache can serve it, in this run or the
   next. The rest is cut from one pool. `same_text` takes the seed in place of the nonce: the text repeats.
2. The seed fixes lengths and which part of the pool is taken; the nonce changes the opening words alone.
3. Making a prompt costs a hash and a slice of the pool, not a join over its words.
4. Equally long prompts cost nearly equally many tokens, whatever the tokenizer: each sentence of the pool takes one
   word of each of 16 ranks of commonness, and each run of 32 sentences every word once.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from ..errors import UsageError
from ..records import Prompt

# 512 words of at most six letters, the commonest first.
WORDS: tuple[str, ...] = tuple(
    """
the of and to in is it you that he was for on are with as see they be at one have this from or had by not but
what all were when we there can an your which their time if do will each about how up out them then she many
some so these would other into has more could two like him his said her no make than first been its who now
people my made over did down only way find use may water long little very after words called just where most
know get back much go good new write our me man too any day same right look think also around came come work
three word must does part even place well such here take why things help put years away again off went old
number great tell men say small every found still name should home big give air line set own under read last
never us left end along while might next sound below saw both few those always show large often asked house
world going want school until form food keep feet land side boy once animal life enough took four head above
kind began almost live page got earth need far hand high year mother light father let night being study second
soon story since white ever paper hard near better best across during today others sure means knew try told
young miles sun ways thing whole hear answer plants room sea top turned learn point city play toward five using
money seen car given order red door ship open idea river street early field travel wood fire upon done road half
ten fly gave box wait oh person became shown strong verb stars front feel fact inches become cut among able
color dark clear love group rest heavy moon size stone west east north south window garden winter summer spring
table chair bread milk sugar salt fruit apple tree leaf bird fish horse cow dog cat mouse sheep farm market shop
price trade bank law king queen army war peace song music dance art book letter news voice glass metal gold
silver iron steel coal oil gas engine wheel train plane boat bridge tower wall roof floor corner circle square
angle map plan rule test game team score coach race speed power force weight length width depth level heat cold
warm cool wind rain snow ice storm cloud sky star space rock sand dust soil grass root seed flower forest island
beach lake ocean wave shore coast hill valley desert path track trail camp tent ask add act age ago area arm
ball base bed begin bit block blue born bottom bring build busy buy call camera care case cause chance change
check chief child claim class coffee common cost count couple court cover create cross crowd cup cycle daily
deal deep degree demand design desk detail dinner doctor double doubt dream dress drink drive dry dull easy eat
edge effect effort eight either energy enjoy event exact eye fair fall
""".split()  # noqa: SIM905
)

SENTENCE = 16  # words between full stops; fixed, so that equally long texts cost equally many tokens
RANK = len(WORDS) // SENTENCE
POOL_SENTENCES = 32 * RANK
EVERY_WORD = len(WORDS)  # after the opening, a text of this many words from sentence 0 holds every word once
OPENING_WORDS = 10  # of the 64 commonest, which are one token nearly everywhere: 6 bits each
# The order of ranks in a sentence: each beginning holds common and rare words in like proportion (bit reversal).
RANK_ORDER = (0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15)

# Until a server has counted: one token a word, and one for each full stop.
DEFAULT_TOKENS_PER_WORD = 1 + 1 / SENTENCE
# A fit outside these is no tokenizer's: the server's counts do not follow the text.
PLAUSIBLE_TOKENS_PER_WORD = (0.5, 8.0)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What our text costs at a server: `overhead_tokens`, one token for each opening word (they are the commonest there
    are), and `tokens_per_word` for each word after them, full stops included.

    `overhead_tokens` are those of the chat template and start tokens; set it to 0 to have them added to the length
    asked for instead of counted in it.
    """

    overhead_tokens: float = 0.0
    tokens_per_word: float = DEFAULT_TOKENS_PER_WORD

    def words(self, tokens: int) -> int:
        """The number of words whose prompt comes nearest to `tokens`; at least one."""
        rest = tokens - self.overhead_tokens - OPENING_WORDS
        return max(1, OPENING_WORDS + round(rest / self.tokens_per_word if rest > 0 else rest))

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

    def draw(self, rng: random.Random) -> int:
        return self.low if self.low == self.high else rng.randint(self.low, self.high)

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
    together are the same for any W.

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
    ) -> None:
        self._rng = random.Random(f"prompts {seed}")
        self._key = f"seed {seed}" if same_text else f"nonce {nonce}"
        self._input_len = input_len
        self._output_len = output_len
        self._calibration = calibration or Calibration()
        self._worker, self._workers = worker, workers
        self._index = 0

    def __iter__(self) -> Iterator[Prompt]:
        return self

    def __next__(self) -> Prompt:
        while self._index % self._workers != self._worker:
            self._draw()
        index = self._index
        asked, output, sentence = self._draw()
        text = make_text(self._calibration.words(asked), f"{self._key} {index}", sentence)
        return Prompt(text=text, input_tokens=asked, output_tokens=output)

    def _draw(self) -> tuple[int, int, int]:
        """Input and output tokens and first sentence of the next prompt of the stream, whoever's it is."""
        self._index += 1
        return self._input_len.draw(self._rng), self._output_len.draw(self._rng), self._rng.randrange(POOL_SENTENCES)


def make_text(words: int, nonce: str, sentence: int = 0) -> str:
    """Exactly `words` words separated by single spaces: an opening that spells a hash of `nonce`, then the pool from
    its `sentence`-th sentence on, over and over where it is too short."""
    digest = int.from_bytes(hashlib.blake2b(nonce.encode(), digest_size=8).digest(), "big")
    opening = " ".join(WORDS[(digest >> 6 * i) & 63] for i in range(min(words, OPENING_WORDS)))
    rest = words - OPENING_WORDS
    if rest <= 0:
        return opening
    pool, starts = _pool()
    size = POOL_SENTENCES * SENTENCE
    first = sentence % POOL_SENTENCES * SENTENCE
    parts = [opening]
    while rest > 0:
        last = min(first + rest, size)
        parts.append(pool[starts[first] : starts[last] - 1])
        rest -= last - first
        first = 0
    return " ".join(parts)


def count_words(text: str) -> int:
    """The words of a text made here: what `fit` takes."""
    return text.count(" ") + 1 if text else 0


@cache
def _pool() -> tuple[str, tuple[int, ...]]:
    """The text that prompts are cut from, and where each of its words starts (with one past the end)."""
    rng = random.Random("pool")
    words: list[str] = []
    for _ in range(POOL_SENTENCES // RANK):
        ranks = [rng.sample(WORDS[i : i + RANK], RANK) for i in range(0, len(WORDS), RANK)]
        for i in range(RANK):
            sentence = [ranks[rank][i] for rank in RANK_ORDER]
            sentence[0] = sentence[0].capitalize()
            sentence[-1] += "."
            words += sentence
    starts = [0]
    for word in words:
        starts.append(starts[-1] + len(word) + 1)
    return " ".join(words), tuple(starts)
