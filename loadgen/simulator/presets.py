"""Named engines: an accelerator, a model, and how it is served. Computed, not measured: a preset is as good as its
roofline (`engine/roofline.py`), and says of a real server what order of magnitude to expect. Models and accelerators
are those of `hardware`."""

from __future__ import annotations

from dataclasses import replace

from ..errors import UsageError
from ..hardware.deployment import Deployment
from ..hardware.gpus import gpu_named
from ..hardware.model import GIB, Quantisation
from ..hardware.named import model_named
from .engine import EngineConfig, Machine

FP8 = Quantisation(8, name="fp8")

# name: model, accelerator, how many share each layer, and whether weights and KV are of 8 bits.
_TABLE: dict[str, tuple[str, str, int, bool]] = {
    "h100-llama-3.1-8b": ("llama-3.1-8b", "h100", 1, False),
    "h100-llama-3.1-8b-fp8": ("llama-3.1-8b", "h100", 1, True),
    "h200-llama-3.1-8b": ("llama-3.1-8b", "h200", 1, False),
    "b200-llama-3.1-8b": ("llama-3.1-8b", "b200", 1, False),
    "a100-llama-3.1-8b": ("llama-3.1-8b", "a100-80gb", 1, False),
    "l40s-llama-3.1-8b": ("llama-3.1-8b", "l40s", 1, False),
    "l4-qwen2.5-7b": ("qwen2.5-7b", "l4", 1, False),
    "h100x4-llama-3.1-70b": ("llama-3.1-70b", "h100", 4, False),
    "h100x8-llama-3.1-70b": ("llama-3.1-70b", "h100", 8, False),
    "h200x2-llama-3.1-70b-fp8": ("llama-3.1-70b", "h200", 2, True),
    "mi300x-llama-3.1-70b-fp8": ("llama-3.1-70b", "mi300x", 1, True),
    "h100-qwen3-30b-a3b": ("qwen3-30b-a3b", "h100", 1, False),
    "h100-gpt-oss-20b": ("gpt-oss-20b", "h100", 1, False),
    "a100x2-mixtral-8x7b": ("mixtral-8x7b", "a100-80gb", 2, False),
    "h200x8-deepseek-v3": ("deepseek-v3", "h200", 8, False),
}
MOST_CONTEXT = 32768


def served(machine: Machine) -> EngineConfig:
    """As vLLM serves by default: 256 sequences, chunked prefill, paged KV, a prefix cache, and 8,192 tokens a step on
    accelerators from 70 GiB on, but for the A100, or else 2,048. The overhead and the noise are of the usual size for a
    server that is not short of CPU. The context is the model's, at most 32,768 tokens, and at most what the memory
    holds. UsageError where the model does not fit."""
    gpu, most = machine.on.gpu, machine.model.max_context or MOST_CONTEXT
    tokens = 8192 if gpu.memory >= 70 * GIB and not gpu.name.startswith("a100") else 2048
    config = EngineConfig(
        overhead_ms=5.0,
        max_batch=256,
        max_prefill_tokens=tokens,
        max_batched_tokens=tokens,
        noise_sigma=0.02,
        prefix_cache=True,
        machine=machine,
    )
    return replace(config, context_length=min(most, MOST_CONTEXT, config.blocks * config.block_tokens))


def machine_named(model: str, gpu: str, tensor_parallel: int = 1, *, fp8: bool = False) -> Machine:
    """A model of the table on accelerators of the table, its weights stored as its config says, or as fp8 like the KV.
    UsageError with the names there are."""
    found = model_named(model)
    return Machine(
        found.quantised(FP8) if fp8 else found,
        Deployment(gpu_named(gpu), tensor_parallel=tensor_parallel, kv_bits=8 if fp8 else 16),
    )


PRESETS = {name: served(machine_named(*of[:3], fp8=of[3])) for name, of in _TABLE.items()}


def preset(name: str) -> Machine:
    """The machine of that preset. UsageError if there is none."""
    machine = PRESETS[name].machine if name in PRESETS else None
    if machine is None:
        raise UsageError(f"there is no preset {name}", f"choose one of {', '.join(PRESETS)}")
    return machine
