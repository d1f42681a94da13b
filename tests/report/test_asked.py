"""The lengths asked for beside the workload's: shown, and a finding where chance does not explain the difference."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from loadgen.report.asked import asked_line, asked_notes
from loadgen.report.facts import facts_of
from loadgen.results import AskedLengths

OWN = {"input": {"mean": 230.0, "p50": 65.0, "p90": 614.0, "p99": 2418.0}}


def step(n: int, mean: float, std: float = 460.0, number: int = 1) -> Any:
    return SimpleNamespace(step=number, asked={"input": AskedLengths(n, mean, std, 60, 600, 2000)})


@pytest.mark.parametrize(
    ("n", "mean", "found"),
    [
        (400, 230, False),
        (400, 150, False),  # 3.5 standard errors
        (400, 130, True),
        (40_000, 220, False),  # beyond chance, but by 4 %
        (40_000, 215, True),
        (20, 1, False),  # too few
    ],
)
def test_a_deviation_is_a_finding_only_beyond_chance(n: int, mean: float, found: bool) -> None:
    notes = asked_notes([step(n, mean)], OWN)
    assert bool(notes) == found
    if notes:
        assert f"of {n:,} requests, where the workload's have 230" in notes[0] and "step 1" in notes[0]


def test_of_several_steps_the_worst_is_told() -> None:
    notes = asked_notes([step(4000, 180, number=2), step(4000, 140, number=3), step(4000, 230, number=4)], OWN)
    assert len(notes) == 1 and "step 3" in notes[0] and "(-39 %" in notes[0]


@pytest.mark.parametrize(
    ("within", "found"),
    [
        (((50, 70), (500, 700), (1500, 3000)), ""),
        (((50, 70), (500, 610), (1500, 3000)), ""),  # beyond chance, but by 2 %
        (((58, 63), (500, 700), (1500, 3000)), "have 60 tokens at p50 of 400 requests, where the workload's have 65"),
        (((50, 70), (500, 700), (1500, 2100)), "have 2,000 tokens at p99"),
        (((58, 63), (500, 700), (1500, 2100)), "at p99"),  # is further off than p50
        (((-math.inf, math.inf),) * 3, ""),
    ],
)
def test_a_percentile_is_a_finding_only_beyond_chance(within: tuple[tuple[float, float], ...], found: str) -> None:
    seen = SimpleNamespace(step=1, asked={"input": AskedLengths(400, 230, 460, 60, 600, 2000, within)})
    notes: list[str] = asked_notes([seen], OWN)  # type: ignore[list-item]
    assert len(notes) == bool(found) and all(found in note for note in notes)
    off = SimpleNamespace(step=2, asked={"input": AskedLengths(400, 100, 460, 60, 600, 2000, within)})
    assert "in the mean" in asked_notes([seen, off], OWN)[0]  # type: ignore[list-item]


def test_the_line_of_the_details() -> None:
    assert asked_line(step(9, 171.2), OWN) == "in 171 (60, 600, 2,000) of 230 (65, 614, 2,418): mean (p50, p90, p99)"
    assert asked_line(step(9, 171.2), {}) == "in 171 (60, 600, 2,000): mean (p50, p90, p99)"
    assert asked_line(step(9, 171.2, std=0), {}) == ""


def test_facts_take_what_a_manifest_has_and_no_more() -> None:
    def asked(value: object) -> object:
        return facts_of({"workload": {"asked": value}}, source="s", status="complete", requests=0, failed=0).asked

    assert asked(OWN) == OWN
    for odd in (None, 3, {"input": 3}, {"input": {"mean": "x"}}, {"elsewhere": OWN["input"]}):
        assert asked(odd) == {}
