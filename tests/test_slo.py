from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.results import SLO_METRICS, ObjectiveCheck, Slo
from loadgen.slo import PRESETS, broken_names, objective_name, parse_slo


@pytest.mark.parametrize(
    ("text", "metric", "percentile", "limit_ms"),
    [
        ("ttft_p95=500ms", "ttft", 95, 500),
        ("tpot=50ms", "tpot", None, 50),
        ("tpot=50", "tpot", None, 50),
        ("e2e_p99.9=2s", "e2e", 99.9, 2000),
        ("ttft_scheduled_p95<=1s", "ttft_scheduled", 95, 1000),
        ("e2e_scheduled<1.5s", "e2e_scheduled", None, 1500),
        ("itl_p99:250us", "itl", 99, 0.25),
        ("ttfc_p50=.5s", "ttfc", 50, 500),
        (" TTFT_P95 <= 500 MS ", "ttft", 95, 500),
        ("e2el:2000", "e2e", None, 2000),
        ("e2el_p99=2s", "e2e", 99, 2000),
        ("ttft_p95=5e2", "ttft", 95, 500),
        ("ttft_p95=80µs", "ttft", 95, 0.08),
    ],
)
def test_one_objective(text: str, metric: str, percentile: float | None, limit_ms: float) -> None:
    (found,) = parse_slo([text]).objectives
    assert (found.metric, found.percentile) == (metric, percentile)
    assert found.limit_ms == pytest.approx(limit_ms)


def test_several_in_one_text_or_many() -> None:
    one = parse_slo(["ttft:200 tpot:50 e2e:2000"])
    assert one == parse_slo(["ttft:200", "tpot:50", "e2e:2000"]) == parse_slo(["ttft:200,tpot:50; e2e:2000"])
    assert [objective_name(o) for o in one.objectives] == ["ttft", "tpot", "e2e"]
    assert [objective_name(o) for o in parse_slo(["ttft_p95=1s", "ttft=2s", "ttft_p99=2s"]).objectives] == [
        "ttft_p95",
        "ttft",
        "ttft_p99",
    ]


@pytest.mark.parametrize("text", ["attainment=95%", "attainment=0.95", "attainment>=95 %", "ATTAINMENT : .95"])
def test_attainment(text: str) -> None:
    assert parse_slo([text, "tpot=50ms"]).attainment == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("broke", "failed", "said"),
    [
        (("ttft_p95",), (), "ttft_p95"),
        (("ttft_p95",), ("ttft_p95",), "ttft_p95, by failures"),
        (("ttft_p95", "tpot"), ("ttft_p95", "tpot"), "ttft_p95, tpot, by failures"),
        (("ttft_p95", "tpot"), ("tpot",), "ttft_p95, tpot by failures"),
        (("unstable", "ttft_p95"), ("ttft_p95",), "unstable, ttft_p95 by failures"),
        ((), ("ttft_p95",), ""),
    ],
)
def test_what_failures_broke_is_told_so(broke: tuple[str, ...], failed: tuple[str, ...], said: str) -> None:
    checks = [
        ObjectiveCheck(name, "ttft", 0.05, None, math.inf if name in failed else 9.0, 100, "fail")
        for name in sorted({*broke, *failed})
    ]
    assert broken_names(broke, checks) == said


def test_nothing_asked_is_no_slo() -> None:
    assert parse_slo([]) == Slo()
    assert not parse_slo([])


