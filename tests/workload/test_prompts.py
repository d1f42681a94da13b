"""Prompt text: exact word counts, unique openings, repeatable structure, and a calibration that meets token counts."""

from __future__ import annotations

import hashlib
import json
import random
import statistics
from dataclasses import asdict
from functools import cache
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.records import Prompt
from loadgen.workload.prompts import (
    EVERY_WORD,
    OPENING_WORDS,
    ROWS,
    Calibration,
    LengthRange,
    PromptStream,
    count_words,
    fit,
    make_ids,
    make_text,
    parse_length,
)
from loadgen.workload.vocabulary import Vocabulary
from loadgen.workload.words import POOL_WORDS, WORDS


def toy_tokens(text: str, hard: float) -> int:
    """A tokenizer of its own: words past the 64 commonest cost two or three tokens by chance."""
    return sum(toy_cost(word, hard) for word in text.split())


@cache
def toy_cost(word: str, hard: float) -> int:
    chance = hashlib.sha256(word.encode()).digest()[0] / 256
    return 1 if word in WORDS[:64] else 1 + (chance < hard) + (chance < hard / 3)


def test_the_word_list_is_what_the_text_relies_on() -> None:
    assert len(WORDS) == len(set(WORDS)) == EVERY_WORD == 512
    assert all(word.isalpha() and word.islower() and len(word) <= 6 for word in WORDS)


@given(st.integers(1, 3000), st.text(max_size=10), st.integers(0, 10**6))
def test_a_text_has_exactly_the_words_asked_for(words: int, nonce: str, row: int) -> None:
    text = make_text(words, nonce, row)
    assert len(text.split(" ")) == len(text.split()) == count_words(text) == words
    assert set(text.split()) <= set(WORDS)


def test_a_text_longer_than_the_pool_goes_round() -> None:
    size = POOL_WORDS
    text = make_text(2 * size + 100, "n", 5).split()
    assert len(text) == 2 * size + 100
    assert text[OPENING_WORDS : OPENING_WORDS + 80] == text[OPENING_WORDS + size : OPENING_WORDS + size + 80]


def test_after_the_opening_every_word_comes_once() -> None:
    body = make_text(OPENING_WORDS + EVERY_WORD, "n").split()[OPENING_WORDS:]
    assert sorted(body) == sorted(WORDS)


def test_openings_differ_and_nothing_else_depends_on_the_nonce() -> None:
    one = [next_texts("run-1", 50), next_texts("run-2", 50)]
    openings = [" ".join(text.split()[:OPENING_WORDS]) for texts in one for text in texts]
    assert len(set(openings)) == 100  # no prefix cache can serve one to another, across runs and prompts
    bodies = [[text.split()[OPENING_WORDS:] for text in texts] for texts in one]
    assert bodies[0] == bodies[1]


def next_texts(nonce: str, n: int, *, same_text: bool = False) -> list[str]:
    prompts = PromptStream(7, nonce, LengthRange(20, 60), LengthRange(1, 9), same_text=same_text)
    return [prompt.text for prompt in islice(prompts, n)]


