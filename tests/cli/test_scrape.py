"""The server's own metrics beside a run: its count of requests and ours, who else loads it, and pages that fail."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from loadgen.log.store import open_run
from loadgen.simulator.process import SimulatorProcess
from loadgen.simulator.script import reply
from loadgen.simulator.scripted import Request, ThreadedServer
from tests.cli.command import (
    Call,
    client_bound,
    finish,
    folder_in,
    manifest_of,
    records_of,
    run,
    serve,
    start,
    until,
    went_well,
)

SHAPE = ("--input-len", "16", "--output-len", "16")
OFTEN = ("--scrape-interval", "50ms")


@pytest.fixture(scope="module")
def simulator() -> Iterator[str]:
    with SimulatorProcess() as process:
        yield process.url


def scrapes(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "server.jsonl").read_text().splitlines()]


def step_of(call: Call, folder: Path) -> dict[str, Any]:
    step: dict[str, Any] = json.loads(call("report", folder, "--json").out)["steps"][-1]
    return step


def other_client(url: str, requests: int) -> ExitStack:
    """Keeps so many long requests running on a server until it is closed."""
    parts = urlsplit(url)
    body = json.dumps({"model": "simulated", "prompt": "a b", "max_tokens": 5000, "stream": True}).encode()
    stack = ExitStack()
    for _ in range(requests):
        sock = stack.enter_context(socket.create_connection((parts.hostname, parts.port or 80)))
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
    return stack


def metrics(script: Any, wait_ms: float = 20.0) -> Any:
    """A server whose page of metrics is `script`, or what it gives for the number of the scrape."""
    answers, count = serve(wait_ms), 0

    def handler(request: Request) -> Any:
        nonlocal count
        if request.path.startswith("/metrics"):
            count += 1
            return script(count) if callable(script) else script
        return answers(request)

    return handler


def page(running: float, waiting: float = 0.0) -> Any:
    return reply(f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n".encode())


# --- with a server that tells the truth -----------------------------------------------------------------------------


def test_the_servers_count_agrees_with_ours(tmp_path: Path, call: Call, simulator: str) -> None:
    # More than its 16 slots, so that some wait.
    said = call("run", simulator, *SHAPE, "-c", 20, "--duration", "1s", *OFTEN, "-o", tmp_path)
    folder = folder_in(tmp_path)
    assert went_well(said, folder), said.err
    lines = scrapes(folder)
    assert {line["step"] for line in lines} == {1}
    assert all(line["at_ns"] < later["at_ns"] for line, later in pairwise(lines))
    records = records_of(folder)
    assert lines[0]["at_ns"] < min(r["done_ns"] for r in records if r["step"] == 1), "from the start of the step"
    assert lines[-1]["at_ns"] > max(r["done_ns"] for r in records), "to its end"
    assert (lines[-1]["values"]["running"], lines[-1]["values"]["waiting"]) == (0, 0)
    found = manifest_of(folder)["scraping"]
    assert (found["urls"], found["interval_s"], found["scrapes_failed"]) == ([f"{simulator}/metrics"], 0.05, 0)
    assert found["scrapes"] == len(lines)
    assert {"running", "waiting", "generation_tokens"} <= set(found["found"])
    step = step_of(call, folder)
    server = step["server"]
    assert server["running"] > 10
    assert server["waiting"] > 1
    if not client_bound(folder):
        assert abs(server["in_flight"]["value"] - 20) <= 0.05 * 20 + server["edge_requests"] + 1
        assert "by its own count" in said.out
        assert "the server held" not in said.out, "no finding"
    assert step["littles_law_server_residual_share"] == pytest.approx(
        server["in_flight"]["value"] / step["concurrency_mean_requests"] - 1
    )
    again = call("report", folder, "--details")
    assert "by its own count" in again.out


def test_another_clients_load_is_a_finding(tmp_path: Path, call: Call, simulator: str) -> None:
    with other_client(simulator, 6):
        said = call("run", simulator, *SHAPE, "-c", 4, "--duration", "900ms", *OFTEN, "-o", tmp_path)
    folder = folder_in(tmp_path)
    assert went_well(said, folder), said.err
    residual = step_of(call, folder)["littles_law_server_residual_share"]
    assert residual == pytest.approx(1.5, abs=0.4)
    text = " ".join(said.out.split())
    assert "the server held" in text
    assert "in flight from here (Little's law): other traffic on the server" in text


def test_of_several_processes_one_looks(tmp_path: Path, call: Call) -> None:
    with ThreadedServer(metrics(page(4))) as server:
        said = run("run", server.url, *SHAPE, "-c", 4, "--duration", "600ms", "--workers", 2, *OFTEN, "-o", tmp_path)
        asked = [request for request in server.requests if request.path == "/metrics"]
    folder = folder_in(tmp_path)
    assert went_well(said, folder), said.err
    lines = scrapes(folder)
    # Once to see whether there is anything; and the step's end may have come between a question and its answer.
    assert 1 <= len(asked) - len(lines) <= 2
    assert all(a["at_ns"] < b["at_ns"] for a, b in pairwise(lines)), "one after the other"
    view = step_of(call, folder)["server"]
    assert client_bound(folder) or view["in_flight"]["value"] == 4, "a process that was silent leaves no window"


def test_a_kill_leaves_whole_lines(tmp_path: Path, simulator: str) -> None:
    process = start("run", simulator, *SHAPE, "-c", 4, "--duration", "60s", *OFTEN, "-o", tmp_path)

    def grown() -> bool:
        found = list(tmp_path.glob("*/server.jsonl"))
        return bool(found) and found[0].read_bytes().count(b"\n") > 5

    until(grown)
    os.kill(process.pid, signal.SIGKILL)
    finish(process)
    log = open_run(folder_in(tmp_path))
    assert len(log.server) > 5
    assert all(sample.values["running"] >= 0 for sample in log.server)


# --- with one that does not -----------------------------------------------------------------------------------------


def test_requests_held_back_on_the_way_are_a_finding(tmp_path: Path, call: Call) -> None:
    with ThreadedServer(metrics(page(1))) as server:
        said = call("run", server.url, *SHAPE, "-c", 4, "--duration", "600ms", *OFTEN, "-o", tmp_path)
    text = " ".join(said.out.split())
    assert "the server held 1.00 ±0.00 requests in the mean where" in text
    assert "a proxy or gateway that holds requests back" in text


def test_a_scrape_that_fails_is_counted_and_nothing_worse(tmp_path: Path, call: Call) -> None:
    with ThreadedServer(metrics(lambda n: page(4) if n == 1 else reply(b"oops", 500))) as server:
        said = call("run", server.url, *SHAPE, "-c", 4, "--requests", 20, *OFTEN, "-o", tmp_path)
    folder = folder_in(tmp_path)
    assert went_well(said, folder), said.err
    lines = scrapes(folder)
    assert lines
    assert {line["error"] for line in lines} == {"answered 500"}
    found = manifest_of(folder)["scraping"]
    assert (found["scrapes"], found["scrapes_failed"]) == (0, len(lines))
    assert step_of(call, folder)["littles_law_server_residual_share"] is None


@pytest.mark.parametrize(
    "script",
    [reply(b"Not Found", 404), reply(b"<html></html>"), reply(b"up 1\n")],
    ids=["missing", "a-page", "unknown"],
)
def test_a_server_without_metrics_is_measured_without(tmp_path: Path, call: Call, script: Any) -> None:
    with ThreadedServer(metrics(script)) as server:
        said = call("run", server.url, *SHAPE, "-c", 2, "--requests", 4, *OFTEN, "-o", tmp_path)
        asked = [request for request in server.requests if request.path == "/metrics"]
    folder = folder_in(tmp_path)
    assert went_well(said, folder), said.err
    assert len(asked) == 1
    assert not (folder / "server.jsonl").exists()
    assert manifest_of(folder)["scraping"]["found"] == []
    assert step_of(call, folder)["server"] is None


def test_metrics_elsewhere_and_of_several_replicas(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADGEN_API_KEY", "hush")
    with (
        ThreadedServer(serve(20.0)) as server,
        ThreadedServer(metrics(page(3, 1))) as a,
        ThreadedServer(metrics(page(1))) as b,
    ):
        where = ("--metrics-url", a.url, "--metrics-url", f"{b.url}/metrics?token=hush")
        said = call("run", server.url, *SHAPE, "-c", 5, "--duration", "600ms", *where, *OFTEN, "-o", tmp_path)
        paths = [request.path for request in server.requests]
        headers = [request.headers for request in (*a.requests, *b.requests)]
    folder = folder_in(tmp_path)
    assert went_well(said, folder), said.err
    assert "/metrics" not in paths
    assert headers
    assert not any("authorization" in found for found in headers), "the key is the load's alone"
    view = step_of(call, folder)["server"]
    assert view["in_flight"]["value"] == 5
    assert view["parts"] == {f"{a.url}/metrics": 4, f"{b.url}/metrics?token=***": 1}
    kept = (folder / "manifest.json").read_text() + (folder / "server.jsonl").read_text()
    assert "hush" not in kept


def test_an_address_of_metrics_that_tells_nothing_is_said_before_the_load(tmp_path: Path, call: Call) -> None:
    with ThreadedServer(serve()) as server:
        said = call("run", server.url, *SHAPE, "--metrics-url", f"{server.url}/nothing", "-o", tmp_path)
    assert said.code == 3
    assert "/nothing tell nothing: answered 404" in " ".join(said.err.split())
    assert "--metrics-url" in said.err


@pytest.mark.parametrize(
    "flags", [("--no-scrape", "--metrics-url", "http://h"), ("--no-scrape", *OFTEN), ("--metrics-url", "ftp://h")]
)
def test_flags_that_cannot_be_meant(call: Call, flags: tuple[str, ...]) -> None:
    assert call("run", "http://127.0.0.1:9", *flags).code == 2


def test_no_scrape_asks_for_nothing(tmp_path: Path, call: Call) -> None:
    with ThreadedServer(metrics(page(4))) as server:
        call("run", server.url, *SHAPE, "-c", 2, "--requests", 4, "--no-scrape", "-o", tmp_path)
        assert not any(request.path == "/metrics" for request in server.requests)
    assert manifest_of(folder_in(tmp_path))["scraping"] is None


def test_the_stream_on_stdout_carries_the_scrapes(tmp_path: Path, call: Call) -> None:
    with ThreadedServer(metrics(page(2))) as server:
        said = call("run", server.url, *SHAPE, "-c", 2, "--requests", 10, *OFTEN, "-o", "-")
    kinds = [json.loads(line)["kind"] for line in said.out.splitlines()]
    assert kinds.count("server") >= 2
    path = tmp_path / "log.jsonl"
    path.write_text(said.out)
    assert len(open_run(path).server) == kinds.count("server")
    assert step_of(call, path)["server"]["running"] == 2
