"""Models from their public configs, held against published figures; configs of every kind; garbage."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.hardware.config import model_from_config, quantisation_of
from loadgen.hardware.gpus import GPUS, gpu_named
from loadgen.hardware.model import GB, GIB, KIB, AttentionLayers, Model, Quantisation
from loadgen.hardware.named import model_named, table

LLAMA: dict[str, Any] = table()["llama-3.1-8b"]["config"]


def dense(parameters: float, bits: float) -> Model:
    return Model("m", parameters, parameters, 80, 8192, 64, 8, 128, (AttentionLayers(80),)).quantised(
        Quantisation(bits)
    )


@pytest.mark.parametrize(("bits", "gigabytes"), [(16, 140), (8, 70), (4, 35)])
def test_the_weights_of_70_billion_parameters(bits: float, gigabytes: float) -> None:
    assert dense(70e9, bits).weight_bytes() == gigabytes * GB


def test_the_cache_of_32_layers_8_heads_of_128() -> None:
    model = model_named("llama-3.1-8b")
    assert model.kv_bytes_per_token() == 128 * KIB
    assert model.sequence_bytes(8192) == 1.00 * GIB
    assert 16 * model.sequence_bytes(8192) == 16.00 * GIB


def test_latent_attention_is_not_doubled_and_is_replicated() -> None:
    model = model_named("deepseek-v3")
    assert model.kv_bytes_per_token() == 70_272
    assert model.kv_bytes_per_token(tensor_parallel=8) == 70_272


# KV bytes a token at 16 bits, as the publishers' shapes give them: 2 × layers × KV heads × head dimension × 2.
@pytest.mark.parametrize(
    ("name", "kv"),
    [
        ("llama-3.1-70b", 320 * KIB),
        ("llama-3.1-405b", 504 * KIB),
        ("mixtral-8x7b", 128 * KIB),
        ("qwen2.5-7b", 56 * KIB),
        ("qwen3-30b-a3b", 96 * KIB),
        ("qwen3-next-80b-a3b", 24 * KIB),
        ("gpt-oss-120b", 72 * KIB),
        ("jamba-1.5-mini", 16 * KIB),
    ],
)
def test_the_cache_of_public_models(name: str, kv: int) -> None:
    assert model_named(name).kv_bytes_per_token() == kv


@pytest.mark.parametrize("name", list(table()))
def test_counted_parameters_are_the_published_ones(name: str) -> None:
    """Totals within 1 %, active parameters within 2 %: publishers round, and count the embeddings or not."""
    model, published = model_named(name), table()[name]["published"]
    assert model.parameters == pytest.approx(published["parameters"], rel=0.01)
    if "active_parameters" in published:
        assert model.active_parameters == pytest.approx(published["active_parameters"], rel=0.02)
    assert not model.notes


def test_heads_that_do_not_divide_are_replicated() -> None:
    model = model_named("qwen2.5-7b")  # 4 KV heads
    assert [model.kv_elements_per_layer(tp) // (2 * 128) for tp in (1, 2, 3, 4, 8)] == [4, 2, 2, 1, 1]


def test_a_window_bounds_what_is_kept_and_read() -> None:
    model = model_named("gemma-2-9b")  # 21 of 42 layers see 4,096 tokens
    each = model.kv_elements_per_layer() * 2
    assert model.sequence_bytes(8192) == 21 * (8192 + 4096) * each
    assert model.sequence_bytes(1000, block=16) == 42 * 1008 * each
    assert model_named("mistral-7b-v0.1").sequence_bytes(100_000) == 32 * 4096 * 4096


def test_recurrent_layers_keep_a_state_of_fixed_size() -> None:
    model = model_named("jamba-1.5-mini")
    assert model.attention == (AttentionLayers(4),)
    state = 28 * (8192 * 16 + 3 * 8192) * 2
    assert model.sequence_bytes(0) == state
    assert model.sequence_bytes(1000) - state == 1000 * 16 * KIB


def test_the_experts_a_batch_reads() -> None:
    model = model_named("mixtral-8x7b")
    assert model.experts_touched(1) == pytest.approx(2 / 8)
    assert model.experts_touched(4) == pytest.approx(1 - 0.75**4)
    assert model.experts_touched(4) < model.experts_touched(8) < model.experts_touched(1000) <= 1


@pytest.mark.parametrize(
    ("stated", "bits_each"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 16384),
        ({"quant_method": "mxfp4"}, 4.25),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 4 + 8.125 / 64),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}}, 8),
        (None, 16),
    ],
    ids=["awq", "gptq", "fp8", "mxfp4", "nf4", "int8", "compressed", "none"],
)
def test_quantised_weights_carry_their_scales(stated: Any, bits_each: float) -> None:
    quantisation, notes = quantisation_of(stated)
    assert quantisation.bits_each == pytest.approx(bits_each)
    assert not notes


def test_a_quantisation_that_is_not_known_is_said() -> None:
    model = model_from_config({**LLAMA, "quantization_config": {"quant_method": "secret"}}, "m")
    assert model.quantisation.bits_each == 16
    assert "secret" in model.notes[0]


def test_embeddings_stay_unquantised() -> None:
    quantised = model_from_config({**LLAMA, "quantization_config": {"quant_method": "awq", "bits": 4}}, "m")
    plain = quantised.plain_parameters
    assert plain == pytest.approx(2 * 128256 * 4096 + 65 * 4096)
    assert quantised.weight_bytes() == pytest.approx(2 * plain + (quantised.parameters - plain) * (4 + 20 / 128) / 8)


def test_flops_of_a_token_and_of_a_prompt() -> None:
    model = model_named("llama-3.1-8b")
    assert replace(model, active_parameters=1e6).body_parameters == 0
    head = 128256 * 4096  # the input's embedding, as large again, is looked up
    assert model.decode_flops(0) == 2 * (model.active_parameters - head)
    assert model.decode_flops(1000) - model.decode_flops(0) == 4 * 32 * 32 * 128 * 1000
    one_by_one = sum(model.decode_flops(n + 0.5) for n in range(100))
    assert model.prefill_flops(100) == pytest.approx(one_by_one - 99 * 2 * head)  # one token is sampled
    from_40 = sum(model.decode_flops(n + 0.5) for n in range(40, 100))
    assert model.prefill_flops(100, 40) == pytest.approx(from_40 - 59 * 2 * head)


@given(st.integers(1, 9000), st.integers(0, 9000))
def test_prefill_with_a_window_is_the_sum_over_its_tokens(tokens: int, cached: int) -> None:
    cached = min(cached, tokens)
    model = model_named("mistral-7b-v0.1")
    seen = sum(min(n + 0.5, 4096) for n in range(cached, tokens))
    head = 32000 * 4096
    expected = 2 * (model.active_parameters - 2 * head) * (tokens - cached) + 2 * head + 32 * 4 * 32 * 128 * seen
    assert model.prefill_flops(tokens, cached) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({**LLAMA, "num_hidden_layers": -3}, "num_hidden_layers"),
        ({**LLAMA, "num_hidden_layers": 10**12}, "layers"),
        ({**LLAMA, "hidden_size": "wide"}, "hidden_size"),
        ({**LLAMA, "hidden_size": 4097}, "multiple"),
        ({**LLAMA, "num_key_value_heads": 64}, "KV heads"),
        ({**LLAMA, "vocab_size": math.nan}, "vocab_size"),
        ({**LLAMA, "head_dim": True}, "head_dim"),
        ({**LLAMA, "num_local_experts": 2, "num_experts_per_tok": 3}, "3 experts for each token but only 2"),
    ],
    ids=[
        "empty",
        "no layers",
        "negative",
        "endless",
        "text",
        "indivisible",
        "more KV heads",
        "nan",
        "boolean",
        "experts",
    ],
)
def test_what_is_no_config_is_refused_by_name(config: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        model_from_config(config, "x")


def test_gemma_3_sees_all_in_each_sixth_layer() -> None:
    model = model_from_config({**LLAMA, "model_type": "gemma3_text", "sliding_window": 512}, "g")
    assert set(model.attention) == {AttentionLayers(5, None), AttentionLayers(27, 512)}


def test_a_hybrid_whose_layers_are_letters() -> None:
    """As Nemotron-H 8B has them, whose publisher counts 8.1e9 parameters."""
    config = {
        "model_type": "nemotron_h", "num_hidden_layers": 52, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "attention_head_dim": 128, "intermediate_size": 21504, "vocab_size": 131072,
        "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4,
        "tie_word_embeddings": False, "hybrid_override_pattern": "M-" * 20 + "M*-" * 4,
    }  # fmt: skip
    model = model_from_config(config, "n")
    assert model.attention == (AttentionLayers(4),)
    assert model.state_elements == 24 * (8192 * 128 + 3 * (8192 + 2 * 8 * 128))
    assert model.parameters == pytest.approx(8.1e9, rel=0.01)
    assert model.notes == ()
    [note] = model_from_config({**config, "hybrid_override_pattern": "M-X"}, "n").notes
    assert "cannot be read" in note


def test_a_list_of_another_length_than_the_layers_is_not_read_in_silence() -> None:
    [note] = model_from_config({**LLAMA, "layer_types": ["full_attention"] * 3}, "m").notes
    assert "names 3 layers" in note


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
KEYS = sorted({key for entry in table().values() for key in entry["config"]} | {"text_config", "layer_types"})


@given(st.sampled_from(sorted(table())), st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3))
def test_a_damaged_config_gives_a_model_or_a_sentence(name: str, damage: dict[str, Any]) -> None:
    try:
        model = model_from_config({**table()[name]["config"], **damage}, "x")
    except UsageError as error:
        assert error.remedy
        return
    assert model.parameters > 0
    assert json.dumps(model.kv_bytes_per_token())


def test_gpus_are_found_by_the_names_people_write() -> None:
    assert gpu_named("A100").name == "a100-80gb"
    assert gpu_named("H100 PCIe").name == "h100-pcie"
    assert all(gpu.source and gpu.memory > 0 for gpu in GPUS.values())
    with pytest.raises(UsageError, match="voodoo"):
        gpu_named("voodoo")
