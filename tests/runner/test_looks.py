from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.virtual import Inline
from loadgen.analysis import summarise
from loadgen.client.driver import Progress
from loadgen.log.columns import ColumnBuilder
from loadgen.records import InputTokens, OutputTokens, Record
from loadgen.results import LevelResult, Observation, Verdict, Window
from loadgen.runner.looks import Looks
from loadgen.search.effort import rate_rule, step_rule
from loadgen.search.rates import piled
from loadgen.search.verdict import judge
from loadgen.slo import parse_slo

CONCURRENCY = 8


def record(i: int, ttft_ms: float, tpot_ms: float) -> Record:
    sent = i * 10_000_000
    first = sent + round(ttft_ms * 1e6)
    last = first + round(9 * tpot_ms * 1e6)
    return Record(
        id=str(i), step=1, concurrency=CONCURRENCY, phase="measured", worker=0, scheduled_ns=sent, sent_ns=sent,
        connect=None, first_byte_ns=first, first_token_ns=first, first_content_ns=first, last_token_ns=last,
        done_ns=last, input_tokens=InputTokens(50), output_tokens=OutputTokens(10, 10, "usage"),
        first_event_tokens=1, events=None, outcome="ok",
    )  # fmt: skip


def closed_after(
    slo: tuple[str, ...], ttft_ms: float, tpot_ms: tuple[float, float], most: int = 800
) -> tuple[int | None, Looks]:
    """How many requests it takes until the window may close; None where `most` do not suffice. TPOT is the first of the
    two values given, and in one of twenty requests the second."""
    rng = random.Random(1)
    rule = step_rule("quick", parse_slo(slo))
    rows = ColumnBuilder(ids=False)
    looks = Looks(rule, parse_slo(slo), CONCURRENCY, rows, max_error_rate=1.0)
    progress = Progress(1, CONCURRENCY, phase="measured", opened_ns=0)
    try:
        for i in range(most):
            rows.add(record(i, ttft_ms * rng.uniform(0.9, 1.1), tpot_ms[rng.random() < 0.05]))
            progress.measured_sent = progress.measured_done = i + 1
            progress.now_ns = (i + 1) * 24_000_000
            if i + 1 in rule.look_sizes(CONCURRENCY):
                taken = looks.taken
                assert not looks.enough(progress)  # a look is only begun here, and never waited for
                assert looks.taken == taken + 1
                deadline = time.monotonic() + 10
                while looks._look is not None and not looks._look.done() and time.monotonic() < deadline:
                    time.sleep(0.001)
            if looks.enough(progress):
                return i + 1, looks
    finally:
        looks.close()
    return None, looks


