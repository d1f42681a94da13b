"""`run` and `sweep` from end to end: waiting for a server, dry runs, the log on stdout, quiet and JSON."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from loadgen.simulator.scripted import Request, ThreadedServer, error_reply, models_reply
from tests.cli.command import (
    COMMAND,
    ROOT,
    Call,
    answer,
    client_bound,
    each_level_once,
    finish,
    folder_in,
    generations,
    manifest_of,
    records_of,
    run,
    serve,
    start,
    went_well,
)

SHAPE = ("--input-len", "32", "--output-len", "4")
SHORT = (*SHAPE, "-c", "2", "--requests", "6")


pytestmark = pytest.mark.usefixtures("elsewhere")


def strict(text: str) -> Any:
    """JSON as the standard has it: no NaN, no Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


# --- waiting --------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def test_a_server_that_comes_up_late_is_waited_for(call: Call, tmp_path: Path) -> None:
    def later() -> None:
        time.sleep(late_s)
        with ThreadedServer(handler, port=port):
            end.wait(60)

    def handler(request: Request) -> Any:
        """It refuses first, then loads for a while, then answers."""
        served.append(time.monotonic())
        return error_reply(503, "loading the model") if served[-1] < served[0] + 0.6 else serve()(request)

    for late_s in (0.7, 3.0, 12.0):  # the later, the slower this machine is to ask for the first time
        port, served, end = free_port(), list[float](), threading.Event()
        thread = threading.Thread(target=later)
        thread.start()
        output = tmp_path / str(late_s)
        try:
            said = call("run", f"http://127.0.0.1:{port}", *SHORT, "--wait-ready", "60s", "-o", output)
        finally:
            end.set()
            thread.join()
        assert went_well(said, folder_in(output)), said.err
        if "nothing answers" in said.err:
            break
    assert "not ready: nothing answers" in said.err and "loading the model" in said.err
    assert manifest_of(folder_in(output))["status"] == "complete"


def test_a_server_that_never_comes_up_is_given_up_with_its_last_error(call: Call, tmp_path: Path) -> None:
    said = call("run", f"http://127.0.0.1:{free_port()}", *SHORT, "--wait-ready", "400ms")
    assert said.code == 3
    assert "not ready within 0.4 s: nothing answers" in said.err.splitlines()[-2]
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_is_not_waited_for(call: Call) -> None:
    with ThreadedServer(lambda request: error_reply(401, "who are you?")) as server:
        before = time.monotonic()
        said = call("run", server.url, *SHORT, "--wait-ready", "1h")
    assert said.code == 3 and "who are you?" in said.err
    assert time.monotonic() - before < 20


# --- without sending ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_a_dry_run_shows_address_and_body_and_sends_nothing(call: Call, tmp_path: Path, verb: str) -> None:
    with ThreadedServer(serve()) as server:
        said = call(
            *(verb, server.url + "/v1/", "--dry-run", *SHAPE, "--model", "m", "--temperature", "0.5"),
            *("--header", "X-Api-Key: secret-1", "--extra-body", '{"top_k": 3, "stream_options": {"more": true}}'),
        )
        assert server.connections == 0
    shown = strict(said.out)
    assert (said.code, said.err) == (0, "")
    assert (shown["method"], shown["url"]) == ("POST", server.url + "/v1/chat/completions")
    body = shown["body"]
    assert (body["model"], body["temperature"], body["top_k"], body["max_tokens"]) == ("m", 0.5, 3, 4)
    assert body["stream_options"] == {"include_usage": True, "more": True}
    assert "x-api-key" in shown["headers"] and "secret-1" not in said.out
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_given_bodies_shows_the_first(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 7, "seed": 1}\n"second"\n')
    said = call("run", "http://127.0.0.1:9", "--dry-run", "--prompts", file)
    body = strict(said.out)["body"]
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert (body["max_tokens"], body["seed"], body["stream"]) == (7, 1, True)


