"""By what factor do two figures differ, and how sure is that? Ratios on the log scale, with Student's t. Pure.

Three ways to a standard error: pairs that did the same work (t of the k log ratios), two independent sides with k
batches each (Welch), and several such ratios together (their mean). Several questions at once are Holm's (1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ..results import Estimate
from ..stats import LEVEL, MIN_BATCHES

Floats = NDArray[np.float64]

ALPHA = 1 - LEVEL
# No ratio is known better than this (standard error of its logarithm): deterministic engines repeat themselves to the
# digit, and differences this small matter to nobody.
LEAST_ERROR = 0.0005


@dataclass(frozen=True, slots=True)
class LogRatio:
    """ln(B / A), its standard error and the degrees of freedom of that. Without an error nothing can be established."""

    value: float
    error: float | None = None
    df: float = 0.0

    @property
    def ratio(self) -> Estimate:
        """B / A with its 95 % interval."""
        if self.error is None:
            return Estimate(math.exp(self.value))
        half = self.half()
        return Estimate(math.exp(self.value), math.exp(self.value - half), math.exp(self.value + half))

    def half(self) -> float:
        """Half the width of the 95 % interval; infinite without an error."""
        return math.inf if self.error is None else float(special.stdtrit(self.df, (1 + LEVEL) / 2)) * self.error

    def p_above(self, bound: float = 0.0) -> float:
        """One-sided: how likely so large a value is where the truth is `bound` or less. 1 without an error."""
        if self.error is None:
            return 1.0
        return float(special.stdtr(self.df, -(self.value - bound) / self.error))

    def p_value(self) -> float:
        """Two-sided, against no difference."""
        if self.error is None:
            return 1.0
        return 2 * float(special.stdtr(self.df, -abs(self.value) / self.error))


def paired(logs: Floats) -> LogRatio:
    """The mean of k log ratios of pairs, t with k - 1; below 2 pairs without an error."""
    k = len(logs)
    mean = float(logs.mean())
    if k < 2:
        return LogRatio(mean)
    return LogRatio(mean, max(float(logs.std(ddof=1)) / math.sqrt(k), LEAST_ERROR), k - 1)


def welch(a: LogRatio, b: LogRatio) -> LogRatio:
    """b - a of two independent logarithms, with Welch's degrees of freedom."""
    value = b.value - a.value
    if a.error is None or b.error is None:
        return LogRatio(value)
    squares = (a.error**2, b.error**2)
    error, df = _together(squares, (a.df, b.df))
    return LogRatio(value, max(error, LEAST_ERROR), df)


def mean_of(ratios: Sequence[LogRatio]) -> LogRatio:
    """The mean of independent log ratios: of several loads together. Not empty. Without an error where one has none."""
    n = len(ratios)
    value = sum(r.value for r in ratios) / n
    errors = [r.error for r in ratios if r.error is not None]
    if len(errors) < n:
        return LogRatio(value)
    error, df = _together([(e / n) ** 2 for e in errors], [r.df for r in ratios])
    return LogRatio(value, error, df)


def _together(squares: Sequence[float], dfs: Sequence[float]) -> tuple[float, float]:
    """The error of a sum of independent parts, and Welch and Satterthwaite's degrees of freedom of it."""
    total = sum(squares)
    if total <= 0:
        return 0.0, min(dfs)
    return math.sqrt(total), total**2 / sum(s**2 / df for s, df in zip(squares, dfs, strict=True))


def batch_logs(values: Floats) -> LogRatio | None:
    """The mean logarithm of k batch figures; None unless all are above zero; below `MIN_BATCHES` without an error."""
    if not len(values) or not (values > 0).all():
        return None
    logs = np.log(values)
    return paired(logs) if len(logs) >= MIN_BATCHES else LogRatio(float(logs.mean()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: the chance that any of them is wrong stays below alpha."""
    adjusted, worst = [0.0] * len(p_values), 0.0
    for place, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        worst = max(worst, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = worst
    return adjusted


def weighted_quantile(values: Floats, weights: Floats, q: float) -> float:
    """The q-quantile of weighted values: linear interpolation, with equal weights NumPy's default. NaN without any
    weight."""
    values, weights = values[weights > 0], weights[weights > 0]
    n = len(values)
    if n == 0:
        return math.nan
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    place = np.arange(n) * weights + (n - 1) * (np.cumsum(weights) - weights)
    return float(np.interp(q * place[-1], place, values)) if n > 1 else float(values[0])
