"""The engine's memory is the plan's: the same blocks, and as many sequences at once as the plan says."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from click.testing import CliRunner

from loadgen.analysis.planning import Lengths, plan
from loadgen.cli.plan import plan as plan_command
from loadgen.hardware.deployment import Deployment
from loadgen.hardware.gpus import GPUS, gpu_named
from loadgen.hardware.model import Quantisation
from loadgen.hardware.named import model_named, table
from loadgen.simulator.engine import EngineConfig, Machine
from loadgen.simulator.engine.core import Core
from loadgen.simulator.engine.machine import machine_of
from loadgen.simulator.engine.sequence import Sequence
from loadgen.simulator.presets import PRESETS

WAYS = ({}, {"tensor_parallel": 2}, {"tensor_parallel": 8}, {"pipeline_parallel": 2}, {"expert_parallel": 4})


def _fits(name: str, gpu: str, ways: dict[str, int]) -> bool:
    return plan(model_named(name), Deployment(gpu_named(gpu), **ways), Lengths(1, 1, 1, 2)).cache.blocks > 0


# Every model of the table on some accelerators, in every way that holds it.
FITTING = [
    (name, gpu, ways)
    for name in table()
    for gpu in ("h100", "l40s", "mi300x", "b200")
    for ways in WAYS
    if _fits(name, gpu, ways)
]


@pytest.mark.parametrize("kv_bits", [16, 8])
@pytest.mark.parametrize("block", [16, 32])
def test_the_engine_has_the_blocks_of_the_plan(kv_bits: float, block: int) -> None:
    assert len(FITTING) > 150 and {name for name, *_ in FITTING} == set(table())
    for name, gpu, ways in FITTING:
        model, on = model_named(name), Deployment(gpu_named(gpu), kv_bits=kv_bits, block=block, **ways)
        planned = plan(model, on, Lengths(1, 1, 1, 2)).cache
        config = EngineConfig(
            machine=Machine(model, on),
            block_tokens=block,
            max_batch=on.max_sequences,
            max_batched_tokens=on.batch_tokens,
        )
        assert (config.blocks, config.blocks * block) == (planned.blocks, planned.tokens), (name, gpu, ways)


@pytest.mark.parametrize(
    ("name", "gpu", "ways", "tokens"),
    [
        ("llama-3.1-8b", "h100", {}, 8192),
        ("llama-3.1-8b", "l40s", {}, 4000),
        ("llama-3.1-70b", "h200", {"tensor_parallel": 2}, 10_000),
        ("qwen2.5-7b", "l4", {}, 3001),
        ("mixtral-8x7b", "a100-80gb", {"tensor_parallel": 4}, 7777),
        ("deepseek-v3", "h200", {"tensor_parallel": 8}, 20_000),
    ],
    ids=str,
)
def test_as_many_sequences_run_at_once_as_the_plan_says(name: str, gpu: str, ways: dict[str, int], tokens: int) -> None:
    """All prompts of one length, no limit but the memory's: the batch fills to the plan's number."""
    model, on = model_named(name), Deployment(gpu_named(gpu), **ways)
    planned = plan(model, on, Lengths(tokens - 1, 1, tokens - 1, tokens))
    config = EngineConfig(
        machine=Machine(model, on),
        max_batch=on.max_sequences,
        max_prefill_tokens=1 << 40,
        max_batched_tokens=0,
        noise_sigma=0,
    )
    config = replace(config, kv_blocks=planned.cache.blocks)
    core = Core(config)
    for number in range(on.max_sequences):
        core.submit(Sequence(number, tokens, 2, 0.0, 0.0))
    core.step(0.0)
    assert 0 < planned.concurrent_p99 < on.max_sequences
    assert core.running == planned.concurrent_p99
    assert core.waiting == on.max_sequences - core.running


@pytest.mark.parametrize("name", PRESETS)
def test_the_plan_command_tells_a_presets_memory(name: str) -> None:
    config = PRESETS[name]
    assert config.machine is not None
    on, model = config.machine.on, config.machine.model
    asked = ["--model", model.name, "--gpu", on.gpu.name, "--tp", str(on.tensor_parallel), "--json"]
    asked += ["--kv-bits", f"{on.kv_bits:g}", "--batch-tokens", str(config.max_batched_tokens)]
    if on.kv_bits == 8:
        asked += ["--weight-bits", "8"]
    answer = json.loads(CliRunner().invoke(plan_command, asked, standalone_mode=False).output)
    assert answer["kv_cache"]["blocks"] == config.blocks


def test_a_machine_survives_json() -> None:
    model = model_named("gpt-oss-20b").quantised(Quantisation(4, 32, 8, experts_only=True))
    machine = Machine(model, Deployment(GPUS["l4"], tensor_parallel=2), tiled_attention=False)
    assert machine_of(json.loads(json.dumps(asdict(machine)))) == machine
