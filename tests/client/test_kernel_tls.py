"""Our own transport over TLS: versions, parts of a connection, certificates that do not do."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading

import httpx
import pytest
import trustme

from loadgen.client.kernel import KernelTransport
from loadgen.client.tls import Tls
from tests.client.raw_server import (
    PLAIN,
    SPLIT,
    WHOLE,
    answering,
    events,
    post,
    request_of,
    run,
    serve,
)


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
        async with serve(answering(answer), tls=server) as url:
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


def test_a_thread_opens_what_comes_while_another_seals(authority: trustme.CA) -> None:
    """As the reader does with a session ticket while the first request is sealed."""
    client = Tls(client_side(authority), "localhost")
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_side(authority).wrap_bio(coming, going, server_side=True)
    for _ in range(4):
        for side in (client._tls, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
            coming.write(client._out.read())
            client._in.write(going.read())
    parts = [bytes([i % 251]) * 2000 for i in range(3000)]
    records = []
    for part in parts:
        server.write(part)
        records.append(going.read())
    opened: list[bytes] = []
    reader = threading.Thread(target=lambda: opened.extend(client.opened(record)[0] for record in records))
    reader.start()
    sealed = [client.sealed(part) for part in parts]
    reader.join()
    assert b"".join(opened) == b"".join(parts)
    said = b""
    for record in sealed:
        coming.write(record)
        said += server.read(65536)
    assert said == b"".join(parts)
