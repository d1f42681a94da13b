from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.analysis import summarise, summarise_run
from loadgen.analysis.objectives import time_order
from loadgen.analysis.window import peak_in_flight, steady_window
from loadgen.errors import Failure
from loadgen.log.columns import columns
from loadgen.records import FAILED_OUTCOMES, Events, Record
from loadgen.results import Observation, Slo, StepSummary, Window
from loadgen.slo import parse_slo
from tests.analysis import slow_metrics as slow
from tests.analysis.record_samples import steps
from tests.analysis.slow_metrics import record

NONE = Slo()


def one(records: list[Record], *slo: str, observation: Observation | None = None) -> StepSummary:
    return summarise(columns(records), 1, parse_slo(slo), observation)


def observed(start: int, end: int, integral: float = 0.0, peak: int = 0) -> Observation:
    """A window in ms, an integral in request·ms."""
    return Observation(1, 4, Window(start * 1_000_000, end * 1_000_000), round(integral * 1e6), peak, "complete")


WORKED = [
    record("r1", 0, 420, 3100, n=80, prompt=1024),
    record("r2", 150, 710, 4360, n=96, prompt=4096),
    record("r3", 400, 880, 2920, n=64, prompt=512),
]


def test_the_worked_example_to_the_digit() -> None:
    s = one(WORKED)
    ttft, tpot = s.latency["ttft"], s.latency["tpot"]
    assert [f"{ttft.at(p).value / 1e3:.3f}" for p in (50.0, 95.0)] == ["0.480", "0.552"]  # type: ignore[union-attr]
    assert [f"{tpot.at(p).value / 1e3:.4f}" for p in (50.0, 95.0)] == ["0.0339", "0.0380"]  # type: ignore[union-attr]
    assert f"{s.output_throughput_classic:.2f}" == "55.05"
    assert not ttft.at(95.0).established  # type: ignore[union-attr]
    assert s.input_tokens_mean == pytest.approx((1024 + 4096 + 512) / 3)


def test_a_ten_line_script_agrees() -> None:
    rng = np.random.default_rng(4)
    sent = np.sort(rng.integers(0, 60_000, 400))
    first = sent + rng.integers(20, 900, 400)
    n = rng.integers(2, 300, 400)
    end = first + n * rng.integers(5, 30, 400)
    rows = zip(sent.tolist(), first.tolist(), end.tolist(), n.tolist(), strict=True)
    s = one([record(str(i), a, b, c, n=k, concurrency=8) for i, (a, b, c, k) in enumerate(rows)])

    for name, values in (("ttft", first - sent), ("tpot", (end - first) / (n - 1)), ("e2e", end - sent)):
        found = s.latency[name]
        for p in (50, 90, 95, 99):
            assert found.at(p).value == pytest.approx(np.percentile(values, p), rel=1e-12)  # type: ignore[union-attr]
        assert found.mean is not None
        assert (found.mean.value, found.std, found.max) == pytest.approx((values.mean(), values.std(), values.max()))
    seconds = (end.max() - sent.min()) / 1000
    assert s.output_throughput_classic == pytest.approx(n.sum() / seconds)
    assert s.output_throughput is not None
    assert s.output_throughput.value == pytest.approx(n.sum() / seconds)  # here the window is the whole step
    assert s.concurrency_mean == pytest.approx((end - sent).sum() / 1000 / seconds)


