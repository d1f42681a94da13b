from __future__ import annotations

import dataclasses
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.simulator.capacity import capacity
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.presets import PRESETS
from loadgen.simulator.server import bind
from tests.cli.command import Call

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-m", "loadgen", "simulate"]


@pytest.fixture
def taken() -> Iterator[int]:
    """A port in use: nothing is served there, whatever else a command line may get away with."""
    with bind("127.0.0.1", 0) as listening:
        yield listening.getsockname()[1]


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
        (["--kv-bits", "8"], "--preset"),
        (["--gpu", "h100"], "add --model"),
        (["--model", "qwen3-8b", "--gpu", "abacus"], "there is no GPU abacus"),
        (["--model", "qwen3-8b", "--preset", "l4-qwen2.5-7b"], "given twice"),
        (["--preset", "l4-qwen2.5-7b", "--tensor-parallel", "0"], "at least 1"),
        (["--preset", "l4-qwen2.5-7b", "--kv-bits", "nan"], "KV elements of nan bits"),
        (["--levels", "1,2"], "--truth"),
        (["--truth", "--levels", "1", "--rates", "2"], "exclude each other"),
        (["--truth", "--rates", "2,1"], "rising"),
        (["--truth", "--slo", "ttft"], "has no limit"),
        (["--truth", "--input-len", "40000"], "exceed what this engine holds"),
        (["--preset", "h100-llama-3.1-8b", "--step-ms", "3"], "leave out --step-ms"),
        (["--preset", "l4-qwen2.5-7b", "--weight-bits", "32"], "does not fit on 1 x l4"),
        (["--kv", "contiguous", "--kv-blocks", "8"], "holds no reservation"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(call: Call, taken: int, wrong: list[str], words: str) -> None:
    said = call("simulate", "--port", taken, *wrong)
    assert said.code == 2
    assert words in said.err and "Traceback" not in said.err


def test_every_switch_of_the_engine_has_its_flag() -> None:
    from loadgen.cli.simulate import simulate

    flags = {param.name for param in simulate.params}
    fields = {field.name for field in dataclasses.fields(EngineConfig)} - {"machine"}
    assert fields <= flags
    machine = {"preset", "model", "gpu", "tp", "weight_bits", "kv_bits", "tiled_attention", "list_presets"}
    truth = {"truth", "levels", "rates", "slo", "input_len", "output_len", "requests", "replications", "as_json"}
    like = {"like"}
    assert flags - fields - machine - truth - like == {"host", "port", "api_key", "timeout_keep_alive"}


def test_help_states_the_defaults_that_hold() -> None:
    from loadgen.cli.simulate import simulate

    numbers = {
        param.name: re.search(r"\[default: ([\d.]+)", getattr(param, "help", "") or "") for param in simulate.params
    }
    fields = {field.name for field in dataclasses.fields(EngineConfig)}
    told = {name: float(match[1]) for name, match in numbers.items() if match and name in fields}
    assert len(told) >= 20
    assert told == {name: getattr(EngineConfig(), str(name)) for name in told}


def test_flags_change_the_preset_that_they_stand_beside() -> None:
    from loadgen.cli.simulate import _config

    named = {"preset": "h100-llama-3.1-8b", "model": None, "gpu": None}
    config = _config(named, {"tp": 2, "speculate": 3, "prefix_cache": False})
    assert config.machine is not None and config.machine.on.tensor_parallel == 2
    assert config == replace(PRESETS["h100-llama-3.1-8b"], machine=config.machine, speculate=3, prefix_cache=False)


@pytest.mark.parametrize("name", PRESETS)
def test_a_model_and_an_accelerator_are_the_preset_of_that_name(name: str) -> None:
    from loadgen.cli.simulate import _config

    config = PRESETS[name]
    assert config.machine is not None
    on, model = config.machine.on, config.machine.model
    named = {"preset": None, "model": model.name, "gpu": on.gpu.name}
    changes = {"tp": on.tensor_parallel, "kv_bits": on.kv_bits}
    found = _config(named, changes if on.kv_bits == 16 else {**changes, "weight_bits": 8})
    assert (found.blocks, found.max_batched_tokens) == (config.blocks, config.max_batched_tokens)


def test_presets_are_listed(call: Call) -> None:
    said = call("simulate", "--list-presets")
    assert said.code == 0
    assert [line.split()[0] for line in said.out.splitlines()] == list(PRESETS)


def test_the_truth_is_told_without_serving(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in flight: TTFT = overhead + step + prefill, TPOT = step + decode; beyond the batch, requests queue."""
    asked = ["simulate", "--truth", "--levels", "1,16,24", "--input-len", "64", "--output-len", "24-40"]
    asked += ["--slo", "ttft_p95=200ms", "--slo", "tpot=1ms", "--noise-sigma", "0", "--requests", "200"]
    asked += ["--replications", "3", "--json"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said = call(*asked)
    assert said.code == 0, said.err
    found = json.loads(said.out)
    alone, full, more = found["levels"]
    assert alone["ttft_p50_ms"]["value"] == pytest.approx(22 + 12 + 64 * 0.085)
    assert alone["tpot_p99_ms"]["value"] == pytest.approx(12.2)
    assert full["ttft_p95_ms"]["value"] < 200 < more["ttft_p95_ms"]["value"]
    most = found["saturated_output_throughput"]
    assert most["value"] == pytest.approx(capacity(EngineConfig(), 64, 32), rel=0.02) and 0 < most["error"] < 20
    assert 16 < found["crossings"]["ttft_p95 200 ms"]["load"] < 24
    assert found["crossings"]["tpot 1 ms"]["holds"] == "never"
    table = call(*asked[:-1])
    assert table.code == 0 and "ttft_p95 200 ms  holds up to" in table.out


def test_a_port_in_use_is_one_sentence_and_exit_2(call: Call, taken: int) -> None:
    said = call("simulate", "--port", taken)
    assert said.code == 2
    assert f"cannot listen on 127.0.0.1:{taken}: address already in use" in said.err
    assert "--port" in said.err and "Traceback" not in said.err
