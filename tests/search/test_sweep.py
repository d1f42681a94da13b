from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.results import Estimate, LevelResult, NextLevel, ObjectiveCheck, Stop
from loadgen.search import SweepPlan, decide
from loadgen.search.levels import band, bracket
from loadgen.search.rates import RatePlan, decide_rate
from tests.thorough import examples

SLO = SweepPlan(has_slo=True)
PLAIN = SweepPlan(revisit=False)
VERDICTS = {"p": "pass", "f": "fail", "m": "marginal", "i": "inconclusive", "b": "inconclusive", "n": "measured"}
VERDICTS |= {"B": "baseline", "N": "baseline"}


def level(c: int, kind: str, tput: float | None = None, half: float = 0.02) -> LevelResult:
    """p: pass, f: fail, i: inconclusive, b: inconclusive with p̂ beyond the objective, m: marginal, n: no objective,
    B, N: a baseline that leans to either side."""
    t = tput if tput is not None else 50.0 * c
    broke = ("ttft_p95",) if kind in "fbmB" else ()
    estimate = Estimate(t, t * math.exp(-half), t * math.exp(half))
    return LevelResult(c, estimate, VERDICTS[kind], broke, p_hat_beyond=kind in "fbB")  # type: ignore[arg-type]


def levels(text: str) -> list[LevelResult]:
    """`1p 2p 4f`: verdicts while throughput keeps growing."""
    return [level(int(part[:-1]), part[-1]) for part in text.split()]


@pytest.mark.parametrize(
    ("history", "next_level"),
    [
        ("", 1),
        ("1i", 2),
        ("1b", 2),  # a lone undecided baseline does not end the rise
        ("1p 2p", 4),
        ("1p 2p 4f", 3),
        ("1p 2p 4p 8f", 6),
        ("1p 2p 4p 8f 6p", 7),
        ("1p 2p 4p 8f 6f", 5),
        ("1p 2p 4p 8b", 16),  # undecided: a level that fails for certain is still to be found
        ("1p 2p 4p 8b 16f", 6),  # then it steers by its estimate
        ("1p 2p 4p 8b 16b", 6),  # one rung more is enough
        ("1p 2p 4p 8b 16i", 6),
        ("1p 2p 4p 8b 16p", 32),  # what is proven outweighs an estimate
        ("1p 2p 4p 8i 16f", 11),
        ("1p 2p 4p 8p 16f 11b", 9),
        ("1p 2p 4p 8p 16f 11i", 13),
        ("1p 2p 4p 8p 16f 11f 9b 10p", 4),  # all but done: is the server still the same?
        ("1B 2f", 1),  # a baseline is no proof
        ("1N 2f", 1),
        ("1B 2b 4f", 1),
    ],
)
def test_the_rise_and_the_search(history: str, next_level: int) -> None:
    found = decide(levels(history), SLO)
    assert isinstance(found, NextLevel)
    assert found.concurrency == next_level
    assert found.why


@pytest.mark.parametrize(
    ("history", "reason", "held", "broke", "limit"),
    [
        ("1f", "slo:ttft_p95", None, 1, None),
        ("1p 2f", "slo:ttft_p95", 1, 2, 1),
        ("1p 2p 4p 8f 6p 7f 2p", "slo:ttft_p95", 6, 7, 6),
        ("1p 2p 4p 8f 6p 7p 2p", "slo:ttft_p95", 7, 8, 7),
        ("1p 2p 4p 8f 6p 7b 2p", "slo:ttft_p95", 6, 8, 6),  # an undecided level is neither held nor broken
        ("1p 2p 4p 8f 6p 7i 2p", "slo:ttft_p95", 6, 8, 7),  # but says where the limit is
        ("1p 2i 4f 3i", "slo:ttft_p95", 1, 4, 3),
        ("1p 2p 4m", "slo:ttft_p95", 2, None, 4),
        ("1p 2p 4p 8f 6m 2p", "slo:ttft_p95", 4, 8, 6),
        ("1b 2f", "slo:ttft_p95", None, 2, None),
        ("1p 2i 4b 8i 3b 2p", "slo:ttft_p95", 2, None, 2),
    ],
)
def test_where_an_objective_breaks(
    history: str, reason: str, held: int | None, broke: int | None, limit: int | None
) -> None:
    found = decide(levels(history), SLO)
    assert isinstance(found, Stop)
    assert (found.reason, found.held, found.broke, found.limit) == (reason, held, broke, limit)
    assert found.sentence.endswith(".")
    assert found.peak_throughput is not None


