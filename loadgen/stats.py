"""Quantiles and intervals that hold on correlated samples: arrays in, numbers out; no I/O and no clock.

Latencies of one step are correlated: requests prefilled in one engine step share a TTFT, and neighbours in time share a
queue. So no interval here treats n requests as n independent ones. A sample is cut, in time order, into k batches; the
spread of the batch means gives the design effect, the design effect an effective sample size, and the classic exact
intervals are taken at that size (Korn and Graubard, Survey Methodology 24, 1998).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from .results import Estimate, Percentile

Floats = NDArray[np.float64]

LEVEL = 0.95  # of every printed interval, two-sided
MIN_BATCHES = 5
MAX_BATCHES = 16
MAX_VERDICT_BATCHES = 64
RATE_FLOOR = 0.005  # equal lengths run in lockstep with the batches, which then hide the true spread
ANY_SLOPE = (-math.inf, math.inf)


def t_quantile(probability: float, df: int) -> float:
    """Quantile of Student's t with `df` >= 1 degrees of freedom."""
    return float(special.stdtrit(df, probability))


def quantile(values: Floats, q: float) -> float:
    """The q-quantile (0..1) of a non-empty sample: linear interpolation between order statistics, NumPy's default.

    Unlike NumPy it is exact with +inf in the sample (a failure ranks as infinitely late): the result is inf as soon as
    the interpolation touches an infinite value with any weight.
    """
    below, above, _ = _between(len(values), q)
    return _interpolated(np.partition(values, (below, above)), q)


def _between(n: int, q: float) -> tuple[int, int, float]:
    """The places of the order statistics around the q-quantile of n, and how far it lies from the one to the other."""
    position = q * (n - 1)
    below = min(int(position), n - 1)
    return below, min(below + 1, n - 1), position - below


def _interpolated(ranked: Floats, q: float) -> float:
    """The q-quantile of values of which those two are in their places."""
    below, above, weight = _between(len(ranked), q)
    low, high = float(ranked[below]), float(ranked[above])
    if weight == 0 or low == high:
        return low
    return low + (high - low) * weight if math.isfinite(high) else high


