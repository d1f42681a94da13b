"""Field cases P22 to P33 and M19: answers that fail, that are no stream, or that HTTP frames in unusual ways."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from typing import Any

import pytest

from loadgen.client.dialects.base import RequestOptions
from loadgen.client.exchange import Timeouts
from loadgen.records import Record
from loadgen.simulator.scripted import (
    DONE,
    EOF,
    FIN,
    RST,
    C,
    Close,
    Event,
    Hang,
    Head,
    J,
    Raw,
    Reject,
    T,
    U,
    error_reply,
    json_reply,
    reply,
)
from tests.cases.support import MakeSender, ms, near, send, send_one, send_raw

SSE = {"Content-Type": "text/event-stream"}
ENGINE = {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": None, "code": 500}
TOO_LONG = "the request exceeds the available context size"
TAIL = (FIN("stop"), U(3, 1), DONE)


@dataclass(frozen=True)
class Want:
    """How a request must have failed. `says` is in the error's message, `excerpt` what the record kept of the answer
    (None: not looked at)."""

    kind: str
    says: str = ""
    outcome: str = "error"
    code: Any = None
    status: int | None = 200
    events: int = 0
    excerpt: str | None = None


CASES: dict[str, tuple[Any, Want]] = {
    "P22": (
        [C("a"), C("b"), J({"error": ENGINE}), DONE], Want("server", "EngineCore", code=500, events=2, excerpt="ab")),
    "P22 first event": ([J({"error": ENGINE}), DONE], Want("server", "EngineCore", code=500)),
    "P22 a string, after TGI": (
        [C("a"), J({"error": "overloaded", "error_type": "overloaded"})],
        Want("server", "overloaded", code="overloaded", events=1)),
    "P22 first, and nothing after it": ([J({"error": ENGINE}), Hang(60)], Want("server", "EngineCore", code=500)),
    "P22 after the finish reason": ([C("a"), FIN("stop"), J({"error": ENGINE}), DONE],
                                    Want("server", "EngineCore", code=500, events=1)),
    "P22 beside choices": (
        [C("a"), J({"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}], "error": ENGINE}), DONE],
        Want("server", "EngineCore", code=500, events=1)),
    "P22 a finish reason that is none": ([C("a"), FIN("abort"), DONE], Want("server", "abort", events=1)),
    "P22 object: error": ([J({"object": "error", **ENGINE}), DONE], Want("server", "EngineCore", code=500)),
    "P22 a list of errors": (
        [C("a"), J({"success": False, "errors": [{"code": 7009, "message": "upstream gone"}]}), DONE],
        Want("server", "upstream gone", code=7009, events=1)),
    "P22 nothing but a message": (
        [C("a"), J({"message": "Internal server error"}), DONE], Want("server", "Internal server error", events=1)),
    "P22 a message with a code in words": (
        [C("a"), J({"code": "InternalError.Algo", "message": "boom", "request_id": "r"}), DONE],
        Want("server", "boom", code="InternalError.Algo", events=1)),
    "P22 error_code and error_msg": (
        [C("a"), J({"error_code": 336100, "error_msg": "try again later", "id": "x"}), DONE],
        Want("server", "try again later", code=336100, events=1)),
    "P22 error_code 0 is none": ([J({"error_code": 0, "error_msg": "success"}), C("a"), J({"error": ENGINE}), DONE],
                                 Want("server", "EngineCore", code=500, events=1)),
    "P22 a status in words": (
        [C("a"), J({"status": "error", "message": "boom", "model": "m"}), DONE],
        Want("server", "boom", events=1)),
    "P22 FastAPI": ([J({"detail": "worker died"}), EOF], Want("server", "worker died")),
    "P22 error: an object without a message": ([J({"error": {"code": 7}})], Want("server", "7", code=7)),
    "P22 an event named error": ([C("a"), Event(("event: error", 'data: {"message":"boom","code":1}'))],
                                 Want("server", "boom", code=1, events=1)),
    "P22 an event named error that is no JSON": ([Event(("event: error", "data: boom"))], Want("server", "boom")),
    "P23": ([Event((f'error: {{"code":400,"message":"{TOO_LONG}","type":"invalid_request_error"}}',)), DONE],
            Want("server", TOO_LONG, code=400)),
    "P23 after tokens, with data in one block": (
        [C("a"), Raw(f'error: {{"code":500,"message":"{TOO_LONG}"}}\ndata: [DONE]\n\n'.encode())],
        Want("server", TOO_LONG, code=500, events=1)),
    "P27 a page": (
        reply(b"<html>Bad gateway</html>"), Want("content_type", "text/html", excerpt="<html>Bad gateway</html>")),
    "P27 a page of megabytes": (reply(b"<html>" + b"x" * 3_000_000), Want("content_type", "text/html")),
    "P27 plain text": (reply(b"ok", content_type="text/plain"), Want("content_type", "text/plain", excerpt="ok")),
    "P27 JSON that is no completion": (json_reply({"status": "ok"}), Want("content_type", excerpt='{"status":"ok"}')),
    "P27 JSON that is none": (reply(b"{", content_type="application/json"), Want("content_type", excerpt="{")),
    "P27 a JSON error with status 200": (json_reply({"error": ENGINE}), Want("server", "EngineCore", code=500)),
    "P27 a stream called a page": ([Head(headers={"Content-Type": "text/html"}), C("a"), *TAIL], Want("content_type")),
    "P27 a page called a stream": (
        reply(b"<html>no</html>", content_type="text/event-stream"),
        Want("incomplete", outcome="incomplete", excerpt="<html>no</html>")),
    "P27 nothing at all": (reply(b"", content_type="text/event-stream"), Want("incomplete", outcome="incomplete")),
    "P28": ([C("a"), C("b"), T(50), RST], Want("reset", outcome="incomplete", events=2, excerpt="ab")),
    "P28 the connection ends without the body's end": (
        [C("a"), C("b"), Close], Want("reset", outcome="incomplete", events=2, excerpt="ab")),
    "P28 in the middle of an event": (
        [C("a"), Raw(b'data: {"cho'), Close], Want("reset", outcome="incomplete", events=1, excerpt="a")),
    "P28 no more than Content-Length says, and less": (
        [Head(headers={**SSE, "Content-Length": "900"}, chunked=False), C("a"), Close],
        Want("reset", outcome="incomplete", events=1, excerpt="a")),
    "P28 before an answer": (Reject, Want("reset", status=None)),
    "P28 before an answer, by a reset": ([RST], Want("reset", status=None)),
    "P33": (
        [Head(headers={"Content-Type": "application/x-ndjson"}),
         Raw(b'{"message":{"role":"assistant","content":"a"},"done":false}\n{"message":{"con'),
         Raw(b'tent":""},"done":true,"done_reason":"stop","eval_count":2}\n')],
        Want("content_type", "/v1")),
    "an error status": (error_reply(400, "no"), Want("http", "no", code=400, status=400)),
    "an error status in an event stream": (
        [Head(503), J({"error": {"message": "full"}})], Want("http", code=503, status=503)),
    "an error page": (
        reply(b"<html>up?</html>", 502), Want("http", "Bad Gateway", code=502, status=502, excerpt="<html>up?</html>")),
    "a redirect": (
        reply(b"", 307, Location="http://127.0.0.1:9/x"), Want("redirect", "127.0.0.1:9", code=307, status=307)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_failure(case: str, make_sender: MakeSender) -> None:
    script, want = CASES[case]
    record = send_one(make_sender, script)
    assert record.error is not None
    assert (record.outcome, record.error.kind, record.error.code) == (want.outcome, want.kind, want.code)
    assert want.says in record.error.message
    assert record.status == want.status
    assert record.events is not None
    assert len(record.events.gap_us) == want.events
    assert (record.first_token_ns is None) == (want.events == 0)
    kept = record.error.excerpt or record.excerpt
    assert len(kept or "") <= 2048
    if want.excerpt is not None:
        assert kept == want.excerpt
    assert record.done_ns - record.scheduled_ns < 5e9


def test_p28_the_errors_own_name_is_kept(make_sender: MakeSender) -> None:
    record = send_one(make_sender, [C("a"), T(50), RST])
    assert record.error is not None
    assert "Error" in record.error.message


def test_p26_p28_one_bad_answer_does_not_touch_the_next(make_sender: MakeSender) -> None:
    good = [C("a"), *TAIL]
    bad = [
        [C("a"), RST],
        [Raw(b"data: {\n\n")],
        [J({"error": "x"}), Hang(60)],
        reply(b"<html>"),
        error_reply(500, "x"),
        [C("a"), Close],
    ]
    scripts = iter([good, *(script for one in bad for script in (one, good))])
    records = send(make_sender, lambda request: next(scripts), sends=1 + 2 * len(bad))
    assert [record.outcome for record in records[::2]] == ["ok"] * (len(bad) + 1)
    assert all(record.outcome != "ok" for record in records[1::2])


# --- no stream --------------------------------------------------------------------------------------------------------

CHAT = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "a b"}, "finish_reason": "length"}]}
TEXT = {"choices": [{"index": 0, "text": "a b", "finish_reason": "length"}]}
WHOLE: dict[str, tuple[str, Any, int | None]] = {
    "P27 chat": ("chat", {**CHAT, "usage": {"prompt_tokens": 3, "completion_tokens": 2}}, 2),
    "P27 completions": ("completions", {**TEXT, "usage": {"prompt_tokens": 3, "completion_tokens": 2}}, 2),
    "P27 without usage": ("chat", CHAT, None),
}


@pytest.mark.parametrize("asked", [True, False], ids=["a stream asked for", "M19 none asked for"])
@pytest.mark.parametrize("case", WHOLE)
def test_whole(case: str, asked: bool, make_sender: MakeSender) -> None:
    """A whole completion is taken as one: its end and its counts, and no first token."""
    endpoint, body, count = WHOLE[case]
    options = RequestOptions("m", stream=asked)
    record = send_one(make_sender, [T(80), *json_reply(body)], endpoint=endpoint, options=options)
    assert (record.outcome, record.finish_reason, record.output_tokens.count) == ("ok", "length", count)
    assert "not_streamed" in record.flags
    assert record.first_token_ns is None
    assert record.first_content_ns is None
    assert record.events is not None
    assert record.events.gap_us == []
    assert near(ms(record, "last_token_ns"), 80, late=2000)


def test_p27_an_empty_whole_answer_is_no_success(make_sender: MakeSender) -> None:
    empty = {"choices": [{"index": 0, "message": {"content": ""}, "finish_reason": "stop"}]}
    assert send_one(make_sender, json_reply(empty)).outcome == "empty"


TGI = {"token": {"id": 1, "text": "a", "special": False}, "generated_text": None, "details": None}
TGI_LAST = {
    "token": {"id": 2, "text": "</s>", "special": True},
    "generated_text": "a",
    "details": {"finish_reason": "length", "generated_tokens": 2},
}


@pytest.mark.parametrize("flush", ["action", 1, 7])
def test_p25_native_tgi(make_sender: MakeSender, flush: Any) -> None:
    """One token an event, the final text not counted again, the end by the body's, the server's own count."""
    script = [J(TGI), T(30), J(TGI_LAST), EOF]
    record = send_one(make_sender, script, endpoint="generate_stream", server={"flush": flush})
    assert (record.outcome, record.finish_reason) == ("ok", "length")
    assert (record.output_tokens.count, record.output_tokens.source) == (2, "usage")
    assert record.events is not None and list(record.events.tokens) == [1, 1]


@pytest.mark.parametrize(
    "error", [{"error": "Model is overloaded", "error_type": "overloaded"}, {"error": "oh", "error_type": "generation"}]
)
@pytest.mark.parametrize("before", [0, 2])
def test_p25_a_native_tgi_error_is_no_success(make_sender: MakeSender, error: Any, before: int) -> None:
    record = send_one(make_sender, [*[J(TGI)] * before, J(error), EOF], endpoint="generate_stream")
    assert record.outcome == "error"
    assert record.error is not None and (record.error.message, record.error.code) == (
        error["error"],
        error["error_type"],
    )


def test_p25_a_native_tgi_stream_that_breaks_off_is_incomplete(make_sender: MakeSender) -> None:
    assert send_one(make_sender, [J(TGI), J(TGI), EOF], endpoint="generate_stream").outcome == "incomplete"


def test_p25_native_tgi_events_on_another_endpoint_are_no_success(make_sender: MakeSender) -> None:
    """Its tokens are not taken for another dialect's, and no figure comes of them."""
    token = {"token": {"id": 1, "text": "a", "special": False}, "generated_text": None, "details": None}
    record = send_one(make_sender, [J(token), J({**token, "generated_text": "a"}), EOF])
    assert record.outcome == "incomplete"
    assert "ignored_events" in record.flags
    assert record.first_token_ns is None


