"""`loadgen calibrate` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import Call

SMALL = ("--seconds", "0.1", "--levels", "3", "--rates", "50")


def run(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loadgen", "calibrate", *flags],
        env={**os.environ, "XDG_CACHE_HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_it_prints_json_and_writes_it_where_asked_even_if_the_cache_cannot_be_written(tmp_path: Path) -> None:
    copy, no_folder = tmp_path / "copy.json", tmp_path / "file"
    no_folder.write_text("")
    done = run(no_folder, "--json", "--quiet", "-o", str(copy), *SMALL)
    assert done.returncode == 0
    (warning,) = done.stderr.splitlines()
    assert warning.endswith("later runs will not know of this calibration")
    printed = json.loads(done.stdout)
    assert printed == json.loads(copy.read_text())
    assert printed["host"]["cpus_usable"] == len(os.sched_getaffinity(0))
    assert {stage["streams"] for stage in printed["streams"]} == {3}


def test_it_prints_a_table_and_its_progress(tmp_path: Path) -> None:
    done = run(tmp_path, *SMALL)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[:4]] == ["machine", "loadgen", "carries", "limit"]
    kept = tmp_path / "loadgen" / "calibration.json"
    assert done.stdout.splitlines()[-1] == f"kept in   {kept}"
    assert json.loads(kept.read_text())["capacity"]
    assert "50 requests/s" in done.stderr and "smooth · 3 streams" in done.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--levels", "64,16"), "--levels 64,16 is not a rising list of numbers"),
        (("--rates", "fast"), "--rates fast is not a rising list of numbers"),
        (("-o", "/proc/nowhere/x.json"), "the calibration cannot be written to /proc/nowhere/x.json"),
        (("-o", "/proc"), "the calibration cannot be written to /proc: it is a folder"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], said: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = call("calibrate", "--quiet", *flags)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
