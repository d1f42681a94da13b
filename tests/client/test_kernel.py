"""Our own transport on real sockets: framing, connections, TLS, timers; in the loop and in a reader thread."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import socket
import ssl
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.client.clock import Clock, TimerFd
from loadgen.client.dialects import DIALECTS
from loadgen.client.kernel import KernelTransport
from loadgen.client.probe import Probe
from loadgen.client.reactor import Reactor
from loadgen.client.tally import Tally

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

EVENT = b'data: {"id":"r","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
END = b'data: {"id":"r","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


WHOLE = STREAM_HEAD + chunk(EVENT) + chunk(EVENT) + chunk(END) + b"0\r\n\r\n"


@contextlib.asynccontextmanager
async def serve(handler: Handler, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A raw server; `handler` gets each connection once, and its errors are the client's business."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            await handler(reader, writer)
        writer.close()

    server = await asyncio.start_server(connected, host, 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"{'https' if tls else 'http'}://{shown}:{port}/v1/chat/completions"
    finally:
        server.close()


async def request_of(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """One request: its head and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    return head, await reader.readexactly(length)


def answering(*answers: bytes, pause: float = 0.0) -> Handler:
    """Answers the n-th request of a connection with the n-th of `answers`, the last one for ever."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for i in range(1000):
            await request_of(reader)
            for part in answers[min(i, len(answers) - 1)].split(b"|"):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause)

    return handler


def tally_of() -> Tally:
    return Tally(DIALECTS["chat"], 0, 1 << 23, 2048)


async def post(
    transport: KernelTransport, url: str, *, body: bytes = b"{}", at_ns: int | None = None
) -> tuple[httpx.Response, Tally, Probe]:
    """One streamed request to its end."""
    tally = tally_of()

    def sent() -> None:
        tally.sent_ns = probe.sent_ns or 0

    probe = Probe(sent)
    extensions = {"probe": probe, "tally": tally, "on_token": lambda: None}
    if at_ns is not None:
        extensions["send_at_ns"] = at_ns  # type: ignore[assignment]
    async with httpx.AsyncClient(transport=_Borrowed(transport)) as client:
        request = client.build_request("POST", url, content=body, extensions=extensions)
        response = await client.send(request, stream=True)
        try:
            await response.aread()
        finally:
            await response.aclose()
    tally.close(probe.last_read_ns)
    return response, tally, probe


class _Borrowed(httpx.AsyncBaseTransport):
    """A transport that outlives the client that uses it."""

    def __init__(self, inner: KernelTransport) -> None:
        self.inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self.inner.handle_async_request(request)


def run(main: Callable[[KernelTransport], Awaitable[None]], **options: object) -> None:
    async def whole() -> None:
        transport = KernelTransport(**options)  # type: ignore[arg-type]
        try:
            await asyncio.wait_for(main(transport), 20)
        finally:
            await transport.aclose()

    asyncio.run(whole())


@pytest.fixture(params=[False, True], ids=["loop", "thread"])
def threaded(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def events(tally: Tally) -> int:
    return len(tally.result(None).events.gap_us)


# --- framing --------------------------------------------------------------------------------------------------------

PLAIN = EVENT + EVENT + END
SPLIT = STREAM_HEAD + b"|" + chunk(EVENT) + b"|" + chunk(EVENT) + b"|" + chunk(END) + b"|0\r\n\r\n"
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


# --- TLS ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_side(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*(names or ("127.0.0.1", "localhost"))).configure_cert(context)
    return context


def client_side(authority: trustme.CA | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if authority is not None:
        authority.configure_trust(context)
    return context


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("answer", [WHOLE, SPLIT], ids=["whole", "split"])
def test_tls(version: ssl.TLSVersion, answer: bytes, threaded: bool, authority: trustme.CA) -> None:
    server = server_side(authority)
    server.minimum_version = server.maximum_version = version

    async def main(transport: KernelTransport) -> None:
        async with serve(answering(answer, pause=0.001), tls=server) as url:
            await transport.warm(httpx.URL(url), 1)
            await asyncio.sleep(0.02)  # session tickets come while it is idle
            for i in range(3):
                _, tally, probe = await post(transport, url, body=b"x" * 300_000 if i == 1 else b"{}")
                assert (events(tally), tally.result(None).outcome) == (2, "ok")
                assert probe.connect is None

    run(main, context=client_side(authority), threaded=threaded)


def test_tls_parts_of_a_connection_are_timed_apart(authority: trustme.CA) -> None:
    async def main(transport: KernelTransport) -> None:
        async with serve(answering(WHOLE), tls=server_side(authority)) as url:
            _, _, probe = await post(transport, url.replace("127.0.0.1", "localhost"))
            assert probe.connect is not None
            assert None not in (probe.connect.dns_us, probe.connect.tcp_us, probe.connect.tls_us)

    run(main, context=client_side(authority))


def test_tls_close_with_the_last_data(authority: trustme.CA, threaded: bool) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + PLAIN)

    async def main(transport: KernelTransport) -> None:
        async with serve(handler, tls=server_side(authority)) as url:
            _, tally, _ = await post(transport, url)
            assert (events(tally), tally.result(None).outcome) == (2, "ok")

    run(main, context=client_side(authority), threaded=threaded)


def test_a_certificate_nobody_trusts(authority: trustme.CA) -> None:
    async def main(transport: KernelTransport) -> None:
        async with serve(answering(WHOLE), tls=server_side(authority)) as url:
            with pytest.raises(httpx.ConnectError, match="certificate verify failed") as caught:
                await post(transport, url)
            assert isinstance(caught.value.__cause__, ssl.SSLError)

    run(main, context=client_side(None))


def test_a_certificate_for_another_host(authority: trustme.CA) -> None:
    async def main(transport: KernelTransport) -> None:
        async with serve(answering(WHOLE), tls=server_side(authority, "elsewhere.example")) as url:
            with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
                await post(transport, url)

    run(main, context=client_side(authority))


def test_tls_to_a_plain_port_is_an_error_at_once() -> None:
    async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def plain(transport: KernelTransport) -> None:
        async with serve(refusing) as url:
            with pytest.raises(httpx.ConnectError):
                await post(transport, url.replace("http:", "https:"))

    run(plain, context=client_side(None))


# --- stamps and timers ----------------------------------------------------------------------------------------------


def test_stamps_are_in_order_and_on_the_monotonic_clock(threaded: bool) -> None:
    async def main(transport: KernelTransport) -> None:
        async with serve(answering(SPLIT, pause=0.005)) as url:
            await post(transport, url)  # the kernel may have begun to stamp only now
            missed = transport.stats.unstamped
            before = time.monotonic_ns()
            _, tally, probe = await post(transport, url)
            after = time.monotonic_ns()
            result = tally.result(None)
            assert probe.sent_ns is not None
            assert result.first_token_ns is not None
            assert probe.first_read_ns is not None
            assert before <= probe.sent_ns <= probe.first_read_ns <= result.first_token_ns
            assert result.first_token_ns <= (result.last_token_ns or 0) <= probe.last_read_ns <= after
            stats = transport.stats
            assert stats.unstamped == missed
            assert sum(stats.lag) + sum(stats.lag_beyond.values()) + stats.unstamped == stats.reads > 6

    run(main, threaded=threaded)


def test_a_request_leaves_at_its_time_and_not_before(threaded: bool) -> None:
    async def main(transport: KernelTransport) -> None:
        async with serve(answering(WHOLE)) as url:
            await transport.warm(httpx.URL(url), 8)
            now = time.monotonic_ns()
            times = [now + d * 1_000_000 for d in (40, 10, 30, 20, 20, -5)]
            found = await asyncio.gather(*(post(transport, url, at_ns=at) for at in times))
            sent = [probe.sent_ns or 0 for _, _, probe in found]
            assert all(s >= at for s, at in zip(sent, times, strict=True))
            assert sorted(range(6), key=sent.__getitem__)[0] == 5
            assert sent[1] < sent[3] < sent[2] < sent[0]

    run(main, threaded=threaded)


def test_a_stepped_wall_clock_is_seen_and_never_a_latency() -> None:
    clock = Clock()
    now = time.monotonic_ns()
    real = now + clock.offset
    for step in (3_600_000_000_000, -3_600_000_000_000, 5_000_000):
        # The wall clock was stepped after the offset was taken: the offset in use is off by `step`.
        clock.offset -= step
        assert abs(clock.restamp(real) - now) < 1_000_000
    assert clock.steps == 3


def test_a_stamp_that_stays_absurd_is_replaced_by_the_time_of_the_read() -> None:
    async def main(transport: KernelTransport) -> None:
        async with serve(answering()) as url:
            await transport.warm(httpx.URL(url), 1)
            [connection] = transport._all
            now = time.monotonic_ns()
            real = now + transport.reactor.clock.offset
            for number, years in enumerate((1, -1), 1):
                assert connection._doubted(real + years * 10**16, now) == now
                assert transport.reactor.clock.rejected == number

    run(main)


def test_timers_fire_in_order(threaded: bool) -> None:
    async def main() -> None:
        reactor = Reactor(threaded=threaded)
        fired: list[int] = []
        done = asyncio.Event()
        now = time.monotonic_ns()

        def fire(i: int) -> None:
            fired.append(i)
            if len(fired) == 6:
                reactor.post(done.set)

        for i in (5, 1, 4, 2, 3):
            reactor.at(now + i * 2_000_000, lambda i=i: fire(i))  # type: ignore[misc]
        reactor.at(now - 1, lambda: fire(0))
        await asyncio.wait_for(done.wait(), 5)
        reactor.close()
        assert fired == [0, 1, 2, 3, 4, 5]

    asyncio.run(main())


def test_a_timer_is_readable_at_its_time() -> None:
    timer = TimerFd()
    timer.set(time.monotonic_ns() + 1_000_000)
    time.sleep(0.01)
    timer.clear()
    timer.clear()  # nothing to read is no error
    timer.close()


# --- memory ---------------------------------------------------------------------------------------------------------


def test_nothing_is_kept_in_cycles(authority: trustme.CA, threaded: bool) -> None:
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
