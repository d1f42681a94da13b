"""What is sent for a prompt."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import RequestOptions, asked_output, deep_merge
from loadgen.records import Prompt
from tests.client.captures import request_of

PROMPT = Prompt("hello", input_tokens=1, output_tokens=128)
BODY_PROMPT = Prompt(body={"messages": [{"role": "system", "content": "s"}], "stream": False, "n": 2, "max_tokens": 9})
CHAT_BODY = {
    "model": "m",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 128,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def body(prompt: Prompt = PROMPT, dialect: str = "chat", **options: Any) -> dict[str, Any]:
    return DIALECTS[dialect].body(prompt, RequestOptions("m", **options))


def changed(base: dict[str, Any], *without: str, **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**base, **changes}.items() if key not in without}


def test_dialects_and_their_paths() -> None:
    assert {name: dialect.path for name, dialect in DIALECTS.items()} == {
        "chat": "/chat/completions",
        "completions": "/completions",
        "responses": "/responses",
        "generate_stream": "/generate_stream",
        "ollama_chat": "/api/chat",
        "ollama_generate": "/api/generate",
    }
    assert all(name == dialect.name for name, dialect in DIALECTS.items())


BODIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "chat": (body(), CHAT_BODY),
    "completions": (body(dialect="completions"), {**changed(CHAT_BODY, "messages"), "prompt": "hello"}),
    "no usage": (body(usage=False), changed(CHAT_BODY, "stream_options")),
    "per-event usage": (
        body(continuous_usage=True),
        changed(CHAT_BODY, stream_options={"include_usage": True, "continuous_usage_stats": True}),
    ),
    "T06 forced length": (body(force_length=True), changed(CHAT_BODY, ignore_eos=True, min_tokens=128)),
    "no length asked for": (body(Prompt("hello"), force_length=True), changed(CHAT_BODY, "max_tokens")),
    "sampling": (body(sampling={"temperature": 0.0, "top_p": 0.9}), changed(CHAT_BODY, temperature=0.0, top_p=0.9)),
    "not streamed": (body(stream=False), changed(CHAT_BODY, "stream_options", stream=False)),
    "X10 the user wins, deeply": (
        body(
            extra_body={
                "stream_options": {"continuous_usage_stats": True, "include_usage": False},
                "chat_template_kwargs": {"enable_thinking": False},
                "temperature": 2,
            },
            sampling={"temperature": 0.5},
        ),
        changed(
            CHAT_BODY,
            temperature=2,
            stream_options={"include_usage": False, "continuous_usage_stats": True},
            chat_template_kwargs={"enable_thinking": False},
        ),
    ),
    "another name for the length": (
        body(force_length=True, extra_body={"max_completion_tokens": 64}),
        changed(CHAT_BODY, "max_tokens", max_completion_tokens=64, ignore_eos=True, min_tokens=64),
    ),
    "a lower length of the user's": (
        body(force_length=True, extra_body={"max_tokens": 5}),
        changed(CHAT_BODY, max_tokens=5, ignore_eos=True, min_tokens=5),
    ),
    "the user's own least length": (
        body(force_length=True, extra_body={"min_tokens": 200}),
        changed(CHAT_BODY, ignore_eos=True, min_tokens=200),
    ),
    "a body is sent as it is": (
        body(BODY_PROMPT),
        {**dict(BODY_PROMPT.body or {}), "model": "m", "stream": True, "stream_options": {"include_usage": True}},
    ),
    "a body without a length is not forced": (
        body(BODY_PROMPT, force_length=True, usage=False),
        {**dict(BODY_PROMPT.body or {}), "model": "m", "stream": True},
    ),
    "a body keeps its model and its options": (
        body(Prompt(body={"model": "mine", "prompt": [1, 2], "stream_options": {"x": 1}})),
        {"model": "mine", "prompt": [1, 2], "stream": True, "stream_options": {"x": 1, "include_usage": True}},
    ),
    "a body and a length": (
        body(Prompt(body={"max_completion_tokens": 3}, output_tokens=7), force_length=True, usage=False),
        {"model": "m", "max_completion_tokens": 7, "ignore_eos": True, "min_tokens": 7, "stream": True},
    ),
    "a body with one name for the length, the user with another": (
        body(
            Prompt(body={"model": "a", "max_tokens": 9}, output_tokens=7),
            usage=False,
            extra_body={"max_completion_tokens": 3},
        ),
        {"model": "a", "max_completion_tokens": 3, "stream": True},
    ),
    "a body not streamed": (
        body(Prompt(body={"model": "a", "stream": True, "stream_options": {"include_usage": True}}), stream=False),
        {"model": "a", "stream": False},
    ),
}


@pytest.mark.parametrize("case", BODIES)
def test_body(case: str) -> None:
    got, expected = BODIES[case]
    assert got == expected
    orjson.dumps(got)


def test_a_body_leaves_its_sources_alone() -> None:
    mine = {"stream_options": {"x": 1}, "nested": {"a": {"b": 1}}}
    extra = {"nested": {"a": {"c": 2}}, "stream_options": {"y": 2}}
    before = json.dumps([mine, extra])
    got = body(Prompt(body=mine, output_tokens=3), extra_body=extra, continuous_usage=True, force_length=True)
    assert got["nested"] == {"a": {"b": 1, "c": 2}}
    assert json.dumps([mine, extra]) == before


CAPTURED = ["vllm-chat-usage", "vllm-chat-continuous-usage", "vllm-comp-usage", "vllm-comp-nousage"]


@pytest.mark.parametrize("name", CAPTURED)
def test_a_real_request_given_as_a_body_stays_that_request(name: str) -> None:
    request = request_of(name)
    usage = "stream_options" in request
    continuous = usage and "continuous_usage_stats" in request["stream_options"]
    options = RequestOptions("other", usage=usage, continuous_usage=continuous)
    assert DIALECTS["chat"].body(Prompt(body=request), options) == request


def test_asked_output() -> None:
    assert asked_output({"max_tokens": 3}) == 3
    assert asked_output({"max_tokens": 3, "max_completion_tokens": 4}) == 4
    assert asked_output({"max_tokens": None}) is None
    assert asked_output({"max_tokens": True}) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from("abc"), json_values, max_size=3)


@given(objects, objects)
def test_deep_merge(under: dict[str, Any], over: dict[str, Any]) -> None:
    merged = deep_merge(under, over)
    assert merged.keys() == under.keys() | over.keys()
    for key, value in merged.items():
        if isinstance(under.get(key), dict) and isinstance(over.get(key), dict):
            assert value == deep_merge(under[key], over[key])
        else:
            assert value == (over[key] if key in over else under[key])
    assert deep_merge(merged, over) == merged
