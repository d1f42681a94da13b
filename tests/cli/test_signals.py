"""Ctrl-C, SIGTERM and SIGKILL at every moment of a run: what was finished is in the log, and the log can be read."""

from __future__ import annotations

import os
import pty
import random
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from loadgen.simulator.scripted import Action, Hang, Request, ScriptedServer, ThreadedServer
from tests.cli.command import (
    COMMAND,
    ROOT,
    Call,
    Said,
    answer,
    client_bound,
    finish,
    folder_in,
    manifest_of,
    records_of,
    serve,
    start,
    until,
)
from tests.thorough import THOROUGH, variants

SHAPE = ("--input-len", "32", "--output-len", "4")
LEVELS = (1, 4)
# A moment is when the server has got so many requests for completions: 1 to 3 are the preflight's, then come the
# warm-up, window and last of a step with one in flight (to about 15), the next step with four, and its last (from 29).
MOMENTS = {
    "ctrl-c": (1, 30),
    "ctrl-c twice": (21,),
    "sigterm": (15,),
    "sighup": (2, 15),
    "sigkill": (4, 24),
}
if THOROUGH > 1:
    MOMENTS = {name: tuple(range(0, 32, 2 if name == "sigkill" else 5)) for name in MOMENTS}


class Ledger:
    """A server that writes down which requests it got and which it has answered to the last byte."""

    def __init__(self, wait_ms: float = 15.0, hangs_from: int | None = None) -> None:
        self.wait_ms, self.hangs_from = wait_ms, hangs_from
        self.gets = 0
        self.got: list[str] = []
        self.times: list[float] = []
        self.answered: list[str] = []

    def __call__(self, request: Request) -> Any:
        if request.method == "GET":
            self.gets += 1
            return serve()(request)
        self.got.append(request.headers["x-request-id"].partition("-")[2])
        self.times.append(time.monotonic())
        if self.hangs_from is not None and len(self.got) > self.hangs_from:
            return [Hang(3600)]
        return self._answer(request)

    async def _answer(self, request: Request) -> AsyncIterator[Action]:
        for action in answer(request, self.wait_ms):
            yield action
        self.answered.append(request.headers["x-request-id"].partition("-")[2])

    def reached(self, moment: int) -> bool:
        return self.gets > 0 if moment == 0 else len(self.got) >= moment


class Victim:
    """A sweep against a server of its own, waiting for its signal."""

    def __init__(self, stack: ExitStack, output: Path, **server: Any) -> None:
        self.ledger = Ledger(**server)
        self.server: ScriptedServer = stack.enter_context(ThreadedServer(self.ledger))
        self.output = output
        levels = ",".join(map(str, LEVELS))
        self.process = start(
            "sweep", self.server.url, *SHAPE, "--levels", levels, "--requests", "10", "-o", self.output
        )
        stack.callback(_end, self.process)

    def at(self, moment: int) -> bool:
        """Wait for the moment. False if it never came: a sweep ends where this machine is too busy to measure."""
        until(lambda: self.ledger.reached(moment) or self.process.poll() is not None, 60)
        if self.process.poll() is None:
            return True
        assert self.process.returncode == 4 and client_bound(folder_in(self.output)), finish(self.process).err
        return False

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def folder(self) -> Path | None:
        return folder_in(self.output) if self.output.exists() else None


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def log_is_whole(victim: Victim, call: Call, *, killed: bool) -> None:
    """Every request whose slot was refilled is in the log; after an orderly end every request is. `report` reads it."""
    folder, got, answered = victim.folder(), victim.ledger.got, set(victim.ledger.answered)
    if folder is None:  # the first request of the preflight had not ended
        assert len(got) <= 1
        return
    records = records_of(folder)
    ids = [record["id"] for record in records]
    assert len(set(ids)) == len(ids)
    assert {record["id"] for record in records if record["outcome"] == "ok"} <= answered
    missing = set(got) - set(ids)
    in_preflight = all(one.startswith("p-") for one in got)
    assert len(missing) <= (max(LEVELS) if killed else in_preflight), sorted(missing)
    for step, level in enumerate(LEVELS, 1):
        assert sum(one.startswith(f"s{step}-") for one in missing) <= level
    # Whoever follows N requests later took the place of one that had ended: that one had been written down before.
    for step, level in enumerate(LEVELS, 1):
        mine = [one for one in got if one.startswith(f"s{step}-")]
        assert sum(one in missing for one in mine) <= level
    for verb in (("report",), ("report", "--json"), ("export", "--all")):
        said = call(verb[0], folder, *verb[1:])
        assert said.code == 0, said.err
        assert "Traceback" not in said.err


def ended(victim: Victim, said: Said, code: int, statuses: tuple[str, ...]) -> None:
    assert said.code == code, said.err
    assert "Traceback" not in said.err and "Error" not in said.err, said.err
    folder = victim.folder()
    if folder is not None:
        assert manifest_of(folder)["status"] in statuses


