"""A model on accelerators, and what share of their peaks its kernels reach. The figures are `hardware`'s: one table for
the engine's time and memory and for `loadgen plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import UsageError
from ...hardware.deployment import Deployment
from ...hardware.gpus import Gpu
from ...hardware.model import AttentionLayers, Model, Quantisation

MOST_BITS = 64  # of a number


@dataclass(frozen=True, slots=True)
class Machine:
    """`on` says how the model lies and what is kept of the memory; its block and batch sizes are the engine's own."""

    model: Model
    on: Deployment
    tiled_attention: bool = True
    overhead_ms: float = 1.0  # of every step: scheduling, launching, sampling
    flops_share: float = 0.6
    bandwidth_share: float = 0.8
    link_latency_us: float = 8.0  # of each exchange between accelerators

    def __post_init__(self) -> None:
        for name, bits in (("weights", self.model.quantisation.bits), ("KV elements", self.on.kv_bits)):
            if not 0 < bits <= MOST_BITS:
                raise UsageError(f"{name} of {bits:g} bits cannot be", "say 16, 8 or 4")
        if min(self.on.tensor_parallel, self.on.pipeline_parallel, self.on.expert_parallel) < 1:
            raise UsageError("the accelerators that share a model are at least 1", "give a larger number")
        if self.on.gpus > 1 and not self.on.gpu.link:
            raise UsageError(f"{self.on.gpu.name} has no link to its peers in the table", "take one accelerator")

    @property
    def peak_flops(self) -> float:
        """FLOP/s that are reached, of all accelerators that work on a step at the same time."""
        together = self.on.tensor_parallel * self.on.expert_parallel
        return self.on.gpu.peak(self.model.quantisation.bits) * self.flops_share * together

    @property
    def bandwidth(self) -> float:
        """Bytes/s that one accelerator reaches."""
        return self.on.gpu.bandwidth * self.bandwidth_share

    @property
    def kv_token_bytes(self) -> float:
        """Bytes of one token's KV on all accelerators of a group, copies included."""
        return self.model.kv_bytes_per_token(self.on.kv_bytes, self.on.tensor_parallel) * self.on.tensor_parallel


def machine_of(values: Mapping[str, Any]) -> Machine:
    """The machine that `dataclasses.asdict` wrote down, also after JSON."""
    model = dict(values["model"])
    model["attention"] = tuple(AttentionLayers(**group) for group in model["attention"])
    model["quantisation"] = Quantisation(**model["quantisation"])
    model["notes"] = tuple(model["notes"])
    on = Deployment(**{**values["on"], "gpu": Gpu(**values["on"]["gpu"])})
    return Machine(**{**values, "model": Model(**model), "on": on})
