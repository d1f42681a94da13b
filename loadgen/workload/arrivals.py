"""When requests of an open loop are due: seeded point processes at a rate. Pure.

Rules:
1. One seed is one schedule, whatever the rate: the same pattern, stretched. So levels are compared on equal bursts.
2. A schedule is absolute. What the sender is late never moves what comes after.
3. It is laid out in blocks of `BLOCK` arrivals, each exactly `BLOCK` mean gaps long: so the rate asked for is the rate
   offered (over 10,000 arrivals to 0.3 %; a free Poisson process of that length is off by 1 % in one run of three).
   Within a block the gaps are those of the process; for Poisson that is the process itself, given the block's count.
4. Any arrival is found without those before its block: W workers take every W-th and together make the same schedule.
5. A rate that changes bends the time of that one schedule: the k-th arrival is due when k mean gaps have passed by the
   integral of the rate. After the last of its stages a profile goes on at the rate that it ended with.
"""

from __future__ import annotations

import math
import random
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, count
from typing import Literal, Protocol, get_args

from ..errors import UsageError

Kind = Literal["constant", "poisson", "gamma", "weibull"]
KINDS: tuple[str, ...] = get_args(Kind)
SHAPES = (0.05, 100.0)  # beyond these a process is a few clumps, or constant
RATES = (1e-4, 1e5)  # requests/s
BLOCK = 1000

_REMEDY = "write constant, poisson, gamma:SHAPE or weibull:SHAPE (below 1 in bursts, 1 is poisson, above 1 evener)"
_PROFILE_REMEDY = (
    "write ramp:1-20:60s, or stages:5@60s,20@120s,20-1@60s; then / and a process, as in ramp:1-20:60s/constant"
)
_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "": 1.0}
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_RAMP = re.compile(rf"({_NUMBER})-({_NUMBER}):({_NUMBER})(ms|s|min|m|h|)")
_STAGE = re.compile(rf"({_NUMBER})(?:-({_NUMBER}))?@({_NUMBER})(ms|s|min|m|h|)")
STAGES = 10_000


@dataclass(frozen=True, slots=True)
class Stage:
    """A rate for `seconds`, in requests/s: `first` at its beginning, `last` at its end, on a straight line between."""

    first: float
    last: float
    seconds: float

    def __str__(self) -> str:
        rates = _plain(self.first) if self.first == self.last else f"{_plain(self.first)}-{_plain(self.last)}"
        return f"{rates}@{_plain(self.seconds)}s"