def batch_count(n: int, concurrency: int) -> int:
    """How many batches to cut n time-ordered requests into: clip(n / 2c, 5, 16), so that a batch spans two turnovers
    (2c completions) where n allows; 0 below 5 requests, where no spread can be estimated."""
    if n < MIN_BATCHES:
        return 0
    return max(MIN_BATCHES, min(MAX_BATCHES, n // (2 * max(concurrency, 1))))


def verdict_batches(n: int, concurrency: int) -> int:
    """How many batches a verdict on n time-ordered requests cuts them into: as `batch_count`, and of a long sample up
    to 64 of four turnovers and 40 requests each, as the more batches there are, the less is paid for estimating the
    design effect from them."""
    return max(batch_count(n, concurrency), min(MAX_VERDICT_BATCHES, n // max(4 * concurrency, 40)))


def batch_means(values: NDArray[Any], k: int) -> Floats:
    """Means of k consecutive, as equal as possible, batches; shape (k,). Needs 1 <= k <= len(values)."""
    edges = np.linspace(0, len(values), k + 1).astype(np.intp)
    if values.dtype == np.bool_:  # the same, sooner
        counts = [np.count_nonzero(values[start : max(end, start + 1)]) for start, end in pairwise(edges)]
        return np.array(counts, dtype=np.float64) / np.diff(edges)
    return np.add.reduceat(values, edges[:-1], dtype=np.float64) / np.diff(edges)


def mean_interval(values: Floats, k: int) -> Estimate | None:
    """The mean of time-ordered values with its 95 % interval from k batch means and Student's t (k - 1 degrees of
    freedom). No values: None. Fewer than 2 batches, or fewer values than batches: no interval."""
    if len(values) == 0:
        return None
    mean = float(values.mean())
    if k < 2 or len(values) < k:
        return Estimate(mean)
    half = t_quantile((1 + LEVEL) / 2, k - 1) * float(batch_means(values, k).std(ddof=1)) / math.sqrt(k)
    return Estimate(mean, mean - half, mean + half)


def rate_interval(amounts: Floats, seconds: float) -> Estimate:
    """A rate from the amounts in k equal slices of a window of `seconds`, with its 95 % interval on the log scale.

    Relative half-width t(k-1) * cv / sqrt(k), at least ±0.5 %; no interval with fewer than 5 slices or a zero total.
    """
    k, total = len(amounts), float(amounts.sum())
    rate = total / seconds
    if k < MIN_BATCHES or total <= 0:
        return Estimate(rate)
    cv = float(amounts.std(ddof=1)) / (total / k)
    relative = max(t_quantile((1 + LEVEL) / 2, k - 1) * cv / math.sqrt(k), RATE_FLOOR)
    return Estimate(rate, rate * math.exp(-relative), rate * math.exp(relative))


def design_effect(indicator: NDArray[np.bool_], k: int) -> float:
    """max(1, (n/k) * s²(batch means) / (p(1-p))) of a time-ordered 0/1 sample; 1 where it does not vary."""
    n = len(indicator)
    p = float(np.count_nonzero(indicator) / n) if n else 0.0
    if k < 2 or n < k or not 0.0 < p < 1.0:
        return 1.0
    return max(1.0, n / k * float(batch_means(indicator, k).var(ddof=1)) / (p * (1.0 - p)))


def effective_n(n: int, deff: float, k: int) -> float:
    """n* = n / deff * (1.96 / t(k-1))²: independent requests that tell as much as these n, less what estimating deff
    from k batches costs. Without batches (k < 2) the price of the least number of batches is taken."""
    df = max(k, MIN_BATCHES) - 1
    ratio = float(special.ndtri((1 + LEVEL) / 2)) / t_quantile((1 + LEVEL) / 2, df)
    return n / deff * ratio * ratio


def binomial_bounds(share: float, n: float, alpha: float = 1 - LEVEL) -> tuple[float, float]:
    """Clopper-Pearson bounds of a share seen in n trials, each one-sided at alpha/2; n may be fractional.

    low = BetaInv(alpha/2; x, n-x+1), high = BetaInv(1-alpha/2; x+1, n-x) with x = share * n; (0, 1) without trials.
    """
    if n <= 0:
        return 0.0, 1.0
    x = share * n
    low = 0.0 if x < 1e-9 else float(special.betaincinv(x, n - x + 1, alpha / 2))
    high = 1.0 if n - x < 1e-9 else float(special.betaincinv(x + 1, n - x, 1 - alpha / 2))
    return low, high


def exceedance_n(values: Floats, limit: float, p: float, k: int) -> float:
    """Effective n for judging the share above `limit` against 1 - p/100, by the larger of the design effects at the
    limit and at the sample's own percentile (the limit alone says nothing where no request exceeds it)."""
    deff = max(design_effect(values > limit, k), design_effect(values > quantile(values, p / 100), k))
    return effective_n(len(values), deff, k)


def percentile(values: Floats, p: float, k: int, ranked: Floats | None = None) -> Percentile | None:
    """The p-th percentile (0..100) of time-ordered values with its 95 % interval; None without values.

    The interval is the pair of order statistics at the binomial ranks of n*, scaled to n. A side whose rank does not
    exist (n* below 72 for p95, 368 for p99) is open: None, and the percentile is not established. `ranked` may pass the
    sorted values, to sort once for several percentiles.
    """
    n = len(values)
    if n == 0:
        return None
    order = np.sort(values) if ranked is None else ranked
    value = _interpolated(order, p / 100)
    n_star = effective_n(n, design_effect(values > value, k), k)
    size = math.floor(n_star)
    lower, upper = binomial_ranks(size, p / 100)
    low = high = None
    if lower is not None:
        low = float(order[max(math.floor((lower - 0.5) * n / size + 0.5), 1) - 1])
    if upper is not None:
        high = float(order[min(math.ceil((upper - 0.5) * n / size + 0.5), n) - 1])
    established = lower is not None and upper is not None
    return Percentile(p=p, value=value, low=low, high=high, n=n, n_effective=n_star, established=established)


def binomial_ranks(n: int, q: float, alpha: float = 1 - LEVEL) -> tuple[int | None, int | None]:
    """1-based ranks (l, u) with P(X(l) > quantile) <= alpha/2 and P(X(u) < quantile) <= alpha/2, as tight as possible,
    for n independent values; None for a rank that does not exist in n values."""
    if n < 1:
        return None, None
    reach = 12 * math.sqrt(n * q * (1 - q)) + 12  # the tail beyond 12 sd is far below any alpha in use
    first, last = max(0, math.floor(n * q - reach)), min(n - 1, math.ceil(n * q + reach))

    def cdf(j: int) -> float:
        return float(special.betainc(n - j, j + 1.0, 1 - q))  # P(Bin(n, q) <= j)

    some = range(first, last + 1)
    below = bisect.bisect_right(some, alpha / 2, key=cdf)  # number of j with cdf <= alpha/2
    above = bisect.bisect_left(some, 1 - alpha / 2, key=cdf)
    lower = first + below if below else None  # the largest l with P(Bin <= l - 1) <= alpha/2
    upper = first + above + 1 if above < len(some) else None
    return lower, upper


def least_effective_n(p: float, alpha: float = 1 - LEVEL) -> int:
    """Least n of independent values whose two-sided interval of the p-th percentile exists: 36, 72, 368, 3,688 for p90,
    p95, p99, p99.9."""
    q = max(p / 100, 1 - p / 100)
    return math.ceil(math.log(alpha / 2) / math.log(q))


def least_requests(p: float, concurrency: int) -> int:
    """Least number of requests at a concurrency that can establish the p-th percentile at all (design effect 1), and
    so the least that can pass an objective on it. Correlation asks for more: 2 to 40 times."""
    need = least_effective_n(p)
    n = need
    while effective_n(n, 1.0, batch_count(n, concurrency)) < need:
        n += 1
    return n


# --- is a series steady? --------------------------------------------------------------------------------------------


def dispersion(counts: NDArray[Any]) -> float:
    """The index of dispersion of counts in equal bins: their variance over their mean; 1 for independent arrivals, 0
    without any."""
    mean = float(counts.mean()) if len(counts) else 0.0
    return float(counts.var()) / mean if mean > 0 else 0.0


def without(values: Floats, covariate: Floats, slopes: tuple[float, float] = ANY_SLOPE) -> Floats:
    """Values of positive mean as shares of it, less what a straight line in `covariate` explains, of a slope that lies
    within `slopes`; their mean is 1."""
    y: Floats = values / values.mean()
    x: Floats = covariate - covariate.mean()
    left: Floats = y - _slope(y, x, np.ones((len(y), 1)), slopes) * x
    return left


def trend(
    slices: Floats,
    covariate: Floats,
    least: float,
    alpha: float = 0.01,
    slopes: tuple[float, float] = ANY_SLOPE,
) -> bool:
    """Do the means of equal slices of time follow a parabola, beyond chance (F test at alpha) and by more than the
    share `least` of the mean from its lowest to its highest, beside a straight line in `covariate`, of a slope (of the
    slices as shares of their mean) within `slopes`? Ordinary least squares on slices and covariate as they are: slices
    of two turnovers are nearly independent. False with fewer than 8 slices."""
    k = len(slices)
    mean = float(slices.mean()) if k else 0.0
    if k < 8 or mean <= 0:
        return False
    y, time = slices / mean, np.linspace(-1, 1, k)
    x: Floats = covariate - covariate.mean()
    level, parabola = np.ones((k, 1)), np.column_stack([np.ones(k), time, time**2])
    left = y - _slope(y, x, parabola, slopes) * x
    factors, *_ = np.linalg.lstsq(parabola, left, rcond=None)
    if float(np.ptp(parabola[:, 1:] @ factors[1:])) <= least:
        return False
    rest = float(((left - parabola @ factors) ** 2).sum())
    plain = y - _slope(y, x, level, slopes) * x
    gained = float(((plain - plain.mean()) ** 2).sum()) - rest
    degrees = k - 3 - bool(x.any())
    return rest == 0 or float(special.fdtrc(2, degrees, gained / 2 / (rest / degrees))) < alpha


def _slope(y: Floats, x: Floats, beside: Floats, slopes: tuple[float, float]) -> float:
    """The slope in x of the least-squares fit to y, with the columns `beside`, that lies within `slopes`."""
    own = x - beside @ np.linalg.lstsq(beside, x, rcond=None)[0]  # what of x the other columns do not tell
    square = float((own * own).sum())
    slope = float((own * y).sum()) / square if square > 1e-12 * float((x * x).sum()) else 0.0
    return min(max(slope, slopes[0]), slopes[1])


def homogeneous(values: Sequence[float], halves: Sequence[float], tests: int = 1, alpha: float = 0.01) -> bool:
    """May independent values with 95 % intervals of these half-widths have one mean? Cochran's Q, the weighted sum of
    squares around the weighted mean, against chi-square with k - 1 degrees of freedom at alpha / tests."""
    weights = np.array([(float(special.ndtri((1 + LEVEL) / 2)) / half) ** 2 for half in halves])
    column = np.asarray(values, dtype=np.float64)
    q = float((weights * (column - np.average(column, weights=weights)) ** 2).sum())
    return float(special.chdtrc(len(column) - 1, q)) > alpha / tests


def serial_dependence(slices: Floats, alpha: float = 0.01) -> bool:
    """Do successive slices resemble each other more than chance allows? Von Neumann's ratio of the mean square of
    successive differences to the variance, 2 if independent, with its normal approximation, one-sided at alpha. Slices
    that vary by less than `RATE_FLOOR` are equal. False with fewer than 10 slices."""
    k = len(slices)
    mean = float(slices.mean()) if k else 0.0
    if k < 10 or mean <= 0:
        return False
    deviations = float(((slices - mean) ** 2).sum())
    if math.sqrt(deviations / k) < RATE_FLOOR * mean:
        return False
    ratio = float((np.diff(slices) ** 2).sum()) / deviations
    return (2 - ratio) * math.sqrt((k * k - 1) / (4 * (k - 2))) > float(special.ndtri(1 - alpha))


def grows(increments: Floats, alpha: float) -> bool:
    """Is the mean of these increments above zero (t test, one-sided at alpha)? False with fewer than 3."""
    k = len(increments)
    if k < 3:
        return False
    mean, spread = float(increments.mean()), float(increments.std(ddof=1))
    return mean > t_quantile(1 - alpha, k - 1) * spread / math.sqrt(k)
