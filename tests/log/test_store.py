from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.errors import LogError
from loadgen.log.codec import encode_record
from loadgen.log.store import RunFolder, StreamLog, open_run
from loadgen.records import Record
from loadgen.results import Stop
from tests.log.record_strategies import OBSERVATION, RECORD, any_record

WHEN = datetime(2026, 11, 29, 13, 45, tzinfo=UTC)


def named(name: str) -> Record:
    return dataclasses.replace(RECORD, id=name)


def test_a_folder_is_named_by_time_and_slug_and_never_reused(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        with RunFolder.create(tmp_path / "results", "ShareGPT, first turn!", WHEN) as folder:
            names.append(folder.path.name)
    first = "20261129T134500Z-sharegpt-first-turn"
    assert names == [first, first + "-2", first + "-3"]


@pytest.mark.parametrize("name", ["", "../../etc", "…", "-"])
def test_no_name_leaves_the_parent(tmp_path: Path, name: str) -> None:
    with RunFolder.create(tmp_path, name, WHEN) as folder:
        assert folder.path.parent == tmp_path
        assert folder.path.name.startswith("20261129T134500Z-")


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(any_record, max_size=5))
def test_what_is_written_is_read(tmp_path: Path, records: list[Record]) -> None:
    with RunFolder.create(tmp_path, "run") as folder:
        folder.write_manifest({"status": "running"})
        for record in records:
            folder.append(record)
        folder.append_step(OBSERVATION)
        folder.sync()
        folder.write_manifest({"status": "complete", "path": folder.path})
    for path in (folder.path, folder.path / "requests.jsonl"):
        run = open_run(path)
        assert list(run.records()) == records
        assert list(run.records()) == records  # a second time as well
        assert run.observations == [OBSERVATION]
        assert run.status == "complete"
        assert run.truncated_lines == 0


def test_modes_keep_others_from_writing(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with RunFolder.create(tmp_path, "run") as folder:
            folder.write_manifest({})
    finally:
        os.umask(before)
    assert not (folder.path / "requests.jsonl").stat().st_mode & 0o022


def test_a_run_that_never_ended_reads_as_interrupted(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "run") as folder:
        folder.write_manifest({"status": "running"})
        folder.append(RECORD)
    run = open_run(folder.path)
    assert run.status == "interrupted"
    assert list(run.records()) == [RECORD]


def test_an_empty_run_is_fine(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "run") as folder:
        pass
    assert list(open_run(folder.path).records()) == []
    assert list(open_run(folder.path / "requests.jsonl").records()) == []


def test_the_manifest_is_replaced_whole_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "run") as folder:
        for status in ("running", "complete"):
            folder.write_manifest({"status": status, "bad": float("nan")})
            assert json.loads((folder.path / "manifest.json").read_text()) == {"status": status, "bad": None}
    assert sorted(p.name for p in folder.path.iterdir()) == ["manifest.json", "requests.jsonl", "steps.jsonl"]


def test_the_stop_of_the_manifest_is_read(tmp_path: Path) -> None:
    stop = {"reason": "plateau", "held": 64, "broke": None, "peak_throughput_tok_s": None, "sentence": "flat"}
    with RunFolder.create(tmp_path, "run") as folder:
        folder.write_manifest({"status": "complete", "stop": stop})
    assert open_run(folder.path).stop == Stop("plateau", 64, None, None, "flat")


def test_the_last_line_may_be_cut_anywhere(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "run") as folder:
        for name in "ab":
            folder.append(named(name))
    path = folder.path / "requests.jsonl"
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole) + 1):
        path.write_bytes(whole[:end])
        run = open_run(folder.path)
        ids = [record.id for record in run.records()]
        complete = end >= len(whole) - 1  # all but the newline is a whole record
        assert ids == (["a", "b"] if complete else ["a"])
        assert run.truncated_lines == (0 if complete or end == first else 1)


def test_the_last_step_may_be_cut_as_well(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "run") as folder:
        folder.append(RECORD)
        folder.append_step(OBSERVATION)
        folder.append_step(OBSERVATION)
    path = folder.path / "steps.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    run = open_run(folder.path)
    assert run.observations == [OBSERVATION]
    assert list(run.records()) == [RECORD] and run.truncated_lines == 1


def test_damage_in_the_middle_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with RunFolder.create(tmp_path, "run") as folder:
        folder.append(RECORD)
    line = (folder.path / "requests.jsonl").read_bytes()
    path.write_bytes(line + b'{"id":"x"\n' + line)
    with pytest.raises(LogError, match=r"requests\.jsonl line 2: not JSON"):
        list(open_run(path).records())


def test_part_files_are_read_before_and_during_a_merge(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "run") as folder:
        folder.append(named("a"))
    line = (folder.path / "requests.jsonl").read_bytes()
    for part, ids in (("0", "bc"), ("1", "de")):
        data = b"".join(line.replace(b'"a"', f'"{name}"'.encode()) for name in ids)
        (folder.path / f"requests-{part}.jsonl").write_bytes(data + b'{"id":"cut')
    run = open_run(folder.path)
    assert [record.id for record in run.records()] == list("abcde")
    assert run.truncated_lines == 2
    merged = b"".join(line.replace(b'"a"', f'"{name}"'.encode()) for name in "abcde")
    (folder.path / "requests.jsonl").write_bytes(merged)  # merged, but the parts are still there
    assert [record.id for record in open_run(folder.path).records()] == list("abcde")
    (folder.path / "requests.jsonl").unlink()
    assert [record.id for record in open_run(folder.path).records()] == list("bcde")


