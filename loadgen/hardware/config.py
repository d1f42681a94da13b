"""A Hugging Face `config.json` → a `Model`. Pure; nothing is downloaded.

Parameters are counted from the shapes that the file states. They are those of the common decoder: attention (grouped
query or latent), a gated or plain feed-forward part or experts, norms, embeddings and output head. What the file does
not let one tell is said in `Model.notes`, and never guessed in silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import UsageError
from .model import AttentionLayers, Model, Quantisation

# Families whose feed-forward part has two matrices in place of three (no gate).
_PLAIN_FFN = {
    "gpt2",
    "gpt_neox",
    "gptj",
    "opt",
    "falcon",
    "phi",
    "starcoder2",
    "bloom",
    "mpt",
    "nemotron",
    "gpt_bigcode",
    "nemotron_h",
}
_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0, "fp32": 4.0, "fp16": 2.0, "bf16": 2.0}
MOST_LAYERS = 10_000
_RECURRENT_TYPES = {"mamba", "mamba2", "linear_attention", "recurrent", "rglru", "rwkv", "gated_deltanet"}
_LETTERS: dict[str, str | None] = {"M": "recurrent", "*": None, "-": "feed-forward"}  # of a hybrid_override_pattern
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6}  # every so many layers one sees all, where the file is silent


def model_from_config(config: Mapping[str, Any], name: str, *, source: str = "") -> Model:
    """Raises UsageError where the file is no config of a decoder, naming what is missing."""
    text = config.get("text_config")
    top = config
    if isinstance(text, Mapping):  # a model that also sees images: its language part
        config = {**{k: v for k, v in config.items() if k == "quantization_config"}, **text}
    shape = _Shape.of(config, name)
    model = _counted(shape, name, source)
    notes = list(model.notes)
    if isinstance(text, Mapping):
        notes.append("only the language part of the model is counted")
    quantisation, said = quantisation_of(
        top.get("quantization_config") or config.get("quantization_config"), shape.dtype_bits
    )
    return replace(model, quantisation=quantisation, notes=(*notes, *said))


@dataclass(frozen=True, slots=True)
class _Shape:
    config: Mapping[str, Any]
    kind: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    dtype_bits: float
    notes: tuple[str, ...]

    @classmethod
    def of(cls, config: Mapping[str, Any], name: str) -> _Shape:
        notes: list[str] = []
        layers = _count(config, name, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
        if layers > MOST_LAYERS:
            raise UsageError(f"{name}: {layers:,} layers are more than a model has", "give the model's own config.json")
        hidden = _count(config, name, "hidden_size", "n_embd", "d_model")
        heads = _count(config, name, "num_attention_heads", "n_head", "n_heads")
        kv_heads = _maybe(config, "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
        if kv_heads is None:
            kv_heads = 1 if config.get("multi_query") is True else heads
        head_dim = _maybe(config, "head_dim", "kv_channels", "attention_head_dim")
        if head_dim is None:
            if hidden % heads and not config.get("kv_lora_rank"):
                raise UsageError(
                    f"{name}: hidden_size {hidden} is not a multiple of its {heads} heads, and there is no head_dim",
                    "give the model's own config.json",
                )
            head_dim = hidden // heads
        intermediate = _maybe(
            config, "intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "moe_intermediate_size"
        )
        if intermediate is None:
            intermediate = 4 * hidden
            notes.append("no intermediate_size: 4 × hidden_size is taken")
        vocabulary = _maybe(config, "vocab_size", "padded_vocab_size") or 0
        dtype = config.get("torch_dtype") or config.get("dtype")
        dtype_bits = 8 * _BYTES.get(str(dtype).removeprefix("torch."), 2.0)
        if kv_heads > heads:
            raise UsageError(f"{name}: {kv_heads} KV heads but only {heads} heads", "give the model's own config.json")
        experts, used = _experts(config), _experts_per_token(config)
        if experts and used > experts:
            raise UsageError(
                f"{name}: {used} experts for each token but only {experts} experts", "give the model's own config.json"
            )
        return cls(
            config=config,
            kind=str(config.get("model_type", "")),
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate=intermediate,
            vocabulary=vocabulary,
            dtype_bits=dtype_bits,
            notes=tuple(notes),
        )


def _counted(shape: _Shape, name: str, source: str) -> Model:
    config, hidden = shape.config, shape.hidden
    notes = list(shape.notes)
    kinds = _layer_kinds(shape, notes)
    recurrent, alone = kinds.count("recurrent"), kinds.count("feed-forward")
    attending = shape.layers - recurrent - alone
    attention = attending * _attention_parameters(shape)
    state, recurrent_parameters = _recurrent(shape, recurrent)
    dense, experts, used, routers, expert_layers = _feed_forward(replace(shape, layers=alone) if alone else shape)
    embeddings = shape.vocabulary * hidden
    head = 0 if config.get("tie_word_embeddings", _tied_by_default(shape.kind)) else embeddings
    norms = (2 * shape.layers + 1) * hidden
    shared = attention + recurrent_parameters + dense + embeddings + head + norms + routers
    windows: dict[int | None, int] = {}
    for kind in kinds:
        if not isinstance(kind, str):
            windows[kind] = windows.get(kind, 0) + 1
    groups = tuple(AttentionLayers(n, w) for w, n in sorted(windows.items(), key=lambda item: item[0] or math.inf))
    latent = _maybe(config, "kv_lora_rank") or 0
    if recurrent and not state:
        notes.append("the recurrent layers' state cannot be told from the file and is not counted")
    return Model(
        name=name,
        parameters=shared + experts,
        active_parameters=shared + used,
        layers=shape.layers,
        hidden=hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        attention=groups,
        vocabulary=shape.vocabulary,
        tied=not head,
        latent_rank=latent,
        rope_dim=(_maybe(config, "qk_rope_head_dim") or 0) if latent else 0,
        experts=(_experts(config) or 0) if expert_layers else 0,
        experts_per_token=_experts_per_token(config) if expert_layers else 0,
        expert_parameters=experts,
        plain_parameters=embeddings + head + norms + routers,
        state_elements=state,
        max_context=_maybe(config, "max_position_embeddings", "n_positions", "seq_length", "max_sequence_length"),
        source=source,
        notes=tuple(notes),
    )


def _attention_parameters(shape: _Shape) -> float:
    """Of one layer: the projections of queries, keys, values and output."""
    config, hidden = shape.config, shape.hidden
    rank = _maybe(config, "kv_lora_rank")
    if rank:
        nope, rope = _maybe(config, "qk_nope_head_dim") or shape.head_dim, _maybe(config, "qk_rope_head_dim") or 0
        value = _maybe(config, "v_head_dim") or nope
        query_rank = _maybe(config, "q_lora_rank")
        width = shape.heads * (nope + rope)
        query = query_rank * (hidden + width) if query_rank else hidden * width
        return query + hidden * (rank + rope) + rank * shape.heads * (nope + value) + shape.heads * value * hidden
    query, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    bias = query + 2 * keys if config.get("attention_bias", shape.kind == "qwen2") else 0
    return hidden * (2 * query + 2 * keys) + bias


def _feed_forward(shape: _Shape) -> tuple[float, float, float, float, int]:
    """Parameters of all layers: dense (and shared experts), routed experts, those of them one token uses, routers; and
    in how many layers there are experts."""
    config, hidden = shape.config, shape.hidden
    matrices = 2 if shape.kind in _PLAIN_FFN else 3
    experts = _experts(config)
    if not experts:
        return shape.layers * matrices * hidden * shape.intermediate, 0.0, 0.0, 0.0, 0
    width = _maybe(config, "moe_intermediate_size", "expert_ffn_hidden_size") or shape.intermediate
    first_dense = _maybe(config, "first_k_dense_replace") or 0
    period = (
        _maybe(config, "decoder_sparse_step", "moe_layer_freq", "expert_layer_period", "interleave_moe_layer_step") or 1
    )
    offset = _maybe(config, "expert_layer_offset")
    listed = config.get("mlp_only_layers")
    only_dense = listed if isinstance(listed, list) else []
    with_experts = 0
    for layer in range(shape.layers):
        chosen = layer % period == offset if offset is not None else (layer + 1) % period == 0
        with_experts += layer >= first_dense and layer not in only_dense and chosen
    shared_width = _maybe(config, "shared_expert_intermediate_size", "shared_intermediate_size")
    if shared_width is None:
        shared_width = (_maybe(config, "n_shared_experts", "num_shared_experts") or 0) * width
    dense_layers = shape.layers - with_experts
    dense_width = _maybe(config, "intermediate_size_mlp") or shape.intermediate
    dense = matrices * hidden * (dense_layers * dense_width + with_experts * shared_width)
    one = matrices * hidden * width
    return (
        dense,
        float(with_experts * experts * one),
        float(with_experts * _experts_per_token(config) * one),
        float(with_experts * experts * hidden),
        with_experts,
    )


def _layer_kinds(shape: _Shape, notes: list[str]) -> list[int | str | None]:
    """Of each layer: "recurrent", "feed-forward" (which is then in no other), the window it sees, or None for all of
    the context. Adds to `notes` what cannot be told."""
    config = shape.config
    window = _maybe(config, "sliding_window", "attention_window_size")
    if config.get("use_sliding_window") is False:
        window = None
    listed = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(listed, list) and len(listed) == shape.layers:
        kinds: list[int | str | None] = []
        for kind in map(str, listed):
            if kind in _RECURRENT_TYPES:
                kinds.append("recurrent")
            elif kind in ("sliding_attention", "chunked_attention"):
                kinds.append(_maybe(config, "attention_chunk_size") or window if "chunked" in kind else window)
            else:
                kinds.append(None)
        return kinds
    if isinstance(listed, list):
        notes.append(f"layer_types names {len(listed)} layers, but there are {shape.layers}: it is not read")
    letters = config.get("hybrid_override_pattern")
    if isinstance(letters, str):
        if len(letters) == shape.layers and set(letters) <= _LETTERS.keys():
            return [_LETTERS[letter] for letter in letters]
        notes.append("hybrid_override_pattern cannot be read: each layer is taken to attend")
    period = _maybe(config, "attn_layer_period")
    if period:
        offset = _maybe(config, "attn_layer_offset") or 0
        return [None if layer % period == offset else "recurrent" for layer in range(shape.layers)]
    every = _maybe(config, "full_attention_interval")
    if every:
        return [None if (layer + 1) % every == 0 else "recurrent" for layer in range(shape.layers)]
    if window is None:
        return [None] * shape.layers
    pattern = _maybe(config, "sliding_window_pattern", "_sliding_window_pattern")
    if pattern is None:
        pattern = _PATTERNS.get(shape.kind)
    if pattern:
        return [None if (layer + 1) % pattern == 0 else window for layer in range(shape.layers)]
    below = _maybe(config, "max_window_layers")
    if below is not None and config.get("use_sliding_window"):
        return [None if layer < below else window for layer in range(shape.layers)]
    return [window] * shape.layers


def _recurrent(shape: _Shape, layers: int) -> tuple[float, float]:
    """(state elements of one sequence, parameters) of all recurrent layers: Mamba 1 and 2, gated delta rule."""
    config, hidden = shape.config, shape.hidden
    if not layers:
        return 0.0, 0.0
    value_heads = _maybe(config, "linear_num_value_heads")
    if value_heads:
        key_heads = _maybe(config, "linear_num_key_heads") or value_heads
        key_dim, value_dim = _maybe(config, "linear_key_head_dim") or 0, _maybe(config, "linear_value_head_dim") or 0
        kernel = _maybe(config, "linear_conv_kernel_dim") or 4
        keys, values = key_heads * key_dim, value_heads * value_dim
        state = value_heads * key_dim * value_dim + (kernel - 1) * (2 * keys + values)
        return float(layers * state), float(layers * hidden * (2 * keys + 3 * values + 2 * value_heads))
    depth = _maybe(config, "mamba_d_state", "state_size", "ssm_state_size")
    if not depth:
        return 0.0, 0.0
    heads = _maybe(config, "mamba_n_heads", "mamba_num_heads")
    inner = _maybe(config, "mamba_d_inner", "mamba_d_ssm")
    if inner is None and heads is not None and _maybe(config, "mamba_d_head", "mamba_head_dim"):
        inner = heads * (_maybe(config, "mamba_d_head", "mamba_head_dim") or 0)
    if inner is None:
        inner = hidden * (_maybe(config, "mamba_expand", "expand") or 2)
    kernel = _maybe(config, "mamba_d_conv", "conv_kernel") or 4
    groups = _maybe(config, "mamba_n_groups", "n_groups") or 0
    state = inner * depth + (kernel - 1) * (inner + 2 * groups * depth)
    if heads:  # Mamba 2: one input projection of gate, input, B, C and step sizes
        parameters = hidden * (2 * inner + 2 * groups * depth + heads) + inner * hidden
    else:
        rank = _maybe(config, "mamba_dt_rank") or math.ceil(hidden / 16)
        parameters = 3 * hidden * inner + inner * (rank + 2 * depth) + rank * inner + inner * (depth + kernel + 2)
    return float(layers * state), float(layers * parameters)


def quantisation_of(stated: Any, dtype_bits: float = 16.0) -> tuple[Quantisation, tuple[str, ...]]:
    """The `quantization_config` of a config file → how weights are stored, and what could not be told."""
    plain = Quantisation(bits=dtype_bits, rest_bits=dtype_bits, name=f"{dtype_bits:g} bit")
    if not isinstance(stated, Mapping):
        return plain, ()
    method = str(stated.get("quant_method", "")).lower()
    if method in ("awq", "gptq", "gptq_marlin", "awq_marlin", "autoround", "auto-round", "intel/auto-round"):
        bits = float(_maybe(stated, "bits", "w_bit") or 4)
        group = _maybe(stated, "group_size", "q_group_size")
        group = 128 if group is None else group  # 0 (written −1): one for each row, too few to count
        # A 16-bit scale and a zero point of the weights' own width for each group.
        return Quantisation(bits, group, 16 + bits, dtype_bits, name=f"{method} {bits:g} bit"), ()
    if method in ("fp8", "fbgemm_fp8", "modelopt", "deepspeedfp") and "FP4" not in str(stated.get("quant_algo", "")):
        block = stated.get("weight_block_size")
        if isinstance(block, list) and block and all(isinstance(side, int) and side > 0 for side in block):
            return Quantisation(8, math.prod(block), 32, dtype_bits, name="fp8"), ()
        return Quantisation(8, rest_bits=dtype_bits, name="fp8"), ()
    if method == "mxfp4":
        return Quantisation(4, 32, 8, dtype_bits, experts_only=True, name="mxfp4"), ()
    if "FP4" in str(stated.get("quant_algo", "")):
        return Quantisation(4, 16, 8, dtype_bits, name="nvfp4"), ()
    if method == "bitsandbytes":
        if stated.get("load_in_8bit"):
            return Quantisation(8, rest_bits=dtype_bits, name="bitsandbytes 8 bit"), ()
        double = bool(stated.get("bnb_4bit_use_double_quant"))
        # NF4: a 32-bit scale for 64 weights; quantised again, 8 bits and a 32-bit scale for 256 of those.
        return Quantisation(4, 64, 8 + 32 / 256 if double else 32, dtype_bits, name="bitsandbytes 4 bit"), ()
    if method == "compressed-tensors":
        groups = stated.get("config_groups")
        first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
        weights = first.get("weights") if isinstance(first, Mapping) else None
        if isinstance(weights, Mapping) and isinstance(weights.get("num_bits"), int):
            bits = float(weights["num_bits"])
            stated_group = weights.get("group_size")
            size = stated_group if isinstance(stated_group, int) and stated_group > 0 else 0
            return Quantisation(bits, size, 16 if size else 0, dtype_bits, name=f"{bits:g} bit"), ()
    return plain, (
        f"the quantisation {method or 'of the file'} is not known here: weights are taken at {dtype_bits:g} bit",
    )


def _tied_by_default(kind: str) -> bool:
    return kind.startswith("gemma") or kind in ("gpt2", "bloom", "opt")


def _experts(config: Mapping[str, Any]) -> int | None:
    return _maybe(config, "num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")


def _experts_per_token(config: Mapping[str, Any]) -> int:
    return _maybe(config, "num_experts_per_tok", "num_experts_per_token", "moe_topk", "experts_per_token") or 1


def _maybe(config: Mapping[str, Any], *keys: str) -> int | None:
    """The first of these that is there, as a whole number of 0 or more. Raises UsageError where it is something
    else."""
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value < 0 or value > 1e15:
            if key == "group_size" and value == -1:
                return 0
            if isinstance(value, str | list | Mapping):
                continue
            raise UsageError(f"the config's {key} is {value!r}", "give the model's own config.json")
        return int(value)
    return None


def _count(config: Mapping[str, Any], name: str, *keys: str) -> int:
    value = _maybe(config, *keys)
    if not value:
        raise UsageError(
            f"{name} is no config of a language model: there is no {keys[0]}", "give the model's own config.json"
        )
    return value
