"""Field case X06: headers of one's own, and secrets that must be in no output, through whole commands."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadgen.simulator.scripted import DONE, C, Head, J, Raw, Request, ThreadedServer, error_reply, reply
from tests.cases.support import BASIC, SECRET, answer, everything, loadgen, posts, subprocess_arguments, went_well
from tests.cli.command import caller

QUICK = ("-c", "2", "--requests", "6", "--output-len", "4", "--input-len", "40")


# --- X06: headers -----------------------------------------------------------------------------------------------------

# --header … → the header that must come with every request, whatever is built in.
HEADERS = {
    "X-Api-Key: k": ("x-api-key", "k"),
    "X-Route:pool-a": ("x-route", "pool-a"),
    "Host: model.example": ("host", "model.example"),
    "User-Agent: mine/1": ("user-agent", "mine/1"),
    "Accept: application/json": ("accept", "application/json"),
    "Content-Type: application/json; charset=utf-8": ("content-type", "application/json; charset=utf-8"),
    "X-Request-Id: fixed": ("x-request-id", "fixed"),
    "Accept-Encoding: gzip": ("accept-encoding", "gzip"),
    "X-Empty:": ("x-empty", ""),
}


@pytest.mark.parametrize("header", HEADERS)
def test_x06_a_header_wins_over_the_built_in_one(header: str, tmp_path: Path) -> None:
    name, value = HEADERS[header]
    with ThreadedServer(posts(answer)) as server:
        ran = loadgen("run", server.url, *QUICK, "--header", header, output=tmp_path)
        went_well(ran)
        sent = [request for request in server.requests if request.method == "POST" or name != "content-type"]
        assert {request.headers.get(name) for request in sent} == {value}


@pytest.mark.parametrize(
    "header",
    ["X-A: caf\u00e9", "X-A: a\nb", "X A: a", ": a", "no colon", "Content-Length: 5", "transfer-encoding: chunked"],
)
def test_x06_a_header_that_cannot_be_sent_is_a_mistake_of_usage(header: str, tmp_path: Path) -> None:
    ran = loadgen("run", "http://127.0.0.1:9", "--header", header, output=tmp_path)
    assert ran.code == 2
    assert "--header" in ran.err


def test_x06_several_headers_and_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server behind a gateway: every request of the command, the first GET included, carries all of them."""
    monkeypatch.setenv("LOADGEN_API_KEY", "k1")

    def strict(handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
        wanted = {"x-api-key": "k2", "x-route": "a", "authorization": "Bearer k1"}
        return lambda request: handler(request) if request.headers | wanted == request.headers else error_reply(403, "")

    with ThreadedServer(strict(posts(answer))) as server:
        flags = ("--header", "X-Api-Key: k2", "--header", "X-Route: a")
        ran = loadgen("run", server.url, *QUICK, *flags, output=tmp_path)
    went_well(ran)
    assert {r.outcome for r in ran.records()} == {"ok"}


# --- X06: secrets -----------------------------------------------------------------------------------------------------

TAG = "Wq7-{}-Lk29x"  # every place has a secret of its own


def planted(*places: str) -> tuple[dict[str, str], list[str], str]:
    """Environment, flags and address suffix with a secret in each of these places."""
    environment: dict[str, str] = {}
    flags: list[str] = []
    query = ""
    for place in places:
        secret = TAG.format(place)
        if place == "key":
            environment["LOADGEN_API_KEY"] = secret
        elif place == "variable":
            environment["MINE"] = secret
            flags += ["--api-key-env", "MINE"]
        elif place == "file":
            flags += ["--api-key-file", "FILE"]
        elif place == "header":
            flags += ["--header", f"X-Api-Key: {secret}"]
        elif place == "joined":
            flags += [f"--header=X-Auth-Token: {secret}"]
        elif place == "scheme":
            flags += ["--header", f"Authorization: Token {secret}"]
        elif place == "basic":
            flags += ["--header", f"Authorization: Basic {BASIC}"]
        elif place == "cookie":
            flags += ["--header", f"Cookie: theme=dark; session={secret}"]
        elif place == "query":
            query = f"?a=1&api-key={secret}"
        elif place == "second":
            flags.append("SECOND")
        elif place == "metrics":
            flags += ["--metrics-url", "METRICS"]
        elif place == "body":
            flags += ["--extra-body", json.dumps({"deep": [{"user_token": secret}]})]
    return environment, flags, query


PLACES = [
    ("key", "header", "cookie", "query", "body"),
    ("variable", "joined", "second"),
    ("file", "metrics"),
    ("basic",),
    ("scheme",),
]
METRICS = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1.0\nvllm:num_requests_waiting 0.0\n"


def echo(request: Request) -> str:
    """All that a server could tell of what it was sent, as some do when they refuse."""
    return json.dumps({"path": request.path, "headers": request.headers, "deep": (request.json or {}).get("deep")})


def leaky(request: Request) -> Any:
    """Answers a few requests, so that the run starts; then fails in every way, echoing what it was sent."""
    if request.method == "GET":
        return reply(METRICS, content_type="text/plain") if request.path.startswith("/metrics") else None
    n, said = request.number, echo(request)
    ways: list[Any] = [
        error_reply(400, f"bad key {said}"),
        reply(f"<html>{said}</html>".encode(), 502),
        reply(b"", 307, Location="http://127.0.0.1:9" + request.path),
        [C("a"), J({"error": {"message": said, "code": 1}})],
        [C(said)],
        [J({"id": said, "choices": []}), C("a"), DONE],
        reply(said.encode(), content_type="text/plain"),
        [Head(), Raw(b"data: " + said.encode() + b"\n\n")],
        answer(request),
    ]
    return answer(request) if n < 24 else ways[n % len(ways)]


@pytest.mark.parametrize("places", PLACES, ids="-".join)
def test_x06_no_secret_in_any_output(
    places: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One of them in a process of its own, to its very end."""
    environment, flags, query = planted(*places)
    file, runs = tmp_path / "key", tmp_path / "runs"
    file.write_text(TAG.format("file"))
    secrets = [BASIC if place == "basic" else TAG.format(place) for place in places]
    with ThreadedServer(leaky) as server:
        stand_ins = {
            "FILE": str(file),
            "SECOND": f"{server.url}?token={TAG.format('second')}",
            "METRICS": f"{server.url}/metrics?access_token={TAG.format('metrics')}",
        }
        words = (
            *("run", server.url + query, "-c", "2", "--requests", "40", "--max-error-rate", "100%"),
            *("-o", str(runs), *(stand_ins.get(flag, flag) for flag in flags)),
        )
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        if places == PLACES[0]:
            ran = subprocess.run(subprocess_arguments(*words), capture_output=True, timeout=60)
        else:
            said = caller(capfd)(*words)
            ran = subprocess.CompletedProcess(words, said.code, said.out.encode(), said.err.encode())
        heard = "".join(map(echo, server.requests))
        assert all(secret in heard for secret in secrets), "they do reach the server"
    assert ran.returncode in (0, 4), ran.stderr
    assert b"Traceback" not in ran.stderr
    seen = everything(ran, runs)
    [folder] = runs.iterdir()
    for verb, *options in (("report", "--details"), ("report", "--json"), ("export", "--all")):
        again = loadgen(verb, str(folder), *options)
        assert again.code == 0
        seen += (again.out + again.err).encode()
    assert b"bad key" in seen, "the server's own words are kept"
    assert [secret for secret in (*secrets, SECRET) if secret.encode() in seen] == []
    if "query" in places:
        assert b"api-key=***" in seen


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500])
def test_x06_no_secret_in_a_failed_preflight(status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, flags, query = planted(*PLACES[0])
    monkeypatch.setenv("LOADGEN_API_KEY", environment["LOADGEN_API_KEY"])
    with ThreadedServer(lambda request: error_reply(status, f"bad key {echo(request)}")) as server:
        ran = loadgen("run", server.url + query, *QUICK, *flags, "--model", "m", output=tmp_path)
    assert ran.code == 3
    assert "bad key" in ran.err
    assert [place for place in PLACES[0] if TAG.format(place) in ran.out + ran.err] == []


def test_x06_no_secret_in_a_dry_run_or_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADGEN_API_KEY", SECRET)
    dry = loadgen("run", f"http://h/v1?key={SECRET}", "--header", f"X-Api-Key: {SECRET}", "--dry-run")
    assert dry.code == 0
    assert SECRET not in dry.out + dry.err
    assert {"authorization", "x-api-key"} <= {*json.loads(dry.out)["headers"]}
    with ThreadedServer(posts(answer)) as server:
        ran = subprocess.run(
            subprocess_arguments("run", server.url, *QUICK, "-o", "-"), capture_output=True, timeout=60
        )
    assert ran.returncode in (0, 4)
    assert SECRET.encode() not in ran.stdout + ran.stderr


@pytest.mark.parametrize("url", [f"http://user:{SECRET}@127.0.0.1:9", f"http://{SECRET}@127.0.0.1:9/v1"])
def test_x06_a_secret_in_the_address_is_refused_without_showing_it(url: str, tmp_path: Path) -> None:
    ran = loadgen("run", url, output=tmp_path)
    assert ran.code == 2
    assert SECRET not in ran.err
