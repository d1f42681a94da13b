"""Workers in seats that are processes of this machine, some of them with another clock. A real cluster: tests/ray."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from loadgen.client import remote
from loadgen.client.budget import Budget
from loadgen.client.dialects.base import RequestOptions
from loadgen.client.exchange import Timeouts
from loadgen.client.joining import hello, hello_of, listening
from loadgen.client.remote import RemoteFleet
from loadgen.client.step import Control, StepPlan
from loadgen.client.transport import Access
from loadgen.client.workers import configuration
from loadgen.errors import LoadgenError
from loadgen.log.append import Lines, absorb
from loadgen.records import Record
from loadgen.results import Observation
from loadgen.simulator.scripted import ThreadedServer
from loadgen.workload.plain import plain_workload
from tests.cli.command import answer, generations
from tests.client.process_seats import AHEAD_S, ProcessSeats, other_clock
from tests.thorough import THOROUGH

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
FULL = THOROUGH > 1 or os.environ.get("LOADGEN_RAY") == "1"
long = pytest.mark.skipif(not FULL, reason="each is seconds of real processes: make test-ray, or LOADGEN_THOROUGH=5")
During = Callable[[ProcessSeats, Control], Any]


class Outcome:
    """What some steps came to."""

    def __init__(self) -> None:
        self.seen: list[Observation] = []
        self.kept: list[Record] = []
        self.facts: dict[str, Any] = {}
        self.note = ""
        self.began_ns = 0
        self.ended_ns = 0


def share(
    tmp_path: Path,
    workers: int = 2,
    *,
    more: tuple[dict[str, Any], ...] = (),
    ahead: tuple[int, ...] = (),
    away: dict[int, tuple[float, float]] | None = None,
    during: During | None = None,
    wait_ms: float = 20.0,
    budget: Callable[[int], Budget] = lambda step: Budget(),
    **plan: Any,
) -> tuple[Outcome, Any]:
    """A step of four requests in flight, by workers in seats, and `more` of them; `during` may do them harm."""
    out, control = Outcome(), Control()
    plan = {"warmup": 4, "enough": lambda p: p.window_s >= 0.4, "max_error_rate": 1.0, **plan}

    async def main(url: str) -> None:
        known = configuration(
            [f"{url}/v1/chat/completions"], "chat", access=Access(), options=RequestOptions("m"), timeouts=Timeouts(),
            workload=plain_workload("20-60", "3-9"), calibration=None, seed=3, run="r",
        )  # fmt: skip
        zero = out.began_ns = time.monotonic_ns()
        parts = [tmp_path / f"w{number}.jsonl" for number in range(workers)]
        merged = Lines(tmp_path / "merged.jsonl")
        async with RemoteFleet(known, lambda i: str(parts[i]), zero_ns=zero, seats=seats) as fleet:
            await fleet.grow(workers)
            for step, own in enumerate(({}, *more), 1):
                async with anyio.create_task_group() as group:
                    if during is not None:
                        group.start_soon(during, seats, control)
                    out.seen.append(
                        await fleet.measure(
                            StepPlan(step=step, concurrency=4, **{**plan, **own}), workers, nonce="n",
                            on_record=lambda record: None, budget=budget(step), control=control,
                        )
                    )  # fmt: skip
                    group.cancel_scope.cancel()
                for path in parts:
                    absorb(path, merged, out.kept.append)
            out.facts, out.note = fleet.facts(), fleet.note()
        out.ended_ns = time.monotonic_ns()
        merged.close()

    (tmp_path / "theirs").mkdir()
    seats = ProcessSeats(workers, tmp_path / "theirs", ahead, away)
    try:
        with ThreadedServer(lambda request: answer(request, wait_ms)) as server:
            anyio.run(main, server.url)
    finally:
        seats.close()
    return out, server


def ids(server: Any) -> list[str]:
    return sorted(request.headers["x-request-id"].partition("-")[2] for request in generations(server.requests))


def test_steps_by_two_machines_are_on_one_clock_and_in_files_here(tmp_path: Path) -> None:
    """Of the second machine the clock is another, where that can be had here; a deadline holds for it all the same."""
    ahead = (1,) if other_clock() is not None else ()
    out, server = share(
        tmp_path, ahead=ahead, requests=30, more=({"requests": None, "enough": lambda p: False},),
        budget=lambda step: Budget(deadline=anyio.current_time() + 1.5 if step == 2 else None),
    )  # fmt: skip
    assert [seen.ended for seen in out.seen] == ["complete", "budget"] and out.seen[1].detail == "time"
    assert sorted(r.id for r in out.kept) == ids(server), "everything came home, once"
    for step, seen in enumerate(out.seen, 1):
        mine = [r for r in out.kept if r.step == step]
        assert {r.worker for r in mine} == {0, 1}
        assert all(int(r.id.split("-")[1]) % 2 == r.worker for r in mine)
        firsts = [min(r.scheduled_ns for r in mine if r.worker == worker) for worker in (0, 1)]
        assert abs(firsts[0] - firsts[1]) < 1e9, "they began together"
        assert seen.window is not None
        for record in mine:
            assert record.phase != "measured" or record.scheduled_ns >= seen.window.start_ns
            assert record.phase != "warmup" or record.scheduled_ns <= seen.window.start_ns
            assert 0 < record.scheduled_ns <= (record.sent_ns or 0) < record.done_ns < out.ended_ns - out.began_ns
    assert sum(r.phase == "measured" for r in out.kept if r.step == 1) == 30
    for told in out.facts["steps"]:
        for clock in told["clocks"]:
            truth = AHEAD_S * 10**9 if clock["worker"] in ahead else 0
            assert abs(clock["offset_ns"] - truth) <= clock["uncertainty_us"] * 1e3
    assert out.facts["lost"] == [] and "2 workers on" in out.note and "ms" in out.note
    assert not list((tmp_path / "theirs").iterdir()), "nothing is left of them"


@long
def test_workers_far_away_begin_and_end_each_phase_together(tmp_path: Path) -> None:
    """Their lines take longer than the lead that is enough on one machine; of one, far longer there than back."""
    ways = {0: (0.12, 0.12), 1: (0.12, 0.01)}
    out, server = share(tmp_path, away=ways, enough=lambda p: p.window_s >= 0.6)
    [seen] = out.seen
    assert seen.ended == "complete" and seen.window is not None, seen.detail
    assert sorted(r.id for r in out.kept) == ids(server)
    for worker, clock in enumerate(out.facts["steps"][0]["clocks"]):
        assert clock["uncertainty_us"] >= sum(ways[worker]) / 2 * 1e6
        assert abs(clock["offset_ns"]) <= clock["uncertainty_us"] * 1e3, "which the truth, 0, is within"
        mine = [r for r in out.kept if r.worker == worker]
        assert {r.phase for r in mine} >= {"warmup", "measured"}
        for record in mine:
            inside = seen.window.start_ns <= record.scheduled_ns < seen.window.end_ns
            assert (record.phase == "measured") == inside, record.id
    assert "starts and windows are no more exact than that" in out.note


@pytest.mark.parametrize("how", (signal.SIGKILL, signal.SIGSTOP) if FULL else (signal.SIGKILL,))
def test_r18_a_lost_worker_voids_the_step_and_its_log_comes_home(tmp_path: Path, how: signal.Signals) -> None:
    async def harm(seats: ProcessSeats, control: Control) -> None:
        await anyio.sleep(1.0)
        os.kill(seats.worker(1), how)

    out, server = share(tmp_path, enough=lambda p: False, during=harm, drain_s=60.0)
    seen = out.seen[0]
    said = "was killed (SIGKILL)" if how == signal.SIGKILL else "was silent for"
    assert seen.ended == "client" and seen.detail.startswith("worker 2 of 2 on machine 2") and said in seen.detail
    assert "its share (2 of 4 in flight)" in seen.detail
    [lost] = out.facts["lost"]
    assert (lost["step"], lost["worker"], lost["lost"]) == (1, 1, 0)
    assert lost["kept"] == sum(r.worker == 1 for r in out.kept) > 0
    assert len(ids(server)) - len(out.kept) <= 2, "all but what the lost worker had in flight"


@long
def test_r18_a_lost_machine_takes_with_it_what_had_not_come_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "BRING_S", 0.3)

    async def harm(seats: ProcessSeats, control: Control) -> None:
        await anyio.sleep(1.5)
        seats.processes[1].kill()

    out, server = share(tmp_path, enough=lambda p: False, during=harm, drain_s=60.0)
    seen = out.seen[0]
    assert seen.ended == "client" and seen.detail.startswith("worker 2 of 2 on machine 2 was lost, as its machine")
    [lost] = out.facts["lost"]
    mine = sum(r.worker == 1 for r in out.kept)
    assert mine == lost["kept"] and lost["lost"] == lost["ended"] - lost["kept"] >= 0
    assert mine > 0, "some of it had come home"
    assert f"{lost['lost']} are lost" in seen.detail
    assert lost["ended"] <= sum(int(one.split("-")[1]) % 2 for one in ids(server))
    assert lost["part"] is None or Path(lost["part"]).is_relative_to(tmp_path / "theirs")


def test_a_worker_that_does_not_start_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif sys.orig_argv[1:3] == ['-m', 'loadgen.worker']:\n    raise SystemExit('no, thanks')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(LoadgenError, match=r"worker 1 of 1 on machine 1 ended by itself .*no, thanks"):
        share(tmp_path, 1)


def test_who_does_not_know_the_token_gets_no_line() -> None:
    async def main() -> list[bytes]:
        said = []
        with listening("127.0.0.1") as listener:
            for begins in (hello("a" * 64, 3), b"GET / HTTP/1.1\r\n\r\n", b""):
                with socket.create_connection(listener.getsockname()) as one:
                    one.sendall(begins + b"more")
                    one.shutdown(socket.SHUT_WR)
                    connection, _ = listener.accept()
                    with connection:
                        said.append(await hello_of(connection))
                        rest = connection.recv(100) if len(said[-1]) == 73 else b"more"
                        assert rest == b"more", "what follows is left for the lines"
        return said

    first, second, third = anyio.run(main)
    assert first == hello("a" * 64, 3) and second != first and third == b"more"
