"""How other tools count: each reproduces its own summary from its own log, and a hand-made run tells them apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loadgen.analysis.conventions import TOOLS, Counted, counted
from loadgen.log.columns import columns
from loadgen.log.store import open_run
from loadgen.records import Events, InputTokens, OutputTokens, Record
from tests.log.foreign.foreign_logs import FILES, SUMMARY, placed, unpacked
from tests.log.record_strategies import MS, answered


def own(tool: str, folder: Path) -> Counted:
    """The tool's log as the tool counts it."""
    run = open_run(placed(tool, folder))
    assert run.foreign is not None
    return counted(tool, columns(run.records()), 1, run.foreign.durations_s.get(1))


def of(found: Counted, metric: str) -> tuple[float, float, float]:
    figure = next(f for f in found.figures if f.metric == metric)
    assert figure.mean is not None and figure.median is not None and figure.p99 is not None
    return figure.mean, figure.median, figure.p99


DIGITS = 0.00501  # the tools print two decimals


def test_vllm_gets_its_own_summary(tmp_path: Path) -> None:
    said, found = json.loads(unpacked(FILES["vllm"])), own("vllm", tmp_path)
    for metric, name in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", "e2el")):
        expected = [said[f"{kind}_{name}_ms"] for kind in ("mean", "median", "p99")]
        assert of(found, metric) == pytest.approx(expected, abs=DIGITS)
        figure = next(f for f in found.figures if f.metric == metric)
        assert figure.std == pytest.approx(said[f"std_{name}_ms"], abs=DIGITS)
    assert found.output_throughput == pytest.approx(said["output_throughput"], abs=DIGITS)
    assert found.total_throughput == pytest.approx(said["total_token_throughput"], abs=DIGITS)
    assert found.request_throughput == pytest.approx(said["request_throughput"], abs=DIGITS)
    assert (found.completed, found.failed) == (said["completed"], said["failed"])


def test_sglang_gets_its_own_summary(tmp_path: Path) -> None:
    """Its end of a request, some µs after the last token, is not in its log."""
    said, found = json.loads(unpacked(FILES["sglang"])), own("sglang", tmp_path)
    for metric, name in (("ttft", "ttft"), ("itl", "itl"), ("tpot", "tpot")):
        expected = [said[f"{kind}_{name}_ms"] for kind in ("mean", "median", "p99")]
        assert of(found, metric) == pytest.approx(expected, abs=DIGITS)
    assert of(found, "e2e")[0] == pytest.approx(said["mean_e2e_latency_ms"], abs=0.01)
    assert round(of(found, "e2e")[0], 2) == round(said["mean_e2e_latency_ms"], 2)
    assert found.output_throughput == pytest.approx(said["output_throughput"], abs=DIGITS)
    assert found.total_throughput == pytest.approx(said["total_throughput"], abs=DIGITS)


def test_aiperf_gets_its_own_summary(tmp_path: Path) -> None:
    said, found = json.loads(unpacked(SUMMARY)), own("aiperf", tmp_path)
    names = (
        ("ttft", "time_to_first_token"),
        ("tpot", "inter_token_latency"),
        ("itl", "inter_chunk_latency"),
        ("e2e", "request_latency"),
    )
    for metric, name in names:
        expected = [said[name][kind] for kind in ("avg", "p50", "p99")]
        assert of(found, metric) == pytest.approx(expected, abs=DIGITS)
    assert found.output_throughput == pytest.approx(said["output_token_throughput"]["avg"], abs=DIGITS)
    assert found.total_throughput == pytest.approx(said["total_token_throughput"]["avg"], abs=DIGITS)
    assert found.request_throughput == pytest.approx(said["request_throughput"]["avg"], abs=DIGITS)


def test_aiperf_takes_the_span_of_its_requests_where_no_summary_lies_beside(tmp_path: Path) -> None:
    run = open_run(placed("aiperf", tmp_path, summary=False))
    found = counted("aiperf", columns(run.records()), 1)
    assert found.duration_s == pytest.approx(json.loads(unpacked(SUMMARY))["benchmark_duration"]["avg"], abs=1e-6)


