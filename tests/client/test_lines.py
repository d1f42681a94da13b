"""One JSON value a line: whatever the cuts, the same lines; no work twice; nothing without bound."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.lines import LineParser
from loadgen.client.sse import EventTooLong, SSEEvent


def lines_of(parts: list[bytes], limit: int = 1 << 20) -> list[bytes]:
    parser = LineParser(limit)
    events = [event for part in parts for event in parser.feed(part)] + parser.close()
    assert all(event.name == "message" for event in events)
    return [event.data for event in events]


CASES: dict[bytes, list[bytes]] = {
    b"": [],
    b"\n": [],
    b"a\n": [b"a"],
    b"a": [b"a"],
    b"a\nb": [b"a", b"b"],
    b"a\r\n\r\nb\r\n": [b"a", b"b"],
    b"  \n\ta \n": [b"a"],
    b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n": [b"a", b"\xef\xbb\xbfb"],
    b"a\x0bb\x0cc\xe2\x80\xa8d\n": [b"a\x0bb\x0cc\xe2\x80\xa8d"],
}


@pytest.mark.parametrize("data", CASES)
def test_lines(data: bytes) -> None:
    assert lines_of([data]) == CASES[data]
    assert lines_of([data[i : i + 1] for i in range(len(data))]) == CASES[data]


@given(
    data=st.lists(st.sampled_from([b"a", b"\n", b"\r", b" ", b"{}", b"\xef\xbb\xbf"])),
    cuts=st.lists(st.integers(0, 60)),
)
def test_cuts_never_show(data: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(data)
    points = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    assert lines_of([whole[a:b] for a, b in itertools.pairwise(points)]) == lines_of([whole])


def test_a_line_above_the_limit_is_an_error_after_the_lines_before_it() -> None:
    parser = LineParser(10)
    assert parser.feed(b"0123456789\n") == [SSEEvent("message", b"0123456789")]
    with pytest.raises(EventTooLong) as caught:
        parser.feed(b"a\n01234567890")
    assert caught.value.events == [SSEEvent("message", b"a")]


def test_the_work_is_linear_in_the_bytes() -> None:
    def seconds(size: int) -> float:
        parser = LineParser(1 << 30)
        start = time.process_time()
        for _ in range(size):
            parser.feed(b"0123456789")
        parser.feed(b"\n")
        return time.process_time() - start

    seconds(1000)
    assert seconds(160_000) < 60 * max(seconds(10_000), 0.002)


def test_at_rest_only_between_lines() -> None:
    parser = LineParser()
    assert not parser.at_rest  # a byte order mark may come
    for data, rest in ((b"a\n", True), (b"a", False), (b"b\n", True)):
        parser.feed(data)
        assert parser.at_rest == rest
