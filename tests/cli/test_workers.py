"""`--workers`: several processes, one run. What they were told to share, and what is left when some of them die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

from loadgen.simulator.scripted import ThreadedServer
from tests.cli.command import (
    Call,
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
    until,
    went_well,
)

SHAPE = ("--input-len", "32", "--output-len", "4")


def children(process: subprocess.Popen[bytes]) -> list[int]:
    """Its own children, in the order they were started."""
    try:
        return sorted(map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()))
    except OSError:
        return []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("requests-*.jsonl"))


def test_a_sweep_by_three_is_one_log(tmp_path: Path, call: Call) -> None:
    levels = (1, 2, 5)  # a level is shared by no more than it can be dealt to
    with ThreadedServer(serve(40.0)) as server:
        said = run(
            *("sweep", server.url, *SHAPE, "--levels", "1,2,5", "--requests", "20", "--workers", "3"),
            *("-o", tmp_path),
        )
        got = generations(server.requests)
    folder = folder_in(tmp_path)
    assert went_well(said, folder), said.err
    assert not parts(folder), "merged"
    records = records_of(folder)
    assert Counter(r["id"] for r in records) == Counter(
        request.headers["x-request-id"].partition("-")[2] for request in got
    )
    each_level_once(folder)
    steps = [json.loads(line)["observation"] for line in (folder / "steps.jsonl").read_text().splitlines()]
    done = levels[: len(steps)]
    assert done == levels or (done and client_bound(folder))
    assert [step["workers"] for step in steps] == [min(3, level) for level in done]
    assert [step["in_flight_peak"] for step in steps] == list(done)
    for step, level in enumerate(done, 1):
        mine = [r for r in records if r["step"] == step]
        assert sum(r["phase"] == "measured" for r in mine) == 20
        assert {r["worker"] for r in mine} == set(range(min(3, level)))
        assert {r["concurrency"] for r in mine} == {level}
    assert manifest_of(folder)["status"] == "complete"
    assert manifest_of(folder)["plan"]["workers"] == 3
    if len(done) == 3:
        assert "3 workers" in call("report", folder, "--details").out
    again = call("report", folder, "--json")
    assert again.code == 0 and len(json.loads(again.out)["steps"]) == len(done)


def test_a_rate_by_two_and_no_token_log(tmp_path: Path) -> None:
    with ThreadedServer(serve(30.0)) as server:
        said = run(
            *("run", server.url, *SHAPE, "--rate", "40", "--requests", "30", "--workers", "2"),
            *("--no-token-log", "--seed", "5", "-o", tmp_path),
        )
        got = generations(server.requests)
    assert went_well(said, folder_in(tmp_path)), said.err
    records = records_of(folder_in(tmp_path))
    assert len(records) == len(got)
    load = [r for r in records if r["step"] == 1]
    assert sorted(r["id"] for r in load) == [f"s1-{k:06d}" for k in range(len(load))]
    assert sum(r["phase"] == "measured" for r in load) == 30
    assert {r["worker"] for r in load} == {0, 1} and not any("events" in r for r in load)


def test_one_stream_is_one_process(tmp_path: Path, call: Call) -> None:
    said = call("run", "http://127.0.0.1:9", "--workers", "2", "-o", "-")
    assert said.code == 2 and "--workers" in said.err and "Traceback" not in said.err
    for wrong in ("0", "-1", "two", "1.5"):
        said = call("run", "http://127.0.0.1:9", "--workers", wrong, "-o", tmp_path)
        assert said.code == 2 and "--workers" in said.err


def test_ctrl_c_drains_every_worker(tmp_path: Path, call: Call) -> None:
    with ThreadedServer(serve(300.0)) as server:
        process = start("run", server.url, *SHAPE, "-c", "4", "--workers", "2", "-o", tmp_path)
        until(lambda: len(generations(server.requests)) >= 12 or process.poll() is not None)
        assert process.poll() is None, finish(process)
        workers = children(process)
        os.kill(process.pid, signal.SIGINT)
        said = finish(process, 30)
        assert said.code == 130 and "Traceback" not in said.err, said.err
        got = generations(server.requests)
    records = records_of(folder_in(tmp_path))
    assert {r["id"] for r in records} == {request.headers["x-request-id"].partition("-")[2] for request in got}
    assert {r["outcome"] for r in records} == {"ok"}, "what was in flight came to its end"
    assert len(workers) == 2 and not any(map(alive, workers))
    assert not parts(folder_in(tmp_path))
    assert manifest_of(folder_in(tmp_path))["status"] == "interrupted"
    assert call("report", folder_in(tmp_path)).code == 0


def test_r02_a_killed_run_leaves_parts_that_report_reads(tmp_path: Path, call: Call) -> None:
    with ThreadedServer(serve(20.0)) as server:
        process = start("run", server.url, *SHAPE, "-c", "4", "--workers", "2", "-o", tmp_path)
        until(lambda: len(generations(server.requests)) >= 30 or process.poll() is not None)
        assert process.poll() is None, finish(process)
        workers = children(process)
        os.kill(process.pid, signal.SIGKILL)
        assert finish(process).code == -signal.SIGKILL
        until(lambda: not any(map(alive, workers)))
        until(lambda: server.open_connections == 0)
        got = {request.headers["x-request-id"].partition("-")[2] for request in generations(server.requests)}
    folder = folder_in(tmp_path)
    assert len(parts(folder)) == 2
    said = call("report", folder, "--json")
    assert said.code == 0, said.err
    exported = call("export", folder, "--format", "jsonl", "--all")
    ids = {json.loads(line)["id"] for line in exported.out.splitlines() if '"id"' in line}
    assert len(got - ids) <= 4 and ids <= got, "all but what was in flight"


def test_r15_a_killed_worker_voids_the_step(tmp_path: Path, call: Call) -> None:
    with ThreadedServer(serve(20.0)) as server:
        process = start("run", server.url, *SHAPE, "-c", "4", "--workers", "2", "-o", tmp_path)
        until(lambda: len(generations(server.requests)) >= 30 or process.poll() is not None)
        assert process.poll() is None, finish(process)
        os.kill(children(process)[-1], signal.SIGKILL)
        said = finish(process, 30)
    assert said.code == 4 and "Traceback" not in said.err, said.err
    assert "worker 2 of 2 was killed (SIGKILL)" in " ".join(said.out.split())
    manifest = manifest_of(folder_in(tmp_path))
    assert manifest["stop"]["reason"] == "client_bound" and manifest["levels"][0]["verdict"] == "invalid"
    assert not parts(folder_in(tmp_path))
    assert {r["worker"] for r in records_of(folder_in(tmp_path)) if r["step"]} == {0, 1}
    assert call("report", folder_in(tmp_path)).code in (0, 4)
