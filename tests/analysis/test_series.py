"""What is drawn of a run: bounded in size whatever the run's, and true to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.analysis import summarise_run
from loadgen.analysis.series import BINS, GROUPS, MOST_STEPS, POINTS, SAMPLED, by_input, curve, series, spread, timeline
from loadgen.log.columns import columns
from loadgen.records import InputTokens
from loadgen.results import ServerSample, Slo
from tests.report.summaries import record, run_records
from tests.thorough import examples

LATENCIES = st.lists(st.floats(0.01, 1e5), min_size=1, max_size=400)


@settings(max_examples=examples(30))
@given(LATENCIES)
def test_a_curve_is_the_inverse_distribution_of_its_values(values: list[float]) -> None:
    found = curve(np.array(values))
    assert found is not None
    assert found.n == len(values)
    assert len(found.values) <= POINTS + 1
    assert (np.diff(found.values) >= 0).all()
    assert (np.diff(found.shares) > 0).all()
    for value, share in zip(found.values, found.shares, strict=True):
        assert value == np.quantile(values, share, method="inverted_cdf") or share * len(values) % 1 < 1e-6
        assert (np.array(values) <= value).mean() >= share - 1e-12
    assert (found.values[-1], found.shares[-1]) == (max(values), 1.0)


def test_no_value_is_no_curve() -> None:
    assert curve(np.empty(0)) is None
    assert curve(np.array([np.nan, np.inf])) is None


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(st.integers(0, 10**10), st.integers(1, 10**9)), min_size=1, max_size=40))
def test_in_flight_over_all_bins_is_the_time_that_requests_took(spans: list[tuple[int, int]]) -> None:
    records = [
        record(f"{i}", 1, 4, sent, 1000, 1000, done_ns=sent + took, outcome="error", events=None)
        for i, (sent, took) in enumerate(spans)
    ]
    found = timeline(columns(records))
    assert found is not None
    width = np.diff(found.edges_s)
    assert (found.in_flight * width).sum() == pytest.approx(sum(took for _, took in spans) / 1e9, rel=1e-6)
    assert found.failed.sum() == len(spans) == found.n
    assert len(found.in_flight) == BINS


def test_a_timeline_holds_every_token_and_the_servers_own_figures() -> None:
    records, _ = run_records((1, 8))
    samples = [
        ServerSample(at, 1000, 1, source, {"running": 3.0, "kv_use_share": 0.5})
        for at in range(0, 10**10, 10**9)
        for source in ("a", "b")
    ]
    found = timeline(columns(records), samples)
    assert found is not None
    tokens = sum(r.output_tokens.count or 0 for r in records if r.outcome == "ok")
    assert (found.output_tok_s * np.diff(found.edges_s)).sum() == pytest.approx(tokens)
    assert set(found.server["running"][1]) == {6.0}  # of both replicas
    assert set(found.server["kv_use_share"][1]) == {0.5}
    assert "waiting" not in found.server
    assert [span.step for span in found.spans] == [1, 2]


@settings(max_examples=examples(30))
@given(st.lists(st.integers(1, 5000), min_size=2, max_size=300))
def test_groups_of_lengths_part_the_requests_without_parting_a_length(lengths: list[int]) -> None:
    records = [
        record(f"{i}", 1, 1, i * 10**9, 1000 + n, 1000, input_tokens=InputTokens(asked=n, server=n))
        for i, n in enumerate(lengths)
    ]
    found = by_input(columns(records))
    if len(set(lengths)) < 2:
        assert found is None
        return
    assert found is not None
    assert sum(group.n for group in found.groups) == found.n == len(lengths)
    assert len(found.groups) <= GROUPS
    assert len(found.sampled) <= SAMPLED
    for group in found.groups:
        mine = [(1000 + n) / 1000 for n in lengths if group.low <= n <= group.high]
        assert len(mine) == group.n
        assert group.p50 == pytest.approx(np.percentile(mine, 50))
    assert all(a.high < b.low for a, b in zip(found.groups, found.groups[1:], strict=False))


@settings(max_examples=examples(30))
@given(st.lists(st.integers(), unique=True, max_size=60), st.integers(2, 12))
def test_of_many_the_ends_and_some_between(items: list[int], most: int) -> None:
    found = spread(items, most)
    assert len(found) == min(len(items), most)
    assert found == [item for item in items if item in found]
    if items:
        assert (found[0], found[-1]) == (items[0], items[-1])


def test_of_many_steps_few_are_drawn() -> None:
    records = [
        record(f"{step}-{i}", step, step, step * 10**10 + i * 10**8, 1000 * step, 1000)
        for step in range(1, 40)
        for i in range(3)
    ]
    table = columns(records)
    found = series(table, summarise_run(table, Slo()))
    assert len(found.curves["ttft"]) == MOST_STEPS
    assert found.steps == 39
    assert {1, 39} <= set(found.curves["ttft"])


def test_nothing_is_drawn_of_nothing() -> None:
    found = series(columns([]), [])
    assert found.timeline is None
    assert not found.by_input
    assert not any(found.curves.values())
