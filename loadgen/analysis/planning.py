"""A capacity plan: one model on given GPUs under one workload's lengths, answered in full. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..hardware.deployment import Cache, Deployment, Memory, cache, memory
from ..hardware.model import Model
from .capacity import (
    DecodeFloor,
    compute_bound_batch,
    concurrent,
    decode_floor,
    gpus_needed,
    longest_context,
    prefill_floor_s,
)

CURVE_POINTS = 48


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a workload's requests: means, and the 99th percentiles of the input and of input and output
    together."""

    input_mean: float
    output_mean: float
    input_p99: float
    total_p99: float

    @classmethod
    def of(cls, inputs: npt.NDArray[Any], outputs: npt.NDArray[Any]) -> Lengths:
        """From as many pairs as there are."""
        return cls(
            float(np.mean(inputs)),
            float(np.mean(outputs)),
            float(np.percentile(inputs, 99)),
            float(np.percentile(inputs + outputs, 99)),
        )

    @property
    def total_mean(self) -> float:
        return self.input_mean + self.output_mean

    @property
    def held_mean(self) -> float:
        """Tokens that a request in flight holds on average: its whole prompt, and half of its answer."""
        return self.input_mean + self.output_mean / 2


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """`concurrent_*` are sequences held at once: each at the tokens it holds on average, all grown to the mean length,
    all to the 99th percentile. `needed` is the smallest deployment of these GPUs that would hold one of the longest;
    None where there is none. Floors are of one request alone and at the number the cache holds."""

    model: Model
    on: Deployment
    lengths: Lengths
    memory: Memory
    cache: Cache
    needed: Deployment | None
    concurrent_held: int
    concurrent_mean: int
    concurrent_p99: int
    longest_context: int
    prefill_mean_s: float
    prefill_p99_s: float
    alone: DecodeFloor
    full: DecodeFloor | None
    compute_bound_batch: int | None
    curve: tuple[tuple[int, float], ...]  # (sequences at the tokens they hold on average, bytes used on one GPU)

    @property
    def fits(self) -> bool:
        return self.concurrent_p99 >= 1

    @property
    def output_limit_per_s(self) -> float | None:
        """Output tokens/s at the most: as many sequences as the cache holds share the GPUs between prefill and
        decode."""
        if self.full is None:
            return None
        per_request_s = self.lengths.output_mean * self.full.tpot_s / self.full.batch + self.prefill_mean_s
        return self.lengths.output_mean / per_request_s


def plan(model: Model, on: Deployment, lengths: Lengths) -> CapacityPlan:
    longest = int(np.ceil(lengths.total_p99))
    held = concurrent(model, on, lengths.held_mean)
    context = lengths.held_mean
    return CapacityPlan(
        model=model,
        on=on,
        lengths=lengths,
        memory=memory(model, on),
        cache=cache(model, on),
        needed=gpus_needed(model, on, longest),
        concurrent_held=held,
        concurrent_mean=concurrent(model, on, lengths.total_mean),
        concurrent_p99=concurrent(model, on, lengths.total_p99),
        longest_context=longest_context(model, on),
        prefill_mean_s=prefill_floor_s(model, on, lengths.input_mean),
        prefill_p99_s=prefill_floor_s(model, on, lengths.input_p99),
        alone=decode_floor(model, on, 1, context),
        full=decode_floor(model, on, held, context) if held else None,
        compute_bound_batch=compute_bound_batch(model, on, context),
        curve=_curve(model, on, lengths.held_mean, held),
    )


def _curve(model: Model, on: Deployment, tokens: float, held: int) -> tuple[tuple[int, float], ...]:
    share = memory(model, on)
    fixed = share.weights + share.activations + share.runtime
    groups, stages = on.expert_parallel, on.pipeline_parallel
    each = model.sequence_bytes(int(np.ceil(tokens)), on.kv_bytes, on.tensor_parallel, on.block) / stages
    most = max(8, round(held * 1.25))
    loads = np.unique(np.linspace(0, most, CURVE_POINTS).round().astype(int))
    return tuple((int(n), fixed + -(-int(n) // groups) * each) for n in loads)
