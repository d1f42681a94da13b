from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from loadgen.errors import TargetError
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.process import SimulatorProcess, told_lag
from loadgen.simulator.server import Simulator

ROOT = Path(__file__).parent.parent.parent
PARENT = """
import time
from loadgen.simulator.process import SimulatorProcess
simulator = SimulatorProcess()
simulator.start()
print(simulator.pid, simulator.url, flush=True)
time.sleep(60)
"""


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"  # killed, and not yet reaped by whoever adopted it


def test_it_answers_while_open_and_is_gone_after() -> None:
    with SimulatorProcess(EngineConfig(context_length=777)) as simulator:
        pid, url = simulator.pid, simulator.url
        assert pid is not None and alive(pid)
        with urllib.request.urlopen(url + "/v1/models", timeout=5) as answer:
            assert b'"max_model_len":777' in answer.read()
        assert os.getpgid(pid) != os.getpgid(0)  # Ctrl-C of our terminal is not sent to it
    assert not alive(pid)
    simulator.stop()  # harmless


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=lambda how: how.name)
def test_it_dies_with_its_parent(how: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline().split()[0])
        assert alive(pid)
        parent.send_signal(how)
        parent.wait(5)
        deadline = time.monotonic() + 5
        while alive(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not alive(pid)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


def test_a_server_that_does_not_start_is_told() -> None:
    simulator = SimulatorProcess(timeout_s=0.0)
    with pytest.raises(TargetError, match="did not start"):
        simulator.start()
    assert simulator.pid is None


@pytest.mark.parametrize(("busy_ms", "told"), [(0, False), (70, True)])
def test_a_server_that_cannot_keep_up_says_so(busy_ms: int, told: bool) -> None:
    """Each of ten 10 ms steps finds the loop busy for so long. A machine may be busy by itself, but not every time."""
    config = EngineConfig(step_ms=10, decode_ms=0, prefill_ms=0, overhead_ms=0, noise_sigma=0)

    async def serve() -> str | None:
        simulator = Simulator(config)
        await simulator.engine.submit("a", 1, 10, lambda count: time.sleep(busy_ms / 1e3))
        return told_lag(simulator.metrics())

    notes = [asyncio.run(serve()) for _ in range(1 if told else 5)]
    assert any((note is not None) == told for note in notes)
    assert not told or "fell behind its engine" in str(notes[0])


def test_a_running_server_is_asked_for_its_lag_and_a_dead_one_is_silent() -> None:
    """It is stopped for a while in the middle of an answer."""
    simulator = SimulatorProcess()
    with simulator:
        assert simulator.lag_note() is None
        asked = json.dumps({"prompt": "hi", "max_tokens": 20, "stream": True, "ignore_eos": True}).encode()
        request = urllib.request.Request(simulator.url + "/v1/completions", asked, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.readline()
            assert simulator.pid is not None
            os.kill(simulator.pid, signal.SIGSTOP)
            time.sleep(0.2)
            os.kill(simulator.pid, signal.SIGCONT)
            answer.read()
        assert "fell behind" in str(simulator.lag_note())
    assert simulator.lag_note() is None


def test_a_server_that_speaks_no_http_is_silent_about_its_lag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"no such thing\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        simulator = SimulatorProcess()
        simulator.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        assert simulator.lag_note() is None
        thread.join()
