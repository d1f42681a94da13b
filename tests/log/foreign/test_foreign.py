"""Other tools' logs as runs: known by their content, their figures ours, and a fault named with file and entry."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis import summarise_run
from loadgen.errors import LogError
from loadgen.log.codec import decode_record, encode_record
from loadgen.log.columns import columns
from loadgen.log.foreign import read
from loadgen.log.store import open_run
from loadgen.records import Record
from loadgen.results import Slo
from tests.log.foreign.foreign_logs import (
    FILES,
    SUMMARY,
    aiperf_line,
    guidellm_document,
    guidellm_request,
    inference_perf_request,
    opened,
    placed,
    unpacked,
    vllm_document,
)


@pytest.mark.parametrize("tool", FILES)
def test_our_definitions_give_the_truth_of_the_server(tool: str, tmp_path: Path) -> None:
    """50 ms to the first of 64 tokens, 10 ms to each other: the tools' own delays come on top, and hardly per token."""
    run = open_run(placed(tool, tmp_path))
    records = list(run.records())
    (summary,) = summarise_run(columns(records), Slo(), run.observations, run.server)
    assert len(records) == (40 if tool == "inference-perf" else 200)
    assert summary.requests == {"ok": len(records)} and summary.output_tokens_mean == 64
    tpot, ttft, e2e = (summary.latency[name].mean for name in ("tpot", "ttft", "e2e"))
    assert tpot is not None and ttft is not None and e2e is not None
    assert tpot.value == pytest.approx(10.0, rel=0.03)
    assert 50 < ttft.value < 110
    assert e2e.value == pytest.approx(ttft.value + 63 * tpot.value, rel=1e-6)
    assert summary.latency["itl"].n == (0 if tool == "guidellm" else 63 * len(records))
    assert (summary.output_throughput is None) == (tool == "sglang")
    assert run.status == "imported"


@pytest.mark.parametrize("tool", FILES)
def test_a_log_is_known_by_its_content_also_from_a_pipe(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "measured.txt"
    odd.write_bytes(unpacked(FILES[tool]))
    run = open_run(odd)
    assert run.foreign is not None and tool.split("-")[0] in run.foreign.tool
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(odd.read_bytes())))
    assert list(open_run("-").records()) == list(run.records())


def test_indented_json_is_read_like_any(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(vllm_document(), indent=2))
    assert len(list(open_run(tmp_path / "a.json").records())) == 3


# --- what each log tells, and what it does not ------------------------------------------------------------------------


def test_vllm_has_lists_side_by_side(tmp_path: Path) -> None:
    run = opened(vllm_document(), tmp_path)
    first, second, third = run.records()
    assert (first.sent_ns, first.first_token_ns, first.last_token_ns) == (0, 100_000_000, 140_000_000)
    assert first.events is not None and first.events.gap_us == [100_000, 10_000, 30_000]
    assert first.events.tokens == [None] * 3 and first.output_tokens.source is None
    assert (first.input_tokens.local, first.input_tokens.server, first.output_tokens.count) == (10, None, 3)
    assert second.sent_ns == 500_000_000 and second.concurrency == 2
    assert third.outcome == "error" and third.error is not None and third.error.message == "Boom: refused"
    assert (third.sent_ns, third.first_token_ns, third.last_token_ns) == (750_000_000, None, None)
    assert run.foreign is not None and run.foreign.durations_s == {1: 1.5} and run.foreign.model == "m"


def test_a_request_that_was_never_sent_has_no_start(tmp_path: Path) -> None:
    first, second, third = opened({**vllm_document(), "start_times": [0.0, 2.0, 0.0]}, tmp_path).records()
    assert (first.sent_ns, second.sent_ns, third.sent_ns) == (0, 2_000_000_000, None)


def test_a_log_without_starts_has_latencies_and_no_rates(tmp_path: Path) -> None:
    """As older releases of vLLM wrote it, and as SGLang still does."""
    document = {k: v for k, v in vllm_document().items() if k not in ("start_times", "latencies")}
    run = opened(document, tmp_path)
    records = list(run.records())
    assert all(r.flags == ("untimed",) for r in records)
    (summary,) = summarise_run(columns(records), Slo())
    assert summary.latency["e2e"].max == pytest.approx(200.0)
    assert summary.window is summary.output_throughput is summary.output_throughput_classic is None
    assert summary.request_throughput is summary.concurrency_mean is summary.concurrency_peak is None


def test_sglang_has_a_run_a_line(tmp_path: Path) -> None:
    line = {**vllm_document(), "total_output_tokens_retokenized": 4}
    records = list(opened([line, {**line, "max_concurrency": 8}], tmp_path, lines=True).records())
    assert [(r.step, r.concurrency) for r in records] == [(1, 2)] * 3 + [(2, 8)] * 3
    assert len({r.id for r in records}) == 6


