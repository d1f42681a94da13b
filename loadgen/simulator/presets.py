"""Named engines: an accelerator, a model, and how it is served. Computed, not measured: a preset is as good as its
roofline (`engine/roofline.py`), and says of a real server what order of magnitude to expect."""

from __future__ import annotations

from ..errors import UsageError
from .engine import EngineConfig, Gpu, Machine, Model

# NVIDIA's and AMD's data sheets; dense figures, so half of those given "with sparsity". NVLink and Infinity Fabric are
# one direction; where there are none, PCIe 4.0 x16.
A100 = Gpu("A100 SXM 80GB", 312, 0, 2039, 80, 300)
H100 = Gpu("H100 SXM", 989, 1979, 3350, 80, 450)
H200 = Gpu("H200 SXM", 989, 1979, 4800, 141, 450)
B200 = Gpu("B200", 2250, 4500, 8000, 180, 900)
MI300X = Gpu("MI300X", 1307, 2615, 5300, 192, 448)
L4 = Gpu("L4", 121, 242, 300, 24, 32)
L40S = Gpu("L40S", 362, 733, 864, 48, 32)

# Each model's published config.json; parameters as its card counts them.
LLAMA_8B = Model("Llama 3.1 8B", 32, 4096, 32, 8, 128, 8.03e9, 128256)
LLAMA_70B = Model("Llama 3.1 70B", 80, 8192, 64, 8, 128, 70.6e9, 128256)
QWEN_7B = Model("Qwen2.5 7B", 28, 3584, 28, 4, 128, 7.62e9, 152064)
QWEN_30B_A3B = Model(
    "Qwen3 30B-A3B", 48, 2048, 32, 4, 128, 30.5e9, 151936, active=3.3e9, experts=128, experts_per_token=8
)
MIXTRAL = Model("Mixtral 8x7B", 32, 4096, 32, 8, 128, 46.7e9, 32000, active=12.9e9, experts=8, experts_per_token=2)
DEEPSEEK_V3 = Model(  # DeepSeek-V3 technical report, section 4.2
    *("DeepSeek-V3", 61, 7168, 128, 128, 128, 671e9, 129280),
    active=37e9,
    experts=256,
    experts_per_token=8,
    latent_dim=512,
    rope_dim=64,
)


def _served(machine: Machine, *, batch: int = 256, tokens: int = 8192, context: int = 32768) -> EngineConfig:
    """As vLLM serves by default: chunked prefill, paged KV, a prefix cache, 8,192 tokens a step on large accelerators
    and 2,048 on others. The overhead and the noise are of the usual size for a server that is not short of CPU."""
    return EngineConfig(
        overhead_ms=5.0,
        max_batch=batch,
        max_prefill_tokens=tokens,
        max_batched_tokens=tokens,
        noise_sigma=0.02,
        context_length=context,
        prefix_cache=True,
        machine=machine,
    )


PRESETS: dict[str, EngineConfig] = {
    "h100-llama-3.1-8b": _served(Machine(LLAMA_8B, H100)),
    "h100-llama-3.1-8b-fp8": _served(Machine(LLAMA_8B, H100, weight_bytes=1, kv_bytes=1)),
    "h200-llama-3.1-8b": _served(Machine(LLAMA_8B, H200)),
    "b200-llama-3.1-8b": _served(Machine(LLAMA_8B, B200)),
    "a100-llama-3.1-8b": _served(Machine(LLAMA_8B, A100), tokens=2048),
    "l40s-llama-3.1-8b": _served(Machine(LLAMA_8B, L40S), tokens=2048),
    "l4-qwen2.5-7b": _served(Machine(QWEN_7B, L4), batch=64, tokens=2048, context=8192),
    "h100x4-llama-3.1-70b": _served(Machine(LLAMA_70B, H100, 4)),
    "h100x8-llama-3.1-70b": _served(Machine(LLAMA_70B, H100, 8)),
    "h200x2-llama-3.1-70b-fp8": _served(Machine(LLAMA_70B, H200, 2, weight_bytes=1, kv_bytes=1)),
    "mi300x-llama-3.1-70b-fp8": _served(Machine(LLAMA_70B, MI300X, weight_bytes=1, kv_bytes=1)),
    "h100-qwen3-30b-a3b": _served(Machine(QWEN_30B_A3B, H100)),
    "a100x2-mixtral-8x7b": _served(Machine(MIXTRAL, A100, 2), tokens=2048),
    "h200x8-deepseek-v3": _served(Machine(DEEPSEEK_V3, H200, 8, weight_bytes=1)),
}


def preset(name: str) -> EngineConfig:
    """The engine of that name. UsageError if there is none."""
    if name not in PRESETS:
        raise UsageError(f"there is no simulated engine named {name}", f"choose one of {', '.join(PRESETS)}")
    return PRESETS[name]
