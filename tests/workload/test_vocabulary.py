"""Exact lengths: what a few counts teach of a tokenizer, and texts whose cost is a sum. The tokenizers are toys."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.workload.vocabulary import LEAST, Vocabulary, learn
from loadgen.workload.words import WORDS, Pool

Count = Callable[[str], int]


def by_chance(most: float, *, rare: bool = False) -> Count:
    """Some words cost two, three or four tokens, common ones and first words too, or the `rare`r ones more often."""

    def cost(word: str) -> int:
        chance = hashlib.sha256(word.encode()).digest()[0] / 256
        share = 2 * most * WORDS.index(word) / len(WORDS) if rare else most
        return 1 + (chance < share) + (chance < share / 3) + (chance < share / 9)

    return lambda text: 11 + sum(map(cost, text.split()))


TOKENIZERS: dict[str, Count] = {
    "a word is a token": lambda text: 8 + len(text.split()),
    "a few cost more": by_chance(0.05),
    "half of them do": by_chance(0.5),
    "half of them do, rare ones": by_chance(0.5, rare=True),
    "nearly all do": by_chance(0.9),
    "bytes": lambda text: 3 + len(text),
    "three letters a token": lambda text: sum(-(-len(word) // 3) for word in text.split()),
    "a first word costs one more": lambda text: 6 + len(text.split()),
}


def learnt(count: Callable[[str], int | None], budget: int, **limits: int) -> tuple[Vocabulary | None, list[str]]:
    learning = learn(budget, "n", **limits)
    asked: list[str] = []
    try:
        text = next(learning)
        while True:
            asked.append(text)
            text = learning.send(count(text))
    except StopIteration as end:
        return end.value, asked


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_length_is_met_exactly(name: str) -> None:
    """Also of texts longer than the pool, and by words that cost several tokens each."""
    count = TOKENIZERS[name]
    vocabulary, asked = learnt(count, 400)
    assert vocabulary is not None
    assert len(asked) <= 416
    least = vocabulary.base + max(vocabulary.fill_costs)
    lengths = [*range(least, least + 150), 1000, 4001, 30_000]
    for n in lengths:
        text = vocabulary.text(n, f"run {n}", 3 * n)
        assert text is not None
        assert count(text) == n
    assert vocabulary.text(vocabulary.base - 1, "n") is None
    assert all(count(text) == n for text, n in vocabulary.samples("n", 2000))


@pytest.mark.parametrize(
    ("name", "most"), [("a word is a token", 3), ("a few cost more", 14), ("half of them do, rare ones", 14)]
)
def test_a_few_counts_are_enough_of_usual_tokenizers(name: str, most: int) -> None:
    vocabulary, asked = learnt(TOKENIZERS[name], 12, openers=2)
    assert vocabulary is not None
    assert len(asked) <= most
    assert len(vocabulary.words) >= LEAST
    assert all(TOKENIZERS[name](text) == n for text, n in vocabulary.samples("n", 700))


@pytest.mark.parametrize("most", [32, 64, 100])
def test_no_text_is_longer_than_the_context_allows(most: int) -> None:
    vocabulary, asked = learnt(TOKENIZERS["half of them do"], 400, most_words=most)
    assert vocabulary is not None
    assert max(len(text.split()) for text in asked) == most + 1


IMPOSSIBLE: dict[str, Callable[[str], int | None]] = {
    "a constant": lambda text: 77,
    "nothing": lambda text: None,
    "two words a token": lambda text: 5 + (len(text.split()) + 1) // 2,
    "long texts are not counted": lambda text: None if len(text) > 400 else len(text.split()),
    "all of them cost two": lambda text: 3 + 2 * len(text.split()),  # an odd length cannot be met
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_follows_no_sum_teaches_nothing(name: str) -> None:
    assert learnt(IMPOSSIBLE[name], 1200)[0] is None


def test_a_sum_that_is_wrong_is_found_by_the_samples() -> None:
    """Pairs of words melt into one token: counts of groups add up, those of other texts do not."""
    melting = [(a, b) for a in WORDS[:256] for b in WORDS[:256] if (len(a) + len(b)) % 5 == 0 and a > b]

    def count(text: str) -> int:
        words = text.split()
        return 4 + len(words) - sum(pair in pairs for pair in pairwise(words))

    pairs = set(melting)
    vocabulary, _ = learnt(count, 400)
    assert vocabulary is None or any(count(text) != n for text, n in vocabulary.samples("n", 1500))


def test_openings_are_the_nonces_and_start_with_the_first_word() -> None:
    vocabulary = Vocabulary(9, WORDS[:4], WORDS[:100])
    texts = [vocabulary.text(200, f"run {i}", 5) for i in range(300)]
    words = [text.split() for text in texts if text is not None]
    assert len({tuple(own[:10]) for own in words}) == 300
    assert {own[0] for own in words} == set(WORDS[:4])
    assert len({tuple(own[10:]) for own in words}) == 1


@settings(max_examples=10, deadline=None)
@given(st.sets(st.sampled_from(WORDS), min_size=1, max_size=80), st.integers(0, 5000), st.integers(0, 3000))
def test_a_pool_of_any_words_is_cut_to_any_length(words: set[str], row: int, n: int) -> None:
    pool = Pool(tuple(sorted(words)))
    found = " ".join(pool.cut(row, n)).split()
    assert len(found) == n
    assert set(found) <= words
