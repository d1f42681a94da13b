from __future__ import annotations

import dataclasses
import re

import pytest

from loadgen.analysis import summarise_run
from loadgen.errors import Failure
from loadgen.log.columns import columns
from loadgen.report.facts import RunFacts, facts_of
from loadgen.report.text import WIDTH, Mark, render, table_head, table_row
from loadgen.results import Slo, StepSummary, Stop
from loadgen.slo import parse_slo
from tests.report.summaries import record, run_records

SLO = parse_slo(["ttft_p95=100ms", "tpot_p95=50ms"])
FACTS = facts_of(
    {
        "target": {"url": "http://gpu1:8000/v1/chat/completions"},
        "server": {"kind": "vllm", "version": "0.32.0", "model": "llama-3.1-8b", "context_length": 131072},
        "workload": {"text": "made text · in 200 · out 20", "seed": 7},
        "clock": {"source": "user"},
    },
    source="results/RUN",
    status="complete",
    requests=2960,
    failed=64,
)
MARKS = {1: Mark("baseline"), 2: Mark("pass"), 3: Mark("fail", ("errors",))}
STOP = Stop("slo:ttft_p95", 8, 64, None, "8 hold, 64 do not (errors).")


@pytest.fixture(scope="module")
def summaries() -> list[StepSummary]:
    records, observations = run_records()
    return summarise_run(columns(records), SLO, observations)


def test_the_screen_says_what_was_measured(summaries: list[StepSummary]) -> None:
    text = render(FACTS, summaries, MARKS, STOP, SLO)
    lines = text.splitlines()
    assert lines[:4] == [
        "target    http://gpu1:8000/v1/chat/completions · vLLM 0.32.0 · llama-3.1-8b · context 131,072",
        "workload  made text · in 200 · out 20 · seed 7",
        "objective ttft_p95=100ms, tpot_p95=50ms",
        "clock     user stamps, taken as each read returns",
    ]
    rows = {line.split()[0]: line for line in lines[6:9]}
    assert set(rows) == {"1", "8", "64"}
    assert rows["64"].split()[-2:] == ["fail", "errors"]
    assert rows["64"].split()[-4:-2] == ["2,496", "64"]  # ok and failed stand side by side
    assert rows["8"].endswith("  0  pass")
    assert "answer    8 hold, 64 do not (errors)." in text
    at = next(line for line in lines if line.lstrip().startswith("at 8: "))
    assert "0 of 320 failed" in at and "output tokens/s" in at
    assert "failed    64 × http 503: the server is [31mbusy now" in lines
    assert any("2,960 requests, 64 failed" in line for line in lines)
    assert "error  " not in text and "cause  " not in text  # nobody measured these here


@pytest.mark.parametrize(
    ("slo", "said"),
    [
        ([], None),
        (["ttft_p95=100ms"], "ttft_p95=100ms"),
        (["ttft_p95=1s", "tpot=50ms", "attainment=90%"], "ttft_p95=1s, tpot=50ms · attainment 90 %"),
    ],
)
def test_the_head_says_what_is_asked_of_the_server(slo: list[str], said: str | None) -> None:
    lines = render(FACTS, [], {}, None, parse_slo(slo) if slo else Slo()).splitlines()
    assert [line for line in lines if line.startswith("objective")] == ([f"objective {said}"] if said else [])


@pytest.mark.parametrize("details", [False, True])
def test_every_line_fits_and_holds_no_control_characters(summaries: list[StepSummary], details: bool) -> None:
    long = dataclasses.replace(FACTS, target="http://host/" + "pre/" * 40, notes=("word " * 60,))
    text = render(long, summaries, MARKS, STOP, SLO, details=details)
    assert "\x1b" not in text
    for line in text.splitlines():
        assert len(line) <= WIDTH or "pre/pre/" in line or "results" in line
        assert line == line.rstrip()


def test_the_table_keeps_its_columns_whatever_the_size(summaries: list[StepSummary]) -> None:
    huge = dataclasses.replace(summaries[1], concurrency=12_345, requests={"ok": 1_234_567}, failed=123_456)
    slo = parse_slo(["ttft_scheduled_p95=1s", "tpot_p95=1", "ttft_p99=3"])
    head, row = table_head(slo), table_row(huge, Mark("fail", ("ttft_scheduled_p95", "tpot_p95", "ttft_p99")), slo)
    assert "p99 [95 %]" in head
    assert len(row) <= WIDTH
    assert "1,234,567" in row.split() and "123,456" in row.split()
    plain = table_row(summaries[1], Mark("pass"), slo)
    assert plain.index("pass") == head.index("verdict")


def test_a_small_sample_is_not_established() -> None:
    records = [record(f"r{i}", 1, 1, i * 10**9, 40_000, 10_000) for i in range(16)]
    (summary,) = summarise_run(columns(records), Slo())
    row = table_row(summary, Mark("baseline"), Slo())
    assert row.count("not established") == 2
    assert "p95" in render(FACTS, [summary], {}, None).split("not established: ")[1]


