from __future__ import annotations

import json
import math
from typing import Any

import pytest

from loadgen.analysis import summarise_run
from loadgen.log.codec import encode
from loadgen.log.columns import columns
from loadgen.records import Record
from loadgen.report.facts import RunFacts
from loadgen.report.jsonout import UNITS, report_object
from loadgen.report.text import Mark
from loadgen.results import Slo, Stop
from loadgen.slo import parse_slo
from tests.report.summaries import record, run_records

SLO = parse_slo(["ttft_p95=100ms", "tpot=50ms"])


def as_json(records: list[Record], slo: Slo = SLO, stop: Stop | None = None) -> dict[str, Any]:
    summaries = summarise_run(columns(records), slo)
    data = encode(report_object(RunFacts("x", requests=len(records)), summaries, {1: Mark("pass")}, stop, slo))
    found: dict[str, Any] = json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    return found


def test_the_keys_are_those_of_vllm_bench_serve() -> None:
    records, _ = run_records((8,))
    step = as_json(records)["steps"][0]
    expected = {"completed", "failed", "duration", "total_input_tokens", "total_output_tokens", "request_throughput"}
    expected |= {"output_throughput", "total_token_throughput", "request_goodput", "max_concurrency"}
    for metric in ("ttft", "tpot", "itl", "e2el"):
        expected |= {f"{kind}_{metric}_ms" for kind in ("mean", "median", "std", "p95", "p99")}
    assert expected <= set(step)
    assert all(step[key] is not None for key in expected)
    assert step["completed"] == len(records) and step["total_output_tokens"] == 20 * len(records)
    assert step["max_concurrency"] == 8 and step["verdict"] == "pass"


def test_the_figures_are_those_of_a_script() -> None:
    records, _ = run_records((8,))
    step = as_json(records)["steps"][0]
    ttft = sorted(((r.first_token_ns or 0) - (r.sent_ns or 0)) / 1e6 for r in records)
    assert step["mean_ttft_ms"] == pytest.approx(math.fsum(ttft) / len(ttft))
    at = 0.95 * (len(ttft) - 1)
    low = ttft[int(at)]
    assert step["p95_ttft_ms"] == pytest.approx(low + (at - int(at)) * (ttft[int(at) + 1] - low))


def test_every_key_of_ours_has_its_unit_and_the_others_are_in_the_table() -> None:
    records, _ = run_records((8,))
    step = as_json(records)["steps"][0]
    units = ("_ms", "_ns", "_s", "_tokens", "_requests", "_share", "_residual")
    bare = {"step", "verdict", "broke", "not_established", "sent", "judged", "outcomes", "flags", "errors", "ended"}
    bare |= {
        "objectives",
        "estimated_itl",
        "client",
        "client_limit",
        "workers",
        "retries",
        "by_model",
        "by_peer",
        "by_turn",
        "cache",
        "sessions",
        "bursts",
        "server",
        "unsteady",
    }
    for key, value in step.items():
        assert key in UNITS or key.endswith(units) or key in bare, (key, value)


@pytest.mark.parametrize("kind", ["none", "failed", "one"])
def test_what_was_not_measured_is_null(kind: str) -> None:
    records = [record("a", 1, 1, 0, 1000, 1000)]
    if kind == "failed":
        records = [r for r in run_records((64,))[0] if r.outcome == "error"]
    found = as_json([] if kind == "none" else records, stop=Stop("errors", None, None, None, "nothing held"))
    assert found["answer"]["held"] is None and found["answer"]["sentence"] == "nothing held"
    if kind == "none":
        assert found["steps"] == []
    if kind == "failed":
        step = found["steps"][0]
        assert step["p95_ttft_ms"] is None and step["output_throughput"] is None and step["failed"] == 64
        assert step["errors"][0]["count"] == 64
    if kind == "one":
        assert "p95_ttft_ms" in found["steps"][0]["not_established"]


def test_a_step_that_this_client_shaped_is_on_no_front() -> None:
    summaries = summarise_run(columns(run_records((1, 8))[0]), SLO)
    for verdicts, fronts in ((("pass", "pass"), [True, True]), (("pass", "invalid"), [True, False])):
        marks = {s.step: Mark(verdict) for s, verdict in zip(summaries, verdicts, strict=True)}
        found = report_object(RunFacts("x"), summaries, marks, None, SLO)
        assert [point["front"] for point in found["pareto"]] == fronts


def test_the_slo_is_stated() -> None:
    found = as_json([record("a", 1, 1, 0, 1000, 1000)])
    assert found["slo"]["objectives"][0] == {"metric": "ttft", "percentile": 95.0, "limit_ms": 100.0}
    assert as_json([], Slo())["slo"] is None