def strike(tmp_path: Path, name: str, how: Callable[[Victim], None], **server: Any) -> list[tuple[Victim, Said]]:
    """Several runs side by side, each struck at its moment or a short random time later; what they said at the end."""
    rng = random.Random(name)

    def one(victim: Victim, moment: int, after_s: float) -> Said | None:
        if not victim.at(moment):
            return None
        time.sleep(after_s)
        how(victim)
        return finish(victim.process, 30)

    when = MOMENTS[name]
    with ExitStack() as stack, ThreadPoolExecutor(len(when)) as pool:
        victims = [Victim(stack, tmp_path / str(moment), **server) for moment in when]
        saying = [
            pool.submit(one, victim, moment, rng.uniform(0.0, 0.01))
            for victim, moment in zip(victims, when, strict=True)
        ]
        struck = [(victim, said) for victim, one in zip(victims, saying, strict=True) if (said := one.result())]
    always = sum(moment < 15 for moment in when)
    assert len(struck) >= always, "the moments of the preflight and of the first step come always"
    return struck


def once(number: signal.Signals) -> Callable[[Victim], None]:
    return lambda victim: victim.signal(number)


def twice(victim: Victim) -> None:
    victim.signal(signal.SIGINT)
    time.sleep(0.01)
    victim.signal(signal.SIGINT)


def test_r02_ctrl_c_sends_nothing_more_and_drains(tmp_path: Path, call: Call) -> None:
    for victim, said in strike(tmp_path, "ctrl-c", once(signal.SIGINT)):
        ended(victim, said, 130, ("interrupted",))
        log_is_whole(victim, call, killed=False)
        if (folder := victim.folder()) is not None:
            load = [r for r in records_of(folder) if r["phase"] != "preflight"]
            assert all(r["outcome"] == "ok" for r in load), "what was in flight came to its end"


def test_r02_ctrl_c_twice_quits(tmp_path: Path, call: Call) -> None:
    for victim, said in strike(tmp_path, "ctrl-c twice", twice, wait_ms=60.0):
        ended(victim, said, 130, ("interrupted",))
        log_is_whole(victim, call, killed=False)


def test_r02_sigterm_quits(tmp_path: Path, call: Call) -> None:
    for victim, said in strike(tmp_path, "sigterm", once(signal.SIGTERM), wait_ms=60.0):
        ended(victim, said, 143, ("interrupted",))
        log_is_whole(victim, call, killed=False)


def test_a_terminal_that_closes_ends_a_run_in_good_order(tmp_path: Path, call: Call) -> None:
    for victim, said in strike(tmp_path, "sighup", once(signal.SIGHUP), wait_ms=60.0):
        ended(victim, said, 143, ("interrupted",))
        log_is_whole(victim, call, killed=False)


def test_a_run_is_not_held_up_by_a_terminal_that_has_gone(tmp_path: Path, call: Call) -> None:
    """All it says goes to a terminal, as in a window that is closed while it runs."""
    near, far = pty.openpty()
    ledger = Ledger(20.0)
    with ThreadedServer(ledger) as server:
        flags = ("-c", 2, "--duration", "60s", "-o", tmp_path / "out")
        process = start("run", server.url, *SHAPE, *flags, stdin=far, stdout=far, stderr=far)
        try:
            os.close(far)
            until(lambda: ledger.reached(12) or process.poll() is not None)
            os.close(near)
            time.sleep(0.5)  # some lines are written meanwhile
            assert process.poll() is None
            os.killpg(process.pid, signal.SIGHUP)
            assert process.wait(20) == 143
        finally:
            _end(process)
    folder = folder_in(tmp_path / "out")
    assert manifest_of(folder)["status"] == "interrupted"
    assert {record["outcome"] for record in records_of(folder)} <= {"ok", "cancelled"}
    assert call("report", folder).code == 0


def test_workers_leave_the_end_of_a_terminal_to_their_run(tmp_path: Path, call: Call) -> None:
    """The kernel tells every process in front of a terminal."""
    ledger = Ledger(20.0)
    with ThreadedServer(ledger) as server:
        process = start("run", server.url, *SHAPE, "-c", 4, "--workers", 2, "--duration", "60s", "-o", tmp_path / "out")
        try:
            until(lambda: ledger.reached(20) or process.poll() is not None)
            os.killpg(process.pid, signal.SIGHUP)
            said = finish(process, 20)
        finally:
            _end(process)
    assert said.code == 143 and "killed" not in said.err and "Traceback" not in said.err, said.err
    folder = folder_in(tmp_path / "out")
    assert {record["outcome"] for record in records_of(folder)} <= {"ok", "cancelled"}
    assert call("report", folder).code == 0


