from __future__ import annotations

import pytest

from loadgen.simulator.engine.roofline import Roofline
from loadgen.simulator.engine.work import Work
from loadgen.simulator.oracle import quick_capacity
from loadgen.simulator.presets import PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_runs_and_stays_within_its_machine(name: str) -> None:
    """Decoding alone cannot be faster than the KV and weights are read, nor a prompt than its FLOPs."""
    config = PRESETS[name]
    assert config.machine is not None and config.blocks * config.block_tokens >= config.context_length
    carried = quick_capacity(config, 512, 128)
    roofline = Roofline(config.machine)
    batch = config.max_batch
    step_ms = roofline.milliseconds(Work(decoding=batch, decode_tokens=batch, decode_context=batch * 576))
    prompts_ms = roofline.flops(Work(prefilled=512, prefill_pairs=512 * 513 // 2)) / config.machine.peak_flops * 1e3
    assert 0.1 * batch / step_ms < carried / 1e3 < min(batch / step_ms, 128 / prompts_ms)


@pytest.mark.parametrize(
    ("name", "least_ms", "most_ms"),
    [  # of a single request's token; weights / bandwidth of the data sheet, and twice that
        ("h100-llama-3.1-8b", 4.8, 9.6),
        ("a100-llama-3.1-8b", 7.9, 15.8),
        ("h100x8-llama-3.1-70b", 5.3, 10.6),
        ("l4-qwen2.5-7b", 50, 100),
    ],
)
def test_a_lone_request_decodes_at_the_memorys_pace(name: str, least_ms: float, most_ms: float) -> None:
    machine = PRESETS[name].machine
    assert machine is not None
    alone = Roofline(machine).milliseconds(Work(decoding=1, decode_tokens=1, decode_context=100))
    assert least_ms < alone < most_ms
