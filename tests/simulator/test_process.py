from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from loadgen.errors import TargetError
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.process import SimulatorProcess

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