def test_tokens_of_all_phases_count_by_arrival() -> None:
    def ticks(start: int, end: int) -> list[tuple[int, int | None]]:
        return [(at, 1) for at in range(start, end + 1, 10)]

    warm = record("w", 0, 10, 300, n=30, events=ticks(10, 300), phase="warmup")
    mine = record("m", 105, 115, 405, n=30, events=ticks(115, 405))
    filler = record("f", 205, 215, 605, n=40, events=ticks(215, 605), phase="filler", outcome="cut")
    failed = record("e", 105, 115, 155, n=5, events=ticks(115, 155), outcome="error")
    s = one([warm, mine, filler, failed])
    assert s.window == Window(105_000_000, 205_000_000)
    assert s.output_throughput is not None
    assert s.output_throughput.value == pytest.approx((10 + 10) / 0.1)  # warm 110..200, mine 115..205
    assert s.output_throughput_failed == pytest.approx(5 / 0.1)
    assert s.estimated_token_share == 0
    assert (s.sent, s.judged, s.failed, s.requests) == (2, 2, 1, {"ok": 1, "error": 1})
    wide = one([warm, mine, filler, failed], observation=observed(100, 500))
    assert wide.output_throughput is not None
    assert wide.output_throughput.value == pytest.approx((21 + 30 + 29) / 0.4)
    assert wide.completion_rate is not None
    assert wide.completion_rate.value == pytest.approx(2 / 0.4)
    assert wide.request_throughput is not None
    assert wide.request_throughput.value == pytest.approx(1 / 0.4)  # the warm-up's is in the other alone
    assert wide.attempt_rate == pytest.approx(3 / 0.4)


def test_without_events_tokens_are_spread_and_said_to_be() -> None:
    s = one([record("a", 0, 100, 1100, n=101)], observation=observed(600, 2600))
    assert s.output_throughput is not None
    assert s.output_throughput.value == pytest.approx(50 / 2)
    assert s.estimated_token_share == 1


@settings(deadline=None)
@given(steps, st.integers(0, 300), st.integers(1, 300))
def test_rates_are_the_definitions(records: list[Record], start: int, length: int) -> None:
    s = one(records, observation=observed(start, start + length))
    w = Window(start * 1_000_000, (start + length) * 1_000_000)
    mine = [r for r in records if r.phase != "preflight"]
    ok = [r for r in mine if r.outcome == "ok"]
    placed = [slow.tokens_between(r, w.start_ns, w.end_ns) for r in mine if r.outcome in ("ok", "cut")]
    total = sum(t for t, _ in placed)
    if s.output_throughput is None:
        assert not ok or total == pytest.approx(0)
    else:
        assert ok
        assert s.output_throughput.value * w.seconds == pytest.approx(total)
    if total > 1e-9:
        assert s.estimated_token_share == pytest.approx(sum(t for _, t in placed) / total)
    assert s.request_throughput is not None
    assert s.completion_rate is not None
    done = [r.phase for r in ok if w.start_ns <= r.done_ns <= w.end_ns]
    assert s.completion_rate.value * w.seconds == pytest.approx(len(done))
    assert s.request_throughput.value * w.seconds == pytest.approx(done.count("measured"))
    held = sum(max(0, min(r.done_ns, w.end_ns) - max(r.sent_ns, w.start_ns)) for r in mine if r.sent_ns is not None)
    assert s.littles_law_residual == (pytest.approx(-1) if held else None)
    assert peak_in_flight(columns(mine)) == slow.peak(mine)


@settings(deadline=None)
@given(steps)
def test_samples_are_the_measured_ok_requests(records: list[Record]) -> None:
    s = one(records)
    measured = [r for r in records if r.phase == "measured"]
    assert s.requests == Counter(r.outcome for r in measured)
    assert s.flags == Counter(flag for r in measured for flag in r.flags)
    assert s.sent == len(measured)
    assert s.failed == sum(r.outcome in FAILED_OUTCOMES for r in measured)
    told = measured or [r for r in records if r.phase != "preflight"]  # a step that dies in its warm-up says of what
    assert sum(n for _, n in s.errors) == sum(r.outcome in FAILED_OUTCOMES for r in told)
    for name in ("ttft", "ttfc", "tpot", "e2e", "ttft_scheduled", "e2e_scheduled", "dispatch_lag"):
        values = [x for r in measured if r.outcome == "ok" and (x := slow.request_metric(name, r)) is not None]
        found = s.latency[name]
        assert found.n == len(values)
        if values:
            assert found.mean is not None
            assert found.mean.value == pytest.approx(np.mean(values))
            assert found.at(95.0).value == pytest.approx(np.percentile(values, 95))  # type: ignore[union-attr]
    ok = [r for r in measured if r.outcome == "ok"]
    assert s.latency["itl"].n == sum(slow.itl_of(r)[1] for r in ok)
    assert s.latency["inter_chunk"].n == sum(max(0, len(slow.stamps(r)) - 1) for r in ok)


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [x for item in value.values() for x in numbers(item)]
    if isinstance(value, list | tuple):
        return [x for item in value for x in numbers(item)]
    return [value] if isinstance(value, float) else []


