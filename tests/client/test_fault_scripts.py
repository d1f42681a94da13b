"""Random fault scripts through the real driver and real sockets: whatever a server does, each request ends with one
right outcome, every slot stays filled, and nothing is left behind.

LOADGEN_FUZZ_FAULTS=2000 (`make fuzz-faults`) asks for so many scripts; a script is known by its seed, from 0 on.
"""

from __future__ import annotations

import asyncio
import gc
import os
import ssl
import tempfile
import time
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme

from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import RequestOptions
from loadgen.client.driver import StepPlan, run_step
from loadgen.client.exchange import HttpxSender, Timeouts
from loadgen.client.transport import Access, open_client
from loadgen.log.codec import decode_record, encode_record
from loadgen.records import Prompt, Record
from loadgen.results import Observation
from tests.client.fault_scripts import MAX_EVENT, Script, described, fault_script
from tests.client.fault_server import Player

SCRIPTS = int(os.environ.get("LOADGEN_FUZZ_FAULTS", "45"))
AT_ONCE = 40
HANGS_S = 60.0  # for a script that lasts seconds
ARMS = {"kernel": Access(), "thread": Access(threaded=True), "httpx": Access(httpx_pool=True)}
# By its seed a script is of one endpoint, in the clear or under TLS; LOADGEN_FUZZ_FAULTS_OF=tls (or =responses, …) has
# all of them be of that.
VARIANTS = [
    *[("chat", False)] * 4, ("chat", True), ("chat", True), ("responses", False), ("generate_stream", False),
    ("ollama_chat", False), ("ollama_generate", True),
]  # fmt: skip
ONLY = os.environ.get("LOADGEN_FUZZ_FAULTS_OF", "")
TIMEOUTS = Timeouts(connect=10, first_token=1.2, idle=1.2, total=10)


@dataclass
class Run:
    """What came of one script."""

    script: Script
    player: Player
    tls: bool = False
    records: list[Record] = field(default_factory=list)
    seen: Observation | None = None
    left_open: int = 0


def variant(seed: int) -> tuple[str, bool]:
    """The endpoint, and whether under TLS."""
    if ONLY:
        return ("chat", True) if ONLY == "tls" else (ONLY, False)
    return VARIANTS[seed % len(VARIANTS)]


@cache
def authority() -> tuple[ssl.SSLContext, str]:
    """A server's TLS, and the file with the CA that signed for it."""
    ca = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    path = Path(tempfile.mkdtemp()) / "ca.pem"
    ca.cert_pem.write_to_path(str(path))
    return context, str(path)


async def play(script: Script, access: Access, tls: bool) -> Run:
    player = Player(script)
    run = Run(script, player, tls)
    server = await player.start(authority()[0] if tls else None)
    if tls:
        access = replace(access, ca_file=authority()[1])
    plan = StepPlan(
        step=1,
        concurrency=script.concurrency,
        enough=lambda progress: False,
        warmup=0,
        requests=script.requests,
        max_error_rate=1.0,
        drain_s=0.0,
    )
    dialect = DIALECTS[script.endpoint]
    try:
        with anyio.fail_after(HANGS_S):
            async with open_client(access, script.concurrency, tls=tls) as client:
                sender = HttpxSender(
                    client,
                    f"{'https' if tls else 'http'}://127.0.0.1:{player.port}{dialect.path}",
                    dialect,
                    RequestOptions("m"),
                    zero_ns=0,
                    timeouts=TIMEOUTS,
                    max_event_bytes=MAX_EVENT,
                )
                prompts = repeat(Prompt("hi", 5, 5))
                run.seen = await run_step(
                    sender, prompts, plan, on_record=run.records.append, clock=time.monotonic_ns, zero_ns=0
                )
            for _ in range(400):  # the server sees the client's ends a little later
                if not player.open:
                    break
                await asyncio.sleep(0.005)
            run.left_open = player.open
    finally:
        server.close()
        await server.wait_closed()
    return run


# --- what must be true ------------------------------------------------------------------------------------------------


def faults_of(run: Run, arm: str) -> list[str]:
    """All that is wrong with what came of a script."""
    script, seen, found = run.script, run.seen, []
    if seen is None:
        return ["it hung"]
    numbers = sorted(int(record.id.rpartition("-")[2]) for record in run.records)
    if numbers != list(range(len(numbers))):
        found.append(f"records of {numbers}")
    if not set(run.player.served) <= set(numbers):
        found.append(f"without a record: {set(run.player.served) - set(numbers)}")
    refusals = {record.phase for record in run.records if record.status in (401, 402, 403)}
    refused = seen.ended == "unauthorized"
    if seen.ended not in ("complete", "unauthorized") or (refused and not refusals):
        found.append(f"ended {seen.ended}: {seen.detail}")
    if "measured" in refusals and not refused:  # a filler's may come when all is over
        found.append(f"ended {seen.ended} though it was refused")
    if not refused:
        measured = [record for record in run.records if record.phase == "measured"]
        if len(measured) != script.requests:
            found.append(f"{len(measured)} measured requests of {script.requests}")
        if seen.in_flight_peak != script.concurrency:
            found.append(f"{seen.in_flight_peak} in flight at most, not {script.concurrency}")
        # A slot is filled again at once; only where nothing was answered it waits before it tries again.
        assert seen.window is not None
        unanswered = any(record.status is None and record.outcome == "error" for record in run.records)
        whole_ns = script.concurrency * (seen.window.end_ns - seen.window.start_ns)
        if not unanswered and whole_ns - seen.in_flight_integral_ns > whole_ns / 20 + script.concurrency * 100_000_000:
            found.append(f"slots stayed empty: {seen.in_flight_integral_ns / 1e9} of {whole_ns / 1e9} request-seconds")
    if run.left_open:
        found.append(f"{run.left_open} connections left open")
    return found + [fault for record in run.records for fault in record_faults(run, record, arm, refused)]