def test_guidellm_gets_its_own_summary(tmp_path: Path) -> None:
    said, found = json.loads(unpacked(FILES["guidellm"]))["benchmarks"][0]["metrics"], own("guidellm", tmp_path)
    names = (
        ("ttft", "time_to_first_token_ms", 1),
        ("tpot", "time_per_output_token_ms", 1),
        ("itl", "inter_token_latency_ms", 1),
        ("e2e", "request_latency", 1000),
    )
    for metric, name, unit in names:
        summary = said[name]["successful"]
        expected = [unit * x for x in (summary["mean"], summary["median"], summary["percentiles"]["p99"])]
        assert of(found, metric) == pytest.approx(expected, abs=DIGITS)
        assert next(f.n for f in found.figures if f.metric == metric) == summary["count"]
    assert found.output_throughput == pytest.approx(said["output_tokens_per_second"]["successful"]["mean"], abs=DIGITS)
    assert found.request_throughput == pytest.approx(said["requests_per_second"]["successful"]["mean"], abs=DIGITS)


def test_inference_perf_gets_what_its_formulas_make_of_its_events(tmp_path: Path) -> None:
    """Its summary is not in the file: its formulas are written out here."""
    rows, found = json.loads(unpacked(FILES["inference-perf"])), own("inference-perf", tmp_path)
    answers = [(row, row["info"]["response_metrics"]["output_token_times"]) for row in rows]
    tokens = [row["info"]["response_metrics"]["output_tokens"] for row in rows]
    ttft = [1000 * (t[0] - row["start_time"]) for row, t in answers]
    tpot = [1000 * (t[-1] - t[0]) / (n - 1) for (_, t), n in zip(answers, tokens, strict=True)]
    e2e = [1000 * (row["end_time"] - row["start_time"]) for row in rows]
    span = max(row["end_time"] for row in rows) - min(row["start_time"] for row in rows)
    for metric, values in (("ttft", ttft), ("tpot", tpot), ("e2e", e2e)):
        expected = [np.mean(values), np.median(values), np.percentile(values, 99)]
        assert of(found, metric) == pytest.approx(expected, abs=DIGITS)
    assert of(found, "itl")[0] == pytest.approx(
        np.mean(np.concatenate([1000 * np.diff(t) for _, t in answers])), abs=1e-4
    )
    assert found.output_throughput == pytest.approx(sum(tokens) / span, abs=DIGITS)


# --- one answer, five ways of counting ------------------------------------------------------------------------------

