"""The lengths that a step's requests asked for, to be held against those of its workload. Pure."""

from __future__ import annotations

import bisect
import math

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr

from ..log.columns import NULL, Columns
from ..results import AskedLengths

QUANTILES = (0.5, 0.9, 0.99)
DOUBT = 3e-5  # on each side: as far out as four standard errors


def asked_lengths(measured: Columns) -> dict[str, AskedLengths]:
    """By side, of the measured requests whatever came of them; of conversations their first turns, as later ones grow.
    A side that some request leaves open is left out."""
    first = (measured.turn == NULL) | (measured.turn == 1)
    found: dict[str, AskedLengths] = {}
    for side, column in (("input", measured.input_asked), ("output", measured.output_asked)):
        tokens = np.sort(column[first])
        if len(tokens) and tokens[0] != NULL:
            p50, p90, p99 = (float(q) for q in np.quantile(tokens, QUANTILES, method="inverted_cdf"))
            bounds = (_within(tokens, q) for q in QUANTILES)
            within = tuple((_finite(low), _finite(high)) for low, high in bounds)
            found[side] = AskedLengths(len(tokens), float(tokens.mean()), float(tokens.std()), p50, p90, p99, within)
    return found


def _finite(bound: float) -> float | None:
    return bound if math.isfinite(bound) else None


def _within(ascending: npt.NDArray[np.int64], q: float) -> tuple[float, float]:
    """Where the quantile lies of what a sample was drawn from, whatever that is: between two of its order statistics,
    as how many of n draws lie at or below the quantile is binomial (David and Nagaraja, Order Statistics, 7.1)."""
    n = len(ascending)

    def below(k: int) -> float:
        return float(bdtr(k, n, q))  # of so many or fewer, the probability

    low = bisect.bisect_right(range(n + 1), DOUBT, key=below)  # at least so many are at or below it
    high = bisect.bisect_left(range(n + 1), 1.0 - DOUBT, key=below) + 1  # fewer than so many are below it
    return (
        float(ascending[low - 1]) if low else -math.inf,
        float(ascending[high - 1]) if high <= n else math.inf,
    )
