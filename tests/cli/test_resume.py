"""Sweeps that are killed at any moment, and gone on with: each level is counted once, each request is sent once."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from loadgen.log.columns import columns
from loadgen.log.store import open_run
from loadgen.simulator.scripted import Request, ScriptedServer, ThreadedServer
from tests.cli.command import (
    Call,
    client_bound,
    finish,
    folder_in,
    generations,
    manifest_of,
    records_of,
    run,
    serve,
    start,
    too_busy,
    tries,
    until,
)
from tests.thorough import THOROUGH

LEVELS = (1, 3)
FLAGS = ("--input-len", "32", "--output-len", "4", "--levels", "1,3", "--requests", "10", "--seed", "7")


class Victim:
    """A sweep against a server of its own, which is killed once that has got `moment` requests, and then gone on
    with, in processes of their own: this one's CPU is the servers'."""

    def __init__(self, stack: ExitStack, output: Path, how: signal.Signals, moment: int, workers: int) -> None:
        self.server = stack.enter_context(ThreadedServer(serve(20.0)))
        self.output, self.how, self.moment = output, how, moment
        self.flags = FLAGS if workers == 1 else (*FLAGS, "--workers", str(workers))

    def strike(self) -> None:
        self._until_struck("sweep", self.server.url, *self.flags, "-o", self.output)
        if self.how == signal.SIGTERM:  # struck again as it goes on
            self._until_struck("sweep", "--resume", folder_in(self.output))
        self.cut = manifest_of(folder_in(self.output))["status"] != "complete"
        for _ in range(2):  # a machine that is too busy to measure ends a sweep, which can then be gone on with
            self.said = run("sweep", "--resume", folder_in(self.output), "--quiet")
            if not client_bound(folder_in(self.output)):
                break

    def _until_struck(self, *arguments: object) -> None:
        moment = len(self.got) + self.moment
        process = start(*arguments)
        try:
            until(lambda: len(self.got) >= moment or process.poll() is not None, 60)
            if process.poll() is None:
                os.kill(process.pid, self.how)
            finish(process, 30)
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()

    @property
    def got(self) -> list[str]:
        return [request.headers["x-request-id"] for request in generations(self.server.requests)]


def test_a_sweep_killed_at_any_moment_is_gone_on_with_and_counts_everything_once(tmp_path: Path, call: Call) -> None:
    rng = random.Random(20)
    how = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
    with ExitStack() as stack:
        victims = [
            Victim(
                stack, tmp_path / str(seed), how[seed % 3 if seed < 6 else 0], rng.randint(5, 34), 1 + (seed % 4 == 3)
            )
            for seed in (range(12) if THOROUGH > 1 else (3,))  # with workers
        ]
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(Victim.strike, victims))
        completed = [check(victim, call) for victim in victims]
    if not any(completed):
        too_busy()


def check(victim: Victim, call: Call) -> bool:
    """Hold what became of a sweep against what its server got. Did it come to its end?"""
    folder, said = folder_in(victim.output), victim.said
    assert "Traceback" not in said.err
    manifest, records = manifest_of(folder), records_of(folder)
    assert manifest["status"] == "complete" and manifest["workload"]["seed"] == 7
    if victim.cut:
        assert manifest["resumed"]
    ids, got = [record["id"] for record in records], victim.got
    assert len({*ids}) == len(ids), "no request is in the log twice"
    assert len({*got}) == len(got), "no request was sent twice"
    assert {*ids} <= {one.partition("-")[2] for one in got}
    assert not list(folder.glob("requests-w*"))
    counted = [level["step"] for level in manifest["levels"] if level["verdict"] != "invalid"]
    dropped = {step for one in manifest.get("resumed", ()) for step in one["uncounted"]}
    assert not dropped & {*counted}
    measured = Counter(r["step"] for r in records if r["phase"] == "measured" and r["step"] in counted)
    assert measured == dict.fromkeys(counted, 10), "each level in full"
    exported = call("export", folder, "--format", "jsonl").out.splitlines()
    assert not {json.loads(line)["step"] for line in exported} & dropped
    told = json.loads(call("report", folder, "--json").out)
    assert [step["step"] for step in told["steps"]] == [level["step"] for level in manifest["levels"]]
    if client_bound(folder):  # twice: then this machine is too busy to measure
        return False
    assert said.code == 0, said.err
    levels = [level["concurrency"] for level in manifest["levels"] if level["verdict"] != "invalid"]
    assert levels == list(LEVELS), "each level once"
    stamps = [record["done_ns"] for record in records if record["step"] in counted]
    assert max(stamps) == max(record["done_ns"] for record in records), "the clock goes on"
    again = call("sweep", "--resume", folder)
    assert again.code == 0 and "nothing to resume" in again.err and "answer" in again.out
    assert len(victim.got) == len(got), "and then nothing is sent"
    return True


# --- what may be given again, and what not --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep that was killed in its second step."""
    for output in tries(tmp_path_factory.mktemp("cut"), 5):  # until there is the time to come to the second step
        with ThreadedServer(serve(20.0)) as server:
            flags = (*FLAGS, "--max-requests", "60", "--header", "x-team: a", "--retries", "1")
            process = start("sweep", server.url, *flags, "-o", output)
            struck = in_second_step(server, process)
            process.kill()
            finish(process)
        if struck:
            break
    return folder_in(output)


