"""Field cases M: from a real stream or a whole step through record, columns and summary to what the report says."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from loadgen.analysis import metrics
from loadgen.client.dialects.base import RequestOptions
from loadgen.log.columns import columns
from loadgen.records import Prompt, Record
from loadgen.report.details import step_details
from loadgen.results import Slo
from loadgen.search.verdict import judge
from loadgen.simulator.scripted import (
    CU,
    DONE,
    FIN,
    ROLE,
    C,
    Hang,
    J,
    Request,
    ScriptedServer,
    T,
    U,
    error_reply,
    json_reply,
)
from loadgen.slo import parse_slo
from tests.cases.support import MakeSender, send, send_one, some, spec, summary_of, texts

# --- several tokens in a chunk ----------------------------------------------------------------------------------------

M01 = [T(60), CU("a", 1), T(40), CU("b c d e", 5), T(40), CU("f g h i", 9), FIN("length"), U(3, 9), DONE]
M01_BLIND = [T(60), C("a"), T(40), C("b c d e"), T(40), C("f g h i"), FIN("length"), U(3, 9), DONE]


@pytest.mark.parametrize("told", [True, False], ids=["M01 counts with each event", "M01 a count at the end"])
def test_m01_several_tokens_in_a_chunk(told: bool, make_sender: MakeSender) -> None:
    record = send_one(make_sender, M01 if told else M01_BLIND)
    c = columns([record])
    assert record.first_token_ns is not None
    assert record.last_token_ns is not None
    span = (record.last_token_ns - record.first_token_ns) / 1e6
    assert span > 60
    assert metrics.tpot(c)[0] == pytest.approx(span / 8)
    gaps, itl = metrics.inter_chunk(c), metrics.itl(c)
    assert len(gaps.values) == 2
    assert len(itl.values) == 8
    assert itl.estimated == (not told)
    assert itl.values.sum() == pytest.approx(span, rel=1e-3)
    if told:
        assert itl.values == pytest.approx(np.repeat(gaps.values / 4, 4))
    text, json = texts(summary_of([record]))
    assert "inter-chunk gap" in text
    assert ("ITL (estimated)" in text) == (not told)
    assert json["estimated_itl"] == (not told)
    assert json["mean_itl_ms"] == pytest.approx(span / 8, rel=1e-3)
    assert json["mean_inter_chunk_ms"] == pytest.approx(span / 2, rel=1e-3)


M02: dict[str, tuple[list[Any], int, int]] = {  # script, tokens of the first event, tokens in all
    "M02": ([T(40), CU("a b c d", 4), T(30), CU("e", 5), FIN("length"), U(3, 5), DONE], 4, 5),
    "M02 not told": ([T(40), C("a b c d"), T(30), C("e"), FIN("length"), U(3, 5), DONE], 1, 5),
    "M02 more than the total": ([T(40), CU("a b c d", 4), T(30), CU("e", 5), FIN("length"), U(3, 3), DONE], 1, 3),
    "M02 token ids": (
        [
            T(40),
            J({"choices": [{"index": 0, "text": "abcd", "token_ids": [1, 2, 3, 4]}]}),
            T(30),
            J({"choices": [{"index": 0, "text": "e", "token_ids": [5], "finish_reason": "length"}]}),
            DONE,
        ],
        4,
        5,
    ),
}


@pytest.mark.parametrize("case", M02)
def test_m02_the_first_chunk_holds_several_tokens(case: str, make_sender: MakeSender) -> None:
    script, first, count = M02[case]
    record = send_one(make_sender, script)
    assert (record.first_event_tokens or 1, record.output_tokens.count) == (first, count)
    assert (record.first_event_tokens is None) == (first == 1), "an assumption is told from a count"
    assert record.first_token_ns is not None
    assert record.last_token_ns is not None
    span = (record.last_token_ns - record.first_token_ns) / 1e6
    assert metrics.tpot(columns([record]))[0] == pytest.approx(span / (count - first))


def test_m04_a_stall_shows_in_the_gaps_and_is_one_value_of_tpot(make_sender: MakeSender) -> None:
    script = [C("a"), *[x for _ in range(25) for x in (T(2), C("a"))], T(300), C("a"), FIN("stop"), U(3, 27), DONE]
    record = send_one(make_sender, script)
    summary = summary_of([record])
    gaps = summary.latency["inter_chunk"]
    assert gaps.n == 26
    assert gaps.max is not None
    assert gaps.max > 285
    median, p99 = gaps.at(50.0), gaps.at(99.0)
    assert median is not None
    assert p99 is not None
    assert median.value < 30 < 150 < p99.value
    tpot = summary.latency["tpot"]
    assert tpot.n == 1
    assert tpot.max is not None
    assert 300 / 26 <= tpot.max < gaps.max / 2


# --- counts -----------------------------------------------------------------------------------------------------------


def twenty(request: Request) -> Any:
    yield from [C("a")] * 20
    yield FIN("stop")
    if (request.json.get("stream_options") or {}).get("include_usage"):
        yield U(3, 33)
    yield DONE


@pytest.mark.parametrize(("asks", "count", "source"), [(True, 33, "usage"), (False, 20, "events")])
def test_m05_never_the_length_asked_for(asks: bool, count: int, source: str, make_sender: MakeSender) -> None:
    record = send_one(
        make_sender, twenty, prompt=Prompt("hi", output_tokens=512), options=RequestOptions("m", usage=asks)
    )
    assert (record.output_tokens.count, record.output_tokens.source) == (count, source)
    assert "short_output" in record.flags
    assert ("usage_missing" in record.flags) is False  # it came, or was not asked for


def test_m06_usage_wins_over_a_hundred_blanks(make_sender: MakeSender) -> None:
    record = send_one(make_sender, [*[C(" ")] * 90, FIN("length"), U(3, 100), DONE])
    assert (record.output_tokens.count, record.output_tokens.source) == (100, "usage")
    assert metrics.event_tokens(columns([record])).count.sum() == pytest.approx(100)


ONE = [T(10), CU("a", 1), FIN("length"), U(3, 1), DONE]
NONE = [ROLE, FIN("stop"), U(3, 0), DONE]
M07: dict[str, tuple[Any, str]] = {
    "M07 one token": (ONE, "ok"),
    "M07 no token": (NONE, "empty"),
    "M07 refused": (error_reply(500, "x"), "error"),
    "M07 not streamed": (
        json_reply({"choices": [{"index": 0, "message": {"content": "a b"}, "finish_reason": "stop"}]}), "ok"
    ),
}  # fmt: skip


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("case", M07)
def test_m07_nothing_to_divide_by(case: str, n: int, make_sender: MakeSender) -> None:
    script, outcome = M07[case]
    records = some(make_sender, script, n)
    assert {record.outcome for record in records} == {outcome}
    slo = parse_slo(["tpot_p95=50ms", "ttft=100ms", "itl_p50=10ms"])
    summary = summary_of(records, slo)
    for name in ("tpot", "itl", "inter_chunk"):
        assert summary.latency[name].n == 0
        assert summary.latency[name].mean is None
    text, json = texts(summary)
    for name in ("mean_tpot_ms", "median_itl_ms", "p99_tpot_ms", "max_inter_chunk_ms", "tokens_per_user_tok_s"):
        assert json[name] is None
    assert "nan" not in text.lower()
    assert "inf" not in text.lower()
    tpot = next(check for check in summary.objectives if check.objective == "tpot_p95")
    assert tpot.verdict != "pass", "an objective without samples is not established"


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "outcome"),
    [([ROLE, DONE], "empty"), ([C("a")], "incomplete"), ([C("a"), J({"error": "x"})], "error")],
    ids=["M10 empty at once", "M09 no end", "P22 an error after a token"],
)
def test_m10_no_headline_without_a_success(script: Any, outcome: str, make_sender: MakeSender) -> None:
    summary = summary_of(some(make_sender, script, 5))
    assert summary.requests == {outcome: 5}
    assert summary.failed == 5
    assert summary.output_throughput is None
    assert summary.output_throughput_classic is None
    assert all(found.n == 0 for found in summary.latency.values())
    level = judge(summary, Slo())
    assert (level.verdict, level.broke) == ("fail", ("errors",))


def test_p05_empty_answers_pull_no_percentile(make_sender: MakeSender) -> None:
    def every_other(request: Request) -> Any:
        return NONE if request.number % 2 else [T(40), C("a"), FIN("stop"), U(3, 1), DONE]

    summary = summary_of(some(make_sender, every_other, 8))
    assert summary.requests == {"ok": 4, "empty": 4}
    assert summary.latency["ttft"].n == 4
    median = summary.latency["ttft"].at(50.0)
    assert median is not None
    assert median.value >= 38
    text, _ = texts(summary)
    assert "4 × empty" in text


def test_m15_goodput_and_attainment(make_sender: MakeSender) -> None:
    """Six within the objectives, two too late, one error; one cut at the end, which is left out."""
    good = [T(10), C("a"), T(5), C("a"), FIN("stop"), U(3, 2), DONE]
    late = [T(450), *good[1:]]
    scripts = [*[good] * 6, late, late, error_reply(500, "x")]
    records = send(make_sender, lambda request: scripts[request.number], sends=9)
    records.append(cut_one(make_sender))
    slo = parse_slo(["ttft=300ms", "tpot=300ms", "e2e=2000ms"])
    summary = summary_of(records, slo)
    assert summary.requests == {"ok": 8, "error": 1, "cut": 1}
    assert summary.judged == 9
    assert summary.attainment is not None
    assert summary.attainment.value == pytest.approx(6 / 9)
    assert summary.window is not None
    assert summary.goodput == pytest.approx(6 / summary.window.seconds)
    shares = {check.objective: check.exceedance.value for check in summary.objectives if check.exceedance}
    assert shares["ttft"] == pytest.approx(3 / 9)
    assert shares["tpot"] == pytest.approx(1 / 9)
    assert shares["attainment"] == pytest.approx(3 / 9)
    text, json = texts(summary)
    assert "attainment 67 %" in text
    assert json["request_goodput"] == pytest.approx(6 / summary.window.seconds)


def cut_one(make_sender: MakeSender) -> Record:
    """A request that the run itself cut."""

    async def main() -> Record:
        begun = asyncio.Event()

        async def endless(request: Request) -> Any:
            yield C("a")
            begun.set()
            yield Hang(60)

        async with ScriptedServer(endless) as fake, make_sender(fake.url) as sender:
            task = asyncio.create_task(sender.send(spec(99), time.monotonic_ns()))
            await begun.wait()
            await asyncio.sleep(0.05)
            sender.cut("cut")
            return await task

    return asyncio.run(main())


def test_a_cut_request_keeps_its_tokens_and_is_no_failure(make_sender: MakeSender) -> None:
    record = cut_one(make_sender)
    assert (record.outcome, record.error, record.excerpt) == ("cut", None, None)
    assert record.events is not None
    assert len(record.events.gap_us) == 1


# --- samples ---------------------------------------------------------------------------------------------------------


def test_m14_when_a_request_was_due_is_kept_beside_when_it_was_sent(make_sender: MakeSender) -> None:
    """A request that leaves late has two latencies: from its sending, and from when it should have been sent."""

    async def main() -> Record:
        async with ScriptedServer([T(30), C("a"), FIN("stop"), U(3, 1), DONE]) as fake, make_sender(fake.url) as sender:
            return await sender.send(spec(), time.monotonic_ns() - 200_000_000)

    record = asyncio.run(main())
    c = columns([record])
    assert metrics.dispatch_lag(c)[0] >= 200
    assert metrics.ttft_scheduled(c)[0] == pytest.approx(metrics.ttft(c)[0] + metrics.dispatch_lag(c)[0])
    assert metrics.e2e_scheduled(c)[0] == pytest.approx(metrics.e2e(c)[0] + metrics.dispatch_lag(c)[0])
    text, json = texts(summary_of([record]))
    assert "dispatch lag" in text
    assert "TTFT from schedule" in text
    assert json["median_ttft_scheduled_ms"] >= json["median_ttft_ms"] + 200


def test_m16_a_percentile_of_few_is_marked(make_sender: MakeSender) -> None:
    summary = summary_of(some(make_sender, [C("a"), FIN("stop"), U(3, 1), DONE], 5))
    found = summary.latency["ttft"].at(99.0)
    assert found is not None
    assert (found.established, found.n) == (False, 5)
    text, json = texts(summary)
    assert "* not established" in text
    assert "p99_ttft_ms" in json["not_established"]
    values = sorted(metrics.ttft(columns(some(make_sender, ONE, 5))))
    assert values[-1] >= np.percentile(values, 99) >= values[-2]


def test_m19_nothing_streamed_has_no_ttft(make_sender: MakeSender) -> None:
    body = {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]}
    body["usage"] = {"prompt_tokens": 3, "completion_tokens": 5}  # type: ignore[assignment]
    records = some(make_sender, [T(30), *json_reply(body)], options=RequestOptions("m", stream=False))
    summary = summary_of(records, parse_slo(["ttft_p95=1s"]))
    assert summary.requests == {"ok": 3}
    for name in ("ttft", "ttfc", "tpot", "itl", "inter_chunk", "ttft_scheduled"):
        assert summary.latency[name].n == 0, name
    assert summary.latency["e2e"].n == 3
    assert summary.objectives[0].verdict == "inconclusive"
    assert summary.output_tokens_mean == 5
    text, json = texts(summary)
    assert json["median_ttft_ms"] is None
    assert "3 of 3 answers not streamed: their TTFT, TPOT and ITL are n/a" in text
    details = "\n".join(step_details(summary))
    assert [line.split() for line in details.splitlines() if "TTFT" in line] == [
        ["TTFT,", "TPOT,", "ITL", "n/a", "(not", "streaming)"]
    ]
