"""The ground-truth server, read by readers that are not ours: http.client and plain sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.simulator.truth_clock import Lateness
from loadgen.simulator.truth_process import Placement, TruthServers, place
from loadgen.simulator.truth_wire import token_template

CONTENT = re.compile(r"R(\d{19}) M(\d{19}) I(\d{6})")


class Answer(NamedTuple):
    events: list[Any]  # parsed, without [DONE]
    tokens: list[tuple[int, int, int]]  # realtime, monotonic, index
    arrival_ns: int


@pytest.fixture(scope="module")
def servers() -> Iterator[TruthServers]:
    with TruthServers(1) as running:
        yield running


@pytest.fixture(scope="module")
def port(servers: TruthServers) -> int:
    return urlsplit(servers.urls[0]).port or 0


@pytest.fixture
def connection(port: int) -> Iterator[http.client.HTTPConnection]:
    made = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    yield made
    made.close()


def ask(connection: http.client.HTTPConnection, **body: Any) -> Answer:
    connection.request("POST", "/v1/chat/completions", json.dumps({"model": "truth", "stream": True, **body}))
    response = connection.getresponse()
    assert response.status == 200
    assert response.headers.get_content_type() == "text/event-stream"
    return parse(response.read())


def parse(body: bytes) -> Answer:
    """The body by the book: blocks split at empty lines, one `data:` line each, `[DONE]` last."""
    blocks = body.decode().split("\n\n")
    assert blocks.pop() == ""
    assert blocks.pop() == "data: [DONE]"
    events = [json.loads(block.removeprefix("data: ")) for block in blocks]
    matches = [
        match for event in events for choice in event["choices"] if (match := CONTENT.fullmatch(content(choice)))
    ]
    return Answer(events, [tuple(map(int, match.groups())) for match in matches], events[0]["truth"]["arrival_ns"])


def content(choice: dict[str, Any]) -> str:
    return choice["delta"].get("content", "")


def truth(connection: http.client.HTTPConnection, *, reset: bool = False) -> dict[str, Any]:
    connection.request("GET", "/truth?reset" if reset else "/truth")
    value: dict[str, Any] = json.loads(connection.getresponse().read())
    return value


def test_an_answer_is_a_whole_chat_stream(connection: http.client.HTTPConnection) -> None:
    answer = ask(connection, max_tokens=4, ttft_us=1000, itl_us=1000)
    role, *tokens, finish, usage = answer.events
    assert {event["id"] for event in answer.events} == {role["id"]}
    assert {event["object"] for event in answer.events} == {"chat.completion.chunk"}
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [token["choices"][0]["finish_reason"] for token in tokens] == [None] * 4
    assert finish["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}]
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 11, "completion_tokens": 4, "total_tokens": 15}
    assert [index for _, _, index in answer.tokens] == [0, 1, 2, 3]


def test_stamps_rise_lie_within_the_request_and_are_never_ahead_of_the_schedule(
    connection: http.client.HTTPConnection,
) -> None:
    before = time.monotonic_ns()
    answer = ask(connection, max_tokens=20, ttft_us=5000, itl_us=2000)
    after = time.monotonic_ns()
    sent = [monotonic for _, monotonic, _ in answer.tokens]
    assert answer.events[0]["truth"]["stamp"] == "kernel"
    assert before < answer.arrival_ns < sent[0]
    assert sent[-1] < after
    assert sent == sorted(sent)
    assert all(at >= answer.arrival_ns + 5_000_000 + 2_000_000 * index for _, at, index in answer.tokens)
    offset = time.time_ns() - time.monotonic_ns()
    assert all(abs(real - monotonic - offset) < 1_000_000_000 for real, monotonic, _ in answer.tokens)


@pytest.mark.parametrize("tokens", [0, 1, 2])
def test_short_answers_end_as_they_should(connection: http.client.HTTPConnection, tokens: int) -> None:
    answer = ask(connection, max_tokens=tokens, ttft_us=0, itl_us=0)
    assert len(answer.tokens) == tokens
    assert answer.events[-1]["usage"]["completion_tokens"] == tokens


def together(port: int, streams: int, **body: Any) -> list[list[int]]:
    """The send stamps of that many answers at once, of each answer by the server's round."""
    answers: list[Answer] = []

    def one() -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            answers.append(ask(connection, **body))

    threads = [threading.Thread(target=one) for _ in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == streams
    assert len({answer.events[0]["id"] for answer in answers}) == streams
    return [[at for _, at, _ in answer.tokens] for answer in answers]


@pytest.mark.parametrize("lockstep", [True, False])
def test_lockstep_steps_all_streams_at_once_and_smooth_spreads_them(port: int, lockstep: bool) -> None:
    itl_ns = 40_000_000

    def in_order() -> bool:
        sent = together(port, 8, max_tokens=20, ttft_us=20_000, itl_us=itl_ns // 1000, lockstep=lockstep)
        phases = [statistics.median(at % itl_ns for at in stamps) for stamps in sent]
        if lockstep:  # on one grid, and never before a step is due
            return max(phases) < itl_ns / 4
        return max(phases) - min(phases) > itl_ns / 2

    assert any(in_order() for _ in range(4))  # a machine that stalls for a second puts everything out of step


def test_a_connection_serves_one_request_after_the_other_also_pipelined_and_in_pieces(port: int) -> None:
    body = json.dumps({"max_tokens": 2, "ttft_us": 1000, "itl_us": 1000}).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request:
            sock.sendall(bytes((byte,)))
        sock.sendall(request * 2)
        received = b""
        while received.count(b"0\r\n\r\n") < 3:
            received += sock.recv(65536)
    assert received.count(b"HTTP/1.1 200 OK\r\n") == received.count(b"data: [DONE]") == 3
    assert len(re.findall(rb" M\d{19} I00000[01]", received)) == 6


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nothing", None, 404),
        ("POST", "/v1/completions", "{}", 404),
        ("POST", "/v1/chat/completions", "no JSON", 400),
        ("POST", "/v1/chat/completions", "[]", 400),
        ("GET", "/v1/models", None, 200),
    ],
)
def test_other_requests_are_answered_and_keep_the_connection(
    connection: http.client.HTTPConnection, method: str, path: str, body: str | None, status: int
) -> None:
    for _ in range(2):
        connection.request(method, path, body)
        response = connection.getresponse()
        assert (response.status, bool(json.loads(response.read()))) == (status, True)


