"""The check of a workload finds what is off, and says by how much."""

from __future__ import annotations

from loadgen.workload.check import check
from loadgen.workload.definition import parse_workload

FILE = """
name = "n"
[lengths]
input = { kind = "lognormal", mu = 6, sigma = 0.5, max = MAX }
output = { kind = "fixed", value = 9 }
[reference]
input = { mean = MEAN, p50 = 403, p90 = 766, p99 = 1291 }
output = { mean = 9, p50 = 9, p90 = 9, p99 = 9 }
"""


def findings(mean: int = 457, most: int = 100_000) -> tuple[str, ...]:
    return check(parse_workload(FILE.replace("MEAN", str(mean)).replace("MAX", str(most)), "f"), 50_000).findings


def test_draws_that_are_what_is_asked_for() -> None:
    assert findings() == ()
    assert findings(mean=440) == ()  # 4 % off


def test_a_figure_that_is_not_met() -> None:
    (found,) = findings(mean=600)
    assert found.startswith("input mean: 460 drawn, 600 asked for (-23")


def test_limits_that_move_the_rest_are_said_with_their_share() -> None:
    found = findings(most=600)
    assert any(text.startswith("input p99: ") for text in found)
    assert "the limits refuse 22 % of draws" in found[-1]


def test_without_a_reference_the_formula_is_held_against() -> None:
    bare = FILE.partition("[reference]")[0].replace("MAX", "600")
    checked = check(parse_workload(bare, "f"), 50_000)
    assert checked.findings == ()
    assert {side.by for side in checked.sides.values()} == {"formula"}
    assert all(side.ks is not None and side.ks < 0.01 for side in checked.sides.values())
