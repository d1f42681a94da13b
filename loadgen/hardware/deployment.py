"""How a model lies on GPUs, and what that leaves of their memory for the KV cache. Pure.

memory of a GPU = weights + activations + runtime reserve + KV cache + margin
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .gpus import Gpu
from .model import GIB, Model

# Tensors as wide as the hidden state that are live at once in a forward pass, of 16 bits (feed-forward part included).
LIVE_TENSORS = 10


@dataclass(frozen=True, slots=True)
class Deployment:
    """How a model lies on GPUs. Tensor parallelism splits each layer, pipeline parallelism the layers;
    `expert_parallel` groups each hold the attention whole, share the experts out among themselves and split the
    sequences.

    `kv_bits` per element of the cache, `block` tokens per page. `utilisation` of the memory may be used at all; of
    that, `runtime_bytes` (context, graphs, libraries) and the activations of `batch_tokens` tokens are kept free, or
    `activation_bytes` where given.
    """

    gpu: Gpu
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    kv_bits: float = 16.0
    block: int = 16
    utilisation: float = 0.9
    runtime_bytes: float = 1.0 * GIB
    activation_bytes: float | None = None
    batch_tokens: int = 8192
    max_sequences: int = 256

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.expert_parallel

    @property
    def kv_bytes(self) -> float:
        return self.kv_bits / 8


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one GPU, in bytes. `kv` is what is left for the cache: negative where the model does not fit."""

    total: float
    usable: float
    weights: float
    activations: float
    runtime: float

    @property
    def kv(self) -> float:
        return self.usable - self.weights - self.activations - self.runtime


def memory(model: Model, on: Deployment) -> Memory:
    """How one GPU's memory is divided."""
    tp, pp, ep = on.tensor_parallel, on.pipeline_parallel, on.expert_parallel
    experts = model.expert_weight_bytes()
    weights = ((model.weight_bytes() - experts) / tp + experts / (tp * ep)) / pp
    activations = on.activation_bytes
    if activations is None:
        logits = on.max_sequences * model.vocabulary * 4 / tp
        activations = LIVE_TENSORS * 2 * model.hidden * on.batch_tokens + logits
    return Memory(on.gpu.memory, on.gpu.memory * on.utilisation, weights, activations, on.runtime_bytes)


@dataclass(frozen=True, slots=True)
class Cache:
    """The KV cache of the whole deployment: whole blocks, the tokens in them, and what one token takes in all."""

    blocks: int
    tokens: int
    bytes_per_token: float  # over all GPUs of a group, replicas included
    bytes_per_token_gpu: float


def cache(model: Model, on: Deployment) -> Cache:
    """How many blocks fit while no window is full: what an engine would allot. Of hybrid models the tokens are those of
    sequences shorter than the window."""
    each = model.kv_bytes_per_token(on.kv_bytes, on.tensor_parallel) / on.pipeline_parallel
    left = max(0.0, memory(model, on).kv)
    blocks = math.floor(left / (each * on.block) + 1e-9) if each else 0
    groups = on.expert_parallel
    return Cache(blocks * groups, blocks * groups * on.block, each * on.tensor_parallel * on.pipeline_parallel, each)