# --- compressed -------------------------------------------------------------------------------------------------------

PIECES = [C("a"), C("b"), FIN("stop"), U(3, 2), DONE]


def packed(kind: str, pieces: list[Event]) -> list[bytes]:
    """Each event compressed and flushed by itself."""
    packer = zlib.compressobj(wbits=31 if kind == "gzip" else 15)
    parts = [packer.compress(piece.encode()) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in pieces]
    return [*parts[:-1], parts[-1] + packer.flush()]


@pytest.mark.parametrize("kind", ["gzip", "deflate"])
def test_p29_compressed_though_identity_was_asked_for(kind: str, make_sender: MakeSender) -> None:
    asked: list[str] = []

    def handler(request: Any) -> Any:
        asked.append(request.headers["accept-encoding"])
        parts = packed(kind, PIECES)
        yield Head(headers={**SSE, "Content-Encoding": kind})
        yield T(40)
        yield Raw(parts[0])
        yield T(80)
        yield from map(Raw, parts[1:])

    record = send_one(make_sender, handler)
    assert asked == ["identity"]
    assert (record.outcome, record.output_tokens.count, record.finish_reason) == ("ok", 2, "stop")
    assert near(ms(record, "first_token_ns"), 40, late=2000)
    assert record.events is not None
    assert record.events.gap_us[1] > 40_000, "each event is decoded as it comes"


