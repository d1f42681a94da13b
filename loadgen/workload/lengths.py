"""How long requests are: distributions of input and output tokens, drawn in pairs. Pure and seeded.

Rules:
1. The lengths of request k follow from the seed and k alone: whoever asks, in whatever order, at whatever load. So
   levels are compared on equal work, and W workers that take every W-th make the same stream together.
2. They are drawn in blocks of `BLOCK`, each from a counter-based generator (Philox) of its own. Nothing is taken from
   it but uniform numbers, so that a stream does not change with the library's ways to a distribution.
3. A limit refuses a pair, and another is drawn in its place: what is left has the distribution's own shape, and no
   length heaps up at the limit. `refused` says what share that was.
4. A length is a whole number of tokens: a continuous draw is rounded to the nearest. One below 1 is refused.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Side = Literal["input", "output"]
SIDES: tuple[Side, Side] = ("input", "output")

BLOCK = 256  # so few that to draw one holds up a send by less than a millisecond
LEAST_KEPT = 0.02  # of the pairs; limits that refuse more leave too little of the distribution to be called by its name
TRIAL = 1 << 16  # draws, where a share or a figure has no formula
_GRID = 8192


@dataclass(frozen=True, slots=True)
class Fixed:
    value: int

    def draw(self, u: Floats) -> Floats:
        return np.full(len(u), float(self.value))

    def cdf(self, k: Floats) -> Floats:
        return (np.asarray(k) >= self.value).astype(np.float64)

    @property
    def span(self) -> tuple[int, float]:
        return self.value, self.value

    def __str__(self) -> str:
        return f"{self.value:,}"


@dataclass(frozen=True, slots=True)
class Uniform:
    """Each whole number from `low` to `high`, both included, equally often."""

    low: int
    high: int

    def draw(self, u: Floats) -> Floats:
        return self.low + np.floor(u * (self.high - self.low + 1))

    def cdf(self, k: Floats) -> Floats:
        return np.clip((np.floor(k) - self.low + 1) / (self.high - self.low + 1), 0.0, 1.0)

    @property
    def span(self) -> tuple[int, float]:
        return self.low, self.high

    def __str__(self) -> str:
        return f"{self.low:,}–{self.high:,}"


@dataclass(frozen=True, slots=True)
class Normal:
    mean: float
    std: float

    def draw(self, u: Floats) -> Floats:
        return _floats(np.rint(self.mean + self.std * _special().ndtri(u)))

    def cdf(self, k: Floats) -> Floats:
        return _floats(_special().ndtr((np.floor(k) + 0.5 - self.mean) / self.std))

    @property
    def span(self) -> tuple[int, float]:
        return 1, math.inf

    def __str__(self) -> str:
        return f"normal, mean {self.mean:,g}, std {self.std:,g}"


@dataclass(frozen=True, slots=True)
class Lognormal:
    """`mu` and `sigma` are the mean and the standard deviation of ln(tokens)."""

    mu: float
    sigma: float

    def draw(self, u: Floats) -> Floats:
        return _floats(np.rint(np.exp(self.mu + self.sigma * _special().ndtri(u))))

    def cdf(self, k: Floats) -> Floats:
        x = np.maximum(np.floor(k) + 0.5, 1e-9)
        return _floats(_special().ndtr((np.log(x) - self.mu) / self.sigma))

    @property
    def span(self) -> tuple[int, float]:
        return 1, math.inf

    def __str__(self) -> str:
        return f"lognormal, mu {self.mu:g}, sigma {self.sigma:g}"


@dataclass(frozen=True, slots=True)
class Weibull:
    """P(X > x) = exp(-(x / scale)^shape), `scale` in tokens."""

    shape: float
    scale: float

    def draw(self, u: Floats) -> Floats:
        return np.rint(self.scale * (-np.log1p(-u)) ** (1 / self.shape))

    def cdf(self, k: Floats) -> Floats:
        x = np.maximum(np.floor(k) + 0.5, 0.0)
        return _floats(-np.expm1(-((x / self.scale) ** self.shape)))

    @property
    def span(self) -> tuple[int, float]:
        return 1, math.inf

    def __str__(self) -> str:
        return f"weibull, shape {self.shape:g}, scale {self.scale:,g}"


@dataclass(frozen=True, slots=True)
class Gamma:
    """Mean shape × scale, `scale` in tokens."""

    shape: float
    scale: float

    def draw(self, u: Floats) -> Floats:
        return _floats(np.rint(self.scale * _special().gammaincinv(self.shape, u)))

    def cdf(self, k: Floats) -> Floats:
        return _floats(_special().gammainc(self.shape, np.maximum(np.floor(k) + 0.5, 0.0) / self.scale))

    @property
    def span(self) -> tuple[int, float]:
        return 1, math.inf

    def __str__(self) -> str:
        return f"gamma, shape {self.shape:g}, scale {self.scale:,g}"


@dataclass(frozen=True, slots=True)
class Mixture:
    """One of several, each with its share; the weights are in proportion."""

    weights: tuple[float, ...]
    parts: tuple[Distribution, ...]

    @property
    def shares(self) -> Floats:
        weights = np.array(self.weights, dtype=np.float64)
        return _floats(weights / weights.sum())

    def draw(self, u: Floats) -> Floats:
        ends = np.cumsum(self.shares)
        starts = ends - self.shares
        which = np.minimum(np.searchsorted(ends, u, side="right"), len(self.parts) - 1)
        found = np.empty(len(u))
        for i, part in enumerate(self.parts):
            mine = which == i
            # What is left of the number that chose the part is uniform again.
            rest = (u[mine] - starts[i]) / self.shares[i]
            found[mine] = part.draw(np.clip(rest, 0.0, 1.0 - 2**-53))
        return found

    def cdf(self, k: Floats) -> Floats:
        parts = [share * part.cdf(k) for share, part in zip(self.shares, self.parts, strict=True)]
        return _floats(np.sum(parts, axis=0))

    @property
    def span(self) -> tuple[int, float]:
        return min(part.span[0] for part in self.parts), max(part.span[1] for part in self.parts)

    def __str__(self) -> str:
        parts = zip(self.shares, self.parts, strict=True)
        return "mixture of " + "; ".join(f"{100 * share:.3g} % {part}" for share, part in parts)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """`values` at the shares `at`, which rise from 0 to 1, and in between in equal steps of the logarithm."""

    at: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def _logs(self) -> Floats:
        return np.log(np.maximum(np.array(self.values, dtype=np.float64), 0.5))  # a 0 is rounded back to it

    def draw(self, u: Floats) -> Floats:
        return _floats(np.rint(np.exp(np.interp(u, np.array(self.at), self._logs))))

    def cdf(self, k: Floats) -> Floats:
        # Where a value stands at several shares, the first holds just below it, the last from it on.
        logs, shares = self._logs, np.array(self.at)
        first, last = np.searchsorted(logs, np.unique(logs)), np.searchsorted(logs, np.unique(logs), side="right") - 1
        x = np.stack([logs[first] - 1e-12, logs[first]], axis=1).ravel()
        p = np.stack([shares[first], shares[last]], axis=1).ravel()
        return _floats(np.interp(np.log(np.maximum(np.floor(k) + 0.5, 1e-9)), x, p, left=0.0, right=1.0))

    @property
    def span(self) -> tuple[int, float]:
        return math.floor(self.values[0] + 0.5), math.floor(self.values[-1] + 0.5)

    def __str__(self) -> str:
        middle = math.exp(float(np.interp(0.5, np.array(self.at), self._logs)))
        return f"quantiles, {self.values[0]:,g} to {self.values[-1]:,g}, the middle {middle:,.0f}"


Distribution = Quantiles | Fixed | Uniform | Normal | Lognormal | Weibull | Gamma | Mixture


@dataclass(frozen=True, slots=True)
class Apart:
    """Input and output, each with its distribution. `spearman` is their rank correlation: within a block, the drawn
    lengths change places until their ranks are those of correlated normal numbers (Iman and Conover 1982), which leaves
    each side's distribution as it is."""

    input: Distribution
    output: Distribution
    spearman: float = 0.0

    def draw(self, rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
        u = rng.random((4, n))
        x, y = self.input.draw(u[0]), self.output.draw(u[1])
        if self.spearman:
            r = 2 * math.sin(math.pi * self.spearman / 6)  # of normal numbers with that rank correlation
            first = _special().ndtri(u[2])
            second = r * first + math.sqrt(1 - r * r) * _special().ndtri(u[3])
            x = np.sort(x)[np.argsort(np.argsort(first))]
            y = np.sort(y)[np.argsort(np.argsort(second))]
        return x, y

    def cdf(self, side: Side, k: Floats) -> Floats:
        return (self.input if side == "input" else self.output).cdf(k)

    def span(self, side: Side) -> tuple[int, float]:
        return (self.input if side == "input" else self.output).span

    def text(self, side: Side) -> str:
        return str(self.input if side == "input" else self.output)


@dataclass(frozen=True)
class Histogram:
    """A joint histogram. A cell is drawn by its weight, and a length log-uniformly within it. Edges are whole numbers
    of tokens, from 1 on; bin i holds those from edge i to below edge i + 1. A row is (input bin, then an output bin and
    its weight, over and over).
    """

    input_edges: tuple[int, ...]
    output_edges: tuple[int, ...]
    rows: tuple[tuple[float, ...], ...] = field(repr=False)

    @cached_property
    def _cells(self) -> tuple[Ints, Ints, Floats]:
        """Input bin, output bin and share of each cell."""
        cells = [(row[0], row[j], row[j + 1]) for row in self.rows for j in range(1, len(row), 2)]
        table = np.array(cells, dtype=np.float64)
        return table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2] / table[:, 2].sum()

    @cached_property
    def _ends(self) -> Floats:
        return _floats(np.cumsum(self._cells[2]))

    def draw(self, rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
        u = rng.random((3, n))
        inputs, outputs, shares = self._cells
        cell = np.minimum(np.searchsorted(self._ends, u[0], side="right"), len(shares) - 1)
        return self._within(self.input_edges, inputs[cell], u[1]), self._within(self.output_edges, outputs[cell], u[2])

    @staticmethod
    def _within(edges: Sequence[int], bins: Ints, u: Floats) -> Floats:
        all_edges = np.array(edges, dtype=np.float64)
        low, high = all_edges[bins], all_edges[bins + 1]
        return np.minimum(np.floor(low * (high / low) ** u), high - 1)

    def cdf(self, side: Side, k: Floats) -> Floats:
        inputs, outputs, shares = self._cells
        edges, bins = (self.input_edges, inputs) if side == "input" else (self.output_edges, outputs)
        ends = np.concatenate([[0.0], np.cumsum(np.bincount(bins, shares, len(edges) - 1))])
        x = np.log(np.maximum(np.floor(k) + 1, 1.0))
        return _floats(np.clip(np.interp(x, np.log(np.array(edges, dtype=np.float64)), ends), 0.0, 1.0))

    def span(self, side: Side) -> tuple[int, float]:
        inputs, outputs, _ = self._cells
        edges, bins = (self.input_edges, inputs) if side == "input" else (self.output_edges, outputs)
        return edges[int(bins.min())], edges[int(bins.max()) + 1] - 1

    def text(self, side: Side) -> str:
        low, high = self.span(side)
        return f"joint histogram, {low:,}–{high:,}"


@dataclass(frozen=True, slots=True)
class Limits:
    """The least and the most tokens that a request may have; None is no limit."""

    input: tuple[int, int | None] = (1, None)
    output: tuple[int, int | None] = (1, None)
    total: int | None = None  # input and output together


@dataclass(frozen=True, slots=True)
class Figures:
    """Of a side's lengths, in tokens."""

    mean: float
    p50: float
    p90: float
    p99: float

    def as_object(self) -> dict[str, float]:
        return {"mean": round(self.mean, 2), "p50": self.p50, "p90": self.p90, "p99": self.p99}


@dataclass(frozen=True)
class Lengths:
    """What lengths requests have: a source of pairs, and the limits that refuse some of them."""

    source: Apart | Histogram
    limits: Limits = Limits()

    def block(self, seed: int, number: int) -> tuple[Ints, Ints, int]:
        """Input and output tokens of the requests from `number` × BLOCK on, and how many pairs were refused for it."""
        return self._kept(_generator(seed, number), BLOCK)

    def sample(self, seed: int, n: int) -> tuple[Ints, Ints, float]:
        """The first `n` pairs of a seed's stream, and the share of draws that was refused for them."""
        blocks = [self.block(seed, number) for number in range(-(-n // BLOCK))]
        inputs, outputs = (np.concatenate([block[side] for block in blocks])[:n] for side in (0, 1))
        refused = sum(block[2] for block in blocks)
        return inputs, outputs, refused / (refused + BLOCK * len(blocks))

    def span(self, side: Side) -> tuple[int, float]:
        """The least and the most tokens of a side; infinite where neither distribution nor limits end it."""
        low, high = self.source.span(side)
        least, most = self.limits.input if side == "input" else self.limits.output
        ends = [high, math.inf if most is None else most]
        if self.limits.total is not None:
            other: Side = "output" if side == "input" else "input"
            floor = self.limits.output[0] if side == "input" else self.limits.input[0]
            ends.append(self.limits.total - max(floor, self.source.span(other)[0]))
        return max(low, least), min(ends)

    @property
    def most_total(self) -> float:
        """The most tokens that a request can have, input and output together."""
        together = self.span("input")[1] + self.span("output")[1]
        return together if self.limits.total is None else min(together, self.limits.total)

    @cached_property
    def refused(self) -> float:
        """The share of draws that the limits refuse, by a trial."""
        x, y = self.source.draw(_generator(0, 0), TRIAL)
        return 1.0 - float(np.mean(self._allowed(x, y)))

    def share(self, *, below: int | None = None, total_above: int | None = None) -> float:
        """The share of requests whose input is `below` so many tokens, or that have more than so many in all."""
        inputs, outputs, _ = self._trial
        chosen = np.zeros(len(inputs), dtype=bool)
        if below is not None:
            chosen |= inputs < below
        if total_above is not None:
            chosen |= inputs + outputs > total_above
        return float(np.mean(chosen))

    @property
    def formula(self) -> bool:
        """Does `cdf` tell the distribution of what is drawn? Where limits bite on a pair, only a trial does."""
        apart = isinstance(self.source, Apart) and not self.source.spearman and self.limits.total is None
        return apart or self.refused < 1e-3

    def cdf(self, side: Side, k: Floats) -> Floats:
        """P(length <= k), of a side within its own limits."""
        low, high = self.span(side)
        below = self.source.cdf(side, np.array([low - 1.0]))[0]
        whole = (1.0 if math.isinf(high) else self.source.cdf(side, np.array([high]))[0]) - below
        inside = (self.source.cdf(side, np.asarray(k, dtype=np.float64)) - below) / whole
        return _floats(np.clip(inside, 0.0, 1.0))

    def figures(self, side: Side) -> Figures:
        """Mean and percentiles of what is asked for: by formula, or else by a trial."""
        if not self.formula:
            return figures_of(self._trial[0] if side == "input" else self._trial[1])
        low, high = self.span(side)
        p50, p90, p99 = (self.quantile(side, p) for p in (0.5, 0.9, 0.99))
        end = high if not math.isinf(high) else self.quantile(side, 1 - 1e-9)
        grid = np.unique(np.rint(np.geomspace(low, max(end, low), _GRID)))
        above = 1.0 - self.cdf(side, grid)
        # E[X] = low + the sum of P(X > k) from low on; between the grid's points it is nearly straight.
        steps = np.diff(grid)
        mean = low + float(np.sum(steps * (above[:-1] + above[1:]) / 2 + (above[:-1] - above[1:]) / 2))
        return Figures(mean, p50, p90, p99)

    def quantile(self, side: Side, p: float) -> int:
        """The least k whose P(length <= k) is at least p."""
        if not self.formula:
            tokens = self._trial[0] if side == "input" else self._trial[1]
            return int(np.quantile(tokens, p, method="inverted_cdf"))
        low, high = self.span(side)
        high = min(high, 1e12)
        low -= 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.cdf(side, np.array([float(middle)]))[0] >= p:
                high = middle
            else:
                low = int(middle)
        return int(high)

    @cached_property
    def _trial(self) -> tuple[Ints, Ints, float]:
        return self.sample(0, TRIAL)

    def _allowed(self, x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
        allowed = np.ones(len(x), dtype=bool)
        for values, (least, most) in ((x, self.limits.input), (y, self.limits.output)):
            allowed &= values >= least
            if most is not None:
                allowed &= values <= most
        if self.limits.total is not None:
            allowed &= x + y <= self.limits.total
        return allowed

    def _kept(self, rng: np.random.Generator, n: int) -> tuple[Ints, Ints, int]:
        found: list[tuple[Floats, Floats]] = []
        kept = refused = 0
        while kept < n:
            x, y = self.source.draw(rng, n)
            allowed = self._allowed(x, y)
            # Draws after the last one needed are neither kept nor refused.
            last = int(np.searchsorted(np.cumsum(allowed), n - kept)) + 1
            allowed = allowed[:last]
            found.append((x[:last][allowed], y[:last][allowed]))
            kept += len(found[-1][0])
            refused += len(allowed) - len(found[-1][0])
        inputs, outputs = (np.concatenate([pair[side] for pair in found])[:n].astype(np.int64) for side in (0, 1))
        return inputs, outputs, refused


class LengthStream:
    """The lengths of one seed, by number. Asked in rising order it draws each block once."""

    __slots__ = ("_block", "_inputs", "_lengths", "_outputs", "_seed")

    def __init__(self, lengths: Lengths, seed: int) -> None:
        self._lengths, self._seed = lengths, seed
        self._block = -1
        self._inputs: list[int] = []
        self._outputs: list[int] = []

    def at(self, number: int) -> tuple[int, int]:
        """Input and output tokens of request `number`, from 0."""
        block, i = divmod(number, BLOCK)
        if block != self._block:
            inputs, outputs, _ = self._lengths.block(self._seed, block)
            self._block, self._inputs, self._outputs = block, inputs.tolist(), outputs.tolist()
        return self._inputs[i], self._outputs[i]


def figures_of(tokens: Ints) -> Figures:
    """Of lengths that were drawn."""
    p50, p90, p99 = (float(q) for q in np.quantile(tokens, (0.5, 0.9, 0.99), method="inverted_cdf"))
    return Figures(float(tokens.mean()), p50, p90, p99)


def ks_distance(lengths: Lengths, side: Side, tokens: Ints) -> float:
    """The largest distance between the distribution asked for and that of drawn lengths (Kolmogorov-Smirnov)."""
    values, counts = np.unique(tokens, return_counts=True)
    seen = np.cumsum(counts) / len(tokens)
    asked = lengths.cdf(side, values.astype(np.float64))
    before = lengths.cdf(side, (values - 1).astype(np.float64))
    return float(max(np.abs(seen - asked).max(), np.abs(np.concatenate([[0.0], seen[:-1]]) - before).max()))


def _generator(seed: int, number: int) -> np.random.Generator:
    key = int.from_bytes(hashlib.blake2b(f"lengths {seed}".encode(), digest_size=16).digest(), "big")
    return np.random.Generator(np.random.Philox(key=key, counter=number << 192))


def _special() -> Any:
    """scipy.special, once it is needed: a process that sends shapes starts sooner without."""
    from scipy import special

    return special


def _floats(found: Any) -> Floats:
    return np.asarray(found, dtype=np.float64)
