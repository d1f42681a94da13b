"""Field cases L: whether the load is the one asked for, and whether it is the client or the server that limits it."""

from __future__ import annotations

import gc
import os
import random
import ssl
import statistics
import subprocess
import sys
import time
from itertools import count, pairwise, repeat
from pathlib import Path
from socket import create_server, socket
from typing import Any

import anyio
import pytest
import trustme

from loadgen.client.driver import Progress, StepPlan, run_step
from loadgen.client.exchange import Timeouts
from loadgen.client.openloop import run_open_step
from loadgen.client.transport import Access, open_client
from loadgen.errors import Exit
from loadgen.records import Record
from loadgen.results import Observation, Slo
from loadgen.search.effort import StepRule
from loadgen.search.verdict import judge
from loadgen.simulator.scripted import (
    CU,
    DONE,
    FIN,
    RST,
    C,
    Request,
    ScriptedServer,
    T,
    ThreadedServer,
    U,
    error_reply,
)
from loadgen.workload.arrivals import Arrivals, Schedule
from tests.cases.support import (
    PROMPT,
    TRANSPORTS,
    MakeSender,
    answer,
    disturbed,
    loadgen,
    open_sender,
    posts,
    send,
    spec,
    step,
    subprocess_arguments,
    summary_of,
)
from tests.cli.command import tries

GOOD = [C("a"), FIN("stop"), U(3, 1), DONE]
QUICK = ("--input-len", "16", "--output-len", "4")
ROOT = Path(__file__).parents[2]


# --- connections ----------------------------------------------------------------------------------------------------


def test_l01_no_silent_cap_on_the_requests_in_flight(make_sender: MakeSender) -> None:
    records, seen, fake = step(make_sender, lambda r: [T(600), *GOOD], 120, 120, warmup=0)
    assert fake.peak_in_flight == 120
    assert seen.in_flight_peak == 120
    summary = summary_of(records, observation=seen)
    assert (summary.concurrency, summary.concurrency_peak) == (120, 120)


def test_l02_connections_and_handshakes_are_as_many_as_slots(make_sender: MakeSender, authority: trustme.CA) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with authority.cert_pem.tempfile() as ca_file:
        records, _, fake = step(
            *(make_sender, lambda r: [T(3), *GOOD], 16, 160),
            server={"ssl": context},
            access=Access(ca_file=ca_file),
            timeouts=Timeouts(20, 20, 20, 60),
        )
    assert 16 <= fake.connections <= 32, "on a busy machine a body may end after the next request began"
    new = [r for r in records if r.connect is not None]
    assert len(new) == fake.connections, "whether its connection was a new one is in each record"
    assert all(r.connect and r.connect.tls_us for r in new)
    assert {r.outcome for r in records} == {"ok"}


def test_l03_a_server_that_closes_idle_connections_costs_no_request(make_sender: MakeSender) -> None:
    rng = random.Random(3)

    async def main() -> list[Record]:
        async with ScriptedServer(GOOD, idle_close=0.05) as fake, make_sender(fake.url) as sender:
            records = []
            for number in range(40):
                records.append(await sender.send(spec(number), time.monotonic_ns()))
                await anyio.sleep(rng.uniform(0.03, 0.06))
        assert fake.connections > 3
        return records

    records = anyio.run(main)
    assert {r.outcome for r in records} == {"ok"}
    assert sum(r.connect is not None for r in records) > 3, "a new connection is in the record"


def test_l03_only_what_met_a_stale_connection_is_sent_again_and_only_once(make_sender: MakeSender) -> None:
    used: set[int] = set()

    def handler(request: Request) -> Any:
        stale = request.connection in used
        used.add(request.connection)
        return [RST] if stale else GOOD

    records = send(make_sender, handler, sends=4)
    assert {r.outcome for r in records} == {"ok"}
    assert all(r.connect is not None for r in records)
    tries: list[Request] = []

    def never(request: Request) -> Any:
        tries.append(request)
        return GOOD if request.number == 0 else [RST]

    first, second, third = send(make_sender, never, sends=3)
    assert (first.outcome, second.outcome, third.outcome) == ("ok", "error", "error")
    assert len(tries) == 1 + 2 + 1, "the second on the kept connection and again on a new one, the third on a new one"


