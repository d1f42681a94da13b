"""From stamped reads to a record's figures: failures, bounds, whole answers, real answers, and the arithmetic."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.client.dialects import DIALECTS
from loadgen.client.entries import growth_of
from loadgen.client.tally import Tally, TallyResult
from loadgen.errors import Failure
from tests.client.captures import STREAMED, body_of, request_of
from tests.client.streams import CU, DONE, ERROR, FIN, MS, ROLE, SENT, C, J, U, chunk, ms, run
from tests.thorough import examples

# --- failures and what is kept of them --------------------------------------------------------------------------------


def test_p22_the_server_words_and_the_partial_text_are_kept() -> None:
    result = run(1, C("a"), 1, C("b"), ERROR, DONE)
    assert result.error == Failure("server", "EngineCore encountered an issue.", 500)
    assert result.excerpt == "ab"
    first = run(1, ERROR)
    assert first.excerpt is not None and "EngineCore" in first.excerpt  # without text, the bytes as they came


def test_p28_the_text_of_a_broken_stream_is_kept_and_bounded() -> None:
    assert run(1, C("a"), C("b"), clean=False).excerpt == "ab"
    long = run(1, *[C("汉🙂" * 100)] * 10).excerpt
    assert long is not None and 2040 < len(long.encode()) <= 2048 and set(long) == {"汉", "🙂"}
    assert (
        run(1, J({"choices": [{"delta": {"content": "\ud83d"}}]})).excerpt == "?"
    )  # half a surrogate pair cannot be written down
    raw = run(1, b"<html>\xff" + b"x" * 9999).excerpt
    assert raw is not None and raw.startswith("<html>\ufffdx") and len(raw.encode()) <= 2048


def test_p20_an_event_above_the_limit_fails_the_request() -> None:
    result = run(1, C("a"), 1, C("b" * 2000), FIN("stop"), DONE, limit=1000)
    assert (result.outcome, result.output_count) == ("error", 1)
    assert result.error == Failure("event_too_long", "one event of the stream is longer than 1,000 bytes")
    in_one_read = run(1, C("a") + C("b" * 2000), limit=1000)
    assert (in_one_read.outcome, in_one_read.output_count) == ("error", 1)
    at_the_end = run(1, C("a"), 1, b"data: " + b"1234567890\ndata: " * 100, limit=1000)
    assert at_the_end.error is not None and at_the_end.error.kind == "event_too_long"


def test_kinds_of_bad_endings() -> None:
    assert [run(*script).error for script in ((ROLE, DONE), (C("a"),))] == [
        Failure("empty", "the answer ended as it should but held no output"),
        Failure("incomplete", "the stream ended without [DONE] and without a finish reason"),
    ]


def test_half_an_event_counts_as_malformed_only_where_the_server_ended_it_there() -> None:
    half = (1, C("a"), b'data: {"cho')
    assert run(*half, clean=True).malformed_events == 1
    assert run(*half, clean=False).malformed_events == 0
    assert run(1, C("a"), C("b").rstrip(), clean=False).output_count == 2  # only its empty line was missing


def test_an_event_without_its_last_line_came_with_the_read_that_brought_it() -> None:
    """Not with the end of the body, which may be seen much later."""
    tally = Tally(DIALECTS["chat"], SENT)
    tally.feed(C("a"), SENT + 1 * MS, SENT)
    tally.feed(chunk("stop", content="b").rstrip(), SENT + 3 * MS, SENT + 1 * MS)
    tally.close(SENT + 500 * MS)
    result = tally.result(None)
    assert (ms(result.last_token_ns), ms(result.done_ns)) == (3, 500)
    assert (result.events.gap_us, result.events.bounded) == ([1_000, 2_000], [])


def test_what_the_exchange_asks_while_it_reads() -> None:
    tally = Tally(DIALECTS["chat"], SENT)
    seen = []
    for data in (ROLE, C("a"), C("b")[:9], C("b")[9:], FIN("stop"), U(1, 2), DONE, C("c")):
        tally.feed(data, SENT + 1, SENT)
        seen.append((tally.output_events, tally.finished, tally.failed))
    assert seen == [
        (0, False, False),
        (1, False, False),
        (1, False, False),
        *[(2, False, False)] * 3,
        *[(2, True, False)] * 2,
    ]
    tally = Tally(DIALECTS["chat"], SENT)
    tally.feed(C("a") + ERROR + C("b"), SENT + 1, SENT)
    assert (tally.output_events, tally.finished, tally.failed) == (1, False, True)
    tally.close(SENT + 2)
    tally.close(SENT + 9, ended_cleanly=False)  # only the first close counts
    assert tally.result(None).done_ns == SENT + 2


def test_server_facts_of_an_answer() -> None:
    result = run(1, C("a"), FIN("stop"), U(9, 1, prompt_tokens_details={"cached_tokens": 4}), DONE)
    assert (result.input_server, result.input_cached, result.server_id) == (9, 4, "r")
    result = run(1, CU("a", 1), FIN("stop"), DONE)
    assert (result.input_server, result.input_cached, result.output_count) == (None, None, 1)
    # A later usage without the prompt's count does not lose it.
    result = run(chunk(usage={"prompt_tokens": 9, "completion_tokens": 0}), CU("a", 1), FIN("stop"), DONE)
    assert (result.input_server, result.output_count) == (9, 1)


# --- several events in a read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [False, True], ids=["later", "at once"])
@pytest.mark.parametrize("doubted", range(6))
def test_a_doubted_read_has_no_exact_event(doubted: int, at_once: bool) -> None:
    """Also where it was taken as a plain delta without parsing, and whatever is held behind it."""
    tally = Tally(DIALECTS["chat"], SENT)
    for number in range(6):
        stamp = SENT + (number + 1) * 10 * MS
        tally.hold(C(f"t{number}"), stamp, stamp - 3 * MS)
        if number == doubted:
            tally.doubt(stamp, stamp - 3 * MS)
        while at_once and tally.pending_bytes:
            tally.parse_pending()
    tally.hold(FIN("stop") + DONE, SENT + 90 * MS, SENT + 80 * MS)
    result = tally.result(None)
    assert result.events.bounded == [(doubted, 3_000)]
    assert result.output_count == 6


def test_earlier_events_of_a_read_are_bounded() -> None:
    """The last is exact; the others came at most since the read before, in µs rounded up."""
    tally = Tally(DIALECTS["chat"], SENT)
    tally.feed(ROLE, SENT + 10 * MS, SENT)
    tally.feed(C("a"), SENT + 50 * MS, SENT + 10 * MS)
    tally.feed(C("b") + ROLE + C("c") + C("d"), SENT + 60 * MS + 1, SENT + 50 * MS)
    tally.feed(C("e") + FIN("stop") + U(1, 5) + DONE, SENT + 70 * MS, SENT + 60 * MS + 1)
    tally.close(SENT + 70 * MS)
    result = tally.result(None)
    assert result.events.gap_us == [50_000, 10_000, 0, 0, 10_000]
    assert result.events.bounded == [(1, 10_001), (2, 10_001), (4, 10_000)]
    assert result.flags == ("bounded",)


def test_one_read_in_parts_is_one_read() -> None:
    """HTTP chunks of one read come one by one, with the same stamps: only the last event of them all is exact."""
    parts = [C("a"), ROLE, C("b") + C("c"), C("d")[:5], C("d")[5:], C("e")]
    whole, parted = Tally(DIALECTS["chat"], SENT), Tally(DIALECTS["chat"], SENT)
    for tally, reads in ((whole, [b"".join(parts)]), (parted, parts)):
        tally.feed(C("z"), SENT + 1 * MS, SENT)
        for data in reads:
            tally.feed(data, SENT + 4 * MS, SENT + 1 * MS)
        tally.feed(C("y").rstrip(), SENT + 9 * MS, SENT + 4 * MS)
        tally.close(SENT + 9 * MS)
    assert parted.result(None) == whole.result(None)
    assert parted.result(None).events.bounded == [(1, 3_000), (2, 3_000), (3, 3_000), (4, 3_000)]
    tally = Tally(DIALECTS["chat"], SENT)
    tally.feed(C("a") + C("b").rstrip(), SENT + 9 * MS, SENT)
    tally.close(SENT + 10 * MS)
    assert tally.result(None).events.bounded == [(0, 9_000)]  # the last event needed the end, but came with the read


def test_a_bound_does_not_reach_back_before_the_request() -> None:
    tally = Tally(DIALECTS["chat"], SENT)
    tally.feed(C("a") + C("b"), SENT + 3 * MS, 0)
    assert tally.result(None).events.bounded == [(0, 3_000)]


def test_bounds_follow_their_events_where_others_fall_out() -> None:
    """An entry that turned out to bring no tokens is dropped, and indices are those of the events that stay."""
    tally = Tally(DIALECTS["chat"], SENT)
    tally.feed(CU("a", 1) + CU("", 1) + CU("", 2) + CU("b", 3), SENT + 3 * MS, SENT)
    events = tally.result(None).events
    assert (events.tokens, events.bounded) == ([1, 1, 1], [(0, 3_000), (1, 3_000)])


# --- whole answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vllm-chat-nonstream", "vllm-comp-nonstream"])
def test_p27_a_whole_completion_is_taken_as_not_streamed(name: str) -> None:
    tally = Tally(DIALECTS["chat" if "chat" in name else "completions"], SENT)
    result = tally.whole(body_of(name), SENT + 9 * MS, 8)
    assert (result.outcome, result.flags, result.error) == ("ok", ("not_streamed",), None)
    assert (result.first_token_ns, result.first_content_ns, result.first_event_tokens) == (None, None, None)
    assert (ms(result.last_token_ns), ms(result.done_ns)) == (9, 9)
    assert (result.output_count, result.output_source, result.finish_reason) == (8, "usage", "length")
    assert result.events.gap_us == []


WHOLE: dict[str, tuple[bytes, str, str | None, int | None, str | None]] = {  # payload, outcome, kind, count, source
    "no usage": (b'{"choices":[{"message":{"content":"a b"}}]}', "ok", None, None, None),
    "token ids": (b'{"choices":[{"message":{"content":"a b"},"token_ids":[1,2]}]}', "ok", None, 2, "token_ids"),
    "no output": (
        b'{"choices":[{"message":{"content":""}}],"usage":{"completion_tokens":0}}',
        "empty",
        "empty",
        0,
        "usage",
    ),
    "an error": (b'{"error":{"message":"m","code":5}}', "error", "server", None, None),
    "cut off": (b'{"choices":[{"mess', "error", "content_type", None, None),
    "HTML": (b"<html>Bad gateway</html>", "error", "content_type", None, None),
    "nothing": (b"", "error", "content_type", None, None),
    "other JSON": (b'{"models":[]}', "error", "content_type", None, None),
}


@pytest.mark.parametrize("case", WHOLE)
def test_whole_answers(case: str) -> None:
    payload, outcome, kind, count, source = WHOLE[case]
    result = Tally(DIALECTS["chat"], SENT).whole(payload, SENT + MS, None)
    assert (result.outcome, result.output_count, result.output_source) == (outcome, count, source)
    assert (result.error.kind if result.error else None) == kind
    assert outcome == "ok" or not payload or result.excerpt


# --- real answers, and any cut of them --------------------------------------------------------------------------------

REAL = {  # output events, count, source, finish, tokens
    "vllm-chat-continuous-usage": (8, 8, "usage", "length", [1] * 8),
    "vllm-chat-logprobs": (4, 4, "events", "length", None),
    "vllm-chat-n2": (8, 8, "usage", "length", None),
    "vllm-chat-nousage": (8, 8, "events", "length", None),
    "vllm-chat-return-token-ids": (4, 4, "token_ids", "length", [1] * 4),
    "vllm-chat-stop": (1, 1, "usage", "stop", None),
    "vllm-chat-usage": (8, 8, "usage", "length", None),
    "vllm-comp-batch2": (7, 8, "usage", "length", None),
    "vllm-comp-nousage": (8, 8, "events", "length", None),
    "vllm-comp-tokenids": (4, 4, "usage", "length", None),
    "vllm-comp-usage": (8, 8, "usage", "length", None),
}


def tally_real(name: str, cuts: list[int]) -> TallyResult:
    """A captured stream in reads that end at `cuts`, 1 ms apart."""
    body = body_of(name)
    tally = Tally(DIALECTS["chat" if "chat" in name else "completions"], SENT)
    points = [0, *sorted({cut for cut in cuts if 0 < cut < len(body)}), len(body)]
    for k in range(1, len(points)):
        tally.feed(body[points[k - 1] : points[k]], SENT + k * MS, SENT + (k - 1) * MS)
    tally.close(SENT + len(points) * MS)
    request = request_of(name)
    return tally.result(request["max_tokens"], usage_asked="stream_options" in request)


def test_all_streams_are_here() -> None:
    assert set(STREAMED) == set(REAL)


@pytest.mark.parametrize("name", REAL)
@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(1, 3500), max_size=30))
def test_real_streams_in_any_reads(name: str, cuts: list[int]) -> None:
    events, count, source, finish, tokens = REAL[name]
    result = tally_real(name, cuts)
    assert (result.outcome, result.error, result.finish_reason) == ("ok", None, finish)
    assert (result.output_count, result.output_source) == (count, source)
    assert len(result.events.gap_us) == events
    assert result.events.tokens == (tokens or [None] * events)
    expected = {"bounded"} if result.events.bounded else set()
    if name == "vllm-chat-stop":
        expected.add("short_output")
    assert set(result.flags) == expected
    # The stamp is that of the read that completed the event, and the last event of a read is exact.
    body, at = body_of(name), 0
    ends = [at := at + len(part) + 2 for part in body.split(b"\n\n")[:-1]]
    points = [*sorted({cut for cut in cuts if 0 < cut < len(body)}), len(body)]
    read_of = [next(k for k, point in enumerate(points, 1) if end <= point) for end in ends]
    outputs = [k for k, one in enumerate(body.split(b"\n\n")[:-1]) if b'"content":"' in one or b'"text":"' in one]
    outputs = [k for k in outputs if b'"content":""' not in (one := body.split(b"\n\n")[k]) and b'"text":""' not in one]
    assert list(accumulate(result.events.gap_us)) == [read_of[k] * 1000 for k in outputs]
    late = [place for place, k in enumerate(outputs) if k + 1 < len(ends) and read_of[k + 1] == read_of[k]]
    assert result.events.bounded == [(place, 1000) for place in late]


# --- arithmetic -------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=60))
def test_gaps_add_up_to_the_stamps(gaps_ns: list[int]) -> None:
    """However many gaps are rounded, their running sum stays within half a µs of each stamp."""
    tally = Tally(DIALECTS["chat"], SENT)
    stamps = list(accumulate(gaps_ns, initial=SENT))
    for before, stamp in pairwise(stamps):
        tally.feed(C("a"), stamp, before)
    sums = accumulate(tally.result(None).events.gap_us)
    assert all(abs(us * 1000 - (stamp - SENT)) <= 500 for us, stamp in zip(sums, stamps[1:], strict=True))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=20))
def test_per_event_counts_are_those_that_were_sent(sizes: list[int]) -> None:
    """Events of so many tokens each, with a running usage: text for those that have any."""
    counts = list(accumulate(sizes))
    script = [CU("x" * size, count) for size, count in zip(sizes, counts, strict=True)]
    result = run(*script, FIN("stop"), U(3, counts[-1]), DONE)
    sent = [size for size in sizes if size]
    assert result.events.tokens == sent
    assert result.first_event_tokens == (sent[0] if sent else None)
    assert (result.outcome, result.output_count) == ("ok" if sent else "empty", sum(sizes))


@given(st.lists(st.tuples(st.none() | st.integers(0, 9), st.integers(0, 1)), max_size=12))
def test_growth(entries: list[tuple[int | None, int]]) -> None:
    """Against the definition, entry by entry: this count less the highest known, where this and the one before are."""
    counts = [count for count, _ in entries]
    keys = [key for _, key in entries]
    growth = growth_of(counts, keys)
    for k, (count, key) in enumerate(entries):
        earlier = [c for c, other in entries[:k] if other == key]
        run_of_known: list[int] = []
        for c in reversed(earlier):
            if c is None:
                break
            run_of_known.append(c)
        else:
            run_of_known.append(0)
        known = count is not None and run_of_known
        assert growth[k] == (max(0, (count or 0) - max(run_of_known)) if known else None)


PIECES = [ROLE, C("a"), CU("b", 2), FIN("stop"), U(1, 2), ERROR, DONE, b"data: {\n\n", b"x", b"\n\n"]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=10), st.booleans(), st.none() | st.integers(0, 5))
def test_any_sequence_gives_a_consistent_result(script: list[bytes], clean: bool, asked: int | None) -> None:
    result = run(*[step for data in script for step in (1, data)], clean=clean, asked=asked)
    assert (result.first_token_ns is None) == (result.last_token_ns is None)
    assert result.outcome != "ok" or result.first_token_ns is not None
    assert len(result.events.gap_us) == len(result.events.tokens)
    assert sum(result.events.gap_us) * 1000 <= len(script) * MS
    assert (result.error is None) == (result.outcome == "ok")
    assert result.output_count is not None
