"""The event-stream parser: tables of the format's corners, every cut of real streams, and a slow reference."""

from __future__ import annotations

import random
import time
from itertools import combinations_with_replacement, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.client.sse import EventTooLong, SSEEvent, SSEParser
from tests.client.captures import STREAMED, body_of
from tests.thorough import THOROUGH, examples

ENDINGS = {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r"}


STREAMS = {name: body_of(name) for name in STREAMED}


def parse(*pieces: bytes) -> list[SSEEvent]:
    parser = SSEParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.close()


def bytewise(data: bytes) -> list[SSEEvent]:
    return parse(*(data[i : i + 1] for i in range(len(data))))


# --- tables -----------------------------------------------------------------------------------------------------------

M = "message"
CASES: dict[str, tuple[bytes, list[tuple[str, bytes]]]] = {
    "plain": (b"data: a\n\ndata: b\n\n", [(M, b"a"), (M, b"b")]),
    "P10 no space after the colon": (b"data:a\n\ndata:[DONE]\n\n", [(M, b"a"), (M, b"[DONE]")]),
    "P10 only one space is dropped": (b"data:  {\n\n", [(M, b" {")]),
    "a tab is not a space": (b"data:\ta\n\n", [(M, b"\ta")]),
    "P11 CRLF": (b"data: a\r\n\r\ndata: b\r\n\r\n", [(M, b"a"), (M, b"b")]),
    "P11 CR": (b"data: a\r\rdata: b\r\r", [(M, b"a"), (M, b"b")]),
    "mixed line ends": (b"data: a\r\n\ndata: b\n\r\ndata: c\r\n\r", [(M, b"a"), (M, b"b"), (M, b"c")]),
    "LF CR is two line ends": (b"data: a\n\rdata: b\n\n", [(M, b"a"), (M, b"b")]),
    "P12 several data lines": (b"event: message\nid: 7\ndata: a\ndata: b\n\n", [(M, b"a\nb")]),
    "P12 retry and unknown fields": (b"retry: 10\nfoo: bar\nbaz\ndata: a\n\n", [(M, b"a")]),
    "P12 a name is for one event": (b"event: ping\ndata: 1\n\ndata: 2\n\n", [("ping", b"1"), (M, b"2")]),
    "the last name wins, an empty one is none": (b"event: x\nevent:\ndata: 1\n\n", [(M, b"1")]),
    "a name without data is no event": (b"event: ping\n\ndata: 1\n\n", [(M, b"1")]),
    "P13 comments": (b": PROCESSING\n\n: ping\n\ndata: a\n\n: cost\ndata: [DONE]\n\n", [(M, b"a"), (M, b"[DONE]")]),
    "an empty comment": (b":\n\n:\ndata: a\n\n", [(M, b"a")]),
    "only empty lines": (b"\n\n\n\r\r\r\n\r\n", []),
    "an empty line too many": (b"data: a\n\n\n\ndata: b\n\n\n", [(M, b"a"), (M, b"b")]),
    "data without a colon": (b"data\n\n", [(M, b"")]),
    "data without a colon, twice": (b"data\ndata\n\n", [(M, b"\n")]),
    "empty data": (b"data:\n\ndata: \n\n", [(M, b""), (M, b"")]),
    "a colon in the value": (b'data: {"a":1}\n\n', [(M, b'{"a":1}')]),
    "names are exact": (b"Data: a\ndata : b\n data: c\ndatax: d\n\n", []),
    "P16 these are no line ends": (
        "data: x\u2028y\u2029z\u0085\x0b\x0c\x1c\n\n".encode(),
        [(M, "x\u2028y\u2029z\u0085\x0b\x0c\x1c".encode())],
    ),
    "P17 characters of several bytes": ("data: 汉🙂\n\n".encode(), [(M, "汉🙂".encode())]),
    "P21 the last empty line is missing": (b"data: a\n\ndata: [DONE]\n", [(M, b"a"), (M, b"[DONE]")]),
    "P21 the last line end is missing": (b"data: a\n\ndata: [DONE]", [(M, b"a"), (M, b"[DONE]")]),
    "P21 with CR": (b"data: a\r\rdata: [DONE]\r", [(M, b"a"), (M, b"[DONE]")]),
    "P23 error field": (b'error: {"code":400}\n\ndata: [DONE]\n\n', [("error", b'{"code":400}'), (M, b"[DONE]")]),
    "P23 error field with data": (b"data: [DONE]\nerror: {}\n\n", [("error", b"{}"), (M, b"[DONE]")]),
    "P23 error field in lines": (b"error: {\nerror: }\n\n", [("error", b"{\n}")]),
    "an error without a value is a field like any": (b"error:\nerror\n\n", []),
    "event named error": (b"event: error\ndata: {}\n\n", [("error", b"{}")]),
    "P29 BOM": (b"\xef\xbb\xbfdata: a\n\n", [(M, b"a")]),
    "P29 BOM once": (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n", [(M, b"b")]),
    "P29 BOM only at the start": (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [(M, b"a")]),
    "P29 half a BOM is text": (b"\xef\xbbdata: a\n\ndata: b\n\n", [(M, b"b")]),
    "P29 trailing space is kept for the reader": (b"data: [DONE] \n\n", [(M, b"[DONE] ")]),
    "nothing": (b"", []),
    "half a BOM and the end": (b"\xef\xbb", []),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_table(case: str) -> None:
    data, events = CASES[case]
    expected = [SSEEvent(name, value) for name, value in events]
    assert parse(data) == expected
    assert bytewise(data) == expected
    for cut in range(len(data) + 1):
        assert parse(data[:cut], b"", data[cut:]) == expected
    assert reference(data) == expected


@pytest.mark.parametrize("end", [b"\n\n", b"\r\r", b"\r\n\r"], ids=["LF", "CR", "CRLF"])
def test_an_event_is_there_with_the_byte_that_ends_it(end: bytes) -> None:
    """After CR or CR LF CR too: no waiting for an LF that may never come."""
    parser = SSEParser()
    data = b"data: a" + end
    events = [parser.feed(data[i : i + 1]) for i in range(len(data))]
    assert [bool(found) for found in events] == [False] * (len(data) - 1) + [True]
    assert parser.feed(b"\ndata: b" + end) == [SSEEvent("message", b"b")]  # that LF makes no phantom event


# --- every cut of the captures ----------------------------------------------------------------------------------------


State = dict[str, object]


def state_of(parser: SSEParser) -> State:
    """All that a parser remembers, in a copy that later reads do not change."""
    return {key: value[:] if isinstance(value, list | bytearray) else value for key, value in vars(parser).items()}


def parser_in(state: State) -> SSEParser:
    parser = SSEParser()
    for key, value in state.items():
        parser.__dict__[key] = value[:] if isinstance(value, list | bytearray) else value
    return parser


class Walk:
    """What a parser fed byte by byte remembers at each point of `data`, and the events until there."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.states: list[State] = []
        self.counts: list[int] = []
        self.events: list[SSEEvent] = []
        parser = SSEParser()
        for at in range(len(data) + 1):
            self.states.append(state_of(parser))
            self.counts.append(len(self.events))
            self.events += parser.feed(data[at : at + 1])

    def check(self, start: int, end: int) -> None:
        """One read from point to point: the same events, and the same state after it."""
        twin = parser_in(self.states[start])
        assert twin.feed(self.data[start:end]) == self.events[self.counts[start] : self.counts[end]], (start, end)
        assert vars(twin) == self.states[end], (start, end)


def shortened(data: bytes) -> bytes:
    """Each line with no more of its inside than its first ten and last four bytes: every byte that a rule of the format
    looks at, and for the many bytes of a value that none does, each handled like its neighbour, a few of them."""
    return b"\n".join(line if len(line) <= 14 else line[:10] + line[-4:] for line in data.split(b"\n"))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", STREAMS)
def test_captures_at_every_pair_of_cuts(name: str, ending: str) -> None:
    """Three reads, cut at any two points, give the events of one.

    A parser has no memory beside its state. So it is enough that each read, from any point to any other, gives the
    events and leaves the state that reading byte by byte does: what follows, follows by induction. Shown here
    - for the first and the last read: of each stream, from its start to every point and from every point to its end;
    - for the read between: from every point to every later one, of the stream with the inside of its values shortened,
      for one line end of each stream in turn, and for a sample of the others (all where tests are thorough);
    - and for a sample of those of the stream as it is.
    """
    data = STREAMS[name].replace(b"\n", ENDINGS[ending])
    walk = Walk(data)
    whole = parse(STREAMS[name])
    assert whole[-1].data == b"[DONE]" and len(whole) == STREAMS[name].count(b"data: ")
    assert walk.events == parse(data) == reference(data) == whole
    for cut in range(len(data) + 1):
        walk.check(0, cut)
        walk.check(cut, len(data))
    rng = random.Random(f"{name} {ending}")
    for _ in range(examples(300)):
        walk.check(*sorted(rng.choices(range(len(data) + 1), k=2)))
    short = Walk(shortened(STREAMS[name]).replace(b"\n", ENDINGS[ending]))
    assert len(short.events) == len(whole)
    pairs = list(combinations_with_replacement(range(len(short.data) + 1), 2))
    if THOROUGH == 1 and (list(STREAMS).index(name) - list(ENDINGS).index(ending)) % len(ENDINGS):
        pairs = rng.sample(pairs, len(pairs) // 20)
    for start, end in pairs:
        short.check(start, end)


# --- the fast path and the reference ----------------------------------------------------------------------------------


def reference(data: bytes) -> list[SSEEvent]:
    """The WHATWG algorithm on the whole text, line by line, with this project's three departures."""
    if data.startswith(b"\xef\xbb\xbf"):
        data = data[3:]
    lines = [b""]
    previous = 0
    for byte in data:
        if byte == 0x0A and previous == 0x0D:
            pass
        elif byte in (0x0A, 0x0D):
            lines.append(b"")
        else:
            lines[-1] += bytes([byte])
        previous = byte
    if lines[-1]:
        lines.append(b"")
    events = []
    name, buffer, errors = "", b"", []
    for line in [*lines, b""]:
        if line == b"":
            if errors:
                events.append(SSEEvent("error", b"\n".join(errors)))
            if buffer:
                events.append(SSEEvent(name or "message", buffer[:-1]))
            name, buffer, errors = "", b"", []
            continue
        if line[:1] == b":":
            continue
        colon = line.find(b":")
        field, value = (line, b"") if colon < 0 else (line[:colon], line[colon + 1 :])
        if value[:1] == b" ":
            value = value[1:]
        if field == b"event":
            name = value.decode("utf-8", "replace")
        elif field == b"data":
            buffer += value + b"\n"
        elif field == b"error" and value:
            errors.append(value)
    return events


line_ends = st.sampled_from([b"\n", b"\r", b"\r\n"])
values = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"", b" ", b"[DONE]", b'{"a":1}', "汉🙂\u2028".encode(), b": x", b"data: y"]),
)
lines = st.one_of(
    st.just(b""),
    st.just(b""),
    st.builds(
        lambda name, colon, value: name + colon + value,
        st.sampled_from([b"data", b"data", b"event", b"error", b"id", b"retry", b"", b"Data", b"\xef\xbb\xbfdata"]),
        st.sampled_from([b":", b": ", b":  ", b""]),
        values,
    ),
    st.binary(max_size=6),
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    bom = draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf", b"\xef\xbb"]))
    same = draw(st.one_of(st.none(), line_ends))
    return bom + b"".join(line + (same or draw(line_ends)) for line in draw(st.lists(lines, max_size=14)))


def cut_up(data: bytes, cuts: list[int]) -> list[bytes]:
    points = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(points)]


