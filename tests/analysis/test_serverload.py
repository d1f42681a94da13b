"""The server's count of requests against the driver's: means over the window, replicas, edges, and the finding."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis import summarise, summarise_run
from loadgen.analysis.serverload import disagrees, gauge, view
from loadgen.log.columns import columns
from loadgen.records import Events
from loadgen.results import Estimate, Observation, ServerSample, ServerView, Slo, StepSummary, Window
from tests.log.record_strategies import RECORD

S = 1_000_000_000
WINDOW = Window(10 * S, 20 * S)


def sample(
    at_s: float, source: str = "a", error: str | None = None, took_us: int = 2000, **values: float
) -> ServerSample:
    return ServerSample(round(at_s * S), took_us, 1, source, values, {}, error)


def load(running: float, waiting: float = 0.0, *, source: str = "a", n: int = 10) -> list[ServerSample]:
    return [sample(10.5 + i * 10 / n, source, running=running, waiting=waiting) for i in range(n)]


def seen(samples: list[ServerSample], rate: float = 10.0) -> ServerView:
    found = view(samples, WINDOW, rate, 0.001, 0.02)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("points", "mean"),
    [
        ([(15, 4)], 4),
        ([(12, 0), (18, 10)], 5),  # each for half of the window
        ([(11, 0), (13, 10)], 8),  # the edge between them at 12: 2 s of 0, 8 s of 10
        ([(10, 10), (11, 0), (20, 0)], 0.5),
        ([(20, 3)], 3),
    ],
)
def test_a_gauge_is_weighted_by_time(points: list[tuple[float, float]], mean: float) -> None:
    found = gauge([sample(at, running=value) for at, value in points], "running", WINDOW)
    assert found is not None
    assert found.value == pytest.approx(mean)
    assert found.low is None, "too few for an interval"


@given(st.lists(st.tuples(st.floats(10, 20), st.floats(0, 1e6)), min_size=1, max_size=40))
def test_the_mean_lies_among_the_values(points: list[tuple[float, float]]) -> None:
    found = gauge([sample(at, running=value) for at, value in sorted(points)], "running", WINDOW)
    values = [value for _, value in points]
    assert found is not None
    assert min(values) * (1 - 1e-9) <= found.value <= max(values) * (1 + 1e-9)


def test_what_lies_outside_the_window_does_not_count() -> None:
    found = seen([sample(9.9, running=99, waiting=99), *load(5, 1), sample(20.1, running=99, waiting=99)])
    assert found.in_flight == Estimate(6, 6, 6)
    assert (found.running, found.waiting, found.scrapes, found.failed) == (5, 1, 10, 0)
    assert view([sample(9.9, running=9)], WINDOW, 1.0, 0.0, 0.0) is None


def test_replicas_are_added_up_and_kept_apart() -> None:
    found = seen([*load(5, 1), *load(2, 2, source="b")])
    assert found.in_flight == Estimate(10, 10, 10)
    assert found.parts == {"a": 6, "b": 4}
    gpus = seen([*load(5, 1), sample(12, "gpus", gpu_use_percent=90)])
    assert (gpus.in_flight, gpus.gpu_use_percent, gpus.parts) == (Estimate(6, 6, 6), 90, {})


def test_a_replica_of_which_nothing_is_known_leaves_the_total_unknown() -> None:
    found = seen([*load(5, 1), sample(12, "b", error="answered 503"), sample(14, "b", error="answered 503")])
    assert (found.in_flight, found.running, found.failed) == (None, None, 2)
    only_running = seen([sample(11 + i, running=4) for i in range(8)])
    assert (only_running.in_flight, only_running.running) == (None, 4)
    half = seen([*load(5, 1), *(sample(11 + i, "b", running=4) for i in range(8))])
    assert half.in_flight is None, "the second tells no queue"


def test_a_front_end_counts_its_engines_requests_already() -> None:
    found = seen([*load(5, 1), *(sample(11 + i, "front", in_flight=7) for i in range(8))])
    assert found.in_flight == Estimate(7, 7, 7)


def test_counters_grow_from_the_first_to_the_last_sample_of_the_window() -> None:
    tokens = [(9, 0), (11, 100), (13, 300), (15, 20), (19, 420)]  # restarted between 13 and 15
    times = [(11, 1.0, 10), (19, 5.0, 20)]
    found = seen(
        [
            *(sample(at, generation_tokens=value, preemptions=value / 100) for at, value in tokens),
            *(sample(at, "b", queue_s_sum=total, queue_s_count=n) for at, total, n in times),
            *(sample(at, "c", prefix_hit_tokens=a, prefix_query_tokens=b) for at, a, b in [(11, 0, 0), (19, 3, 12)]),
        ]
    )
    assert found.generation_tok_s == pytest.approx((200 + 400) / 8)
    assert found.preemptions == pytest.approx(6)
    assert found.queue_ms == pytest.approx(400)
    assert found.prefix_hit_share == 0.25
    assert found.prompt_tok_s is None
    still = seen([sample(12, preemptions=3), sample(18, preemptions=3, spec_draft_tokens=0, spec_accepted_tokens=0)])
    assert (still.preemptions, still.spec_accepted_share) == (0, None)


def test_the_edge_is_the_rate_times_all_that_lies_between_the_two_counts() -> None:
    assert seen(load(5)).edge_requests == pytest.approx(10 * (0.002 + 0.001 + 0.02))
    # 10 ms of E2E that are neither queue, prefill nor decode
    parts = {"queue": 0.05, "prefill": 0.02, "decode": 0.12, "e2e": 0.2}
    samples = [
        sample(at, **{f"{k}_s_sum": n * v for k, v in parts.items()}, **{f"{k}_s_count": n for k in parts})
        for at, n in ((12, 0), (18, 4))
    ]
    assert seen([replace(s, values=dict(s.values)) for s in samples]).edge_requests == pytest.approx(
        10 * (0.002 + 0.001 + 0.02 + 0.01)
    )


# --- beside a step --------------------------------------------------------------------------------------------------


def step_of(samples: list[ServerSample], *, in_flight: float = 10.0, integral: float | None = None) -> StepSummary:
    """A step of ten seconds with `in_flight` requests of 1 s at any time, and what the server said of it."""
    n = round(in_flight)
    records = [
        replace(
            RECORD,
            id=f"{i}-{k}",
            step=1,
            concurrency=n,
            scheduled_ns=(9 + k) * S,
            sent_ns=(9 + k) * S,
            first_byte_ns=(10 + k) * S,
            first_token_ns=(10 + k) * S,
            first_content_ns=(10 + k) * S,
            last_token_ns=(10 + k) * S,
            done_ns=(10 + k) * S,
            events=Events([S // 1000], [1]),
        )
        for i in range(n)
        for k in range(12)
    ]
    observation = Observation(1, n, WINDOW, round((integral or in_flight) * 10 * S), n, "complete")
    (summary,) = summarise_run(columns(records), Slo(), [observation], samples)
    return summary


def waves(mean: float) -> list[ServerSample]:
    return [sample(10.25 + i / 2, running=mean + (3 if i // 5 % 2 else -3), waiting=0) for i in range(20)]


@pytest.mark.parametrize(
    ("samples", "residual", "finding"),
    [
        (load(10), 0.0, False),
        (load(8, 2), 0.0, False),
        (load(20), 1.0, True),  # other traffic
        (load(5), -0.5, True),  # held back on the way
        (load(0), -1.0, True),
        (load(10.4), 0.04, False),  # within 5 %
        ([replace(one, took_us=50_000) for one in load(10.6)], 0.06, False),  # the way between: 10/s × 50 ms
        (waves(11.5), 0.15, False),  # the mean of so few waves is not known so well
        (waves(20), 1.0, True),
        (load(20, n=4), 1.0, False),  # too few to be sure of anything
        ([sample(11 + i, running=20) for i in range(8)], None, False),  # no queue is told
        ([sample(11 + i, error="answered 404") for i in range(8)], None, False),
        ([], None, False),
    ],
)
def test_a_disagreement_is_a_finding_beyond_five_percent_and_the_edge(
    samples: list[ServerSample], residual: float | None, finding: bool
) -> None:
    summary = step_of(samples)
    assert summary.littles_law_server_residual == (None if residual is None else pytest.approx(residual, abs=1e-6))
    assert disagrees(summary) is finding


@pytest.mark.parametrize(
    ("told", "timed", "finding"),
    [
        (3, 10, False),  # asked between two steps of a busy CPU: its times tell of all that were sent
        (3, 3, True),  # held back on the way, or one of several replicas: its times tell of no more
        (3, 6, True),  # more than it told, and still not all
        (20, 20, True),  # other traffic
        (20, 3, True),
    ],
)
def test_a_server_whose_times_contradict_its_count_is_not_held_to_the_count(
    told: float, timed: float, finding: bool
) -> None:
    """Ten requests in flight; the server counts `told`, and its E2E times grow by `timed` seconds in each."""
    samples = [
        replace(one, values={**one.values, "e2e_s_sum": timed * one.at_ns / S, "e2e_s_count": 10 * one.at_ns / S})
        for one in load(told)
    ]
    assert disagrees(step_of(samples)) is finding


def test_a_request_is_not_in_the_times_of_a_front_end_and_of_its_engine_too() -> None:
    """Five of ten are held back before a front end, which counts five; its engine's times are those five once more."""

    def timed(one: ServerSample, **values: float) -> ServerSample:
        return replace(one, values={**values, "e2e_s_sum": 5 * one.at_ns / S, "e2e_s_count": 10 * one.at_ns / S})

    samples = [timed(one, in_flight=5) for one in load(0, source="front")]
    assert disagrees(step_of([*samples, *(timed(one, running=5, waiting=0) for one in load(5))]))


def test_what_the_driver_counts_too_many_is_not_the_servers() -> None:
    late = step_of(load(10), integral=11.0)  # 10 on the wire, by the records
    assert late.littles_law_residual == pytest.approx(0.1)
    assert late.littles_law_server_residual == pytest.approx(-1 / 11)
    assert not disagrees(late)


def test_a_run_without_scrapes_is_as_before() -> None:
    assert step_of([]) == replace(step_of([]), server=None, littles_law_server_residual=None)
    other = [replace(one, step=2) for one in load(20)]
    assert step_of(other).server is None, "another step's"
    assert summarise(columns([]), 1, Slo()).server is None
