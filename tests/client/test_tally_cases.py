"""The field's cases by id: a stream on made-up stamps, and everything its record must say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from loadgen.client.tally import TallyResult
from tests.client.streams import CU, DONE, ERROR, FIN, IDS, ROLE, TOOL, C, J, U, chunk, ms, run


@dataclass(frozen=True)
class Want:
    """What a case must come to; times in ms since sent."""

    outcome: str = "ok"
    first: float | None = None
    last: float | None = None
    done: float | None = None
    gaps_us: list[int] = field(default_factory=list)
    tokens: list[int | None] | None = None  # None: all unknown
    count: int | None = None
    source: str | None = "usage"
    first_event_tokens: int | None = None
    content: float | None = -1  # -1: the same as the first
    flags: tuple[str, ...] = ()
    finish: str | None = "stop"


MISSING = ("usage_missing",)
P07 = (100, C("a"), 10, C("b"), FIN("stop"), 500, U(3, 2), 500, DONE)
TWO = Want(first=500, last=520, done=520, gaps_us=[500_000, 20_000], count=2)
CASES: dict[str, tuple[TallyResult, Want]] = {
    "P01": (run(50, ROLE, 450, C("a"), 20, C("b"), FIN("stop"), U(3, 2), DONE), TWO),
    "P02": (
        run(chunk(role="assistant", content=None), 5, C(" "), 5, C("a"), chunk("stop", content=None), U(1, 2), DONE),
        Want(first=5, last=10, done=10, gaps_us=[5_000, 5_000], count=2),
    ),
    "P03": (run(9, C("a"), FIN("stop"), U(3, 1), DONE), Want(first=9, last=9, done=9, gaps_us=[9_000], count=1)),
    "P03 choices null, usage not asked for": (
        run(9, C("a"), FIN("stop"), J({"choices": None, "usage": {"completion_tokens": 1}}), DONE, usage_asked=False),
        Want(first=9, last=9, done=9, gaps_us=[9_000], count=1),
    ),
    "P03 usage first": (
        run(U(3, 1), 9, C("a"), FIN("stop"), DONE),
        Want(first=9, last=9, done=9, gaps_us=[9_000], count=1),
    ),
    "P03 usage in the middle": (
        run(9, C("a"), U(3, 2), 1, C("b"), FIN("stop"), DONE),
        Want(first=9, last=10, done=10, gaps_us=[9_000, 1_000], count=2),
    ),
    "P04": (
        run(
            J({"id": "", "object": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": []}),
            300,
            C("a"),
            50,
            J({"choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {}}], "usage": None}),
            FIN("stop"),
            DONE,
        ),
        Want(first=300, last=300, done=350, gaps_us=[300_000], count=1, source="events", flags=MISSING),
    ),
    "P05": (run(ROLE, 7, FIN("stop"), U(3, 0), DONE), Want("empty", done=7, count=0)),
    "P07": (run(*P07), Want(first=100, last=110, done=1110, gaps_us=[100_000, 10_000], count=2)),
    "P08 reasoning, then content": (
        run(100, chunk(reasoning="x"), 10, chunk(reasoning_content="y"), 300, C("a"), FIN("stop"), U(3, 3), DONE),
        Want(first=100, last=410, done=410, gaps_us=[100_000, 10_000, 300_000], count=3, content=410),
    ),
    "P08 only reasoning": (
        run(100, chunk(reasoning="x"), FIN("length"), U(3, 1), DONE),
        Want(first=100, last=100, done=100, gaps_us=[100_000], count=1, content=None, finish="length"),
    ),
    "P09": (
        run(
            80,
            TOOL(name="f", arguments=""),
            10,
            TOOL(arguments='{"a"'),
            10,
            TOOL(arguments=":1}"),
            FIN("tool_calls"),
            U(9, 17),
            DONE,
        ),
        Want(first=80, last=100, done=100, gaps_us=[80_000, 10_000, 10_000], count=17, finish="tool_calls"),
    ),
    "P13": (
        run(b": PROCESSING\n\n", 1000, b": ping\n\n", 500, C("a"), b": x-cost=0.1\ndata: [DONE]\n\n"),
        Want(
            first=1500, last=1500, done=1500, gaps_us=[1_500_000], count=1, source="events", flags=MISSING, finish=None
        ),
    ),
    "P20": (
        run(30, C("a" * 200_000), FIN("stop"), U(1, 9, pad="x" * 300_000), DONE),
        Want(first=30, last=30, done=30, gaps_us=[30_000], count=9),
    ),
    "P21a no last empty line": (
        run(1, C("a"), 1, FIN("stop"), U(1, 1), 1, b"data: [DONE]"),
        Want(first=1, last=1, done=3, gaps_us=[1_000], count=1),
    ),
    "P21b no DONE": (
        run(1, C("a"), 1, FIN("stop")),
        Want(first=1, last=1, done=2, gaps_us=[1_000], count=1, source="events", flags=MISSING),
    ),
    "P21c no end": (
        run(1, C("a"), 1, U(1, 1)),
        Want("incomplete", first=1, last=1, done=2, gaps_us=[1_000], count=1, finish=None),
    ),
    "P21d reset": (
        run(1, C("a"), 1, b"data: {", clean=False),
        Want("incomplete", first=1, last=1, done=2, gaps_us=[1_000], count=1, source="events", finish=None),
    ),
    "P21d reset before anything": (run(clean=False), Want("incomplete", done=0, count=0, source="events", finish=None)),
    "P21e bytes after DONE do not count": (
        run(1, C("a"), FIN("stop"), U(1, 1), DONE, 60_000, C("b"), b"data: {\n\n", ERROR),
        Want(first=1, last=1, done=1, gaps_us=[1_000], count=1),
    ),
    "a timeout: no close": (
        run(1, C("a"), close=False),
        Want("incomplete", first=1, last=1, gaps_us=[1_000], count=1, source="events", finish=None),
    ),
    "P22": (
        run(1, C("a"), 1, C("b"), 1, ERROR, DONE),
        Want("error", first=1, last=2, done=3, gaps_us=[1_000, 1_000], count=2, source="events", finish=None),
    ),
    "P22 at once": (run(2, ERROR, DONE), Want("error", done=2, count=0, source="events", finish=None)),
    "P23": (
        run(2, b'error: {"code":400,"message":"the request exceeds the available context size"}\n\n', DONE),
        Want("error", done=2, count=0, source="events", finish=None),
    ),
    "P26": (
        run(1, C("a"), 1, b'data: {"choices":[\n\n', 1, C("b"), FIN("stop"), U(1, 2), DONE),
        Want(first=1, last=3, done=3, gaps_us=[1_000, 2_000], count=2, flags=("malformed_events",)),
    ),
    "an unknown event": (
        run(1, C("a"), b"event: ping\ndata: {}\n\n", FIN("stop"), U(1, 1), DONE),
        Want(first=1, last=1, done=1, gaps_us=[1_000], count=1, flags=("ignored_events",)),
    ),
    "P29": (
        run(1, b"\xef\xbb\xbf" + C("a"), FIN("stop"), U(1, 1), b"data: [DONE] \n\n"),
        Want(first=1, last=1, done=1, gaps_us=[1_000], count=1),
    ),
    "P30a": (
        run(ROLE, 3, FIN("stop"), DONE, asked=100),
        Want("empty", done=3, count=0, source="events", flags=MISSING),
    ),
    "P30b": (
        run(*[C("a"), 1] * 7, FIN("stop"), DONE, asked=100),
        Want(
            first=0,
            last=6,
            done=7,
            gaps_us=[0, *[1_000] * 6],
            count=7,
            source="events",
            flags=("short_output", "usage_missing"),
        ),
    ),
    "M01 per-event usage": (
        run(100, CU("a", 1), 40, CU("b c d e", 5), 40, CU("f g h i", 9), FIN("length"), U(3, 9), DONE, asked=9),
        Want(
            first=100,
            last=180,
            done=180,
            gaps_us=[100_000, 40_000, 40_000],
            tokens=[1, 4, 4],
            count=9,
            first_event_tokens=1,
            finish="length",
        ),
    ),
    "M01 without": (
        run(100, C("a"), 40, C("b c d e"), 40, C("f g h i"), FIN("length"), U(3, 9), DONE, asked=9),
        Want(first=100, last=180, done=180, gaps_us=[100_000, 40_000, 40_000], count=9, finish="length"),
    ),
    "M02": (
        run(100, CU("a b c d", 4), 10, CU("e", 5), FIN("length"), U(3, 5), DONE, asked=5),
        Want(
            first=100,
            last=110,
            done=110,
            gaps_us=[100_000, 10_000],
            tokens=[4, 1],
            count=5,
            first_event_tokens=4,
            finish="length",
        ),
    ),
    "M02 more than the total": (
        run(100, CU("a b c d", 4), 10, CU("e", 5), FIN("length"), U(3, 3), DONE),
        Want(first=100, last=110, done=110, gaps_us=[100_000, 10_000], count=3, finish="length"),
    ),
    "M05 counted by events": (
        run(*[1, C("a")] * 20, FIN("stop"), DONE, asked=512, usage_asked=False),
        Want(first=1, last=20, done=20, gaps_us=[1_000] * 20, count=20, source="events", flags=("short_output",)),
    ),
    "M06": (
        run(*[1, C(" ")] * 100, FIN("length"), U(3, 100), DONE, asked=100),
        Want(first=1, last=100, done=100, gaps_us=[1_000] * 100, count=100, finish="length"),
    ),
    "M07 one token": (
        run(4, CU("a", 1), FIN("length"), U(3, 1), DONE, asked=1),
        Want(first=4, last=4, done=4, gaps_us=[4_000], tokens=[1], count=1, first_event_tokens=1, finish="length"),
    ),
    "M09 no finish reason": (
        run(*[1, C("a")] * 10, asked=1024),
        Want("incomplete", first=1, last=10, done=10, gaps_us=[1_000] * 10, count=10, source="events", finish=None),
    ),
    "M09 stopped short": (
        run(*[1, C("a")] * 10, FIN("stop"), U(3, 10), DONE, asked=1024),
        Want(first=1, last=10, done=10, gaps_us=[1_000] * 10, count=10, flags=("short_output",)),
    ),
    "M10": (run(1, ROLE, DONE), Want("empty", done=1, count=0, source="events", flags=MISSING, finish=None)),
    "a length reached in fewer events than tokens is not short": (
        run(*[1, C("a")] * 63, FIN("length"), DONE, asked=64, usage_asked=False),
        Want(first=1, last=63, done=63, gaps_us=[1_000] * 63, count=63, source="events", finish="length"),
    ),
    "a length by the server's count is": (
        run(1, C("a"), FIN("length"), U(3, 63), DONE, asked=64),
        Want(first=1, last=1, done=1, gaps_us=[1_000], count=63, finish="length", flags=("short_output",)),
    ),
    "token ids": (
        run(1, IDS("a", 1), 1, IDS("bc", 2, 3), FIN("stop"), DONE),
        Want(
            first=1,
            last=2,
            done=2,
            gaps_us=[1_000, 1_000],
            tokens=[1, 2],
            count=3,
            source="token_ids",
            first_event_tokens=1,
            flags=MISSING,
        ),
    ),
    "token ids without text": (
        run(1, IDS("", 1), 1, IDS("a", 2), 1, IDS("", 3), 1, IDS("b", 4), FIN("stop"), U(3, 4), DONE),
        Want(first=2, last=4, done=4, gaps_us=[2_000, 1_000, 1_000], tokens=[2, 1, 1], count=4, first_event_tokens=2),
    ),
    "usage that grows without text": (  # before the first output it is the first event's; later it stands by itself
        run(
            1,
            ROLE,
            1,
            CU("", 1),
            1,
            CU("a", 3),
            1,
            CU("", 4),
            1,
            CU("", 4),
            1,
            CU("b", 6),
            1,
            chunk("stop", usage={"completion_tokens": 7}),
            1,
            U(3, 7),
            DONE,
        ),
        Want(
            first=3,
            last=6,
            done=8,
            gaps_us=[3_000, 1_000, 2_000, 1_000],
            tokens=[3, 1, 2, 1],
            count=7,
            first_event_tokens=3,
        ),
    ),
    "usage only with the finish": (  # all tokens did not come with the last event
        run(1, C("a"), 1, C("b"), 1, chunk("stop", usage={"prompt_tokens": 3, "completion_tokens": 20}), DONE),
        Want(first=1, last=2, done=3, gaps_us=[1_000, 1_000], count=20),
    ),
    "usage only with the last text": (
        run(1, C("a"), 1, chunk("stop", content="b", usage={"completion_tokens": 20}), DONE),
        Want(first=1, last=2, done=2, gaps_us=[1_000, 1_000], count=20),
    ),
    "all in one event": (
        run(1, chunk("stop", content="a b c", usage={"completion_tokens": 3}), DONE),
        Want(first=1, last=1, done=1, gaps_us=[1_000], tokens=[3], count=3, first_event_tokens=3),
    ),
    "a counter that is always zero": (
        run(1, CU("a", 0), 1, CU("b", 0), FIN("stop"), DONE),
        Want(first=1, last=2, done=2, gaps_us=[1_000, 1_000], count=2, source="events", flags=MISSING),
    ),
    "a counter one event behind": (
        run(1, CU("a", 0), 1, CU("b", 1), 1, CU("c", 2), FIN("stop"), U(3, 3), DONE),
        Want(first=1, last=3, done=3, gaps_us=[1_000] * 3, tokens=[None, 1, 1], count=3),
    ),
    "a hole in the counts": (
        run(1, CU("a", 1), 1, C("b"), 1, CU("c", 4), 1, CU("d", 5), FIN("stop"), U(3, 5), DONE),
        Want(first=1, last=4, done=4, gaps_us=[1_000] * 4, tokens=[1, None, None, 1], count=5, first_event_tokens=1),
    ),
    "cut short with per-event usage": (
        run(1, CU("a", 1), 1, CU("b c", 3), clean=False),
        Want(
            "incomplete",
            first=1,
            last=2,
            done=2,
            gaps_us=[1_000] * 2,
            tokens=[1, 2],
            count=3,
            first_event_tokens=1,
            finish=None,
        ),
    ),
    "two choices, each with its own counter": (
        run(
            1,
            CU("a", 1),
            1,
            CU("x", 1, 1),
            1,
            CU("b", 2),
            1,
            CU("y", 3, 1),
            FIN("stop"),
            FIN("stop", 1),
            U(3, 5),
            DONE,
            asked=2,
        ),
        Want(first=1, last=4, done=4, gaps_us=[1_000] * 4, tokens=[1, 1, 1, 2], count=5, first_event_tokens=1),
    ),
    "two choices, one counter": (
        run(
            1,
            CU("a", 1),
            1,
            CU("x", 2, 1),
            1,
            CU("b", 3),
            1,
            CU("y", 5, 1),
            FIN("stop"),
            FIN("stop", 1),
            U(3, 5),
            DONE,
            asked=3,
        ),
        Want(
            first=1,
            last=4,
            done=4,
            gaps_us=[1_000] * 4,
            tokens=[1, 1, 1, 2],
            count=5,
            first_event_tokens=1,
            flags=("short_output",),
        ),
    ),
    "two choices, one of them unfinished": (
        run(1, C("a"), C("x", 1), FIN("stop")),
        Want("incomplete", first=1, last=1, done=1, gaps_us=[1_000, 0], count=2, source="events"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    result, want = CASES[case]
    got = Want(
        outcome=result.outcome,
        first=ms(result.first_token_ns),
        last=ms(result.last_token_ns),
        done=ms(result.done_ns),
        gaps_us=result.events.gap_us,
        tokens=result.events.tokens,
        count=result.output_count,
        source=result.output_source,
        first_event_tokens=result.first_event_tokens,
        content=ms(result.first_content_ns),
        flags=result.flags,
        finish=result.finish_reason,
    )
    want = replace(want, tokens=want.tokens or [None] * len(want.gaps_us))
    assert got == (replace(want, content=want.first) if want.content == -1 else want)
    assert result.events.bounded == []
    assert (result.error is None) == (result.outcome == "ok")
    assert result.outcome != "ok" or result.excerpt is None