@settings(max_examples=examples(400), deadline=None)
@given(streams(), st.lists(st.integers(0, 150), max_size=8))
def test_any_stream_in_any_reads_is_what_the_reference_reads(data: bytes, cuts: list[int]) -> None:
    expected = reference(data)
    assert parse(*cut_up(data, cuts)) == expected
    assert bytewise(data) == expected


usual = [b"data: a", b"data: ", b"data: :", b"data:b"]
unusual = [
    b"data",
    b"",
    b"\n",
    b": c",
    b"event: e",
    b"data: x\ndata: y",
    b"error: z",
    b"\ndata: b",
    b"event: f\ndata: g",
]
blocks = st.lists(st.sampled_from(usual + unusual), max_size=8)


@settings(max_examples=examples(200), deadline=None)
@given(blocks, st.integers(0, 3))
def test_the_fast_path_is_the_general_path(parts: list[bytes], extra: int) -> None:
    """Whole events with LF endings in one read, against the same bytes in reads too small for the fast path."""
    data = b"".join(part + b"\n\n" for part in parts) + b"\n" * extra
    fast, slow = SSEParser(), SSEParser()
    for parser in (fast, slow):
        parser.feed(b": settles the byte order mark\n\n")
    slow_events = [event for i in range(len(data)) for event in slow.feed(data[i : i + 1])]
    assert fast.feed(data) == slow_events
    assert vars(fast) == vars(slow)


