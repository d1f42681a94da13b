from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from benchmarks.virtual import Inline
from loadgen.client.driver import Progress
from loadgen.log.columns import ColumnBuilder
from loadgen.records import InputTokens, OutputTokens, Record
from loadgen.results import LevelResult, Verdict
from loadgen.runner.looks import Looks
from loadgen.search.effort import rate_rule, step_rule
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
    assert looks.settle(LEVEL) == LEVEL


LEVEL = LevelResult(CONCURRENCY, None, "inconclusive", ("ttft_p95",), p_hat_beyond=False)


@pytest.mark.parametrize(
    ("limit", "final", "settled"),
    [("500ms", "inconclusive", "pass"), ("50ms", "inconclusive", "fail"), ("500ms", "fail", "fail"),
     ("500ms", "invalid", "invalid")],
)  # fmt: skip
def test_a_decided_look_outweighs_an_undecided_end(limit: str, final: Verdict, settled: Verdict) -> None:
    _, looks = closed_after((f"ttft_p95={limit}",), 100.0, (10.0, 10.0))
    result = looks.settle(replace(LEVEL, verdict=final))
    assert result.verdict == settled
    if final == "inconclusive":
        assert result.broke == (("ttft_p95",) if settled == "fail" else ())


def test_an_undecided_step_stays_undecided() -> None:
    _, looks = closed_after(("tpot_p95=50ms",), 100.0, (10.0, 90.0))
    assert looks.settle(LEVEL) == LEVEL


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
    verdict = looks.settle(replace(LEVEL, verdict="measured", broke=())).verdict
    assert verdict == ("fail" if grew else "pass")
