"""Ground-truth servers in processes of their own, pinned apart from the client where the machine has the cores.

    with TruthServers(1) as servers:
        ...  # servers.urls, servers.tls_urls, servers.ca_file

A server never outlives its parent: it ends when its standard input does, and the kernel closes that pipe however the
parent dies.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType

from ..errors import TargetError, UsageError
from .truth import TruthConfig

MOST_SERVERS = 3  # a client core carries little more than one server core sends


@dataclass(frozen=True, slots=True)
class Placement:
    """Which CPUs the client keeps, and the one of each server; both empty where they cannot be kept apart."""

    client: tuple[int, ...]
    servers: tuple[int, ...]


def place(siblings: Mapping[int, tuple[int, ...]], servers: int | None = None) -> Placement:
    """Spread client and servers over the usable CPUs, given for each the CPUs that share its core. Pure.

    The client and each server get a whole core where there are enough, else a CPU each, else nothing is pinned.
    `servers` None takes what there is, at most `MOST_SERVERS`.
    """
    cores = sorted({tuple(sorted(cpu for cpu in shared if cpu in siblings)) for shared in siblings.values()})
    if len(cores) < 1 + (servers or 1):
        cores = [(cpu,) for cpu in sorted(siblings)]
    count = servers or max(1, min(MOST_SERVERS, len(cores) - 1))
    if len(cores) < 1 + count:
        return Placement((), ())
    mine = tuple(cpu for core in cores[: len(cores) - count] for cpu in core)
    return Placement(mine, tuple(core[0] for core in cores[len(cores) - count :]))


def cpu_siblings() -> dict[int, tuple[int, ...]]:
    """The CPUs this process may use, each with those that share its core."""
    found = {}
    for cpu in os.sched_getaffinity(0):
        try:
            text = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
            found[cpu] = tuple(sorted({*_cpu_list(text), cpu}))
        except (OSError, ValueError):
            found[cpu] = (cpu,)
    return found


def _cpu_list(text: str) -> list[int]:
    """`0,4-5` → 0, 4, 5."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        cpus += range(int(low), int(high or low) + 1)
    return cpus


class TruthServers:
    """`count` servers, each on a plain and a TLS port of 127.0.0.1. TargetError if one does not start in time.

    `cpus` pins them, one CPU each. `ca_file` is the certificate by which their TLS ports are known.
    """

    def __init__(
        self,
        count: int = 1,
        *,
        cpus: Sequence[int] = (),
        config: TruthConfig | None = None,
        timeout_s: float = 20.0,
    ) -> None:
        check_platform()
        self.count = count
        self.cpus = tuple(cpus)
        self.config = config or TruthConfig()
        self.timeout_s = timeout_s
        self.urls: list[str] = []
        self.tls_urls: list[str] = []
        self.pids: list[int] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def ca_file(self) -> str:
        assert self._folder is not None, "the servers are not running"
        return str(Path(self._folder.name, "certificate.pem"))

    def __enter__(self) -> TruthServers:
        from .certificate import self_signed

        self._folder = tempfile.TemporaryDirectory(prefix="loadgen-truth-")
        certificate, key = self_signed()
        Path(self.ca_file).write_text(certificate)
        key_file = Path(self._folder.name, "key.pem")
        key_file.touch(0o600)
        key_file.write_text(key)
        try:
            for index in range(self.count):
                self._start(index, str(key_file))
            deadline = time.monotonic() + self.timeout_s
            for process in self._processes:
                self._await(process, deadline)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the servers; harmless if they have ended."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                if process.stdin:
                    process.stdin.close()
        for process in self._processes:
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()
        self._processes.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self, index: int, key_file: str) -> None:
        package_root = str(Path(__file__).resolve().parents[2])
        paths = [package_root, os.environ.get("PYTHONPATH", "")]
        order = {
            "config": asdict(replace(self.config, worker=index)),
            "cpu": self.cpus[index] if index < len(self.cpus) else None,
            "certificate": self.ca_file,
            "key": key_file,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "loadgen.simulator.truth_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the client alone, which then stops its servers
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        )
        self._processes.append(process)
        assert process.stdin
        with contextlib.suppress(OSError):  # told by the missing answer
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()

    def _await(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        assert process.stdout
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        line = process.stdout.readline() if ready else b""
        if not line:
            raise TargetError(
                f"the ground-truth server did not start within {self.timeout_s:g} s",
                "see what it printed above; a loopback address and free ports are all that it needs",
            )
        ports = json.loads(line)
        self.urls.append(f"http://127.0.0.1:{ports['plain']}")
        self.tls_urls.append(f"https://127.0.0.1:{ports['tls']}")
        self.pids.append(process.pid)


def check_platform() -> None:
    """Raises UsageError where there is no epoll and timerfd."""
    if not hasattr(select, "epoll"):
        raise UsageError("the ground-truth server needs Linux (epoll and timerfd)", "use a Linux machine")


def main() -> None:
    """The child: one JSON line of orders on stdin, the ports on stdout, then serve until stdin ends."""
    import resource

    from .truth import TruthServer

    order = json.loads(os.read(0, 65536))
    if order["cpu"] is not None:
        os.sched_setaffinity(0, {order["cpu"]})
    with contextlib.suppress(OSError, ValueError):  # a server cannot know how many clients come
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(order["certificate"], order["key"])
    plain, tls = (socket.create_server(("127.0.0.1", 0), backlog=4096) for _ in range(2))
    server = TruthServer([(plain, None), (tls, context)], TruthConfig(**order["config"]), stop_fd=0)
    answer = {"plain": plain.getsockname()[1], "tls": tls.getsockname()[1]}
    os.write(1, json.dumps(answer).encode() + b"\n")
    gc.collect()
    gc.freeze()
    gc.disable()  # a pause would be a late token
    server.serve()


if __name__ == "__main__":
    main()