def test_l03_a_server_that_had_the_request_and_died_is_a_failure(make_sender: MakeSender) -> None:
    """Also on a connection that was kept: long after the request, its end crosses nothing."""
    got: list[int] = []

    def handler(request: Request) -> Any:
        got.append(request.number)
        return GOOD if len(got) == 1 else [T(400), RST]

    records = send(make_sender, handler, sends=2)
    assert [r.outcome for r in records] == ["ok", "error"]
    assert len(got) == 2, "nothing is sent again"
    assert records[1].error is not None and records[1].error.kind in ("reset", "protocol")


def test_p21_a_socket_that_is_held_after_the_end_holds_no_slot(make_sender: MakeSender) -> None:
    records = send(make_sender, lambda request: [*GOOD, T(200)], sends=5)
    assert {r.outcome for r in records} == {"ok"}
    waits = [(after.sent_ns or 0) - before.done_ns for before, after in pairwise(records)]
    assert statistics.median(waits) < 100_000_000, waits


def test_p21_a_body_that_ends_a_little_later_leaves_its_connection_for_another_request() -> None:
    async def main() -> list[Record]:
        async with ScriptedServer([*GOOD, T(30)]) as fake, open_sender("kernel", fake.url) as sender:
            records = []
            for number in range(3):
                records.append(await sender.send(spec(number), time.monotonic_ns()))
                await anyio.sleep(0.15)
        assert fake.connections == 1
        return records

    assert {r.outcome for r in anyio.run(main)} == {"ok"}


def full_backlog() -> tuple[socket, list[socket]]:
    """A port whose queue of connections is full: whoever connects to it now waits."""
    listening = create_server(("127.0.0.1", 0), backlog=0)
    fillers = []
    for _ in range(4):
        filler = socket()
        filler.setblocking(False)
        filler.connect_ex(listening.getsockname())
        fillers.append(filler)
    return listening, fillers


def test_l04_requests_that_are_cut_leak_no_slot(make_sender: MakeSender) -> None:
    """Cut while they connect, while they wait and while they stream, and timed out; then as many as there are slots."""
    hanging = True

    def handler(request: Request) -> Any:
        return [C("a"), T(30_000)] if hanging and request.number % 2 else [T(30_000 if hanging else 20), *GOOD]

    async def main() -> tuple[list[Record], list[Record], int]:
        nonlocal hanging
        ended: list[Record] = []
        after: list[Record] = []
        listening, fillers = full_backlog()
        port = listening.getsockname()[1]
        async with make_sender(
            f"http://127.0.0.1:{port}", connections=10, timeouts=Timeouts(0.3, 60, 60, 60)
        ) as sender:

            async def one(number: int, into: list[Record]) -> None:
                into.append(await sender.send(spec(number), time.monotonic_ns()))

            for half in ("cut", "wait"):  # while connecting: half of them cut, half of them until their timeout
                async with anyio.create_task_group() as group:
                    for number in range(10):
                        group.start_soon(one, number, ended)
                    await anyio.sleep(0.05)
                    if half == "cut":
                        sender.cut("cancelled")
            for one_socket in (*fillers, listening):
                one_socket.close()
            async with ScriptedServer(handler, port=port) as fake:
                for _ in range(2):
                    async with anyio.create_task_group() as group:
                        for number in range(20):
                            group.start_soon(one, number, ended)
                        await anyio.sleep(0.1)
                        sender.cut("cut")
                hanging = False
                async with anyio.create_task_group() as group:
                    for number in range(10):
                        group.start_soon(one, number, after)
                return ended, after, fake.peak_in_flight

    ended, after, peak = anyio.run(main)
    assert [r.outcome for r in ended[:10]] == ["cancelled"] * 10
    assert {(r.outcome, r.timeout) for r in ended[10:20]} == {("timeout", "connect")}
    assert {r.outcome for r in ended[20:]} <= {"cut", "timeout"}
    assert [r.outcome for r in after] == ["ok"] * 10
    assert all(r.done_ns - r.scheduled_ns < 2e9 for r in after)
    assert peak >= 10