def test_a_level_that_failures_broke_says_so() -> None:
    check = ObjectiveCheck("ttft_p95", "ttft", 0.05, Estimate(0.4), math.inf, 400, "fail")
    found = decide([replace(level(4, "f"), checks=(check,))], SweepPlan(start=4, has_slo=True, levels=(4,)))
    assert isinstance(found, Stop) and "already break them (ttft_p95, by failures)" in found.sentence
    rated = replace(level(0, "f"), rate=4.0, checks=(check,))
    piled = decide_rate([replace(level(0, "p"), rate=3.9), rated], RatePlan(3.9))
    assert isinstance(piled, Stop) and "4 do not (ttft_p95, by failures)" in piled.sentence


@pytest.mark.parametrize(
    ("plan", "verb", "advice"),
    [
        (SweepPlan(start=4, has_slo=True), "sweep", "; try a lower --start."),
        (SweepPlan(levels=(4,), has_slo=True), "sweep", "; try lower --levels."),
        (SweepPlan(levels=(4,), has_slo=True), "run", "; try a lower -c."),
    ],
)
def test_a_lower_load_is_asked_for_by_the_flags_of_the_verb(plan: SweepPlan, verb: str, advice: str) -> None:
    found = decide([level(4, "f")], plan, verb)
    assert isinstance(found, Stop)
    assert found.sentence.endswith(f"4 concurrent requests, the lowest, already break them (ttft_p95){advice}")


@pytest.mark.parametrize(
    ("ended", "verb", "advice"),
    [
        ("complete", "run", "longer steps would tell."),
        ("interrupted", "sweep", "--resume goes on with them."),
        ("interrupted", "run", "longer steps would tell."),
        ("budget:time", "sweep", "a larger time budget may tell."),
    ],
)
def test_what_decides_an_undecided_level_is_what_there_is(ended: str, verb: str, advice: str) -> None:
    plan = SweepPlan(has_slo=True, levels=(2,), second_tries=0)
    found = decide([replace(level(2, "i"), ended=ended)], plan, verb)
    assert isinstance(found, Stop) and f"Undecided: 2; {advice}" in found.sentence


def test_no_growth_has_no_minus() -> None:
    found = decide(plain(100, 180, 180, 179.99), PLAIN)
    assert isinstance(found, Stop) and "changed by +0.0 % per doubling" in found.sentence


def test_refinement_is_bounded() -> None:
    history = levels("64p 128f 91p 108p 118p 123p")
    plan = SweepPlan(start=64, has_slo=True, resolution=1.0, refine=4, revisit=False)
    assert isinstance(decide(history, plan), Stop)
    more = decide(history, replace(plan, refine=5))
    assert isinstance(more, NextLevel)
    assert more.concurrency == 125


def test_resolution_ends_the_search() -> None:
    found = decide(levels("64p 128f 91p 108f 99p 103f"), SweepPlan(start=64, has_slo=True))
    assert isinstance(found, Stop)
    assert (found.held, found.broke) == (99, 103)
    assert found.sentence == "99 concurrent requests hold every objective, 103 do not (ttft_p95)."


