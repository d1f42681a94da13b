"""What a report says of the client itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.analysis import summarise_run
from loadgen.analysis.redone import without_redone
from loadgen.log.columns import columns
from loadgen.report.facts import RunFacts
from loadgen.report.health import bound_ms, error_text, health_notes, limit_texts
from loadgen.report.jsonout import step_object
from loadgen.report.text import WIDTH, Mark, render
from loadgen.results import ClientHealth, ClientLimit, ErrorBound, Lag, Slo, StepSummary
from tests.report.summaries import run_records

HEALTH = ClientHealth(
    "kernel",
    10.0,
    cpu_share=0.43,
    wait_share=0.004,
    reads=5000,
    stamped=5000,
    read_lag_us=Lag(5000, 12, 80, 1200),
    loop_lag_us=Lag(200, 60, 210, 900),
    refill_lag_us=Lag(300, 400, 1500, 2500),
    gc_pauses=1,
    gc_pause_max_us=12_000,
    retransmits=0,
    out_of_order=0,
    dropped=0,
    descriptors=70,
    descriptor_limit=1024,
    ports=100,
    port_limit=28_232,
)
LIMIT = ClientLimit("the client used 97 % of a CPU", "spread the load over more processes")


@pytest.fixture(scope="module")
def healthy() -> list[StepSummary]:
    records, observations = run_records()
    return summarise_run(columns(records), Slo(), [replace(o, health=HEALTH) for o in observations])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.0, "0.00"), (0.02, "0.02"), (0.0201, "0.03"), (0.3, "0.30"), (0.999, "1.00")),
        *((1.01, "1.1"), (9.99, "10.0"), (12.2, "13"), (1234.5, "1,235")),
    ],
)
def test_a_bound_is_rounded_up(value: float, text: str) -> None:
    assert bound_ms(value) == text


def test_the_screen_states_the_error(healthy: list[StepSummary]) -> None:
    text = render(RunFacts("results/RUN"), healthy, {})
    assert "error     the client added at most 0.04 ms to any p99 TTFT and 0.02 ms to any p99 ITL\n" in text
    assert "client  " not in text
    assert all(len(row) <= WIDTH for row in text.splitlines())


def test_user_stamps_say_what_the_error_rests_on(healthy: list[StepSummary]) -> None:
    bounds = {"ttft": ErrorBound(0.1, 1.2), "itl": ErrorBound(0.1, 2.31)}
    user = [replace(s, error_ms=bounds, health=replace(HEALTH, stamps="user")) for s in healthy]
    said = "the client added at most 1.2 ms to any p99 TTFT and 2.4 ms to any p99 ITL"
    assert error_text(user) == f"{said}, as far as its event loop's lag tells"
    assert error_text([replace(s, error_ms={}) for s in healthy]) == ""


def test_the_worst_step_is_the_one_that_is_stated(healthy: list[StepSummary]) -> None:
    worse = replace(healthy[1], error_ms={**healthy[1].error_ms, "itl": ErrorBound(0.02, 3.0)})
    assert "3.0 ms to any p99 ITL" in error_text([healthy[0], worse, healthy[2]])


def test_a_limit_is_a_sentence_with_the_one_thing_to_change(healthy: list[StepSummary]) -> None:
    steps = [healthy[0], replace(healthy[1], client_limit=LIMIT)]
    assert limit_texts(steps) == [
        "the limit at 8 in flight: the client used 97 % of a CPU → spread the load over more processes"
    ]
    text = render(RunFacts("results/RUN"), steps, {2: Mark("invalid")})
    assert "client    the limit at 8 in flight: the client used 97 % of a CPU → spread" in text
    opened = replace(healthy[1], rate=12.5, concurrency=0, client_limit=LIMIT)
    assert limit_texts([opened])[0].startswith("the limit at 12.5 requests/s")


def test_a_limit_at_a_load_that_was_measured_again_is_told_and_changes_no_figure(healthy: list[StepSummary]) -> None:
    again = replace(healthy[1], step=9)
    shaped = replace(
        healthy[1],
        client_limit=LIMIT,
        error_ms={"ttft": ErrorBound(9, 9)},
        littles_law_residual=0.5,
        unsteady=("stalls",),
    )
    steps = [healthy[0], shaped, again]
    assert limit_texts(steps) == [
        "the limit at 8 in flight at first, which was measured again: the client used 97 % of a CPU"
    ]
    assert error_text(steps) == error_text([healthy[0], again])
    text = render(RunFacts("results/RUN"), steps, {2: Mark("invalid")})
    assert "Little" not in text and "nothing arrived" not in text
    assert without_redone([shaped, replace(shaped, step=9)]) == [shaped, replace(shaped, step=9)]
    late = replace(shaped, step=10)
    assert without_redone([again, late]) == [again, late], "what came before it does not stand for it"


def test_the_details_tell_how_the_client_fared(healthy: list[StepSummary]) -> None:
    text = render(RunFacts("results/RUN"), [replace(healthy[1], client_limit=LIMIT)], {}, details=True)
    flat = " ".join(text.split())
    for part in (
        "error at most TTFT p50 0.04, p99 0.04 · ITL p50 0.02, p99 0.02",
        "100 % of the events exact",
        "kernel stamps · CPU 43 %, waited for it 0.4 %",
        "read lag p50 12 µs, p99 80 µs, max 1.2 ms",
        "1 GC pause up to 12.0 ms",
        "segments 0 retransmitted, 0 out of order, 0 dropped",
        "70 of 1,024 open files",
        "the limit the client used 97 % of a CPU",
    ):
        assert part in flat, part


def test_only_what_is_unusual_is_noted(healthy: list[StepSummary]) -> None:
    assert health_notes(healthy) == []
    assert health_notes([replace(healthy[0], health=None)]) == []
    odd = replace(
        HEALTH, clock_steps=1, steal_share=0.08, retransmits=3, out_of_order=1, descriptors=1000, ports=28_000
    )
    notes = health_notes([replace(healthy[0], health=odd), healthy[1]])
    assert len(notes) == 6
    for word in ("stepped 1×", "8.0 %", "3 segments sent again", "1 segment received", "1,000 of 1,024", "28,000 of"):
        assert any(word in note for note in notes), (word, notes)


def test_the_json_has_it_all(healthy: list[StepSummary]) -> None:
    step = step_object(replace(healthy[1], client_limit=LIMIT), Mark("invalid"))
    assert step["error_bounds_ms"]["ttft"].p99 == pytest.approx(0.04)
    assert step["client"] == HEALTH and step["client_limit"] == LIMIT and step["exact_share"] == 1.0
