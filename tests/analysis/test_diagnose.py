"""Planted causes come first, healthy runs are left alone, and no log, however damaged, is too much."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.diagnose import diagnosed, measured
from benchmarks.planted import Planted, Prompts, Way
from loadgen.analysis import summarise_run
from loadgen.analysis.diagnose import CAUSES, Diagnosis, Finding, Measured, diagnose
from loadgen.analysis.diagnose.finding import ordered
from loadgen.analysis.diagnose.levels import least_squares
from loadgen.analysis.diagnose.parallel import tensor_parallel
from loadgen.analysis.diagnose.stalls import overlaps
from loadgen.analysis.window import is_phase
from loadgen.errors import Failure
from loadgen.log.columns import NULL, columns
from loadgen.records import OUTCOMES, Record
from loadgen.results import ClientLimit, Estimate, ObjectiveCheck, Slo, StepSummary
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.presets import machine_named, served
from loadgen.slo import parse_slo
from tests.report.chinese import prose, said_of
from tests.thorough import examples

from .record_samples import steps

PLAIN = EngineConfig(step_ms=20, decode_ms=0.1, prefill_ms=0.03, overhead_ms=5, max_batch=256)
SHORT = Prompts(200, 24)
CACHING = replace(PLAIN, prefix_cache=True)
LEVELS = (1.0, 8.0)
TP = {
    tp: replace(served(replace(machine_named("llama-3.1-8b", "h100", tp), link_latency_us=90)), prefix_cache=False)
    for tp in (1, 8)
}


def planted(cause: str, engine: EngineConfig = PLAIN, prompts: Prompts = SHORT, **more: object) -> Planted:
    values: dict[str, object] = {"levels": LEVELS, "requests": 40, "metrics": False, **more}
    return Planted(cause, engine, prompts, **values)  # type: ignore[arg-type]


SCENARIOS = [
    planted("prefill_bound", prompts=Prompts(3000, 12)),
    planted("queueing", replace(PLAIN, max_batch=4), levels=(1.0, 12.0)),
    planted("batch_limit", replace(PLAIN, max_batch=4), levels=(1.0, 12.0), metrics=True),
    planted("decode_bound", replace(PLAIN, decode_ms=2.0)),
    planted("kv_exhausted", replace(PLAIN, kv_blocks=90), levels=(1.0, 16.0), metrics=True),
    planted("kv_exhausted", replace(PLAIN, kv_blocks=40), Prompts(60, 60, 0.5), levels=(1.0, 24.0), requests=80),
    planted("admission_limit", way=Way(gate=3), levels=(1.0, 12.0), metrics=True),
    planted("admission_limit", way=Way(refuse=3), levels=(1.0, 8.0)),
    planted("overload", replace(PLAIN, max_batch=4), levels=(1.0, 20.0), rates=True, requests=200),
    planted("long_prompts", prompts=Prompts(200, 40, 0.3, 0.1, 6000), levels=(1.0, 6.0), requests=80),
    planted("speculation", replace(PLAIN, speculate=3)),
    planted("speculation", way=Way(chunk=4)),
    planted("prefix_cache", CACHING, Prompts(200, 24, prefix=320), usage=True),
    planted("prefix_cache_contaminated", CACHING, Prompts(200, 24, prefix=320, told=False), usage=True),
    planted("network", way=Way(rtt_ms=120)),
    planted("buffering_proxy", way=Way(flush_ms=160)),
    planted("gateway_limit", way=Way(cut_s=0.55), prompts=Prompts(200, 26, 0.4)),
    planted("gateway_limit", way=Way(rate_limit=4)),
    planted("short_outputs", asked=2.0),
    planted("requests_failing", way=Way(fail=0.2)),
    planted("client_bound", way=Way(late_ms=15)),
    replace(
        planted("communication", TP[1], describe={"tp": "1"}),
        second=planted("communication", TP[8], describe={"tp": "8"}),
    ),
]


@pytest.mark.parametrize("one", SCENARIOS, ids=[f"{i}-{one.cause}" for i, one in enumerate(SCENARIOS)])
def test_the_planted_cause_comes_first(one: Planted) -> None:
    found = diagnosed(one, seed=11)
    assert found.first is not None
    assert found.first.cause == one.cause, [finding.cause for finding in found.findings]
    assert found.first.facts
    assert found.first.change
    assert prose(said_of(found), data=["internal server error"]) == []


@pytest.mark.parametrize("metrics", [False, True])
def test_a_healthy_server_is_left_alone(metrics: bool) -> None:
    found = diagnosed(planted("healthy", metrics=metrics, usage=metrics), seed=3)
    assert found.findings == ()
    assert not found.failed
    assert found.levels == 2


@pytest.mark.parametrize("sigma", [0.0, 0.3])
@pytest.mark.parametrize(("prefill_ms", "causes"), [(0.0, []), (0.3, ["prefill_bound"])])
def test_prompts_take_the_time_of_answers_of_one_token_only_where_ttft_grows(
    sigma: float, prefill_ms: float, causes: list[str]
) -> None:
    engine = replace(PLAIN, decode_ms=0.0, prefill_ms=prefill_ms)
    found = measured(planted("healthy", engine, Prompts(200, 2, sigma), levels=(2.0, 4.0, 8.0)), seed=3)
    first = found.columns.first_token_ns
    one = np.ones_like(first)
    table = replace(found.columns, output_count=one, output_asked=one, last_token_ns=first)
    said = diagnose(replace(found, columns=table, summaries=summarise_run(table, Slo())))
    assert [finding.cause for finding in said.findings] == causes


def test_what_is_wrong_without_a_cause_is_said_to_be_so() -> None:
    said = diagnosed(planted("healthy", levels=(2.0, 8.0), objectives=("e2e_p50=1ms",)), seed=3)
    assert [finding.cause for finding in said.findings] == ["unidentified"]
    assert prose(said_of(said)) == []
    assert not said.failed
    assert said.checks[0].good is False


@pytest.mark.parametrize(
    ("limit", "shaped", "said", "good"),
    [
        ("1s", (), " · held at 1, 8", True),
        ("1s", (1,), " · held at 8", True),
        ("1s", (1, 2), " · undecided", None),
        ("1ms", (2,), " · broken at 1 (e2e_p50)", False),
        ("1ms", (1, 2), " · undecided", None),
    ],
)
def test_steps_that_the_client_shaped_hold_and_break_nothing(
    limit: str, shaped: tuple[int, ...], said: str, good: bool | None
) -> None:
    found = measured(planted("healthy"), seed=3)
    slo = parse_slo([f"e2e_p50={limit}"])
    ours = ClientLimit("the reading thread had no CPU", "give it one")
    again = [replace(s, client_limit=ours if s.step in shaped else None) for s in summarise_run(found.columns, slo)]
    check = diagnose(replace(found, summaries=again, slo=slo)).checks[0]
    assert (check.text, check.good) == (f"e2e_p50={limit}{said}", good)


@pytest.mark.parametrize(
    ("objective", "levels", "causes"),
    [
        ("ttft_p95=5ms", (1.0,), ["out_of_reach"]),
        ("ttft=5ms", (1.0, 8.0), ["out_of_reach"]),
        ("e2e_p50=1ms", (1.0, 8.0), ["out_of_reach"]),
        ("tpot_p95=1ms", (1.0,), ["out_of_reach"]),
        ("ttft_p95=5s", (1.0, 8.0), []),
        ("ttft_p95=5ms", (2.0, 8.0), ["unidentified"]),
    ],
)
@pytest.mark.parametrize("metrics", [False, True])
def test_no_load_meets_what_a_request_alone_does_not(
    objective: str, levels: tuple[float, ...], causes: list[str], metrics: bool
) -> None:
    said = diagnosed(planted("healthy", levels=levels, metrics=metrics, objectives=(objective,)), seed=3)
    assert [finding.cause for finding in said.findings] == causes
    if causes == ["out_of_reach"] and said.first is not None:
        assert f"no load can meet {objective}" in said.first.sentence
        told = [fact.what for fact in said.first.facts]
        assert ("mean time of the prefill, by the server" in told) == (metrics and "ttft" in objective)
        assert ("median TTFT of a request alone" in told) == ("e2e" in objective)


def test_the_server_says_on_which_side_of_its_door_requests_wait() -> None:
    gate = planted("admission_limit", way=Way(gate=4), levels=(1.0, 12.0))
    batch = planted("batch_limit", replace(PLAIN, max_batch=4), levels=(1.0, 12.0))
    untold = [diagnosed(one, seed=5).first for one in (gate, batch)]
    told = [diagnosed(replace(one, metrics=True), seed=5).first for one in (gate, batch)]
    assert [f.cause for f in untold if f] == ["queueing", "queueing"]
    assert [f.cause for f in told if f] == ["admission_limit", "batch_limit"]


def test_timeouts_at_the_higher_load_alone_are_overload() -> None:
    found = measured(planted("healthy"), seed=3)
    table = found.columns
    late = (table.step == 2) & (np.arange(len(table)) % 3 == 0)
    outcome = np.where(late, OUTCOMES.index("timeout"), table.outcome).astype(table.outcome.dtype)
    table = replace(table, outcome=outcome)
    said = diagnose(replace(found, columns=table, summaries=summarise_run(table, Slo())))
    assert said.first is not None
    assert (said.first.cause, said.first.gravity) == ("overload", "error")


@pytest.mark.parametrize(
    ("failed", "ended", "causes"),
    [(2, "complete", []), (2, "errors", ["requests_failing"]), (12, "complete", ["requests_failing"])],
)
def test_failures_of_one_load_are_not_thinned_out_by_the_loads_below(
    failed: int, ended: str, causes: list[str]
) -> None:
    found = measured(planted("healthy"), seed=3)
    table = found.columns
    last = np.flatnonzero((table.step == 2) & is_phase(table, "measured"))[-failed:]
    outcome = table.outcome.copy()
    outcome[last] = OUTCOMES.index("error")
    table = replace(table, outcome=outcome)
    *below, top = summarise_run(table, Slo())
    allowing = {**found.manifest, "plan": {"max_error_rate": 0.15}}
    said = diagnose(replace(found, columns=table, summaries=[*below, replace(top, ended=ended)], manifest=allowing))
    assert failed / len(table) < 0.15
    assert [(finding.cause, finding.steps) for finding in said.findings] == [(cause, (2,)) for cause in causes]


@pytest.mark.parametrize(
    ("verdicts", "most"),
    [
        ((), 4),
        (("pass", "pass", "pass", "fail"), 4),
        (("pass", "pass", "inconclusive", "fail"), 2),
        (("pass", "pass", "fail", "fail"), 2),
        (("pass", "fail", "pass", "fail"), 1),
        (("inconclusive", "inconclusive", "inconclusive", "inconclusive"), 4),
        (("inconclusive", "inconclusive", "fail", "fail"), 2),
        (("fail", "fail", "fail", "fail"), 1),
    ],
)
def test_no_more_load_is_advised_than_holds_the_objectives(verdicts: tuple[str, ...], most: int) -> None:
    found = measured(planted("healthy", levels=(1.0, 2.0, 4.0, 8.0)), seed=3)
    rates = (100.0, 200.0, 300.0, 150.0)
    steps = [
        replace(s, output_throughput=Estimate(rate, 0.99 * rate, 1.01 * rate))
        for s, rate in zip(found.summaries, rates, strict=True)
    ]
    for i, verdict in enumerate(verdicts):
        check = ObjectiveCheck("ttft_p95", "ttft", 0.05, None, None, 100, verdict)  # type: ignore[arg-type]
        steps[i] = replace(steps[i], objectives=(check,))
    said = next(one for one in diagnose(replace(found, summaries=steps)).findings if one.cause == "overload")
    assert said.change == f"hold no more than {most} in flight"


BUSY, BOOM = Failure("http", "try again", 429), Failure("http", "boom", 500)


def failing(one: Planted, errors: Sequence[Failure], allowed: float = 0.01) -> Diagnosis:
    """A run whose failures are these, by chance."""
    found, rng = measured(one, seed=4), random.Random(4)
    table = found.columns
    table = replace(table, errors=[None if error is None else rng.choice(errors) for error in table.errors])
    manifest = {**found.manifest, "plan": {"max_error_rate": allowed}}
    return diagnose(replace(found, columns=table, summaries=summarise_run(table, Slo()), manifest=manifest))


@pytest.mark.parametrize("errors", [[BUSY], [BUSY, BUSY, BOOM]], ids=["all refused", "some of another kind"])
@pytest.mark.parametrize(("levels", "share"), [((1.0, 2.0, 8.0), 0.4), ((6.0,), 0.4), ((2.0, 12.0), 0.85)])
def test_refusals_by_chance_show_no_limit(errors: list[Failure], levels: tuple[float, ...], share: float) -> None:
    one = planted("requests_failing", way=Way(fail=share), prompts=Prompts(200, 24, 0.3), levels=levels, requests=200)
    found = failing(one, errors, allowed=1.0)
    assert "admission_limit" not in [finding.cause for finding in found.findings]
    first = found.first
    assert first is not None
    assert (first.cause, first.gravity) == ("requests_failing", "warning")
    told = {fact.what: fact.value for fact in first.facts if "refused at" in fact.what}
    assert [name.split(" at ")[1] for name in told] == [f"{level:g} in flight" for level in levels]
    assert list(told.values()) == pytest.approx([share * errors.count(BUSY) / len(errors)] * len(levels), abs=0.15)
    again = failing(one, errors).first
    assert again is not None
    assert again.gravity == "error", "more than is allowed"


def test_a_limit_is_found_beside_failures_of_another_kind() -> None:
    one = planted("admission_limit", way=Way(refuse=3, fail=0.15), levels=(1.0, 2.0, 8.0), requests=200)
    first = diagnosed(one, seed=4).first
    assert first is not None
    assert (first.cause, first.facts[-1].value) == ("admission_limit", 3)


def test_two_runs_that_do_not_tell_their_gpus_are_not_compared() -> None:
    one = planted("communication", TP[1])
    found = diagnosed(replace(one, second=planted("communication", TP[8])), seed=2)
    assert "communication" not in [finding.cause for finding in found.findings]
    assert found.checks[-1].what == "GPUs"
    assert found.checks[-1].good is None


@pytest.mark.parametrize(
    ("manifest", "degree"),
    [
        ({}, None),
        ({"describe": {"tp": "4"}}, 4),
        ({"describe": {"tp": "none"}}, None),
        ({"server": {"flags": {"tensor_parallel_size": 2}}}, 2),
        ({"describe": ["tp"], "server": None, "simulator": {"engine": {"machine": None}}}, None),
        ({"simulator": {"engine": {"machine": {"on": {"tensor_parallel": 8}}}}}, 8),
    ],
)
def test_tensor_parallelism_is_read_from_what_tells_it(manifest: dict[str, object], degree: int | None) -> None:
    assert tensor_parallel(manifest) == degree


def test_a_step_that_the_client_shaped_is_nothing_once_its_load_was_measured_again() -> None:
    found = measured(planted("healthy"), seed=3)
    first, *others = found.summaries
    shaped = replace(first, client_limit=ClientLimit("the reading thread had no CPU", "give it one"))

    def causes(*summaries: StepSummary) -> set[str]:
        return {one.cause for one in diagnose(replace(found, summaries=summaries)).findings}

    assert "client_bound" in causes(shaped, *others)
    assert "client_bound" in causes(shaped, shaped, *others)
    assert "client_bound" not in causes(shaped, replace(first, step=len(others) + 2), *others)


@pytest.mark.parametrize("tokens", [NULL, 0])
def test_tokens_that_are_not_known_do_not_fill_a_cache(tokens: int) -> None:
    found = measured(planted("queueing", replace(PLAIN, max_batch=4), levels=(1.0, 12.0)), seed=3)
    same = np.full(len(found.columns), tokens)
    untold = dict.fromkeys(("input_server", "input_local", "input_asked", "output_count", "output_asked"), same)
    table = replace(found.columns, **untold)
    said = diagnose(replace(found, columns=table, summaries=summarise_run(table, Slo())))
    assert [finding.cause for finding in said.findings] == ["queueing"]


@pytest.mark.parametrize(
    ("gpu", "told"),
    [
        ("h100", "on h100:"),
        ("8xH100", "on 8 × h100:"),
        ("4 × h100-sxm", "on 4 × h100:"),
        ("MI300X", "on mi300x:"),
        ("2xmi300x", "on 2 × mi300x:"),
        ("rtx4090", "on rtx4090:"),
        ("8x", "not told"),
        ("x", "not told"),
    ],
)
def test_a_gpu_is_told_by_name_and_number(gpu: str, told: str) -> None:
    found = measured(planted("healthy"), seed=3)
    described = replace(found, manifest={**found.manifest, "describe": {"model": "llama-3.1-8b", "gpu": gpu}})
    memory = next(check for check in diagnose(described).checks if check.what == "memory")
    assert told in memory.text


@settings(max_examples=examples(20))
@given(steps, st.sampled_from([(), ("ttft_p95=1ms",), ("tpot=1ms", "e2e_p50=30s")]))
def test_no_log_is_too_damaged_to_be_read(records: list[Record], objectives: tuple[str, ...]) -> None:
    slo = parse_slo(list(objectives)) if objectives else Slo()
    table = columns([*records, *(replace(record, step=2, concurrency=9) for record in records)])
    found = diagnose(Measured(summarise_run(table, slo), table, {"describe": {"gpu": 3}, "plan": []}, slo))
    causes = [finding.cause for finding in found.findings]
    assert len(causes) == len(set(causes))
    assert set(causes) <= set(CAUSES)
    assert all(np.isfinite(fact.value) for finding in found.findings for fact in finding.facts)


def test_errors_come_before_the_rest_then_the_order_of_causes() -> None:
    def one(cause: str, gravity: str) -> Finding:
        return Finding(cause, gravity, "high", "", (), "")  # type: ignore[arg-type]

    causes = [*reversed(CAUSES)]
    found = ordered([one(cause, "error" if cause == "decode_bound" else "info") for cause in causes + causes])
    assert [finding.cause for finding in found][:3] == ["decode_bound", "client_bound", "gateway_limit"]
    assert len(found) == len(CAUSES)
    assert Diagnosis((), found, 1).failed


@given(st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 5)), min_size=12, max_size=60))
def test_a_slope_is_that_of_the_points(points: list[tuple[int, int]]) -> None:
    x = np.array([float(a) for a, _ in points])
    fit = least_squares(x, 7 + 0.25 * x)
    if fit is None:
        assert x.std() <= 0.08 * x.mean() or len(np.unique(np.sort(x)[: int(0.95 * len(x))])) < 2
        return
    assert fit.slope == pytest.approx(0.25)
    assert fit.intercept == pytest.approx(7, abs=1e-6)


intervals = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), max_size=12)


@given(intervals, intervals)
def test_overlaps_are_those_found_one_by_one(ours: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> None:
    a, b = (np.array([(s, s + n) for s, n in some], dtype=float).reshape(-1, 2) for some in (ours, theirs))
    slow = [any(begin < end and stop >= start for begin, stop in b) for start, end in a]
    assert overlaps(a[:, 0], a[:, 1], b[:, 0], b[:, 1]).tolist() == slow
