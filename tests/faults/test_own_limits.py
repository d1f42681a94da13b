"""Our own limits: a disk that is full, a folder that cannot be written, a stopped process, a clock that is stepped.

Elsewhere: descriptors (L13), a CPU that others have (L12), kills and signals (tests/cli/test_signals.py), the log's own
behaviour on a full disk (R14), addresses and ports (tests/client/test_addresses.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.log.store import open_run
from loadgen.simulator.scripted import Request, ThreadedServer
from tests.cli.command import (
    Call,
    finish,
    folder_in,
    generations,
    manifest_of,
    records_of,
    run,
    serve,
    start,
    tries,
    until,
)
from tests.thorough import THOROUGH

SHAPE = ("--input-len", "16", "--output-len", "4")


@contextlib.contextmanager
def small_disk(place: Path, kib: int) -> Iterator[Path]:
    """A file system of so many KiB. Skips where none can be mounted."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "loadgen-test", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("only root can mount a small file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("workers", [1, 2] if THOROUGH > 1 else [2])
def test_a_full_disk_stops_the_run_which_says_so_and_keeps_what_it_has(workers: int, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 96) as disk, ThreadedServer(serve(wait_ms=1.0)) as server:
        said = run(
            *("run", server.url, *SHAPE, "-c", "4", "--requests", "3000", "--workers", workers, "-o", disk),
            timeout_s=90,
        )
        sent = len(generations(server.requests))
        assert said.code == 2 and "no room left for the log" in said.err and "are kept" in said.err, said.err
        assert "Traceback" not in said.err
        assert sent < 2000, "nothing more is sent once nothing can be kept"
        kept = open_run(folder_in(disk))
        records = list(kept.records())
        assert len(records) > 20 and kept.truncated_lines == 0
        assert len({record.id for record in records}) == len(records) <= sent


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_sent(tmp_path: Path, call: Call) -> None:
    with ThreadedServer(serve()) as server:
        for place in ("/proc/runs", "/dev/null/runs", tmp_path / ("x" * 300)):
            said = call("run", server.url, *SHAPE, "-c", "1", "--requests", "2", "-o", place)
            assert said.code == 2 and "Traceback" not in said.err, said.err
            assert len(said.err.strip().splitlines()) <= 4
        assert not generations(server.requests) or all("runs" not in str(p) for p in tmp_path.iterdir())


def test_a_client_that_was_stopped_voids_its_step_and_says_so(tmp_path: Path) -> None:
    """SIGSTOP and SIGCONT, as a debugger, a hypervisor or a full terminal does."""
    with ThreadedServer(serve(wait_ms=40.0)) as server:
        process = start("run", server.url, *SHAPE, "-c", "4", "--duration", "4s", "-o", tmp_path)
        end = time.monotonic() + 60
        while len(generations(server.requests)) < 30 and time.monotonic() < end and process.poll() is None:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.2)
        os.kill(process.pid, signal.SIGCONT)
        said = finish(process)
    assert said.code == 4, said.err + said.out
    assert "This client was the limit" in said.out, said.out
    manifest = manifest_of(folder_in(tmp_path))
    assert manifest["stop"]["reason"] == "client_bound" and manifest["status"] == "complete"


def test_a_level_in_which_it_was_stopped_is_measured_again(tmp_path: Path) -> None:
    """A moment's disturbance does not end a sweep, and its step never counts."""
    for output in tries(tmp_path):
        with ThreadedServer(serve(wait_ms=20.0)) as server:
            process = start("sweep", server.url, *SHAPE, "--levels", "2,4", "--requests", "60", "-o", output)
            until(lambda p=process, s=server: p.poll() is not None or len(of_step(s, 2)) > 20, 60.0)  # type: ignore[misc]
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(1.2)
            os.kill(process.pid, signal.SIGCONT)
            said = finish(process)
        levels = [(level["concurrency"], level["verdict"]) for level in manifest_of(folder_in(output))["levels"]]
        if levels == [(2, "measured"), (4, "invalid"), (4, "measured")]:
            break  # else it was stopped too early or too late, or was too busy for other steps as well
    assert said.code == 0, said.err
    assert "invalid" in said.out + said.err
    records = records_of(folder_in(output))
    assert dict.fromkeys((1, 2, 3), 60) == Counter(r["step"] for r in records if r["phase"] == "measured")
    assert {r["concurrency"] for r in records if r["step"] == 3} == {4}


def of_step(server: ThreadedServer, step: int) -> list[Request]:
    return [one for one in server.requests if one.headers.get("x-request-id", "--").split("-")[1] == f"s{step}"]


def test_no_stamp_is_of_the_clock_that_people_set() -> None:
    """A wall clock that is stepped by an hour moves no figure: it is read once, for the manifest. Setting it would set
    the machine's, so the sources are read instead; what the kernel's stamps, which are of that clock, do when it is
    stepped is in tests/client/test_kernel_times.py."""
    root = Path(__file__).parents[2] / "loadgen"
    readers = {
        str(path.relative_to(root))
        for room in ("client", "runner", "search", "log")
        for path in (root / room).rglob("*.py")
        if any(word in path.read_text() for word in ("time.time()", "time.time_ns()", "datetime.now("))
    }
    assert readers <= {
        *("client/clock.py", "client/failures.py", "client/retry.py", "log/store.py"),
        *("runner/run.py", "runner/resume.py", "runner/calibrate/run.py", "runner/calibrate/store.py"),
    }, readers
