"""What each of several models did: figures by the step's own definitions, in text at any width and in JSON."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.analysis import summarise
from loadgen.log.columns import columns
from loadgen.records import Record
from loadgen.report.facts import RunFacts
from loadgen.report.models import part_lines, parts_object
from loadgen.report.text import Mark, render
from loadgen.results import Slo, StepSummary
from tests.report.summaries import run_records

LONG = "organisation/a-model-with-a-very-long-name-and-an-adapter-v2"


def named(*names: str) -> list[Record]:
    """A run whose requests ask for these models in turn."""
    records, _ = run_records((64,))
    return [replace(record, model=names[i % len(names)]) for i, record in enumerate(records)]


def summary_of(records: list[Record]) -> StepSummary:
    return summarise(columns(records), 1, Slo())


def test_each_model_has_what_its_own_requests_say() -> None:
    records = named("base", "lora", "lora")
    whole = summary_of(records)
    found = {one.name: one for one in whole.by_model}
    assert list(found) == ["base", "lora"]
    for name, one in found.items():
        alone = summary_of([record for record in records if record.model == name])
        assert (one.sent, one.ok, one.failed) == (alone.sent, alone.requests["ok"], alone.failed)
        for metric in ("ttft", "tpot"):
            values = [(q.p, q.value) for q in one.latency[metric].percentiles]
            assert values == [(q.p, q.value) for q in alone.latency[metric].percentiles]
    assert whole.output_throughput is not None
    assert sum(one.output_throughput or 0 for one in found.values()) == pytest.approx(whole.output_throughput.value)
    assert sum(one.failed for one in found.values()) == whole.failed > 0


def test_one_model_is_no_mix() -> None:
    for records in (named("base"), run_records((8,))[0]):
        summary = summary_of(records)
        assert summary.by_model == ()
        assert part_lines(summary) == []
        assert parts_object(summary.by_model) == {}


@pytest.mark.parametrize("names", [("base", "lora"), ("base", LONG), ("base", "\x1b[31mred\nline")])
def test_the_table_fits_and_holds_no_control_characters(names: tuple[str, ...]) -> None:
    summary = summary_of(named(*names))
    for width in (80, 100, 120):
        fits(summary, width)


def fits(summary: StepSummary, width: int) -> None:
    text = render(RunFacts("run"), [summary], {1: Mark("pass")}, details=True, width=width)
    assert "by model" in text
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    lines = part_lines(summary, width)
    assert len(lines) == 3
    assert len({len(line) for line in lines}) == 1, "the columns stand one below the other"


def test_the_figures_in_json_have_the_steps_own_keys() -> None:
    one = parts_object(summary_of(named("base", "lora")).by_model)["lora"]
    assert list(one) == [
        *("sent", "completed", "failed", "output_throughput", "cached_share"),
        *("median_ttft_ms", "p95_ttft_ms", "median_tpot_ms", "p95_tpot_ms", "not_established"),
    ]
