"""The display of a running run: every line fits, nothing is lost, it costs little and never raises."""

from __future__ import annotations

import io
import re
import statistics
import time
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from loadgen.analysis import summarise_run
from loadgen.log.columns import columns
from loadgen.report.live import Lines, Terminal, curve, duration, pack, step_lines
from loadgen.results import LevelResult, ServerFacts, Slo, StepSummary
from loadgen.slo import parse_slo
from tests.report.summaries import record, run_records

SLO = parse_slo(["ttft_p95=100ms"])
WORDS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=30)


@dataclass
class Running:
    """A step as the driver counts it."""

    step: int = 3
    concurrency: int = 64
    rate: float | None = None
    in_flight: int = 63
    failed: int = 2
    completed: int = 1234
    measured_done: int = 1000
    phase: str = "measured"
    window_s: float = 7.5


@dataclass
class Opening:
    target: str = "http://gpu1:8000/v1/chat/completions"
    facts: ServerFacts = ServerFacts("vllm", "0.32.0", "llama-3.1-8b", 131072)  # noqa: RUF009 - frozen
    workload: str = "made text · in 512 · out 128 · seed 7"
    clock: str = "kernel"
    notes: tuple[str, ...] = ("a first note", "a note of many words " * 6)
    plan: str = (
        "concurrency 1, 2, 4, 8, 16, 32, 64, 128, 256; at most 91,024 requests, 58,255,360 tokens in and out, 42 min"
    )
    seconds: float = 2520.0
    rate: float | None = None


@pytest.fixture(scope="module")
def summaries() -> list[StepSummary]:
    records, observations = run_records()
    return summarise_run(columns(records), SLO, observations)


def terminal(width: int) -> tuple[Terminal, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, height=24, legacy_windows=False)
    return Terminal(SLO, console), out


