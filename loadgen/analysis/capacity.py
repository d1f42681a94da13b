"""What fits beside a model on given GPUs, and what the hardware allows at best. Pure; formulas in `hardware/model`, the
division of the memory in `hardware/deployment`.

    TPOT ≥ bytes a decode step moves / bandwidth        TTFT ≥ FLOPs of the prompt / peak

Both bounds are floors: no server reaches them, and what passes between GPUs is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..hardware.deployment import Deployment, memory
from ..hardware.model import Model

MOST_GPUS = 1024


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


def prefill_floor_s(model: Model, on: Deployment, tokens: float) -> float:
    """TTFT ≥ FLOPs of the prompt / peak of the GPUs that work on it."""
    gpus = on.tensor_parallel * on.expert_parallel
    return model.prefill_flops(tokens) / (on.gpu.peak(model.quantisation.bits) * gpus)


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