def test_tls_is_known_by_the_servers_own_certificate(servers: TruthServers) -> None:
    port = urlsplit(servers.tls_urls[0]).port
    context = ssl.create_default_context(cafile=servers.ca_file)
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
    with contextlib.closing(connection):
        for _ in range(2):
            before = time.monotonic_ns()
            answer = ask(connection, max_tokens=5, ttft_us=1000, itl_us=1000)
            assert answer.events[0]["truth"]["stamp"] == "kernel"
            assert before < answer.arrival_ns < answer.tokens[0][1]
            assert [index for _, _, index in answer.tokens] == list(range(5))
    stranger = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=ssl.create_default_context())
    with contextlib.closing(stranger), pytest.raises(ssl.SSLCertVerificationError):
        stranger.request("GET", "/truth")


def test_it_says_when_it_was_the_limit_itself(connection: http.client.HTTPConnection) -> None:
    ask(connection, max_tokens=2, ttft_us=1000, itl_us=200_000)
    truth(connection, reset=True)
    ask(connection, max_tokens=3000, ttft_us=0, itl_us=1)  # a million tokens/s, which no interpreter sends
    told = truth(connection, reset=True)
    assert told["limited"] is True
    assert told["late_share"] > 0.5
    assert told["tokens"] == 3000
    assert told["lateness_us"]["p50"] <= told["lateness_us"]["p99"] <= told["lateness_us"]["max"]
    assert told["requests"] == told["active_max"] == 1
    after = truth(connection)
    assert (after["tokens"], after["late_share"], after["limited"]) == (0, 0.0, False)
    assert after["lateness_us"] == {"p50": None, "p99": None, "max": None}


