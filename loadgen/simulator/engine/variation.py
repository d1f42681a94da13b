"""What makes two equal steps differ: lognormal noise of mean 1, a slow drift, rare stalls. Seeded."""

from __future__ import annotations

import math
import random

from .config import EngineConfig


class Variation:
    """Each source draws from a generator of its own, so that switching one on leaves the others as they were."""

    def __init__(self, config: EngineConfig) -> None:
        self._sigma = config.noise_sigma
        self._noise = random.Random(config.seed)
        self._drift, self._omega = config.drift, 2 * math.pi / config.drift_period_s
        self._every_s, self._stall_s = config.stall_every_s, config.stall_ms / 1e3
        self._stalls = random.Random(f"stalls {config.seed}")

    def seconds(self, mean_ms: float, now: float) -> float:
        """How long a step of `mean_ms` lasts that begins at `now`."""
        sigma = self._sigma
        duration = mean_ms / 1e3 * math.exp(sigma * self._noise.gauss(0, 1) - sigma * sigma / 2)
        if self._drift:
            duration *= 1 + self._drift * math.sin(self._omega * now)
        if self._every_s and self._stalls.random() < -math.expm1(-duration / self._every_s):
            duration += self._stall_s
        return duration
