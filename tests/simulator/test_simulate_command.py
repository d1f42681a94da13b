from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from loadgen.simulator.capacity import capacity
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.server import bind

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-m", "loadgen", "simulate"]


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_it_tells_its_address_and_capacity_and_serves_until_stopped(how: signal.Signals, code: int) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", "--max-batch", "8"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stderr is not None and process.stdout is not None
        line = process.stderr.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert address is not None, line
        assert f"{capacity(EngineConfig(max_batch=8), 512, 128):,.0f} output tokens/s" in line
        assert f"loadgen sweep {address[0]} " in line
        with urllib.request.urlopen(address[0] + "/health", timeout=5) as answer:
            assert answer.status == 200
        process.send_signal(how)
        out, err = process.communicate(timeout=10)
        assert process.returncode == code
        assert (out, err.strip()) == ("", "")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--max-batch", "0"], "max_batch must be at least 1"),
        (["--port", "70000"], "port"),
        (["--step-ms", "-3"], "step_ms must be at least 0"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(wrong: list[str], words: str) -> None:
    done = subprocess.run([*COMMAND, *wrong], capture_output=True, text=True, cwd=ROOT, timeout=20)
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr


def test_a_port_in_use_is_one_sentence_and_exit_2() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "--port", str(port)], capture_output=True, text=True, cwd=ROOT, timeout=20, env=dict(os.environ)
        )
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}: address already in use" in done.stderr
    assert "--port" in done.stderr and "Traceback" not in done.stderr