@pytest.mark.skipif("kernel" not in TRANSPORTS, reason="httpx's own pool is the one that the case complains of")
def test_l05_a_request_costs_no_more_among_many() -> None:
    """CPU time, of client and server together, of a request among 16 and among 200."""

    def cpu_s(concurrency: int) -> float:
        async def main() -> float:
            async with (
                ScriptedServer(lambda r: [T(20), *GOOD]) as fake,
                open_sender("kernel", fake.url, connections=concurrency) as sender,
            ):
                plan = StepPlan(1, concurrency, lambda p: False, concurrency, requests=400, drain_s=5)
                n = count()
                start = time.process_time()
                await run_step(
                    sender, repeat(PROMPT), plan, on_record=lambda r: next(n), clock=time.monotonic_ns, zero_ns=0
                )
                return (time.process_time() - start) / next(n)

        return anyio.run(main)

    few = min(cpu_s(16) for _ in range(2))
    assert min(cpu_s(200) for _ in range(2)) < 2.5 * few


def contexts() -> list[ssl.SSLContext]:
    return [found for found in gc.get_objects() if isinstance(found, ssl.SSLContext)]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("tls", [False, True])
def test_l07_certificates_are_parsed_once_and_never_without_tls(transport: str, tls: bool) -> None:
    async def main() -> list[int]:
        before = {id(one) for one in contexts()}
        async with open_client(Access(httpx_pool=transport == "httpx"), 4, tls=tls) as client:
            for number in range(3):
                client.build_request("POST", f"http{'s' * tls}://127.0.0.1:9/{number}")
            return [one.cert_store_stats()["x509_ca"] for one in contexts() if id(one) not in before]

    authorities = anyio.run(main)
    assert len(authorities) <= 1
    assert sum(authorities) > 0 if tls else sum(authorities) == 0


def test_l08_large_bodies_both_ways(make_sender: MakeSender) -> None:
    """200 KB to the server while it sends chunks of 64 KB: every answer is whole, and what came is in order."""
    text = "x" * 60_000

    def handler(request: Request) -> Any:
        assert len(request.body) > 200_000
        return [*(CU(text, k + 1) for k in range(4)), FIN("stop"), U(3, 4), DONE]

    from loadgen.records import Prompt

    records, seen, _ = step(make_sender, handler, 16, 32, prompt=Prompt("word " * 40_000))
    assert {r.outcome for r in records} <= {"ok", "cut"}
    ok = [r for r in records if r.outcome == "ok"]
    assert len(ok) >= 32 and seen.in_flight_peak == 16
    for record in ok:
        assert record.output_tokens.count == 4
        assert record.events is not None and len(record.events.gap_us) == 4
        assert record.sent_ns and record.first_token_ns and record.last_token_ns
        assert record.sent_ns < record.first_token_ns <= record.last_token_ns <= record.done_ns


# --- rates ----------------------------------------------------------------------------------------------------------


def open_step(
    make_sender: MakeSender, rate: float, seconds: float, handler: Any, block_s: float = 0.0, **plan: Any
) -> tuple[list[Record], Observation]:
    records: list[Record] = []

    def keep(record: Record) -> None:
        records.append(record)
        time.sleep(block_s)

    async def main() -> Observation:
        async with ScriptedServer(handler) as fake, make_sender(fake.url, connections=200) as sender:
            how = StepPlan(
                step=1, concurrency=0, enough=lambda p: p.window_s >= seconds, warmup=1, rate=rate, max_error_rate=1.0,
                drain_s=20.0, **plan,
            )  # fmt: skip
            return await run_open_step(
                sender, repeat(PROMPT), how, Schedule(Arrivals("constant"), rate, 1), on_record=keep,
                clock=time.monotonic_ns, zero_ns=0,
            )  # fmt: skip

    return records, anyio.run(main)


