"""Preflight where it fails: the words of each failure, on real sockets; and waiting for a server that comes up late."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme

from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import Dialect, RequestOptions
from loadgen.client.exchange import HttpxSender, Timeouts
from loadgen.client.preflight import Prepared, preflight, wait_ready
from loadgen.client.remedies import PreflightError
from loadgen.client.target import resolve
from loadgen.client.transport import Access, open_client
from loadgen.simulator.scripted import (
    DONE,
    RST,
    Head,
    J,
    Raw,
    Request,
    ScriptedServer,
    ThreadedServer,
    error_reply,
    json_reply,
    reply,
)
from loadgen.workload.plain import plain_workload
from tests.client.preflights import good, posts, ready, refused

# --- failures ---------------------------------------------------------------------------------------------------------


def html(status: int, text: str) -> list[Any]:
    return [Head(status, {"Content-Type": "text/html"}), Raw(f"<html><h1>{text}</h1></html>".encode())]


def moved(where: str) -> Any:
    return json_reply({}, 307, Location=where)


WRONG_FIELD = {"detail": [{"loc": ["body", "n"], "msg": "too big", "type": "value_error"}]}
TGI = {"error": "`inputs` must have less than 9 tokens. Given: 16", "error_type": "validation"}
PAGE = b"<html><title>404 Not here</title><p>nginx"

FAILURES: list[tuple[str, Any, list[str], list[str], bool]] = [
    ("401", lambda r: error_reply(401, "no key"), ["401: no key"], ["no key was sent", "LOADGEN_API_KEY"], False),
    ("403", lambda r: error_reply(403, "no"), ["answered 403"], ["--api-key-env", "--api-key-file"], False),
    ("402", lambda r: error_reply(402, "pay"), ["answered 402"], ["credit"], False),
    ("404 path", lambda r: json_reply({"detail": "Not Found"}, 404), ["404: Not Found"], ["check the path"], True),
    ("404 model", lambda r: error_reply(404, "The model `m` is unknown."), ["unknown"], ["--model: m"], True),
    ("400", lambda r: error_reply(400, "temperature must be"), ["400: temperature must be"], ["--dry-run"], False),
    ("400 too long", lambda r: error_reply(400, "maximum context length is 5"), ["context"], ["--input-len"], False),
    ("400 name", lambda r: error_reply(400, "use 'max_completion_tokens' instead"), ["400"], ["--extra-body"], False),
    ("422 list", lambda r: json_reply(WRONG_FIELD, 422), ["422: body.n: too big"], ["--dry-run"], False),
    ("422 TGI", lambda r: json_reply(TGI, 422), ["422: `inputs` must have"], ["--input-len"], False),
    ("400 string", lambda r: json_reply({"error": "bad seed"}, 400), ["400: bad seed"], ["--extra-body"], False),
    ("400 text", lambda r: reply(b"no such tool", 400, "text/plain"), ["400: no such tool"], ["--dry-run"], False),
    ("404 page", lambda r: reply(PAGE, 404, "text/html"), ["404: 404 Not here"], ["path"], True),
    ("moved path", lambda r: moved("/v2/chat"), ["307: redirected to http://", "/v2/chat"], ["give http://"], False),
    ("moved to TLS", lambda r: moved(f"https://{r.headers['host']}{r.path}"), ["https://"], ["write https://"], False),
    ("moved nowhere", lambda r: json_reply({}, 302), ["302: redirected to nowhere"], ["check the address"], False),
    ("moved to no URL", lambda r: moved("http://[bad/x"), ["307: redirected to"], ["points to is none"], False),
    ("429", lambda r: error_reply(429, "slow down"), ["429: slow down"], ["limit"], True),
    ("500", lambda r: error_reply(500, "boom"), ["500: boom"], ["log"], True),
    ("503", lambda r: error_reply(503, "Loading model"), ["503: Loading model"], ["--wait-ready"], True),
    ("502 page", lambda r: html(502, "Bad Gateway"), ["answered 502", "Bad Gateway"], ["--wait-ready"], True),
    ("200 page", lambda r: html(200, "Welcome to nginx"), ["no event stream", "Welcome to nginx"], ["port"], False),
    ("redirect", lambda r: moved("https://other/v1?key=s3cret"), ["307", "https://other/v1"], ["points to"], False),
    ("in stream", lambda r: [J({"error": {"message": "died", "code": 500}}), DONE], ["died"], ["log"], True),
    ("reset", lambda r: [RST], ["broke"], ["log"], True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "said", "advised", "transient"), [f[1:] for f in FAILURES], ids=[f[0] for f in FAILURES]
)
def test_r07_each_failure_shows_url_status_words_and_remedy(
    answer: Any, said: list[str], advised: list[str], transient: bool
) -> None:
    error = refused(posts(answer))
    assert "http://127.0.0.1:" in error.message
    assert "/v1/chat/completions" in error.message
    assert [part for part in said if part not in error.message] == []
    assert [part for part in advised if part not in error.remedy] == []
    assert error.transient is transient
    assert "s3cret" not in error.message
    assert error.records
    assert all(record.outcome != "ok" and record.phase == "preflight" for record in error.records)


def test_a_wrong_model_names_those_there_are() -> None:
    error = refused(posts(lambda r: error_reply(404, "The model `x` does not exist.")), model="x")
    assert "--model: m" in error.remedy


@pytest.mark.parametrize(
    "broken", [[RST], [Raw(b"\x00garbage")], [Head(headers={"Content-Encoding": "gzip"}), Raw(b"x")]]
)
def test_x04_with_a_model_named_a_list_that_breaks_is_no_reason_to_end(broken: Any) -> None:
    handler = posts(good)

    def served(request: Request) -> Any:
        return broken if request.path.endswith("/models") else handler(request)

    assert ready(served, model="m").options.model == "m"
    assert refused(served).message


def test_a_wrong_path_tells_what_was_tried() -> None:
    error = refused(lambda r: json_reply({"detail": "Not Found"}, 404), model="m", suffix="/nowhere")
    assert "/nowhere/v1/chat/completions answered 404" in error.message
    assert "/nowhere/v1/models answered 404" in error.remedy
    unnamed = refused(lambda r: json_reply({"detail": "Not Found"}, 404))
    assert "/v1/models answered 404" in unnamed.message
    assert "--model" in unnamed.remedy


@pytest.mark.parametrize("status", [401, 403, 429, 503, 307])
def test_a_model_list_that_is_refused_is_told_at_once(status: int) -> None:
    error = refused(lambda r: error_reply(status, "for a reason"))
    assert f"/v1/models answered {status}" in error.message
    assert error.records == ()
    assert ready(lambda r: good(r) if r.json else error_reply(status, "no"), model="m").facts.model == "m"


def test_a_key_that_is_refused_is_not_shown() -> None:
    def handler(request: Request) -> Any:
        return error_reply(401, f"bad key {request.headers['authorization']}") if request.json else None

    error = refused(handler, access=Access(headers={"authorization": "Bearer sk-s3cret"}))
    assert "s3cret" not in str(error)
    assert "refused" in error.remedy
    assert "no key was sent" not in error.remedy


def free_port() -> int:
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_a_server_that_is_down() -> None:
    error = refused(None, url=f"http://127.0.0.1:{free_port()}")
    assert "connection refused" in error.message
    assert "port" in error.remedy
    assert error.transient


def test_a_host_that_does_not_exist() -> None:
    error = refused(None, url="http://no-such-host.invalid:8000")
    assert "no-such-host.invalid" in error.message
    assert "spelling" in error.remedy


def certificate(tmp_path: Path) -> tuple[ssl.SSLContext, str]:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return context, str(path)


def test_x07_an_unknown_certificate_and_both_ways_out(tmp_path: Path) -> None:
    context, ca_file = certificate(tmp_path)
    error = refused(None, tls=context)
    assert "TLS" in error.message
    assert "--ca-file" in error.remedy
    assert "--insecure" in error.remedy
    assert not error.transient
    assert ready(None, tls=context, access=Access(ca_file=ca_file)).facts.model == "m"
    assert ready(None, tls=context, access=Access(insecure=True)).facts.model == "m"


def test_tls_spoken_to_a_plain_server() -> None:
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()

        def answer() -> None:
            connection, _ = sock.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        error = refused(None, url=f"https://127.0.0.1:{sock.getsockname()[1]}")
        thread.join(5)
    assert "does not speak TLS" in error.message
    assert "http://" in error.remedy


def test_a_tls_server_spoken_to_plainly(tmp_path: Path) -> None:
    context, _ = certificate(tmp_path)
    with ThreadedServer(posts(good), ssl=context) as server:
        error = refused(None, url=server.url.replace("https", "http"))
    assert "https://" in error.remedy


def test_a_server_that_never_answers_is_a_timeout() -> None:
    async def hang(request: Request) -> Any:
        await asyncio.sleep(30)
        yield DONE

    error = refused(posts(hang), timeouts=Timeouts(3, 0.2, 3, 9))
    assert "no token came in time" in error.message
    assert "--first-token-timeout" in error.remedy


# --- waiting ----------------------------------------------------------------------------------------------------------


def failing(*errors: PreflightError) -> tuple[Callable[[], Awaitable[Prepared]], list[float], Prepared]:
    """An attempt that fails with each error in turn and then succeeds; the times of the attempts; what it gives."""
    left: Iterator[PreflightError] = iter(errors)
    times: list[float] = []
    done = Prepared(resolve("h"), facts=None, options=RequestOptions("m"), records=())  # type: ignore[arg-type]

    async def attempt() -> Prepared:
        times.append(anyio.current_time())
        for error in left:
            raise error
        return done

    return attempt, times, done


def loading() -> PreflightError:
    return PreflightError("loading", "wait", transient=True)


def in_virtual_time(main: Callable[[], Awaitable[Any]]) -> Any:
    import trio.testing

    return anyio.run(main, backend="trio", backend_options={"clock": trio.testing.MockClock(autojump_threshold=0)})


def test_waiting_backs_off_within_bounds_and_tells_each_error() -> None:
    async def main() -> None:
        attempt, times, done = failing(*(loading() for _ in range(8)))
        told: list[float] = []
        assert await wait_ready(attempt, 60, lambda error, pause: told.append(pause)) is done
        assert told == [0.25, 0.5, 1, 2, 4, 5, 5, 5]
        gaps = [b - a for a, b in pairwise(times)]
        assert gaps == pytest.approx(told)

    in_virtual_time(main)


def test_waiting_ends_with_the_last_error() -> None:
    async def main() -> None:
        attempt, times, _ = failing(*(loading() for _ in range(100)))
        start = anyio.current_time()
        with pytest.raises(PreflightError, match="not ready within 20 s: loading"):
            await wait_ready(attempt, 20, lambda error, pause: None)
        assert anyio.current_time() - start == pytest.approx(20)
        assert times[-1] - start < 20

    in_virtual_time(main)


def test_an_attempt_that_hangs_does_not_outlast_the_wait() -> None:
    async def main() -> None:
        with pytest.raises(PreflightError, match="not ready within 3 s"):
            await wait_ready(anyio.sleep_forever, 3, lambda error, pause: None)  # type: ignore[arg-type]

    in_virtual_time(main)


def test_what_waiting_does_not_heal_ends_it_at_once() -> None:
    async def main() -> None:
        attempt, times, _ = failing(loading(), PreflightError("answered 401", "key"))
        with pytest.raises(PreflightError, match="answered 401"):
            await wait_ready(attempt, 60, lambda error, pause: None)
        assert len(times) == 2

    in_virtual_time(main)


def test_a_server_that_starts_late_is_met() -> None:
    async def main() -> None:
        server = ScriptedServer(posts(good), port=free_port())
        target = resolve(server.url)
        ids = count(1)
        seen: list[str] = []
        async with open_client(Access(), 4, tls=False) as client:

            def make_sender(wanted: RequestOptions, dialect: Dialect) -> HttpxSender:
                return HttpxSender(client, target.url, dialect, wanted, zero_ns=0)

            async def attempt() -> Prepared:
                return await preflight(
                    target,
                    DIALECTS["chat"],
                    RequestOptions("", force_length=True),
                    plain_workload(16, 4),
                    client=client,
                    make_sender=make_sender,
                    nonce="n",
                    ids=ids,
                )

            async with anyio.create_task_group() as group:

                async def later() -> None:
                    await anyio.sleep(0.3)
                    await server.start()

                group.start_soon(later)
                result = await wait_ready(attempt, 20, lambda error, pause: seen.append(error.message))
        await server.stop()
        assert result.facts.model == "m"
        assert seen
        assert "connection refused" in seen[0]

    anyio.run(main)
