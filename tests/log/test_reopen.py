"""A folder that was written to until a kill: each file ends with a whole line again, and no record is there twice."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.errors import LogError
from loadgen.log.codec import encode_record
from loadgen.log.reopen import mend, reopen
from loadgen.log.store import RunFolder, open_run
from tests.log.record_strategies import OBSERVATION, RECORD

LINES = [encode_record(dataclasses.replace(RECORD, id=f"s1-{i:06d}")) for i in range(5)]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_cut_anywhere_keeps_its_whole_lines(tmp_path: Path, data: st.DataObject) -> None:
    whole = b"".join(LINES)
    cut = data.draw(st.integers(0, len(whole)))
    path = tmp_path / "requests.jsonl"
    path.write_bytes(whole[:cut])
    mended = mend(path)
    ends = [len(b"".join(LINES[:i])) for i in range(len(LINES) + 1)]
    only_newline = cut + 1 in ends
    assert path.read_bytes() == whole[: cut + 1 if only_newline else max(end for end in ends if end <= cut)]
    assert mended == (cut not in ends)
    assert not mend(path)


def test_a_last_line_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b'{"a":1}\n{"b":"' + b"x" * 200_000)
    assert mend(path) and path.read_bytes() == b'{"a":1}\n'


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_records_of_workers_are_taken_up_once(tmp_path: Path, data: st.DataObject) -> None:
    merged = data.draw(st.integers(0, 5))
    with RunFolder.create(tmp_path, "run") as made:
        made.append_step(OBSERVATION)
    folder = made.path
    (folder / "requests.jsonl").write_bytes(b"".join(LINES[:merged]))
    for worker in range(2):  # each line in one of the two, whether it was moved or not
        (folder / f"requests-w{worker}.jsonl").write_bytes(b"".join(LINES[worker::2]) + LINES[0][:20])
    with reopen(folder) as again:
        again.append(dataclasses.replace(RECORD, id="s2-000000"))
    run = open_run(folder)
    assert sorted(record.id for record in run.records()) == [*(f"s1-{i:06d}" for i in range(5)), "s2-000000"]
    assert not run.truncated_lines and run.observations == [OBSERVATION]
    assert not list(folder.glob("requests-w*"))


def test_a_folder_is_held_by_one(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "run") as made:
        (made.path / "steps.jsonl").write_bytes(b'{"half')
        with pytest.raises(LogError, match="still going on"):
            reopen(made.path)
        assert (made.path / "steps.jsonl").read_bytes() == b'{"half', "nothing was changed"
    reopen(made.path).close()
    reopen(made.path).close()


@pytest.mark.parametrize("in_the_way", ["requests-w0.jsonl.tmp", "requests-w1.jsonl"])
def test_what_the_disk_refuses_is_told_and_the_folder_is_free_again(in_the_way: str, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "run") as made:
        made.append(RECORD)
    (made.path / "requests-w0.jsonl").write_bytes(encode_record(RECORD))
    (made.path / in_the_way).mkdir()
    with pytest.raises(LogError, match=f"{in_the_way} cannot be written"):
        reopen(made.path)
    (made.path / in_the_way).rmdir()
    reopen(made.path).close()