def test_l09_the_rate_asked_for_is_reached(make_sender: MakeSender) -> None:
    records, seen = open_step(make_sender, 200, 1.0, lambda r: GOOD)
    measured = sorted((r for r in records if r.phase == "measured"), key=lambda r: r.scheduled_ns)
    assert seen.window is not None
    assert (len(measured) + seen.not_dispatched) / seen.window.seconds == pytest.approx(200, rel=0.01)
    gaps = [b.scheduled_ns - a.scheduled_ns for a, b in pairwise(measured)]
    assert max(gaps) - min(gaps) <= 2, "an absolute schedule: no wait is added to another"
    late = [(r.sent_ns or 0) - r.scheduled_ns for r in measured]
    later = statistics.median(late[-50:]) - statistics.median(late[:50])
    if later > 50e6:  # where this machine is too busy for the rate, the step says so
        assert judge(summary_of(records, observation=seen), Slo()).verdict == "invalid", (
            "none is later for those before it"
        )


def test_l11_what_a_slow_client_did_not_send_is_counted_and_voids_the_step(make_sender: MakeSender) -> None:
    """A client that spends 20 ms on every request cannot send a hundred a second."""
    records, seen = open_step(make_sender, 100, 0.6, lambda r: GOOD, block_s=0.02)
    assert seen.window is not None
    measured = [r for r in records if r.phase == "measured"]
    # On a busy machine it may be late already as the window opens: the first in it was due before then.
    due = (seen.window.end_ns - min(r.scheduled_ns for r in measured)) / 1e9 * 100
    assert len(measured) + seen.not_dispatched == pytest.approx(due, abs=2)
    summary = summary_of(records, observation=seen)
    lag = summary.latency["dispatch_lag"]
    assert lag.at(50.0) is not None and lag.at(99.0) is not None
    level = judge(summary, Slo())
    assert level.verdict == "invalid"


def test_l11_a_step_ends_when_what_it_sent_is_settled(make_sender: MakeSender) -> None:
    records, seen = open_step(make_sender, 100, 0.3, lambda r: [T(300), *GOOD])
    measured = [r for r in records if r.phase == "measured"]
    assert {(r.outcome, r.timeout) for r in measured} == {("ok", None)}
    assert seen.window is not None
    assert max(r.done_ns for r in measured) > seen.window.end_ns, "followed past the end of the window"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a way to keep processes on one CPU")
def test_l12_a_client_without_a_cpu_says_so_and_finds_no_plateau(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))

    def there() -> None:
        os.sched_setaffinity(0, {cpu})

    hog = subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=there, stdin=subprocess.DEVNULL)
    try:
        with ThreadedServer(posts(answer)) as server:
            done = subprocess.run(
                subprocess_arguments(
                    *("sweep", server.url, *QUICK, "--levels", "32", "--requests", "80", "-o", str(tmp_path / "out"))
                ),
                cwd=ROOT, preexec_fn=there, capture_output=True, timeout=60, check=False,
            )  # fmt: skip
    finally:
        hog.kill()
        hog.wait()
    assert done.returncode == Exit.UNDECIDED, done.stderr.decode()
    said = done.stdout.decode()
    assert "This client was the limit" in said and "plateau" not in said
    assert "CPU" in said, "and what to do about it"


