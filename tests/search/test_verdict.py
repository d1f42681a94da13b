from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from loadgen.records import Estimate, ObjectiveCheck, Slo, StepSummary
from loadgen.search.verdict import judge
from loadgen.slo import parse_slo

BOTH = parse_slo(["ttft_p95=500ms", "tpot_p95=50ms"])
EMPTY = StepSummary(
    step=1,
    concurrency=8,
    window=None,
    requests={},
    flags={},
    errors=(),
    sent=0,
    judged=0,
    failed=0,
    input_tokens_mean=None,
    output_tokens_mean=None,
    output_asked_mean=None,
    output_throughput=Estimate(100.0, 90.0, 110.0),
    output_throughput_failed=None,
    output_throughput_classic=None,
    total_throughput=None,
    request_throughput=None,
    attempt_rate=None,
    tokens_per_user=None,
    estimated_token_share=0.0,
    estimated_itl=False,
    cached_share=None,
    latency={},
    goodput=None,
    attainment=None,
    concurrency_mean=None,
    concurrency_peak=None,
    littles_law_residual=None,
)
SEEN = {"pass": 0.01, "fail": 0.2, "marginal": 0.05, "inconclusive": 0.04, "beyond": 0.06}


def check(name: str, how: str) -> ObjectiveCheck:
    verdict = "inconclusive" if how in ("beyond", "none") else how
    exceedance = None if how == "none" else Estimate(SEEN[how], 0.0, 1.0)
    return ObjectiveCheck(name, name.split("_p")[0], 0.05, exceedance, None, 100, verdict)  # type: ignore[arg-type]


def summary(*checks: ObjectiveCheck, judged: int = 100, failed: int = 0, ended: str = "complete") -> StepSummary:
    return replace(EMPTY, objectives=checks, sent=judged, judged=judged, failed=failed, ended=ended)


@pytest.mark.parametrize(
    ("ttft", "tpot", "verdict", "broke", "beyond"),
    [
        ("pass", "pass", "pass", (), False),
        ("pass", "fail", "fail", ("tpot_p95",), True),
        ("fail", "fail", "fail", ("ttft_p95", "tpot_p95"), True),
        ("fail", "inconclusive", "fail", ("ttft_p95",), True),
        ("fail", "none", "fail", ("ttft_p95",), True),
        ("pass", "marginal", "marginal", ("tpot_p95",), False),
        ("inconclusive", "marginal", "inconclusive", ("ttft_p95", "tpot_p95"), False),
        ("pass", "inconclusive", "inconclusive", ("tpot_p95",), False),
        ("pass", "beyond", "inconclusive", ("tpot_p95",), True),
        ("pass", "none", "inconclusive", ("tpot_p95",), False),
        ("none", "none", "inconclusive", ("ttft_p95", "tpot_p95"), False),
    ],
)
def test_verdicts(ttft: str, tpot: str, verdict: str, broke: Sequence[str], beyond: bool) -> None:
    s = summary(check("ttft_p95", ttft), check("tpot_p95", tpot))
    found = judge(s, BOTH)
    assert (found.verdict, found.broke, found.p_hat_beyond) == (verdict, broke, beyond)
    first = judge(s, BOTH, baseline=True).verdict
    assert first == ("baseline" if verdict == "inconclusive" else verdict)


def test_the_joint_check_decides_over_the_single_ones() -> None:
    slo = parse_slo(["ttft=500ms", "tpot=50ms"])
    held = summary(check("ttft", "inconclusive"), check("tpot", "pass"), check("attainment", "pass"))
    assert judge(held, slo).verdict == "pass"
    broken = summary(check("ttft", "inconclusive"), check("tpot", "pass"), check("attainment", "fail"))
    assert judge(broken, slo).broke == ("attainment",)
    named = summary(check("ttft", "fail"), check("tpot", "pass"), check("attainment", "fail"))
    assert judge(named, slo).broke == ("ttft",)


def test_without_objectives_a_level_is_measured() -> None:
    assert judge(summary(), Slo()).verdict == "measured"
    assert judge(summary(), Slo(), baseline=True).verdict == "baseline"
    assert judge(replace(summary(judged=0)), BOTH).verdict == "inconclusive"


def test_errors_break_a_level_whatever_the_latencies() -> None:
    good = (check("ttft_p95", "pass"), check("tpot_p95", "pass"))
    assert judge(summary(*good, failed=1), BOTH).verdict == "pass"
    found = judge(summary(*good, failed=2), BOTH)
    assert (found.verdict, found.broke, found.error_rate, found.p_hat_beyond) == ("fail", ("errors",), 0.02, True)
    assert judge(summary(*good, failed=2), BOTH, max_error_rate=0.05).verdict == "pass"
    assert judge(summary(failed=2), Slo()).broke == ("errors",)
    assert judge(summary(*good, ended="errors"), BOTH).broke == ("errors",)


def test_a_client_at_its_limit_voids_the_level() -> None:
    assert judge(summary(ended="client"), BOTH).verdict == "invalid"
    assert judge(replace(summary(failed=50), requests={"client_error": 50}), BOTH).verdict == "invalid"
