"""The simulator in a process of its own, so that it competes with the client for no interpreter lock.

    with SimulatorProcess(EngineConfig(max_batch=16)) as simulator:
        ...  # simulator.url

It never outlives its parent: it ends when its standard input does, and the kernel closes that pipe however the parent
dies. It has its own session, so that Ctrl-C reaches the client alone, which can then drain before it stops the server.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO
from urllib.parse import urlsplit

from ..errors import TargetError
from .engine import EngineConfig, config_of
from .realtime import MOST_LOST


class SimulatorProcess:
    """Starts on `start` or entry, stops on `stop` or exit. TargetError if it does not answer within `timeout_s`."""

    def __init__(
        self, config: EngineConfig | None = None, *, api_key: str | None = None, timeout_s: float = 20.0
    ) -> None:
        self.config = config or EngineConfig()
        self.api_key = api_key
        self.timeout_s = timeout_s
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def __enter__(self) -> SimulatorProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it answers; `url` is then its address."""
        package_root = str(Path(__file__).resolve().parents[2])
        paths = [package_root, os.environ.get("PYTHONPATH", "")]
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadgen.simulator.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        )
        try:
            self.url = self._await_answer(self._process, time.monotonic() + self.timeout_s)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server; harmless if it has ended."""
        process, self._process = self._process, None
        if process is not None:
            _close(process.stdin)
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _close(process.stdout)
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None

    def lag_note(self) -> str | None:
        """A sentence where the server could not keep its engine's pace; None where it did, or does not answer."""
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=2)
        try:
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return told_lag(page)

    def _await_answer(self, process: subprocess.Popen[bytes], deadline: float) -> str:
        assert process.stdin and process.stdout
        order = {"config": asdict(self.config), "api_key": self.api_key}
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            url = process.stdout.readline().decode().strip() if ready else ""
            if url:
                address = urlsplit(url)
                connection = http.client.HTTPConnection(
                    address.hostname or "", address.port, timeout=max(0.1, deadline - time.monotonic())
                )
                try:
                    connection.request("GET", "/health")
                    if connection.getresponse().status == 200:
                        return url
                finally:
                    connection.close()
        except (OSError, http.client.HTTPException):
            pass  # told below, with what the process said of itself
        raise TargetError(
            f"the simulator did not start within {self.timeout_s:g} s: {self._last_words()}",
            "start it by hand with `loadgen simulate` and give its URL",
        )

    def _last_words(self) -> str:
        if self._stderr is None:
            return "it said nothing"
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def told_lag(page: str) -> str | None:
    """What a `/metrics` page of the server says of its own lag, where that is more than `MOST_LOST` of its engine's
    time."""
    values = {}
    for line in page.splitlines():
        name, _, value = line.rpartition(" ")
        values[name.partition("{")[0]] = value
    lost_s = float(values.get("loadgen:simulator_lost_seconds_total", 0))
    busy_s = float(values.get("loadgen:simulator_engine_busy_seconds_total", 0))
    if lost_s <= MOST_LOST * busy_s:
        return None
    return (
        f"the simulated server itself fell behind its engine: it lost {lost_s:.1f} s beside {busy_s:.1f} s of steps, "
        "so the figures at high loads are of this machine"
    )


def _close(pipe: IO[bytes] | None) -> None:
    try:
        if pipe is not None:
            pipe.close()
    except BrokenPipeError:
        pass  # an unsent order to a process that is gone


def main() -> None:
    """The child: one JSON line of orders on stdin, the address on stdout, then serve until stdin ends."""
    from .server import Simulator, bind, make_server

    order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    sock = bind("127.0.0.1", 0)
    server = make_server(Simulator(config_of(order["config"]), api_key=order["api_key"]))
    sys.stdout.write(f"http://127.0.0.1:{sock.getsockname()[1]}\n")
    sys.stdout.flush()
    server.run(sockets=[sock])


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)  # at once: there is nothing to save, and no busy loop may keep the process alive


if __name__ == "__main__":
    main()
