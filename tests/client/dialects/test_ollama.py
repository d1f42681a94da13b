"""Ollama's own API: bodies, and streams as its documentation shows them, byte for byte."""

from __future__ import annotations

import itertools
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import CallPart, MalformedEvent, RequestOptions, asked_output
from loadgen.client.sse import SSEEvent
from loadgen.client.tally import Tally, TallyResult
from loadgen.records import Prompt

MS = 1_000_000
CHAT, GENERATE = DIALECTS["ollama_chat"], DIALECTS["ollama_generate"]
AT = b'"created_at":"2023-08-04T08:52:19.385406455-07:00"'
LAST = (
    b'"done":true,"done_reason":"stop","total_duration":4883583458,"load_duration":1334875,'
    b'"prompt_eval_count":26,"prompt_eval_duration":342546000,"eval_count":282,"eval_duration":4535599000}\n'
)
CHAT_STREAM = [
    b'{"model":"llama3.2",%b,"message":{"role":"assistant","content":"The"},"done":false}\n' % AT,
    b'{"model":"llama3.2",%b,"message":{"role":"assistant","content":" sky"},"done":false}\n' % AT,
    b'{"model":"llama3.2",%b,"message":{"role":"assistant","content":""},%b' % (AT, LAST),
]
GENERATE_STREAM = [
    b'{"model":"llama3.2",%b,"response":"The","done":false}\n' % AT,
    b'{"model":"llama3.2",%b,"response":" sky","done":false}\n' % AT,
    b'{"model":"llama3.2",%b,"response":"","context":[1,2,3],%b' % (AT, LAST),
]


def run(dialect: Any, script: list[bytes], *, hold: bool = False) -> TallyResult:
    """Each part is one read, 10 ms after the one before."""
    tally = Tally(dialect, 0)
    for n, data in enumerate(script, 1):
        (tally.hold if hold else tally.feed)(data, 10 * n * MS, 10 * (n - 1) * MS)
    tally.close(10 * (len(script) + 1) * MS)
    return tally.result(None)


def line(**fields: Any) -> bytes:
    return orjson.dumps({"model": "m", **fields}) + b"\n"


def says(**message: Any) -> bytes:
    return line(message={"role": "assistant", **message}, done=False)


def test_bodies() -> None:
    options = RequestOptions("m", force_length=True, sampling={"temperature": 0.5}, extra_body={"options": {"seed": 7}})
    sampled = {"num_predict": 9, "temperature": 0.5, "seed": 7}
    body = CHAT.body(Prompt("hi", output_tokens=9), options)
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "options": sampled,
        "stream": True,
    }
    assert asked_output(body) == 9
    assert GENERATE.body(Prompt("hi", output_tokens=9), options) == {
        "model": "m",
        "prompt": "hi",
        "options": sampled,
        "stream": True,
    }
    assert CHAT.body(Prompt("hi"), RequestOptions("m", stream=False))["stream"] is False


def test_a_body_in_the_openai_form() -> None:
    own = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 7, "stream_options": {"include_usage": True}}
    assert CHAT.body(Prompt(body=own), RequestOptions("m")) == {
        "model": "m",
        "messages": own["messages"],
        "options": {"num_predict": 7},
        "stream": True,
    }


@pytest.mark.parametrize(
    ("dialect", "stream"), [(CHAT, CHAT_STREAM), (GENERATE, GENERATE_STREAM)], ids=["chat", "generate"]
)
@pytest.mark.parametrize("hold", [False, True])
def test_p33_a_token_a_line_and_the_counts_of_the_last(dialect: Any, stream: list[bytes], hold: bool) -> None:
    result = run(dialect, stream, hold=hold)
    assert (result.outcome, result.finish_reason, result.flags) == ("ok", "stop", ())
    assert (result.first_token_ns, result.last_token_ns, result.done_ns) == (10 * MS, 20 * MS, 30 * MS)
    assert (result.input_server, result.output_count, result.output_source) == (26, 282, "usage")
    assert len(result.events.gap_us) == 2