EMFILE = """
import resource, sys, time
from itertools import repeat
import anyio
from loadgen.client.driver import StepPlan, run_step
from loadgen.search.verdict import judge
from loadgen.results import Slo
from tests.cases.support import PROMPT, open_sender, summary_of

async def main():
    records = []
    async with open_sender(sys.argv[1], sys.argv[2], connections=100) as sender:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        plan = StepPlan(1, 100, lambda p: False, 0, requests=200, drain_s=1.0)
        seen = await run_step(
            sender, repeat(PROMPT), plan, on_record=records.append, clock=time.monotonic_ns, zero_ns=0
        )
    ours = [r for r in records if r.outcome == "client_error"]
    level = judge(summary_of(records, observation=seen), Slo())
    print(seen.ended, level.verdict, len(ours) > 0, {r.error.kind for r in ours}, seen.detail)

anyio.run(main)
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_l13_too_many_open_files_is_ours_and_voids_the_step(transport: str) -> None:
    with ThreadedServer(lambda r: [T(300), *GOOD]) as server:
        done = subprocess.run(
            [sys.executable, "-c", EMFILE, transport, server.url],
            cwd=ROOT, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
    said = done.stdout.decode()
    assert said.startswith("client invalid True {'client'}"), (said, done.stderr.decode())
    assert "too many open files" in said


# --- warm-up and length ---------------------------------------------------------------------------------------------


def test_l15_the_warm_up_is_in_no_figure(make_sender: MakeSender) -> None:
    """As many slow answers as there are slots: a cold server."""
    records, seen, _ = step(make_sender, lambda r: [T(300 if r.number < 8 else 10), *GOOD], 8, 40)
    slow = [r for r in records if r.done_ns - (r.sent_ns or 0) > 250e6]
    assert len(slow) >= 8 and {r.phase for r in slow[:8]} == {"warmup"}
    summary = summary_of(records, observation=seen)
    ttft = summary.latency["ttft"]
    assert summary.sent == ttft.n == 40
    assert ttft.max is not None and ttft.max < 250


@pytest.mark.parametrize("most", [6, 9])
def test_l15_the_warm_up_keeps_to_the_cap(most: int, tmp_path: Path) -> None:
    with ThreadedServer(posts(answer)) as server:
        loadgen("run", server.url, *QUICK, "-c", "8", "--max-requests", str(most), output=tmp_path)
        got = sum(request.method == "POST" for request in server.requests)
    assert got <= most


def test_l15_a_warm_up_that_fails_is_told_at_once(tmp_path: Path) -> None:
    def reply(request: Request) -> Any:
        return answer(request) if "-p-" in request.headers["x-request-id"] else error_reply(500, "cold and broken")

    start = time.monotonic()
    with ThreadedServer(posts(reply)) as server:
        ran = loadgen("run", server.url, *QUICK, "-c", "8", "--warmup", "1000", output=tmp_path)
        assert sum(request.method == "POST" for request in server.requests) < 60
    assert ran.code == Exit.TARGET
    assert "cold and broken" in ran.said
    assert time.monotonic() - start < 20


RULE = StepRule(first_look=10, look_ratio=1.3, requests_cap=50, seconds_min=0.01, seconds_max=0.05, precision=0.03)


def test_l16_the_limits_of_a_step_scale_and_the_run_is_announced(tmp_path: Path) -> None:
    most = {level: RULE.requests_most(level) for level in (1, 8, 64, 256)}
    assert most == {1: 50, 8: 64, 64: 512, 256: 2048}
    assert RULE.ended(1, 10, 2, 1.0), "and time is a cap, with two answers for each slot"
    said: list[str] = []

    def reply(request: Request) -> Any:
        if "-p-" not in request.headers["x-request-id"]:
            said.append("load")
        return answer(request)

    with ThreadedServer(posts(reply)) as server:
        ran = loadgen(
            "sweep", server.url, *QUICK, "--levels", "1,2,4", "--max-requests", "40", "--requests", "8", output=tmp_path
        )
    announced = next(line for line in ran.err.splitlines() if "at most" in line)
    assert "concurrency 1, 2, 4" in announced and "requests" in announced
    assert announced.rstrip(" )").endswith((" s", "min", " h")), "how long it may take"
    assert len(said) <= 40


def test_l17_a_step_lasts_for_some_answers_of_every_slot(make_sender: MakeSender) -> None:
    """Answers that take longer than the longest step: it goes on until each slot has had two."""
    records: list[Record] = []

    def enough(progress: Progress) -> bool:
        return RULE.ended(4, progress.measured_sent, progress.measured_done, progress.window_s)

    async def main() -> Observation:
        async with ScriptedServer(lambda r: [T(150), *GOOD]) as fake, make_sender(fake.url) as sender:
            return await run_step(
                sender, repeat(PROMPT), StepPlan(1, 4, enough, 4), on_record=records.append, clock=time.monotonic_ns,
                zero_ns=0,
            )  # fmt: skip

    seen = anyio.run(main)
    assert seen.window is not None and seen.window.seconds >= 0.29
    assert sum(r.phase == "measured" and r.done_ns <= seen.window.end_ns for r in records) >= 8


# --- saturation -----------------------------------------------------------------------------------------------------


def limited(slots: int, ms: float) -> Any:
    """A server that works on so many requests at a time, each for so long."""
    lock: list[anyio.Semaphore] = []

    async def serve(request: Request) -> Any:
        if not lock:
            lock.append(anyio.Semaphore(slots))
        async with lock[0]:
            await anyio.sleep(ms / 1e3)
        for action in answer(request):
            yield action

    return serve


def test_l18_a_ladder_stops_at_the_plateau_and_says_so(tmp_path: Path) -> None:
    for output in tries(tmp_path):
        with ThreadedServer(posts(limited(2, 20))) as server:
            ran = loadgen("sweep", server.url, *QUICK, "--requests", "60", "--max-level", "256", output=output)
        levels = [level["concurrency"] for level in ran.manifest["levels"]]
        assert levels[0] == 1
        if not disturbed(ran):
            break
        assert ran.code in (Exit.UNDECIDED, Exit.DONE)
    stop = ran.manifest["stop"]
    assert stop["reason"] in ("plateau", "over_saturated"), ran.said
    assert max(levels) <= 128, "sixty requests a level prove a plateau late"
    assert "stopped growing" in stop["sentence"] or "fell twice" in stop["sentence"]


def test_l18_a_rate_above_the_capacity_is_told(tmp_path: Path) -> None:
    for output in tries(tmp_path):
        with ThreadedServer(posts(limited(2, 40))) as server:  # 50 requests/s
            ran = loadgen(
                "run", server.url, *QUICK, *("--rate", "100", "--duration", "800ms", "--warmup", "5"), output=output
            )
        [seen] = ran.report()["steps"]
        if seen["verdict"] != "invalid":
            break
        assert ran.code == Exit.UNDECIDED
    assert seen["attempt_rate_req_s"] > 1.3 * seen["request_throughput"]
    assert "it does not keep up" in ran.said


# --- slow first tokens ----------------------------------------------------------------------------------------------


def test_l21_a_late_first_token_is_measured(make_sender: MakeSender) -> None:
    """Nothing but the exchange's own timeouts, ten minutes for the first token, ends a request."""
    assert Timeouts().first_token == 600
    [record] = send(make_sender, [T(700), *GOOD], timeouts=Timeouts(0.3, 5, 0.3, 20))
    assert record.outcome == "ok"
    assert record.first_token_ns and record.first_token_ns - (record.sent_ns or 0) >= 0.69e9


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_l21_no_timeout_of_a_library_is_in_force(transport: str) -> None:
    async def main() -> Any:
        async with open_client(Access(httpx_pool=transport == "httpx"), 1, tls=False) as client:
            return client.timeout

    timeout = anyio.run(main)
    assert (timeout.read, timeout.write, timeout.pool) == (None, None, None)


def test_l21_waiting_for_a_connection_of_the_pool_is_no_failure(make_sender: MakeSender) -> None:
    """More requests than connections: with the connect timeout long over, the last is still sent."""
    records, _, fake = step(make_sender, lambda r: [T(150), *GOOD], 6, 6, warmup=0, timeouts=Timeouts(2, 5, 5, 20))
    assert {r.outcome for r in records} <= {"ok", "cut"}
    assert fake.peak_in_flight == 6
