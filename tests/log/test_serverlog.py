"""server.jsonl: what is written is read, cut lines are dropped, and a run without one is fine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.errors import LogError
from loadgen.log.serverlog import decode_server
from loadgen.log.store import RunFolder, StreamLog, open_run
from loadgen.results import ServerSample
from tests.log.record_strategies import OBSERVATION, RECORD

stamps = st.integers(0, 2**53)
values = st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False, allow_infinity=False), max_size=4)
engines = st.dictionaries(st.text(max_size=3), values, max_size=2)
told = st.builds(ServerSample, stamps, stamps, stamps, st.text(max_size=8), values, engines)
failed = st.builds(ServerSample, stamps, stamps, stamps, st.text(max_size=8), error=st.text(max_size=8))
SAMPLES = [
    ServerSample(5, 7, 1, "http://h/metrics", {"running": 2.0}),
    ServerSample(6, 7, 1, "x", error="answered 404"),
]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(told | failed, max_size=5))
def test_what_is_written_is_read(tmp_path: Path, samples: list[ServerSample]) -> None:
    with RunFolder.create(tmp_path, "run") as folder:
        for sample in samples:
            folder.append_server(sample)
        folder.append(RECORD)
        folder.sync()
    for path in (folder.path, folder.path / "requests.jsonl"):
        run = open_run(path)
        assert run.server == samples
        assert list(run.records()) == [RECORD]
        assert run.truncated_lines == 0


def test_a_run_without_scrapes_has_no_such_file(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "run") as folder:
        folder.append(RECORD)
        folder.sync()
    assert not (folder.path / "server.jsonl").exists()
    assert open_run(folder.path).server == []


def test_the_last_line_may_be_cut_anywhere(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "run") as folder:
        for sample in SAMPLES:
            folder.append_server(sample)
        folder.append(RECORD)
        folder.append_step(OBSERVATION)
    path = folder.path / "server.jsonl"
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole) + 1):
        path.write_bytes(whole[:end])
        run = open_run(folder.path)
        assert (run.server, run.observations) == (SAMPLES[: 2 if end >= len(whole) - 1 else 1], [OBSERVATION])
        assert len(list(run.records())) == 1
        assert run.truncated_lines == (0 if end == first or end >= len(whole) - 1 else 1)


@pytest.mark.parametrize("line", ["{}", '{"at_ns":1.5,"took_us":1,"step":1,"source":"x"}', "[]", "{"])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    with RunFolder.create(tmp_path, "run") as folder:
        folder.append_server(SAMPLES[0])
    with (folder.path / "server.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(LogError, match=r"server\.jsonl line 2"):
        open_run(folder.path)


def test_what_is_no_number_is_left_out_and_new_keys_are_passed_over() -> None:
    line = {"at_ns": 1, "took_us": 2, "step": 0, "source": "x", "later": 1}
    found = decode_server({**line, "values": {"a": 1, "b": None, "c": "2", "d": True}, "engines": 3})
    assert found == ServerSample(1, 2, 0, "x", {"a": 1.0})


def test_a_stream_carries_it_tagged(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    log = StreamLog(descriptor)
    log.write_manifest({"status": "complete"})
    log.append(RECORD)
    log.append_server(SAMPLES[0])
    log.append_step(OBSERVATION)
    log.append_server(SAMPLES[1])
    os.close(descriptor)
    run = open_run(path)
    assert (run.server, run.observations, list(run.records())) == (SAMPLES, [OBSERVATION], [RECORD])
    ran = subprocess.run(
        [sys.executable, "-m", "loadgen", "export", path, "--all"], capture_output=True, text=True, check=True
    )
    assert len(ran.stdout.splitlines()) == 2, "a head and the request"