@given(
    cuts=st.lists(st.integers(1, 500), max_size=12), hold=st.booleans(), end=st.sampled_from([b"\n", b"\r\n", b"\n\n"])
)
def test_lines_cut_anywhere(cuts: list[int], hold: bool, end: bytes) -> None:
    data = b"".join(CHAT_STREAM).replace(b"\n", end)
    points = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
    result = run(CHAT, [data[a:b] for a, b in itertools.pairwise(points)], hold=hold)
    assert (result.outcome, result.output_count, len(result.events.gap_us)) == ("ok", 282, 2)
    assert (result.malformed_events, result.ignored_events) == (0, 0)


def test_a_line_of_300_kb() -> None:
    long = line(response="", context=list(range(60_000)), done=True, done_reason="length", eval_count=2)
    assert len(long) > 300_000
    parts = [long[at : at + 1000] for at in range(0, len(long), 1000)]
    result = run(GENERATE, [GENERATE_STREAM[0], *parts])
    assert (result.outcome, result.output_count, result.finish_reason) == ("ok", 2, "length")


def test_the_last_line_may_speak_and_may_lack_its_end() -> None:
    last = line(message={"content": "b"}, done=True, done_reason="stop", eval_count=2).rstrip()
    result = run(CHAT, [says(content="a"), last])
    assert (result.outcome, result.last_token_ns, len(result.events.gap_us)) == ("ok", 20 * MS, 2)
    alone = run(CHAT, [last])
    assert (alone.outcome, alone.output_count, alone.first_token_ns) == ("ok", 2, 10 * MS)


def test_p08_thinking_is_output_but_no_content() -> None:
    for dialect, thought, text in (
        (CHAT, says(thinking="x", content=""), says(content="a")),
        (GENERATE, line(thinking="x", response="", done=False), line(response="a", done=False)),
    ):
        result = run(dialect, [thought, text, CHAT_STREAM[-1]])
        assert (result.outcome, result.first_token_ns, result.first_content_ns) == ("ok", 10 * MS, 20 * MS)


def test_p09_tool_calls() -> None:
    calls = [{"function": {"name": "f", "arguments": {"a": 1}}}, {"function": {"name": "g", "arguments": {}}}]
    result = run(CHAT, [says(content="", tool_calls=calls), CHAT_STREAM[-1]])
    assert (result.outcome, result.first_content_ns) == ("ok", 10 * MS)
    assert result.calls == (CallPart(0, 0, "f", '{"a":1}'), CallPart(0, 1, "g", ""))


@pytest.mark.parametrize("before", [0, 2])
def test_p22_an_error_is_no_success(before: int) -> None:
    result = run(CHAT, [*[says(content="a")] * before, b'{"error":"model runner has unexpectedly stopped"}\n'])
    assert result.outcome == "error" and result.error is not None
    assert (result.error.kind, result.error.message) == ("server", "model runner has unexpectedly stopped")


def test_ends_that_are_none() -> None:
    assert run(CHAT, CHAT_STREAM[:2]).outcome == "incomplete"
    assert run(CHAT, [CHAT_STREAM[0], CHAT_STREAM[1][:40]]).outcome == "incomplete"
    assert run(CHAT, CHAT_STREAM[2:]).outcome == "empty"
    broken = run(CHAT, [CHAT_STREAM[0], b"{\n", b"7\n", b'{"x":1}\n', CHAT_STREAM[2]])
    assert (broken.outcome, broken.malformed_events, broken.ignored_events) == ("ok", 1, 2)


def test_whole_answers() -> None:
    for dialect, stream in ((CHAT, CHAT_STREAM), (GENERATE, GENERATE_STREAM)):
        payload = stream[-1].replace(b'"content":""', b'"content":"a b"').replace(b'"response":""', b'"response":"a b"')
        result = Tally(dialect, 0).whole(payload, MS, None)
        assert (result.outcome, result.output_count, result.flags) == ("ok", 282, ("not_streamed",))


KEYS = st.sampled_from(
    ["message", "response", "content", "thinking", "tool_calls", "function", "done", "error", "name"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_json_of_any_shape_is_read(value: Any) -> None:
    for read in (lambda data: CHAT.read(SSEEvent("message", data)), GENERATE.read_whole):
        read(orjson.dumps(value))


def test_what_is_no_json_is_malformed() -> None:
    with pytest.raises(MalformedEvent):
        CHAT.read(SSEEvent("message", b'{"message": '))
