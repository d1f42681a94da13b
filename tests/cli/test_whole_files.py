"""What a verb writes is there whole, or what was there before is as it was."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import ROOT, Call, Said
from tests.report.drawn import drawn_run
from tests.thorough import variants

WRITERS = {
    "csv": ("a.csv", "export RUN --format csv -o FILE"),
    "jsonl": ("a.jsonl", "export RUN --format jsonl -o FILE"),
    "parquet": ("a.parquet", "export RUN --format parquet -o FILE"),
    "vllm": ("a.json", "export RUN --format vllm --step 1 -o FILE"),
    "page": ("a.html", "report RUN --html FILE"),
    "svg": ("a.svg", "plot RUN -o FILE"),
    "png": ("a.png", "plot RUN -o FILE"),
    "plan": ("a.svg", "plan --model llama-3.1-8b --plot FILE"),
    "junit": ("a.xml", "check RUN --against RUN --junit FILE"),
    "markdown": ("a.md", "check RUN --against RUN --markdown FILE"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drawn_run(tmp_path_factory.mktemp("runs"), levels=(1, 8), each=60)


def words_of(command: str, run: Path, file: Path) -> list[str]:
    return [{"RUN": str(run), "FILE": str(file)}.get(word, word) for word in command.split()]


@pytest.mark.parametrize("before", variants(b"what was there", None))
@pytest.mark.parametrize("name", variants(*WRITERS, usual=5))
def test_a_full_disk_leaves_what_was_there(folder: Path, tmp_path: Path, name: str, before: bytes | None) -> None:
    file = tmp_path / WRITERS[name][0]
    if before is not None:
        file.write_bytes(before)
    words = words_of(WRITERS[name][1], folder, file)
    said = with_no_room(*words)
    assert said.code == 2, said
    assert f"{file} cannot be written: File too large" in said.err
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == ({} if before is None else {file.name: before})


def with_no_room(*words: str) -> Said:
    """The program where no file can hold a byte."""
    shell = ["sh", "-c", 'ulimit -f 0; exec "$0" "$@"', sys.executable, "-m", "loadgen", *words]
    done = subprocess.run(shell, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("name", ["csv", "jsonl", "parquet", "vllm"])
def test_a_damaged_line_leaves_what_was_there(folder: Path, tmp_path: Path, call: Call, name: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(folder, run)
    lines = (run / "requests.jsonl").read_bytes().splitlines(keepends=True)
    (run / "requests.jsonl").write_bytes(b"".join([*lines[:-1], lines[-1].replace(b'"outcome":"ok"', b'"outcome":5')]))
    file = tmp_path / WRITERS[name][0]
    file.write_bytes(b"what was there")
    said = call(*words_of(WRITERS[name][1], run, file))
    assert said.code == 2 and f"line {len(lines)}: outcome must be text" in said.err, said
    assert file.read_bytes() == b"what was there"
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([file.name, "run"])


def test_what_is_replaced_keeps_its_link_and_its_mode(folder: Path, tmp_path: Path, call: Call) -> None:
    (tmp_path / "there").mkdir()
    file, link = tmp_path / "there" / "a.csv", tmp_path / "link.csv"
    file.write_bytes(b"")
    file.chmod(0o640)
    link.symlink_to(file)
    assert call("export", folder, "-o", link).code == 0
    assert link.is_symlink() and file.stat().st_mode & 0o777 == 0o640
    assert file.read_bytes().startswith(b"request_id,")


def test_a_pipe_is_written_to_itself(folder: Path, tmp_path: Path, call: Call) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["head", "-c", "11", pipe], stdout=subprocess.PIPE)
    call("export", folder, "-o", pipe)
    assert reader.communicate(timeout=20)[0] == b"request_id,"
    assert pipe.is_fifo()
