"""The Responses API: bodies, the events of its documentation as bytes, and a real server's answers."""

from __future__ import annotations

import itertools
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import CallPart, MalformedEvent, Piece, RequestOptions, asked_output
from loadgen.client.sse import SSEEvent
from loadgen.client.tally import Tally, TallyResult
from loadgen.records import Prompt
from tests.client.captures import body_of, told_by

MS = 1_000_000
RESPONSES = DIALECTS["responses"]


def body(prompt: Prompt, **options: Any) -> dict[str, Any]:
    return RESPONSES.body(prompt, RequestOptions("m", **options))


PLAIN = {"model": "m", "input": "hi", "max_output_tokens": 9, "store": False, "stream": True}
BODIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "text": (body(Prompt("hi", output_tokens=9)), PLAIN),
    "usage needs no asking": (body(Prompt("hi", output_tokens=9), usage=True, continuous_usage=True), PLAIN),
    "T06 forced length": (
        body(Prompt("hi", output_tokens=9), force_length=True),
        {**PLAIN, "ignore_eos": True, "min_tokens": 9},
    ),
    "a lower length of the user's": (
        body(Prompt("hi", output_tokens=9), force_length=True, extra_body={"max_output_tokens": 4, "store": True}),
        {**PLAIN, "max_output_tokens": 4, "ignore_eos": True, "min_tokens": 4, "store": True},
    ),
    "not streamed": (body(Prompt("hi", output_tokens=9), stream=False), {**PLAIN, "stream": False}),
    "a body of its own": (
        body(Prompt(body={"model": "a", "input": [{"role": "user", "content": "x"}], "reasoning": {"effort": "low"}})),
        {"model": "a", "input": [{"role": "user", "content": "x"}], "reasoning": {"effort": "low"},
         "store": False, "stream": True},
    ),
    "a body of chat completions": (
        body(Prompt(body={"messages": [{"role": "user", "content": "x"}], "max_tokens": 7, "stream_options": {}})),
        {"model": "m", "input": [{"role": "user", "content": "x"}], "max_output_tokens": 7,
         "store": False, "stream": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BODIES)
def test_body(case: str) -> None:
    got, expected = BODIES[case]
    assert got == expected
    assert asked_output(got) == expected.get("max_output_tokens")


# --- events as the documentation has them -----------------------------------------------------------------------------


def event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


def response(kind: str, status: str, **fields: Any) -> bytes:
    whole = {
        "id": "resp_1",
        "object": "response",
        "status": status,
        "error": None,
        "incomplete_details": None,
        **fields,
    }
    return event(f"response.{kind}", response=whole)


def delta(kind: str, text: str, place: int = 0) -> bytes:
    return event(f"response.{kind}.delta", item_id="i", output_index=place, content_index=0, delta=text)


def item(place: int, **fields: Any) -> bytes:
    return event("response.output_item.added", output_index=place, item={"id": "i", "status": "in_progress", **fields})


USAGE = {
    "input_tokens": 36,
    "input_tokens_details": {"cached_tokens": 16},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 39,
}
CREATED, PROGRESS = response("created", "in_progress", usage=None), response("in_progress", "in_progress")
MESSAGE = item(0, type="message", role="assistant", content=[])
PART = event("response.content_part.added", output_index=0, part={"type": "output_text", "text": ""})
TEXT_DONE = event("response.output_text.done", output_index=0, text="ab")
COMPLETED = response("completed", "completed", usage=USAGE, output=[{"type": "message"}])
TEXT = [CREATED, PROGRESS, MESSAGE, PART, delta("output_text", "a"), delta("output_text", "b"), TEXT_DONE, COMPLETED]
CALLS = [
    CREATED,
    item(0, type="function_call", name="f", arguments="", call_id="c"),
    delta("function_call_arguments", '{"a"'),
    item(1, type="function_call", name="g", arguments="", call_id="d"),
    delta("function_call_arguments", "{}", 1),
    delta("function_call_arguments", ":1}"),
    event("response.function_call_arguments.done", output_index=0, arguments='{"a":1}'),
    response("completed", "completed", usage=USAGE, output=[{"type": "function_call"}, {"type": "function_call"}]),
]


def run(script: list[bytes], asked: int | None = None) -> TallyResult:
    """Each event is one read, 10 ms after the one before."""
    tally = Tally(RESPONSES, 0)
    for n, data in enumerate(script, 1):
        tally.feed(data, 10 * n * MS, 10 * (n - 1) * MS)
    tally.close(10 * (len(script) + 1) * MS)
    return tally.result(asked)


def test_text_and_its_end() -> None:
    result = run(TEXT)
    assert (result.outcome, result.finish_reason, result.flags) == ("ok", "stop", ())
    assert (result.first_token_ns, result.last_token_ns, result.done_ns) == (50 * MS, 60 * MS, 80 * MS)
    assert (result.output_count, result.output_source, result.input_server, result.input_cached) == (3, "usage", 36, 16)
    assert (result.server_id, len(result.events.gap_us)) == ("resp_1", 2)


def test_nothing_after_the_last_event_counts_and_no_done_is_needed() -> None:
    assert run([*TEXT, delta("output_text", "c"), b"data: [DONE]\n\n"]) == run(TEXT)
    assert run([*TEXT, b"data: [DONE]\n\n"]) == run(TEXT)


@pytest.mark.parametrize("cut", range(1, len(TEXT)))
def test_a_stream_that_breaks_off_is_incomplete(cut: int) -> None:
    assert run(TEXT[:cut]).outcome == "incomplete"


@pytest.mark.parametrize("kind", ["reasoning_text", "reasoning_summary_text", "reasoning", "reasoning_summary"])
def test_p08_reasoning_is_output_but_no_content(kind: str) -> None:
    result = run([CREATED, delta(kind, "x"), delta(kind, "y"), MESSAGE, delta("output_text", "a"), COMPLETED])
    assert (result.first_token_ns, result.first_content_ns) == (20 * MS, 50 * MS)
    assert len(result.events.gap_us) == 3


def test_a_refusal_is_output() -> None:
    result = run([CREATED, delta("refusal", "no"), COMPLETED])
    assert (result.outcome, result.first_content_ns) == ("ok", 20 * MS)


def test_p09_calls_are_put_together_by_their_place() -> None:
    result = run(CALLS)
    assert (result.outcome, result.finish_reason) == ("ok", "tool_calls")
    assert result.calls == (CallPart(0, 0, "f", '{"a":1}'), CallPart(0, 1, "g", "{}"))
    assert (result.first_token_ns, len(result.events.gap_us)) == (20 * MS, 5)
    assert run(CALLS[:-1]).excerpt == 'f({"a":1})\ng({})'


def test_an_answer_without_output_is_empty() -> None:
    assert run([CREATED, MESSAGE, PART, delta("output_text", ""), COMPLETED]).outcome == "empty"


ENDS: dict[str, tuple[bytes, str | None]] = {
    "completed": (COMPLETED, "stop"),
    "incomplete": (
        response("incomplete", "incomplete", incomplete_details={"reason": "max_output_tokens"}), "length"),
    "completed, by name, that says it is not": (
        response("completed", "incomplete", incomplete_details={"reason": "max_output_tokens"}), "length"),
    "without a status": (event("response.completed", response={"id": "r"}), "stop"),
    "content filter": (
        response("incomplete", "incomplete", incomplete_details={"reason": "content_filter"}), "content_filter"),
    "failed": (response("failed", "failed", error={"code": "server_error", "message": "worker died"}), None),
    "failed without a word": (response("failed", "failed"), None),
    "cancelled": (response("cancelled", "cancelled"), None),
    "an error": (event("error", code="server_error", message="worker died", param=None), None),
    "an error in the form of the other APIs": (b'data: {"error":{"message":"worker died","code":500}}\n\n', None),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDS)
def test_end(case: str) -> None:
    data, finish = ENDS[case]
    result = run([CREATED, delta("output_text", "a"), data])
    assert (result.outcome, result.finish_reason) == ("error" if finish is None else "ok", finish)
    if finish is None:
        assert result.error is not None and result.error.kind == "server"
        assert "worker died" in result.error.message or "with status" in result.error.message


KNOWN_NOT_OUTPUT = [CREATED, PROGRESS, MESSAGE, PART, TEXT_DONE, event("response.queued"), event("keepalive"),
                    event("response.output_text.annotation.added"), item(0, type="reasoning", summary=[])]  # fmt: skip


@pytest.mark.parametrize("data", KNOWN_NOT_OUTPUT, ids=range(len(KNOWN_NOT_OUTPUT)))
def test_known_and_no_output(data: bytes) -> None:
    name, _, line = data.partition(b"\n")
    piece = RESPONSES.read(SSEEvent(name[7:].decode(), line[6:].strip()))
    assert not (piece.has_output or piece.ignored or piece.done or piece.finish_reason)


def test_events_of_another_api_are_no_output() -> None:
    chat = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    result = run([chat])
    assert (result.outcome, result.ignored_events) == ("empty", 1)
    assert DIALECTS["chat"].read(SSEEvent("response.output_text.delta", b'{"delta":"a"}')).ignored


# --- real answers -----------------------------------------------------------------------------------------------------

# name: events with output, finish reason, calls
REAL = {
    "vllm-resp-usage": (12, "length", 0),
    "vllm-resp-forced": (15, "length", 0),
    "vllm-resp-tools": (33, "length", 1),
}


@pytest.mark.parametrize("name", REAL)
@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(1, 11_000), max_size=20))
def test_real_stream(name: str, cuts: list[int]) -> None:
    outputs, finish, calls = REAL[name]
    data = body_of(name)
    points = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
    held, fed = Tally(RESPONSES, 0), Tally(RESPONSES, 0)
    for n, (start, end) in enumerate(itertools.pairwise(points), 1):
        held.hold(data[start:end], n * MS, (n - 1) * MS)
        fed.feed(data[start:end], n * MS, (n - 1) * MS)
    for tally in (held, fed):
        tally.close(len(points) * MS)
    result = fed.result(None)
    assert held.result(None) == result
    assert (result.outcome, result.finish_reason, result.ignored_events) == ("ok", finish, 0)
    assert (len(result.events.gap_us), len(result.calls)) == (outputs, calls)
    assert (result.input_server, result.output_count) == told_by(name)


