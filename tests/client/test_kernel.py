"""Our own transport on real sockets: framing and connections; in the loop and in a reader thread."""

from __future__ import annotations

import asyncio
import gc
import itertools
import socket
import time
import weakref

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.client.kernel import KernelTransport
from loadgen.client.probe import Probe
from tests.client.raw_server import (
    EVENT,
    PLAIN,
    SPLIT,
    STREAM_HEAD,
    WHOLE,
    answering,
    chunk,
    events,
    post,
    request_of,
    run,
    serve,
    tally_of,
)

# --- framing --------------------------------------------------------------------------------------------------------

OK_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
ANSWERS = {
    "chunked in one segment": WHOLE,
    "chunked, a segment each": SPLIT,
    "content-length": OK_STREAM + b"Content-Length: %d\r\n\r\n%s" % (len(PLAIN), PLAIN),
    "100-continue first": b"HTTP/1.1 100 Continue\r\n\r\n|" + WHOLE,
    "103 early hints first": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n|" + WHOLE,
    "chunk extensions and trailers": STREAM_HEAD
    + b"%x;a=b\r\n%s\r\n" % (len(PLAIN), PLAIN)
    + b"0\r\nX-Trailer: 1\r\n\r\n",
    "lower case, spaces": b"HTTP/1.1 200 OK\r\ncontent-type:   text/event-stream ; charset=utf-8\r\n"
    + b"transfer-encoding: chunked\r\n\r\n"
    + chunk(PLAIN)
    + b"0\r\n\r\n",
    "no content type": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(PLAIN) + b"0\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_every_framing_gives_the_same_events_on_a_connection_that_is_kept(answer: bytes, threaded: bool) -> None:
    async def main(transport: KernelTransport) -> None:
        async with serve(answering(answer, pause=0.001)) as url:
            for i in range(3):
                response, tally, probe = await post(transport, url)
                assert (response.status_code, events(tally), tally.result(None).outcome) == (200, 2, "ok")
                assert (probe.connect is None) == (i > 0)
                assert probe.peer == url.split("/")[2]

    run(main, threaded=threaded)


def test_a_body_that_ends_with_the_connection(threaded: bool) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + PLAIN)

    async def main(transport: KernelTransport) -> None:
        async with serve(handler) as url:
            for _ in range(2):
                _, tally, probe = await post(transport, url)
                assert (events(tally), tally.result(None).outcome) == (2, "ok")
                assert probe.connect is not None

    run(main, threaded=threaded)


@given(cuts=st.lists(st.integers(1, len(WHOLE) - 1), max_size=12))
@settings(max_examples=25, deadline=None)
def test_any_segmentation_gives_the_same_events(cuts: list[int]) -> None:
    places = [0, *sorted(set(cuts)), len(WHOLE)]
    parts = [WHOLE[a:b] for a, b in itertools.pairwise(places)]

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await request_of(reader)
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)

    async def main(transport: KernelTransport) -> None:
        async with serve(handler) as url:
            _, tally, _ = await post(transport, url)
            assert (events(tally), tally.result(None).outcome) == (2, "ok")

    run(main)


def test_the_streams_own_end_is_enough_when_the_body_never_ends(threaded: bool) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(STREAM_HEAD + chunk(PLAIN))
        await asyncio.sleep(60)

    async def main(transport: KernelTransport) -> None:
        async with serve(handler) as url:
            start = time.monotonic()
            _, tally, _ = await post(transport, url)
            assert time.monotonic() - start < 10
            assert tally.result(None).outcome == "ok"

    run(main, threaded=threaded)


FIVE = b"Content-Length: 5\r\n\r\nhello"
BROKEN = {
    "closed without an answer": (b"", httpx.RemoteProtocolError),
    "closed in the headers": (b"HTTP/1.1 200 OK\r\nContent-Ty", httpx.RemoteProtocolError),
    "closed in the body": (STREAM_HEAD + chunk(EVENT), httpx.RemoteProtocolError),
    "not HTTP at all": (b"SSH-2.0-OpenSSH_9.2\r\n", httpx.RemoteProtocolError),
    "a bad chunk size": (STREAM_HEAD + b"zz\r\n", httpx.RemoteProtocolError),
    "headers without end": (b"HTTP/1.1 200 OK\r\n" + b"X-Y: %s\r\n" % (b"y" * 8000) * 200, httpx.RemoteProtocolError),
    "an unknown compression": (OK_STREAM + b"Content-Encoding: br\r\n" + FIVE, httpx.DecodingError),
    "a broken compression": (OK_STREAM + b"Content-Encoding: gzip\r\n" + FIVE, httpx.DecodingError),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "error"), BROKEN.values(), ids=BROKEN)