def test_details_show_every_definition_that_has_a_value(summaries: list[StepSummary]) -> None:
    text = render(FACTS, summaries, MARKS, STOP, SLO, details=True)
    for word in (
        "TTFT",
        "TPOT",
        "ITL",
        "E2E",
        "classic",
        "attempted",
        "Little's law",
        "objectives",
        "of 20.0 asked for",
    ):
        assert word in text
    assert "inter-chunk" not in text  # one token an event: the same numbers as ITL
    lagging = dataclasses.replace(summaries[0], latency={**summaries[0].latency, "dispatch_lag": _lag(summaries[0])})
    assert "dispatch lag" in render(FACTS, [lagging], {}, None)


def _lag(summary: StepSummary):  # type: ignore[no-untyped-def]
    return dataclasses.replace(summary.latency["tpot"])


def test_notes_name_what_makes_figures_weaker() -> None:
    (summary,) = summarise_run(columns([record("a", 1, 1, 0, 1000, 1000)]), Slo())
    weak = dataclasses.replace(
        summary,
        flags={"short_output": 1, "usage_missing": 1, "not_streamed": 1},
        output_tokens_mean=60.0,
        output_asked_mean=100.0,
        estimated_token_share=0.5,
        cached_share=0.34,
        littles_law_residual=-0.2,
    )
    facts = dataclasses.replace(FACTS, status="interrupted", truncated_lines=1)
    text = render(facts, [weak], {}, None)
    for words in (
        "1 of 1 answer shorter than asked: 60.0 tokens on average where 100 were asked for (60 %)",
        "without the usage",
        "not streamed",
        "50 % of a step's output tokens",
        "34 % of a step's prompt tokens",
        "disagree by 20 %",
        "did not get to its end",
        "1 half-written line",
    ):
        assert words in text
    assert "note" not in render(FACTS, [summary], {}, None)


@pytest.mark.parametrize("width", [WIDTH, 80])
def test_a_verdict_that_failures_made_says_so(width: int) -> None:
    busy = {"outcome": "error", "error": Failure("http", "busy", 503), "status": 503}
    slo = parse_slo(["ttft_p95=100ms"])
    records = [
        record(f"r{i}", 1, 4, i * 10**9, 40_000, 10_000, **(busy if i % 3 == 0 else {"flags": ()})) for i in range(400)
    ]
    (summary,) = summarise_run(columns(records), slo)
    mark = Mark("fail", ("ttft_p95",))
    row = table_row(summary, mark, slo, width=width)
    assert row.endswith("fail by failures" if width == WIDTH else "fail failures") and len(row) <= width
    text = render(FACTS, [summary], {1: mark}, None, slo)
    assert "failures break ttft_p95 at 4: a failed request counts as infinitely late" in " ".join(text.split())
    slow = [record(f"r{i}", 1, 4, i * 10**9, 400_000, 10_000) for i in range(400)]
    (late,) = summarise_run(columns(slow), slo)
    assert table_row(late, mark, slo, width=width).endswith("fail ttft_p95")
    assert "failures break" not in render(FACTS, [late], {1: mark}, None, slo)


@pytest.mark.parametrize(
    ("levels", "status", "words"),
    [
        ((1, 8, 64), "interrupted", "3 loads were measured, from 1 to 64 concurrent requests; the log holds no answer"),
        ((1, 8), "imported", "2 loads were measured, from 1 to 8 concurrent requests; the log holds no answer"),
        ((1,), "interrupted", "Measured: 1 concurrent request."),
        ((1,), "complete", None),
    ],
)
def test_a_log_without_an_answer_says_what_was_measured(levels: tuple[int, ...], status: str, words: str) -> None:
    records, observations = run_records(levels)
    found = summarise_run(columns(records), SLO, observations)
    facts = dataclasses.replace(FACTS, status=status)
    lines = " ".join(render(facts, found, {}, None, SLO).split())
    assert (f"answer {words}" in lines) if words else ("answer " not in lines)


def test_an_empty_run_and_a_run_of_failures_have_their_say() -> None:
    assert "no request was measured" in render(RunFacts("results/RUN"), [], {})
    records, _ = run_records((64,))
    failed = [r for r in records if r.outcome == "error"]
    summaries = summarise_run(columns(failed), SLO)
    text = render(FACTS, summaries, {1: Mark("fail", ("errors",))}, None, SLO, details=True)
    assert "64 × http 503" in text
    assert not {"nan", "inf", "None"} & set(re.split(r"[^A-Za-z]+", text))


@pytest.mark.parametrize("manifest", [None, {}, {"target": 3, "server": [], "seed": "x", "notes": "n", "clock": None}])
def test_facts_are_read_leniently(manifest: dict[str, object] | None) -> None:
    facts = facts_of(manifest, source="x", status="imported", requests=0, failed=0)
    assert facts.target == "" and facts.seed is None and facts.notes == ()


@pytest.mark.parametrize("words", [3, 60])
def test_a_cause_is_named_with_the_command_that_says_more(summaries: list[StepSummary], words: int) -> None:
    told = dataclasses.replace(FACTS, cause=" ".join(["queue"] * words))
    lines = render(told, summaries, MARKS, STOP, SLO).splitlines()
    (first,) = [i for i, line in enumerate(lines) if line.startswith("cause ")]
    rest = "\n".join(lines[first:])
    assert f"loadgen diagnose {FACTS.source}" in rest
    assert max(map(len, lines)) <= 120
    assert "\ncause " not in render(FACTS, summaries, MARKS, STOP, SLO)