@given(st.integers(0, 5), st.integers(1, 7), st.integers(0, 40), st.booleans())
def test_the_workers_of_a_run_share_one_stream(seed: int, workers: int, n: int, same_text: bool) -> None:
    def stream(**part: int) -> list[Prompt]:
        prompts = PromptStream(seed, "n", LengthRange(20, 60), LengthRange(1, 9), same_text=same_text, **part)
        return list(islice(prompts, n))

    whole = list(islice(PromptStream(seed, "n", LengthRange(20, 60), LengthRange(1, 9), same_text=same_text), n))
    dealt = [stream(worker=i, workers=workers) for i in range(workers)]
    assert [dealt[k % workers][k // workers] for k in range(n)] == whole


def test_same_text_repeats_the_text_of_a_seed() -> None:
    assert next_texts("a", 20, same_text=True) == next_texts("b", 20, same_text=True)
    assert next_texts("a", 20) != next_texts("b", 20)
    assert len(set(next_texts("a", 20, same_text=True))) == 20


@given(st.integers(), st.integers(1, 400), st.integers(0, 300), st.integers(1, 50), st.integers(0, 50))
def test_the_seed_fixes_the_lengths_and_they_stay_in_range(seed: int, a: int, b: int, c: int, d: int) -> None:
    ranges = LengthRange(a, a + b), LengthRange(c, c + d)
    first = list(islice(PromptStream(seed, "x", *ranges), 10))
    again = list(islice(PromptStream(seed, "y", *ranges), 10))
    assert [(p.input_tokens, p.output_tokens) for p in first] == [(p.input_tokens, p.output_tokens) for p in again]
    for prompt in first:
        assert a <= (prompt.input_tokens or 0) <= a + b
        assert c <= (prompt.output_tokens or 0) <= c + d


def test_lengths_of_a_range_are_uniform() -> None:
    prompts = islice(PromptStream(1, "x", LengthRange(10, 19), LengthRange(1, 1)), 4000)
    counts = [0] * 10
    for prompt in prompts:
        counts[(prompt.input_tokens or 0) - 10] += 1
    assert all(300 < n < 500 for n in counts)  # 400 ± 5 standard deviations


@given(st.floats(0, 200), st.floats(0.6, 4.0), st.integers(1, 5000))
def test_words_is_the_inverse_of_tokens(overhead: float, per_word: float, words: int) -> None:
    calibration = Calibration(overhead, per_word)
    assert calibration.words(round(calibration.tokens(words))) == pytest.approx(words, abs=1)


@given(st.integers(0, 100), st.floats(0.6, 4.0), st.lists(st.integers(1, 4000), min_size=2, max_size=5))
def test_fit_finds_the_line_it_was_given(overhead: int, per_word: float, lengths: list[int]) -> None:
    true = Calibration(overhead, per_word)
    counts = [(words, true.tokens(words)) for words in lengths]
    found = fit([(words, round(tokens)) for words, tokens in counts])
    beyond = {max(0, words - OPENING_WORDS) for words in lengths}
    if len(beyond) < 2:
        assert found is None
    elif max(beyond) - min(beyond) >= 100:
        assert found is not None
        assert found.tokens_per_word == pytest.approx(per_word, abs=0.02)
        assert found.tokens(max(lengths)) == pytest.approx(true.tokens(max(lengths)), abs=2)


@pytest.mark.parametrize(
    "counts",
    [[], [(10, 20)], [(10, 20), (10, 21)], [(10, 3), (522, 3)], [(10, 520), (522, 8)], [(10, 0), (522, 9000)]],
    ids=["none", "one", "one length", "constant", "falling", "too steep"],
)
def test_fit_refuses_counts_that_do_not_follow_the_text(counts: list[tuple[int, int]]) -> None:
    assert fit(counts) is None


@pytest.mark.parametrize("hard", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("overhead", [0, 8, 31])
@pytest.mark.parametrize("length", [64, 256, 512, 2000])
def test_t01_two_probes_bring_the_mean_length_within_one_percent(hard: float, overhead: int, length: int) -> None:
    probes = [
        (words, overhead + toy_tokens(make_text(words, f"probe {words}"), hard))
        for words in (OPENING_WORDS, OPENING_WORDS + EVERY_WORD)
    ]
    calibration = fit(probes)
    assert calibration is not None
    prompts = islice(PromptStream(3, "n", LengthRange(length, length), LengthRange(1, 1), calibration), 150)
    got = statistics.mean(overhead + toy_tokens(p.text, hard) for p in prompts)
    assert got == pytest.approx(length, abs=max(1.5, 0.01 * length))


def test_an_input_shorter_than_the_template_still_gives_a_word() -> None:
    assert Calibration(50, 1.0).words(10) == 1


@pytest.mark.parametrize(
    ("text", "low", "high"), [("512", 512, 512), (64, 64, 64), ("100-200", 100, 200), (" 1 - 2 ", 1, 2), ("7-7", 7, 7)]
)
def test_a_length_is_a_number_or_a_range(text: str | int, low: int, high: int) -> None:
    assert parse_length(text, "--input-len") == LengthRange(low, high)


@pytest.mark.parametrize("text", ["0", "-5", "200-100", "1.5", "1k", "", "a", "1-", "0-4", "٥", "1-2-3"])
def test_a_bad_length_names_the_flag(text: str) -> None:
    with pytest.raises(UsageError, match="--output-len is"):
        parse_length(text, "--output-len")


def test_a_prompt_is_cheap_next_to_a_join_over_its_words() -> None:
    # The cost follows the slice, not the words: a thousand prompts of 4,000 words are made well within two seconds.
    import time

    prompts = PromptStream(1, "n", LengthRange(4000, 4000), LengthRange(1, 1))
    next(prompts)
    start = time.perf_counter()
    for _ in range(1000):
        next(prompts)
    assert time.perf_counter() - start < 2.0


def test_text_is_no_copy_of_itself_in_other_prompts() -> None:
    rng = random.Random(0)
    halves = {make_text(1000, f"{i}", rng.randrange(ROWS))[3000:] for i in range(100)}
    assert len(halves) > 90


@given(st.integers(1, 3000), st.text(max_size=10), st.integers(0, 2000), st.integers(1, 700))
def test_token_ids_are_exactly_so_many_and_of_those_given(tokens: int, nonce: str, row: int, n: int) -> None:
    ids = tuple(range(100, 100 + n))
    made = make_ids(ids, tokens, nonce, row)
    assert len(made) == tokens
    assert set(made) <= set(ids)


@pytest.mark.parametrize("words", [None, WORDS[:100]], ids=["ids", "a vocabulary"])
def test_a_stream_made_by_a_calibration_opens_with_the_nonce(words: tuple[str, ...] | None) -> None:
    """Of token ids and of a vocabulary: exact lengths, openings of their own, and the same from a worker's JSON."""
    ids = tuple(range(7, 500)) if words is None else ()
    calibration = Calibration(9, 1, None if words is None else Vocabulary(10, WORDS[:3], words), ids)
    again = Calibration.of(json.loads(json.dumps(asdict(calibration))))
    assert again == calibration
    texts = []
    for nonce in ("a", "b"):
        prompts = list(islice(PromptStream(7, nonce, LengthRange(40, 90), LengthRange(1, 9), again), 50))
        for prompt in prompts:
            made = prompt.text.split() if prompt.token_ids is None else prompt.token_ids
            assert len(made) + (0 if words is None else 9) == prompt.input_tokens
            texts.append(tuple(made))
    assert len({made[:10] for made in texts}) == 100
    assert [made[16:] for made in texts[:50]] == [made[16:] for made in texts[50:]]
