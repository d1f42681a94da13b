from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from loadgen.errors import UsageError
from loadgen.simulator.engine import EngineConfig, config_of
from loadgen.simulator.presets import PRESETS


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"acceptance": 1.0}, "acceptance must be below 1"),
        ({"drift": 1.5}, "drift must be below 1"),
        ({"batching": "dynamic"}, "continuous or static"),
        ({"kv": "swapped"}, "paged or contiguous"),
        ({"block_tokens": 0}, "block_tokens must be at least 1"),
        ({"max_batched_tokens": 16, "max_batch": 16}, "no room for a prompt"),
        ({"max_batched_tokens": 40, "max_batch": 16, "speculate": 2}, "48 decoded"),
        ({"prefix_cache": True, "kv": "contiguous"}, "prefix cache"),
        ({"kv": "contiguous", "kv_blocks": 10}, "holds no reservation"),
    ],
    ids=str,
)
def test_switches_that_cannot_be_meant_are_refused(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        EngineConfig(**wrong)  # type: ignore[arg-type]
    assert words in str(caught.value) and caught.value.remedy


@pytest.mark.parametrize("config", [EngineConfig(seed=4), *PRESETS.values()], ids=["simple", *PRESETS])
def test_a_config_survives_json(config: EngineConfig) -> None:
    assert config_of(json.loads(json.dumps(asdict(config)))) == config


def test_a_config_is_simple_where_the_closed_form_holds() -> None:
    assert EngineConfig(step_ms=3, max_batch=99, noise_sigma=0, seed=2).simple
    for further in ({"speculate": 1}, {"kv_blocks": 9}, {"chunked_prefill": False}, {"stall_every_s": 9.0}):
        assert not EngineConfig(**further).simple  # type: ignore[arg-type]
