"""An open-loop step on the screen and in JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest

from loadgen.analysis import summarise
from loadgen.analysis.series import series
from loadgen.client.driver import Progress
from loadgen.log import codec
from loadgen.log.columns import columns
from loadgen.report.charts.figure import View
from loadgen.report.facts import RunFacts
from loadgen.report.jsonout import report_object
from loadgen.report.live import Lines, step_lines
from loadgen.report.page.run import load_words
from loadgen.report.text import WIDTH, Mark, render
from loadgen.report.words import Words
from loadgen.results import LevelResult, Observation, Slo, StepSummary, Stop, Window
from tests.report.summaries import record

SECOND = 10**9
STOP = Stop("max_level", 20.0, None, None, "20 requests/s hold every objective.")


def step(*, held_back: int = 0, not_dispatched: int = 0, e2e_s: float = 0.24, late_ms: float = 0.0) -> StepSummary:
    """Thirty seconds at 20 requests/s, as the server completes them after `e2e_s`, which may grow with each request."""
    records = []
    for i in range(600):
        due = i * SECOND // 20
        tpot_us = round((e2e_s * (1 + (i if e2e_s > 1 else 0) / 100) - 0.05) / 19 * 1e6)
        records.append(record(f"s1-{i}", 1, 0, due + round(late_ms * 1e6), 50_000, tpot_us, scheduled_ns=due))
    seen = Observation(
        1, 0, Window(0, 30 * SECOND), 5 * 30 * SECOND, 9, "complete", rate=20.0, held_back=held_back,
        not_dispatched=not_dispatched, max_in_flight=2 if held_back else None,
    )  # fmt: skip
    return summarise(columns(records), 1, Slo(), seen)


@pytest.mark.parametrize(
    ("sessions", "traced", "language", "told"),
    [
        (0, False, "zh", "每秒 20 个请求"),
        (3, False, "zh", "每秒 20 个会话"),
        (3, False, "en", "20 conversations/s"),
        (3, True, "en", "20 requests/s"),
    ],
)
def test_a_page_tells_a_rate_as_what_it_is_of(sessions: int, traced: bool, language: str, told: str) -> None:
    summaries = [dataclasses.replace(step(), sessions=sessions)]
    facts = RunFacts("results/RUN", traced=traced)
    view = View(facts, summaries, {}, STOP, Slo(), series(columns([]), summaries), words=Words(language))
    assert load_words(view, 20.0) == told


def screen(summary: StepSummary) -> str:
    text = render(RunFacts("results/RUN"), [summary], {1: Mark("measured")}, STOP)
    assert all(len(line) <= WIDTH for line in text.splitlines())
    return text


def test_the_table_and_the_details_show_the_rate() -> None:
    lines = screen(step(late_ms=0.25)).splitlines()
    assert lines[0].split()[0] == "rate" and lines[1].split()[0] == "20/s"
    assert any(line.startswith("step 1 · 20 requests/s asked for · observed 5.00 in the mean") for line in lines)
    arrivals = next(line for line in lines if line.startswith("  arrivals"))
    assert arrivals.split("arrivals")[1].strip() == (
        "20 requests/s asked for, 20.00 sent · sent late by p50 0.250, p99 0.250 ms · 0 held back, 0 never sent"
    )
    assert any(line.lstrip().startswith("at 20/s: ") for line in lines)
    assert not any(line.startswith("note") for line in lines)


def test_a_limit_that_bound_is_said_aloud() -> None:
    text = " ".join(screen(step(held_back=190, not_dispatched=95)).split())
    assert "the limit of 2 in flight held back 190 requests: 20.0 of the 20 requests/s asked for were sent" in text
    assert "95 arrivals due in the window could not be sent by its end, and never were" in text
    assert "190 held back, 95 never sent" in text


def test_a_server_that_falls_behind_is_named() -> None:
    assert "does not keep up" in screen(step(e2e_s=2.0))
    assert "does not keep up" not in screen(step())


def test_json_holds_the_rate_asked_for_and_the_one_achieved() -> None:
    marks = {1: Mark("measured")}
    found = json.loads(codec.encode(report_object(RunFacts("RUN"), [step(held_back=3)], marks, STOP)))
    one = found["steps"][0]
    assert (one["request_rate"], one["max_concurrency"], one["held_back_requests"]) == (20.0, 2, 3)
    assert one["attempt_rate_req_s"] == pytest.approx(20.0)
    assert one["not_dispatched_requests"] == 0
    assert found["answer"]["held"] == 20.0
    assert codec.decode_stop(found["answer"]) == STOP


def test_the_live_view_speaks_of_the_rate() -> None:
    progress = Progress(1, 0, rate=20.0, in_flight=7)
    shown = step_lines(progress, "poisson arrivals", 0.5, tokens_per_s=1.0, ttft_ms=[], tpot_ms=[], left_s=9)
    assert "20 requests/s asked, 7 in flight now" in shown[0]
    said: list[str] = []
    lines = Lines(Slo(), said.append)
    summary = step()
    lines.step_ended(summary, LevelResult(0, summary.output_throughput, "measured", rate=20.0))
    assert said[0].split()[0] == "20/s"


def test_many_digits_do_not_break_the_table() -> None:
    row = screen(dataclasses.replace(step(), rate=12345.678)).splitlines()[1]
    assert row.split()[0] == "12,345.7/s"