# --- limits -----------------------------------------------------------------------------------------------------------

TOO_LONG = {
    "one line": b"data: " + b"x" * 100 + b"\n\n",
    "a line that never ends": b"data: " + b"x" * 100,
    "many lines": b"data: 12345678\n" * 8,
    "many empty lines of data": b"data\n" * 70,
    "a comment": b":" + b"x" * 100 + b"\n",
    "an error": b"error: 12345678\n" * 8,
}


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize("case", TOO_LONG)
def test_p20_an_event_above_the_limit(case: str, step: int) -> None:
    """It fails with a clear reason, whatever the reads, and what came before it is not lost."""
    data = b"data: a\n\ndata: b\n\n" + TOO_LONG[case]
    parser = SSEParser(max_event_bytes=64)
    events: list[SSEEvent] = []
    with pytest.raises(EventTooLong, match="longer than 64 bytes") as caught:
        for at in range(0, len(data), step):
            events += parser.feed(data[at : at + step])
    assert [event.data for event in events + caught.value.events] == [b"a", b"b"]


@pytest.mark.parametrize("step", [1, 10_000])
def test_an_event_at_the_limit_passes(step: int) -> None:
    parser = SSEParser(max_event_bytes=64)
    data = b"data: " + b"x" * 58 + b"\n\n" + b"data: " + b"y" * 31 + b"\ndata: " + b"y" * 32 + b"\n\n"
    events = [event for at in range(0, len(data), step) for event in parser.feed(data[at : at + step])]
    assert [len(event.data) for event in events] == [58, 64]
    many = b"data: 1234567890\n\n" * 100  # the limit is for one event, not for the stream
    assert len(parser.feed(many)) == 100


def test_p20_a_line_of_megabytes_in_small_reads_is_linear() -> None:
    """Scanning again what was already scanned would take minutes here."""
    start = time.process_time()
    for size, step in ((8 << 20, 1024), (1 << 18, 1)):
        data = b"data: " + b"x" * (size - 8) + b"\n\n"
        parser = SSEParser()
        events = [event for at in range(0, len(data), step) for event in parser.feed(data[at : at + step])]
        assert [len(event.data) for event in events] == [size - 8]
    assert time.process_time() - start < 10