def test_a_tagged_stream_holds_all_that_a_folder_holds(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with path.open("wb") as file:
        log = StreamLog(file.fileno())
        log.write_manifest({"status": "running"})
        log.append(named("a"))
        log.append_step(OBSERVATION)
        log.append(named("b"))
        log.write_manifest({"status": "complete"})
        log.sync()
        log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["manifest", "request", "step", "request", "manifest"]
    run = open_run(path)
    assert run.status == "complete"
    assert run.observations == [OBSERVATION]
    assert [record.id for record in run.records()] == ["a", "b"]
    path.write_bytes(path.read_bytes()[:-5])
    run = open_run(path)
    assert run.status == "interrupted"
    assert [record.id for record in run.records()] == ["a", "b"]
    assert run.truncated_lines == 1


@pytest.mark.parametrize("form", ["requests", "tagged", "csv"])
def test_stdin_takes_every_form(tmp_path: Path, form: str) -> None:
    with RunFolder.create(tmp_path, "run") as folder:
        folder.append(named("a"))
    data = (folder.path / "requests.jsonl").read_bytes()
    if form == "tagged":
        data = b'{"kind":"manifest","manifest":{"status":"complete"}}\n{"kind":"request",' + data[1:]
    if form == "csv":
        data = b"request_id,start_ts,first_token_ts,end_ts,input_tokens,output_tokens\na,0,1,2,3,4\n"
    code = "from loadgen.log.store import open_run; r=open_run('-'); print([x.id for x in r.records()]*2, r.status)"
    out = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True).stdout.decode()
    assert out.split("]")[0] == "['a', 'a'"


def test_a_named_pipe_is_read_once_and_kept(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    line = encode_record(named("p"))
    writer = subprocess.Popen([sys.executable, "-c", f"open({str(pipe)!r},'wb').write({line!r})"])
    run = open_run(pipe)
    assert [r.id for r in run.records()] == ["p"]
    assert [r.id for r in run.records()] == ["p"]
    assert writer.wait() == 0


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda p: p / "nothing", "does not exist"),
        (lambda p: p, "is not a run folder"),
        (lambda p: p / "requests.jsonl", "does not exist"),
        (lambda p: _file(p / "a.json", b'{"date": "2026", "completed": 3}\n'), "line 1: id is missing"),
        (lambda p: _file(p / "a.csv", b""), "is empty"),
        (lambda p: _file(p / "a.txt", b"\x80\x81 nothing we know"), "not UTF-8"),
    ],
)
def test_what_is_no_run_is_told_in_one_sentence(tmp_path: Path, make, told: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(LogError) as caught:
        list(open_run(make(tmp_path)).records())
    assert told in caught.value.message
    assert caught.value.remedy and "\n" not in caught.value.message


def _file(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for parent in (tmp_path / "file", tmp_path / "file" / "deeper", Path("/proc/none")):
        with pytest.raises(LogError) as caught:
            RunFolder.create(parent, "run")
        assert str(parent) in caught.value.message and "--output" in caught.value.remedy


def test_r14_a_full_disk_ends_with_a_whole_line_and_says_what_was_kept(tmp_path: Path) -> None:
    """A file size limit stands in for a full disk: like it, it takes a part of a line before it refuses."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    folder = RunFolder.create(tmp_path, "run")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
        with pytest.raises(LogError) as caught:
            for index in range(100):
                folder.append(named(f"r{index}"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
        folder.close()
    run = open_run(folder.path)
    ids = [record.id for record in run.records()]
    assert run.truncated_lines == 0
    assert ids == [f"r{index}" for index in range(len(ids))] and ids
    assert f"{len(ids)} records are kept in {folder.path}" in caught.value.message


def test_sigkill_loses_nothing_that_was_written(tmp_path: Path) -> None:
    code = f"""
import dataclasses, itertools, sys
sys.path[:0] = [{str(Path(__file__).parents[2])!r}]
sys.modules.pop("trio", None)  # which Hypothesis may look for, if it is there
from tests.log.record_strategies import RECORD
from loadgen.log.store import RunFolder
folder = RunFolder.create({str(tmp_path)!r}, "run")
print(folder.path, flush=True)
for index in itertools.count():
    folder.append(dataclasses.replace(RECORD, id=f"r{{index}}"))
    print(index, flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    path = child.stdout.readline().strip()
    for _ in range(200):
        child.stdout.readline()
    child.kill()
    told = 200 + len([line for line in child.stdout.read().splitlines() if line])
    child.wait()
    child.stdout.close()
    ids = [record.id for record in open_run(path).records()]
    assert ids == [f"r{index}" for index in range(len(ids))]
    assert len(ids) >= told