def test_a_level_measured_again_is_only_checked() -> None:
    history = levels("1p 2p 4p 8f 6p 7f")
    found = decide(history, SLO)
    assert isinstance(found, NextLevel) and (found.concurrency, found.check) == (2, True)
    stop = decide([*history, level(2, "n")], SLO)
    assert isinstance(stop, Stop) and (stop.held, stop.broke) == (6, 7)
    assert not stop.unsteady


def plain(*throughputs: float, half: float = 0.02, factor: float = 2.0) -> list[LevelResult]:
    return [level(round(factor**i), "n", t, half) for i, t in enumerate(throughputs)]


@pytest.mark.parametrize(
    ("throughputs", "half", "right"),
    [
        ((100, 180, 320), 0.02, 8),  # grows
        ((100, 180, 184), 0.02, 8),  # one flat doubling is not two
        ((100, 180, 182, 184), 0.02, "plateau"),
        ((100, 180, 182, 184), 0.2, 16),  # too wide to tell
        ((100, 180, 200, 222), 0.02, 16),  # 11 % a doubling is growth
        ((100, 180, 186, 192), 0.02, "plateau"),  # 3 % is not
        ((100, 200, 180, 160), 0.02, "over_saturated"),
        ((100, 200, 199, 160), 0.02, "plateau"),  # fell only once for sure
        ((100,), 0.02, 2),
    ],
)
def test_plateau(throughputs: tuple[float, ...], half: float, right: int | str) -> None:
    found = decide(plain(*throughputs, half=half), PLAIN)
    assert (found.concurrency if isinstance(found, NextLevel) else found.reason) == right


def test_a_plateau_pools_its_last_two_levels() -> None:
    found = decide([*plain(100, 180), level(4, "n", 186, 0.01), level(8, "n", 182, 0.03)], PLAIN)
    wide = decide([*plain(100, 180, 184), level(8, "n", 188, 0.02)], PLAIN)
    assert isinstance(wide, Stop)
    assert wide.peak_throughput is not None
    assert wide.peak_throughput.value == pytest.approx(186, abs=0.1)
    assert wide.peak_throughput.high is not None
    assert wide.peak_throughput.high - 186 == pytest.approx(186 * 0.02 / math.sqrt(2), rel=0.02)
    assert isinstance(found, Stop)
    assert found.peak_throughput is not None
    assert found.peak_throughput.value == pytest.approx(
        186 - 4 / 10, abs=0.1
    )  # the narrow one weighs nine times as much
    assert (found.held, found.broke) == (None, None)


def test_unknown_intervals_never_make_a_plateau() -> None:
    history = [replace(r, output_throughput=Estimate(100.0)) for r in plain(1, 1, 1, 1, 1)]
    assert isinstance(decide(history, PLAIN), NextLevel)
    assert isinstance(decide([replace(r, output_throughput=None) for r in history], PLAIN), NextLevel)


def test_objectives_and_plateau_together() -> None:
    flat = [level(1, "p", 100), level(2, "p", 180), level(4, "p", 181), level(8, "i", 182), level(2, "p", 180)]
    found = decide(flat, SLO)
    assert isinstance(found, Stop)
    assert found.first == "plateau"
    assert (found.reason, found.held, found.broke) == ("plateau", 4, None)
    assert "stopped growing" in found.sentence
    assert "Undecided: 8" in found.sentence
    broken = decide([*flat[:3], level(8, "f", 182)], SLO)  # the objective goes first
    assert isinstance(broken, NextLevel)
    assert broken.concurrency == 6