def test_aiperf_has_wall_times_units_and_what_was_due(tmp_path: Path) -> None:
    cancelled = aiperf_line(was_cancelled=True, x_request_id="b")
    failed = {**aiperf_line(x_request_id="c"), "metrics": {}, "error": {"code": 503, "message": "busy"}}
    warm = aiperf_line(benchmark_phase="warmup", x_request_id="d")
    run = opened([aiperf_line(), cancelled, failed, warm], tmp_path, lines=True)
    ok, cut, error, warmup = run.records()
    assert (ok.scheduled_ns, ok.sent_ns, ok.first_token_ns) == (-5_000_000, 0, 100_500_000)
    assert (ok.last_token_ns, ok.done_ns) == (500_000_000, 500_000_001)
    assert ok.events is not None and ok.events.gap_us == [100_500, 199_500, 200_000]
    assert (ok.output_tokens.count, ok.output_tokens.source) == (6, "usage")
    assert (ok.input_tokens.local, ok.input_tokens.server) == (12, 11)
    assert cut.outcome == "cut" and warmup.phase == "warmup"
    assert error.error is not None and (error.outcome, error.error.kind, error.error.code) == ("error", "http", 503)
    assert run.manifest is not None and run.manifest["started_epoch_ns"] == 1_795_960_742_481_566_135


def test_aiperf_tells_the_rest_in_its_summary(tmp_path: Path) -> None:
    alone = open_run(placed("aiperf", tmp_path, summary=False)).foreign
    both = open_run(placed("aiperf", tmp_path)).foreign
    assert alone is not None and (alone.version, alone.model, alone.durations_s) == (None, None, {})
    assert both is not None and (both.version, both.model, both.url) == ("0.13.0", "tiny", "http://127.0.0.1:8900")
    assert both.durations_s[1] == pytest.approx(2.933437)


@pytest.mark.parametrize(("strategy", "lag_ms"), [("concurrent", 0), ("poisson", 250)], ids=["concurrent", "poisson"])
def test_guidellm_has_requests_by_their_end(strategy: str, lag_ms: int, tmp_path: Path) -> None:
    failed = {**guidellm_request(101.0, first_token_iteration=None, last_token_iteration=None)}
    failed["info"]["error"] = "refused"
    document = guidellm_document(
        {"type_": strategy, "streams": 4},
        successful=[guidellm_request(102.0), guidellm_request(100.0)],
        errored=[failed],
        incomplete=[guidellm_request(103.0, last_token_iteration=None)],
    )
    run = opened(document, tmp_path)
    records = list(run.records())
    assert [r.outcome for r in records] == ["ok", "error", "ok", "cut"]  # by their sending
    first = records[0]
    assert (first.sent_ns, first.first_token_ns, first.done_ns) == (0, 500_000_000, 1_250_000_000)
    assert first.scheduled_ns == -lag_ms * 1_000_000
    assert (first.input_tokens.server, first.input_tokens.cached, first.output_tokens.count) == (7, 3, 6)
    assert first.events is None and first.concurrency == 4
    assert records[1].error is not None and records[1].error.message == "refused"


def test_inference_perf_has_every_chunk(tmp_path: Path) -> None:
    failed = inference_perf_request(12.0, error={"error_type": "E", "error_msg": "reset"})
    ok, error = opened([inference_perf_request(), failed], tmp_path).records()
    # The empty chunks are no output; the second of the others has two tokens by the tool's own count.
    assert (ok.first_token_ns, ok.last_token_ns, ok.done_ns) == (250_000_000, 500_000_000, 1_000_000_000)
    assert ok.events is not None and ok.events.tokens == [1, 2]
    assert (ok.output_tokens.asked, ok.output_tokens.count, ok.finish_reason, ok.model) == (9, 3, "stop", "m")
    assert (ok.input_tokens.local, ok.input_tokens.server) == (5, 6)
    assert error.outcome == "error" and error.error is not None and error.error.message == "reset"


# --- faults -----------------------------------------------------------------------------------------------------------


def vllm_with(key: str, value: Any) -> dict[str, Any]:
    return {**vllm_document(), key: value}


def aiperf_with(key: str, value: Any) -> list[dict[str, Any]]:
    line = aiperf_line()
    line["metrics"][key] = value
    return [aiperf_line(), line]