@settings(deadline=None)
@given(steps, st.booleans())
def test_no_step_raises_or_holds_what_is_no_number(records: list[Record], watched: bool) -> None:
    observation = observed(50, 150, 300, 4) if watched else None
    s = one(
        records, "ttft_p95=30ms", "tpot=5ms", "e2e=50ms", "itl_p99=9ms", "ttft_scheduled_p50=1", observation=observation
    )
    judged_values = [check.value_ms for check in s.objectives]
    assert all(math.isfinite(x) for x in numbers(asdict(replace(s, objectives=()))))
    assert all(v is None or v >= 0 for v in judged_values)  # inf is allowed here: failures are infinitely late
    for check in s.objectives:
        e = check.exceedance
        if e is None:
            assert (check.verdict, check.n) == ("inconclusive", 0)
        else:
            assert e.low is not None
            assert e.high is not None
            assert 0 <= e.low <= e.value + 1e-9
            assert e.value - 1e-9 <= e.high <= 1


def test_an_empty_run() -> None:
    assert summarise_run(columns([]), NONE) == []
    s = one([], "ttft_p95=1s")
    assert (s.window, s.output_throughput, s.request_throughput, s.sent) == (None, None, None, 0)
    assert s.objectives[0].verdict == "inconclusive"
    assert s.latency["ttft"].n == 0


def test_a_run_has_every_step_of_log_and_driver() -> None:
    c = columns([record("a", 0, 1, 2, n=2, step=2, concurrency=8), record("p", 0, 1, 2, step=0, phase="preflight")])
    found = summarise_run(c, NONE, [observed(0, 2), Observation(5, 64, None, 0, 0, "errors")])
    assert [(s.step, s.concurrency, s.ended) for s in found] == [
        (1, 4, "complete"),
        (2, 8, "complete"),
        (5, 64, "errors"),
    ]


def test_empty_answers_give_no_headline() -> None:
    s = one([record(str(i), i, None, None, done=i + 1, outcome="empty") for i in range(20)], "ttft_p95=1s")
    assert s.output_throughput is None
    assert s.request_throughput is not None
    assert s.request_throughput.value == 0
    assert (s.failed, s.objectives[0].verdict, s.objectives[0].value_ms) == (20, "fail", math.inf)
    cut = one([record("a", 0, 10, 90, n=9, outcome="cut")])
    assert (cut.output_throughput, cut.judged) == (None, 0)


def test_success_and_attempts_stand_side_by_side() -> None:
    good = [record(str(i), 1000 * i, 1000 * i + 500, 1000 * i + 1000, n=2) for i in range(10)]
    busy = Failure("http", "no slots", 503)
    bad = [
        replace(
            record(f"x{i}", 1000 * i, None, None, done=1000 * i, outcome="error"), error=replace(busy, message=f"m{i}")
        )
        for i in range(10)
    ]
    s = one([*good, *bad])
    assert s.completion_rate is not None
    assert (s.completion_rate.value, s.attempt_rate) == pytest.approx((1.0, 2.0))
    assert (s.failed, s.judged, s.errors) == (10, 20, (("http 503: m0", 10),))
    assert s.latency["ttft"].max == 500


def test_a_verdict_ahead_is_that_of_a_larger_sample_of_the_same_kind() -> None:
    rows = [record(str(i), 10 * i, 10 * i + (900 if i % 30 == 7 else 100), 10 * i + 950, n=2) for i in range(300)]
    c, slo = columns(rows), parse_slo(["ttft_p95=500ms"])
    now, ahead = (summarise(c, 1, slo, ahead=times).objectives[0] for times in (1.0, 10.0))
    assert (now.verdict, ahead.verdict) == ("inconclusive", "pass")
    assert now.exceedance == ahead.exceedance  # what is printed is what was seen


def test_timeouts_are_named() -> None:
    late = replace(record("a", 0, None, None, outcome="timeout"), timeout="first_token")
    assert one([late]).errors == (("timeout first token", 1),)