def test_the_highest_level_is_not_passed() -> None:
    found = decide(levels("1n 2n 4n 8n"), SweepPlan(max_level=12))
    assert isinstance(found, NextLevel)
    assert found.concurrency == 12
    last = decide(levels("1n 2n 4n 8n 12n 2n"), SweepPlan(max_level=12))
    assert isinstance(last, Stop)
    assert last.reason == "max_level"
    assert "--max-level" in last.sentence


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"verdict": "fail", "broke": ("errors",), "error_rate": 0.5}, "errors"),
        ({"ended": "errors"}, "errors"),
        ({"ended": "unauthorized"}, "errors"),
        ({"ended": "client"}, "client_bound"),
        ({"ended": "budget"}, "budget"),
        ({"ended": "budget:tokens"}, "budget:tokens"),
        ({"ended": "interrupted"}, "interrupted"),
        ({"ended": "unreachable"}, "unreachable"),
    ],
)
@pytest.mark.parametrize("plan", [SLO, PLAIN, SweepPlan(levels=(1, 2, 4, 8), has_slo=True)])
def test_some_endings_stop_at_once(change: dict[str, object], reason: str, plan: SweepPlan) -> None:
    found = decide([*levels("1p 2p"), replace(level(4, "i"), **change)], plan)  # type: ignore[arg-type]
    assert isinstance(found, Stop)
    assert (found.reason, found.held) == (reason, 2)
    assert found.peak_throughput is not None
    assert "4 concurrent requests" in found.sentence


REFUSED = {"verdict": "fail", "broke": ("errors",), "ended": "errors", "admitted": 20, "detail": "10 of 10 failed: 429"}


@pytest.mark.parametrize("plan", [SLO, PLAIN, SweepPlan(levels=(8, 16, 32, 64), has_slo=True)])
def test_an_admission_limit_is_named_with_its_number(plan: SweepPlan) -> None:
    found = decide([*levels("8p 16p"), replace(level(32, "i"), **REFUSED)], plan)  # type: ignore[arg-type]
    assert isinstance(found, Stop)
    assert (found.reason, found.held, found.broke) == ("errors:admission_limit", 16, 32)
    assert "answers about 20 requests at once and refuses more" in found.sentence
    assert "at 32 concurrent requests, 10 of 10 failed: 429" in found.sentence
    assert found.peak_throughput is not None and found.peak_throughput.value == 800


def test_an_admission_limit_without_a_level_below_it_is_failure_with_the_number() -> None:
    found = decide([replace(level(32, "i"), **REFUSED)], PLAIN)  # type: ignore[arg-type]
    assert isinstance(found, Stop)
    assert (found.reason, found.held) == ("errors", None)
    assert "about 20 requests at once" in found.sentence


@pytest.mark.parametrize("plan", [SLO, PLAIN])
def test_failures_too_few_to_prove_do_not_end_a_sweep(plan: SweepPlan) -> None:
    unsure = replace(level(4, "i"), broke=("errors",), error_rate=0.025)
    found = decide([*levels("1p 2p"), unsure], plan)
    assert isinstance(found, NextLevel) and found.concurrency == 8
    last = decide([*levels("1p 2p"), unsure], replace(plan, max_level=4))
    assert isinstance(last, Stop) and last.reason == "max_level"
    assert last.peak_throughput is not None and last.peak_throughput.value == 200


def test_a_given_list_is_run_to_its_end() -> None:
    plan = SweepPlan(levels=(1, 16, 4), has_slo=True)
    assert [decide(levels(h), plan).concurrency for h in ("", "1p", "1p 16f")] == [1, 16, 4]  # type: ignore[union-attr]
    end = decide(levels("1p 16f 4p"), plan)
    assert isinstance(end, Stop)
    assert (end.reason, end.held, end.broke) == ("slo:ttft_p95", 4, 16)
    held = decide(levels("1p 16p 4p"), plan)
    assert isinstance(held, Stop)
    assert (held.reason, held.held, held.broke) == ("max_level", 16, None)
    odd = decide(levels("1p 16p 4f"), plan)  # a pass above a fail is not called held
    assert isinstance(odd, Stop)
    assert (odd.held, odd.broke, odd.held_again) == (1, 4, (16,))
    assert "Above that, 16 holds every objective again." in odd.sentence
    chance = decide(levels("1b 16p 4p"), plan)
    assert isinstance(chance, Stop)
    assert (chance.reason, chance.held) == ("max_level", 16)


