"""What a report says of the server's own metrics."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.analysis import summarise_run
from loadgen.log.columns import columns
from loadgen.report.serverview import server_lines, server_notes
from loadgen.results import Estimate, ServerView, Slo, StepSummary
from tests.report.summaries import run_records

RECORDS, OBSERVATIONS = run_records((1,))
(PLAIN,) = summarise_run(columns(RECORDS), Slo(), OBSERVATIONS)


def step(value: float, low: float | None, ours: float = 16.0, number: int = 1, **change: object) -> StepSummary:
    high = None if low is None else 2 * value - low
    server = ServerView(scrapes=20, failed=0, in_flight=Estimate(value, low, high), edge_requests=0.4)
    return replace(
        PLAIN,
        step=number,
        concurrency_mean=ours,
        server=server,
        littles_law_server_residual=value / ours - 1,
        **change,  # type: ignore[arg-type]
    )


def test_both_numbers_and_what_it_may_mean() -> None:
    assert server_notes([step(31.8, 30.9)]) == [
        "the server held 31.8 ±0.9 requests in the mean where 16.0 were in flight from here (Little's law): "
        "other traffic on the server, or several answers to one request"
    ]
    (less,) = server_notes([step(8.0, 7.9)])
    assert "8.00 ±0.10 requests" in less
    assert "a proxy or gateway that holds requests back, an admission limit before the server's queue" in less
    assert "tried again" not in less
    (retried,) = server_notes([step(8.0, 7.9, flags={"retried": 3})])
    assert retried.endswith("; requests that waited here to be tried again")


@pytest.mark.parametrize(
    ("steps", "where"),
    [
        ([step(16, 15.9, number=1), step(32, 31, number=2)], "at step 2 (Little's law):"),
        ([step(24, 23, number=1), step(32, 31, number=2)], "at step 2 (Little's law; so at another step):"),
        ([step(32, 31, number=i) for i in (1, 2, 3)], "at step 1 (Little's law; so at 2 other steps):"),
    ],
)
def test_the_worst_step_speaks_for_the_others(steps: list[StepSummary], where: str) -> None:
    (note,) = server_notes(steps)
    assert where in note


def test_no_finding_where_nothing_is_sure() -> None:
    assert server_notes([]) == []
    assert server_notes([step(16.5, 16.4)]) == []
    assert server_notes([step(32, None)]) == []
    assert server_notes([replace(step(32, 31), server=None)]) == []


def test_the_details_say_what_was_told_and_no_more() -> None:
    assert server_lines(replace(PLAIN, server=None)) == []
    assert server_lines(replace(PLAIN, server=ServerView(3, 2), littles_law_server_residual=None)) == [
        ("server load", "3 scrapes, 2 failed")
    ]
    full = ServerView(
        *(20, 0, Estimate(16, 15, 17), 14.0, 2.0, 0.4, 0.5, 0.75, 524_288, 3.0, 0.0, 0.25, 0.8),
        queue_ms=1.0,
        prefill_ms=20.0,
        parts={"0": 9.0, "1": 7.0},
    )
    lines = server_lines(replace(PLAIN, server=full, littles_law_server_residual=-0.0123))
    text = " ".join(text for _, text in lines)
    for part in (
        "16.0 ±1.0 requests in flight by its own count",
        "14.0 running · 2.00 waiting · 9.00 at 0 · 7.00 at 1 · 20 scrapes",
        "KV cache 50 % of 524,288 tokens in use, 75 % at the peak",
        "prefix cache hits 25 %",
        "drafted tokens accepted 80 %",
        "3 preemptions",
        "queue 1.00, prefill 20.0 ms in the mean",
        "-1.23 %, up to 0.400 requests of it by the way between",
    ):
        assert part in text
    assert "rejected" not in text