def in_second_step(server: ScriptedServer, process: subprocess.Popen[bytes]) -> bool:
    def sent() -> int:
        return sum("-s2-" in request.headers["x-request-id"] for request in generations(server.requests))

    until(lambda: sent() >= 5 or process.poll() is not None, 60)
    return process.poll() is None


@pytest.fixture
def folder(cut: Path, tmp_path: Path) -> Path:
    copied = tmp_path / cut.name
    shutil.copytree(cut, copied)
    return copied


AGAIN = ("--header", "x-team: a", "--quiet")


def test_a_flag_that_contradicts_is_refused_and_one_that_repeats_is_not(folder: Path, call: Call) -> None:
    with ThreadedServer(serve()) as server:
        for flags in (("--levels", "1,2"), ("--seed", "8"), ("--max-requests", "90"), ("--simulate",), ("-o", "x")):
            said = call("sweep", "--resume", folder, server.url, *AGAIN, *flags)
            assert said.code == 2 and "contradicts the run" in said.err, said.err
        assert not server.requests
        said = call("sweep", "--resume", folder, server.url, *AGAIN, "--levels", "1,3", "--retries", "1")
        assert said.code == 0 or client_bound(folder), said.err
    assert manifest_of(folder)["resumed"][0]["url"].startswith(server.url)


def test_a_report_says_how_to_go_on(folder: Path, call: Call) -> None:
    assert f"loadgen sweep --resume {folder}" in call("report", folder).out


def test_what_is_not_kept_must_be_given_again(folder: Path, call: Call) -> None:
    said = call("sweep", "--resume", folder)
    assert said.code == 2 and "--header" in said.err and "secret" in said.err


def test_a_budget_counts_what_was_spent_before(folder: Path, call: Call) -> None:
    before = len(records_of(folder))
    with ThreadedServer(serve(5.0)) as server:
        manifest = manifest_of(folder)
        manifest["command"][manifest["command"].index("--max-requests") + 1] = str(before + 12)
        (folder / "manifest.json").write_text(json.dumps(manifest))
        said = call("sweep", "--resume", folder, server.url, *AGAIN)
        sent = len(generations(server.requests))
    assert "budget" in said.out and said.code in (0, 4), said
    assert 0 < sent <= 12 - 3, "three more may have been in flight when it was killed"
    assert open_run(folder).stop is not None


def test_a_changed_server_is_refused_unless_told_otherwise(folder: Path, call: Call) -> None:
    with ThreadedServer(serve(listed=("other",))) as server:
        said = call("sweep", "--resume", folder, server.url, *AGAIN)
        assert said.code == 3 and "model m → other" in said.err and "--anyway" in said.err
        assert all(record["phase"] == "preflight" for record in records_of(folder)[-2:])
        assert manifest_of(folder)["status"] == "failed"
        said = call("sweep", "--resume", folder, server.url, *AGAIN, "--anyway")
        assert said.code == 0 or client_bound(folder), said.err
        assert "model m → other" in said.out