def test_a_dry_run_of_the_simulator_starts_none(call: Call) -> None:
    assert strict(call("run", "--simulate", "--dry-run").out)["url"].endswith("/v1/chat/completions")


# --- what is printed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [("run", "-c", "2"), ("sweep", "--levels", "1,2")])
@pytest.mark.parametrize(
    ("slo", "codes"),  # eight requests prove no p95
    [((), (0,)), (("--slo", "ttft_p95=1s"), (4,)), (("--slo", "ttft=1us tpot=1us"), (1, 4))],
    ids=["no objective", "undecided", "broken"],
)
def test_json_is_the_whole_of_stdout_and_strict(
    call: Call, tmp_path: Path, verb: tuple[str, ...], slo: tuple[str, ...], codes: tuple[int, ...]
) -> None:
    with ThreadedServer(serve()) as server:
        said = call(verb[0], server.url, *SHAPE, *verb[1:], *slo, "--requests", "8", "--json")
    result = strict(said.out)
    assert said.err == ""
    folder = folder_in(tmp_path / "results")
    assert went_well(said, folder, *codes), said
    each_level_once(folder)
    levels = [step["max_concurrency"] for step in result["steps"]]
    assert levels == ([2] if verb[0] == "run" else [1] if client_bound(folder) and len(levels) == 1 else [1, 2])
    assert all(step["completed"] == 8 and step["failed"] == 0 for step in result["steps"])


def test_json_of_a_run_in_which_everything_failed(call: Call) -> None:
    seen: list[Request] = []

    def handler(request: Request) -> Any:
        if request.method == "GET":
            return models_reply(["m"])
        seen.append(request)
        return answer(request) if "-p-" in request.headers["x-request-id"] else error_reply(503, "busy")

    with ThreadedServer(handler) as server:
        said = call("run", server.url, *SHAPE, "-c", "4", "--requests", "20", "--json")
    assert said.code == 3
    strict(said.out)


def test_a_server_that_fails_under_load_is_told_with_its_words(call: Call, tmp_path: Path) -> None:
    seen: list[Request] = []

    def handler(request: Request) -> Any:
        if request.method == "GET":
            return models_reply(["m"])
        seen.append(request)
        return answer(request) if "-p-" in request.headers["x-request-id"] else error_reply(503, "no room in the queue")

    with ThreadedServer(handler) as server:
        said = call("run", server.url, *SHAPE, "-c", "4")
    assert said.code == 3
    assert "no room in the queue" in said.out, "the words of what failed in the warm-up too"
    assert len(records_of(folder_in(tmp_path / "results"))) == len(seen)


def test_quiet_prints_the_result_and_nothing_else(call: Call, tmp_path: Path) -> None:
    with ThreadedServer(serve()) as server:
        quiet = call("run", server.url, *SHORT, "--quiet", "-o", "quiet")
        loud = call("run", server.url, *SHORT)
    assert went_well(quiet, folder_in(tmp_path / "quiet")) and quiet.err == ""
    assert quiet.out.startswith("target ") and "\nlog " in quiet.out
    assert "plan " in loud.err and loud.out.startswith("target ")


