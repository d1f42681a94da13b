"""The words that text is made of, and the pool it is cut from. Pure.

Equally long cuts cost nearly equally many tokens, whatever the tokenizer: each row of the pool takes one word of each
of 16 ranks of commonness, and all words come once before any comes again.
"""

from __future__ import annotations

import random
from functools import lru_cache
from itertools import chain, zip_longest

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

ROW = 16  # words
POOL_WORDS = 16_384
# The order of ranks in a row: each beginning holds common and rare words in like proportion (bit reversal).
RANK_ORDER = (0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15)


class Pool:
    """Words in a fixed order, as one text. To cut from it costs a slice, not a join over words."""

    def __init__(self, words: tuple[str, ...]) -> None:
        rng = random.Random("pool")
        n = len(words)
        ranks = [words[n * i // ROW : n * (i + 1) // ROW] for i in RANK_ORDER]
        order: list[str] = []
        while len(order) < POOL_WORDS:
            shuffled = (rng.sample(rank, len(rank)) for rank in ranks)
            order += [word for word in chain.from_iterable(zip_longest(*shuffled)) if word is not None]
        self._size = len(order)
        self._text = " ".join(order)
        self._starts = [0]  # of each word, and one past the end
        for word in order:
            self._starts.append(self._starts[-1] + len(word) + 1)

    def cut(self, row: int, words: int) -> list[str]:
        """Texts that hold `words` words together, from the `row`-th row on, over and over where it is too short."""
        first = row * ROW % self._size
        parts = []
        while words > 0:
            last = min(first + words, self._size)
            parts.append(self._text[self._starts[first] : self._starts[last] - 1])
            words -= last - first
            first = 0
        return parts


@lru_cache(maxsize=8)
def pool_of(words: tuple[str, ...]) -> Pool:
    return Pool(words)
