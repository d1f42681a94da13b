"""Buckets: their edges, their shares, and the least sample."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadgen.analysis import summarise_run
from loadgen.analysis.buckets import AXES, LEAST, by_buckets, power_codes
from loadgen.log.columns import NULL, columns
from loadgen.records import InputTokens, OutputTokens, Record
from loadgen.results import Slo
from tests.report.summaries import record, run_records


def made(n: int, **change: object) -> list[Record]:
    return [record(f"{change}-{i}", 1, 1, i * 10**9, 20_000 + i % 7, 10_000 + i % 5, **change) for i in range(n)]


@pytest.mark.parametrize(
    ("count", "code"), [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (8, 4), (1023, 10), (1024, 11), (NULL, -1)]
)
def test_edges_are_powers_of_two(count: int, code: int) -> None:
    assert power_codes(np.array([count])).tolist() == [code]


def test_shares_add_up_and_few_are_not_established() -> None:
    records = made(200) + made(10, input_tokens=InputTokens(server=4000), output_tokens=OutputTokens(count=40))
    c = columns(records)
    found = by_buckets(c, ("input", "output"), summarise_run(c, Slo()))
    assert [(b.labels["input"], b.labels["output"], b.ok) for b in found] == [
        ("128–255", "16–31", 200),
        ("2,048–4,095", "32–63", 10),
    ]
    assert sum(b.request_share for b in found) == pytest.approx(1)
    assert [b.token_share for b in found] == pytest.approx([4000 / 4400, 400 / 4400])
    assert [b.established for b in found] == [True, False]
    assert found[0].n_effective >= LEAST > found[1].n_effective
    median = found[0].latency["ttft"].at(50.0)
    assert median is not None and median.value == pytest.approx(20.0, abs=0.01)


@pytest.mark.parametrize(
    ("axis", "change", "label"),
    [
        ("cached", {"input_tokens": InputTokens(server=100, cached=0)}, "none"),
        ("cached", {"input_tokens": InputTokens(server=100, cached=50)}, "1/4–1/2"),
        ("cached", {"input_tokens": InputTokens(server=100, cached=51)}, "1/2–1"),
        ("cached", {"input_tokens": InputTokens(server=100, cached=100)}, "1/2–1"),
        ("cached", {"input_tokens": InputTokens(server=100, cached=1)}, "up to 1/8"),
        ("cached", {"input_tokens": InputTokens(server=100)}, "not told"),
        ("turn", {"turn": 3}, "2–3"),
        ("turn", {}, "not told"),
        ("model", {"model": "base"}, "base"),
        ("peer", {"peer": "10.0.0.1:80"}, "10.0.0.1:80"),
        ("concurrency", {}, "1"),
        ("time", {}, "0–1 s"),
        ("time", {"flags": ("untimed",)}, "not told"),
    ],
)
def test_every_axis_has_its_label(axis: str, change: dict[str, object], label: str) -> None:
    c = columns(made(1, **change))
    (found,) = by_buckets(c, (axis,), [])
    assert found.labels == {axis: label}


def test_failures_are_counted_where_they_belong_and_no_latency_is_made_of_them() -> None:
    records, observations = run_records()
    c = columns(records)
    found = by_buckets(c, ("concurrency",), summarise_run(c, Slo(), observations))
    assert [(b.labels["concurrency"], b.failed) for b in found] == [("1", 0), ("8–15", 0), ("64–127", 64)]
    assert all(b.latency["ttft"].n == b.ok == b.sent - b.failed for b in found)


def test_an_open_loop_is_sorted_by_its_rate_and_what_is_not_told_is_not_zero() -> None:
    records = [record(f"{step}", step, c, 0, 20_000, 10_000) for step, c in ((1, 0), (2, 0), (3, 8), (4, 0))]
    rates = {1: 8.0, 2: 0.75, 3: None, 4: None}
    c = columns(records)
    summaries = [replace(s, rate=rates[s.step]) for s in summarise_run(c, Slo())]
    found = [b.labels["concurrency"] for b in by_buckets(c, ("concurrency",), summaries)]
    assert found == ["not told", "8–15", "0.5–1 requests/s", "8–16 requests/s"]


def test_nothing_measured_makes_no_buckets() -> None:
    assert by_buckets(columns([]), AXES, []) == []
