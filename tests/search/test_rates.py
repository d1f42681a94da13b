from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.results import Estimate, LevelResult, NextLevel, Stop
from loadgen.search.rates import RatePlan, decide_rate, piled

PLAN = RatePlan(1.0)
VERDICTS = {"p": "pass", "f": "fail", "u": "fail", "m": "marginal", "i": "inconclusive", "b": "inconclusive"}


def level(rate: float, kind: str, completed: float | None = None) -> LevelResult:
    """p: holds, f: an objective fails, u: requests piled up, m: marginal, i, b: undecided, b leaning beyond."""
    broke = {"f": ("ttft_p95",), "m": ("ttft_p95",), "b": ("ttft_p95",), "u": ("unstable",)}.get(kind, ())
    return LevelResult(
        0, Estimate(100 * rate), VERDICTS[kind], broke, p_hat_beyond=kind in "fub", rate=rate, completed=completed
    )  # type: ignore[arg-type]


def levels(text: str) -> list[LevelResult]:
    return [level(float(part[:-1]), part[-1]) for part in text.split()]


@pytest.mark.parametrize(
    ("history", "rate"),
    [
        ("", 1.0),
        ("1p", 2.0),
        ("1p 2p 4p", 8.0),
        ("1p 2p 4u", 2.828),
        ("1p 2p 4f", 2.828),
        ("1p 2p 4u 2.828p", 3.364),
        ("1p 2i 4u", 2.828),  # an undecided rate is on the side of its estimate
        ("1p 2b 4u", 1.414),
        ("1u", 0.25),  # nothing holds yet: go down
        ("1u 0.25p", 0.5),
    ],
)
def test_the_rise_and_the_narrowing(history: str, rate: float) -> None:
    found = decide_rate(levels(history), PLAN)
    assert isinstance(found, NextLevel)
    assert (found.concurrency, found.rate) == (0, pytest.approx(rate, rel=1e-3))


def test_an_overloaded_server_tells_its_capacity() -> None:
    found = decide_rate([*levels("1p 2p"), level(4, "u", completed=3.0)], PLAN)
    assert isinstance(found, NextLevel) and found.rate == pytest.approx(0.97 * 3.0)
    # Where it says nothing that lies inside the gap, the gap is halved.
    found = decide_rate([*levels("1p 2p"), level(4, "u", completed=2.0)], PLAN)
    assert isinstance(found, NextLevel) and found.rate == pytest.approx(math.sqrt(8), rel=1e-3)


@pytest.mark.parametrize(
    ("history", "reason", "held", "broke", "limit"),
    [
        ("1p 2p 4u 2.828p 3.364p 3.668p 3.83u", "unstable", 3.668, 3.83, 3.668),
        ("1p 2p 4f 2.828p 3.364f 3.084p 3.221p", "slo:ttft_p95", 3.221, 3.364, 3.221),
        ("1p 2m", "slo:ttft_p95", 1.0, None, 2.0),
        ("1f 0.25f 0.0625f 0.015625f 0.00390625f", "slo:ttft_p95", None, 0.00390625, None),
    ],
)
def test_the_answer(history: str, reason: str, held: float | None, broke: float | None, limit: float | None) -> None:
    found = decide_rate(levels(history), PLAN)
    assert isinstance(found, Stop)
    assert (found.reason, found.held, found.broke, found.limit) == (reason, held, broke, limit)
    assert "8 %" in found.sentence and "concurrent" not in found.sentence


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ended": "unauthorized"}, "The server refused access at 2 requests/s."),
        ({"admitted": 3}, "The server's admission limit: it answers about 3 requests at once"),
        ({}, "Too many requests failed at 2 requests/s: 100 %."),
    ],
    ids=["unauthorized", "admitted", "failed"],
)
def test_failures_are_told_as_they_are_of_levels(change: dict[str, Any], words: str) -> None:
    last = LevelResult(0, None, "fail", ("errors",), **{"ended": "errors", "error_rate": 1.0, "rate": 2.0, **change})
    found = decide_rate([*levels("1p"), last], PLAN)
    assert isinstance(found, Stop) and words in found.sentence


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        ("budget:time", "The time budget was used up at 2.828 requests/s. 2 requests/s hold, 4 do not (unstable)."),
        ("interrupted", "The run was interrupted at 2.828 requests/s. 2 requests/s hold, 4 do not (unstable)."),
    ],
)
def test_a_rate_that_was_cut_short_is_no_answer(ended: str, words: str) -> None:
    cut = LevelResult(0, None, "inconclusive", ("ttft_p95",), ended=ended, rate=2.828)
    found = decide_rate([*levels("1p 2p 4u"), cut], PLAN)
    assert isinstance(found, Stop)
    assert (found.reason, found.held, found.broke, found.limit) == (ended, 2.0, 4.0, None)
    assert found.sentence == words


def test_a_rate_that_this_client_shaped_is_measured_once_more() -> None:
    shaped = LevelResult(0, None, "invalid", rate=4.0, detail="no CPU")
    again = decide_rate([*levels("1p 2p"), shaped], PLAN)
    assert isinstance(again, NextLevel) and again.rate == 4.0 and "no CPU" in again.why
    fine = decide_rate([*levels("1p 2p"), shaped, *levels("4u")], PLAN)
    assert fine == decide_rate(levels("1p 2p 4u"), PLAN), "it never counts"
    twice = decide_rate([*levels("1p 2p"), shaped, shaped], PLAN)
    assert isinstance(twice, Stop) and (twice.reason, twice.held) == ("client_bound", 2.0)


def test_no_limit_is_an_answer() -> None:
    found = decide_rate(levels("1p 2p 4p 8p"), RatePlan(1.0, most=8.0))
    assert isinstance(found, Stop)
    assert (found.reason, found.held, found.limit) == ("max_level", 8.0, None)
    assert "No limit up to 8 requests/s" in found.sentence


@pytest.mark.parametrize("verdict", ["measured", "pass", "fail", "inconclusive", "marginal"])
def test_requests_that_pile_up_break_a_rate(verdict: str) -> None:
    one = LevelResult(0, None, verdict, ("ttft_p95",) if verdict == "fail" else (), rate=3.0)  # type: ignore[arg-type]
    grew = piled(one, True)
    assert (grew.verdict, grew.broke[0]) == ("fail", "unstable")
    assert (grew.broke[1:] == ("ttft_p95",)) == (verdict == "fail")
    assert piled(one, False).verdict == ("pass" if verdict == "measured" else verdict)
    late = LevelResult(0, None, "invalid", rate=3.0)
    assert piled(late, True) == late


@pytest.mark.parametrize("wrong", [{"start": 0.0}, {"start": 5.0, "most": 2.0}, {"factor": 1.0}, {"factor": 1.001}])
def test_a_plan_that_cannot_be_meant(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError) as caught:
        RatePlan(**wrong)
    assert caught.value.remedy


def test_any_capacity_is_found_to_8_percent() -> None:
    """A rate below the capacity is held, one above it is unstable; noise only within 3 % of it."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        capacity = float(np.exp(rng.uniform(math.log(0.3), math.log(200))))
        history: list[LevelResult] = []
        while not isinstance(found := decide_rate(history, PLAN), Stop):
            rate = found.rate or 0.0
            over = rate > capacity * (1 + rng.uniform(-0.03, 0.03))
            history.append(level(rate, "u" if over else "p", completed=min(rate, capacity)))
            assert len(history) <= 20
        assert found.held is not None and found.broke is not None
        assert found.held < found.broke
        assert found.limit == pytest.approx(capacity, rel=0.1)
