"""Field cases P75 to P86, L22 to L26 and R11: answers that HTTP frames, compresses or ends in ways nobody expects."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from loadgen.client.exchange import Timeouts
from loadgen.client.transport import Access
from loadgen.records import Prompt, Record
from loadgen.simulator.scripted import (
    DONE,
    EOF,
    FIN,
    Action,
    C,
    Head,
    Raw,
    Request,
    ScriptedServer,
    T,
    U,
    json_reply,
    reply,
)
from tests.cases.support import TRANSPORTS, MakeSender, open_sender, send, send_one, send_raw, spec

SSE = {"Content-Type": "text/event-stream"}
PIECES = [C("a"), C("b"), FIN("stop"), U(3, 2), DONE]
BODY = b"".join(piece.encode() for piece in PIECES)
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
SHORT = Timeouts(2, 2, 2, 4)


def chunk(data: bytes, form: bytes = b"%x") -> bytes:
    return form % len(data) + b"\r\n" + data + b"\r\n"


WHOLE = chunk(BODY) + b"0\r\n\r\n"


def well(record: Record) -> None:
    """The answer was read as it was meant."""
    assert record.error is None, record.error
    assert record.events is not None
    assert (record.outcome, record.finish_reason, record.output_tokens.count) == ("ok", "stop", 2)
    assert len(record.events.gap_us) == 2


def fails(record: Record, kind: str, says: str, status: int | None, outcome: str = "error") -> None:
    assert record.error is not None
    assert (record.outcome, record.error.kind, record.status) == (outcome, kind, status), record.error
    assert says in record.error.message, record.error.message


# --- statuses and content types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "says"), [(201, "Created"), (202, "Accepted"), (206, "Partial Content")])
def test_p75_a_stream_under_another_status_is_no_answer(status: int, says: str, make_sender: MakeSender) -> None:
    fails(send_one(make_sender, [Head(status), *PIECES]), "http", f"{says}: an answer has status 200", status)


@pytest.mark.parametrize(("status", "says"), [(304, "Not Modified"), (426, "Upgrade Required"), (421, "Misdirected")])
def test_p75_statuses_of_other_trades(status: int, says: str, make_sender: MakeSender) -> None:
    parts = [b"HTTP/1.1 %d No\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n" % status]
    fails(send_raw(make_sender, parts, timeouts=SHORT), "http", says, status)


def test_p75_no_content(make_sender: MakeSender) -> None:
    fails(send_one(make_sender, [Head(204, {}, chunked=False), EOF]), "http", "No Content", 204)


KINDS: dict[str, tuple[dict[str, str], str]] = {
    "bytes": ({"Content-Type": "application/octet-stream"}, "application/octet-stream"),
    "JSON lines": ({"Content-Type": "application/x-ndjson"}, "application/x-ndjson"),
    "two in one": ({"Content-Type": "text/event-stream, text/html"}, "text/event-stream, text/html"),
    "JSON": ({"Content-Type": "application/json"}, "neither an event stream nor a completion"),
    "two: the last one holds": ({"Content-Type": "text/event-stream", "content-type": "text/html"}, "text/html"),
}


@pytest.mark.parametrize("case", KINDS)
def test_p76_a_stream_under_another_content_type_is_told(case: str, make_sender: MakeSender) -> None:
    headers, says = KINDS[case]
    record = send_one(make_sender, [Head(headers=headers), *PIECES])
    fails(record, "content_type", says, 200)
    assert record.error is not None
    assert "data: {" in (record.error.excerpt or record.excerpt or "")


@pytest.mark.parametrize("kind", ["Text/Event-Stream;charset=utf-8", "text/event-stream ; charset=UTF-8", ""])
def test_p76_a_stream_s_content_type_in_any_spelling(kind: str, make_sender: MakeSender) -> None:
    well(send_one(make_sender, [Head(headers={"Content-Type": kind}), *PIECES]))


ODD_JSON: dict[str, tuple[bytes, str, str]] = {
    "an empty object": (b"{}", "content_type", "error"),
    "an empty list": (b"[]", "content_type", "error"),
    "null": (b"null", "content_type", "error"),
    "nothing": (b"", "content_type", "error"),
    "two objects": (b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}{}', "content_type", "error"),
    "no choice": (b'{"choices":[]}', "empty", "empty"),
}


@pytest.mark.parametrize("case", ODD_JSON)
def test_p79_json_that_is_no_completion(case: str, make_sender: MakeSender) -> None:
    body, kind, outcome = ODD_JSON[case]
    fails(send_one(make_sender, reply(body, content_type="application/json")), kind, "", 200, outcome)


# --- compressed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, br", "none", "utf-8"])
def test_p77_an_encoding_nobody_asked_for_is_named(encoding: str, make_sender: MakeSender) -> None:
    script = [Head(headers={**SSE, "Content-Encoding": encoding}), *PIECES]
    fails(send_one(make_sender, script), "protocol", f"compressed with {encoding}", 200)


def test_p77_a_refusal_is_one_however_it_is_compressed(make_sender: MakeSender) -> None:
    fails(send_one(make_sender, reply(b"\x0b\x02\x80", 429, Content_Encoding="br")), "http", "Too Many", 429)
    fails(send_one(make_sender, reply(b"no gzip", 503, Content_Encoding="gzip")), "http", "Unavailable", 503)


PACKED: dict[str, list[bytes]] = {
    "a member an event": [gzip.compress(piece.encode()) for piece in PIECES],
    "two members in one chunk": [b"".join(gzip.compress(piece.encode()) for piece in PIECES)],
    "cut short after the end of the stream": [gzip.compress(BODY)[:-8]],
    "bytes after it": [gzip.compress(BODY) + b"\0" * 100],
}


@pytest.mark.parametrize("case", PACKED)
def test_p78_gzip_in_other_forms(case: str, make_sender: MakeSender) -> None:
    well(send_one(make_sender, [Head(headers={**SSE, "Content-Encoding": "gzip"}), *map(Raw, PACKED[case]), EOF]))


def test_p78_deflate_without_its_frame_is_broken(make_sender: MakeSender) -> None:
    packer = zlib.compressobj(wbits=-15)
    body = packer.compress(BODY) + packer.flush()
    script = [Head(headers={**SSE, "Content-Encoding": "deflate"}), Raw(body), EOF]
    fails(send_one(make_sender, script), "protocol", "the compressed body is broken", 200)


def test_r11_a_small_body_that_would_fill_the_memory_fails(make_sender: MakeSender) -> None:
    packer = zlib.compressobj(1, wbits=31)
    body = b"".join(packer.compress(bytes(1 << 20)) for _ in range(65)) + packer.flush()
    assert len(body) < 400_000
    script = reply(body, content_type="application/json", Content_Encoding="gzip")
    fails(send_one(make_sender, script), "protocol", "64 MiB", 200)


# --- framing ----------------------------------------------------------------------------------------------------------

READ: dict[str, list[bytes | float]] = {
    "P81 several informational answers": [
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n", 20,
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", 20, CHUNKED + WHOLE,
    ],
    "P82 HTTP/1.0, and chunked": [OK.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n", WHOLE],
    "P82 HTTP/1.0, kept alive": [
        OK.replace(b"1.1", b"1.0") + b"Connection: keep-alive\r\nContent-Length: %d\r\n\r\n" % len(BODY), BODY],
    "P83 no reason phrase, nor a space": [CHUNKED.replace(b"200 OK", b"200") + WHOLE],
    "P83 headers of 64 KB": [
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"v" * 1000) for i in range(64))
        + CHUNKED.split(b"\r\n", 1)[1] + WHOLE],
    "P81 a thousand informational answers": [b"HTTP/1.1 100 Continue\r\n\r\n" * 1000 + CHUNKED + WHOLE],
    "P84 a size in capitals after zeros": [CHUNKED + chunk(BODY, b"0000%X") + b"0\r\n\r\n"],
    "P84 an extension in quotes, with a semicolon": [CHUNKED + chunk(BODY, b'%x;a="b;c"') + b"0\r\n\r\n"],
    "P84 a megabyte of trailers": [CHUNKED + chunk(BODY) + b"0\r\n" + b"X: y\r\n" * 150_000 + b"\r\n"],
    "P83 a header in Latin-1": [CHUNKED[:-2] + b"X: \xe9\xff\r\n\r\n" + WHOLE],
    "P84 a long chunk extension": [CHUNKED + chunk(BODY, b"%x;" + b"x" * 5000) + b"0\r\n\r\n"],
    "P84 trailers": [CHUNKED + chunk(BODY) + b"0\r\nA: 1\r\nB: 2\r\n\r\n"],
    "P84 garbage where trailers are": [CHUNKED + chunk(BODY) + b"0\r\n\x00garbage\r\n\r\n"],
    "P84 a last chunk that never comes": [CHUNKED + chunk(BODY)],
    "P85 an answer after the answer": [CHUNKED + WHOLE + CHUNKED + WHOLE],
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_framing_that_is_read(case: str, make_sender: MakeSender) -> None:
    well(send_raw(make_sender, READ[case], timeouts=SHORT))


EITHER: dict[str, bytes] = {  # parsers differ in what they let pass, never in what they make of it
    "Transfer-Encoding twice": OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + WHOLE,
    "chunked, chunked": OK + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + WHOLE,
    "Transfer-Encoding: identity": OK + b"Transfer-Encoding: identity\r\n\r\n" + BODY,
    "a length beside chunks": OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + WHOLE,
    "one length twice": OK
    + b"Content-Length: %d\r\n" % len(BODY) * 1
    + b"Content-Length: %d\r\n\r\n" % len(BODY)
    + BODY,
    "an empty line before the answer": b"\r\n" + CHUNKED + WHOLE,
    "line feeds alone in the head": CHUNKED.replace(b"\r\n", b"\n") + WHOLE,
    "a folded header": CHUNKED.replace(b"\r\n\r\n", b"\r\nX: a\r\n b\r\n\r\n") + WHOLE,
    "a reason of a megabyte": CHUNKED.replace(b"OK", b"x" * 1_000_000) + WHOLE,
    "HTTP in small letters": CHUNKED.replace(b"HTTP", b"http") + WHOLE,
    "a space after a chunk's size": CHUNKED + chunk(BODY, b"%x ") + b"0\r\n\r\n",
    "a chunk's size as Python writes it": CHUNKED + chunk(BODY, b"0x%x") + b"0\r\n\r\n",
    "a length with a plus": OK + b"Content-Length: +%d\r\n\r\n" % len(BODY) + BODY,
    "a list of one length twice": OK + b"Content-Length: %d, %d\r\n\r\n" % (len(BODY), len(BODY)) + BODY,
    "HTTP/3.0": CHUNKED.replace(b"1.1", b"3.0") + WHOLE,
    "a chunk size above all sizes": CHUNKED + b"FFFFFFFFFFFFFFFFFF\r\n" + BODY,
}


@pytest.mark.parametrize("case", EITHER)
def test_p80_framing_that_is_read_or_refused(case: str, make_sender: MakeSender) -> None:
    record = send_raw(make_sender, [EITHER[case]], timeouts=SHORT)
    if record.error is None:
        well(record)
    else:
        assert record.outcome in ("error", "incomplete")
        assert record.error.kind in ("protocol", "reset")
        assert len(record.error.message) > len("RemoteProtocolError: ")


REFUSED: dict[str, bytes] = {
    "P80 two lengths that differ": OK + b"Content-Length: 5\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
    "P80 a length that is none": OK + b"Content-Length: abc\r\n\r\n" + BODY,
    "P80 a length below zero": OK + b"Content-Length: -5\r\n\r\n" + BODY,
    "P80 a length above all lengths": OK + b"Content-Length: 99999999999999999999999999\r\n\r\n" + BODY,
    "P81 nothing but an informational answer": b"HTTP/1.1 100 Continue\r\n\r\n",
    "P81 another protocol": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    "P82 no head at all": BODY,
    "P82 HTTP/2 though HTTP/1.1 was spoken": b"\0\0\x12\4\0\0\0\0\0\0\3\0\0\0\x80\0\4\0\1\0\0\0\5\0\xff\xff\xff",
    "P82 TLS where HTTP was spoken": b"\x15\x03\x01\x00\x02\x02\x46",
    "P83 a space before a header's colon": CHUNKED.replace(b"Content-Type:", b"Content-Type :") + WHOLE,
    "P83 a zero byte in a header": CHUNKED[:-2] + b"X: a\0b\r\n\r\n" + WHOLE,
    "P83 a status of four digits": CHUNKED.replace(b"200", b"2000") + WHOLE,
    "P83 half a head": CHUNKED[:30],
    "P83 nothing": b"",
}


@pytest.mark.parametrize("case", REFUSED)
def test_framing_that_is_refused(case: str, make_sender: MakeSender) -> None:
    fails(send_raw(make_sender, [REFUSED[case]], timeouts=SHORT), "protocol", ": ", None)


CUT: dict[str, tuple[bytes, int]] = {
    "P84 a size below zero": (CHUNKED + b"-5\r\n" + BODY, 0),
    "P84 line feeds alone after chunks": (CHUNKED + WHOLE.replace(b"\r\n", b"\n"), 0),
    "P85 an empty chunk ends the body": (CHUNKED + chunk(PIECES[0].encode()) + b"0\r\n\r\n" + chunk(BODY), 1),
    "P86 a length of none": (OK + b"Content-Length: 0\r\n\r\n", 0),
    "P86 a length that ends within an event": (OK + b"Content-Length: 40\r\n\r\n" + BODY, 0),
    "P86 a head and no more": (CHUNKED, 0),
}


@pytest.mark.parametrize("case", CUT)
def test_framing_that_ends_too_early(case: str, make_sender: MakeSender) -> None:
    data, events = CUT[case]
    record = send_raw(make_sender, [data], timeouts=SHORT)
    assert record.events is not None
    assert (record.outcome, record.status, len(record.events.gap_us)) == ("incomplete", 200, events)


# --- connections ------------------------------------------------------------------------------------------------------

TOO_LARGE = b"HTTP/1.1 413 Too Large\r\nContent-Length: 9\r\n%b\r\ntoo large"
LARGE = Prompt("x" * 6_000_000)  # more than the buffers of a socket hold


@asynccontextmanager
async def hasty(*answers: bytes, wait_s: float = 0.0, close: bool = False) -> AsyncIterator[str]:
    """A server that gives its first answer when it has no more than the head of the request, the others as is usual. It
    takes the rest of that request after its answer, or closes."""
    coming = iter(answers)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().split(b"content-length:")[1].split()[0])
                answer = next(coming)
                if answer is not answers[0]:
                    await reader.readexactly(size)
                await asyncio.sleep(wait_s)
                writer.write(answer)
                await writer.drain()
                if close:
                    break
                if answer is answers[0]:
                    await reader.readexactly(size)
        writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.skipif(len(TRANSPORTS) < 2, reason="httpx loses what came before a reset")
@pytest.mark.parametrize("wait_s", [0.0, 0.05], ids=["at once", "while the request is sent"])
@pytest.mark.parametrize(
    ("answer", "status"), [(TOO_LARGE % b"Connection: close\r\n", 413), (OK + b"\r\n" + BODY, 200)]
)
def test_l22_an_answer_before_the_request_was_all_sent_is_read(answer: bytes, status: int, wait_s: float) -> None:
    """And then the connection is reset, so that the request can never be sent."""

    async def main() -> Record:
        async with (
            hasty(answer, wait_s=wait_s, close=True) as url,
            open_sender(Access().transport, url, timeouts=SHORT) as sender,
        ):
            return await sender.send(spec(0, LARGE), time.monotonic_ns())

    record = anyio.run(main)
    if status == 200:
        well(record)
    else:
        fails(record, "http", "too large", 413)


def test_l23_a_connection_with_half_a_request_in_it_is_not_used_again(make_sender: MakeSender) -> None:
    """The server answers and keeps the connection open: what is left of the request would stand before the next."""

    async def main() -> list[Record]:
        answers = hasty(TOO_LARGE % b"", CHUNKED + WHOLE)
        async with answers as url, make_sender(url, connections=1, timeouts=SHORT) as sender:
            return [await sender.send(spec(0, prompt), time.monotonic_ns()) for prompt in (LARGE, Prompt("hi"))]

    first, second = anyio.run(main)
    assert first.outcome == "error"
    well(second)


def test_l24_a_head_that_comes_too_slowly_is_a_timeout(make_sender: MakeSender) -> None:
    slow = [piece for at in range(0, len(CHUNKED), 4) for piece in (CHUNKED[at : at + 4], 30.0)]
    record = send_raw(make_sender, slow, timeouts=Timeouts(3, 0.2, 3, 5))
    assert (record.outcome, record.timeout, record.first_token_ns) == ("timeout", "first_token", None)


def test_l25_a_server_that_closes_after_every_answer(make_sender: MakeSender) -> None:
    closing: list[Action] = [Head(headers={**SSE, "Connection": "close"}), *PIECES]
    records = send(make_sender, closing, sends=4)
    for record in records:
        well(record)
        assert record.connect is not None, "each has a connection of its own, and says what it took"


def test_l26_a_server_that_says_how_long_it_keeps_connections(make_sender: MakeSender) -> None:
    """Keep-Alive: timeout=1, and it means it: no request is lost to a connection that it closes."""
    keeping: list[Action] = [Head(headers={**SSE, "Keep-Alive": "timeout=1, max=100"}), *PIECES]

    async def main() -> list[Record]:
        async with ScriptedServer(keeping, idle_close=0.1) as fake, make_sender(fake.url) as sender:
            records = []
            for number, pause_s in enumerate((0.0, 0.09, 0.1, 0.101, 0.11, 0.2)):
                await asyncio.sleep(pause_s)
                records.append(await sender.send(spec(number), time.monotonic_ns()))
            return records

    for record in anyio.run(main):
        well(record)


def test_p79_a_problem_is_read_in_its_own_words(make_sender: MakeSender) -> None:
    problem = json.dumps({"title": "out of memory", "status": 503}).encode()
    fails(send_one(make_sender, reply(problem, 503, "application/problem+json")), "http", "out of memory", 503)


@pytest.mark.parametrize("share", [1, 3])
def test_l25_answers_and_refusals_by_turns_on_one_connection(share: int, make_sender: MakeSender) -> None:
    def by_turns(request: Request) -> Any:
        return PIECES if request.number % (share + 1) == 0 else [T(5), *json_reply({"error": "no"}, 500)]

    records = send(make_sender, by_turns, sends=8)
    for number, record in enumerate(records):
        if number % (share + 1) == 0:
            well(record)
        else:
            fails(record, "http", "no", 500)