def test_a_client_that_does_not_read_is_waited_for_and_not_called_late(port: int) -> None:
    tokens = 40_000  # 12 MB: more than the sockets' buffers take
    body = json.dumps({"max_tokens": tokens, "ttft_us": 0, "itl_us": 0}).encode()
    with (
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as other,
        socket.create_connection(("127.0.0.1", port), timeout=20) as sock,
    ):
        truth(other, reset=True)
        sock.sendall(b"POST /chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        deadline = time.monotonic() + 20
        while not (told := truth(other))["blocked"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert told["blocked"] and told["active"] == 1 and told["tokens"] < tokens
        received = bytearray()
        while not received.endswith(b"0\r\n\r\n"):
            received += sock.recv(1 << 20)
    stamps = [(int(at), int(index)) for at, index in re.findall(rb" M(\d{19}) I(\d{6})", received)]
    assert [index for _, index in stamps] == list(range(tokens))
    assert stamps == sorted(stamps)


def test_a_client_that_goes_away_is_forgotten(port: int) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as other:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
            sock.sendall(b'POST /chat/completions HTTP/1.1\r\nContent-Length: 17\r\n\r\n{"max_tokens":99}')
            sock.recv(100)
            assert truth(other)["active"] == 1
        deadline = time.monotonic() + 20
        while truth(other)["active"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert truth(other)["active"] == 0
        assert len(ask(other, max_tokens=3, ttft_us=0, itl_us=1000).tokens) == 3


def test_the_servers_die_with_their_parent() -> None:
    script = (
        "import time\nfrom loadgen.simulator.truth_process import TruthServers\n"
        "with TruthServers(2) as servers:\n    print(*servers.pids, flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2 and all(map(alive, pids))
        parent.send_signal(signal.SIGKILL)
        parent.wait(10)
    deadline = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(alive, pids))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_stopping_leaves_nothing_behind() -> None:
    with TruthServers(2) as servers:
        folder, pids = Path(servers.ca_file).parent, servers.pids
        assert len(set(servers.urls + servers.tls_urls)) == 4
        assert (folder / "key.pem").stat().st_mode & 0o077 == 0
        if len(os.sched_getaffinity(0)) > 1:
            assert all(os.sched_getaffinity(pid) == os.sched_getaffinity(0) for pid in pids)
    assert not folder.exists()
    assert not any(map(alive, pids))


def test_a_server_keeps_to_its_cpu() -> None:
    cpu = max(os.sched_getaffinity(0))
    with TruthServers(1, cpus=(cpu,)) as servers:
        assert os.sched_getaffinity(servers.pids[0]) == {cpu}


@pytest.mark.parametrize(
    ("siblings", "servers", "expected"),
    [
        ({0: (0,)}, None, Placement((), ())),
        ({0: (0,), 1: (1,)}, None, Placement((0,), (1,))),
        ({0: (0,), 1: (1,)}, 2, Placement((), ())),
        ({0: (0, 1), 1: (0, 1)}, None, Placement((0,), (1,))),  # one core: its threads apart
        ({0: (0, 2), 2: (0, 2), 1: (1, 3), 3: (1, 3)}, None, Placement((0, 2), (1,))),  # two cores: one each
        ({0: (0, 2), 2: (0, 2), 1: (1, 3), 3: (1, 3)}, 2, Placement((0, 1), (2, 3))),
        ({4: (4,), 5: (5,), 6: (6,), 7: (7,), 9: (8, 9)}, None, Placement((4, 5), (6, 7, 9))),
        ({cpu: (cpu,) for cpu in range(8)}, 1, Placement(tuple(range(7)), (7,))),
    ],
)
def test_client_and_servers_get_cpus_of_their_own_where_there_are_enough(
    siblings: dict[int, tuple[int, ...]], servers: int | None, expected: Placement
) -> None:
    assert place(siblings, servers) == expected


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), max_size=80))
def test_lateness_keeps_the_last_steps_and_counts_them_all(steps: list[tuple[int, int]]) -> None:
    lateness = Lateness(kept=16)
    for late_ns, tolerance_ns in steps:
        lateness.add(late_ns, tolerance_ns)
    told = lateness.report()
    late = sum(late_ns > tolerance_ns for late_ns, tolerance_ns in steps)
    assert lateness.steps == len(steps)
    assert told["late_share"] == (late / len(steps) if steps else 0.0)
    assert told["limited"] == (late > 0.01 * len(steps))
    if steps:
        kept = sorted(late_ns for late_ns, _ in steps[-16:])
        assert told["lateness_us"]["max"] == max(late_ns for late_ns, _ in steps) / 1000
        assert kept[0] / 1000 <= told["lateness_us"]["p50"] <= told["lateness_us"]["p99"] == kept[-1] / 1000
    lateness.reset()
    assert lateness.report()["lateness_us"]["p50"] is None


def test_a_token_is_one_chunk_of_the_same_length_whatever_its_stamps() -> None:
    template = token_template(b"00deadbeef")
    for stamps in ((0, 0, 0), (1, 2, 3), (9_999_999_999_999_999_999, 1_234_567_890_123_456_789, 999_999)):
        size, _, rest = (template % stamps).partition(b"\r\n")
        payload, end = rest[:-2], rest[-2:]
        assert (len(payload), end) == (int(size, 16), b"\r\n")
        text = json.loads(payload.removeprefix(b"data: "))["choices"][0]["delta"]["content"]
        assert tuple(map(int, (text[1:20], text[22:41], text[43:49]))) == stamps