def test_a_broken_answer_is_an_error_and_the_next_request_is_served(
    answer: bytes, error: type[Exception], threaded: bool
) -> None:
    count = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        await request_of(reader)
        writer.write(answer if count == 1 else WHOLE)
        await writer.drain()

    async def main(transport: KernelTransport) -> None:
        async with serve(handler) as url:
            with pytest.raises(error):
                await post(transport, url)
            _, tally, _ = await post(transport, url)
            assert events(tally) == 2

    run(main, threaded=threaded)


def test_a_body_without_end_is_given_up() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n")
        block = chunk(b"x" * 65536)
        while not writer.is_closing():
            writer.write(block)
            await writer.drain()

    async def main(transport: KernelTransport) -> None:
        async with serve(handler) as url:
            with pytest.raises(httpx.RemoteProtocolError, match="longer than"):
                await post(transport, url)

    run(main)


def test_a_large_request_is_sent_whole_though_the_server_reads_slowly(threaded: bool) -> None:
    seen: list[int] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        _, body = await request_of(reader)
        seen.append(len(body))
        writer.write(WHOLE)
        await writer.drain()

    async def main(transport: KernelTransport) -> None:
        async with serve(handler) as url:
            await post(transport, url, body=b"x" * 8_000_000)

    run(main, threaded=threaded)
    assert seen == [8_000_000]


# --- connections ----------------------------------------------------------------------------------------------------


def test_connections_opened_ahead_are_used() -> None:
    async def main(transport: KernelTransport) -> None:
        async with serve(answering(SPLIT)) as url:
            await transport.warm(httpx.URL(url), 5)
            found = await asyncio.gather(*(post(transport, url) for _ in range(6)))
            assert sum(probe.connect is not None for _, _, probe in found) == 1

    run(main)


def test_an_idle_connection_is_not_kept_for_long() -> None:
    async def main(transport: KernelTransport) -> None:
        async with serve(answering(WHOLE)) as url:
            await post(transport, url)
            await asyncio.sleep(0.15)
            _, _, probe = await post(transport, url)
            assert probe.connect is not None

    run(main, keepalive_s=0.1)


def test_a_connection_closed_by_the_server_while_idle_is_not_used(threaded: bool) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(WHOLE)
        await writer.drain()

    async def main(transport: KernelTransport) -> None:
        async with serve(handler) as url:
            for _ in range(3):
                _, tally, _ = await post(transport, url)
                assert events(tally) == 2
                await asyncio.sleep(0.05)
            assert not transport.reactor.handlers

    run(main, threaded=threaded)


def test_giving_up_in_the_middle_drops_the_connection(threaded: bool) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(STREAM_HEAD + chunk(EVENT))
        await asyncio.sleep(30)

    async def main(transport: KernelTransport) -> None:
        async with serve(handler) as url:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await post(transport, url)
            await asyncio.sleep(0.01)
            assert not transport.reactor.handlers

    run(main, threaded=threaded)


def test_refused_and_unresolvable() -> None:
    async def main(transport: KernelTransport) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            with pytest.raises(httpx.ConnectError, match=r"[Rr]efused"):
                await post(transport, f"http://127.0.0.1:{unused.getsockname()[1]}/")
        with pytest.raises(httpx.ConnectError, match=r"no\.such\.name\.invalid"):
            await post(transport, "http://no.such.name.invalid/")

    run(main)


def test_ipv6() -> None:
    async def main(transport: KernelTransport) -> None:
        try:
            async with serve(answering(WHOLE), host="::1") as url:
                _, tally, probe = await post(transport, url)
        except OSError:
            pytest.skip("no IPv6 on this machine")
        assert events(tally) == 2
        assert probe.peer is not None
        assert probe.peer.startswith("[::1]:")

    run(main)


# --- memory ---------------------------------------------------------------------------------------------------------


def test_nothing_is_kept_in_cycles(threaded: bool) -> None:
    kept: list[weakref.ref[Probe]] = []

    class Watched(Probe):
        __slots__ = ("__weakref__",)

    async def main(transport: KernelTransport) -> None:
        async with serve(answering(SPLIT)) as url:
            gc.collect()
            gc.disable()
            try:
                for _ in range(5):
                    tally = tally_of()
                    probe = Watched(lambda: None)
                    kept.append(weakref.ref(probe))
                    request = httpx.Request("POST", url, content=b"{}", extensions={"probe": probe, "tally": tally})
                    response = await transport.handle_async_request(request)
                    await response.aread()
                    del request, response, tally, probe
                async with asyncio.timeout(5):  # the parse timer forgets what it held
                    while any(ref() is not None for ref in kept):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            finally:
                gc.enable()

    run(main, threaded=threaded)