class Profile:
    """The rates of stages, one after the other, as one clock of expected arrivals."""

    def __init__(self, stages: tuple[Stage, ...]) -> None:
        self.stages = stages
        self._starts = [0.0, *accumulate(stage.seconds for stage in stages)]
        self._expected = [0.0, *accumulate((s.first + s.last) / 2 * s.seconds for s in stages)]

    @property
    def seconds(self) -> float:
        return self._starts[-1]

    @property
    def rate(self) -> float:
        """The mean over its stages, in requests/s."""
        return self._expected[-1] / self._starts[-1]

    def time_of(self, n: float) -> float:
        """When `n` arrivals are expected to be behind, in s: the inverse of the rate's integral."""
        i = bisect_right(self._expected, n) - 1
        rest = n - self._expected[i]
        if i == len(self.stages):
            return self._starts[i] + rest / self.stages[-1].last
        stage = self.stages[i]
        # In shares of the stage and of its mean rate: squares of very small rates would vanish.
        share, mean = rest / (self._expected[i + 1] - self._expected[i]), (stage.first + stage.last) / 2
        first, rise = stage.first / mean, (stage.last - stage.first) / mean
        root = math.sqrt(max(0.0, first * first + 2 * rise * share))
        return self._starts[i] + (2 * share / (first + root) * stage.seconds if share else 0.0)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival process: independent gaps of mean 1 / rate.

    `shape` is that of the gamma or Weibull distribution of the gaps. Gamma's is what `vllm bench serve` calls
    burstiness: the gaps' standard deviation is their mean / √shape. With `stages` the rate is theirs, and changes.
    """

    kind: Kind = "poisson"
    shape: float = 1.0
    stages: tuple[Stage, ...] = ()

    @property
    def profile(self) -> Profile | None:
        return Profile(self.stages) if self.stages else None

    def __str__(self) -> str:
        process = f"{self.kind}:{_plain(self.shape)}" if self.kind in ("gamma", "weibull") else self.kind
        if not self.stages:
            return process
        return f"stages:{','.join(map(str, self.stages))}/{process}"

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
    """`constant`, `poisson`, `gamma:0.5`, `weibull:2`; `ramp:1-20:60s` or `stages:5@60s,20@120s`, each also with
    `/PROCESS`. Raises UsageError for anything else."""
    kind, colon, rest = "".join(text.split()).partition(":")
    if colon and kind.lower() in ("ramp", "stages"):
        rates, slash, process = rest.lower().partition("/")
        arrivals = parse_arrivals(process) if slash else Arrivals()
        if arrivals.stages:
            raise UsageError(f"{text[:80]!r} has stages in its stages", _PROFILE_REMEDY)
        return replace(arrivals, stages=_parse_stages(kind.lower(), rates, text))
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


def _parse_stages(kind: str, rates: str, text: str) -> tuple[Stage, ...]:
    pattern = _RAMP if kind == "ramp" else _STAGE
    found = []
    for part in [rates] if kind == "ramp" else rates.split(","):
        match = pattern.fullmatch(part)
        if match is None:
            raise UsageError(f"{part[:40]!r} in {text[:80]!r} says no rates for a time", _PROFILE_REMEDY)
        first, last, seconds = float(match[1]), float(match[2] or match[1]), float(match[3]) * _UNITS_S[match[4]]
        if seconds <= 0 or max(first, last) > RATES[1]:
            raise UsageError(
                f"{part!r} in {text[:80]!r} is no time above zero at a rate of at most {RATES[1]:,.0f} requests/s",
                _PROFILE_REMEDY,
            )
        found.append(Stage(first, last, seconds))
    if len(found) > STAGES:
        raise UsageError(f"{len(found):,} stages are more than {STAGES:,}", "take longer ones")
    stages = tuple(found)
    if stages[-1].last < RATES[0] or Profile(stages).rate < RATES[0]:
        raise UsageError(f"{text[:80]!r} ends at no rate, so that a step could not come to its end", _PROFILE_REMEDY)
    return stages


def _plain(number: float) -> str:
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


class Offsets(Protocol):
    """When the requests of a step are due: an iterator over those of one worker, in ns from its start, ascending; and
    any of them, of all workers, by its number. `end_ns` is when the last one's turn is over, None of what is endless;
    `spec` says in a word what makes them, so that another process can."""

    @property
    def spec(self) -> str: ...
    @property
    def end_ns(self) -> int | None: ...
    def __iter__(self) -> Iterator[int]: ...
    def __next__(self) -> int: ...
    def offset_ns(self, k: int) -> int: ...
    def weights(self, workers: int) -> list[int]:
        """How much of it is each worker's."""
        ...


class Schedule:
    """The arrivals of one run: an endless iterator of offsets in ns from its start, ascending, the first at 0.

    `rate` is in requests/s and is that of all `workers` together; worker i gets the arrivals i, i + workers, …. It says
    nothing where the arrivals have stages.
    """

    end_ns: int | None = None

    def __init__(self, arrivals: Arrivals, rate: float, seed: int | str, *, worker: int = 0, workers: int = 1) -> None:
        if not RATES[0] <= rate <= RATES[1]:
            raise UsageError(
                f"a rate of {rate:g} requests/s cannot be held", f"give one from {RATES[0]:g} to {RATES[1]:,.0f}"
            )
        if not 0 <= worker < workers:
            raise ValueError(f"worker {worker} of {workers}")
        self.arrivals, self.rate, self.seed = arrivals, rate, seed
        self.spec = str(arrivals)
        self._profile = arrivals.profile
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
            return self._time_ns(k)
        if block != self._block:
            self._block, self._places = block, self._lay_out(block)
        return self._time_ns(block * BLOCK + self._places[i])

    def weights(self, workers: int) -> list[int]:
        return [1] * workers

    def _time_ns(self, place: float) -> int:
        """When so many mean gaps have passed."""
        if self._profile is not None:
            return round(self._profile.time_of(place) * 1e9)
        return round(place * 1e9 / self.rate)

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
