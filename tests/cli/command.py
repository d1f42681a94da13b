"""The program as a person runs it: in this process where that is enough, else in one of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import pytest

from loadgen.cli.main import main
from loadgen.simulator.scripted import DONE, FIN, ROLE, Action, C, Request, T, U, models_reply

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "loadgen")


@dataclass(frozen=True)
class Said:
    """What a command came to."""

    code: int
    out: str
    err: str


Call = Callable[..., Said]


def caller(capfd: pytest.CaptureFixture[str]) -> Call:
    """Runs the command line in this process. An exception that would be a traceback fails the test."""

    def call(*args: object) -> Said:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(arg) for arg in args])
        sys.stdout.flush()
        return Said(int(ended.value.code or 0), *capfd.readouterr())

    return call


def start(*args: object, **options: Any) -> subprocess.Popen[bytes]:
    """The program in a process, and a process group, of its own."""
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("cwd", ROOT)
    return subprocess.Popen([*COMMAND, *map(str, args)], start_new_session=True, **options)


def finish(process: subprocess.Popen[bytes], timeout_s: float = 60.0) -> Said:
    """Wait for it; one that hangs is killed, and fails the test."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"still running after {timeout_s:g} s; it said: {err.decode()[-2000:]}")
    return Said(process.returncode, (out or b"").decode(), (err or b"").decode())


def run(*args: object, timeout_s: float = 60.0, **options: Any) -> Said:
    return finish(start(*args, **options), timeout_s)


def until(what: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait for something to come true, briefly asleep in between."""
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


# --- a server that answers as asked ---------------------------------------------------------------------------------


def answer(request: Request, wait_ms: float = 0.0) -> list[Action]:
    """As many tokens as `max_tokens` says, after a wait; input tokens are the words of the prompt and 8 around them."""
    body = request.json
    count = int(body.get("max_tokens") or 16)
    words = len(str(body["messages"][0]["content"]).split()) if "messages" in body else len(body["prompt"].split())
    text = [C(f" {i}") for i in range(count)]
    return [T(wait_ms), ROLE, *text, FIN("length"), U(words + 8, count), DONE]


def serve(wait_ms: float = 0.0, *, listed: tuple[str, ...] = ("m",)) -> Callable[[Request], list[Action] | None]:
    """A handler for `ThreadedServer`: the models listed, and answers that take `wait_ms`."""

    def handler(request: Request) -> list[Action] | None:
        path = request.path.partition("?")[0]
        if request.method == "GET":
            return models_reply(listed) if path == "/v1/models" else None
        return answer(request, wait_ms) if path in ("/v1/chat/completions", "/v1/completions") else None

    return handler


def generations(requests: list[Request]) -> list[Request]:
    """The requests for completions among all that a server got."""
    return [request for request in requests if request.method == "POST"]


# --- what a run left behind -----------------------------------------------------------------------------------------


def folder_in(parent: Path) -> Path:
    """The only run folder there."""
    (folder,) = parent.iterdir()
    return folder


def manifest_of(folder: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return manifest


def ended_by(folder: Path) -> str:
    """What ended the last step, as the driver saw it: `budget requests`, `complete`."""
    seen = json.loads((folder / "steps.jsonl").read_text().splitlines()[-1])["observation"]
    return f"{seen['ended']} {seen['detail']}".strip()


def each_level_once(folder: Path) -> None:
    """Skips the test where a level was measured twice, as this machine was too busy the first time."""
    levels = [level["concurrency"] for level in manifest_of(folder)["levels"] or ()]
    if any(a == b for a, b in pairwise(levels)):
        too_busy()


def client_bound(folder: Path) -> bool:
    """Did the run find that this machine was too busy to say anything of the server? Where other programs run beside
    the tests, or the server within them, that may happen at any time, and is then the right answer."""
    stop: dict[str, Any] = manifest_of(folder).get("stop") or {}
    return stop.get("reason") == "client_bound"


def too_busy() -> NoReturn:
    pytest.skip("this machine was too busy to measure")


def tries(parent: Path, most: int = 3) -> Iterator[Path]:
    """A folder for each try of a run, to be left with `break` once one could be measured. Where none could, the test
    is skipped: what holds all the same is asserted of each try."""
    for number in range(most):
        yield parent / f"try-{number}"
    too_busy()


def went_well(said: Said, folder: Path, *codes: int) -> bool:
    """Is it one of these exit codes (0 if none is given), or the one of a client that was the limit?"""
    return said.code in (codes or (0,)) or (said.code == 4 and client_bound(folder))


def records_of(folder: Path) -> list[dict[str, Any]]:
    return list(_lines(folder / "requests.jsonl"))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line)