def test_p29_compressed_in_an_unknown_way_is_a_failure(make_sender: MakeSender) -> None:
    record = send_one(make_sender, [Head(headers={**SSE, "Content-Encoding": "br"}), Raw(b"\x0b\x02\x80"), EOF])
    assert record.outcome in ("error", "incomplete")
    assert record.error is not None
    assert "br" in record.error.message


def test_p29_a_compressed_body_that_is_broken(make_sender: MakeSender) -> None:
    record = send_one(make_sender, [Head(headers={**SSE, "Content-Encoding": "gzip"}), Raw(b"data: no gzip\n\n"), EOF])
    assert record.outcome in ("error", "incomplete")
    assert record.error is not None


def test_p29_a_compressed_refusal_is_read(make_sender: MakeSender) -> None:
    body = gzip.compress(json.dumps({"error": {"message": "too long"}}).encode())
    script = reply(body, 400, "application/json", Content_Encoding="gzip")
    record = send_one(make_sender, script)
    assert record.error is not None
    assert record.error.message == "too long"


# --- HTTP's own framing -----------------------------------------------------------------------------------------------

BODY = b"".join(piece.encode() for piece in PIECES)
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes, form: bytes = b"%x") -> bytes:
    return form % len(data) + b"\r\n" + data + b"\r\n"


