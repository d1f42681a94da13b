from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings

from loadgen.analysis import DEFINITIONS, metrics
from loadgen.log.columns import columns
from loadgen.records import Record
from loadgen.results import SLO_METRICS
from tests.analysis.record_samples import steps
from tests.analysis.slow_metrics import itl_of, record, request_metric, stamps, tokens_by_event


@settings(deadline=None)
@given(steps)
def test_request_metrics_are_the_definitions(records: list[Record]) -> None:
    c = columns(records)
    for name, metric in metrics.REQUEST_METRICS.items():
        found = [None if math.isnan(x) else x for x in metric(c)]
        assert found == pytest.approx([request_metric(name, r) for r in records])


@settings(deadline=None)
@given(steps)
def test_tokens_by_event_are_the_definition(records: list[Record]) -> None:
    found = metrics.event_tokens(columns(records))
    right = [t for r in records for t in tokens_by_event(r)]
    assert found.count.tolist() == pytest.approx([n for n, _ in right])
    assert found.estimated.tolist() == [guessed for _, guessed in right]


@settings(deadline=None)
@given(steps)
def test_inter_chunk_and_itl_are_the_definitions(records: list[Record]) -> None:
    c = columns(records)
    gaps = metrics.inter_chunk(c)
    right = [(i, (b - a) / 1e6) for i, r in enumerate(records) for a, b in zip(stamps(r), stamps(r)[1:], strict=False)]
    assert list(zip(gaps.rows.tolist(), gaps.values.tolist(), strict=True)) == right
    itl = metrics.itl(c)
    for i, r in enumerate(records):
        values, samples = itl_of(r)
        mine = itl.values[itl.rows == i]
        assert len(mine) == samples
        assert all(any(x == pytest.approx(v) for v in values) for x in mine)


def itl_values(r: Record) -> list[float]:
    return [round(x, 6) for x in metrics.itl(columns([r])).values]


def test_several_tokens_an_event_with_counts() -> None:
    r = record("a", 0, 100, 180, n=9, events=[(100, 1), (140, 4), (180, 4)], first_tokens=1)
    c = columns([r])
    assert metrics.tpot(c).tolist() == [10]
    assert metrics.inter_chunk(c).values.tolist() == [40, 40]
    assert itl_values(r) == [10] * 8
    assert not metrics.itl(c).estimated


def test_several_tokens_an_event_without_counts() -> None:
    r = record("a", 0, 100, 180, n=9, events=[(100, None), (140, None), (180, None)])
    assert metrics.tpot(columns([r])).tolist() == [10]
    assert itl_values(r) == [10] * 8
    assert metrics.itl(columns([r])).estimated


@pytest.mark.parametrize("told", [None, 10**12 // 2])
def test_a_count_that_no_memory_holds_is_a_figure_like_any_other(told: int | None) -> None:
    r = record("a", 0, 100, 180, n=10**12, events=[(100, 1), (140, told), (180, told)])
    pooled = metrics.itl(columns([r]))
    assert len(pooled.values) == 2 * metrics.MOST_COPIES
    assert (pooled.values > 0).all() and (pooled.values < 1e-7).all()


def test_an_uneven_share_keeps_the_number_of_tokens_and_the_time() -> None:
    values = itl_values(record("a", 0, 100, 180, n=6, events=[(100, None), (140, None), (180, None)]))
    assert values == [16] * 5


def test_an_uneven_share_is_rounded_for_each_request_by_itself() -> None:
    uneven = record("a", 0, 100, 180, n=6, events=[(100, None), (140, None), (180, None)])
    shifted = record("b", 0, 100, 170, n=4, events=[(100, None), (130, None), (170, None)])
    for others in ([], [uneven], [shifted], [uneven, shifted, uneven]):
        pooled = metrics.itl(columns([*others, uneven, shifted]))
        for row, alone in ((len(others), uneven), (len(others) + 1, shifted)):
            assert [round(x, 6) for x in pooled.values[pooled.rows == row]] == itl_values(alone)


def test_several_tokens_in_the_first_event() -> None:
    r = record("a", 0, 100, 110, n=5, events=[(100, 4), (110, 1)], first_tokens=4)
    assert metrics.tpot(columns([r])).tolist() == [10]
    assert itl_values(r) == [10]


def test_event_counts_above_the_total_keep_the_metric() -> None:
    r = record("a", 0, 100, 120, n=2, events=[(100, 1), (110, 2), (120, 2)], first_tokens=1)
    assert metrics.tpot(columns([r])).tolist() == [20]
    assert itl_values(r) == [5, 5, 5, 5]


def test_one_stall_shows_in_the_gaps_and_not_in_tpot() -> None:
    at = [(100 + 10 * i + (1990 if i > 25 else 0), 1) for i in range(52)]
    r = record("a", 0, 100, at[-1][0], n=52, events=at, first_tokens=1)
    assert metrics.itl(columns([r])).values.max() == 2000
    assert metrics.tpot(columns([r]))[0] == pytest.approx((50 * 10 + 2000) / 51)


@pytest.mark.parametrize(("n", "events"), [(1, [(100, 1)]), (1, [(100, None)]), (None, [(100, None), (110, None)])])
def test_no_second_token_is_no_tpot(n: int | None, events: list[tuple[int, int | None]]) -> None:
    c = columns([record("a", 0, 100, events[-1][0], n=n, events=events)])
    assert np.isnan(metrics.tpot(c)).all()


def test_all_tokens_in_one_event_are_placed_there() -> None:
    found = metrics.event_tokens(columns([record("a", 0, 100, 100, n=64, events=[(100, None)])]))
    assert found.count.tolist() == [64]


def test_connect_is_apart() -> None:
    assert np.isnan(metrics.connect_ms(columns([record("a", 0, 1, 2)]))).all()


def test_every_reported_metric_is_defined() -> None:
    assert set(SLO_METRICS) | set(metrics.REQUEST_METRICS) | {"inter_chunk"} <= DEFINITIONS.keys()
    assert all("\n" not in text and text for text in DEFINITIONS.values())