def test_a_refusal_changes_nothing_of_what_was_spent(folder: Path, call: Call) -> None:
    """The pause before it is none of the run's time; and what was in flight when the run was killed is paid for."""
    manifest = manifest_of(folder)
    manifest["started_epoch_ns"] -= 1_000_000_000_000
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with ThreadedServer(serve(listed=("other",))) as server:
        assert call("sweep", "--resume", folder, server.url, *AGAIN).code == 3
    with ThreadedServer(serve(20.0)) as server:
        said = call("sweep", "--resume", folder, server.url, *AGAIN)
    assert said.code == 0 or client_bound(folder), said.err
    manifest = manifest_of(folder)
    assert manifest["duration_s"] < 500
    assert [one["lost"] for one in manifest["resumed"]] == [LEVELS[1], 0]


def test_half_a_line_and_a_worker_s_file_are_taken_up(folder: Path, call: Call) -> None:
    lines = (folder / "requests.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "requests.jsonl").write_bytes(b"".join(lines[:-3]) + lines[-1][:40])
    (folder / "requests-w0.jsonl").write_bytes(lines[-4] + lines[-3] + lines[-2] + lines[-1][:10])
    with ThreadedServer(serve(5.0)) as server:
        said = call("sweep", "--resume", folder, server.url, *AGAIN)
    assert said.code == 0 or client_bound(folder), said.err
    now = (folder / "requests.jsonl").read_bytes().splitlines(keepends=True)
    assert now[: len(lines) - 1] == lines[:-1] and not (folder / "requests-w0.jsonl").exists()
    run = open_run(folder)
    assert len(columns(run.records())) == len(now) and not run.truncated_lines


def test_a_run_that_still_goes_on_is_left_alone(tmp_path: Path, call: Call) -> None:
    with ThreadedServer(serve(20.0)) as server:
        process = start("sweep", server.url, *FLAGS, "-o", tmp_path)
        try:
            until(lambda: len(generations(server.requests)) >= 8)
            said = call("sweep", "--resume", folder_in(tmp_path))
            assert said.code == 2 and "still going on" in said.err
        finally:
            process.kill()
            process.communicate()


def test_a_server_that_went_away_is_gone_on_with_when_it_is_back(tmp_path: Path, call: Call) -> None:
    gone = {"after": 22}

    def handler(request: Request) -> Any:
        if request.method == "POST" and len(generations(server.requests)) > gone["after"]:
            return []  # closed without a word
        return serve(40.0)(request)

    with ThreadedServer(handler) as server:
        said = call("sweep", server.url, *FLAGS, "-o", tmp_path)
        assert said.code in (1, 4), said
        folder = folder_in(tmp_path)
        assert manifest_of(folder)["status"] == "complete"
        assert manifest_of(folder)["stop"]["reason"] == "errors" or client_bound(folder)
        gone["after"] = 10_000
        said = call("sweep", "--resume", folder, "--quiet")
    assert said.code == 0 or client_bound(folder), said.err
    levels = [level for level in manifest_of(folder)["levels"] if level["verdict"] != "invalid"]
    if not client_bound(folder):  # which ends a sweep
        assert [level["concurrency"] for level in levels] == list(LEVELS)
        assert all(level["verdict"] == "measured" for level in levels)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.mkdir(), "neither manifest.json nor requests.jsonl"),
        (lambda path: None, "does not exist"),
        (lambda path: (path.mkdir(), (path / "requests.jsonl").write_bytes(b"")), "before its first step"),
    ],
    ids=["empty", "missing", "preflight"],
)
def test_what_cannot_be_gone_on_with(tmp_path: Path, call: Call, make: Callable[[Path], object], words: str) -> None:
    make(tmp_path / "run")
    said = call("sweep", "--resume", tmp_path / "run")
    assert said.code == 2 and words in said.err


def test_a_finished_sweep_keeps_its_exit_code(tmp_path: Path, call: Call) -> None:
    with ThreadedServer(serve(20.0)) as server:
        said = call("sweep", server.url, *FLAGS, "--slo", "e2e_p50=1ms", "-o", tmp_path)
    folder = folder_in(tmp_path)
    if not client_bound(folder):
        assert said.code == manifest_of(folder)["exit_code"] != 0
        assert call("sweep", "--resume", folder).code == said.code
