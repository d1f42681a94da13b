from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis import summarise
from loadgen.log.columns import columns
from loadgen.results import Observation, Slo, StepSummary, Window
from loadgen.search.effort import rate_forecast, rate_warmup_s, step_rule
from loadgen.search.rate import settle_rate
from loadgen.search.verdict import judge, sent_late
from loadgen.slo import parse_slo
from tests.report.summaries import record

SECOND = 10**9


def step(
    slo: Slo, *, late_us: int = 0, n: int = 600, held_back: int = 0, not_dispatched: int = 0, ended: Any = "complete",
    detail: str = "", failed: int = 0,
) -> StepSummary:  # fmt: skip
    """n requests at 20/s with a TTFT of 50 ms and a TPOT of 10 ms; each fiftieth is sent `late_us` after it was due."""
    records = []
    for i in range(n):
        due = i * SECOND // 20
        late = late_us * 1000 if i % 25 == 0 else 0
        change: dict[str, Any] = {"scheduled_ns": due}
        if i < failed:
            change["outcome"] = "error"
        records.append(record(f"s1-{i}", 1, 0, due + late, 50_000, 10_000, **change))
    seen = Observation(
        1, 0, Window(0, n * SECOND // 20), 4 * n * SECOND // 20, 8, ended, detail, rate=20.0, held_back=held_back,
        not_dispatched=not_dispatched, max_in_flight=2 if held_back else None,
    )  # fmt: skip
    return summarise(columns(records), 1, slo, seen)


def settled(slo: Slo, **what: Any) -> tuple[str, Any]:
    summary = step(slo, **what)
    level = judge(summary, slo)
    stop = settle_rate(level, summary, has_slo=bool(slo))
    assert level.rate == 20.0
    return level.verdict, stop


@pytest.mark.parametrize(
    ("slo", "what", "verdict", "reason", "held", "broke", "words"),
    [
        ([], {}, "measured", "max_level", None, None, "20 requests/s were measured"),
        (["ttft_p95=200ms"], {}, "pass", "max_level", 20.0, None, "20 requests/s hold every objective"),
        (["ttft_p95=20ms"], {}, "fail", "slo:ttft_p95", None, 20.0, "do not hold every objective (ttft_p95)"),
        (["ttft_p95=200ms"], {"n": 20}, "inconclusive", "max_level", None, None, "Undecided at 20 requests/s"),
        ([], {"late_us": 30_000}, "invalid", "client_bound", None, None, "up to 30.0 ms late (p99)"),
        (["ttft_p95=200ms"], {"late_us": 30_000}, "invalid", "client_bound", None, None, "could not hold 20 requests"),
        ([], {"not_dispatched": 50}, "invalid", "client_bound", None, None, "50 of 650 requests could not be sent"),
        ([], {"late_us": 30_000, "held_back": 12}, "measured", "max_level", None, None, "20 requests/s were measured"),
        ([], {"ended": "client", "detail": "no open files"}, "invalid", "client_bound", None, None, "no open files"),
        (["ttft_p95=200ms"], {"failed": 100}, "fail", "errors", None, 20.0, "Too many requests failed at 20 requests"),
        ([], {"ended": "interrupted"}, "measured", "interrupted", None, None, "interrupted at 20 requests/s"),
    ],
)  # fmt: skip
def test_the_answer_names_the_rate(
    slo: list[str], what: dict[str, Any], verdict: str, reason: str, held: Any, broke: Any, words: str
) -> None:
    found, stop = settled(parse_slo(slo) if slo else Slo(), **what)
    assert found == verdict
    assert (stop.reason, stop.held, stop.broke) == (reason, held, broke)
    assert words in stop.sentence
    assert "concurrent" not in stop.sentence


def test_a_longer_step_is_not_recommended_where_no_answer_has_a_sample() -> None:
    summary = step(parse_slo(["ttft_p95=200ms"]), n=20)
    level = dataclasses.replace(
        judge(summary, parse_slo(["ttft_p95=200ms"])), unsampled={"ttft_p95": "the server does not stream its answers"}
    )
    said = settle_rate(level, summary, has_slo=True).sentence
    assert said.startswith("ttft_p95 has no sample, as the server does not stream") and "longer" not in said


@pytest.mark.parametrize(
    ("chosen", "end"),
    [(True, "(ttft_p95); try a lower --rate."), (False, "(ttft_p95).")],
    ids=["a rate that was chosen", "a trace"],
)
def test_a_lower_rate_is_asked_for_where_there_is_one(chosen: bool, end: str) -> None:
    slo = parse_slo(["ttft_p95=20ms"])
    summary = step(slo)
    assert settle_rate(judge(summary, slo), summary, has_slo=True, chosen=chosen).sentence.endswith(end)


@pytest.mark.parametrize(
    ("late_ms", "ttft_factor", "late"),
    [(0, 1, False), (9, 1, False), (11, 1, True), (11, 10, False), (49, 10, False), (51, 10, True)],
)
def test_late_is_beyond_10_ms_and_a_tenth_of_the_ttft(late_ms: int, ttft_factor: int, late: bool) -> None:
    summary = step(Slo(), late_us=late_ms * 1000)
    ttft = summary.latency["ttft"]
    scaled = dataclasses.replace(
        ttft, percentiles=tuple(dataclasses.replace(p, value=p.value * ttft_factor) for p in ttft.percentiles)
    )
    summary = dataclasses.replace(summary, latency={**summary.latency, "ttft": scaled})
    assert (sent_late(summary) is not None) == late
    closed = dataclasses.replace(summary, rate=None)
    assert sent_late(closed) is None


@given(
    rate=st.floats(0.1, 1000),
    request_s=st.floats(0.001, 60),
    length=st.tuples(st.none() | st.integers(1, 10_000), st.none() | st.floats(1, 600)).filter(lambda x: None in x),
    warmup=st.none() | st.integers(0, 100),
)
def test_the_forecast_has_room_for_a_server_that_keeps_up(
    rate: float, request_s: float, length: tuple[int | None, float | None], warmup: int | None
) -> None:
    rule = step_rule("normal", Slo(), requests=length[0], duration=length[1])
    said = rate_forecast(rate, rule, warmup=warmup, tokens_per_request=7, drain_s=30.0, request_s=request_s)
    window = length[1] or (length[0] / rate if length[0] else rule.seconds_max)
    warm = rate_warmup_s(request_s) if warmup is None else warmup / rate + request_s
    assert said.seconds >= warm + window + request_s
    assert said.requests >= math.floor(rate * (warm + window + request_s))
    assert said.tokens == 7 * said.requests
    assert said.describe().startswith(f"{rate:,g} requests/s; at most ")