def test_a_run_that_is_to_outlive_its_terminal_does(tmp_path: Path) -> None:
    """As `nohup loadgen run …`."""
    ledger = Ledger(20.0)
    with ThreadedServer(ledger) as server:
        shell = ["sh", "-c", 'trap "" HUP; exec "$0" "$@"', *COMMAND, "run", server.url, *SHAPE]
        flags = ["-c", "2", "--requests", "60", "-o", str(tmp_path / "out")]
        process = subprocess.Popen([*shell, *flags], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            until(lambda: ledger.reached(12) or process.poll() is not None)
            process.send_signal(signal.SIGHUP)
            said = finish(process, 30)
        finally:
            _end(process)
    assert said.code in (0, 4) and manifest_of(folder_in(tmp_path / "out"))["status"] == "complete", said


def test_r02_sigkill_leaves_a_log_that_holds_all_that_was_finished(tmp_path: Path, call: Call) -> None:
    for victim, said in strike(tmp_path, "sigkill", once(signal.SIGKILL)):
        assert said.code == -signal.SIGKILL
        log_is_whole(victim, call, killed=True)
        folder = victim.folder()
        if folder is not None and (folder / "manifest.json").exists():
            assert manifest_of(folder)["status"] == "running"


def test_one_ctrl_c_lets_what_is_in_flight_finish_and_sends_nothing_more(tmp_path: Path) -> None:
    with ExitStack() as stack:
        victim = Victim(stack, tmp_path / "out", wait_ms=400.0)
        assert victim.at(5 + 1 + 1)
        before = time.monotonic()
        victim.signal(signal.SIGINT)
        said = finish(victim.process, 30)
        assert said.code == 130 and "draining" in said.err and "Ctrl-C again" in said.err
        assert all(moment < before + 0.2 for moment in victim.ledger.times)
        assert set(victim.ledger.answered) == set(victim.ledger.got)


@pytest.mark.parametrize(
    ("hangs_from", "how", "code"),
    [
        (0, once(signal.SIGINT), 130),
        (1, once(signal.SIGTERM), 143),
        (5, twice, 130),
    ],
)
def test_r13_a_server_that_hangs_holds_nobody_up(
    tmp_path: Path, call: Call, hangs_from: int, how: Callable[[Victim], None], code: int
) -> None:
    with ExitStack() as stack:
        victim = Victim(stack, tmp_path / "out", hangs_from=hangs_from)
        assert victim.at(hangs_from + 1)
        before = time.monotonic()
        how(victim)
        said = finish(victim.process, 20)
        assert time.monotonic() - before < 10
        ended(victim, said, code, ("interrupted",))
        log_is_whole(victim, call, killed=False)
        folder = victim.folder()
        if hangs_from > 3:
            assert folder is not None
            assert [r["outcome"] for r in records_of(folder)[-1:]] == ["cancelled"]


@pytest.mark.parametrize("number", variants(signal.SIGKILL, signal.SIGINT, signal.SIGTERM))
def test_no_simulator_outlives_its_run(tmp_path: Path, call: Call, number: signal.Signals) -> None:
    process = start("run", "--simulate", *SHAPE, "-c", "4", "--duration", "60s", "-o", tmp_path / "out")
    try:
        until(lambda: bool(children(process.pid)))
        (simulator,) = children(process.pid)
        log = tmp_path / "out"
        until(lambda: any(log.glob("*/requests.jsonl")) and len(records_of(folder_in(log))) > 8)
        os.kill(process.pid, number)
        said = finish(process, 30)
        assert said.code in ({signal.SIGINT: 130, signal.SIGTERM: 143}.get(number, -number), 128 + number)
        assert "Traceback" not in said.err
        until(lambda: not Path(f"/proc/{simulator}").exists(), 10)
    finally:
        _end(process)
    records = records_of(folder_in(tmp_path / "out"))
    assert len(records) > 8 and {record["outcome"] for record in records} <= {"ok", "cancelled"}
    assert call("report", folder_in(tmp_path / "out")).code == 0


def children(pid: int) -> list[int]:
    """The living child processes of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except OSError:
            continue  # a thread that has just ended
    return found


def test_r12_the_shell_that_pipes_the_log_away_may_leave() -> None:
    """`loadgen run -o - | head -3`: the reader goes, the run ends, quietly."""
    with ThreadedServer(serve(5.0)) as server:
        process = start("run", server.url, *SHAPE, "-c", "2", "--duration", "60s", "-o", "-")
        assert process.stdout is not None and process.stderr is not None
        assert all(process.stdout.readline().startswith(b'{"kind":') for _ in range(3))
        process.stdout.close()
        try:
            assert process.wait(20) in (0, 141, -signal.SIGPIPE)
            assert b"Traceback" not in process.stderr.read()
        finally:
            _end_without_stdout(process)


def _end_without_stdout(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stderr is not None
    process.stderr.close()
