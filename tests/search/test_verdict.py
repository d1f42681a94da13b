from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.results import Estimate, ObjectiveCheck, Slo, StepSummary
from loadgen.search.verdict import errors_verdict, judge
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


GOOD = (check("ttft_p95", "pass"), check("tpot_p95", "pass"))


@pytest.mark.parametrize(
    ("judged", "failed", "allowed", "verdict"),
    [
        (100, 1, 0.01, "pass"),
        (100, 2, 0.01, "inconclusive"),
        (100, 3, 0.01, "inconclusive"),
        (100, 4, 0.01, "fail"),
        (40, 1, 0.01, "inconclusive"),
        (40, 3, 0.01, "fail"),
        (1000, 10, 0.01, "pass"),
        (1000, 12, 0.01, "inconclusive"),
        (1000, 20, 0.01, "fail"),
        (2, 2, 0.01, "fail"),
        (1, 1, 0.01, "fail"),
        (100, 2, 0.05, "pass"),
        (100, 1, 0.0, "fail"),
        (100, 100, 1.0, "pass"),
    ],
)
def test_errors_break_a_level_only_when_they_are_proven(judged: int, failed: int, allowed: float, verdict: str) -> None:
    found = judge(summary(*GOOD, judged=judged, failed=failed), BOTH, max_error_rate=allowed)
    assert (found.verdict, found.error_rate) == (verdict, failed / judged)
    assert found.broke == (() if verdict == "pass" else ("errors",))
    assert found.p_hat_beyond == (verdict == "fail"), "undecided errors do not steer the search"
    without = judge(summary(judged=judged, failed=failed), Slo(), max_error_rate=allowed)
    assert without.verdict == {"pass": "measured"}.get(verdict, verdict)


def test_an_objective_that_is_broken_needs_no_decision_on_errors() -> None:
    found = judge(summary(check("ttft_p95", "fail"), failed=2), BOTH)
    assert (found.verdict, found.broke) == ("fail", ("ttft_p95",))
    found = judge(summary(check("ttft_p95", "marginal"), failed=2), BOTH)
    assert (found.verdict, found.broke) == ("inconclusive", ("ttft_p95", "errors"))


def test_a_run_of_failures_breaks_a_level_however_few_were_measured() -> None:
    assert judge(summary(*GOOD, ended="errors"), BOTH).broke == ("errors",)
    assert judge(summary(judged=0, ended="errors"), Slo()).verdict == "fail"


@given(st.integers(1, 500), st.integers(0, 500), st.sampled_from([0.0, 0.01, 0.05, 0.5]), st.integers(1, 20))
def test_more_failures_are_never_a_better_verdict(n: int, failed: int, allowed: float, looks: int) -> None:
    order = ["within", "undecided", "beyond"]
    failed = min(failed, n)
    found = [order.index(errors_verdict(k, n, allowed, looks)) for k in (failed, min(n, failed + 1))]
    assert found == sorted(found)
    assert order.index(errors_verdict(failed, n, allowed, looks)) <= order.index(errors_verdict(failed, n, allowed))


def test_a_client_at_its_limit_voids_the_level() -> None:
    assert judge(summary(ended="client"), BOTH).verdict == "invalid"
    assert judge(replace(summary(failed=50), requests={"client_error": 50}), BOTH).verdict == "invalid"


@pytest.mark.parametrize(
    ("ok", "flags", "tokens", "metric", "why"),
    [
        (16, {}, 1.0, "tpot", "answers have one token"),
        (16, {}, 1.0, "itl", "answers have one token"),
        (16, {}, 8.0, "tpot", "answers come in one piece"),
        (16, {"not_streamed": 16}, 8.0, "ttft", "the server does not stream its answers"),
        (16, {}, 8.0, "ttfc", "no answer has content beside its reasoning"),
        (4, {}, 1.0, "tpot", None),  # too few to say so of all
    ],
)
def test_why_no_answer_has_a_sample(
    ok: int, flags: dict[str, int], tokens: float, metric: str, why: str | None
) -> None:
    name = f"{metric}_p95"
    seen = replace(summary(check(name, "none")), requests={"ok": ok}, flags=flags, output_tokens_mean=tokens)
    found = judge(seen, parse_slo([f"{name}=50ms"]), baseline=True)
    assert found.verdict == "baseline"
    assert dict(found.unsampled) == ({} if why is None else {name: why})