def test_not_streamed_has_no_ttft() -> None:
    r = [replace(record(str(i), i, i + 90, i + 90, n=20), flags=("not_streamed",)) for i in range(200)]
    s = one(r, "ttft_p95=1s")
    assert (s.latency["ttft"].n, s.latency["itl"].n, s.latency["e2e"].n) == (0, 0, 200)
    assert s.objectives[0].verdict == "inconclusive"
    assert s.objectives[0].exceedance is None


@pytest.mark.parametrize("logged", [True, False])
def test_not_streamed_tokens_arrive_with_the_end_of_the_body(logged: bool) -> None:
    events = Events() if logged else None
    r = [replace(record(str(i), i, i + 90, i + 90, n=20), flags=("not_streamed",), events=events) for i in range(200)]
    s = one(r)
    assert s.window is not None and s.output_throughput is not None
    arrived = sum(20 for each in r if s.window.start_ns <= (each.last_token_ns or 0) <= s.window.end_ns)
    assert s.output_throughput.value == pytest.approx(arrived / s.window.seconds)
    assert s.estimated_token_share == 0


def test_goodput_and_attainment() -> None:
    fine = [record(f"a{i}", i, i + 100, i + 500, n=11) for i in range(6)]
    late = [record(f"b{i}", i, i + 300, i + 700, n=11) for i in range(2)]
    others = [
        record("c", 5, None, None, outcome="error", done=10_000),
        record("d", 6, 90, 95, n=2, outcome="cancelled"),
    ]
    s = one([*fine, *late, *others], "ttft:200 tpot:50 e2e:2000")
    assert s.window is not None
    assert s.attainment is not None
    assert s.attainment.value == pytest.approx(6 / 9)
    assert s.goodput == pytest.approx(6 / s.window.seconds)
    rates = {check.objective: check.exceedance.value for check in s.objectives if check.exceedance}
    assert rates == pytest.approx({"ttft": 3 / 9, "tpot": 1 / 9, "e2e": 1 / 9, "attainment": 3 / 9})


def test_objectives_are_judged_with_failures_as_infinitely_late() -> None:
    ok = [record(str(i), 10 * i, 10 * i + 100, 10 * i + 200, n=5) for i in range(380)]
    failed = [record(f"x{i}", 95 * i + 3, None, None, outcome="error") for i in range(40)]
    left_out = [record(f"c{i}", i, None, None, outcome="cut") for i in range(300)]
    assert one([*ok, *left_out], "ttft_p95=150ms").objectives[0].verdict == "pass"
    check = one([*ok, *failed, *left_out], "ttft_p95=150ms").objectives[0]
    assert (check.verdict, check.value_ms, check.n) == ("fail", math.inf, 420)
    assert check.exceedance is not None
    assert check.exceedance.value == pytest.approx(40 / 420)


@pytest.mark.parametrize(
    ("limit", "verdict"), [(50, "fail"), (97, "fail"), (100, "marginal"), (103, "pass"), (150, "pass")]
)
def test_verdicts_by_distance(limit: int, verdict: str) -> None:
    rng = np.random.default_rng(1)  # 5 % above 100 ms, none above 105, 8.8 % above 95
    late = np.where(rng.permutation(4000) < 200, 101, np.where(rng.random(4000) < 0.04, 99, 60))
    r = [record(str(i), i, i + int(x), i + 200, n=5) for i, x in enumerate(late)]
    assert one(r, f"ttft_p95={limit}ms").objectives[0].verdict == verdict


def test_few_requests_prove_nothing() -> None:
    few = [record(str(i), 10 * i, 10 * i + 100, 10 * i + 200, n=5) for i in range(40)]
    assert one(few, "ttft_p95=150ms").objectives[0].verdict == "inconclusive"
    assert one(few, "ttft_p50=150ms").objectives[0].verdict == "pass"


def test_more_looks_ask_for_more_proof() -> None:
    r = [record(str(i), 10 * i, 10 * i + 100, 10 * i + 200, n=5) for i in range(130)]
    c, slo = columns(r), parse_slo(["ttft_p95=150ms"])
    assert summarise(c, 1, slo).objectives[0].verdict == "pass"
    assert summarise(c, 1, slo, looks=20).objectives[0].verdict == "inconclusive"