ANSWER = replace(
    answered(
        *(0, 100, 400, 450),
        tokens=InputTokens(asked=10, local=11, server=12),
        count=4,
        events=Events([100_000, 100_000, 200_000], [1, 1, 2]),
    ),
    first_byte_ns=90 * MS,
    first_content_ns=100 * MS,
    first_event_tokens=1,
)
MEANS = {  # ttft, tpot, itl, e2e; output tokens/s, tokens/s in and out
    "vllm": (100, 300 / 3, 150, 400, 4 / 0.45, 16 / 0.45),
    "sglang": (100, 350 / 3, 150, 450, 4 / 0.45, 16 / 0.45),
    "guidellm": (100, 400 / 4, 300 / 3, 450, 4 / 0.45, 16 / 0.45),
    "aiperf": (100, 300 / 3, 150, 400, 4 / 0.4, 15 / 0.4),
    "inference-perf": (100, 300 / 3, 300 / 3, 450, 4 / 0.45, 15 / 0.45),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_one_answer_is_counted_five_ways(tool: str) -> None:
    found = counted(tool, columns([ANSWER]), 1)
    means = [of(found, metric)[0] for metric in ("ttft", "tpot", "itl", "e2e")]
    assert (*means, found.output_throughput, found.total_throughput) == pytest.approx(MEANS[tool])
    assert (found.completed, found.failed) == (1, 0)


def test_only_aiperf_knows_how_many_tokens_came_first() -> None:
    table = columns([replace(ANSWER, first_event_tokens=3)])
    tpot = {tool: of(counted(tool, table, 1), "tpot")[0] for tool in TOOLS}
    assert tpot == pytest.approx({**{tool: MEANS[tool][1] for tool in TOOLS}, "aiperf": 300})


def test_aiperf_does_not_believe_a_first_chunk_that_holds_everything() -> None:
    table = columns([replace(ANSWER, first_event_tokens=4)])
    assert of(counted("aiperf", table, 1), "tpot")[0] == pytest.approx(300 / 3)


def test_a_request_counts_in_guidellm_as_often_as_it_has_tokens() -> None:
    slow = replace(ANSWER, id="b", last_token_ns=700 * MS, output_tokens=OutputTokens(count=2), events=None)
    found = counted("guidellm", columns([ANSWER, slow]), 1)
    assert of(found, "tpot")[0] == pytest.approx((4 * 100 + 2 * 350) / 6)
    assert of(found, "itl")[0] == pytest.approx((3 * 100 + 1 * 600) / 4)


@pytest.mark.parametrize("tool", TOOLS)
def test_which_requests_count(tool: str) -> None:
    failed = replace(ANSWER, id="f", outcome="error", first_token_ns=None, last_token_ns=None, events=None)
    unended, cut = replace(ANSWER, id="u", outcome="incomplete"), replace(ANSWER, id="c", outcome="cut")
    warm, other = replace(ANSWER, id="w", phase="warmup"), replace(ANSWER, id="o", step=2)
    found = counted(tool, columns([ANSWER, failed, unended, cut, warm, other]), 1)
    assert (found.completed, found.failed) == (2, 1)


@pytest.mark.parametrize("tool", TOOLS)
def test_what_a_log_does_not_tell_is_not_made_up(tool: str) -> None:
    bare = replace(
        ANSWER,
        input_tokens=InputTokens(),
        output_tokens=OutputTokens(),
        events=None,
        first_event_tokens=None,
        flags=("untimed",),
    )
    found = counted(tool, columns([bare]), 1)
    assert found.duration_s is found.output_throughput is found.total_throughput is found.request_throughput is None
    assert {f.metric for f in found.figures if f.mean is None} >= {"tpot", "itl"}
    nothing = counted(tool, columns([]), 1)
    assert nothing.completed == 0 and all(f.n == 0 and f.mean is None for f in nothing.figures)


def test_a_usage_that_grows_before_the_text_is_no_gap_of_vllm() -> None:
    early = replace(ANSWER, events=Events([60_000, 40_000, 100_000, 200_000], [1, 1, 1, 1]))
    assert of(counted("vllm", columns([early]), 1), "itl")[0] == pytest.approx(150)


def test_an_answer_of_one_token_has_no_time_per_token() -> None:
    one = replace(ANSWER, output_tokens=OutputTokens(count=1), last_token_ns=100 * MS, events=Events([100_000], [1]))
    for tool in ("vllm", "aiperf", "inference-perf"):
        assert next(f.n for f in counted(tool, columns([one]), 1).figures if f.metric == "tpot") == 0
    assert of(counted("guidellm", columns([one]), 1), "tpot")[0] == pytest.approx(100)
    assert next(f.n for f in counted("inference-perf", columns([one]), 1).figures if f.metric == "ttft") == 0


def rows(n: int) -> list[Record]:
    return [replace(ANSWER, id=str(i), first_token_ns=(100 + i) * MS) for i in range(n)]


def test_percentiles_lie_between_two_values_or_on_one() -> None:
    table = columns(rows(4))
    assert of(counted("vllm", table, 1), "ttft")[1] == pytest.approx(101.5)
    assert of(counted("guidellm", table, 1), "ttft")[1] == pytest.approx(101)