def record_faults(run: Run, record: Record, arm: str, refused: bool) -> list[str]:
    number = int(record.id.rpartition("-")[2])
    answer = run.script.answers[number % len(run.script.answers)]
    outcome = described(record.outcome, record.error and record.error.kind, record.timeout)
    right = set(answer.right)
    if record.phase == "filler" or refused:
        right.add("cut")
    if run.script.reject:
        right |= {"error:reset", "error:protocol"}  # its connection may have been closed when it was accepted
    if run.tls and arm == "httpx" and record.connect is None:  # httpcore may take one that is about to be closed
        right |= {"error:reset", "error:protocol"}
    stray = run.script.stray(late=arm != "httpx") if record.connect is None else set[str]()
    right |= stray
    found = []
    if outcome not in right:
        found.append(f"{record.id} ({answer.name}): {outcome}, not {sorted(right)}: {record.error}")
    if (
        not stray
        and outcome in answer.right
        and answer.status is not None
        and record.status not in (answer.status, None)
    ):
        found.append(f"{record.id} ({answer.name}): status {record.status}, not {answer.status}")
    if (record.error is None) != (record.outcome in ("ok", "cut", "timeout")):
        found.append(f"{record.id} ({answer.name}): {outcome} with {record.error}")
    stamps = [record.scheduled_ns, record.sent_ns, record.first_byte_ns, record.first_token_ns, record.last_token_ns]
    known = [stamp for stamp in [*stamps, record.done_ns] if stamp is not None]
    if known != sorted(known):
        found.append(f"{record.id} ({answer.name}, {outcome}): stamps out of order: {stamps}, {record.done_ns}")
    if decode_record(encode_record(record)) != record:
        found.append(f"{record.id} ({answer.name}): another record in the log")
    return found


def untimely(faults: list[str]) -> bool:
    """Is all that is wrong that something took too long? That may be the machine: such a script is played again."""
    return all("timeout" in fault.split(", not")[0] or "stayed empty" in fault for fault in faults)


async def play_all(seeds: list[int], arm: str) -> dict[int, list[str]]:
    """Each script's faults, where there are any; also of the loop they ran in: tasks, descriptors, lost exceptions."""
    loop = asyncio.get_running_loop()
    lost: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: lost.append(context))
    tasks_before = len(asyncio.all_tasks())
    found: dict[int, list[str]] = {}
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(seed: int) -> None:
        async with limit:
            try:
                endpoint, tls = variant(seed)
                faults = faults_of(await play(fault_script(seed, endpoint), ARMS[arm], tls), arm)
            except Exception as error:
                faults = [f"{type(error).__name__}: {error}"]
        if faults:
            found[seed] = faults

    await one(-1)  # what is opened once and kept
    gc.collect()
    before = descriptors()
    await asyncio.gather(*map(one, seeds))
    for _ in range(3):
        for seed, faults in list(found.items()):
            if untimely(faults):
                del found[seed]
                await one(seed)
    await asyncio.sleep(0.05)
    gc.collect()
    if lost:
        found[-2] = [f"lost: {context}" for context in lost]
    # httpcore leaves a connection open that is cancelled within its TLS handshake; the server waits for the rest of it.
    shaking = sum("_accept_connection2" in repr(task) for task in asyncio.all_tasks()) if arm == "httpx" else 0
    if len(asyncio.all_tasks()) - shaking > tasks_before:
        found[-3] = [f"tasks left: {asyncio.all_tasks()}"]
    if descriptors() > before + 3 * shaking:
        found[-4] = [f"{descriptors() - before} descriptors left"]
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts descriptors in /proc")
@pytest.mark.parametrize("arm", ARMS)
def test_whatever_a_server_does(arm: str) -> None:
    """Both transports play every script; the transport's thread, which is most at risk of a race, every third."""
    seeds = list(range(0, SCRIPTS, 3 if arm == "thread" else 1))
    faults = asyncio.run(play_all(seeds, arm))
    assert not faults, "\n".join(f"script {seed}: {fault}" for seed, all_ in faults.items() for fault in all_[:3])[
        :6000
    ]


def test_the_scripts_cover_every_kind_of_end() -> None:
    right = {outcome for seed in range(100) for answer in fault_script(seed).answers for outcome in answer.right}
    wanted = {"ok", "empty", "incomplete", "timeout:first_token", "timeout:idle"}
    kinds = {"reset", "protocol", "http", "server", "redirect", "content_type", "event_too_long"}
    assert right == wanted | {f"error:{kind}" for kind in kinds}
