"""The screen on narrow terminals: every line fits, and only the columns that are said to go are gone."""

from __future__ import annotations

import pytest

from loadgen.analysis import summarise_run
from loadgen.analysis.buckets import by_buckets
from loadgen.log.columns import columns
from loadgen.report.bucketed import bucket_lines
from loadgen.report.facts import RunFacts
from loadgen.report.numbers import shortened
from loadgen.report.text import Mark, fit, render, table_head, table_row
from loadgen.results import StepSummary, Stop
from loadgen.slo import parse_slo
from tests.report.summaries import run_records

SLO = parse_slo(["ttft_p95=100ms", "tpot_p99=50ms"])
MARKS = {1: Mark("inconclusive"), 2: Mark("pass"), 3: Mark("fail", ("ttft_p95", "tpot_p99"))}
FACTS = RunFacts(
    "results/20261129T134500Z-run",
    target="http://gpu1:8000/v1/chat/completions",
    workload="made text · in 512 · out 128",
    notes=("a note of many words " * 12,),
)
STOP = Stop("slo:ttft_p95", 8, 64, None, "8 concurrent requests hold every objective, 64 do not. " * 3)
WIDTHS = [60, 80, 100, 114, 115, 120]


@pytest.fixture(scope="module")
def summaries() -> list[StepSummary]:
    records, observations = run_records()
    return summarise_run(columns(records), SLO, observations)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("details", [False, True])
def test_every_line_fits(summaries: list[StepSummary], width: int, details: bool) -> None:
    text = render(FACTS, summaries, MARKS, STOP, SLO, details=details, width=width)
    for line in text.splitlines():
        # Commands are left whole, to be copied.
        if not line.lstrip().startswith("loadgen "):
            assert len(line) <= width, line
        assert line == line.rstrip()


@pytest.mark.parametrize("width", WIDTHS)
def test_wrapping_loses_no_word(summaries: list[StepSummary], width: int) -> None:
    narrow = render(FACTS, summaries, MARKS, STOP, SLO, width=width).split("answer")[1].split()
    wide = render(FACTS, summaries, MARKS, STOP, SLO).split("answer")[1].split()
    assert narrow == wide


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_has_its_verdicts_in_line_at_any_width(summaries: list[StepSummary], width: int) -> None:
    head = table_head(SLO, width=width)
    rows = [table_row(summary, MARKS[summary.step], SLO, width=width) for summary in summaries]
    assert len({row.index(MARKS[s.step].verdict) for row, s in zip(rows, summaries, strict=True)}) == 1
    assert rows[1].index("pass") == head.index("verdict")
    assert ("tok/s/user" in head) == ("[95 %]" in head) == (width >= 115)
    assert "p95" in head and "p99" in head


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_buckets_fit(width: int) -> None:
    c = columns(run_records((8,))[0][:5] + run_records((64,))[0])
    lines = bucket_lines(by_buckets(c, ("input", "output"), summarise_run(c, SLO)), width)
    few = bucket_lines(by_buckets(c.where(c.concurrency == 8), ("input", "output"), []), width)
    assert max(map(len, [*lines, *few])) <= max(width, 70)
    row = next(line for line in lines if "TTFT" in line)
    assert row.endswith("TTFT p50  TTFT p95" if width <= 80 else "p95") and "failed" in row
    assert ("tokens  TTFT" in row) == (width > 82) and "not established" in few[-1]


@pytest.mark.parametrize(("width", "kept"), [(30, "one two-three four five"), (19, "one two-three …"), (8, "one …")])
def test_a_text_is_shortened_between_words(width: int, kept: str) -> None:
    assert shortened("one two-three four five", width) == kept


def test_continued_lines_stand_under_their_text() -> None:
    assert fit(["note      one two three", "  output          one two three"], 22) == [
        "note      one two",
        "          three",
        "  output          one",
        "                  two",
        "                  three",
    ]


def test_what_the_display_has_shown_is_not_shown_again(summaries: list[StepSummary]) -> None:
    whole = render(FACTS, summaries, MARKS, STOP, SLO)
    rest = render(FACTS, summaries, MARKS, STOP, SLO, rest=True)
    assert whole.endswith(rest) and rest.startswith("answer")
    assert "  conc" not in rest and "target" not in rest
