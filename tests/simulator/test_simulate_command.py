from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.simulator.capacity import capacity
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.presets import PRESETS
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
        (["--preset", "abacus"], "h100-llama-3.1-8b"),
        (["--kv-bytes", "1"], "--preset"),
        (["--preset", "l4-qwen2.5-7b", "--tensor-parallel", "0"], "tensor_parallel must be at least 1"),
        (["--preset", "l4-qwen2.5-7b", "--kv-bytes", "nan"], "kv_bytes must be above 0"),
        (["--preset", "h100-llama-3.1-8b", "--step-ms", "3"], "leave out --step-ms"),
        (["--preset", "l4-qwen2.5-7b", "--weight-bytes", "4"], "does not fit on 1 x L4"),
        (["--kv", "contiguous", "--kv-blocks", "8"], "holds no reservation"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(wrong: list[str], words: str) -> None:
    done = subprocess.run([*COMMAND, *wrong], capture_output=True, text=True, cwd=ROOT, timeout=20)
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr


def test_every_switch_of_the_engine_has_its_flag() -> None:
    from loadgen.cli.simulate import simulate

    flags = {param.name for param in simulate.params}
    fields = {field.name for field in dataclasses.fields(EngineConfig)} - {"machine"}
    assert fields <= flags
    machine = {"tensor_parallel", "weight_bytes", "kv_bytes", "tiled_attention"}
    assert flags - fields - machine == {"host", "port", "api_key", "timeout_keep_alive", "preset"}


def test_help_states_the_defaults_that_hold() -> None:
    from loadgen.cli.simulate import simulate

    numbers = {
        param.name: re.search(r"\[default: ([\d.]+)", getattr(param, "help", "") or "") for param in simulate.params
    }
    told = {name: float(match[1]) for name, match in numbers.items() if match and name != "port"}
    assert len(told) >= 20
    assert told == {name: getattr(EngineConfig(), str(name)) for name in told}


def test_flags_change_the_preset_that_they_stand_beside() -> None:
    from loadgen.cli.simulate import _config

    config = _config("h100-llama-3.1-8b", {"tensor_parallel": 2, "speculate": 3, "prefix_cache": False})
    assert config.machine is not None and config.machine.tensor_parallel == 2
    assert config == replace(PRESETS["h100-llama-3.1-8b"], machine=config.machine, speculate=3, prefix_cache=False)


def test_a_port_in_use_is_one_sentence_and_exit_2() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "--port", str(port)], capture_output=True, text=True, cwd=ROOT, timeout=20, env=dict(os.environ)
        )
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}: address already in use" in done.stderr
    assert "--port" in done.stderr and "Traceback" not in done.stderr
