"""When requests of an open loop are due: seeded point processes at a rate. Pure.

Rules:
1. One seed is one schedule, whatever the rate: the same pattern, stretched. So levels are compared on equal bursts.
2. A schedule is absolute. What the sender is late never moves what comes after.
3. It is laid out in blocks of `BLOCK` arrivals, each exactly `BLOCK` mean gaps long: so the rate asked for is the rate
   offered (over 10,000 arrivals to 0.3 %; a free Poisson process of that length is off by 1 % in one run of three).
   Within a block the gaps are those of the process; for Poisson that is the process itself, given the block's count.
4. Any arrival is found without those before its block: W workers take every W-th and together make the same schedule.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal, get_args

from ..errors import UsageError

Kind = Literal["constant", "poisson", "gamma", "weibull"]
KINDS: tuple[str, ...] = get_args(Kind)
SHAPES = (0.05, 100.0)  # beyond these a process is a few clumps, or constant
RATES = (1e-4, 1e5)  # requests/s
BLOCK = 1000

_REMEDY = "write constant, poisson, gamma:SHAPE or weibull:SHAPE (below 1 in bursts, 1 is poisson, above 1 evener)"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival process: independent gaps of mean 1 / rate.

    `shape` is that of the gamma or Weibull distribution of the gaps. Gamma's is what `vllm bench serve` calls
    burstiness: the gaps' standard deviation is their mean / √shape.
    """

    kind: Kind = "poisson"
    shape: float = 1.0

    def __str__(self) -> str:
        return f"{self.kind}:{self.shape:g}" if self.kind in ("gamma", "weibull") else self.kind

    def gap(self, rng: random.Random) -> float:
        """One gap; its mean is the same for all gaps, and of no interest."""
        if self.kind == "constant":
            return 1.0
        if self.kind == "poisson":
            return rng.expovariate(1.0)
        if self.kind == "gamma":
            return rng.gammavariate(self.shape, 1.0)
        return rng.weibullvariate(1.0, self.shape)


def parse_arrivals(text: str) -> Arrivals:
    """`constant`, `poisson`, `gamma:0.5`, `weibull:2`. Raises UsageError for anything else."""
    match = re.fullmatch(r"\s*([a-z]+)\s*(?::\s*([0-9.eE+-]+)\s*)?", text.lower())
    kind, shape = (match[1], match[2]) if match else ("", None)
    if kind not in KINDS:
        raise UsageError(f"{text!r} is not an arrival process", _REMEDY)
    if kind in ("constant", "poisson"):
        if shape is not None:
            raise UsageError(f"{kind} arrivals have no shape, but {text!r} gives one", _REMEDY)
        return Arrivals("constant" if kind == "constant" else "poisson")
    try:
        value = float(shape or "")
    except ValueError:
        raise UsageError(f"{text!r} needs a number as its shape", _REMEDY) from None
    if not SHAPES[0] <= value <= SHAPES[1]:
        raise UsageError(f"the shape of {text!r} is not from {SHAPES[0]:g} to {SHAPES[1]:g}", _REMEDY)
    return Arrivals("gamma" if kind == "gamma" else "weibull", value)


class Schedule:
    """The arrivals of one run: an endless iterator of offsets in ns from its start, ascending, the first at 0.

    `rate` is in requests/s and is that of all `workers` together; worker i gets the arrivals i, i + workers, ….
    """

    def __init__(self, arrivals: Arrivals, rate: float, seed: int | str, *, worker: int = 0, workers: int = 1) -> None:
        if not RATES[0] <= rate <= RATES[1]:
            raise UsageError(
                f"a rate of {rate:g} requests/s cannot be held", f"give one from {RATES[0]:g} to {RATES[1]:,.0f}"
            )
        if not 0 <= worker < workers:
            raise ValueError(f"worker {worker} of {workers}")
        self.arrivals, self.rate, self.seed = arrivals, rate, seed
        self._numbers = count(worker, workers)
        self._block = -1
        self._places: list[float] = []  # of the arrivals of the block at hand, in mean gaps from its start

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return self.offset_ns(next(self._numbers))

    def offset_ns(self, k: int) -> int:
        """When arrival k (of all workers, from 0) is due, in ns from the start."""
        block, i = divmod(k, BLOCK)
        if self.arrivals.kind == "constant":
            return round(k * 1e9 / self.rate)
        if block != self._block:
            self._block, self._places = block, self._lay_out(block)
        return round((block * BLOCK + self._places[i]) * 1e9 / self.rate)

    def wait_ns(self, elapsed_ns: int, sent: int) -> int:
        """How long to wait, `elapsed_ns` after the start and with `sent` arrivals behind, before the next one is due; 0
        where it is overdue."""
        return max(0, self.offset_ns(sent) - elapsed_ns)

    def _lay_out(self, block: int) -> list[float]:
        rng = random.Random(f"arrivals {self.seed} {block}")
        gaps = [self.arrivals.gap(rng) for _ in range(BLOCK)]
        scale = BLOCK / math.fsum(gaps)
        places, at = [], 0.0
        for gap in gaps:
            places.append(at * scale)
            at += gap
        return places
