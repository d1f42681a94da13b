"""Shared prefixes: exact lengths, the structure asked for, and how much of it was sent before."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.records import Prompt
from loadgen.workload.prompts import Calibration, LengthRange, PromptStream
from loadgen.workload.sharing import Head, Seen, Sharing, blocks, fitting, parse_sharing, sharing_of
from loadgen.workload.vocabulary import Vocabulary
from loadgen.workload.words import WORDS

ONE = Vocabulary(base=9, openers=WORDS[:16], words=WORDS[16:400])  # a token a word, eight around the text
TWO = Vocabulary(9, WORDS[:16], WORDS[16:300], 2, ((), (WORDS[400],)), (0, 3))
CALIBRATIONS = {
    "exact": Calibration(vocabulary=ONE),
    "two a word": Calibration(vocabulary=TWO),
    "about": Calibration(8.0, 1.25),
    "token ids": Calibration(ids=tuple(range(100, 300))),
}


def cost(calibration: Calibration, prompt: Prompt) -> float:
    """What the prompt costs, counted from its words or ids alone."""
    if prompt.token_ids is not None:
        return len(prompt.token_ids)
    words = prompt.text.split()
    known = calibration.vocabulary
    if known is None:
        return calibration.tokens(len(words))
    odd = len(known.fills) > 1 and words[-1] == known.fills[1][0]
    return known.base + (len(words) - 1 - odd) * known.cost + (known.fill_costs[1] if odd else 0)


def units(prompt: Prompt) -> tuple[object, ...]:
    return prompt.token_ids if prompt.token_ids is not None else tuple(prompt.text.split())


def common(a: Prompt, b: Prompt) -> int:
    """Words or ids that two prompts have in common at their start."""
    pairs = zip(units(a), units(b), strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(units(a)), len(units(b))))


@pytest.mark.parametrize("name", CALIBRATIONS)
@given(
    tokens=st.integers(12, 900),
    heads=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 300)), max_size=4),
    nonce=st.text(max_size=5),
)
def test_a_prompt_with_heads_is_as_long_as_without(
    name: str, tokens: int, heads: list[tuple[str, int]], nonce: str
) -> None:
    calibration = CALIBRATIONS[name]
    made = calibration.prompt(tokens, nonce, 3, [Head(*head) for head in heads])
    plain = calibration.prompt(tokens, nonce, 3)
    assert made.input_tokens == tokens
    assert cost(calibration, made) == pytest.approx(cost(calibration, plain), rel=0.02 if name == "about" else 0, abs=3)
    if name in ("exact", "token ids"):
        assert cost(calibration, made) == cost(calibration, plain) == tokens


@pytest.mark.parametrize("name", CALIBRATIONS)
def test_prompts_have_their_heads_in_common_and_nothing_more(name: str) -> None:
    calibration = CALIBRATIONS[name]
    per = {"two a word": 2, "about": 1.25}.get(name, 1)
    heads = [Head("n a", 100), Head("n b", 50)]
    one, two = (calibration.prompt(400, f"own {i}", 3, heads) for i in range(2))
    assert common(one, two) == pytest.approx(150 / per, abs=6 if name == "about" else 1)
    other = calibration.prompt(400, "own 0", 3, [Head("n a", 100), Head("n c", 50)])
    assert common(one, other) == pytest.approx(100 / per, abs=4 if name == "about" else 1)
    assert common(one, calibration.prompt(400, "own 0", 3, [Head("m a", 100)])) < 3, "a fresh nonce, a fresh text"


@given(st.integers(1, 40), st.integers(1, 40))
def test_a_head_that_is_cut_is_the_beginning_of_the_whole(short: int, long: int) -> None:
    calibration = CALIBRATIONS["exact"]
    one = calibration.prompt(200, "x", 0, [Head("k", short)])
    two = calibration.prompt(200, "y", 0, [Head("k", long)])
    assert common(one, two) >= min(short, long)


def stream(sharing: Sharing, n: int, worker: int = 0, workers: int = 1, **more: object) -> list[Prompt]:
    made = PromptStream(
        7, str(more.get("nonce", "n")), LengthRange(300, 500), LengthRange(1, 9), CALIBRATIONS["exact"], worker=worker,
        workers=workers, sharing=sharing,
    )  # fmt: skip
    return list(islice(made, n))


def test_workers_make_the_same_stream_together_with_the_same_expectation() -> None:
    sharing = Sharing(system_tokens=30, prefix_tokens=80, groups=5, zipf=1.0)
    whole = stream(sharing, 60)
    parts = [stream(sharing, 20, worker, 3) for worker in range(3)]
    assert [parts[i % 3][i // 3] for i in range(60)] == whole
    assert [p.shared for p in whole] == [parts[i % 3][i // 3].shared for i in range(60)]


def test_what_is_expected_is_what_earlier_prompts_have_in_common() -> None:
    """Against the texts themselves: the longest beginning that any earlier prompt had, in tokens."""
    whole = stream(Sharing(system_tokens=30, prefix_tokens=80, groups=5), 60)
    for i, prompt in enumerate(whole):
        longest = max((common(prompt, earlier) for earlier in whole[:i]), default=0)
        assert prompt.shared is not None
        low, high = prompt.shared
        # By chance two texts may go on alike for a word or two.
        assert low <= longest <= low + 3
        assert high - low == ONE.base - 1


def test_groups_are_drawn_as_asked_for() -> None:
    even = Counter(Sharing(prefix_tokens=9, groups=4).heads(1, i)[-1].key for i in range(8000))
    assert len(even) == 4
    assert all(n == pytest.approx(2000, rel=0.1) for n in even.values())
    zipf = Counter(Sharing(prefix_tokens=9, groups=100, zipf=1.0).heads(1, i)[-1].key for i in range(20_000))
    assert zipf["group 0"] / zipf["group 1"] == pytest.approx(2.0, rel=0.1)
    assert zipf["group 0"] / zipf["group 9"] == pytest.approx(10.0, rel=0.2)
    one, two = ([Sharing(prefix_tokens=9, groups=4).heads(seed, i) for i in range(20)] for seed in (1, 2))
    assert one != two, "by the seed"
    assert {Sharing(9, 0).heads(seed, i) for seed in range(3) for i in range(9)} == {(Head("system", 9),)}


def test_a_new_run_has_new_shared_texts() -> None:
    sharing = Sharing(prefix_tokens=80)
    [one], [two] = (stream(sharing, 1, nonce=nonce) for nonce in ("r1", "r2"))
    assert common(one, two) < 3


def test_blocks_of_a_trace_cover_the_input_and_their_sharing_is_counted() -> None:
    assert blocks([4, 9], 512, 700) == (Head("block 4", 512), Head("block 9", 188))
    assert blocks(["a", "b", "c"], 16, 32) == (Head("block a", 16), Head("block b", 16))
    seen = Seen()
    assert seen.shared(blocks([1, 2, 3], 16, 48)) == 0
    assert seen.shared(blocks([1, 2, 4], 16, 48)) == 32
    assert seen.shared(blocks([5, 2, 4], 16, 48)) == 0, "a block alone is no prefix"
    assert seen.shared(blocks([1, 2, 3, 6], 16, 64)) == 48


def test_a_partly_filled_block_is_shared_as_far_as_it_was_sent() -> None:
    seen = Seen()
    assert seen.shared([Head("a", 10)]) == 0
    assert seen.shared([Head("a", 16), Head("b", 16)]) == 10
    assert seen.shared([Head("a", 16), Head("b", 16)]) == 32


@given(st.lists(st.integers(1, 50), max_size=5), st.integers(-5, 200))
def test_heads_fit(lengths: list[int], room: int) -> None:
    found = fitting([Head(str(i), n) for i, n in enumerate(lengths)], room)
    assert sum(n for _, n in found) == max(0, min(room, sum(lengths)))
    assert all(n > 0 for _, n in found)


@pytest.mark.parametrize(
    ("arguments", "made", "words"),
    [
        ((None, 4, 512), True, "--prefix-groups"),
        ((512, None, 512), True, "leaves nothing"),
        ((64, None, None), False, "made text"),
        ((64, 200_000, 512), True, "--prefix-groups"),
    ],
    ids=["groups of nothing", "no room", "given prompts", "too many"],
)
def test_what_cannot_be_meant(arguments: tuple[int | None, ...], made: bool, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_sharing(*arguments, made=made)


def test_flags_and_json() -> None:
    assert parse_sharing(None, None, 512) is None
    sharing = parse_sharing(256, 8, 512)
    assert sharing == Sharing(prefix_tokens=256, groups=8)
    assert sharing_of(sharing.as_object()) == sharing
    assert (str(sharing), str(Sharing(100, 20))) == ("256 tokens shared in 8 groups", "120 tokens shared by all")
