"""What a server sends beyond an answer answers nothing: the answer before it stays as it was, and the next request goes
out on a connection of its own."""

from __future__ import annotations

import asyncio
import ssl
import time

import pytest
import trustme

from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import RequestOptions
from loadgen.client.exchange import HttpxSender, Timeouts
from loadgen.client.transport import Access, open_client
from loadgen.records import Prompt, Record, RequestSpec
from loadgen.simulator.scripted import DONE, FIN, Action, C, Head, Raw, Request, T, ThreadedServer

ARMS = {
    "kernel": Access(),
    "thread": Access(threaded=True),
    "httpx": Access(httpx_pool=True),
    "kernel, TLS": Access(insecure=True),
    "thread, TLS": Access(insecure=True, threaded=True),
}
AUTHORITY = trustme.CA()
ANSWERS = {
    "a refusal": (503, "text/plain", b"busy"),
    "a stream": (200, "text/event-stream", C("own").encode() + FIN("stop").encode()),
}
STRAYS = {
    "a refusal": b"HTTP/1.1 500 No\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nstray",
    "a stream": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b"
    % (len(C("stray").encode() + DONE.encode()), C("stray").encode() + DONE.encode()),
    "half an answer": b"HTTP/1.1 200 OK\r\nContent-Ty",
    "garbage": b"\x00stray\r\n\r\n",
}


def two_requests(answer: tuple[int, str, bytes], stray: bytes, late: bool, access: Access) -> list[Record]:
    """The first is answered, with the stray bytes in the same write or 10 ms later; they lie there before the second,
    while the client's loop is busy. The second is answered alone."""
    status, kind, body = answer
    head = Head(status, {"Content-Type": kind, "Content-Length": str(len(body))}, chunked=False)

    def script(request: Request) -> list[Action]:
        if len(server.requests) > 1:
            return [head, Raw(body)]
        return [head, Raw(body), *([T(10)] if late else []), Raw(stray)]

    async def main(url: str) -> list[Record]:
        records = []
        async with open_client(access, 1, tls=access.insecure) as client:
            options = RequestOptions("m")
            timeouts = Timeouts(connect=5, first_token=2, idle=2, total=5)
            sender = HttpxSender(
                client, f"{url}/v1/chat/completions", DIALECTS["chat"], options, zero_ns=0, timeouts=timeouts
            )
            for number in range(2):
                spec = RequestSpec(f"s1-{number:06d}", Prompt("hi"), 1, 1, "measured")
                records.append(await sender.send(spec, time.monotonic_ns()))
                while server.in_flight:  # the loop is busy, so that nobody looks at what comes
                    time.sleep(0.002)  # noqa: ASYNC251
                time.sleep(0.02)  # noqa: ASYNC251
        return records

    context = None
    if access.insecure:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        AUTHORITY.issue_cert("127.0.0.1").configure_cert(context)
    with ThreadedServer(script, flush="wait", ssl=context) as server:
        return asyncio.run(main(server.url))


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("late", [False, True], ids=["in one read", "later"])
@pytest.mark.parametrize("stray", STRAYS)
@pytest.mark.parametrize("answer", ANSWERS)
def test_l30_it_answers_nothing(answer: str, stray: str, late: bool, arm: str) -> None:
    records = two_requests(ANSWERS[answer], STRAYS[stray], late, ARMS[arm])
    if (stray, late, arm) == ("half an answer", False, "httpx"):  # which keeps it, and joins the next answer to it
        assert (records.pop().outcome) == "error"
    for record in records:
        assert record.status == ANSWERS[answer][0]
        if answer == "a refusal":
            assert record.error is not None and (record.error.kind, record.error.excerpt) == ("http", "busy")
        else:
            assert (record.outcome, record.output_tokens.count, record.finish_reason) == ("ok", 1, "stop")
            assert record.sent_ns is not None and record.first_token_ns is not None
            assert record.sent_ns <= record.first_token_ns <= record.done_ns
    assert all(record.connect is not None for record in records), "each on a connection of its own"