@pytest.mark.parametrize(
    ("history", "sentence"),
    [
        (
            "1p 4f 8p 12p",
            "1 concurrent request holds every objective, 4 do not (ttft_p95)."
            " Above that, 8 and 12 hold every objective again.",
        ),
        (
            "1f 4f 8p 10p 12p",
            "1 concurrent request breaks the objectives (ttft_p95), and no lower level is proven to hold them."
            " Above that, 8, 10 and 12 hold every objective again.",
        ),
        ("1p 4f 8i 12f", "1 concurrent request holds every objective, 4 do not (ttft_p95)."),
    ],
)
def test_levels_that_hold_above_one_that_does_not_are_named(history: str, sentence: str) -> None:
    measured = levels(history)
    found = decide(measured, SweepPlan(levels=tuple(one.concurrency for one in measured), has_slo=True))
    assert isinstance(found, Stop)
    assert found.sentence == sentence


def unsampled(*kinds: str) -> list[LevelResult]:
    """Of the TPOT no level has a sample."""
    none = ObjectiveCheck("tpot_p95", "tpot", 0.05, None, None, 0, "inconclusive")
    why = {"tpot_p95": "answers have one token"}
    return [replace(one, checks=(none,), unsampled=why) for one in levels(" ".join(kinds))]


def test_an_objective_without_any_sample_ends_a_sweep_at_once() -> None:
    found = decide(unsampled("1N"), SLO)
    assert isinstance(found, Stop)
    assert (found.reason, found.held, found.broke, found.limit) == ("no_sample:tpot_p95", None, None, None)
    assert found.sentence == (
        "tpot_p95 has no sample, as answers have one token: no load can be told to hold or to break it."
        " Highest output throughput: 50.0 ±1.0 tokens/s."
    )
    assert isinstance(decide(levels("1N"), SLO), NextLevel)
    sampled = [*unsampled("1N"), *levels("2i")]
    sampled[1] = replace(sampled[1], checks=sampled[0].checks)
    assert isinstance(decide(sampled, SLO), NextLevel), "the second level has a sample"


