"""The fast ways of the tally against the plain one: held or fed, by known form or by JSON, the figures are the same."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import Dialect, Piece
from loadgen.client.plain import learn
from loadgen.client.sse import SSEEvent
from loadgen.client.tally import HOLD_BYTES, Tally, TallyResult
from tests.client.captures import STREAMED, body_of
from tests.client.reference_reader import Read, figures_of, reference
from tests.client.streams import CU, DONE, ERROR, FIN, IDS, MS, ROLE, SENT, TOOL, C, J, U, chunk
from tests.thorough import examples

LIMIT = HOLD_BYTES + 400  # as in life: what is too long is also too much to hold


def dialect_of(name: str) -> Dialect:
    return DIALECTS["chat" if "chat" in name else "completions"]


def cut(body: bytes, cuts: list[int], gaps: list[int]) -> list[Read]:
    """The body in reads that end at `cuts`, each `gaps` after the one before: 0 makes them parts of one read."""
    points = [0, *sorted({point for point in cuts if 0 < point < len(body)}), len(body)]
    reads: list[Read] = []
    now = previous = SENT
    for place in range(1, len(points)):
        gap = gaps[place % len(gaps)] if gaps else MS
        if gap:
            previous, now = now, now + gap
        reads.append(Read(body[points[place - 1] : points[place]], now, previous))
    return reads


def parse_out(tally: Tally, limit: int = 64) -> None:
    while tally.parse_pending(limit):
        pass
    assert tally.pending_bytes == 0


def in_turns(
    dialect: Dialect, reads: list[Read], end: tuple[int, bool] | None, asked: int | None, turns: list[int]
) -> TallyResult:
    """Each read fed (0) or held, then parsed by so many events or, where it must be acted on, as far as there are any.

    What must be acted on at once is: no end and no error is ever left lying.
    """
    tally = Tally(dialect, SENT, LIMIT)
    eager = Tally(dialect, SENT, LIMIT)
    for place, read in enumerate(reads):
        eager.feed(read.data, read.stamp_ns, read.previous_ns)
        turn = turns[place % len(turns)] if turns else 1
        if turn == 0:
            tally.feed(read.data, read.stamp_ns, read.previous_ns)
            assert tally.pending_bytes == 0
        elif tally.hold(read.data, read.stamp_ns, read.previous_ns):
            parse_out(tally, turn)
        elif turn > 1:
            tally.parse_pending(turn - 1)
        assert (tally.finished, tally.failed) == (eager.finished, eager.failed)
        assert tally.pending_bytes <= HOLD_BYTES
    if end is not None:
        tally.close(*end)
    return tally.result(asked)


def same(dialect: Dialect, reads: list[Read], clean: bool | None, asked: int | None, turns: list[int]) -> TallyResult:
    end = None if clean is None else ((reads[-1].stamp_ns if reads else SENT) + MS, clean)
    result = in_turns(dialect, reads, end, asked, turns)
    assert figures_of(result) == reference(dialect.name, SENT, reads, end, asked, limit=LIMIT).compared()
    return result


# --- any stream, in any reads, in any turns ---------------------------------------------------------------------------

TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
    st.text(st.sampled_from('abc "\\\n\t/'), min_size=1, max_size=5),
    st.sampled_from(
        ["", " ", "a", "\ud83d", "\ud83d\ude00", "x" * 700, "汉🙂" * 200, "y" * LIMIT, "error", "[DONE]", "data: x"]
    ),
)


def compact(event: bytes) -> bytes:
    return event.replace(b'": ', b'":').replace(b', "', b',"')


def unescaped(text: str) -> bytes:
    """UTF-8 as it is; half a surrogate pair makes it broken UTF-8."""
    inside = json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return b'data: {"id":"r","choices":[{"index":0,"delta":{"content":' + inside + b"}}]}\n\n"


def counted(text: str, count: int, index: int = 0, prompt: int = 7) -> bytes:
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + count, "completion_tokens": count}
    return chunk(content=text, index=index, usage=usage)


@st.composite
def forms(draw: st.DrawFn) -> Callable[[str, int], bytes]:
    """A kind of delta, for any text and running count."""
    index = draw(st.sampled_from([0, 0, 1]))
    more = draw(st.sampled_from([{}, {"reasoning": "r"}, {"role": "assistant"}, {"refusal": None}]))
    prompt = draw(st.sampled_from([7, 8]))
    odd = draw(st.sampled_from([b"\r\n\r\n", b"\r\r", b" \n\n", b"\n\n\n"]))
    start = draw(st.sampled_from([b"data:", b"event: x\ndata: ", b": c\n\ndata: ", b"data: {\ndata: "]))
    made: Callable[[str, int], bytes] = draw(
        st.sampled_from(
            [
                lambda text, n: C(text, index),
                lambda text, n: compact(C(text, index)),
                lambda text, n: unescaped(text),
                lambda text, n: counted(text, n, index, prompt),
                lambda text, n: compact(counted(text, n // 2, index, prompt)),
                lambda text, n: chunk(content=text, usage={"completion_tokens": n, "total_tokens": 3}),
                lambda text, n: CU(text, n, index),
                lambda text, n: J({"id": "r", "choices": [{"index": index, "text": text}]}),
                lambda text, n: chunk(content=text, index=index, **more),
                lambda text, n: TOOL(arguments=text),
                lambda text, n: chunk(reasoning_content=text),
                lambda text, n: IDS(text, *range(n % 3)),
                lambda text, n: C(text, index).replace(b"\n\n", odd),
                lambda text, n: C(text, index).replace(b"data: ", start),
                lambda text, n: C(text, index).replace(
                    b"data: {", start + b"{" if start.endswith(b" ") else b"data: {"
                ),
            ]
        )
    )
    return made


BETWEEN = st.sampled_from(
    [
        *(ROLE, FIN("stop"), FIN("stop", 1), DONE, ERROR, U(7, 3), U(8, 30), chunk(usage={"completion_tokens": 0})),
        *(b"data: {\n\n", b"data: 1\n\n", b": p\n\n", b"data: 1", b"event: error\n", b"\n", b"\r"),
        *(counted("a", 5).replace(b"5}", b"5.0}"), chunk(content="a", usage={"x": 1})),
    ]
)


@st.composite
def scripts(draw: st.DrawFn) -> list[bytes]:
    """Deltas of one to three forms, so that forms are learned and met again, and what may come between them."""
    kinds = draw(st.lists(forms(), min_size=1, max_size=3))
    script = []
    for n in range(draw(st.integers(0, 14))):
        kind = draw(st.integers(0, 5))
        script.append(draw(BETWEEN) if kind == 5 else kinds[kind % len(kinds)](draw(TEXTS), n))
    return script


@settings(max_examples=examples(100), deadline=None)
@given(
    script=scripts(),
    whole=st.booleans(),
    cuts=st.lists(st.integers(1, 2500), max_size=12),
    gaps=st.lists(st.sampled_from([0, 1, MS, 499, 2_000_500]), max_size=5),
    clean=st.sampled_from([True, False, None]),
    asked=st.none() | st.integers(0, 9),
    turns=st.lists(st.integers(0, 3), max_size=6),
)
def test_any_stream(
    script: list[bytes],
    whole: bool,
    cuts: list[int],
    gaps: list[int],
    clean: bool | None,
    asked: int | None,
    turns: list[int],
) -> None:
    """`whole`: each event is one read, as a server sends them."""
    ends = list(accumulate(map(len, script)))
    same(DIALECTS["chat"], cut(b"".join(script), ends if whole else cuts, gaps), clean, asked, turns)


def test_a_stream_of_one_form_of_each_kind() -> None:
    """What is learned is met again: long streams of one kind, with every sort of text, each event a read."""
    texts = [
        "a",
        " b",
        "\n",
        'say "hi"',
        "\\",
        "汉字",
        "🙂",
        "\u2028",
        "é" * 900,
        " error",
        "[DONE]",
        "c",
        "\x7f",
        "\ud83d",
        "/",
    ]
    total = len(texts) * 3
    for make in (
        lambda text, n: C(text),
        lambda text, n: chunk(content=text, usage={"prompt_tokens": 3, "total_tokens": 3 + n, "completion_tokens": n}),
        lambda text, n: chunk(content=text, usage={"completion_tokens": n, "total_tokens": 3 + n}),
        lambda text, n: J({"id": "r", "choices": [{"index": 0, "text": text, "finish_reason": None}]}),
        lambda text, n: TOOL(arguments=text),
        lambda text, n: unescaped(text),
        lambda text, n: chunk(reasoning_content=text),
        lambda text, n: chunk(reasoning=text, content=None),
        lambda text, n: C(text, n % 2),
        lambda text, n: counted(text, n, n // 9 % 2),
        lambda text, n: counted(text, (n - 1) // 18 * 9 + (n - 1) % 9 + 1, (n - 1) // 9 % 2),
        lambda text, n: compact(counted(text, n)),
    ):
        deltas = [make(text, n) for n, text in enumerate(texts * 3, 1)]
        script = [ROLE, *deltas, FIN("stop"), FIN("stop", 1), U(7, total), DONE]
        ends = list(accumulate(map(len, script)))
        for clean, body in ((True, b"".join(script)), (False, b"".join(script[:-4]))):
            for turns in ([1], [0], [2, 1, 1]):
                result = same(DIALECTS["chat"], cut(body, ends, []), clean, None, turns)
                assert len(result.events.gap_us) == total


@pytest.mark.parametrize("name", STREAMED)
@settings(max_examples=25, deadline=None)
@given(
    cuts=st.none() | st.lists(st.integers(1, 3500), max_size=30),
    gaps=st.lists(st.sampled_from([0, 1, MS]), max_size=4),
    turns=st.lists(st.integers(0, 3), max_size=6),
)
def test_real_streams(name: str, cuts: list[int] | None, gaps: list[int], turns: list[int]) -> None:
    body = body_of(name)
    if cuts is None:
        cuts = list(accumulate(len(part) + 2 for part in body.split(b"\n\n")))
    assert same(dialect_of(name), cut(body, cuts, gaps), True, None, turns).outcome == "ok"


# --- plain deltas -----------------------------------------------------------------------------------------------------


def read_data(data: bytes) -> Piece:
    return DIALECTS["chat"].read(SSEEvent("message", data))


def form_of(event: bytes) -> Any:
    data = event.removeprefix(b"data: ").rstrip()
    return learn(DIALECTS["chat"].read, data, read_data(data))


@pytest.mark.parametrize("name", [name for name in STREAMED if name not in ("vllm-chat-logprobs", "vllm-chat-stop")])
def test_a_real_server_s_deltas_have_a_form(name: str) -> None:
    """Every one but the last, which says that it is."""
    parts = [part.removeprefix(b"data: ") for part in body_of(name).split(b"\n\n")]
    forms = [learn(dialect_of(name).read, part, read_data(part)) for part in parts if b'"choices":[{' in part]
    learned = [form for form in forms if form is not None]
    if name == "vllm-chat-return-token-ids":
        assert not learned
    else:
        assert len({(form.before, form.after, form.rest) for form in learned}) <= 2  # one for each choice
        assert len(learned) >= 3


NO_FORM = {
    "no output": ROLE,
    "its end": chunk("stop", content="a"),
    "an error": ERROR,
    "token ids": IDS("a", 1),
    "two texts": chunk(reasoning="b", content="a"),
    "two choices": J({"choices": [{"index": 0, "text": "a"}, {"index": 1, "text": ""}]}),
    "a usage without the pair": CU("a", 1),
    "a count that is no whole number": chunk(
        content="a", usage={"prompt_tokens": 1, "total_tokens": 1, "completion_tokens": 1.5}
    ),
    "a key twice": b'data: {"choices":[{"delta":{"content":"a","content":"b"}}]}',
    "the text elsewhere": b'data: {"text":"b","choices":[{"delta":{"refusal":"b"}}]}',
}


@pytest.mark.parametrize("case", NO_FORM)
def test_what_is_no_plain_delta(case: str) -> None:
    assert form_of(NO_FORM[case]) is None


@settings(max_examples=examples(120), deadline=None)
@given(
    text=st.binary(min_size=1, max_size=8)
    | st.text(min_size=1, max_size=8).map(lambda t: t.encode("utf-8", "replace")),
    numbers=st.lists(
        st.sampled_from([b"0", b"07", b"7", b"-1", b"1.0", b"1e2", b"9" * 15, b"9" * 16, b"x"]), min_size=2
    ),
    usage=st.booleans(),
)
def test_what_has_the_form_is_read_the_same_as_json(text: bytes, numbers: list[bytes], usage: bool) -> None:
    """Any bytes in the text's place, any in the counts': taken by form, it is what JSON says; else it is left to it."""
    counts = b'"total_tokens":%b,"completion_tokens":%b' % (numbers[0], numbers[1])

    def event(text: bytes, counts: bytes) -> bytes:
        more = b',"usage":{"prompt_tokens":3,' + counts + b"}" if usage else b""
        return b'data: {"choices":[{"index":0,"delta":{"content":"' + text + b'"}}]' + more + b"}\n\n"

    first = event(b"a", b'"total_tokens":4,"completion_tokens":1')
    assert form_of(first) is not None
    reads = [Read(data, SENT + MS * place, SENT) for place, data in enumerate([first, event(text, counts)], 1)]
    same(DIALECTS["chat"], reads, None, None, [1])


SEQUENCES: dict[str, list[bytes]] = {
    "a prompt's count that changes, and back": [counted("a", 1), counted("b", 2), U(9, 3), counted("c", 4)],
    "half a line before a whole event": [C("a"), C("b"), b"data: 1", C("c"), C("d")],
    "a name before a whole event": [C("a"), C("b"), b"event: error\n", C("c")],
    "two lines, and the same without the second's start": [
        *[C(text).replace(b'"choices"', b'\ndata: "choices"') for text in "ab"],
        C("c").replace(b'"choices"', b'\n"choices"'),
        C("d"),
    ],
    "ids, and a counter that never ran": [IDS("a", 1), chunk(usage={"completion_tokens": 0}), IDS("b", 2)],
    "a choice of its own later": [
        C("a"),
        C("b"),
        counted("x", 1, 1),
        counted("y", 2, 1),
        counted("c", 3),
        U(7, 5),
        DONE,
    ],
}


@pytest.mark.parametrize("case", SEQUENCES)
def test_each_of_these_in_a_read_of_its_own(case: str) -> None:
    reads = [Read(data, SENT + MS * k, SENT + MS * (k - 1)) for k, data in enumerate(SEQUENCES[case], 1)]
    for turns in ([0], [1], [3]):
        same(DIALECTS["chat"], reads, True, None, turns)


def test_a_bound_never_shrinks() -> None:
    """Two reads with one stamp, as when a large segment is read in two: the second knows less of when it came."""
    for previous in (2 * MS, 3 * MS):
        reads = [Read(C("a") + ROLE, SENT + 3 * MS, SENT + MS), Read(C("b"), SENT + 3 * MS, SENT + previous)]
        assert same(DIALECTS["chat"], reads, None, None, [0]).events.bounded == [(0, 2000)]


def test_the_last_output_before_an_error_is_bounded_too() -> None:
    reads = [Read(chunk("abort", content="a") + ROLE, SENT + 3 * MS, SENT + MS)]
    result = same(DIALECTS["chat"], reads, True, None, [0])
    assert (result.outcome, result.events.bounded) == ("error", [(0, 2000)])


def test_a_delta_above_the_limit_is_not_plain() -> None:
    body = C("a") + C("b" * LIMIT) + C("c")
    assert same(DIALECTS["chat"], cut(body, [len(C("a")), len(body) - len(C("c"))], []), True, None, [1]).error


# --- holding ----------------------------------------------------------------------------------------------------------


def test_what_must_be_acted_on() -> None:
    tally = Tally(DIALECTS["chat"], SENT)

    def hold(data: bytes) -> bool:
        now = tally.hold(data, SENT + MS, SENT)
        if now:
            parse_out(tally)
        return now

    assert not hold(ROLE) and not hold(C("a")) and tally.output_events == 0
    assert tally.pending_bytes == len(ROLE + C("a"))
    assert tally.parse_pending(1) == 1 and tally.output_events == 0
    assert tally.parse_pending(1) == 1 and tally.output_events == 1
    assert tally.parse_pending(1) == 0
    assert not hold(C(" error")) and not hold(C("b")) and tally.pending_bytes == 0 and tally.output_events == 3
    assert hold(C("c")[:80]) and hold(C("c")[80:]) and not hold(C("d"))
    assert hold(b": ping\n\n")
    assert not hold(FIN("stop")) and tally.pending_bytes and hold(ERROR) and tally.failed
    assert not hold(C("e")) and tally.pending_bytes == 0 and tally.output_events == 5
    tally = Tally(DIALECTS["chat"], SENT)
    assert not hold(FIN("stop")) and hold(U(1, 1)[:-2]) and hold(b"\n\n" + DONE) and tally.finished


def test_no_more_is_held_than_said() -> None:
    tally = Tally(DIALECTS["chat"], SENT)
    data = chunk(content="a" * 900, logprobs=None)
    held = 0
    while not tally.hold(data, SENT + MS, SENT):
        held += len(data)
    assert held <= HOLD_BYTES < held + len(data)
    assert tally.parse_pending(5) == 5 and tally.output_events == 5
    tally.close(SENT + 2 * MS)
    assert tally.output_events == held // len(data) + 1 and tally.pending_bytes == 0


def test_one_thread_reads_while_another_parses() -> None:
    texts = [C(f"{k} \u6c49" if k % 7 else "x" * (k % 50), k % 11 == 0) for k in range(3000)]
    reads = [Read(data, SENT + MS * k, SENT + MS * (k - 1)) for k, data in enumerate([ROLE, *texts, FIN("stop")], 1)]
    tally = Tally(DIALECTS["chat"], SENT)
    ended = threading.Event()

    def read() -> None:
        for one in reads:
            tally.hold(one.data, one.stamp_ns, one.previous_ns)
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    while not ended.is_set():
        tally.parse_pending(3)
    thread.join()
    tally.close(reads[-1].stamp_ns)
    expected = reference("chat", SENT, reads, (reads[-1].stamp_ns, True), None)
    assert figures_of(tally.result(None)) == expected.compared()


def test_a_read_that_comes_in_the_middle_of_a_parse() -> None:
    """It waits for its turn, though nothing is pending and it is a plain delta."""

    class Slow:
        """A dialect that takes its time: a read comes in just then."""

        def __getattr__(self, name: str) -> Any:
            return getattr(DIALECTS["chat"], name)

        def read(self, event: SSEEvent) -> Piece:
            if coming:
                tally.hold(coming.pop(), SENT + 3 * MS, SENT + 2 * MS)
            return DIALECTS["chat"].read(event)

    coming: list[bytes] = []
    tally = Tally(Slow(), SENT)
    tally.feed(C("a"), SENT + MS, SENT)
    coming.append(C("c"))
    tally.hold(chunk(content="b", role="assistant"), SENT + 2 * MS, SENT + MS)
    tally.parse_pending()
    tally.close(SENT + 4 * MS)
    result = tally.result(None)
    assert (result.excerpt, result.events.gap_us) == ("abc", [1000, 1000, 1000])


# --- storage ----------------------------------------------------------------------------------------------------------


def test_offsets_and_counts_of_any_size() -> None:
    """Streams of hours, stamps before the request, a million tokens: the arrays widen."""
    hour = 3600 * 10**9
    reads = [
        Read(chunk(content="a", usage={"total_tokens": 0, "completion_tokens": count}), SENT + at, SENT + at - MS)
        for at, count in ((-5000, 1), (MS, 30_000), (hour, 40_000), (2 * hour, 3_000_000_000), (3 * hour, 2**52))
    ]
    result = same(DIALECTS["chat"], reads, True, None, [1])
    assert list(accumulate(result.events.gap_us)) == [-5, 1000, *[k * 3_600_000_000 for k in (1, 2, 3)]]
    assert result.events.tokens == [1, 29_999, 10_000, 2_999_960_000, 2**52 - 3_000_000_000]


def test_a_stream_in_flight_is_small() -> None:
    """At most 8 bytes a token, with a running usage too, whatever was said."""
    import tracemalloc

    for make in (lambda n: C("word"), lambda n: chunk(content="w", usage={"total_tokens": n, "completion_tokens": n})):
        events = [make(n) for n in range(20_000)]
        tally = Tally(DIALECTS["chat"], SENT)
        tracemalloc.start()
        for n, data in enumerate(events):
            tally.hold(data, SENT + n * MS, SENT + (n - 1) * MS)
            if not n % 100:
                tally.parse_pending()
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert tally.output_events == 20_000
        assert size < 8 * 20_000 + 20_000