@pytest.mark.parametrize(
    ("texts", "fault"),
    [
        ([""], "is empty"),
        (["ttft_p95"], "no limit"),
        (["ttft_p95="], "no number"),
        (["=500ms"], "names no metric"),
        (["tttf_p95=500ms"], "'tttf_p95'"),
        (["latency=3"], "'latency'"),  # which latency?
        (["ttft_95=500ms"], "'ttft_95'"),
        (["ttft_mean=500ms"], "'ttft_mean'"),
        (["ttft_p95=fast"], "'fast'"),
        (["ttft_p95==500ms"], "no number"),
        (["ttft_p95=500min"], "unknown unit 'min'"),
        (["ttft_p95=50%"], "unknown unit '%'"),
        (["ttft_p95=0"], "above zero"),
        (["ttft_p95=-5ms"], "above zero"),
        (["ttft_p95=1e400"], "above zero"),
        (["ttft_p95=nan"], "no number"),
        (["ttft_p95=0,5s"], "comma"),
        (["ttft_p95>500ms"], "above its limit"),
        (["ttft_p0=500ms"], "percentile 0"),
        (["ttft_p100=500ms"], "percentile 100"),
        (["ttft_p950=500ms"], "percentile 950"),
        (["ttft_p95=1s", "ttft_p95.0=2s"], "given twice"),
        (["tpot=1s tpot=1s"], "given twice"),
        (["itl=50ms"], "many ITLs"),
        (["tpot=50ms", "attainment=95"], "not an attainment"),
        (["tpot=50ms", "attainment=100%"], "100 %"),
        (["tpot=50ms", "attainment=0"], "not an attainment"),
        (["tpot=50ms", "attainment<95%"], "from above"),
        (["tpot=50ms", "attainment=95%", "attainment=90%"], "given twice"),
        (["ttft_p95=1s", "attainment=95%"], "no objective that bounds each request"),
        (["attainment=95%"], "no objective"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_remedy(texts: list[str], fault: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_slo(texts)
    assert fault in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.remedy


def test_an_unknown_metric_is_answered_with_the_list() -> None:
    with pytest.raises(UsageError) as caught:
        parse_slo(["latncy_p95=1s"])
    assert all(metric in caught.value.remedy for metric in (*SLO_METRICS, "e2el"))


@settings(deadline=None)
@given(st.lists(st.text(max_size=30), max_size=3))
def test_any_text_is_understood_or_refused(texts: list[str]) -> None:
    try:
        slo = parse_slo(texts)
    except UsageError:
        return
    assert all(0 < o.limit_ms < float("inf") for o in slo.objectives)


@settings(deadline=None)
@given(
    st.sampled_from([m for m in SLO_METRICS if m != "itl"]),
    st.none() | st.integers(1, 99),
    st.floats(1e-3, 1e6),
    st.sampled_from(["ms", "s", "us", ""]),
)
def test_round_trip(metric: str, p: int | None, limit: float, unit: str) -> None:
    name = metric if p is None else f"{metric}_p{p}"
    (found,) = parse_slo([f"{name}={limit!r}{unit}"]).objectives
    assert objective_name(found) == name
    assert found.limit_ms == pytest.approx(limit * {"ms": 1, "": 1, "s": 1000, "us": 1e-3}[unit])


@pytest.mark.parametrize(
    ("name", "spelt"),
    [
        ("mlperf:llama3.1-8b-interactive", ["ttft_p99=500ms", "tpot_p99=30ms"]),
        ("mlperf:llama3.1-405b", ["ttft_p99=6s", "tpot_p99=175ms"]),
        ("mlperf:qwen3-vl-235b-a22b", ["e2e_p99=12s"]),
        ("distserve:opt-66b-humaneval", ["ttft=125ms", "tpot=0.2s", "attainment=90%"]),
        (" Mooncake:TBT-200ms", ["ttft=30s", "itl_p95=200ms"]),
    ],
)
def test_objectives_by_name(name: str, spelt: list[str]) -> None:
    found, own = parse_slo([name]), parse_slo(spelt)
    assert [(o.metric, o.percentile, o.limit_ms) for o in found.objectives] == [
        (o.metric, o.percentile, o.limit_ms) for o in own.objectives
    ]
    assert found.attainment == own.attainment


def test_every_name_is_one_and_may_stand_beside_others() -> None:
    assert len(PRESETS) == 12 + 5 + 3
    for name in PRESETS:
        assert parse_slo([name])
    assert len(parse_slo(["mlperf:llama2-70b", "e2e=9s"]).objectives) == 3
    with pytest.raises(UsageError, match="given twice"):
        parse_slo(["mlperf:llama2-70b", "ttft_p99=1s"])


@pytest.mark.parametrize(
    ("given", "said", "remedy"),
    [
        ("mlperf:llama2-70", "'mlperf:llama2-70'", "did you mean mlperf:llama2-70b"),
        ("distserve:", "'distserve:'", "distserve:opt-13b-sharegpt"),
        ("list", "To list is no objective", "mlperf:llama2-70b, mlperf:"),
    ],
)
def test_a_name_that_is_none_lists_those_there_are(given: str, said: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_slo([given])
    assert said in caught.value.message and remedy in caught.value.remedy