def test_an_objective_without_any_sample_is_said_of_a_list_and_its_limit_is_not() -> None:
    plan = SweepPlan(levels=(1, 8, 16), has_slo=True)
    assert isinstance(decide(unsampled("1i"), plan), NextLevel)
    found = decide(unsampled("1i", "8i", "16f"), plan)
    assert isinstance(found, Stop)
    assert (found.reason, found.broke, found.limit) == ("slo:ttft_p95", 16, None)
    assert "tpot_p95 has no sample" in found.sentence and "16 concurrent requests break" in found.sentence
    assert "most likely" not in found.sentence and "Undecided" not in found.sentence


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": 0},
        {"factor": 1.0},
        {"factor": 1.001},
        {"max_level": 2, "start": 4},
        {"levels": ()},
        {"levels": (4, 0)},
        {"precision": 0.001},
        {"precision": 0.6},
        {"precision": math.nan},
    ],
)
def test_a_plan_that_cannot_be_meant(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        SweepPlan(**wrong)  # type: ignore[arg-type]
    assert caught.value.remedy


# --- whole searches -------------------------------------------------------------------------------------------------


def run(plan: SweepPlan, measure: object) -> tuple[Stop, list[LevelResult]]:
    history: list[LevelResult] = []
    for _ in range(200):
        found = decide(history, plan)
        if isinstance(found, Stop):
            return found, history
        history.append(measure(found.concurrency))  # type: ignore[operator]
    raise AssertionError("the sweep does not end")


@pytest.mark.parametrize("factor", [1.5, 2.0, 4.0])
@pytest.mark.parametrize("knee", [3, 24, 90])
def test_an_engine_with_a_knee(factor: float, knee: int) -> None:
    """Throughput 50·min(c, knee) with 1 % noise: the plateau is found, soon, and right."""
    for seed in range(40):
        rng = np.random.default_rng(seed)

        def measure(c: int, rng: np.random.Generator = rng) -> LevelResult:
            return level(c, "n", 50 * min(c, knee) * math.exp(rng.normal(0, 0.01)), 0.02)

        stop, history = run(SweepPlan(factor=factor, max_level=4096), measure)
        assert stop.reason in ("plateau", "over_saturated")
        assert stop.peak_throughput is not None
        assert stop.peak_throughput.value == pytest.approx(50 * knee, rel=0.05)
        assert max(h.concurrency for h in history) <= knee * factor * 4 * factor


def test_an_engine_that_keeps_growing_is_not_stopped() -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        stop, _ = run(PLAIN, lambda c, rng=rng: level(c, "n", 50 * c**0.2 * math.exp(rng.normal(0, 0.01)), 0.02))
        assert stop.reason == "max_level"  # +15 % a doubling


def test_the_limit_of_an_objective_is_bracketed() -> None:
    """TTFT grows with c, its p95 meets the objective at `limit`; the exceedance is judged with some noise."""
    wrong = off = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        limit = float(np.exp(rng.uniform(math.log(3), math.log(200))))

        def measure(c: int, rng: np.random.Generator = rng, limit: float = limit) -> LevelResult:
            z = 60 * math.log(c / limit) + rng.normal()  # standard errors beyond the objective
            return level(c, "f" if z > 1.96 else "p" if z < -1.96 else "b" if z > 0 else "i")

        stop, history = run(SLO, measure)
        assert len(history) <= 9 + SLO.extra
        assert stop.reason == "slo:ttft_p95"
        assert stop.held is not None
        assert stop.broke is not None
        wrong += not stop.held < limit < stop.broke
        assert stop.limit is not None
        off += abs(stop.limit - limit) > max(1.0, 0.08 * limit)
    assert wrong <= 12  # one-sided 2.5 % on either side
    assert off <= 6  # half of that is the resolution


result = st.builds(
    LevelResult,
    concurrency=st.just(1),
    output_throughput=st.none()
    | st.builds(Estimate, st.floats(-10, 1e6), st.none() | st.floats(-10, 1e6), st.none() | st.floats(-10, 1e6)),
    verdict=st.sampled_from(["baseline", "pass", "fail", "marginal", "inconclusive", "measured", "invalid"]),
    broke=st.sampled_from([(), ("ttft_p95",), ("a", "b"), ("errors",)]),
    error_rate=st.floats(0, 1),
    ended=st.sampled_from(["complete"] * 12 + ["budget:time", "errors", "client", "interrupted"]),
    p_hat_beyond=st.booleans(),
)
plans = st.builds(
    SweepPlan,
    start=st.integers(1, 20),
    factor=st.floats(1.01, 8),
    max_level=st.integers(20, 500),
    levels=st.none() | st.lists(st.integers(1, 99), min_size=1, max_size=5).map(tuple),
    has_slo=st.booleans(),
    refine=st.none() | st.integers(0, 6),
    revisit=st.booleans(),
    precision=st.none() | st.floats(0.01, 0.5),
)


@settings(max_examples=examples(120), deadline=None)
@given(plans, st.lists(result, min_size=1, max_size=30))
def test_no_history_runs_for_ever_or_raises(plan: SweepPlan, results: list[LevelResult]) -> None:
    history: list[LevelResult] = []
    for i in range(3000):
        found = decide(history, plan)
        if isinstance(found, Stop):
            break
        assert 1 <= found.concurrency <= (max(plan.levels) if plan.levels else plan.max_level)
        drawn = results[i % len(results)]
        history.append(replace(drawn, concurrency=found.concurrency, ended="complete" if i % 7 else drawn.ended))
    else:
        raise AssertionError("the sweep does not end")
    assert found.sentence
    assert found.held is None or found.broke is None or found.held < found.broke
    assert found.held is None or any(h.concurrency == found.held and h.verdict == "pass" for h in history)


@settings(deadline=None)
@given(plans, st.lists(st.tuples(st.integers(1, 500), result), max_size=12))
def test_no_foreign_history_raises(plan: SweepPlan, rows: list[tuple[int, LevelResult]]) -> None:
    decide([replace(r, concurrency=c) for c, r in rows], plan)


# --- the client as the limit ----------------------------------------------------------------------------------------


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("pfmibn"), st.floats(0.5, 1.5)), max_size=8),
    st.sampled_from([PLAIN, SLO, SweepPlan(levels=tuple(range(1, 20)), has_slo=True)]),
)
def test_a_level_that_the_client_limited_twice_ends_the_sweep_and_is_no_plateau(
    before: list[tuple[str, float]], plan: SweepPlan
) -> None:
    """Whatever was measured before, however flat: what is said is that the client was the limit."""
    history = [level(2**i, kind, 1000.0 * t, half=0.001) for i, (kind, t) in enumerate(before)]
    bound = replace(level(2 ** len(before), "n", 1000.0), verdict="invalid", detail="no CPU for 98 % of the time")
    again = decide([*history, bound], plan)
    assert isinstance(again, NextLevel) and again.concurrency == bound.concurrency
    assert again.why == "again, as this client was the limit (no CPU for 98 % of the time)"
    stop = decide([*history, bound, bound], plan)
    assert stop == decide([*history, bound], replace(plan, second_tries=0))
    assert isinstance(stop, Stop) and stop.reason == "client_bound"
    assert "client was the limit" in stop.sentence and "no CPU for 98 % of the time" in stop.sentence
    assert stop.held != bound.concurrency and stop.broke != bound.concurrency
    if stop.peak_throughput is not None:
        assert any(one.output_throughput == stop.peak_throughput for one in history)