STREAMS = {"type_": "concurrent", "streams": 1}
DAMAGED: dict[str, tuple[Any, bool, str]] = {
    "a latency that is text": (
        vllm_with("latencies", [0.14, "x", 0]),
        False,
        "request 2: latencies is 'x', not a number",
    ),
    "a gap that is null": (vllm_with("itls", [[0.01], [None], []]), False, "request 2: itls[0] is None, not a number"),
    "a list too short": (
        vllm_with("output_lens", [3, 1]),
        False,
        "output_lens has 2 entries where there are 3 requests",
    ),
    "half a token": (vllm_with("output_lens", [3, 1.5, 0]), False, "request 2: output_lens is 1.5, not a count"),
    "an end before the first token": (
        vllm_with("latencies", [0.05, 0.2, 0]),
        False,
        "request 1: a time runs backwards",
    ),
    "a time beyond all clocks": (vllm_with("latencies", [1e30, 0.2, 0]), False, "request 1: latencies is 1e+30"),
    "a negative first token": (vllm_with("ttfts", [-0.1, 0.2, 0]), False, "request 1: a time runs backwards"),
    "no lengths": (vllm_with("output_lens", None), False, "output_lens is missing"),
    "no requests": (vllm_with("ttfts", None), False, "--save-detailed"),
    "SGLang's summary": ({"total_output_tokens_retokenized": 1}, False, "--output-details"),
    "AIPerf's summary": ({"aiperf_version": "0.13.0"}, False, "profile_export.jsonl"),
    "a unit nobody knows": (aiperf_with("request_latency", {"value": 1, "unit": "min"}), True, "line 2: the unit"),
    "a figure that is a list": (aiperf_with("request_latency", [1]), True, "line 2: request_latency is [1]"),
    "GuideLLM's benchmark without requests": (guidellm_document(STREAMS), False, "benchmark 1 holds no requests"),
    "GuideLLM's run without requests": (guidellm_document(STREAMS, successful=[]), False, "without requests"),
    "a start that is text": (
        guidellm_document(STREAMS, successful=[guidellm_request(1.0), guidellm_request(2.0, request_start="x")]),
        False,
        "benchmark 1 successful 2: request_start is 'x', not a number",
    ),
    "no end": (
        [inference_perf_request(), {**inference_perf_request(), "end_time": None}],
        False,
        "request 2: end_time",
    ),
    "an entry that is no object": ([inference_perf_request(), 7], False, "request 2: not a JSON object but 7"),
    "more times than chunks": (
        [{**inference_perf_request(), "info": {"response_metrics": {"chunk_times": [10.5], "response_chunks": []}}}],
        False,
        "request 1: response_chunks has 0 entries",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_fault_is_told_with_file_and_entry(name: str, tmp_path: Path) -> None:
    document, lines, told = DAMAGED[name]
    with pytest.raises(LogError) as error:
        opened(document, tmp_path, lines=lines)
    assert told in str(error.value) and str(tmp_path / "log.json") in error.value.message
    assert error.value.remedy


def test_a_damaged_summary_beside_is_told_as_such(tmp_path: Path) -> None:
    path = placed("aiperf", tmp_path)
    (tmp_path / SUMMARY).write_text(json.dumps({"aiperf_version": "1", "start_time": "noon", "end_time": "dusk"}))
    with pytest.raises(LogError, match="start_time and end_time are 'noon' and 'dusk'") as error:
        open_run(path)
    assert SUMMARY in error.value.message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
WHOLE: dict[str, Any] = {
    "vllm": vllm_document(),
    "sglang": {**vllm_document(), "total_output_tokens_retokenized": 4},
    "aiperf": aiperf_line(),
    "guidellm": guidellm_document(STREAMS, successful=[guidellm_request(1.0)], errored=[guidellm_request(2.0)]),
    "inference-perf": [inference_perf_request(), inference_perf_request(11.0)],
}


@pytest.mark.parametrize("tool", WHOLE)
@given(st.data())
def test_whatever_stands_in_a_field_it_is_read_or_refused_in_a_sentence(tool: str, data: st.DataObject) -> None:
    document = json.loads(json.dumps(WHOLE[tool]))
    place = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(json_values)
        break
    try:
        log = read(json.dumps(document).encode(), "log.json")
    except LogError as error:
        assert error.message.startswith("log.json") and error.remedy
        return
    for record in log.records if log else ():
        assert decode_record(encode_record(record)) == record
        columns([record])


UNKNOWN = {"an object": {"a": 1}, "a list": [1, 2], "an empty list": [], "a list of objects": [{"start_time": 1}]}


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_json_is_no_log(name: str, tmp_path: Path) -> None:
    with pytest.raises(LogError):
        list(opened(UNKNOWN[name], tmp_path).records())


def test_json_that_is_nested_too_deeply_is_told_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 200_000)
    with pytest.raises(LogError):
        list(open_run(path).records())


@pytest.mark.parametrize(
    ("error", "told"), [("\n", "not told"), (" ", "not told"), ("Traceback:\n\n  timed out \n \n", "timed out")]
)
def test_vllm_errors_are_told_by_their_last_line_with_words(error: str, told: str, tmp_path: Path) -> None:
    document = vllm_document()
    document["errors"][0] = error
    document["output_lens"][0] = 0
    failure = next(iter(opened(document, tmp_path).records())).error
    assert failure is not None and failure.message == told


def test_a_half_written_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "profile_export.jsonl"
    path.write_text(json.dumps(aiperf_line()) + "\n" + json.dumps(aiperf_line())[:100])
    assert len(list(open_run(path).records())) == 1


CUT: dict[str, Callable[[list[Record]], bool]] = {
    "no time runs backwards": lambda rs: all(
        r.done_ns >= (r.last_token_ns or 0) >= (r.first_token_ns or 0) for r in rs
    ),
    "ids are unique": lambda rs: len({r.id for r in rs}) == len(rs),
}


@pytest.mark.parametrize("tool", FILES)
@pytest.mark.parametrize("name", CUT)
def test_what_holds_of_every_run_holds_of_these(tool: str, name: str, tmp_path: Path) -> None:
    assert CUT[name](list(open_run(placed(tool, tmp_path)).records()))
