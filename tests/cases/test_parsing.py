"""Field cases P: what a stream holds → what its record says, over a real socket. Waits are shortened."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from loadgen.records import Prompt, Record
from loadgen.simulator.scripted import (
    CU,
    DONE,
    EOF,
    FIN,
    RC,
    ROLE,
    RST,
    Action,
    C,
    Comment,
    Event,
    Hang,
    J,
    R,
    Raw,
    T,
    U,
)
from tests.cases.support import MakeSender, ms, near, send_one

Script = list[Action]


@dataclass(frozen=True)
class Want:
    """What a record must say. Times in ms; `ttfc` and `last` are the TTFT's where not given, `text` only where the
    answer failed (then the record keeps it)."""

    events: int = 1  # output events
    outcome: str = "ok"
    ttft: float | None = 0
    ttfc: float | None = -1
    last: float | None = -1
    done: float = 0
    gaps: tuple[float, ...] = ()  # between output events, where they matter
    count: int | None = -1  # output tokens; as many as events where not given
    source: str = "usage"
    prompt: int | None = 3
    flags: frozenset[str] = frozenset()
    finish: str | None = "stop"
    text: str | None = None


def check(measure: Callable[[], Record], want: Want) -> None:
    """What a record says must be right at once; when, in one of a few tries, as the machine may be busy."""
    times: list[Any] = []
    for _ in range(4):
        record = measure()
        check_content(record, want)
        times.append(times_of(record))
        if right_times(times[-1], want):
            return
    pytest.fail(f"times in ms of four tries: {times}; wanted {want}")


def check_content(record: Record, want: Want) -> None:
    assert record.outcome == want.outcome, (record.error, record.flags)
    assert record.status == 200
    assert record.events is not None
    assert len(record.events.gap_us) == want.events
    assert record.output_tokens.count == (want.events if want.count == -1 else want.count)
    assert record.output_tokens.source == want.source
    assert record.input_tokens.server == want.prompt
    assert {*record.flags} - {"bounded"} == want.flags
    assert record.finish_reason == want.finish
    assert (record.error is None) == (want.outcome == "ok")
    assert record.excerpt is None if want.outcome == "ok" else want.text in (None, record.excerpt)


def times_of(record: Record) -> dict[str, Any]:
    assert record.events is not None
    names = ("first_token_ns", "first_content_ns", "last_token_ns", "done_ns")
    return {name: ms(record, name) for name in names} | {"gaps": [gap / 1e3 for gap in record.events.gap_us[1:]]}


def right_times(times: dict[str, Any], want: Want) -> bool:
    return (
        near(times["first_token_ns"], want.ttft)
        and near(times["first_content_ns"], want.ttft if want.ttfc == -1 else want.ttfc)
        and near(times["last_token_ns"], want.ttft if want.last == -1 else want.last)
        and near(times["done_ns"], want.done)
        and (not want.gaps or all(map(near, times["gaps"], want.gaps)))
    )


def delta(finish: str | None = None, /, **fields: Any) -> Event:
    """A chunk with this delta."""
    return J({"id": "r", "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def call(arguments: str, index: int = 0, **named: Any) -> Event:
    return delta(tool_calls=[{"index": index, **named, "function": {"arguments": arguments}}])


def usage(**fields: Any) -> Event:
    return J({"id": "r", "usage": {"prompt_tokens": 3, "completion_tokens": 1}, **fields})


def text_of(*pieces: Action) -> Script:
    """These pieces with no end after them: the record of such an answer keeps its text."""
    return [*pieces, U(3, 9), EOF]


def kept(text: str, events: int = 1, **fields: Any) -> Want:
    return Want(events, outcome="incomplete", finish=None, count=9, text=text, **fields)


UNCOUNTED: dict[str, Any] = {"source": "events", "prompt": None, "flags": frozenset({"usage_missing"})}
NOTHING = {"ttft": None, "events": 0, "source": "events", "count": 0, "prompt": None}
TAIL: Script = [FIN("stop"), U(3, 1), DONE]
P01: Script = [T(20), ROLE, T(100), C("a"), T(40), C("b"), FIN("stop"), U(3, 2), DONE]
P01_WANT = Want(2, ttft=120, last=160, done=160, gaps=(40,))
FILTERS = {"id": "", "object": "", "created": 0, "model": "", "choices": []}
B = J({"choices": [{"index": 1, "delta": {"content": "b"}}]})
OFFSETS = {"index": 0, "finish_reason": None, "content_filter_offsets": {"check_offset": 44}}

CASES: dict[str, tuple[Script, Want]] = {
    "P01": (P01, P01_WANT),
    "P01 prelude with every field null or empty": (
        [delta(role="assistant", content="", reasoning_content=None, tool_calls=[], refusal=None), T(60), C("a"),
         *TAIL],
        Want(ttft=60, done=60),
    ),
    "P01 two preludes": ([ROLE, T(30), ROLE, T(30), C("a"), *TAIL], Want(ttft=60, done=60)),
    "P02": (
        [delta(role="assistant", content=None), T(60), C(" "), T(30), C("a"), delta("stop", content=None),
         U(3, 2), DONE],
        Want(2, ttft=60, last=90, done=90),
    ),
    "P02 text": (text_of(delta(role="assistant", content=None), C(" "), C("a"), C(None)), kept(" a", 2)),
    "P02 a line break, a tab, a zero are tokens": (text_of(C("\n"), C("\t"), C("0")), kept("\n\t0", 3)),
    "P03": ([C("a"), *TAIL], Want()),
    "P03 choices null": ([C("a"), FIN("stop"), usage(choices=None), DONE], Want()),
    "P03 no choices key": ([C("a"), FIN("stop"), usage(), DONE], Want()),
    "P03 first": ([usage(choices=[]), T(60), C("a"), FIN("stop"), DONE], Want(ttft=60, done=60)),
    "P03 in the middle": (
        [C("a"), usage(choices=[]), C("b"), FIN("stop"), U(3, 2), DONE],
        Want(2),
    ),
    "P03 usage null until the end": (
        [C("a", usage=None), C("b", usage=None), FIN("stop"), U(3, 2), DONE],
        Want(2),
    ),
    "P03 with the finish reason": (
        [C("a"), J({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 3, "completion_tokens": 1}}), DONE],
        Want(),
    ),
    "P03 of nulls": (
        [C("a"), FIN("stop"), J({"choices": [], "usage": {"prompt_tokens": None}}), DONE], Want(**UNCOUNTED)),
    "P04": (
        [J({**FILTERS, "prompt_filter_results": []}), T(80), C("a"), T(60), J({"choices": [OFFSETS], "usage": None}),
         FIN("stop"), DONE],
        Want(ttft=80, done=140, **UNCOUNTED),
    ),
    "P04 delta null, choice empty": (
        [J('{"choices":[{"index":0,"delta":null}]}'), J('{"choices":[{}]}'), T(60), C("a"), *TAIL],
        Want(ttft=60, done=60),
    ),
    "P05": ([ROLE, T(40), FIN("stop"), U(3, 0), DONE], Want(0, "empty", None, done=40)),
    "P05 nothing but the end": (
        [DONE], Want(outcome="empty", finish=None, flags=frozenset({"usage_missing"}), **NOTHING)),
    "P07": (
        [T(60), C("a"), T(40), C("b"), FIN("stop"), T(120), U(3, 2), T(120), DONE],
        Want(2, ttft=60, last=100, done=340, gaps=(40,)),
    ),
    "P08a": (
        [T(50), R("x"), T(10), RC("y"), T(100), C("a"), FIN("stop"), U(3, 3), DONE],
        Want(3, ttft=50, ttfc=160, last=160, done=160),
    ),
    "P08b": ([T(50), R("x"), RC("y"), FIN("length"), U(3, 2), DONE],
             Want(2, ttft=50, ttfc=None, done=50, finish="length")),
    "P08 both spellings in one delta are one text": (
        text_of(delta(reasoning="x", reasoning_content="x"), C("a")), kept("xa", 2)),
    "P08 a refusal is content": ([T(40), delta(refusal="no"), *TAIL], Want(ttft=40, done=40)),
    "P09": (
        [T(40), call("", id="c1"), T(40), delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "f"}}]),
         T(10), call('{"a"'), T(10), call(":1}"), FIN("tool_calls"), U(9, 17), DONE],
        Want(3, ttft=80, last=100, done=100, count=17, prompt=9, finish="tool_calls"),
    ),
    "P09 two calls side by side": (
        text_of(delta(tool_calls=[{"index": 0, "function": {"name": "f"}}, {"index": 1, "function": {"name": "g"}}]),
                call("{", 1), call("{}", 0), call("}", 1)),
        kept("f({})\ng({})", 4),
    ),
    "P09 the old function_call": (
        [delta(function_call={"name": "f", "arguments": ""}), delta(function_call={"arguments": "{}"}),
         FIN("function_call"), U(3, 2), DONE],
        Want(2, finish="function_call"),
    ),
    "P10": ([Raw(b'data:{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'),
             Raw(b'data:{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\ndata:[DONE]\n\n')], Want()),
    "P10 two spaces": ([Raw(b'data:  {"choices":[{"index":0,"delta":{"content":" a"}}]}\n\n'), *TAIL], Want()),
    "P12": (
        [Raw(b'event: message\nid: 7\nretry: 10\ndata: {"choices":[{"index":0,\ndata: "delta":{"content":"a"}}]}\n\n'),
         *TAIL],
        Want(),
    ),
    "P12 fields after the data, fields unknown": (
        [Raw(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\nid: 8\nevent: chunk\nx-y: z\nlonely\n\n'),
         *TAIL],
        Want(),
    ),
    "P12 fields without data are no event": ([Raw(b"event: open\nid: 1\n\nretry: 5\n\n"), T(60), C("a"), *TAIL],
                                              Want(ttft=60, done=60)),
    "P13": (
        [Comment("OPENROUTER PROCESSING"), T(100), Comment("ping"), T(50), C("a"),
         Raw(b": x-cost=0.1\ndata: [DONE]\n\n")],
        Want(ttft=150, done=150, finish=None, **UNCOUNTED),
    ),
    "P13 comments within an event": (
        [Raw(b':\n: a\ndata: {"choices":[{"index":0,\n: b\ndata: "delta":{"content":"a"}}]}\n:c\n\n'), *TAIL], Want()),
    "P16": (text_of(C("x\u2028y\u2029z\u0085w\x7f")), kept("x\u2028y\u2029z\u0085w\x7f")),
    "P16 VT and FF, raw though no JSON allows them": (
        [Raw(b'data: {"choices":[{"index":0,"delta":{"content":"x\x0by\x0cz"}}]}\n\n'), C("a"), *TAIL],
        Want(flags=frozenset({"malformed_events"})),
    ),
    "P20 a token of 200 kB": ([T(40), C("a" * 200_000), *TAIL], Want(ttft=40, done=40)),
    "P20 a usage of 300 kB": (
        [C("a"), FIN("stop"), usage(choices=[], pad="x" * 300_000), DONE],
        Want(),
    ),
    "P21a": ([C("a"), FIN("stop"), U(3, 1), Raw(b"data: [DONE]"), EOF], Want()),
    "P21a with one line end": ([C("a"), FIN("stop"), U(3, 1), Raw(b"data: [DONE]\n"), EOF], Want()),
    "P21b": ([C("a"), FIN("stop"), U(3, 1), EOF], Want()),
    "P21b a reset after the finish reason": (
        [C("a"), FIN("stop"), T(50), RST], Want(done=50, **UNCOUNTED)),
    "P21b the last event without its empty line": (
        [C("a"), U(3, 1), Raw(b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'), EOF], Want()),
    "P21c": ([C("a"), U(3, 1), EOF], Want(outcome="incomplete", finish=None, text="a")),
    "P21d": (
        [C("a"), T(60), RST],
        Want(outcome="incomplete", done=60, finish=None, text="a", source="events", prompt=None),
    ),
    "P21e": ([C("a"), *TAIL, Hang(60)], Want()),
    "P21e bytes after the end": ([C("a"), *TAIL, C("b"), U(9, 9), Raw(b"data: {\n\n"), Hang(60)], Want()),
    "P21e a reset after the end": ([C("a"), *TAIL, RST], Want()),
    "P26": (
        [C("a"), Raw(b'data: {"choices":[\n\n'), C("b"), FIN("stop"), U(3, 2), DONE],
        Want(2, flags=frozenset({"malformed_events"})),
    ),
    "P26 words, broken UTF-8, an escape cut short": (
        [Raw(b"data: overloaded\n\n"), Raw(b"data: \xff\xfe\n\n"), C("a"), Raw(b'data: {"choices":"\\ud8"}\n\n'),
         *TAIL],
        Want(flags=frozenset({"malformed_events"})),
    ),
    "P26 JSON that is no object": (
        [J("[1,2]"), J("null"), J("3"), J('"x"'), C("a"), *TAIL], Want(flags=frozenset({"ignored_events"}))),
    "P26 an object of another kind": (
        [J({"type": "ping"}), C("a"), *TAIL], Want(flags=frozenset({"ignored_events"}))),
    "P26 NaN in log-probabilities": (
        [Raw(b'data: {"choices":[{"index":0,"delta":{"content":"a"},"logprobs":[NaN,-Infinity]}]}\n\n'), *TAIL],
        Want(),
    ),
    "P29 byte order mark": ([Raw(b"\xef\xbb\xbf"), C("a"), *TAIL], Want()),
    "P29 spaces after DONE": ([C("a"), FIN("stop"), U(3, 1), Raw(b"data: [DONE] \t\n\n")], Want()),
    "P87 n=2, each choice ends": (
        [C("a"), B, J({"choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]}), FIN("stop"), U(3, 2), EOF],
        Want(2),
    ),
    "P87 n=2, one choice never ends": (
        [C("a"), B, FIN("stop"), U(3, 2), EOF], Want(2, outcome="incomplete"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_stream(case: str, make_sender: MakeSender) -> None:
    script, want = CASES[case]
    check(lambda: send_one(make_sender, script), want)


# --- the same bytes, cut and ended in every way -----------------------------------------------------------------------

MIXED: Script = [
    Comment("ping"), ROLE, CU("汉", 1), RC("🙂"), CU("b c", 4), Raw("data: {\"choices\":[{\"index\":0,\ndata: "
    "\"delta\":{\"content\":\"\u2028\"}}]}\n\n".encode()), C("d"), FIN("length"), U(3, 9), DONE,
]  # fmt: skip
MIXED_WANT = Want(5, count=9, finish="length")


@pytest.mark.parametrize("eol", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("size", ["action", "wait", 1, 2, 3, 7, 80])
def test_p11_p17_p18_cuts_and_line_ends_never_show(size: Any, eol: str, make_sender: MakeSender) -> None:
    record = send_one(make_sender, MIXED, server={"flush": size, "eol": eol})
    check_content(record, MIXED_WANT)
    assert record.events is not None
    assert record.events.tokens == [1, None, None, None, None]  # an event without a count spoils the growth after it


@pytest.mark.parametrize("eol", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_p11_the_first_token_is_as_late_with_every_line_end(eol: str, make_sender: MakeSender) -> None:
    check(lambda: send_one(make_sender, P01, server={"eol": eol}), P01_WANT)


def test_p11_crlf_split_by_a_wait(make_sender: MakeSender) -> None:
    """No phantom event from the LF that comes late, and none of the tokens waits for it."""
    a, rest = C("a").encode("\r\n"), b"".join(e.encode("\r\n") for e in (C("b"), FIN("stop"), U(3, 2), DONE))
    script = [Raw(a[:-1]), T(80), Raw(a[-1:] + rest)]
    check(lambda: send_one(make_sender, script), Want(2, ttft=0, last=80, done=80, gaps=(80,)))


TEXT = "汉🙂é\u2028ﬀ"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_p17_no_character_is_lost_in_a_cut(size: int, make_sender: MakeSender) -> None:
    check(lambda: send_one(make_sender, text_of(C(TEXT)), server={"flush": size}), kept(TEXT))


HEAD, END = C("a").encode()[:40], C("a").encode()[40:]
SPLIT: dict[str, list[bytes]] = {
    "in the middle of the JSON": [HEAD, END],
    "before the last line end": [HEAD + END[:-1], END[-1:]],
    "before both line ends": [HEAD + END[:-2], END[-2:]],
    "within the field's name": [b"da", HEAD[2:] + END],
}


@pytest.mark.parametrize("place", SPLIT)
def test_p18_the_stamp_is_that_of_the_read_that_completed_the_event(place: str, make_sender: MakeSender) -> None:
    first, second = SPLIT[place]
    check(lambda: send_one(make_sender, [Raw(first), T(90), Raw(second), *TAIL]), Want(ttft=90, done=90))


def test_p18_random_cuts(make_sender: MakeSender) -> None:
    data = b"".join(piece.encode() if isinstance(piece, Event) else piece.data for piece in MIXED)  # type: ignore[union-attr]
    rng = random.Random(18)
    for _ in range(25):
        script, at = [], 0
        while at < len(data):
            size = rng.randint(1, 80)
            script.append(Raw(data[at : at + size]))
            at += size
        check_content(send_one(make_sender, script), MIXED_WANT)


# --- lengths asked for ------------------------------------------------------------------------------------------------

SHORT = frozenset({"short_output"})
ASKED: dict[str, tuple[int, Script, Want]] = {
    "P30a": (100, [ROLE, FIN("stop"), DONE], Want(outcome="empty", flags=frozenset({"usage_missing"}), **NOTHING)),
    "P30b": (
        100,
        [*[C("a")] * 7, FIN("stop"), DONE],
        Want(7, source="events", prompt=None, flags=frozenset({"short_output", "usage_missing"})),
    ),
    "P30 with usage": (100, [*[C("a")] * 7, FIN("stop"), U(3, 7), DONE], Want(7, flags=SHORT)),
    "P30 and no finish reason": (100, [*[C("a")] * 7, U(3, 7), DONE], Want(7, finish=None, flags=SHORT)),
    "P30 no finish reason, and events are no tokens": (
        100, [*[C("a b c")] * 7, DONE], Want(7, finish=None, **UNCOUNTED)),
    "P30 the full length": (7, [*[C("a")] * 7, FIN("length"), U(3, 7), DONE], Want(7, finish="length")),
    "P30 tokens in larger chunks are not short": (
        100, [*[C("a b c")] * 7, FIN("length"), DONE], Want(7, finish="length", **UNCOUNTED)),
    "M06 usage wins over chunks and blanks": (100, [*[C(" ")] * 99, FIN("length"), U(3, 100), DONE],
                                              Want(99, count=100, finish="length")),
    "M09 a clean end and no finish reason": (
        1024, [*[C("a")] * 10, EOF],
        Want(10, outcome="incomplete", finish=None, text="a" * 10, source="events", prompt=None),
    ),
    "M09 stopped short": (1024, [*[C("a")] * 10, FIN("stop"), U(3, 10), DONE], Want(10, flags=SHORT)),
}  # fmt: skip


@pytest.mark.parametrize("case", ASKED)
def test_length(case: str, make_sender: MakeSender) -> None:
    asked, script, want = ASKED[case]
    check_content(send_one(make_sender, script, prompt=Prompt("hi", output_tokens=asked)), want)


def test_p20_a_line_above_the_cap_fails_that_one_request(make_sender: MakeSender) -> None:
    script = [C("a"), C("b" * 5000), *TAIL]
    record = send_one(make_sender, script, max_event_bytes=4096)
    assert (record.outcome, record.error and record.error.kind) == ("error", "event_too_long")
    assert "4,096" in str(record.error)
    assert record.excerpt == "a"
    check(lambda: send_one(make_sender, script), replace(Want(2), count=1))