def test_a_plateau_needs_levels_that_the_server_limited() -> None:
    flat = [level(c, "n", 1000.0, half=0.001) for c in (1, 2, 4, 8)]
    found = decide(flat, PLAIN)
    assert isinstance(found, Stop) and found.reason == "plateau"
    last = decide([*flat[:3], replace(flat[3], verdict="invalid")], PLAIN)
    assert isinstance(last, NextLevel) and last.concurrency == 8


@pytest.mark.parametrize("plan", [SLO, PLAIN, replace(SLO, precision=0.025), SweepPlan(levels=(1, 2, 4, 8, 16))])
def test_what_the_client_shaped_never_counts_once_it_was_measured_again(plan: SweepPlan) -> None:
    """With any two windows of a sweep shaped, each followed by one that is not, its every decision is the same."""

    def measure(c: int, check: bool) -> LevelResult:
        return level(c, "n" if check or not plan.has_slo else "f" if c > 11 else "p", 50.0 * min(c, 9), half=0.04)

    history: list[LevelResult] = []
    asked: list[NextLevel] = []
    while isinstance(found := decide(history, plan), NextLevel):
        asked.append(found)
        history.append(measure(found.concurrency, found.check))
    assert len(history) > 4
    for one, other in combinations(range(len(history)), 2):
        longer: list[LevelResult] = []
        for place, (level_, wanted) in enumerate(zip(history, asked, strict=True)):
            assert decide(longer, plan) == wanted
            if place in (one, other):
                longer.append(replace(level_, verdict="invalid", output_throughput=Estimate(9e9, 8e9, 1e10)))
                again = decide(longer, plan)
                assert isinstance(again, NextLevel) and replace(again, why=wanted.why) == wanted
            longer.append(level_)
        assert decide(longer, plan) == found


