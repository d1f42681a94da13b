"""A cluster of three nodes for all tests here, which `make test-ray` asks for: it takes 10 s to start and 1 GB."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import ROOT, until

WITHOUT = (
    "Ray is not installed: make test-ray installs it"
    if importlib.util.find_spec("ray") is None
    else "needs a cluster of three nodes: make test-ray"
)


class LocalCluster:
    """The cluster, and what is to be seen of its processes."""

    def __init__(self) -> None:
        # Short, as sockets lie in it. What killed actors leave is in it, too.
        self.folder = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.ray.cluster"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": self.folder.name},
        )
        told = self._told()
        self.address: str = told["address"]
        self.session = Path(told["session"])
        self.nodes: list[str] = told["nodes"]

    def _told(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the cluster did not start"
        told: dict[str, Any] = json.loads(line)
        return told

    def replace(self, node: int) -> Callable[[], None]:
        """Kill a node, without a word to anyone; what is returned waits until there is another in its place."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"kill {node}\n".encode())
        self.process.stdin.flush()

        def wait() -> None:
            self.nodes = self._told()["nodes"]

        return wait

    def workers(self) -> list[int]:
        """The processes of workers, in the order they were started."""
        return sorted(pid for pid in self.processes() if b"loadgen.worker" in command(pid))

    def actors(self) -> list[int]:
        return sorted(pid for pid in self.processes() if command(pid).startswith(b"ray::Seat"))

    def processes(self) -> list[int]:
        """All of the cluster's."""
        parents = {pid: parent(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}

        def ours(pid: int) -> bool:
            while pid > 1 and pid != self.process.pid:
                pid = parents.get(pid, 0)
            return pid == self.process.pid

        return [pid for pid in parents if pid != self.process.pid and ours(pid)]

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.stdout.close()
            self.folder.cleanup()


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.fixture(scope="session")
def running() -> Iterator[LocalCluster]:
    if os.environ.get("LOADGEN_RAY") != "1" or WITHOUT.startswith("Ray is not"):
        pytest.skip(WITHOUT)
    local = LocalCluster()
    try:
        yield local
    finally:
        local.close()


@pytest.fixture
def cluster(running: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster, in which no actor is left after each test."""
    yield running
    until(lambda: not running.workers(), 5.0)
    until(lambda: not running.actors(), 15.0)