FRAMES: dict[str, list[bytes | float]] = {
    "one chunk": [CHUNKED + chunk(BODY) + b"0\r\n\r\n"],
    "a chunk a byte": [CHUNKED, *(chunk(BODY[i : i + 1]) for i in range(len(BODY))), b"0\r\n\r\n"],
    "events across chunks": [CHUNKED, chunk(BODY[:50]), chunk(BODY[50:]), b"0\r\n\r\n"],
    "capital and padded sizes": [CHUNKED, chunk(BODY, b"%08X"), b"0000\r\n\r\n"],
    "chunk extensions": [CHUNKED, chunk(BODY, b'%x;a=b;c="d"'), b"0\r\n\r\n"],
    "trailers": [CHUNKED, chunk(BODY), b"0\r\nX-Checksum: 1\r\n\r\n"],
    "sizes and line ends cut": [
        CHUNKED, chunk(BODY)[:1], 20, chunk(BODY)[1:3], 20, chunk(BODY)[3:-1], 20, b"\n0\r", 20, b"\n\r\n"],
    "Content-Length": [OK + b"Content-Length: %d\r\n\r\n" % len(BODY), BODY],
    "ended by closing": [OK + b"\r\n", BODY],
    "HTTP/1.0": [OK.replace(b"1.1", b"1.0") + b"\r\n", BODY],
    "an early hint": [b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", CHUNKED, chunk(BODY), b"0\r\n\r\n"],
    "a continue": [b"HTTP/1.1 100 Continue\r\n\r\n", CHUNKED, chunk(BODY), b"0\r\n\r\n"],
    "names and types in any case": [
        b"HTTP/1.1 200 OK\r\ncontent-TYPE: Text/Event-Stream ; Charset=UTF-8\r\nTRANSFER-encoding: Chunked\r\n\r\n",
        chunk(BODY), b"0\r\n\r\n",
    ],
    "no reason phrase": [b"HTTP/1.1 200 \r\n" + CHUNKED.split(b"\r\n", 1)[1], chunk(BODY), b"0\r\n\r\n"],
    "no content type": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunk(BODY), b"0\r\n\r\n"],
    "a head in pieces": [CHUNKED[:9], 20, CHUNKED[9:40], 20, CHUNKED[40:] + chunk(BODY) + b"0\r\n\r\n"],
}  # fmt: skip


