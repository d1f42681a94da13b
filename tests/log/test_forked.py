"""Each in a program of its own: a test's process may have other threads, and is not copied then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.log.codec import encode_record
from loadgen.records import Events
from tests.log.record_strategies import RECORD
from tests.thorough import variants

ROOT = Path(__file__).parents[2]
HEAD = """
import os, signal, sys, threading, time
import numpy as np
import orjson
from loadgen.log import forked
AS_JSON = forked.Way(
    lambda found: [b"", orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY)], lambda data: orjson.loads(data)
)
def each(work, jobs, *rest):
    return forked.each(work, jobs, AS_JSON, *rest)
me = os.getpid()
"""

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux shares memory so")


def said(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", HEAD + script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.strip()


def test_jobs_are_shared_out_and_come_back_in_their_order() -> None:
    script = """
def work(n):
    time.sleep(0.02)
    return os.getpid(), n, list(range(n)), "x" * n
found = each(work, range(30), 3)
assert [(n, numbers, len(text)) for _, n, numbers, text in found] == [(n, list(range(n)), n) for n in range(30)]
print(len({pid for pid, *_ in found}), me in {pid for pid, *_ in found})
"""
    assert said(script) == "3 True"


def test_arrays_of_any_length_come_back() -> None:
    script = """
def work(n):
    time.sleep(0.02)
    return os.getpid(), np.arange(n), np.empty((0, 2))
way = forked.Way(
    lambda found: [b"%8d" % found[0], found[1].data, found[2].data],
    lambda data: (int(bytes(data[:8])), np.frombuffer(data[8:], dtype=np.int64), np.empty((0, 2))),
)
found = forked.each(work, range(30), way, 3)
assert [one.tolist() for _, one, _ in found] == [list(range(n)) for n in range(30)]
print(len({pid for pid, *_ in found}))
"""
    assert said(script) == "3"


def test_this_process_does_something_else_while_copies_begin() -> None:
    script = """
done = []
each(time.sleep, [0.0] * 20, 2, lambda: done.append(os.getpid() == me))
each(time.sleep, [0.0] * 20, 1, lambda: done.append("alone"))
print(done)
"""
    assert said(script) == "[True]"


def test_one_process_is_asked_for() -> None:
    assert said("print({os.getpid() for _ in each(lambda n: os.getpid(), range(9), 1)} == {me})") == "True"


def test_a_process_with_another_thread_is_not_copied() -> None:
    script = """
threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
print(set(each(lambda n: (time.sleep(0.02), os.getpid())[1], range(9), 3)) == {me})
"""
    assert said(script) == "True"


@pytest.mark.parametrize("processes", [1, 3])
def test_the_first_fault_is_raised(processes: int) -> None:
    script = f"""
def work(n):
    time.sleep(0.02)
    if n in (4, 5, 6, 17):
        raise ValueError(f"job {{n}}")
    return n
try:
    each(work, range(20), {processes})
except ValueError as error:
    print(error)
"""
    assert said(script) == "job 4"


@pytest.mark.parametrize("end", ["os._exit(0)", "os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(0)"])
def test_what_a_copy_did_not_finish_is_done_here(end: str) -> None:
    script = f"""
def work(n):
    time.sleep(0.02)
    if os.getpid() != me and n > 5:
        {end}
    return n
print(each(work, range(20), 3) == list(range(20)))
"""
    assert said(script) == "True"


def alive(pids: Sequence[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists() and "Z" not in _state(pid)]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_behind(number: signal.Signals) -> None:
    """Though the signal goes to the parent alone."""
    script = """
def work(n):
    if os.getpid() != me:
        os.write(1, b"%d\\n" % os.getpid())
    time.sleep(0.2)
    return n
each(work, range(10_000), 3)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD + script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    copies: set[int] = set()
    while len(copies) < 2:
        copies.add(int(process.stdout.readline()))
    process.send_signal(number)
    assert process.wait(30) != 0
    until = time.monotonic() + 30
    while alive(list(copies)) and time.monotonic() < until:
        time.sleep(0.05)
    process.stdout.close()
    assert not alive(list(copies))


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Several spans and steps, enough requests for these to be shared out."""
    gaps, ok = [9_000 + i % 997 for i in range(300)], []
    for i in range(6_000):
        at = i * 3_000_000
        stamps = {name: at + 50_000 * n for n, name in enumerate(("scheduled_ns", "sent_ns", "first_byte_ns"))}
        first, last = at + 60_000_000 + i % 7, at + 3_000_000_000 + i % 11
        stamps |= {"first_token_ns": first, "first_content_ns": first, "last_token_ns": last, "done_ns": last + 9}
        events = Events(gaps, [1] * 300, [])
        ok.append(encode_record(replace(RECORD, id=f"{i}", step=1 + i // 1_500, events=events, **stamps)))
    return b"".join(ok)


def report(folder: Path, log: bytes, cpus: set[int]) -> tuple[int, str, str]:
    folder.mkdir(parents=True)
    (folder / "requests.jsonl").write_bytes(log)
    done = subprocess.run(
        [sys.executable, "-m", "loadgen", "report", "run", "--json"],
        cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")
@pytest.mark.parametrize("damage", variants(b'{"id":"cut', b"[]\n", b"", b'{"id":"a"}\n', usual=2))
def test_a_report_by_several_processes_is_that_of_one(tmp_path: Path, long_log: bytes, damage: bytes) -> None:
    cpus = os.sched_getaffinity(0)
    alone = report(tmp_path / "alone" / "run", long_log + damage, {min(cpus)})
    shared = report(tmp_path / "shared" / "run", long_log + damage, cpus)
    assert alone == shared
    assert (alone[0] == 0) == (b"\n" not in damage)