def test_one_of_many_objectives_needs_more_proof_to_fail() -> None:
    r = [record(str(i), 10 * i, 10 * i + (100 if i % 11 else 300), 10 * i + 900, n=5) for i in range(330)]
    many = ["ttft_p95=150ms", *(f"e2e_p{p}=1s" for p in range(50, 90))]
    assert one(r, many[0]).objectives[0].verdict == "fail"
    assert one(r, *many).objectives[0].verdict == "inconclusive"


def test_samples_are_ordered_by_when_the_metric_became_known() -> None:
    rows = [
        record("a", 0, 300, 400, done=900),
        record("b", 0, 100, 600, done=700),
        record("c", 0, None, None, done=200, outcome="error"),
        record("d", 0, 150, 250, done=350, outcome="incomplete"),  # what failed became known by its end
    ]
    rows[1] = replace(rows[1], first_content_ns=500_000_000)
    c = columns(rows)
    orders = {
        name: "".join(c.ids[i] for i in time_order(c, name)) for name in ("ttft", "ttfc", "tpot", "e2e_scheduled")
    }
    assert orders == {"ttft": "bcad", "ttfc": "cadb", "tpot": "cdab", "e2e_scheduled": "cdab"}


def test_pooled_itl_objective_counts_a_failure_as_a_whole_request() -> None:
    def ok(i: int) -> Record:
        return record(str(i), i, i + 10, i + 110, n=11, events=[(i + 10 + 10 * j, 1) for j in range(11)])

    failed = [record(f"x{i}", i, None, None, outcome="error") for i in range(50)]
    check = one([*map(ok, range(150)), *failed], "itl_p95=20ms").objectives[0]
    assert (check.n, check.verdict) == (2000, "fail")
    assert check.exceedance is not None
    assert check.exceedance.value == pytest.approx(0.25)


def test_littles_law_against_the_drivers_own_integral() -> None:
    r = [record(str(i), 100 * i, 100 * i + 50, 100 * i + 400, n=2, concurrency=4) for i in range(50)]
    s = one(r, observation=observed(1000, 3000, integral=4 * 2000, peak=4))
    assert s.littles_law_residual == pytest.approx(0)
    assert (s.concurrency_mean, s.concurrency_peak) == (pytest.approx(4), 4)
    assert one(r, observation=observed(1000, 3000, integral=4.4 * 2000)).littles_law_residual == pytest.approx(0.1)


def test_window_from_records() -> None:
    rows = [
        record("w", 0, 5, 90, phase="warmup"),
        record("a", 50, 55, 400, scheduled=40),
        record("b", 60, 65, 300, done=310),
        record("f", 200, 205, 500, phase="filler"),
    ]
    assert steady_window(columns(rows)) == Window(40_000_000, 200_000_000)
    stray = record("g", 10, 15, 50, phase="filler")
    assert steady_window(columns([stray, *rows])) == Window(40_000_000, 200_000_000)
    assert steady_window(columns(rows[:3])) == Window(40_000_000, 400_000_000)
    assert steady_window(columns(rows[:1])) is None


def test_start_burst_and_drain_do_not_move_steady_figures() -> None:
    """Serial prefill of 100 ms at 32 in flight: every request in the steady state waits for 31 others."""

    def step(n: int) -> StepSummary:
        ends = [100 * (i + 1) for i in range(n + 64)]
        rows = []
        for i, end in enumerate(ends):
            sent = 0 if i < 32 else ends[i - 32]
            phase = "warmup" if i < 32 else "measured" if i < 32 + n else "filler"
            rows.append(record(str(i), sent, end, end, n=1, phase=phase, concurrency=32))  # type: ignore[arg-type]
        return one(rows)

    for s in (step(64), step(640)):
        assert s.latency["ttft"].at(95.0).value == pytest.approx(3200)  # type: ignore[union-attr]
        assert s.completion_rate is not None
        assert s.completion_rate.value == pytest.approx(10, rel=0.02)