def plain(text: str) -> str:
    """What is left of terminal output without its control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")


@pytest.mark.parametrize("width", [60, 80, 100, 120])
@pytest.mark.parametrize("rate", [None, 1234.5])
@pytest.mark.parametrize("phase", ["warmup", "measured", "filler"])
def test_the_running_step_fits_and_says_it_all(width: int, rate: float | None, phase: str) -> None:
    step = Running(concurrency=10_000, in_flight=9_999, completed=1_234_567, failed=12_345, rate=rate, phase=phase)
    why, rates = "a second window, to confirm that it fails", {"tokens_per_s": 123_456.7, "left_s": 7_345.0}
    lines = step_lines(step, why, 0.37, ttft_ms=[12_345.6], tpot_ms=[123.4], width=width, **rates)
    assert max(map(len, lines)) <= width
    said = " ".join(lines)
    for words in ("step 3", "37%", "confirm", "123,457 tokens/s", "TTFT 12,346 ms", "TPOT 123 ms", "1,234,567 done"):
        assert words in said
    assert "12,345 failed" in said and "at most 2 h 02 min left" in said


@given(parts=st.lists(st.just("") | WORDS, max_size=12), width=st.integers(34, 120))
def test_packing_loses_nothing_and_fits(parts: list[str], width: int) -> None:
    lines = pack(parts, width, indent="  ")
    assert " · ".join(line.removeprefix("  ") for line in lines) == " · ".join(filter(None, parts))
    assert all(len(line) <= width for line in lines)


@given(points=st.lists(st.tuples(st.integers(1, 10_000), st.floats(0, 1e7)), min_size=1, max_size=30))
def test_the_curve_has_a_bar_for_each_load(points: list[tuple[int, float]]) -> None:
    line = curve(points)
    assert sum(line.count(bar) for bar in "▁▂▃▄▅▆▇█") == len({load for load, _ in points})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (0.4, "0 s"), (119, "119 s"), (200, "3 min 20 s"), (7199, "119 min 59 s"), (7500, "2 h 05 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# --- the terminal ---------------------------------------------------------------------------------------------------

EVENTS = ["waiting", "opened", "started", "request", "failed request", "ended", "signalled", "draw"]


@settings(max_examples=40)
@given(events=st.lists(st.sampled_from(EVENTS), max_size=25), width=st.sampled_from([20, 60, 80, 100, 200]))
def test_it_never_raises_whatever_comes_in_whatever_order(
    summaries: list[StepSummary], events: list[str], width: int
) -> None:
    summary = summaries[0]
    view, out = terminal(width)
    try:
        for event in events:
            happen(view, event, summary)
            assert all(len(line) <= width for line in view.draw().plain.splitlines())
    finally:
        view.close()
    assert "\x1b[?25h" in out.getvalue(), "the cursor is shown again"


def happen(view: Lines, event: str, summary: StepSummary) -> None:
    one = record("r1", 1, 1, 10**9, 40_000, 10_000)
    match event:
        case "waiting":
            view.waiting("not ready: \x1b[2J nothing answers; again in 0.5 s")
        case "opened":
            view.opened(Opening())
        case "started":
            view.step_started(Running(), "baseline", lambda: 0.4)
        case "request":
            view.request_ended(one)
        case "failed request":
            view.request_ended(record("r2", 1, 1, 10**9, 40_000, 10_000, outcome="error"))
        case "ended":
            view.step_ended(summary, LevelResult(4, summary.output_throughput, "fail", ("ttft_p95",)))
        case "signalled":
            view.signalled("draining: nothing more is sent")


@pytest.mark.parametrize("width", [80, 100, 120])
def test_what_stays_on_the_screen_are_the_lines_and_not_the_block(summaries: list[StepSummary], width: int) -> None:
    view, out = terminal(width)
    view.opened(Opening())
    for summary in summaries:
        view.step_started(Running(step=summary.step), "why", lambda: 0.4)
        view.step_ended(summary, LevelResult(summary.concurrency, summary.output_throughput, "pass"))
    view.close()
    lines = plain(out.getvalue()).splitlines()
    kept = [line for line in lines if "in flight" not in line and "tokens/s" not in line and "left" not in line]
    assert max(map(len, kept)) <= width
    rows = [line.split() for line in kept if line.endswith("  pass")]
    assert [row[0] for row in rows] == [str(summary.concurrency) for summary in summaries]
    assert sum(line.lstrip().startswith("conc") for line in kept) == 1
    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h") == 1


@pytest.mark.parametrize("slo", [SLO, Slo()])
def test_the_head_says_what_is_asked_of_the_server(slo: Slo) -> None:
    lines: list[str] = []
    Lines(slo, lines.append).opened(Opening())
    assert [line for line in lines if line.startswith("objective")] == ["objective ttft_p95=100ms"] * bool(slo)


def test_without_a_terminal_there_is_a_line_for_each_thing(summaries: list[StepSummary]) -> None:
    lines: list[str] = []
    view = Lines(SLO, lines.append)
    for event in ("waiting", "waiting", "opened", "started", "request"):
        happen(view, event, summaries[0])
    for summary in summaries:
        view.step_ended(summary, LevelResult(summary.concurrency, summary.output_throughput, "pass"))
    view.signalled("draining")
    view.close()
    assert lines[0] == "… not ready: [2J nothing answers; again in 0.5 s"
    assert [line for line in lines if line.endswith("  pass")] == lines[-1 - len(summaries) : -1]
    assert max(map(len, lines)) <= 120
    assert not any("\x1b" in line for line in lines)


def test_a_drawing_takes_less_than_two_milliseconds() -> None:
    view, _ = terminal(120)
    try:
        view.step_started(Running(), "baseline", lambda: 0.4)
        for i in range(300):
            view.request_ended(record(f"r{i}", 1, 1, i * 10**6, 40_000 + i, 10_000))
        took = []
        for _ in range(50):
            before = time.perf_counter()
            view.draw()
            took.append(time.perf_counter() - before)
    finally:
        view.close()
    assert statistics.quantiles(took, n=10)[0] < 0.002