CASES = {
    "all objectives hold": (("ttft_p95=500ms", "tpot_p95=50ms"), 100.0, (10.0, 10.0), 208),
    "one objective is broken, the other hold": (("ttft_p95=50ms", "tpot_p95=50ms"), 100.0, (10.0, 10.0), 130),
    "one is broken for certain, the other at its very limit": (
        ("ttft_p95=50ms", "tpot_p95=50ms"), 100.0, (10.0, 90.0), 130,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("slo", "ttft_ms", "tpot_ms", "after"), CASES.values(), ids=CASES.keys())
def test_a_window_closes_once_the_verdict_is_certain(
    slo: tuple[str, ...], ttft_ms: float, tpot_ms: tuple[float, float], after: int
) -> None:
    found, _ = closed_after(slo, ttft_ms, tpot_ms)
    assert found is not None and found <= after


def test_a_window_closes_at_half_its_cap_where_the_other_half_would_not_decide() -> None:
    found, looks = closed_after(("ttft_p95=500ms", "tpot_p95=50ms"), 100.0, (10.0, 90.0))
    assert found is not None and 500 <= found <= 540
    assert looks.decided is None


def ended(looks: Looks, slo: tuple[str, ...], late: float, judged_by: tuple[str, ...] = ()) -> tuple[LevelResult, Any]:
    """The step of `closed_after`, with 40 more requests that end with such a TTFT in ms; its verdict, by other
    objectives if given, and their checks."""
    rows: Any = looks._rows
    for i in range(len(rows), len(rows) + 40):
        rows.add(record(i, late, 10.0))
    objectives = parse_slo(judged_by or slo)
    seen = Observation(
        1, CONCURRENCY, Window(0, 10**10), 8 * 10**10, 8, "complete", looks=looks.planned, decided=looks.decided
    )
    summary = summarise(rows.columns(), 1, objectives, seen)
    return judge(summary, objectives, max_error_rate=1.0, looks=looks.planned), summary.objectives


@pytest.mark.parametrize(
    ("limit", "late", "verdict", "carried"),
    [("500ms", 100.0, "pass", False), ("500ms", 600.0, "pass", True), ("500ms", 10.0, "pass", False),
     ("50ms", 100.0, "fail", False)],
)  # fmt: skip
def test_what_was_in_flight_takes_nothing_back_of_what_a_look_decided(
    limit: str, late: float, verdict: Verdict, carried: bool
) -> None:
    slo = (f"ttft_p95={limit}",)
    found, looks = closed_after(slo, 100.0, (10.0, 10.0))
    level, (check,) = ended(looks, slo, late)
    assert found is not None
    assert looks.decided is not None
    assert (level.verdict, check.verdict) == (verdict, verdict), "what a level is and what is said of it are one"
    assert check.decided_n == (looks.decided.n if carried else None)
    assert level.broke == (("ttft_p95",) if verdict == "fail" else ())


def test_the_same_objectives_in_other_words_are_decided_alike_and_others_are_not() -> None:
    slo = ("ttft_p95=500ms", "tpot_p95=50ms")
    for judged_by, verdict in (
        (("tpot_p95=0.05s", "ttft_p95=0.5s"), "pass"),
        (("ttft_p95=550ms", "tpot_p95=50ms"), "inconclusive"),
        (("ttft_p95=500ms",), "inconclusive"),
    ):
        _, looks = closed_after(slo, 100.0, (10.0, 10.0))
        assert ended(looks, slo, 600.0, judged_by)[0].verdict == verdict


def test_a_certain_end_outweighs_the_look() -> None:
    slo = ("ttft_p95=500ms",)
    _, looks = closed_after(slo, 100.0, (10.0, 10.0))
    for _ in range(4):
        level, _ = ended(looks, slo, 600.0)
    assert (level.verdict, level.broke) == ("fail", ("ttft_p95",))


def test_an_undecided_step_stays_undecided() -> None:
    slo = ("tpot_p95=50ms",)
    _, looks = closed_after(slo, 100.0, (10.0, 90.0))
    assert looks.decided is None
    assert ended(looks, slo, 100.0)[0].verdict == "inconclusive"


LEVEL = LevelResult(CONCURRENCY, None, "measured", (), p_hat_beyond=False)


@pytest.mark.parametrize("before", [("ttft_p95",), ("unstable", "ttft_p95")])
def test_requests_that_pile_up_are_said_once(before: tuple[str, ...]) -> None:
    broken = replace(LEVEL, verdict="fail", broke=before)
    assert piled(piled(broken, True), True).broke == ("unstable", "ttft_p95")


@pytest.mark.parametrize(("rate", "grew"), [(0.8, False), (1.3, True)])
@pytest.mark.parametrize("slo", [(), ("ttft_p95=1000s",)], ids=["no objective", "an objective that holds"])
def test_an_open_loop_that_does_not_keep_up_is_ended_early(rate: float, grew: bool, slo: tuple[str, ...]) -> None:
    """A server that answers exactly 25 requests a second; arrivals at a share of that, for at most 2,000 of them."""
    rule = rate_rule(step_rule("normal", parse_slo(slo)))
    rows = ColumnBuilder(ids=False)
    looks = Looks(rule, parse_slo(slo), 0, rows, 1.0, Inline(), rising=True)
    progress = Progress(1, 0, rate=rate, phase="measured", opened_ns=0)
    closed = None
    for i in range(2000):
        progress.now_ns = round((i + 1) * max(1.0, 1 / rate) * 4e7)  # when the i-th is done
        progress.measured_sent = max(i + 1, int(progress.now_ns * rate / 4e7))
        progress.measured_done, progress.in_flight = i + 1, progress.measured_sent - i - 1
        rows.add(record(i, 100.0, 10.0))
        if looks.enough(progress):
            closed = i + 1
            break
    assert looks.grew == grew
    assert (closed is not None and closed < 500) if grew else (closed is None) == (not slo)
    if closed is not None and not grew:
        assert closed >= 1000  # an objective that holds early proves no rate
    assert piled(LEVEL, looks.grew).verdict == ("fail" if grew else "pass")
    assert (looks.decided is not None) == (bool(slo) and not grew)