def test_the_key_is_nowhere_in_what_is_kept(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-1234567890")
    arguments = ["run", "", *SHORT, "--api-key-env", "MY_KEY", "--header", "X-Other: hidden-value"]
    with ThreadedServer(serve()) as server:
        arguments[1] = server.url + "?api_key=query-secret"
        monkeypatch.setattr(sys, "argv", ["loadgen", *arguments])
        said = call(*arguments)
        assert all(request.headers["authorization"] == "Bearer sk-1234567890" for request in server.requests)
        assert all(request.headers["x-other"] == "hidden-value" for request in server.requests)
        assert all(request.path.endswith("?api_key=query-secret") for request in generations(server.requests))
    assert went_well(said, folder_in(tmp_path / "results")), said.err
    kept = said.out + said.err
    kept += "".join(path.read_text() for path in folder_in(tmp_path / "results").iterdir())
    for secret in ("sk-1234567890", "hidden-value", "query-secret"):
        assert secret not in kept


# --- the log as a stream --------------------------------------------------------------------------------------------


def test_the_log_on_stdout_is_read_by_report_and_export(call: Call, tmp_path: Path) -> None:
    with ThreadedServer(serve()) as server:
        said = call("run", server.url, *SHORT, "-o", "-")
        sent = len(generations(server.requests))
    assert said.code in (0, 4), said.err
    assert "answer" in said.err, "the result goes to stderr"
    lines = [strict(line) for line in said.out.splitlines()]
    assert [line["kind"] for line in lines].count("request") == sent
    assert lines[-1]["kind"] == "manifest" and lines[-1]["manifest"]["status"] == "complete"
    stream = tmp_path / "stream"
    stream.write_text(said.out)
    report = call("report", stream, "--json")
    assert [step["completed"] for step in strict(report.out)["steps"]] == [6]
    rows = call("export", stream).out.splitlines()
    assert len(rows) == 1 + 6
    with stream.open("rb") as file:
        piped = subprocess.run(
            [*COMMAND, "report", "-"], stdin=file, capture_output=True, cwd=ROOT, timeout=60, check=False
        )
    assert piped.returncode == 0 and b"Traceback" not in piped.stderr
    assert list(tmp_path.iterdir()) == [stream], "no folder"


def test_a_run_piped_straight_into_report() -> None:
    with ThreadedServer(serve()) as server:
        first = start("run", server.url, *SHORT, "-o", "-", "--quiet")
        second = start("report", "-", stdin=first.stdout)
        assert first.stdout is not None
        first.stdout.close()
        first.stdout = None
        told = finish(second)
        said = finish(first)
    assert said.code in (0, 4) and told.code == 0, said.err + told.err
    assert "6 " in told.out and "0 of 6" in told.out


@pytest.mark.parametrize("args", [("report",), ("export", "--all")])
def test_a_reader_that_leaves_early(tmp_path: Path, args: tuple[str, ...]) -> None:
    """`loadgen report RUN | head -1`, with more to say than a pipe holds."""
    source, sink = os.pipe()
    small = hasattr(fcntl, "F_SETPIPE_SZ") and fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, 4096) == 4096
    rows = "".join(f"r{i},{i},{i + 0.5},{i + 1},10,5,{i + 1},{i + 1}\n" for i in range(100 if small else 800))
    log = tmp_path / "log.csv"
    log.write_text("request_id,start_ts,first_token_ts,end_ts,input_tokens,output_tokens,step,concurrency\n" + rows)
    process = start(args[0], log, *args[1:], stdout=sink)
    os.close(sink)
    assert process.stderr is not None
    os.read(source, 10)
    os.close(source)
    try:
        assert process.wait(60) == 0
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_help_is_fast_and_fits_its_terminal() -> None:
    took = []
    for _ in range(3):
        before = time.monotonic()
        said = run("--help")
        took.append(time.monotonic() - before)
        assert said.code == 0 and said.out.startswith("Usage: loadgen")
    assert min(took) < 1.0, "heavy imports are lazy"


@pytest.mark.parametrize("verb", ["run", "sweep", "report", "export", "simulate"])
@pytest.mark.parametrize("width", [80, 110])
def test_the_help_of_each_verb(call: Call, monkeypatch: pytest.MonkeyPatch, verb: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    said = call(verb, "--help")
    assert said.code == 0 and "Examples:" in said.out
    options = said.out.split("Examples:")[0].splitlines()
    assert max(map(len, options)) <= width
    if verb in ("run", "sweep"):
        heads = [line for line in options if line.endswith(":") and not line.startswith(" ")]
        assert heads[:3] == ["Target:", "Load:", "Workload:"] and 10 <= len(heads) == len(set(heads))
