"""TGI's own API: bodies, and events as its documentation shows them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import MalformedEvent, RequestOptions, asked_output
from loadgen.client.sse import SSEEvent
from loadgen.client.tally import Tally
from loadgen.records import Prompt

TGI = DIALECTS["generate_stream"]


def read(value: Any) -> Any:
    return TGI.read(SSEEvent("message", orjson.dumps(value)))


def test_a_body_of_text_and_options() -> None:
    options = RequestOptions(
        "m", force_length=True, sampling={"temperature": 0.5}, extra_body={"parameters": {"seed": 7}}
    )
    body = TGI.body(Prompt("Once", 1, 12), options)
    assert body == {
        "inputs": "Once",
        "parameters": {"max_new_tokens": 12, "temperature": 0.5, "details": True, "seed": 7},
    }
    assert asked_output(body) == 12


def test_a_body_of_the_users_own() -> None:
    own = {"inputs": "Twice", "parameters": {"do_sample": True}}
    body = TGI.body(Prompt(body=own), RequestOptions("m"))
    assert body == {"inputs": "Twice", "parameters": {"do_sample": True, "details": True}}
    assert own == {"inputs": "Twice", "parameters": {"do_sample": True}}


@pytest.mark.parametrize(
    ("token", "text"),
    [({"id": 1, "text": "a"}, "a"), ({"id": 1, "text": ""}, ""), ({"id": 2, "text": "</s>", "special": True}, "")],
)
def test_each_token_is_output_whatever_its_text(token: dict[str, Any], text: str) -> None:
    piece = read({"token": token, "generated_text": None, "details": None})
    assert (piece.has_output, piece.token_ids, piece.text, piece.finish_reason) == (True, 1, text, None)


def test_the_last_event_has_the_servers_count_and_the_text_only_once() -> None:
    details = {"finish_reason": "eos_token", "generated_tokens": 9, "input_length": 5}
    piece = read({"token": {"id": 2, "text": "b"}, "generated_text": "ab", "details": details})
    assert (piece.finish_reason, piece.usage, piece.text, piece.token_ids) == ("eos_token", (5, 9, None), "b", 1)
    bare = read({"token": {"id": 2, "text": "b"}, "generated_text": "ab", "details": None})
    assert (bare.finish_reason, bare.usage) == ("stop", None)


def test_a_whole_answer() -> None:
    value = {"generated_text": "ab", "details": {"finish_reason": "length", "generated_tokens": 2}}
    for payload in (value, [value]):
        piece = TGI.read_whole(orjson.dumps(payload))
        assert (piece.has_output, piece.text, piece.finish_reason, piece.usage) == (
            True,
            "ab",
            "length",
            (None, 2, None),
        )


@pytest.mark.parametrize(
    "value", [{"error": "overloaded", "error_type": "overloaded"}, {"error": {"message": "overloaded"}}]
)
def test_errors(value: Any) -> None:
    error = read(value).error
    assert error is not None and error.message == "overloaded"


KEYS = st.sampled_from(
    ["token", "details", "generated_text", "error", "text", "finish_reason", "generated_tokens", "special"]
)
JSON = st.recursive(
    st.none() | st.integers(-(2**60), 2**60) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_json_of_any_shape_is_read(value: Any) -> None:
    for read_it in (lambda data: TGI.read(SSEEvent("message", data)), TGI.read_whole):
        read_it(orjson.dumps(value))


def test_what_is_no_json_is_malformed() -> None:
    with pytest.raises(MalformedEvent):
        TGI.read(SSEEvent("message", b'{"token": '))


# Bytes as the server writes them: no space after the colon, a special token at the end, the text once more.
STREAM = (
    b'data:{"index":1,"token":{"id":330,"text":" a","logprob":-1.2,"special":false},"generated_text":null,'
    b'"details":null}\n\n'
    b'data:{"index":2,"token":{"id":331,"text":"","logprob":-0.1,"special":false},"generated_text":null,'
    b'"details":null}\n\n'
    b'data:{"index":3,"token":{"id":2,"text":"</s>","logprob":-0.3,"special":true},"generated_text":" a","details":'
    b'{"finish_reason":"eos_token","generated_tokens":3,"seed":null,"input_length":7}}\n\n'
)


@given(cuts=st.lists(st.integers(1, len(STREAM) - 1), max_size=8), hold=st.booleans())
def test_p25_a_stream_byte_for_byte(cuts: list[int], hold: bool) -> None:
    tally = Tally(TGI, 0)
    points = [0, *sorted(set(cuts)), len(STREAM)]
    for n, (start, end) in enumerate(pairwise(points), 1):
        (tally.hold if hold else tally.feed)(STREAM[start:end], n * 1_000_000, (n - 1) * 1_000_000)
    tally.close(100_000_000)
    result = tally.result(8)
    assert (result.outcome, result.finish_reason) == ("ok", "eos_token")
    assert (result.output_count, result.output_source, result.input_server) == (3, "usage", 7)
    assert result.events.tokens == [1, 1, 1]
    assert set(result.flags) - {"bounded"} == {"short_output"}
