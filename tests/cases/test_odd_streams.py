"""Field cases P34 to P74: events that no format promises. Each ends in one outcome, and the record says why."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen.records import Prompt
from loadgen.simulator.scripted import (
    CU,
    DONE,
    EOF,
    FIN,
    ROLE,
    Action,
    C,
    Close,
    Event,
    Head,
    J,
    Raw,
    T,
    U,
)
from tests.cases.support import MakeSender, send_one, some, summary_of, texts
from tests.cases.test_parsing import UNCOUNTED, Want, check, check_content, delta

A, B = C("a"), C("b")
TAIL: list[Action] = [FIN("stop"), U(3, 1), DONE]
MALFORMED, IGNORED = frozenset({"malformed_events"}), frozenset({"ignored_events"})
NO_COUNT: dict[str, Any] = {**UNCOUNTED}
UNTOLD: dict[str, Any] = {"ttft": None, "source": "events", "prompt": None, "count": 0, "finish": None}
CHUNK = '{"choices":[{"index":0,"delta":{"content":"a"}}]}'


def counted(**usage: Any) -> list[Action]:
    return [A, FIN("stop"), J({"id": "r", "choices": [], "usage": usage}), DONE]


def data(text: bytes) -> Raw:
    return Raw(b"data: " + text + b"\n\n")


def ended(reason: Any) -> list[Action]:
    return [A, J({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}), U(3, 1), EOF]


CASES: dict[str, tuple[list[Action], Want]] = {
    "P34 counts that are texts": (counted(prompt_tokens="3", completion_tokens="1"), Want(**NO_COUNT)),
    "P35 counts below zero": (counted(prompt_tokens=-3, completion_tokens=-1), Want(**NO_COUNT)),
    "P35 counts that are no whole numbers": (counted(prompt_tokens=3.5, completion_tokens=1.5), Want(**NO_COUNT)),
    "P35 counts that are NaN and infinite": (
        [A, FIN("stop"), J('{"choices":[],"usage":{"prompt_tokens":NaN,"completion_tokens":Infinity}}'), DONE],
        Want(**NO_COUNT),
    ),
    "P35 counts that no counter holds": (
        counted(prompt_tokens=3, completion_tokens=2**70), Want(source="events", flags=UNCOUNTED["flags"])),
    "P35 whole numbers with a point": (counted(prompt_tokens=3.0, completion_tokens=1.0), Want()),
    "P35 a usage that is a list": ([A, FIN("stop"), J({"choices": [], "usage": [1]}), DONE], Want(**NO_COUNT)),
    "P36 a trillion tokens": (counted(prompt_tokens=3, completion_tokens=10**12), Want(count=10**12)),
    "P37 fewer tokens than events": ([A, A, A, FIN("stop"), U(3, 2), DONE], Want(3, count=2)),
    "P38 none beside output": ([A, A, FIN("stop"), U(3, 0), DONE],
                               Want(2, source="events", flags=UNCOUNTED["flags"])),
    "P39 a second usage": ([A, FIN("stop"), U(9, 9), U(3, 1), DONE], Want()),
    "P39 one that falls": ([CU("a", 5), CU("b", 2), FIN("stop"), U(3, 2), DONE], Want(2)),
    "P40 after the end": ([A, FIN("stop"), DONE, T(20), U(3, 1)], Want(**NO_COUNT)),
    "P41 text after the end": ([A, *TAIL, B], Want()),
    "P42 several ends": ([A, *TAIL, DONE, DONE], Want()),
    "P43 an end in small letters": ([A, FIN("stop"), U(3, 1), J("[done]"), EOF], Want(flags=MALFORMED)),
    "P43 an end in quotes, and no finish reason": (
        [A, U(3, 1), J('"[DONE]"'), EOF], Want(outcome="incomplete", finish=None, flags=IGNORED, text="a")),
    "P43 an end of a name of its own": (
        [A, FIN("stop"), U(3, 1), Raw(b"event: done\ndata: {}\n\n"), EOF], Want(flags=IGNORED)),
    "P44 choices that are an object": ([J({"choices": {"index": 0, "delta": {"content": "a"}}}), T(40), A, *TAIL],
                                       Want(ttft=40, done=40, flags=IGNORED)),
    "P44 choices that are a text": ([J({"choices": "a"}), A, *TAIL], Want(flags=IGNORED)),
    "P45 a delta that is a text": ([J({"choices": [{"index": 0, "delta": "a"}]}), A, *TAIL], Want(flags=IGNORED)),
    "P45 a delta that is a list": ([J({"choices": [{"index": 0, "delta": ["a"]}]}), A, *TAIL], Want(flags=IGNORED)),
    "P46 content in parts": ([delta(content=[{"type": "text", "text": "a"}, "b"]), *TAIL], Want()),
    "P46 content that is one part": ([delta(content={"type": "text", "text": "a"}), *TAIL], Want()),
    "P47 content that is a number": ([delta(content=5), delta(content=True), A, *TAIL], Want(flags=IGNORED)),
    "P48 reasoning that is an object": ([delta(reasoning={"text": "x"}), T(40), A, FIN("stop"), U(3, 2), DONE],
                                        Want(2, ttfc=40, last=40, done=40)),
    "P48 reasoning that is a list": ([delta(reasoning_content=["x"]), A, FIN("stop"), U(3, 2), DONE], Want(2)),
    "P49 a tool call without an index": (
        [delta(tool_calls=[{"function": {"name": "f", "arguments": "{}"}}]), FIN("tool_calls"), U(3, 1), DONE],
        Want(finish="tool_calls"),
    ),
    "P49 an index that is a text": (
        [delta(tool_calls=[{"index": "0", "function": {"name": "f"}}]), FIN("tool_calls"), U(3, 1), DONE],
        Want(finish="tool_calls"),
    ),
    "P50 a token of a megabyte": ([C("a" * 1_000_000), *TAIL], Want()),
    "P51 two objects on a line": ([J(CHUNK + CHUNK), A, *TAIL], Want(flags=MALFORMED)),
    "P51 two objects on two lines of an event": (
        [Raw(f"data: {CHUNK}\ndata: {CHUNK}\n\n".encode()), A, *TAIL], Want(flags=MALFORMED)),
    "P52 null, a number, true": ([J("null"), J("123"), J("true"), A, *TAIL], Want(flags=IGNORED)),
    "P53 UTF-16": ([Raw(f"data: {CHUNK}\n\n".encode("utf-16")), EOF], Want(0, "incomplete", **UNTOLD)),
    "P54 Latin-1": ([data(b'{"choices":[{"index":0,"delta":{"content":"\xe9"}}]}'), *TAIL], Want()),
    "P55 ten thousand brackets": ([data(b'{"choices":' + b"[" * 10_000 + b"]" * 10_000 + b"}"), A, *TAIL],
                                  Want(flags=MALFORMED)),
    "P55 a hundred thousand braces": ([data(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), A, *TAIL],
                                      Want(flags=MALFORMED)),
    "P56 a number of ten thousand digits": (
        [data(b'{"choices":[],"created":' + b"9" * 10_000 + b"}"), A, *TAIL], Want(flags=MALFORMED)),
    "P57 a key twice: the last one holds": (
        [data(b'{"choices":[],"choices":[{"index":0,"delta":{"content":"","content":"a"}}]}'), *TAIL], Want()),
    "P58 an id that changes": ([A, J({"id": "s", "choices": [{"index": 0, "delta": {"content": "b"}}]}),
                                FIN("stop"), U(3, 2), DONE], Want(2)),
    "P58 an id that is a number": ([J({"id": 7, "choices": [{"index": 0, "delta": {"content": "a"}}]}), *TAIL],
                                   Want()),
    "P59 one index twice in an event": (
        [J({"choices": [{"index": 0, "delta": {"content": "a"}}, {"index": 0, "delta": {"content": "b"}}]}),
         FIN("stop"), U(3, 2), DONE],
        Want(count=2),
    ),
    "P60 a choice without an index": ([J({"choices": [{"delta": {"content": "a"}}]}), FIN("stop"), U(3, 1), EOF],
                                      Want()),
    "P60 indices that are none": (
        [J({"choices": [{"index": index, "delta": {"content": "a"}}]}) for index in ("0", -1, None)]
        + [FIN("stop"), U(3, 3), EOF],
        Want(3),
    ),
    "P60 a choice that is alone and not the first": (
        [J({"choices": [{"index": 5, "delta": {"content": "a"}, "finish_reason": "stop"}]}), U(3, 1), EOF], Want()),
    "P61 events without data": ([Raw(b"data:\n\ndata: \n\ndata\n\n"), T(40), A, *TAIL],
                                Want(ttft=40, done=40, flags=IGNORED)),
    "P62 a byte order mark later on hides its line": ([A, Raw(b"\xef\xbb\xbf"), B, C("c"), FIN("stop"), U(3, 3), DONE],
                                                      Want(2, count=3)),
    "P63 zero bytes hide their line": ([Raw(b"\x00\x00"), A, B, *TAIL], Want()),
    "P64 a field in capitals": ([Raw(f"DATA: {CHUNK}\n\n".encode()), *TAIL],
                                Want(0, "empty", None, count=1)),
    "P64 a space before the field, one behind": (
        [Raw(f" data: {CHUNK}\n\ndata : {CHUNK}\n\n".encode()), *TAIL], Want(0, "empty", None, count=1)),
    "P65 no empty line between events": (
        [Raw(f"data: {CHUNK}\ndata: {CHUNK}\ndata: [DONE]\n".encode()), EOF],
        Want(0, "incomplete", flags=MALFORMED, **UNTOLD),
    ),
    "P66 Python where JSON belongs": ([data(b"{'choices': [{'index': 0}]}"), data(b"b'{}'"), *TAIL],
                                      Want(0, "empty", None, count=1, flags=MALFORMED)),
    "P67 JSON lines under the name of an event stream": (
        [Raw(f"{CHUNK}\n{CHUNK}\n".encode()), EOF], Want(0, "incomplete", **UNTOLD)),
    "P68 JSON in a JSON text": ([J(json.dumps(CHUNK)), *TAIL], Want(0, "empty", None, count=1, flags=IGNORED)),
    "P69 another API's events": (
        [Event(("event: message_start", 'data: {"type":"message_start","message":{"id":"x"}}')),
         Event(("event: content_block_delta", 'data: {"type":"content_block_delta","delta":{"text":"a"}}')),
         Event(("event: message_stop", 'data: {"type":"message_stop"}')), EOF],
        Want(0, "incomplete", flags=IGNORED, **UNTOLD),
    ),
    "P70 stopped by a content filter": ([A, FIN("content_filter"), U(3, 1), DONE], Want(finish="content_filter")),
    "P71 a finish reason that is an object": (ended({"type": "stop"}), Want()),
    "P71 one that is empty": (ended(""), Want(outcome="incomplete", finish=None)),
    "P71 one that is no text": (ended(False), Want(outcome="incomplete", finish=None)),
    "P72 no error under the name of one": (
        [C("a", error=None), C("b", error={}), C("c", error=False), C("d", error=""), FIN("stop"), U(3, 4), DONE],
        Want(4),
    ),
    "P48 reasoning in parts of parts": (
        [delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "x"}]}]), T(40), A, FIN("stop"),
         U(3, 2), DONE],
        Want(2, ttfc=40, last=40, done=40),
    ),
    "P48 reasoning twice, whole and in details": (
        [delta(reasoning="x", reasoning_details=[{"type": "reasoning.text", "text": "x"}]), A, FIN("stop"), U(3, 2),
         DONE],
        Want(2),
    ),
    "P34 counts that are null": (counted(prompt_tokens=3, completion_tokens=None, total_tokens=None),
                                 Want(source="events", flags=UNCOUNTED["flags"])),
    "P34 counts that are true": (counted(prompt_tokens=True, completion_tokens=True), Want(**NO_COUNT)),
    "P43 an end and more on its line": ([A, FIN("stop"), U(3, 1), J("[DONE];"), EOF], Want(flags=MALFORMED)),
    "P44 a choice that is null": ([J({"choices": [None]}), A, *TAIL], Want(flags=IGNORED)),
    "P45 a delta that is null": (
        [J({"choices": [{"index": 0, "delta": None, "finish_reason": None}]}), T(40), A, *TAIL],
        Want(ttft=40, done=40)),
    "P49 arguments that are an object": (
        [delta(tool_calls=[{"index": 10**12, "function": {"name": "f", "arguments": {"a": 1}}}]), FIN("tool_calls"),
         U(3, 1), DONE],
        Want(finish="tool_calls"),
    ),
    "P49 a function that is null": ([delta(tool_calls=[{"index": 0, "function": None}]), T(40), A, *TAIL],
                                    Want(ttft=40, done=40)),
    "P51 a comma too many": ([data(CHUNK.replace("}]}", "},]}").encode()), A, *TAIL], Want(flags=MALFORMED)),
    "P51 the field's name twice": ([data(b"data: " + CHUNK.encode()), A, *TAIL], Want(flags=MALFORMED)),
    "P54 UTF-8 that is longer than it may be": (
        [data(b'{"choices":[{"index":0,"delta":{"content":"\xc0\xaf"}}]}'), *TAIL], Want()),
    "P59 an index that no counter holds": (
        [J({"choices": [{"index": 2**70, "delta": {"content": "a"}, "finish_reason": "stop"}]}), U(3, 1), DONE],
        Want()),
    "P61 ten thousand comments": ([Raw(b": x\n\n" * 10_000), A, *TAIL], Want()),
    "P61 a comment of a megabyte": ([Raw(b":" + b"x" * 1_000_000 + b"\n\n"), A, *TAIL], Want()),
    "P61 a retry that no clock holds, an id with a NUL": (
        [Raw(b"retry: 99999999999999999999999\nid: a\0b\n"), A, *TAIL], Want()),
    "P67 a whole completion under the name of an event stream": (
        [Raw(b'{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}'), EOF],
        Want(0, "incomplete", **UNTOLD)),
    "P67 a whole completion as one event": (
        [J({"object": "chat.completion", "choices": [{"index": 0, "message": {"content": "abc"},
            "finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}), DONE],
        Want()),
    "P69 a ping of its own": ([Event(("event: ping", 'data: {"type":"ping"}')), A, *TAIL], Want(flags=IGNORED)),
    "P71 two finish reasons": ([A, FIN("stop"), FIN("stop"), U(3, 1), DONE], Want()),
    "P73 sound beside no text": ([delta(audio={"id": "x", "data": "AAAA"}), FIN("stop"), U(3, 1), DONE],
                                 Want(0, "empty", None, count=1)),
    "P73 citations after the text": (
        [A, delta(annotations=[{"type": "url_citation", "url_citation": {"url": "x"}}]), *TAIL], Want()),
    "P73 a text completion from the chat endpoint": ([J({"choices": [{"index": 0, "text": "a"}]}), *TAIL], Want()),
    "P73 an unknown field at every place": (
        [J({"x": 1, "choices": [{"index": 0, "x": {}, "delta": {"content": "a", "x": [], "audio": {"id": "x"}}}]}),
         *TAIL],
        Want(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_stream(case: str, make_sender: MakeSender) -> None:
    script, want = CASES[case]
    if any(isinstance(action, T) for action in script):
        check(lambda: send_one(make_sender, script), want)
    else:
        check_content(send_one(make_sender, script), want)


def test_p58_the_first_id_is_kept(make_sender: MakeSender) -> None:
    other = J({"id": "s", "choices": [{"index": 0, "delta": {"content": "b"}}]})
    assert send_one(make_sender, [A, other, FIN("stop"), U(3, 2), DONE]).server_id == "r"


@pytest.mark.parametrize("error", [True, ["x"], {"x": 1}, 7])
def test_p72_an_error_of_any_shape_is_one(error: Any, make_sender: MakeSender) -> None:
    record = send_one(make_sender, [A, J({"error": error}), DONE])
    assert record.error is not None
    assert (record.outcome, record.error.kind, record.excerpt) == ("error", "server", "a")
    assert record.error.message == json.dumps(error, separators=(",", ":"))


@pytest.mark.parametrize("code", [401, 429, 503])
def test_p72_a_status_told_within_the_stream_is_the_error_s_code(code: int, make_sender: MakeSender) -> None:
    record = send_one(make_sender, [A, J({"error": {"message": "no", "code": code}}), DONE])
    assert record.error is not None
    assert (record.outcome, record.error.code, record.status) == ("error", code, 200)


BROKEN_OFF: dict[str, tuple[list[Action], int, int | None]] = {
    "P74 after the head": ([Head(), Close], 0, 0),
    "P74 after the prelude": ([ROLE, Close], 0, 0),
    "P74 with its usage, and no finish reason": ([A, U(3, 1), Close], 1, 1),
}


@pytest.mark.parametrize("case", BROKEN_OFF)
def test_a_connection_that_ends_too_early(case: str, make_sender: MakeSender) -> None:
    script, events, count = BROKEN_OFF[case]
    record = send_one(make_sender, script)
    assert record.error is not None and record.events is not None
    assert (record.outcome, record.error.kind, record.status) == ("incomplete", "reset", 200)
    assert (len(record.events.gap_us), record.output_tokens.count) == (events, count)


def test_p74_after_the_finish_reason_it_is_no_failure(make_sender: MakeSender) -> None:
    check_content(send_one(make_sender, [A, FIN("stop"), U(3, 1), Close]), Want())


def test_p36_more_tokens_than_were_asked_for_are_told(make_sender: MakeSender) -> None:
    records = some(
        make_sender, counted(prompt_tokens=3, completion_tokens=10**12), prompt=Prompt("hi", output_tokens=8)
    )
    text, report = texts(summary_of(records))
    assert "3 of 3 answers with more output tokens, by the server's count, than were asked for" in text
    assert report["longer_output_requests"] == 3
