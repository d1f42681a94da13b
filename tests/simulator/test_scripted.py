"""The fault server, driven with plain sockets and http.client."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.simulator.scripted import (
    CU,
    DONE,
    EOF,
    FIN,
    RC,
    ROLE,
    RST,
    Action,
    C,
    Close,
    Comment,
    Hang,
    Head,
    J,
    R,
    Raw,
    Reject,
    Request,
    ScriptedServer,
    T,
    ThreadedServer,
    U,
    error_reply,
    json_reply,
    reply,
)
from loadgen.simulator.wire import parse_request

POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


def client(server: ScriptedServer) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(server.host, server.port, timeout=10)


def ask(server: ScriptedServer, body: bytes = b"{}", path: str = "/v1/chat/completions") -> tuple[int, bytes]:
    connection = client(server)
    try:
        connection.request("POST", path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def raw(server: ScriptedServer) -> socket.socket:
    return socket.create_connection((server.host, server.port), timeout=10)


def read_all(sock: socket.socket) -> bytes:
    data = b""
    while part := sock.recv(65536):
        data += part
    return data


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.005)


def test_the_shorthand_is_the_documented_bytes() -> None:
    script = [ROLE, C("a"), R("b"), RC("c"), CU("d", 4), FIN("stop"), U(3, 2), Comment("ping"), J('{"x": 1}'), DONE]
    head = '{"id":"r","object":"chat.completion.chunk","choices":[{"index":0,"delta":'
    expected = (
        f'data: {head}{{"role":"assistant","content":""}},"finish_reason":null}}]}}\n\n'
        f'data: {head}{{"content":"a"}},"finish_reason":null}}]}}\n\n'
        f'data: {head}{{"reasoning":"b"}},"finish_reason":null}}]}}\n\n'
        f'data: {head}{{"reasoning_content":"c"}},"finish_reason":null}}]}}\n\n'
        f'data: {head}{{"content":"d"}},"finish_reason":null}}],"usage":{{"completion_tokens":4}}}}\n\n'
        f'data: {head}{{}},"finish_reason":"stop"}}]}}\n\n'
        'data: {"id":"r","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n'
        ': ping\n\ndata: {"x": 1}\n\ndata: [DONE]\n\n'
    )
    with ThreadedServer(script) as server:
        assert ask(server) == (200, expected.encode())


def test_line_endings_touch_events_and_leave_raw_bytes_alone() -> None:
    for eol in ("\r\n", "\r"):
        with ThreadedServer([C("\u2028汉🙂"), Raw(b"x\ny"), DONE], eol=eol) as server:
            _, body = ask(server)
        first, rest = body.split((eol * 2).encode(), 1)
        assert "\u2028汉🙂".encode() in first and b"\n" not in first.replace(eol.encode(), b"")
        assert rest == b"x\nydata: [DONE]" + (eol * 2).encode()


SCRIPT: list[Action] = [ROLE, T(1), C("汉🙂" * 30), Raw(b""), C("b"), FIN("length"), DONE]


@settings(max_examples=25, deadline=None)
@given(st.one_of(st.sampled_from(["action", "wait"]), st.integers(1, 90)))
def test_every_flush_mode_sends_the_same_bytes(flush: Any) -> None:
    with ThreadedServer(SCRIPT, flush=flush) as server, raw(server) as sock:
        sock.sendall(POST.replace(b"Host: x", b"Connection: close"))
        received = read_all(sock)
    with ThreadedServer(SCRIPT) as server, raw(server) as sock:
        sock.sendall(POST.replace(b"Host: x", b"Connection: close"))
        assert received == read_all(sock)
    assert received.endswith(b"\r\n0\r\n\r\n")


def test_actions_are_written_one_by_one_and_n_byte_writes_are_n_bytes() -> None:
    async def parts(flush: Any) -> list[bytes]:
        received = []
        async with ScriptedServer([C("a"), C("b"), C("c")], flush=flush) as server:
            loop = asyncio.get_running_loop()
            with socket.socket() as sock:
                sock.setblocking(False)
                await loop.sock_connect(sock, (server.host, server.port))
                await loop.sock_sendall(sock, POST.replace(b"Host: x", b"Connection: close"))
                while part := await loop.sock_recv(sock, 65536):
                    received.append(part)
        return received

    by_action = asyncio.run(parts("action"))
    assert 2 <= len(by_action) <= 5  # the head leaves with the first; reads may join neighbours
    assert len(asyncio.run(parts("wait"))) == 1
    whole = b"".join(by_action)
    assert len(asyncio.run(parts(3))) > len(whole) / 3 / 4


def test_waits_flush_what_came_before() -> None:
    with ThreadedServer([C("a"), T(200), C("b")], flush="wait") as server, raw(server) as sock:
        sock.sendall(POST)
        start = time.monotonic()
        assert b'"a"' in sock.recv(65536)
        first = time.monotonic() - start
        assert b'"b"' in sock.recv(65536)
        assert time.monotonic() - start >= 0.19 > first


def test_endings() -> None:
    def handler(request: Request) -> list[Action]:
        return [C("a"), {"eof": EOF, "close": Close, "rst": RST, "none": C("b")}[request.path[1:]]]

    with ThreadedServer(handler) as server:
        for path, ending in (("eof", b"0\r\n\r\n"), ("none", b"0\r\n\r\n"), ("close", b"\n\n\r\n")):
            with raw(server) as sock:
                sock.sendall(POST.replace(b"/v1/chat/completions", b"/" + path.encode()))
                if path != "close":
                    sock.settimeout(0.2)
                    data = b""
                    with pytest.raises(TimeoutError):  # the connection stays open
                        while True:
                            part = sock.recv(65536)
                            assert part
                            data += part
                else:
                    data = read_all(sock)
                    assert b"0\r\n\r\n" not in data
                assert b'"a"' in data and data.endswith(ending)
        with raw(server) as sock:
            sock.sendall(POST.replace(b"/v1/chat/completions", b"/rst"))
            with pytest.raises(ConnectionResetError):
                read_all(sock)
        assert server.aborted == 0 and server.errors == []


def test_reject_closes_before_or_after_the_request() -> None:
    with ThreadedServer(Reject) as server, raw(server) as sock:
        assert read_all(sock) == b""
        assert (server.connections, server.requests) == (1, [])
    with ThreadedServer(lambda request: [Reject]) as server, raw(server) as sock:
        sock.sendall(POST)
        assert read_all(sock) == b"" and len(server.requests) == 1
    with ThreadedServer([DONE], reject=lambda number: number % 2 == 0) as server:
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)):
            ask(server)
        assert ask(server)[0] == 200


def test_heads() -> None:
    answers: dict[str, list[Action]] = {
        "/plain": [Head(200, {"Content-Type": "text/plain"}, chunked=False), Raw(b"until the end")],
        "/json": json_reply({"a": "é"}, 201, X_Tag="t"),
        "/html": reply(b"<html>", 502),
        "/error": error_reply(429, "slow down", "RateLimit", Retry_After="2"),
        "/moved": [Head(307, {"Location": "/v1/models", "Content-Length": "0"}, chunked=False)],
    }
    with ThreadedServer(lambda request: answers[request.path]) as server:
        connection = client(server)
        seen = {}
        for path in answers:
            connection.request("POST", path, b"{}")
            answer = connection.getresponse()
            seen[path] = (answer.status, answer.headers, answer.read())
        connection.close()
        assert server.connections == 2  # only the body without a length cost a connection
    assert seen["/plain"][2] == b"until the end"
    assert seen["/json"][0] == 201 and seen["/json"][1]["X-Tag"] == "t" and json.loads(seen["/json"][2]) == {"a": "é"}
    assert (seen["/html"][0], seen["/html"][1]["Content-Type"]) == (502, "text/html")
    assert seen["/error"][1]["Retry-After"] == "2"
    assert json.loads(seen["/error"][2])["error"] == {
        "message": "slow down",
        "type": "RateLimit",
        "param": None,
        "code": 429,
    }
    assert (seen["/moved"][0], seen["/moved"][1]["Location"]) == (307, "/v1/models")


def test_requests_are_kept_and_counted() -> None:
    with ThreadedServer([DONE]) as server:
        connection = client(server)
        for number in range(3):
            connection.request("POST", f"/p?q={number}", json.dumps({"n": number}), {"X-Key": "k"})
            connection.getresponse().read()
        connection.close()
        ask(server, b"not json")
        kept = server.requests
        assert [(r.method, r.path, r.json) for r in kept[:3]] == [("POST", f"/p?q={n}", {"n": n}) for n in range(3)]
        assert [(r.number, r.connection) for r in kept] == [(0, 0), (1, 0), (2, 0), (3, 1)]
        assert kept[0].headers["x-key"] == "k"
        assert (kept[3].json, kept[3].body) == (None, b"not json")
        until(lambda: server.open_connections == 0)
        assert (server.connections, server.in_flight, server.aborted) == (2, 0, 0)


def test_peak_and_aborted() -> None:
    with ThreadedServer([C("a"), Hang(60)]) as server:
        sockets = [raw(server) for _ in range(20)]
        for sock in sockets:
            sock.sendall(POST)
        until(lambda: server.in_flight == 20)
        for sock in sockets[:15]:
            sock.close()
        until(lambda: server.in_flight == 5)
        assert (server.peak_in_flight, server.aborted) == (20, 15)
        for sock in sockets[15:]:
            sock.close()


def test_handlers_may_wait_on_one_another_and_give_locks_back_when_the_client_leaves() -> None:
    lock = asyncio.Lock()

    async def serial(request: Request) -> AsyncIterator[Action]:
        async with lock:
            yield T(request.json["ms"])
            yield C("a")

    with ThreadedServer(serial) as server:
        with raw(server) as sock:
            body = b'{"ms":60000}'
            sock.sendall(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            until(lambda: server.in_flight == 1)
        until(lambda: server.aborted == 1)
        start = time.monotonic()
        threads = [threading.Thread(target=ask, args=(server, b'{"ms":50}')) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - start >= 0.2  # one after the other
        assert server.peak_in_flight == 4


def test_defaults_for_gets() -> None:
    with ThreadedServer([DONE]) as server:
        connection = client(server)
        connection.request("GET", "/v1/models")
        listed = json.loads(connection.getresponse().read())
        assert [entry["id"] for entry in listed["data"]] == ["m"]
        connection.request("GET", "/version")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (404, b'{"detail":"Not Found"}')
        connection.close()
    with ThreadedServer(lambda r: json_reply({"data": []}) if r.method == "GET" else None) as server:
        connection = client(server)
        connection.request("GET", "/v1/models")
        assert json.loads(connection.getresponse().read()) == {"data": []}
        connection.close()
        assert ask(server)[0] == 404


def test_a_fault_in_a_handler_resets_and_is_kept() -> None:
    def broken(request: Request) -> Iterator[Action]:
        yield C("a")
        raise KeyError("oops")

    with ThreadedServer(broken) as server, raw(server) as sock:
        sock.sendall(POST)
        with pytest.raises(ConnectionResetError):
            read_all(sock)
        assert [type(error) for error in server.errors] == [KeyError]


def test_idle_connections_are_closed_but_not_busy_ones() -> None:
    with ThreadedServer([C("a"), T(300), DONE], idle_close=0.1) as server:
        with raw(server) as sock:
            assert read_all(sock) == b""  # it never asked
        with raw(server) as sock:
            sock.sendall(POST)
            assert read_all(sock).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_tls() -> None:
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with ThreadedServer(lambda r: [C("a"), RST if r.path == "/rst" else EOF], ssl=context) as server:
        assert server.url == f"https://127.0.0.1:{server.port}"
        connection = http.client.HTTPSConnection(server.host, server.port, timeout=10, context=trusting)
        connection.request("POST", "/", b"{}")
        assert b'"a"' in connection.getresponse().read()
        connection.request("POST", "/rst", b"{}")
        with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
            connection.getresponse().read()
        connection.close()


def test_it_starts_again_on_its_port() -> None:
    async def main() -> None:
        async with ScriptedServer([DONE]) as server:
            port = server.port
            await server.stop()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(server.host, port)
            await server.start()
            assert server.port == port
            assert (await asyncio.to_thread(ask, server))[0] == 200

    asyncio.run(main())


def test_a_script_that_plays_once_is_refused() -> None:
    with pytest.raises(TypeError, match="list"):
        ScriptedServer(iter([DONE]))
    with pytest.raises(ValueError, match="flush"):
        ScriptedServer([DONE], flush=0)


@given(st.binary(max_size=60), st.lists(st.integers(1, 20), max_size=5), st.binary(max_size=10))
def test_requests_are_parsed_at_every_length(body: bytes, sizes: list[int], trailing: bytes) -> None:
    chunks, rest = b"", body
    for size in [*sizes, len(body)]:
        part, rest = rest[:size], rest[size:]
        if part:
            chunks += b"%x;ext=1\r\n%b\r\n" % (len(part), part)
    chunked = b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    counted = b"POST /a HTTP/1.1\r\ncontent-length:%d\r\n\r\n%b" % (len(body), body)
    for message in (chunked, counted):
        assert all(parse_request(message[:end]) is None for end in range(len(message)))
        parsed = parse_request(message + trailing)
        assert parsed is not None
        assert (parsed[0], parsed[1], parsed[3], parsed[4]) == ("POST", "/a", body, len(message))
