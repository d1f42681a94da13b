"""The standard streams as they may be: without a reader, closed, of an encoding that has few letters, a terminal that
has gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.simulator.scripted import ThreadedServer
from tests.cli.command import COMMAND, ROOT, Said, finish, folder_in, manifest_of, serve, start
from tests.report.drawn import drawn_run
from tests.thorough import variants

SHAPE = ("--input-len", "32", "--output-len", "4")

SPEAKING = {
    "help": "run --help",
    "version": "--version",
    "list": "workloads list",
    "show": "workloads show sharegpt-first-turn",
    "sample": "workloads sample ragpulse -n 3",
    "workload": "workloads check sharegpt-first-turn",
    "plan": "plan --model llama-3.1-8b",
    "experiments": "experiment --list",
    "charts": "plot --list",
    "presets": "simulate --list-presets",
    "completion": "completion bash",
    "dry": "run http://127.0.0.1:9 --dry-run",
    "report": "report RUN",
    "json": "report RUN --json",
    "page": "report RUN --html -",
    "diagnose": "diagnose RUN",
    "compare": "compare RUN RUN",
    "check": "check RUN --against RUN",
    "export": "export RUN",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drawn_run(tmp_path_factory.mktemp("runs"), levels=(1, 8), each=60)


def words_of(name: str, folder: Path) -> list[str]:
    return [str(folder) if word == "RUN" else word for word in SPEAKING[name].split()]


def with_nobody_listening(*words: str) -> Said:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return finish(start(*words, stdout=writing))
    finally:
        os.close(writing)


@pytest.mark.parametrize("name", variants(*SPEAKING, usual=7))
def test_a_reader_that_has_gone_changes_no_exit_code(name: str, folder: Path) -> None:
    said = with_nobody_listening(*words_of(name, folder))
    heard = finish(start(*words_of(name, folder)))
    assert said.code == heard.code and said.err == heard.err
    assert name in ("diagnose", "check") or said.code == 0


def test_a_run_whose_readers_have_gone_is_measured_to_its_end(tmp_path: Path) -> None:
    """Of stdout alone, and of all it says: `| true`, `2>&1 | true`."""
    for number, err in enumerate((subprocess.PIPE, subprocess.STDOUT)):
        reading, writing = os.pipe()
        os.close(reading)
        parent = tmp_path / str(number)
        with ThreadedServer(serve(5.0)) as server:
            run = start("run", server.url, *SHAPE, "-c", 2, "--requests", 10, "-o", parent, stdout=writing, stderr=err)
            os.close(writing)
            said = finish(run)
        is_measured(said, folder_in(parent))


def is_measured(said: Said, folder: Path) -> None:
    """To its end, and the exit code is that of the answer: undecided perhaps, on a busy machine."""
    told = manifest_of(folder)
    assert told["status"] == "complete" and said.code == told["exit_code"] and said.code in (0, 4), said
    assert "Traceback" not in said.err and "Exception" not in said.err, said.err


CLOSED = (">&-", "2>&-", "<&- >&- 2>&-")


@pytest.mark.parametrize("name", variants("report", "sample", "list", "export", usual=2))
@pytest.mark.parametrize("closed", CLOSED)
def test_a_stream_that_is_closed_changes_no_exit_code(name: str, closed: str, folder: Path) -> None:
    words = words_of(name, folder)
    said = closing(closed, *words)
    assert (said.code, said.err) == (0, "")


def test_with_streams_closed_a_run_is_measured(tmp_path: Path) -> None:
    for number, closed in enumerate((">&-", "2>&-", "<&- >&- 2>&-")):
        parent = tmp_path / str(number)
        with ThreadedServer(serve(5.0)) as server:
            flags = ("-c", "2", "--requests", "10", "--workers", "2", "-o", str(parent))
            said = closing(closed, "run", server.url, *SHAPE, *flags)
        is_measured(said, folder_in(parent))


def test_a_log_from_a_stdin_that_is_closed_is_empty() -> None:
    said = closing("<&-", "report", "-")
    assert said.code == 2 and said.err.startswith("loadgen: stdin is empty"), said


def closing(closed: str, *words: str) -> Said:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {closed}', *COMMAND, *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("encoding", variants("latin-1", "utf-16", "koi8-r", "ascii", usual=2))
def test_what_an_encoding_has_no_letter_for_is_no_fault(encoding: str, folder: Path) -> None:
    for name in ("report", "plan"):
        command = [sys.executable, "-m", "loadgen", *words_of(name, folder)]
        done = subprocess.run(
            command,
            capture_output=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONIOENCODING": encoding},
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout
