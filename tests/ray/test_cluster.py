"""`--ray`: one run by the actors of a real cluster of three nodes on this machine; what is left when some are lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadgen.simulator.scripted import Action, Request, T, ThreadedServer
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
    too_busy,
    until,
    went_well,
)
from tests.ray.conftest import LocalCluster

SHAPE = ("--input-len", "32", "--output-len", "4")


def paced(wait_ms: float) -> Callable[[Request], list[Action] | None]:
    """A server that waits before the first token, and half as long before each further one: a client that is late by
    some ms, as on a machine where much else runs, does not shape what it measures there."""
    at_once = serve()

    def handler(request: Request) -> list[Action] | None:
        actions = at_once(request)
        if request.method != "POST" or actions is None:
            return actions
        return [T(wait_ms), *(part for action in actions[1:-3] for part in (action, T(wait_ms / 2))), *actions[-3:]]

    return handler


def ids_of(requests: list[Any]) -> Counter[str]:
    return Counter(request.headers["x-request-id"].partition("-")[2] for request in requests)


def observations(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line)["observation"] for line in (folder / "steps.jsonl").read_text().splitlines()]


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("requests-*.jsonl"))


def going(cluster: LocalCluster, url: str, folder: Path, *more: object, workers: int = 3) -> subprocess.Popen[bytes]:
    """A run that would last, once all of its workers have something in their files here."""
    process = start(
        *("run", url, *SHAPE, "-c", "6", "--duration", "60s", "--workers", workers, "--ray", cluster.address),
        *("-o", folder, *more),
    )

    def sends() -> bool:
        files = parts(next(folder.iterdir())) if folder.is_dir() and any(folder.iterdir()) else []
        return len(files) == workers and all(file.stat().st_size for file in files)

    until(lambda: sends() or process.poll() is not None, 60.0)
    assert process.poll() is None, finish(process)
    return process


def test_a_sweep_by_three_nodes_is_one_log(cluster: LocalCluster, tmp_path: Path, call: Call) -> None:
    levels = (1, 2, 7)
    with ThreadedServer(paced(40.0)) as server:
        said = run(
            *("sweep", server.url, *SHAPE, "--levels", "1,2,7", "--requests", "20", "--workers", "3"),
            *("--ray", cluster.address, "-o", tmp_path),
        )
        got = generations(server.requests)
    folder = folder_in(tmp_path)
    assert went_well(said, folder), said.err
    assert "SIGTERM" not in said.err and "raylet" not in said.out + said.err
    assert not parts(folder), "merged"
    records = records_of(folder)
    assert Counter(r["id"] for r in records) == ids_of(got), "the log has what the server got, each once"
    each_level_once(folder)
    seen = observations(folder)
    done = levels[: len(seen)]
    assert done == levels or (done and client_bound(folder))
    assert [step["workers"] for step in seen] == [min(3, level) for level in done]
    assert [step["in_flight_peak"] for step in seen] == list(done)
    for step, level in enumerate(done, 1):
        mine = [r for r in records if r["step"] == step]
        assert sum(r["phase"] == "measured" for r in mine) == 20
        assert {r["worker"] for r in mine} == set(range(min(3, level)))
    manifest = manifest_of(folder)
    told = manifest["workers"]
    assert sorted(one["node_id"] for one in told["placed"]) == sorted(cluster.nodes), "each on a node of its own"
    assert (
        told["by"] == "ray"
        and told["lost"] == []
        and [step["step"] for step in told["steps"]] == [1, 2, 3][: len(done)]
    )
    for step in told["steps"]:
        for clock in step["clocks"]:  # of one machine: there is one clock
            assert abs(clock["offset_ns"]) <= clock["uncertainty_us"] * 1e3
            assert clock["error_us"] >= clock["uncertainty_us"] > 0
    assert any("3 nodes of the Ray cluster" in note for note in manifest["notes"])
    assert call("report", folder, "--json").code == 0


def test_a_rate_by_three_nodes_is_one_schedule(cluster: LocalCluster, tmp_path: Path) -> None:
    with ThreadedServer(paced(30.0)) as server:
        said = run(
            *("run", server.url, *SHAPE, "--rate", "40", "--requests", "31", "--workers", "3", "--seed", "5"),
            *("--ray", cluster.address, "-o", tmp_path),
        )
        got = generations(server.requests)
    assert went_well(said, folder_in(tmp_path)), said.err
    records = records_of(folder_in(tmp_path))
    assert Counter(r["id"] for r in records) == ids_of(got)
    load = sorted((r for r in records if r["step"] == 1), key=lambda r: r["id"])
    assert [r["id"] for r in load] == [f"s1-{k:06d}" for k in range(len(load))], "every arrival is somebody's"
    assert [r["worker"] for r in load] == [k % 3 for k in range(len(load))]
    assert sum(r["phase"] == "measured" for r in load) == 31
    due = [r["scheduled_ns"] for r in load]
    assert due == sorted(due), "on one clock, from one start"


def test_the_prompts_are_those_that_this_machine_alone_would_send(cluster: LocalCluster, tmp_path: Path) -> None:
    sent: list[dict[str, str]] = []
    for more in ((), ("--ray", cluster.address)):
        with ThreadedServer(paced(10.0)) as server:
            said = run(
                *("run", server.url, "--input-len", "20-60", "--output-len", "4", "-c", "4", "--requests", "25"),
                *(
                    "--warmup",
                    "0",
                    "--seed",
                    "7",
                    "--same-text",
                    "--workers",
                    "2",
                    "-o",
                    tmp_path / f"{len(sent)}",
                    *more,
                ),
            )
            got = generations(server.requests)
        assert went_well(said, folder_in(tmp_path / f"{len(sent)}")), said.err
        texts = {one: r.json["messages"][0]["content"] for r in got for one in ids_of([r]) if one.startswith("s1-")}
        sent.append(texts)
    both = sent[0].keys() & sent[1].keys()
    assert len(both) >= 20 and all(sent[0][one] == sent[1][one] for one in both)


def test_what_is_secret_is_nowhere_but_in_the_requests(cluster: LocalCluster, tmp_path: Path) -> None:
    with ThreadedServer(paced(40.0)) as server:
        process = going(cluster, server.url, tmp_path, "--header", "authorization: Bearer hush-hush")
        looked = [
            Path(f"/proc/{pid}/{name}").read_bytes()
            for pid in (*cluster.workers(), *cluster.actors())
            for name in ("cmdline", "environ")
        ]
        os.kill(process.pid, signal.SIGINT)
        said = finish(process, 30)
        assert {request.headers["authorization"] for request in generations(server.requests)} == {"Bearer hush-hush"}
    assert len(looked) == 12 and not any(b"hush" in text for text in looked)
    assert said.code == 130 and "hush" not in said.out + said.err
    kept = [file for place in (tmp_path, cluster.session) for file in place.rglob("*") if file.is_file()]
    assert len(kept) > 10 and not any(b"hush" in file.read_bytes() for file in kept), "nor in what Ray writes down"


def test_ctrl_c_drains_every_worker_and_leaves_no_actor(cluster: LocalCluster, tmp_path: Path) -> None:
    with ThreadedServer(paced(100.0)) as server:
        process = going(cluster, server.url, tmp_path)
        assert len(cluster.actors()) == len(cluster.workers()) == 3
        os.kill(process.pid, signal.SIGINT)
        said = finish(process, 30)
        assert said.code == 130 and "Traceback" not in said.err, said.err
        got = ids_of(generations(server.requests))
    records = records_of(folder_in(tmp_path))
    assert {r["id"] for r in records} == set(got)
    assert {r["outcome"] for r in records} == {"ok"}, "what was in flight came to its end"
    assert not parts(folder_in(tmp_path)) and manifest_of(folder_in(tmp_path))["status"] == "interrupted"


def test_a_killed_head_leaves_no_worker_and_a_log_that_is_read(
    cluster: LocalCluster, tmp_path: Path, call: Call
) -> None:
    with ThreadedServer(paced(20.0)) as server:
        process = going(cluster, server.url, tmp_path)
        os.kill(process.pid, signal.SIGKILL)
        finish(process)
        until(lambda: not cluster.workers(), 10.0)
        until(lambda: server.open_connections == 0)
    folder = folder_in(tmp_path)
    assert len(parts(folder)) == 3
    said = call("report", folder, "--json")
    assert said.code == 0 and "Traceback" not in said.err


@pytest.mark.parametrize("how", ["worker killed", "worker stopped", "actor killed", "node killed"])
def test_r18_a_lost_worker_voids_the_step_and_is_accounted_for(
    cluster: LocalCluster, tmp_path: Path, call: Call, how: str
) -> None:
    with ThreadedServer(paced(20.0)) as server:
        process = going(cluster, server.url, tmp_path, "--json")
        wait = None
        if how == "node killed":
            wait = cluster.replace(1)
        elif how == "actor killed":
            os.kill(cluster.actors()[1], signal.SIGKILL)
        else:
            os.kill(cluster.workers()[1], signal.SIGKILL if how == "worker killed" else signal.SIGSTOP)
        said = finish(process, 60)
        if wait is not None:
            wait()
        got = ids_of(generations(server.requests))
    assert said.code == 4 and "Traceback" not in said.err, said.err
    json.loads(said.out)  # Ray has put nothing between it
    folder = folder_in(tmp_path)
    manifest = manifest_of(folder)
    assert manifest["stop"]["reason"] == "client_bound" and manifest["levels"][0]["verdict"] == "invalid"
    [lost] = manifest["workers"]["lost"]
    records = [r for r in records_of(folder) if r["step"] == 1]
    kept = Counter(r["worker"] for r in records)
    assert lost["share"] == {"in_flight": 2, "of": 6}
    assert kept[lost["worker"]] == lost["kept"] and lost["ended"] - lost["kept"] <= lost["lost"]
    gone = "was lost, as its machine or its seat was"
    expected = {"worker killed": "was killed (SIGKILL)", "worker stopped": "was silent for"}.get(how, gone)
    [seen] = observations(folder)
    assert seen["ended"] == "client" and expected in seen["detail"] and f"{lost['lost']} are lost" in seen["detail"]
    if how.startswith("worker"):
        assert lost["lost"] == 0, "its file was there still"
    sent = sum(one.startswith("s1-") for one in got)
    assert 0 <= sent - len(records) - lost["lost"] <= 2 + 10, "all but what was in flight, and had ended untold"
    assert not parts(folder) and call("report", folder).code in (0, 4)


def test_a_sweep_whose_head_was_killed_goes_on(cluster: LocalCluster, tmp_path: Path, call: Call) -> None:
    with ThreadedServer(paced(20.0)) as server:
        process = start(
            *("sweep", server.url, *SHAPE, "--levels", "2,6", "--duration", "4s", "--workers", "2", "--seed", "3"),
            *("--ray", cluster.address, "-o", tmp_path),
        )

        def second() -> bool:
            return any("-s2-" in request.headers["x-request-id"] for request in generations(server.requests)[-20:])

        until(lambda: second() or process.poll() is not None, 60.0)
        if process.poll() is not None and client_bound(folder_in(tmp_path)):
            too_busy()
        assert process.poll() is None, finish(process)
        os.kill(process.pid, signal.SIGKILL)
        finish(process)
        until(lambda: not cluster.workers(), 10.0)
        said = run("sweep", "--resume", folder_in(tmp_path), "--ray", cluster.address)
    folder = folder_in(tmp_path)
    assert went_well(said, folder), said.err
    records = records_of(folder)
    assert len({r["id"] for r in records}) == len(records) and not parts(folder)
    manifest = manifest_of(folder)
    assert manifest["status"] == "complete" and manifest["workers"]["placed"]
    assert {r["worker"] for r in records if r["step"] == max(r["step"] for r in records)} == {0, 1}


def test_what_cannot_be_placed_is_a_sentence_and_a_dry_run_is_the_plan(cluster: LocalCluster, tmp_path: Path) -> None:
    said = run("run", "http://127.0.0.1:9", "-c", "99", "--workers", "99", "--ray", cluster.address, "-o", tmp_path)
    assert said.code == 2 and "have 6 to spare" in said.err and "Traceback" not in said.err
    assert not any(tmp_path.iterdir())
    said = run("run", "http://127.0.0.1:9", "-c", "9", "--workers", "5", "--ray", cluster.address, "--dry-run")
    assert said.code == 0, said.err
    plan = json.loads(said.out)["workers"]
    assert [one["worker"] for one in plan] == [0, 1, 2, 3, 4]
    assert sorted(Counter(one["node_id"] for one in plan).values()) == [1, 2, 2]
    assert not cluster.actors(), "nothing was started"
    said = run("run", "http://127.0.0.1:9", "-c", "2", "--workers", "2", "--ray", cluster.address, "-o", tmp_path)
    assert said.code == 3 and "Traceback" not in said.err, "a server that is not there is told as ever"
