"""What a model needs on given GPUs, and what the hardware allows at best. Pure; formulas in `hardware/model`.

    memory of a GPU = weights + activations + runtime reserve + KV cache + margin
    TPOT ≥ bytes a decode step moves / bandwidth        TTFT ≥ FLOPs of the prompt / peak

Both bounds are floors: no server reaches them, and what passes between GPUs is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..hardware.gpus import Gpu
from ..hardware.model import GIB, Model

MOST_GPUS = 1024
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


def concurrent(model: Model, on: Deployment, tokens: float) -> int:
    """How many sequences of so many tokens the cache holds at once."""
    each = _sequence(model, on, math.ceil(tokens))
    left = max(0.0, memory(model, on).kv)
    return math.floor(left / each + 1e-9) * on.expert_parallel if each else 0


def longest_context(model: Model, on: Deployment) -> int:
    """Tokens of the longest single sequence: what the cache holds, at most what the model was made for."""
    left = memory(model, on).kv
    most = model.max_context or 1 << 30
    if left <= 0:
        return 0
    return _last(lambda n: _sequence(model, on, n) <= left, most)


def gpus_needed(model: Model, on: Deployment, tokens: int) -> Deployment | None:
    """The smallest deployment of such GPUs that holds the weights and one sequence of `tokens`: tensor parallelism in
    powers of two up to 8 (heads must divide), then pipeline stages. None where none of up to `MOST_GPUS` does."""
    widths = [n for n in (1, 2, 4, 8) if model.heads % n == 0]
    options = [replace(on, tensor_parallel=n, pipeline_parallel=1, expert_parallel=1) for n in widths]
    widest = options[-1]
    stages = range(2, min(model.layers, MOST_GPUS // widest.tensor_parallel) + 1)
    options += [replace(widest, pipeline_parallel=n) for n in stages]
    return next((option for option in options if concurrent(model, option, tokens) >= 1), None)


# --- what the hardware allows ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecodeFloor:
    """The least time of one decode step of `batch` sequences at a context, and what sets it."""

    batch: int
    context: float
    memory_s: float
    compute_s: float

    @property
    def tpot_s(self) -> float:
        return max(self.memory_s, self.compute_s)

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.tpot_s

    @property
    def bound(self) -> str:
        return "compute" if self.compute_s >= self.memory_s else "bandwidth"


def decode_floor(model: Model, on: Deployment, batch: int, context: float) -> DecodeFloor:
    """TPOT ≥ max(bytes moved / bandwidth, FLOPs / peak). A token passes all pipeline stages, so they do not shorten
    it."""
    tp, ep = on.tensor_parallel, on.expert_parallel
    experts = model.expert_weight_bytes()
    shared = model.weight_bytes() - experts
    moved = shared / tp + experts * model.experts_touched(batch) / (tp * ep)
    moved += batch / ep * model.kv_read_bytes(context, on.kv_bytes, tp)
    flops = batch * model.decode_flops(context) / (tp * ep)
    return DecodeFloor(batch, context, moved / on.gpu.bandwidth, flops / on.gpu.peak(model.quantisation.bits))


def prefill_floor_s(model: Model, on: Deployment, tokens: float, cached: float = 0.0) -> float:
    """TTFT ≥ FLOPs of the prompt / peak of the GPUs that work on it."""
    return model.prefill_flops(tokens, cached) / (on.gpu.peak(model.quantisation.bits) * on.tensor_parallel)


def compute_bound_batch(model: Model, on: Deployment, context: float) -> int | None:
    """The batch from which a decode step takes longer to compute than to read; None where reading the cache grows
    faster than the work."""
    most = 1 << 20

    def reading(batch: int) -> bool:
        return decode_floor(model, on, batch, context).bound == "bandwidth"

    last = _last(reading, most)
    return None if last == most else last + 1


def _sequence(model: Model, on: Deployment, tokens: int) -> float:
    """Bytes of one sequence on each GPU."""
    return model.sequence_bytes(tokens, on.kv_bytes, on.tensor_parallel, on.block) / on.pipeline_parallel


def _last(holds: Callable[[int], bool], most: int) -> int:
    """The last n in 0…most for which a condition holds that, once broken, stays so."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
