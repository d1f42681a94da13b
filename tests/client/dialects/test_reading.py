"""What is read in an event: by the cases of the field, by real answers, and by JSON of any shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import MalformedEvent, Piece, Usage
from loadgen.client.sse import SSEEvent, SSEParser
from loadgen.errors import Failure
from tests.client.captures import body_of
from tests.thorough import examples

CHAT = DIALECTS["chat"]


def as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def read(value: Any, name: str = "message") -> Piece:
    return CHAT.read(SSEEvent(name, as_bytes(value)))


def delta(finish_reason: Any = None, **fields: Any) -> dict[str, Any]:
    return {"id": "r", "choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]}


# --- what is output ---------------------------------------------------------------------------------------------------

INFINITE = b'{"choices":[{"delta":{"content":"a"},"logprobs":{"content":[{"logprob":-Infinity}]}}]}'
OUTPUT: dict[str, tuple[Any, str, bool]] = {  # value, text, is it content
    "content": (delta(content="a"), "a", True),
    "P02 one space": (delta(content=" "), " ", True),
    "P08 reasoning": (delta(reasoning="a", content=None), "a", False),
    "P08 reasoning_content": (delta(reasoning_content="a", content=""), "a", False),
    "both names of one reasoning": (delta(reasoning_content="a", reasoning="a"), "a", False),
    "reasoning and content": (delta(reasoning="a", content="b"), "ab", True),
    "refusal": (delta(refusal="no"), "no", True),
    "P09 tool name": (delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}]), "f", True),
    "P09 tool arguments": (delta(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}]), ":1}", True),
    "arguments as an object": (delta(tool_calls=[{"function": {"arguments": {"a": 1}}}]), '{"a":1}', True),
    "custom tool": (delta(tool_calls=[{"custom": {"name": "f", "input": "x"}}]), "fx", True),
    "function_call": (delta(function_call={"name": "f"}), "f", True),
    "completion text": ({"choices": [{"index": 0, "text": "a"}]}, "a", True),
    "any choice": ({"choices": [{"index": 0, "delta": {}}, {"index": 3, "delta": {"content": "x"}}]}, "x", True),
    "parts": (delta(content=[{"type": "text", "text": "a"}, "b"]), "ab", True),
    "thinking parts": (delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}]), "a", False),
    "a whole message": ({"choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}}]}, "a", True),
    "P16 odd line ends": (delta(content="x\u2028y\u2029z\u0085"), "x\u2028y\u2029z\u0085", True),
    "half a surrogate pair": (delta(content="\ud83d"), "\ud83d", True),
    "infinite log-probabilities": (INFINITE, "a", True),
    "broken UTF-8": (b'{"choices":[{"delta":{"content":"a\xff"}}]}', "a\ufffd", True),
}
NO_OUTPUT: dict[str, Any] = {
    "P01 role": delta(role="assistant", content=""),
    "P02 role with null": delta(role="assistant", content=None),
    "finish": delta("stop"),
    "P02 finish with null": delta("stop", content=None),
    "empty text": {"choices": [{"index": 0, "text": ""}]},
    "P03 usage": {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
    "P03 usage, choices null": {"choices": None, "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
    "P03 usage, no choices": {"usage": {"prompt_tokens": 1, "completion_tokens": 2}},
    "P04 prompt filter": {"id": "", "object": "", "created": 0, "choices": [], "prompt_filter_results": []},
    "P04 content filter": {"choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {}}]},
    "tool call without name and arguments": delta(tool_calls=[{"index": 0, "id": "c1", "function": {"arguments": ""}}]),
    "delta null": {"choices": [{"index": 0, "delta": None}]},
    "empty parts": delta(content=[{"type": "text", "text": ""}, 5, None, ""]),
}


@pytest.mark.parametrize("case", OUTPUT)
def test_output(case: str) -> None:
    value, text, content = OUTPUT[case]
    for dialect in (CHAT, DIALECTS["completions"]):
        piece = dialect.read(SSEEvent("message", as_bytes(value)))
        calls = "".join(call.name + call.arguments for call in piece.calls)
        assert (piece.has_output, piece.has_content, piece.text + calls) == (True, content, text)
        assert not piece.ignored and piece.error is None


@pytest.mark.parametrize("case", NO_OUTPUT)
def test_no_output(case: str) -> None:
    piece = read(NO_OUTPUT[case])
    assert (piece.has_output, piece.has_content, piece.text, piece.ignored) == (False, False, "", False)
    assert piece.error is None and not piece.done


@pytest.mark.parametrize(
    "value",
    [
        delta(content=5, reasoning=True, tool_calls=7, function_call="f"),
        {"choices": [{"index": 0, "delta": "a"}]},
        {"choices": [{"index": 0, "delta": ["a"]}]},
    ],
    ids=["numbers where text belongs", "a delta that is text", "a delta that is a list"],
)
def test_what_may_be_output_in_no_known_shape_is_noted(value: Any) -> None:
    piece = read(value)
    assert (piece.has_output, piece.ignored, piece.error) == (False, True, None)


@pytest.mark.parametrize("data", [b"[DONE]", b" [DONE] ", b"[DONE]\t"])
def test_p29_done(data: bytes) -> None:
    assert read(data) == Piece(done=True)


@pytest.mark.parametrize(
    "data", [b'{"choices":[', b"hello", b"{'a':1}", b"[DONE", b"\xff", b"[" * 100_000, b"1" * 5000]
)
def test_p26_malformed(data: bytes) -> None:
    with pytest.raises(MalformedEvent):
        read(data)
    with pytest.raises(MalformedEvent):
        CHAT.read_whole(data)


IGNORED = [[], 7, "text", None, {}, {"type": "ping"}, {"choices": 5}, {"choices": [7]}, b"", b" "]


@pytest.mark.parametrize("value", IGNORED)
def test_ignored(value: Any) -> None:
    assert read(value) == Piece(ignored=True)


# --- usage, finish, ids -----------------------------------------------------------------------------------------------

BOTH = {"prompt_tokens": 3, "completion_tokens": 2}
USAGES: dict[str, tuple[Any, Usage | None]] = {
    "plain": ({"usage": {**BOTH, "total_tokens": 5}}, Usage(3, 2)),
    "only the output": ({"usage": {"completion_tokens": 2}}, Usage(None, 2)),
    "cached": ({"usage": {**BOTH, "prompt_tokens_details": {"cached_tokens": 1}}}, Usage(3, 2, 1)),
    "no details": ({"usage": {**BOTH, "prompt_tokens_details": None}}, Usage(3, 2)),
    "other names": (
        {"usage": {"input_tokens": 3, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 0}}},
        Usage(3, 2, 0),
    ),
    "cache hits by name": ({"usage": {"prompt_tokens": 3, "prompt_cache_hit_tokens": 2}}, Usage(3, None, 2)),
    "whole floats": ({"usage": {"prompt_tokens": 3.0, "completion_tokens": 2.5}}, Usage(3, None)),
    "in the choice": ({"choices": [{"delta": {}, "usage": {"completion_tokens": 2}}]}, Usage(None, 2)),
    "in a vendor's field": ({"choices": [], "x_groq": {"usage": {"completion_tokens": 2}}}, Usage(None, 2)),
    "null": ({"choices": [], "usage": None}, None),
    "of a wrong shape": ({"choices": [], "usage": [1]}, None),
    "of wrong values": ({"choices": [], "usage": {"prompt_tokens": "3", "completion_tokens": -1}}, None),
    "true is no number": ({"choices": [], "usage": {"completion_tokens": True}}, None),
}


@pytest.mark.parametrize("case", USAGES)
def test_usage(case: str) -> None:
    value, expected = USAGES[case]
    assert read(value).usage == expected


def test_finish_reasons_and_choices() -> None:
    piece = read({"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}, {"index": 0, "delta": {}}]})
    assert (piece.finish_reason, piece.choices, piece.finished) == ("length", (1, 0), (1,))
    assert read(delta({"type": "stop", "matched": 2})).finish_reason == "stop"
    assert read(delta(7)).finish_reason is None
    assert read({"choices": [{"delta": {}}, {"delta": {}}]}).choices == (0, 1)
    assert read({"id": "chatcmpl-1", "choices": []}).server_id == "chatcmpl-1"
    assert read({"id": 5, "choices": []}).server_id is None


def test_token_ids_are_counted_over_choices() -> None:
    choice = {"index": 0, "delta": {"content": "a"}}
    assert read({"choices": [choice]}).token_ids is None
    assert read({"choices": [{**choice, "token_ids": None}]}).token_ids is None
    assert read({"choices": [{**choice, "token_ids": []}]}).token_ids == 0
    assert read({"choices": [{**choice, "token_ids": [1, 2]}, {**choice, "token_ids": [3]}]}).token_ids == 3
    assert read({"choices": [{"delta": {"content": "a", "token_ids": [1]}}]}).token_ids == 1


# --- errors in an answer of 200 ---------------------------------------------------------------------------------------

WORDS = "EngineCore encountered an issue."
VLLM = {"message": WORDS, "type": "InternalServerError", "param": None, "code": 500}
LLAMA = {"code": 400, "message": "too long", "type": "invalid_request_error"}
OLD_VLLM = {"object": "error", "message": "m", "type": "BadRequestError", "code": 400}
GAVE_UP = "the server ended the answer with finish_reason "
ERRORS: dict[str, tuple[Any, str, str, int | str | None]] = {  # value, event name, message, code
    "P22 object": ({"error": VLLM}, "message", WORDS, 500),
    "P22 text": ({"error": "overloaded", "error_type": "overloaded"}, "message", "overloaded", "overloaded"),
    "P22 type for want of a code": ({"error": {"message": "m", "type": "t", "code": None}}, "message", "m", "t"),
    "code beside it": ({"error": {"message": "m"}, "status_code": 503}, "message", "m", 503),
    "no message": ({"error": {"code": 500}}, "message", '{"code":500}', 500),
    "a list": ({"error": ["a", 1]}, "message", '["a",1]', None),
    "with choices": ({**delta(content=""), "error": {"code": 502, "message": "m"}}, "message", "m", 502),
    "in a choice": ({"choices": [{"error": {"code": 502, "message": "m"}}]}, "message", "m", 502),
    "P23 llama.cpp": (LLAMA, "error", "too long", 400),
    "event named error": ({"error": {"message": "m", "code": 1}}, "error", "m", 1),
    "event named error, text": (b"out of memory", "error", "out of memory", None),
    "event named error, empty": (b"", "error", "the server sent an error without a message", None),
    "event named error, any JSON": ([1], "error", "[1]", None),
    "object error": (OLD_VLLM, "message", "m", 400),
    "type error": ({"type": "error", "message": "m", "code": "c"}, "message", "m", "c"),
    "FastAPI": ({"detail": "Not Found"}, "message", "Not Found", None),
    "FastAPI validation": ({"detail": [{"msg": "bad"}]}, "message", '[{"msg":"bad"}]', None),
    "a bare status": ({"message": "try later", "status": 429}, "message", "try later", 429),
    "gave up": (delta("error"), "message", GAVE_UP + "'error'", None),
    "aborted": (delta("abort", content="a"), "message", GAVE_UP + "'abort'", None),
}
NO_ERRORS: dict[str, Any] = {
    "null": {"choices": [], "error": None},
    "empty": {"choices": [], "error": {}},
    "false": {"choices": [], "error": False},
    "detail beside an answer": {**delta(content="a"), "detail": "x"},
    "a message that is no error": {"message": "hello", "status": 200},
}


@pytest.mark.parametrize("case", ERRORS)
def test_error(case: str) -> None:
    value, name, message, code = ERRORS[case]
    piece = read(value, name)
    assert piece.error == Failure("server", message, code)
    assert not piece.ignored


@pytest.mark.parametrize("case", NO_ERRORS)
def test_no_error(case: str) -> None:
    assert read(NO_ERRORS[case]).error is None


def test_a_long_message_is_bounded() -> None:
    failure = read({"error": {"message": "x" * 100_000}}).error
    assert failure is not None and len(failure.message) == 2000


# --- any JSON ---------------------------------------------------------------------------------------------------------

KEYS = [
    *("id", "choices", "delta", "message", "content", "text", "reasoning", "tool_calls", "function", "arguments"),
    *("name", "usage", "completion_tokens", "prompt_tokens_details", "cached_tokens", "error", "code", "finish_reason"),
    *("index", "token_ids", "x_groq", "detail", "object", "type", "thinking", "status"),
]
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(["error", "stop"])
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
some_choices = st.lists(st.dictionaries(st.sampled_from(KEYS), anything, max_size=4) | scalars, max_size=3)
chunks = st.fixed_dictionaries(
    {},
    optional={"choices": some_choices | anything, "usage": anything, "error": anything, "id": anything},
)


@settings(max_examples=examples(200), deadline=None)
@given(anything | chunks, st.sampled_from(["message", "error", "ping"]))
def test_json_of_any_shape_is_read(value: Any, name: str) -> None:
    for dialect in (CHAT, DIALECTS["completions"]):
        piece = dialect.read(SSEEvent(name, as_bytes(value)))
        assert piece.has_output == bool(piece.text)
        assert piece.has_output or not piece.has_content
        assert set(piece.finished) <= set(piece.choices)
        assert dialect.read_whole(as_bytes(value)) == dialect.read(SSEEvent("message", as_bytes(value)))


@settings(max_examples=examples(120), deadline=None)
@given(st.binary(max_size=40), st.sampled_from(["message", "error"]))
def test_bytes_of_any_kind_are_read_or_malformed(data: bytes, name: str) -> None:
    try:
        piece = CHAT.read(SSEEvent(name, data))
    except MalformedEvent:
        assert name == "message"
    else:
        assert piece.error is not None or name == "message"


# --- real answers -----------------------------------------------------------------------------------------------------


def pieces_of(name: str, dialect: str) -> list[Piece]:
    parser = SSEParser()
    return [DIALECTS[dialect].read(event) for event in [*parser.feed(body_of(name)), *parser.close()]]


STORY, ONCE = " filename feesysiew}: separsuccess Spec", "disators declstartposUT deleted spformatted breakpoint"
# name: output events, text, finish reason, usage at the end, token ids
REAL: dict[str, tuple[int, str, str, Usage | None, int | None]] = {
    "vllm-chat-usage": (8, STORY, "length", Usage(23, 8), None),
    "vllm-chat-nousage": (8, STORY, "length", None, None),
    "vllm-chat-continuous-usage": (8, STORY, "length", Usage(23, 8), None),
    "vllm-chat-logprobs": (4, " comparedbe matching writable", "length", None, None),
    "vllm-chat-n2": (8, " filenameWriteatisved127 needsresThis", "length", Usage(23, 8), None),
    "vllm-chat-stop": (1, " w", "stop", Usage(23, 1), None),
    "vllm-chat-return-token-ids": (4, "beginMONdden feature", "length", None, 4),
    "vllm-comp-usage": (8, ONCE, "length", Usage(5, 8), None),
    "vllm-comp-nousage": (8, ONCE, "length", None, None),
    "vllm-comp-tokenids": (4, "ipeLENard Ar", "length", Usage(4, 4), None),
    "vllm-comp-batch2": (7, "\ufffdcolnoele Can Hechedically+'", "length", Usage(6, 8), None),
}


@pytest.mark.parametrize("name", REAL)
def test_real_stream(name: str) -> None:
    outputs, text, finish, usage, ids = REAL[name]
    pieces = pieces_of(name, "chat" if "chat" in name else "completions")
    assert sum(piece.has_output for piece in pieces) == outputs
    assert "".join(piece.text for piece in pieces) == text
    assert {piece.finish_reason for piece in pieces if piece.finish_reason} == {finish}
    assert [piece.usage for piece in pieces if piece.usage][-1:] == ([usage] if usage else [])
    known = [piece.token_ids for piece in pieces if piece.token_ids is not None]
    assert (sum(known) if known else None) == ids
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert not any(piece.ignored or piece.error for piece in pieces)
    assert len({piece.server_id for piece in pieces if piece.server_id}) == 1


def test_real_per_event_usage_and_choices() -> None:
    usages = [piece.usage for piece in pieces_of("vllm-chat-continuous-usage", "chat")]
    assert [usage.completion for usage in usages if usage] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]
    both = pieces_of("vllm-chat-n2", "chat")
    assert {index for piece in both for index in piece.choices} == {0, 1}
    assert {index for piece in both for index in piece.finished} == {0, 1}


@pytest.mark.parametrize("name", ["vllm-chat-nonstream", "vllm-comp-nonstream"])
def test_real_whole_answer(name: str) -> None:
    dialect = "chat" if "chat" in name else "completions"
    piece = DIALECTS[dialect].read_whole(body_of(name))
    streamed = pieces_of(name.replace("nonstream", "usage"), dialect)
    assert piece.has_output and piece.has_content and not piece.ignored
    assert piece.text == "".join(one.text for one in streamed)
    assert piece.finish_reason == "length"
    assert piece.usage == [one.usage for one in streamed if one.usage][-1]


@pytest.mark.parametrize("name", ["badjson", "badmodel", "badparam", "notfound", "toolong"])
def test_real_error_bodies(name: str) -> None:
    payload = body_of(f"vllm-err-{name}")
    said = json.loads(payload)
    failure = CHAT.read_whole(payload).error
    assert failure is not None
    assert failure.message == (said["error"]["message"] if "error" in said else said["detail"])
    assert failure.code == (said["error"]["code"] if "error" in said else None)