@pytest.mark.parametrize("case", FRAMES)
def test_framing(case: str, make_sender: MakeSender) -> None:
    record = send_raw(make_sender, FRAMES[case])
    assert (record.outcome, record.output_tokens.count, record.finish_reason) == ("ok", 2, "stop"), record.error
    assert record.events is not None
    assert len(record.events.gap_us) == 2


def test_p18_a_chunk_is_used_before_its_last_line_end(make_sender: MakeSender) -> None:
    event = chunk(C("a").encode())
    rest = chunk(b"".join(piece.encode() for piece in TAIL)) + b"0\r\n\r\n"
    record = send_raw(make_sender, [CHUNKED, 40, event[:-2], 150, event[-2:] + rest])
    assert record.outcome == "ok"
    first, last = ms(record, "first_token_ns"), ms(record, "done_ns")
    assert first is not None
    assert last is not None
    assert last - first > 75


BROKEN: dict[str, list[bytes | float]] = {
    "no HTTP": [b"SSH-2.0-OpenSSH_9.2\r\n"],
    "no number for a status": [b"HTTP/1.1 abc OK\r\n\r\n"],
    "a size that is none": [CHUNKED, chunk(C("a").encode()), b"zz\r\n"],
    "a line end too few": [CHUNKED, chunk(C("a").encode())[:-2], chunk(C("b").encode())],
    "a header without end": [b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000],
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_framing_fails_that_request(case: str, make_sender: MakeSender) -> None:
    record: Record = send_raw(make_sender, BROKEN[case], timeouts=Timeouts(2, 2, 2, 2))
    assert record.outcome in ("error", "incomplete")
    assert record.error is not None
    assert record.error.kind in ("protocol", "reset")
    assert record.error.message
