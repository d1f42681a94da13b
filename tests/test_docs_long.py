"""The commands of the documentation that need something made ready, or take long: each runs as it stands, but for
addresses, which are servers' of the test's own, and for lengths, which are made short. `make test-long` runs them;
`tests/ray/test_docs.py` has those of a cluster."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from loadgen.simulator.scripted import ThreadedServer
from tests.cli.command import ROOT, Said, finish, folder_in, generations, serve, start, until
from tests.experiments.test_definition import SMALL
from tests.test_docs import COMMANDS, COMMENT, URL, place, split, words_of

__all__ = ["place"]  # the fixture
from tests.thorough import THOROUGH

SHORT = ("--requests", "10", "--no-scrape", "--seed", "7")
EXAMPLE = ROOT / "results" / "example-vllm"


class Servers:
    """One for each address that a command names."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.by_name: dict[str, ThreadedServer] = {}

    def words(self, command: str) -> list[str]:
        def own(found: re.Match[str]) -> str:
            if found[0] not in self.by_name:
                self.by_name[found[0]] = self.stack.enter_context(ThreadedServer(serve(2.0)))
            return self.by_name[found[0]].url

        return split(URL.sub(own, COMMENT.sub("", command)))

    def asked(self) -> list[int]:
        return [len(generations(server.requests)) for server in self.by_name.values()]


@pytest.fixture
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


def ran(*words: object, cwd: Path, env: dict[str, str] | None = None, timeout_s: float = 300.0) -> Said:
    said = finish(start(*words, cwd=cwd, env=env), timeout_s)
    assert "Traceback" not in said.err, said.err
    return said


def pairs(command: str, place: Path, servers: Servers) -> None:
    words = [*servers.words(command), *SHORT, "--input-len", "16", "--output-len", "4", "-o", "made-pairs"]
    said = ran(*words, cwd=place)
    assert said.code in (0, 1, 4), said.err
    assert servers.asked()[0] > 80 and servers.asked()[1] > 80, "eight pairs, of ten requests and their warm-up"


def of_a_job(command: str, place: Path, servers: Servers) -> None:
    for name in ("runs", "base"):
        shutil.copytree(EXAMPLE, place / name / "20261129T134500Z-run-512-128", dirs_exist_ok=True)
    words = [str(path) for word in servers.words(command) for path in (place.glob(word) if "*" in word else [word])]
    said = ran(*words, cwd=place)
    assert said.code in (0, 4) and said.out.startswith("answer"), said.err
    assert (place / "check.xml").is_file()


def of_its_own(command: str, place: Path, servers: Servers) -> None:
    folder = place / "of-its-own"
    folder.mkdir()
    (folder / "mine.toml").write_text(SMALL)
    said = ran(*servers.words(command), "--requests", "16", cwd=folder)
    assert said.code in (0, 1, 4), said.err
    assert (folder / "mine.svg").is_file() and said.out.startswith("question")


def simulated(command: str, place: Path, servers: Servers) -> None:
    said = ran(*servers.words(command), *SHORT, "--repeats", "5", "-o", "made-arms", cwd=place)
    assert said.code in (0, 1, 4), said.err
    assert "over HTTP" in said.out


def two_arms(command: str, place: Path, servers: Servers) -> None:
    words = [*servers.words(command), *SHORT, "--repeats", "5", "-o", "made-two"]
    if len(servers.by_name) == 2:
        said = ran(*words, cwd=place)
    else:  # somebody changes the flags, and presses Enter
        ours, theirs = pty.openpty()
        process = start(*words, cwd=place, stdin=theirs)
        os.write(ours, b"\n" * 60)
        said = finish(process, 300.0)
        os.close(ours)
        os.close(theirs)
        assert said.err.count("start the server at") >= 6, "A, BB, AA, BB, AA, B"
    assert said.code in (0, 1, 4), said.err
    assert min(servers.asked()) >= 50


def resumed(command: str, place: Path, servers: Servers) -> None:
    """After a sweep was killed, or its server has moved."""
    begun = servers.stack.enter_context(ThreadedServer(serve(20.0)))
    shape = ("--input-len", "16", "--output-len", "4", "--levels", "1,3", "--requests", "12", "--no-scrape")
    output = place / "interrupted"
    sweep = start("sweep", begun.url, *shape, "-o", output, cwd=place)
    until(lambda: len(generations(begun.requests)) > 5, 30.0)
    os.killpg(sweep.pid, signal.SIGKILL)
    sweep.wait()
    words = servers.words(command)
    named = place / next(word for word in words if word.startswith("results/"))
    shutil.rmtree(named, ignore_errors=True)
    folder_in(output).rename(named)
    output.rmdir()
    said = ran(*words, cwd=place)
    assert said.code in (0, 4), said.err
    asked = [*servers.asked(), len(generations(begun.requests))]
    assert sum(asked) >= 24


def as_it_stands(command: str, place: Path, servers: Servers) -> None:
    cold = {**os.environ, "XDG_CACHE_HOME": str(place / "cache")}  # truths are kept there
    said = ran(*servers.words(command), cwd=place, env=cold, timeout_s=900.0)
    assert said.code == 0, said.err


HOW: dict[str, Callable[[str, Path, Servers], None]] = {
    "--pairs": pairs,
    "runs/*": of_a_job,
    "loadgen experiment ./": of_its_own,
    "prefix-cache --http": simulated,
    "prefix-cache http": two_arms,
    "--resume": resumed,
    "--truth": as_it_stands,
}
LONG = sorted({command for _, command in COMMANDS if any(piece in command for piece in HOW)})


@pytest.mark.skipif(THOROUGH < 2, reason="make test-long: minutes in all")
@pytest.mark.parametrize("command", LONG, ids=[command.partition(" ")[2][:60] for command in LONG])
def test_it_runs(command: str, place: Path, servers: Servers) -> None:
    how = next(how for piece, how in HOW.items() if piece in command)
    how(command, place, servers)


def test_every_command_that_is_not_run_elsewhere_is_run_here() -> None:
    left = {command for _, command in COMMANDS if words_of(command, "http://127.0.0.1:9") is None}
    if THOROUGH > 1:
        assert {command for command in left if "--ray" not in command} <= set(LONG)
    assert len(LONG) >= 8