def test_a_real_whole_answer() -> None:
    result = Tally(RESPONSES, 0).whole(body_of("vllm-resp-nonstream"), MS, 8)
    assert (result.outcome, result.finish_reason, result.flags) == ("ok", "length", ("not_streamed",))
    assert (result.input_server, result.output_count) == told_by("vllm-resp-nonstream")
    assert (result.first_token_ns, result.last_token_ns, result.events.gap_us) == (None, MS, [])


def test_a_whole_answer_of_every_kind() -> None:
    output = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "content": None},
        {"type": "message", "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "no"}]},
        {"type": "function_call", "name": "f", "arguments": "{}"},
    ]
    value = {"id": "r", "object": "response", "status": "completed", "output": output, "usage": USAGE}
    piece = RESPONSES.read_whole(orjson.dumps(value))
    assert (piece.has_output, piece.has_content, piece.text) == (True, True, "sano")
    assert (piece.calls, piece.finish_reason) == ((CallPart(0, 2, "f", "{}"),), "tool_calls")
    only = RESPONSES.read_whole(orjson.dumps({**value, "output": output[:1]}))
    assert (only.has_output, only.has_content) == (True, False)
    assert not RESPONSES.read_whole(orjson.dumps({**value, "output": []})).has_output


@pytest.mark.parametrize("name", ["vllm-err-resp-badmodel", "vllm-err-resp-toolong"])
def test_real_error_bodies(name: str) -> None:
    failure = RESPONSES.read_whole(body_of(name)).error
    assert failure is not None and failure.code in (400, 404)


# --- anything ---------------------------------------------------------------------------------------------------------

KEYS = st.sampled_from(
    ["type", "delta", "response", "status", "item", "output", "usage", "error", "output_index", "name", "arguments",
     "content", "summary", "object", "incomplete_details", "reason", "id"]
)  # fmt: skip
WORDS = st.sampled_from(
    ["response.output_text.delta", "response.output_item.added", "response.completed", "response", "function_call",
     "completed", "failed", "incomplete", "message", "reasoning", "x", ""]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.integers(-(2**60), 2**60) | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=15,
)


@given(JSON, WORDS)
def test_json_of_any_shape_is_read(value: Any, name: str) -> None:
    data = orjson.dumps(value)
    for piece in (RESPONSES.read(SSEEvent(name or "message", data)), RESPONSES.read_whole(data)):
        assert isinstance(piece, Piece)
        assert piece.has_output or not piece.has_content


def test_what_is_no_json_is_malformed() -> None:
    for read in (lambda data: RESPONSES.read(SSEEvent("response.created", data)), RESPONSES.read_whole):
        with pytest.raises(MalformedEvent):
            read(b'{"type": ')
