"""The expected cached share against the server's: by a closed form, and by a cache that is played through."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis import summarise_run
from loadgen.analysis.caching import block_of, held, unexpected
from loadgen.analysis.turns import FIRST, NAMES, turn_groups
from loadgen.log.columns import NULL, Int64, columns
from loadgen.records import InputTokens, Record
from loadgen.results import CacheShare, Observation, ServerSample, Slo, StepSummary, Window
from tests.report.summaries import record


def ints(*values: int) -> Int64:
    import numpy as np

    return np.array(values, dtype=np.int64)


def sent(n: int, prompt: int, shared: tuple[int, int] | None, cached: int | None, **change: object) -> Record:
    change = {"input_tokens": InputTokens(prompt, None, prompt, cached), "shared": shared, **change}
    return record(f"s1-{n:06d}", 1, 4, n * 100_000_000, 40_000, 10_000, **change)


def summary(records: list[Record], block: int | None = None, samples: list[ServerSample] | None = None) -> StepSummary:
    window = Window(0, 100_000_000 * len(records))
    seen = Observation(1, 4, window, 0, 4, "complete", cache_block=block)
    [found] = summarise_run(columns(records), Slo(), [seen], samples or [])
    return found


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 3000)), min_size=1), st.sampled_from([1, 16, 64, 128]))
def test_whole_blocks_are_held_and_never_the_last_token(prompts: list[tuple[int, int]], block: int) -> None:
    for prompt, shared in prompts:
        [found] = held(ints(shared), ints(prompt), block)
        expected = 0  # block by block, as an engine looks them up
        while expected + block <= min(shared, prompt - 1):
            expected += block
        assert found == expected


def test_the_share_is_of_the_tokens_and_rounded_down_to_the_block() -> None:
    records = [sent(0, 1000, (0, 9), 0), *(sent(i, 1000, (300, 309), 256) for i in range(1, 10))]
    found = summary(records, block=128)
    assert found.cache == CacheShare((9 * 256 / 10_000,) * 2, 9 * 256 / 10_000, "usage", 128)
    assert unexpected(found.cache) is None


def test_a_template_may_stand_on_either_side() -> None:
    found = summary([sent(i, 1000, (250, 260), 256) for i in range(5)], block=128)
    assert found.cache is not None
    assert found.cache.expected == (0.128, 0.256)
    assert unexpected(found.cache) is None


@pytest.mark.parametrize(
    ("seen", "beyond"), [(0.40, -0.08), (0.44, None), (0.50, None), (0.54, None), (0.58, 0.06)], ids=str
)
def test_five_points_are_a_finding(seen: float, beyond: float | None) -> None:
    found = unexpected(CacheShare((0.48, 0.52), seen, "usage", 16))
    assert found is None if beyond is None else found == pytest.approx(beyond)


def test_unknown_is_not_zero() -> None:
    found = summary([sent(i, 1000, (512, 512), None) for i in range(5)])
    assert found.cache == CacheShare((0.512, 0.512), None, None, None)
    assert unexpected(found.cache) is None
    assert summary([sent(i, 1000, None, 512) for i in range(5)]).cache == CacheShare(None, 0.512, "usage", 512)


def test_a_server_that_leaves_zeros_out_means_them() -> None:
    """vLLM names cached tokens only where there are any: else the misses would be missing from the share."""
    records = [sent(i, 1000, (512 if i % 2 else 0,) * 2, 512 if i % 2 else None) for i in range(10)]
    found = summary(records)
    assert found.cached_share == 0.256
    assert found.cache is not None
    assert found.cache.seen == found.cache.expected[0] == 0.256 if found.cache.expected else False
    told = [replace(records[0], input_tokens=InputTokens(1000, None, 1000, 0)), *records[1:]]
    assert summary(told).cached_share == pytest.approx(5 * 512 / 6000), "one that tells a zero tells them all"


def test_the_metrics_tell_where_usage_does_not() -> None:
    samples = [
        ServerSample(at, 0, 1, "s", {"prefix_query_tokens": q, "prefix_hit_tokens": h, "kv_block_tokens": 64.0})
        for at, q, h in ((0, 1000.0, 10.0), (400_000_000, 6000.0, 2410.0))
    ]
    found = summary([sent(i, 1000, (500, 500), None) for i in range(5)], samples=samples)
    assert found.cache == CacheShare((0.448, 0.448), 0.48, "metrics", 64)


def test_a_block_is_told_by_the_counts() -> None:
    assert block_of(ints(0, 256, 384, 1280)) == 128
    assert block_of(ints(48, 32, 16)) == 16
    assert block_of(ints(384, 384, 384, NULL)) == 128, "of one count alone, a power of two"
    assert block_of(ints(0, 0, 0)) is None
    assert block_of(ints(256, NULL, NULL)) is None, "too few"


@given(st.integers(1, 10_000))
def test_every_turn_has_its_group(turn: int) -> None:
    [group] = turn_groups(columns([sent(0, 10, None, None, session=1, turn=turn)]))
    assert FIRST[group] <= turn
    assert group == len(FIRST) - 1 or turn < FIRST[group + 1]
    assert len(FIRST) == len(NAMES)


def test_turns_are_summarised_apart() -> None:
    records = [
        sent(i, 100 * (1 + i % 3), (0, 0), 80 * (i % 3), session=i // 3, turn=1 + i % 3) for i in range(30)
    ]  # ten conversations of three turns
    found = summary(records)
    assert found.sessions == 10
    assert [(one.name, one.ok, one.cached_share) for one in found.by_turn] == [
        ("1", 10, 0.0),
        ("2", 10, 0.4),
        ("3", 10, pytest.approx(160 / 300)),
    ]
    assert summary([sent(i, 100, None, None) for i in range(9)]).by_turn == ()
