"""P09: tool calls put together from their parts, however many grow at once, by JSON or by the form of plain deltas."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import CallPart
from loadgen.client.tally import Tally, TallyResult
from tests.client.captures import body_of, told_by
from tests.client.streams import DONE, FIN, MS, ROLE, SENT, C, J, chunk, run


def call(index: int | None, *, choice: int = 0, **function: Any) -> bytes:
    place = {} if index is None else {"index": index}
    return chunk(index=choice, tool_calls=[{**place, "function": function}])


# events, the calls that they add up to
CASES: dict[str, tuple[list[bytes], list[CallPart]]] = {
    "one": ([call(0, name="f", arguments=""), call(0, arguments='{"a"'), call(0, arguments=":1}")],
            [CallPart(0, 0, "f", '{"a":1}')]),
    "two that take turns": (
        [call(0, name="f"), call(1, name="g"), call(0, arguments="{"), call(1, arguments="[" ), call(0, arguments="}"),
         call(1, arguments="]")],
        [CallPart(0, 0, "f", "{}"), CallPart(0, 1, "g", "[]")]),
    "both in one event": (
        [chunk(tool_calls=[{"index": 1, "function": {"name": "g", "arguments": "2"}},
                           {"index": 0, "function": {"name": "f", "arguments": "1"}}])],
        [CallPart(0, 0, "f", "1"), CallPart(0, 1, "g", "2")]),
    "a name in parts": ([call(0, name="get_"), call(0, name="weather"), call(0, arguments="{}")],
                        [CallPart(0, 0, "get_weather", "{}")]),
    "a name with every part": ([call(0, name="f", arguments=part) for part in "{}"], [CallPart(0, 0, "f", "{}")]),
    "no arguments at all": ([call(0, name="f", arguments="")], [CallPart(0, 0, "f", "")]),
    "no index": ([call(None, name="f"), call(None, arguments="{}")], [CallPart(0, 0, "f", "{}")]),
    "of two choices": (
        [call(0, name="f"), call(0, choice=1, name="g"), call(0, arguments="{}"), call(0, choice=1, arguments="[]")],
        [CallPart(0, 0, "f", "{}"), CallPart(1, 0, "g", "[]")]),
    "the old form": ([chunk(function_call={"name": "f"}), chunk(function_call={"arguments": "{}"})],
                     [CallPart(0, 0, "f", "{}")]),
    "arguments as an object": ([call(0, name="f", arguments={"a": 1})], [CallPart(0, 0, "f", '{"a":1}')]),
    "escapes and other scripts": ([call(0, name="f"), *(call(0, arguments=part) for part in ('{"a":"', "汉\n", '"}'))],
                                  [CallPart(0, 0, "f", '{"a":"汉\n"}')]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_calls(case: str) -> None:
    events, calls = CASES[case]
    result = run(10, ROLE, *events, FIN("tool_calls"), DONE)
    assert (result.outcome, result.finish_reason) == ("ok", "tool_calls")
    assert list(result.calls) == calls
    assert len(result.events.gap_us) == len(events)
    assert result.excerpt is None
    shown = run(10, ROLE, *events, J({"error": "x"})).excerpt
    assert shown == "\n".join(f"{one.name}({one.arguments})" for one in calls)


def test_text_stands_before_the_calls() -> None:
    assert run(1, C("Let me see"), call(0, name="f"), J({"error": "x"})).excerpt == "Let me see\nf()"


def test_what_is_kept_is_bounded() -> None:
    many = run(1, *[call(n, name="f" * 50, arguments="x" * 50) for n in range(500)], J({"error": "x"}))
    assert many.excerpt is not None and len(many.excerpt) <= 2048
    assert sum(len(one.name) + len(one.arguments) for one in many.calls) == 2048
    long = run(1, call(0, name="f"), *[call(0, arguments="é" * 100)] * 100, J({"error": "x"}))
    assert long.excerpt is not None and len(long.excerpt.encode()) <= 2048


@given(parts=st.lists(st.tuples(st.integers(0, 2), st.text(min_size=1, max_size=4)), min_size=1, max_size=40))
def test_any_interleaving_gives_each_call_its_own_arguments(parts: list[tuple[int, str]]) -> None:
    result = run(1, *(call(index, arguments=text) for index, text in parts), FIN("tool_calls"), DONE)
    expected = {
        index: "".join(text for own, text in parts if own == index).encode("utf-8", "replace").decode()
        for index, _ in parts
    }
    assert {one.place: one.arguments for one in result.calls} == expected


REAL = {  # endpoint, where an event has its part of the arguments
    "vllm-tools-chat-required": ("chat", r'"arguments":"((?:[^"\\]|\\.)*)"'),
    "vllm-tools-chat-named": ("chat", r'"arguments":"((?:[^"\\]|\\.)*)"'),
    "vllm-resp-tools": ("responses", r'"delta":"((?:[^"\\]|\\.)*)"'),
}


def tally_of(endpoint: str, reads: list[bytes], hold: bool) -> TallyResult:
    tally = Tally(DIALECTS[endpoint], SENT)
    for n, data in enumerate(reads):
        (tally.hold if hold else tally.feed)(data, SENT + (n + 1) * MS, SENT + n * MS)
    tally.close(SENT + (len(reads) + 1) * MS)
    return tally.result(None)


@pytest.mark.parametrize("name", REAL)
@settings(max_examples=15, deadline=None)
@given(whole=st.booleans(), cuts=st.lists(st.integers(1, 10_000), max_size=12), hold=st.booleans())
def test_a_real_server_s_calls(name: str, whole: bool, cuts: list[int], hold: bool) -> None:
    """The arguments are what the events' own add up to, the counts what the server says."""
    endpoint, pattern = REAL[name]
    body = body_of(name)
    reads = [part + b"\n\n" for part in body.split(b"\n\n")[:-1]]
    if not whole:
        points = [0, *sorted({cut for cut in cuts if cut < len(body)}), len(body)]
        reads = [body[start:end] for start, end in itertools.pairwise(points)]
    result = tally_of(endpoint, reads, hold)
    said = "".join(json.loads(f'"{part}"') for part in re.findall(pattern, body.decode()))
    [one] = result.calls
    assert said.startswith(one.arguments) and len(one.arguments) > 30
    assert one.name == "f"
    assert (result.outcome, result.finish_reason) == ("ok", "length")
    assert (result.input_server, result.output_count) == told_by(name)
