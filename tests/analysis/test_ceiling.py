"""A run beside the hardware's ceilings: shares by hand, what ran out, replicas and cost."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis import summarise_run
from loadgen.analysis.capacity import decode_floor, prefill_floor_s
from loadgen.analysis.ceiling import Ceilings, ceilings
from loadgen.hardware.deployment import Deployment, cache
from loadgen.hardware.gpus import gpu_named
from loadgen.hardware.named import model_named
from loadgen.log.columns import columns
from loadgen.report.ceiling import ceiling_lines
from loadgen.results import Distribution, Estimate, Percentile, ServerView, Slo, StepSummary
from tests.report.summaries import run_records

MODEL = model_named("llama-3.1-8b")
ON = Deployment(gpu_named("h100"))


@functools.cache
def _like() -> StepSummary:
    records, observations = run_records((1,))
    return summarise_run(columns(records), Slo(), observations)[0]


def _latency(value: float) -> Distribution:
    q = Percentile(50.0, value, None, None, 100, 100.0, True)
    return Distribution(100, Estimate(value), 0.0, value, (q,))


def level(load: int, tpot_ms: float, ttft_ms: float, rate: float, server: ServerView | None = None) -> StepSummary:
    return replace(
        _like(),
        step=load,
        concurrency=load,
        rate=None,
        input_tokens_mean=1000.0,
        output_tokens_mean=100.0,
        output_throughput=Estimate(100 * rate, 99 * rate, 101 * rate),
        request_throughput=Estimate(rate, 0.95 * rate, 1.05 * rate),
        completion_rate=None,
        concurrency_mean=float(load),
        latency={"tpot": _latency(tpot_ms), "ttft": _latency(ttft_ms)},
        server=server,
        cache=None,
    )


def beside(*steps: StepSummary, verdicts: dict[int, str] | None = None, slo: bool = False) -> Ceilings:
    found = ceilings(MODEL, ON, steps, verdicts or {}, has_slo=slo)
    assert found is not None
    return found


def test_shares_are_floors_over_what_was_measured() -> None:
    (one,) = beside(level(16, 12.0, 40.0, 10.0)).levels
    floor = decode_floor(MODEL, ON, 16, 1050.0)
    assert one.decode_share == pytest.approx(floor.tpot_s * 1e3 / 12.0)
    assert one.prefill_share == pytest.approx(prefill_floor_s(MODEL, ON, 1000.0) * 1e3 / 40.0)
    flops = 10.0 * (MODEL.prefill_flops(1000.0) + 99 * MODEL.decode_flops(1050.0))
    assert one.flops_share == pytest.approx(flops / ON.gpu.peak_16)
    assert one.kv_expected == pytest.approx(16 * 1050 / cache(MODEL, ON).tokens)


def test_a_cached_share_takes_its_flops_away() -> None:
    from loadgen.results import CacheShare

    plain = level(1, 7.0, 40.0, 2.0)
    (one,), (half,) = beside(plain).levels, beside(replace(plain, cache=CacheShare(seen=0.5))).levels
    assert half.ttft_floor_ms < 0.55 * one.ttft_floor_ms


def test_what_ran_out_first() -> None:
    busy = ServerView(scrapes=9, failed=0, running=16.0, waiting=0.0, kv_use_share=0.3, kv_use_peak_share=0.4)
    assert beside(level(4, 50.0, 40.0, 1.0)).ran_out is None
    found = beside(
        level(16, 50.0, 40.0, 1.0, busy), level(32, 50.0, 400.0, 1.0, replace(busy, running=16.2, waiting=15.8))
    ).ran_out
    assert found is not None and (found.resource, found.load) == ("places in the batch", 32)
    full = replace(busy, kv_use_peak_share=0.99)
    found = beside(level(16, 50.0, 40.0, 1.0, busy), level(32, 60.0, 400.0, 1.0, full)).ran_out
    assert found is not None and (found.resource, found.load) == ("KV memory", 32)
    found = beside(level(16, 50.0, 40.0, 1.0, replace(busy, preemptions=3.0))).ran_out
    assert found is not None and found.resource == "KV memory" and "3 preemptions" in found.evidence


def test_where_throughput_stops_growing_the_nearer_ceiling_is_named() -> None:
    slow = level(8, 8.0, 40.0, 9.0), level(16, 16.0, 60.0, 9.2)
    found = beside(*slow).ran_out  # a step of 16 and its prompts: 5.3 + 2.2 ms of 16
    assert found is not None and (found.resource, found.load) == ("nothing of the hardware", 16)
    found = beside(level(8, 6.0, 40.0, 9.0), level(16, 9.0, 60.0, 9.2)).ran_out
    assert found is not None and (found.resource, found.load) == ("bandwidth", 16)
    found = beside(level(64, 20.0, 40.0, 30.0), level(128, 30.0, 60.0, 31.0)).ran_out
    assert found is not None and found.resource == "FLOPs"
    assert beside(level(8, 6.0, 40.0, 9.0), level(16, 6.5, 60.0, 17.0)).ran_out is None


def test_replicas_and_cost_are_of_the_highest_load_that_holds() -> None:
    steps = level(8, 8.0, 40.0, 10.0), level(16, 9.0, 60.0, 18.0), level(32, 30.0, 900.0, 25.0)
    found = beside(*steps, verdicts={8: "pass", 16: "pass", 32: "fail"}, slo=True)
    assert found.best is not None and found.best.load == 16
    assert found.each == pytest.approx(0.95 * 18)
    assert found.replicas(40) == math.ceil(40 / (0.95 * 18)) and found.replicas(17.0) == 1
    assert found.cost(3.6) == pytest.approx(3.6 / 3600 / 1800 * 1e6)
    without = beside(*steps)
    assert without.best is not None and without.best.load == 32
    none = beside(*steps, verdicts={8: "fail", 16: "fail", 32: "fail"}, slo=True)
    assert none.best is None and none.replicas(40) is None and none.cost(1.0) is None and none.doubled == ()


def test_the_kv_limit_is_told_or_implied() -> None:
    told = ServerView(scrapes=9, failed=0, running=16.0, kv_use_share=0.05, kv_tokens=440_000.0)
    found = beside(level(16, 9.0, 40.0, 10.0, told))
    assert (found.kv_measured, found.kv_source) == (440_000.0, "told by the server")
    implied = beside(level(16, 9.0, 40.0, 10.0, replace(told, kv_tokens=None)))
    assert implied.kv_measured == pytest.approx(16 * 1050 / 0.05)
    assert beside(level(16, 9.0, 40.0, 10.0)).kv_measured is None


@given(tpot=st.floats(6.0, 200.0), ttft=st.floats(20.0, 5000.0), load=st.integers(1, 128), rate=st.floats(0.5, 50.0))
def test_doubling_helps_or_does_nothing_and_never_more_than_twice(
    tpot: float, ttft: float, load: int, rate: float
) -> None:
    for one in beside(level(load, tpot, ttft, rate)).doubled:
        assert 0.5 < one.ratio <= 2.0 + 1e-9, one
        if one.resource in ("bandwidth", "FLOPs"):
            assert one.ratio >= 1.0 - 1e-9


def test_a_run_of_failures_alone_says_nothing() -> None:
    nothing = replace(level(1, 7.0, 40.0, 2.0), input_tokens_mean=None, output_tokens_mean=None)
    assert ceilings(MODEL, ON, [nothing], {}, has_slo=False) is None
    assert ceilings(MODEL, ON, [], {}, has_slo=False) is None


@given(st.floats(0.01, 1e4), st.floats(1.0, 400.0), st.floats(1.0, 1e5))
def test_on_another_machine_than_the_one_told_no_doubling_makes_it_worse_than_nothing(
    ttft_ms: float, outputs: float, inputs: float
) -> None:
    one = replace(level(16, 0.5, ttft_ms, 10.0), input_tokens_mean=inputs, output_tokens_mean=outputs)
    ratios = {d.resource: d.ratio for d in beside(one).doubled}
    assert all(ratio > 0 for ratio in ratios.values())
    assert ratios["bandwidth"] >= 1 - 1e-9
    assert ratios["FLOPs"] >= 1 - 1e-9


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_ceilings_fit_the_screen_and_keep_their_columns(width: int) -> None:
    lines = ceiling_lines(beside(level(16, 12.0, 40.0, 10.0)), "run", [25.0], width=width)
    assert max(map(len, lines)) <= width
    head, row = (line.split("  ") for line in lines[2:4])
    assert len([cell for cell in head if cell]) == len([cell for cell in row if cell])
    assert {"load", "tok/s", "TPOT p50", "TTFT p50", "decode"} <= {cell.strip() for cell in head}


def test_a_rate_without_an_interval_is_not_called_proven() -> None:
    sure, unsure = level(16, 12.0, 40.0, 10.0), replace(level(16, 12.0, 40.0, 10.0), request_throughput=Estimate(10.0))
    told = ["\n".join(ceiling_lines(beside(one), "run", [25.0])) for one in (sure, unsure)]
    assert ["proven" in text for text in told] == [True, False]
    assert all("10" in text for text in told)
