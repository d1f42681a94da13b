"""What a roofline is made of: a model's shape, an accelerator's peaks, and how the one runs on the other.

Sources of the formulas: Kaplan et al. 2020 (2 FLOPs a parameter and token), Pope et al. 2022 (bytes and KV cache of
decoding, communication of tensor parallelism), Shazeer 2019 and Ainslie et al. 2023 (KV heads), DeepSeek-V2 2024 (MLA).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...errors import UsageError

ACTIVATION_BYTES = 2  # activations travel as bf16
MOST_BYTES = 8  # of a number


@dataclass(frozen=True, slots=True)
class Model:
    """The shape of a decoder. `params` and `active` count everything, embeddings too; `active` 0 means all of them.

    A mixture of experts states `experts` and `experts_per_token`; multi-head latent attention `latent_dim` (what is
    kept for each token and layer) and `rope_dim` beside it, and then `kv_heads` is not used.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    params: float
    vocab: int
    tied: bool = False  # input and output embedding are one matrix
    active: float = 0.0
    experts: int = 0
    experts_per_token: int = 0
    latent_dim: int = 0
    rope_dim: int = 0

    @property
    def kv_elements(self) -> int:
        """KV elements a token: 2 x layers x KV heads x head size; with MLA, layers x (latent + rope)."""
        if self.latent_dim:
            return self.layers * (self.latent_dim + self.rope_dim)
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def head_params(self) -> int:
        """Parameters of the output embedding, used once for each sampled token."""
        return self.vocab * self.hidden

    @property
    def body_params(self) -> float:
        """Parameters that each token is multiplied with: the active ones without embeddings."""
        return (self.active or self.params) - self.head_params * (1 if self.tied else 2)

    @property
    def expert_params(self) -> float:
        """Parameters of one expert over all layers: total - active = (experts - experts a token) x one expert."""
        if not self.experts:
            return 0.0
        return (self.params - self.active) / (self.experts - self.experts_per_token)

    @property
    def attention_flops(self) -> float:
        """FLOPs for one query token against one token of context, over all layers: 2 for the score and 2 for the
        value, for each element of a head; with MLA (absorbed form) the heads work on the latent vector."""
        if self.latent_dim:
            return 2.0 * self.layers * self.heads * (2 * self.latent_dim + self.rope_dim)
        return 4.0 * self.layers * self.heads * self.head_dim

    def weights_read(self, tokens: int) -> float:
        """Parameters that a step over `tokens` tokens reads, the output embedding included: all; with experts, those
        that are chosen at least once, experts x (1 - (1 - k/experts)^tokens) where choices are even."""
        if not self.experts:
            return self.body_params + self.head_params
        shared = self.body_params - self.experts_per_token * self.expert_params
        used = self.experts * -math.expm1(tokens * math.log1p(-self.experts_per_token / self.experts))
        return shared + used * self.expert_params + self.head_params


@dataclass(frozen=True, slots=True)
class Gpu:
    """An accelerator's peaks, dense (without sparsity). `fp8_tflops` 0: it has no such units, bf16 does the work."""

    name: str
    bf16_tflops: float
    fp8_tflops: float
    bandwidth_gb_s: float  # HBM
    memory_gb: float
    link_gb_s: float  # to its peers, one direction


@dataclass(frozen=True, slots=True)
class Machine:
    """A model on `tensor_parallel` accelerators. Quantisation is bytes a parameter and bytes a KV element: 2 for bf16,
    1 for fp8 or int8, 0.5 for 4 bits. The shares say how much of a peak the kernels reach."""

    model: Model
    gpu: Gpu
    tensor_parallel: int = 1
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0
    tiled_attention: bool = True
    overhead_ms: float = 1.0  # of every step: scheduling, launching, sampling
    flops_share: float = 0.6
    bandwidth_share: float = 0.8
    allreduce_latency_us: float = 8.0
    memory_share: float = 0.9  # of the memory, for weights, activations and KV
    activations_gb: float = 2.0  # on each accelerator

    def __post_init__(self) -> None:
        if self.tensor_parallel < 1:
            raise UsageError(f"tensor_parallel must be at least 1, not {self.tensor_parallel}", "give a larger value")
        for name in ("weight_bytes", "kv_bytes"):
            value = getattr(self, name)
            if not 0 < value <= MOST_BYTES:
                raise UsageError(f"{name} must be above 0 and at most {MOST_BYTES}, not {value}", "say 2, 1 or 0.5")

    @property
    def peak_flops(self) -> float:
        """FLOP/s that are reached: fp8 units where the weights are of one byte and there are such units."""
        fp8 = self.weight_bytes == 1 and self.gpu.fp8_tflops > 0
        return (self.gpu.fp8_tflops if fp8 else self.gpu.bf16_tflops) * 1e12 * self.flops_share * self.tensor_parallel

    @property
    def bandwidth(self) -> float:
        """Bytes/s that are reached, of all accelerators together."""
        return self.gpu.bandwidth_gb_s * 1e9 * self.bandwidth_share * self.tensor_parallel

    @property
    def kv_copies(self) -> float:
        """How often a token's KV is kept: tensor parallelism splits KV heads, and copies them where they run out; the
        latent vector of MLA has no heads to split."""
        heads = 1 if self.model.latent_dim else self.model.kv_heads
        return max(1.0, self.tensor_parallel / heads)

    @property
    def kv_token_bytes(self) -> float:
        """Bytes of one token's KV, once."""
        return self.model.kv_elements * self.kv_bytes

    def kv_tokens(self) -> int:
        """Tokens whose KV fits beside the weights and activations."""
        left = self.gpu.memory_gb * 1e9 * self.memory_share - self.activations_gb * 1e9
        left = left * self.tensor_parallel - self.model.params * self.weight_bytes
        return max(0, int(left / (self.kv_token_bytes * self.kv_copies)))