def test_a_client_that_is_the_limit_again_and_again_ends_the_sweep() -> None:
    history = [
        *(replace(level(1, "p"), verdict="invalid"), level(1, "p")),
        *(replace(level(2, "p"), verdict="invalid"), level(2, "p")),
        *(level(4, "p"), replace(level(8, "p"), verdict="invalid")),
    ]
    stop = decide(history, SLO)
    assert isinstance(stop, Stop) and (stop.reason, stop.held) == ("client_bound", 4)


# --- what the answer says besides -----------------------------------------------------------------------------------


def near(c: int, kind: str, ratio: float, **change: object) -> LevelResult:
    return replace(level(c, kind), of_limit={"ttft_p95": ratio}, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("steep", [0.3, 1.0, 3.0])
def test_the_band_is_where_the_percentile_stays_within_5_percent(steep: float) -> None:
    """The percentile is (c / 20)^steep of its limit: the loads at 0.95 and 1.05 are known."""
    history = [near(c, "p" if c <= 20 else "f", (c / 20) ** steep) for c in (4, 8, 16, 32, 22, 19, 20, 21, 8)]
    stop = decide(history, SLO)
    assert isinstance(stop, Stop) and stop.limit == 20 and stop.band is not None
    assert stop.band == pytest.approx((20 * 0.95 ** (1 / steep), 20 * 1.05 ** (1 / steep)))
    assert "ttft_p95 stays within 5 % of its limit from" in stop.sentence


def test_a_percentile_that_does_not_depend_on_the_load_has_no_band() -> None:
    stop = decide([near(c, "p" if c <= 20 else "f", 1.0) for c in (4, 8, 16, 32, 22, 19, 20, 21, 8)], SLO)
    assert isinstance(stop, Stop) and stop.band is None


@given(st.lists(st.floats(0.5, 2.0), min_size=5, max_size=5))
def test_a_band_never_contradicts_the_limit(ratios: list[float]) -> None:
    """Levels that lean by estimates which need not rise with the load, as those of an unsteady server do not."""
    loads = (32, 46, 49, 54, 59)
    leaning = [near(c, "b" if ratio > 1 else "i", ratio) for c, ratio in zip(loads, ratios, strict=True)]
    latest = {level_.concurrency: level_ for level_ in [near(24, "p", 0.7), *leaning, near(64, "f", 1.5)]}
    limit, _ = bracket(latest)
    assert limit is not None
    found = band(latest, limit, "ttft_p95")
    above = min(c for c in latest if c > limit)
    assert found is None or (found[0] <= above and found[1] >= limit)


def test_what_came_first() -> None:
    growing = decide([*levels("1p 2p 4p 8f 6p 7f"), level(2, "p", 100)], SLO)
    assert isinstance(growing, Stop) and growing.first == "slo"
    both = decide([level(c, k, 50.0 * min(c, 2)) for c, k in ((1, "p"), (2, "p"), (8, "f"), (4, "p"), (6, "p"),
                  (7, "p"), (2, "p"))], replace(SLO, factor=4.0))  # fmt: skip
    assert isinstance(both, Stop) and both.first == "tie"


@pytest.mark.parametrize(("later", "unsteady"), [(100.0, False), (101.5, False), (94.0, True), (106.0, True)])
def test_an_early_level_that_has_changed_is_told(later: float, unsteady: bool) -> None:
    history = [*levels("1p 2p 4p 8f 6p 7f"), level(2, "p", later, 0.01)]
    history[1] = level(2, "p", 100.0, 0.01)
    stop = decide(history, SLO)
    assert isinstance(stop, Stop)
    assert stop.unsteady == unsteady
    assert ("not steady" in stop.sentence) == unsteady


def test_the_peak_goodput_is_of_any_level() -> None:
    history = [
        replace(one, goodput=g) for one, g in zip(levels("1p 2p 4p 8f 6p 7f 2p"), (1, 2, 4, 1, 6, 3, 2), strict=True)
    ]
    stop = decide(history, SLO)
    assert isinstance(stop, Stop) and stop.peak_goodput == 6
