"""Two measured steps → by what factor B differs from A: paired by equal work, independent, or adjusted to A's mix of
lengths. Pure.

Paired (both were sent the same lengths in the same order): throughput as the time that each of k equal shares of the
output tokens took, percentiles over k batches of the very same requests. Else Welch on k batches of each side.

Adjusted, where the lengths differ: B's requests are weighted so that each bucket of input and output length has A's
share, over the buckets that both have. Throughput then is Little's law, tokens of a weighted request over its time in
flight: it takes a bucket's latencies as they were seen, beside the other side's mix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ..log.columns import NULL, Columns, Int64
from ..results import StepSummary
from ..stats import MIN_BATCHES, RATE_FLOOR, batch_count, quantile
from . import metrics
from .buckets import length_codes
from .ratios import LogRatio, batch_logs, paired, weighted_quantile, welch
from .window import has_outcome, is_phase, tokens_in

Floats = NDArray[np.float64]

SHARES = 10  # of the work, and the most slices of a window
BATCHES = 16  # of a sample of latencies, at the most
GRID = 2000  # points of the curve of tokens over time
LEAST_OVERLAP = 0.5  # of either side's requests must lie in buckets that both have


@dataclass(frozen=True)
class Side:
    """One measured step: its rows of all phases but preflight, and its summary."""

    columns: Columns
    summary: StepSummary

    @cached_property
    def ok(self) -> Columns:
        c = self.columns
        return c.where(is_phase(c, "measured") & has_outcome(c, "ok"))

    @cached_property
    def place(self) -> Int64:
        """Of each measured ok request, its place in the order in which the step's requests were due."""
        c = self.columns
        places = np.empty(len(c), dtype=np.int64)
        places[np.argsort(c.scheduled_ns, kind="stable")] = np.arange(len(c))
        return places[is_phase(c, "measured") & has_outcome(c, "ok")]

    @property
    def turnover(self) -> int:
        return max(1, self.summary.concurrency or round(self.summary.concurrency_mean or 1))

    @cached_property
    def curve(self) -> tuple[Floats, Floats]:
        """Output tokens since the step's start, by time in ns."""
        c = self.columns
        delivered = c.where(has_outcome(c, "ok", "cut"))
        window = self.summary.window
        assert window is not None
        start = min(int(c.scheduled_ns.min()), window.start_ns) if len(c) else window.start_ns
        edges = np.linspace(start, window.end_ns, GRID + 1)
        return edges, np.concatenate(([0.0], np.cumsum(tokens_in(delivered, edges)[0])))


def step_sides(c: Columns, summaries: list[StepSummary]) -> list[Side]:
    """The steps of a run, each with its own rows."""
    loaded = ~is_phase(c, "preflight")
    return [Side(c.where(loaded & (c.step == s.step)), s) for s in summaries]


# --- throughput -----------------------------------------------------------------------------------------------------


def throughput_ratio(a: Side, b: Side, *, same_work: bool) -> LogRatio | None:
    """`output_throughput` of B over A's; None where one has none."""
    x, y = a.summary.output_throughput, b.summary.output_throughput
    if x is None or y is None or x.value <= 0 or y.value <= 0:
        return None
    if same_work:
        found = _by_work(a, b)
        if found is not None:
            return found
    return welch(_rate(a), _rate(b))


def _by_work(a: Side, b: Side) -> LogRatio | None:
    """The same shares of the tokens, and how long each took; None where too few requests are common to both windows."""
    k = min(SHARES, batch_count(min(len(a.ok), len(b.ok)), max(a.turnover, b.turnover)))
    if k < MIN_BATCHES:
        return None
    spans = []
    for side in (a, b):
        window = side.summary.window
        assert window is not None
        spans.append(np.interp([window.start_ns, window.end_ns], *side.curve))
    low, high = max(span[0] for span in spans), min(span[1] for span in spans)
    if high - low < 0.5 * min(span[1] - span[0] for span in spans):
        return None
    marks = np.linspace(low, high, k + 1)
    took = []
    for side in (a, b):
        times, tokens = side.curve
        rising = np.concatenate(([True], np.diff(tokens) > 0))
        took.append(np.diff(np.interp(marks, tokens[rising], times[rising])))
    return paired(np.log(took[0] / took[1])) if min(map(np.min, took)) > 0 else None


def _rate(side: Side) -> LogRatio:
    """The logarithm of a throughput with its error from equal slices of the window."""
    window, estimate = side.summary.window, side.summary.output_throughput
    assert window is not None and estimate is not None
    c = side.columns
    k = min(SHARES, batch_count(len(side.ok), side.turnover))
    value = math.log(estimate.value)
    if k < MIN_BATCHES:
        return LogRatio(value)
    edges = np.linspace(window.start_ns, window.end_ns, k + 1)
    amounts, _ = tokens_in(c.where(has_outcome(c, "ok", "cut")), edges)
    cv = float(amounts.std(ddof=1) / amounts.mean())
    return LogRatio(value, max(cv / math.sqrt(k), RATE_FLOOR / 2), k - 1)


# --- percentiles ----------------------------------------------------------------------------------------------------


def percentile_ratio(a: Side, b: Side, metric: str, p: float, *, same_work: bool) -> LogRatio | None:
    """A percentile of a latency metric of B over A's; None where one has none, or it is zero."""
    x, y = _values(a, metric), _values(b, metric)
    if same_work:
        _, i, j = np.intersect1d(x.place, y.place, assume_unique=True, return_indices=True)
        k = min(BATCHES, batch_count(len(i), max(a.turnover, b.turnover)), _most(len(i), p))
        if k >= MIN_BATCHES and len(i) >= 0.5 * min(len(x.values), len(y.values)):
            one, other = _batches(x.values[i], k, p), _batches(y.values[j], k, p)
            # Their mean, not the ratio of the whole samples' percentiles: one burst makes up the tail of a whole
            # sample, and then is in that figure but not in its error.
            if min(one.min(), other.min()) > 0:
                return paired(np.log(other / one))
    n = min(len(x.values), len(y.values))
    if n == 0:
        return None
    k = min(BATCHES, batch_count(n, max(a.turnover, b.turnover)), _most(n, p))
    size = n // k if k else n  # batches of one size on both sides: a percentile of few is biased
    return _welch_of(x.values, y.values, np.ones(len(x.values)), np.ones(len(y.values)), size, p)


@dataclass(frozen=True, slots=True)
class _Values:
    values: Floats
    place: Int64


def _values(side: Side, metric: str) -> _Values:
    """In the order in which the requests were due."""
    values = metrics.REQUEST_METRICS[metric](side.ok)
    known = ~np.isnan(values)
    order = np.argsort(side.place[known], kind="stable")
    return _Values(values[known][order], side.place[known][order])


def _most(n: int, p: float) -> int:
    """The most batches, each with a value beyond the percentile."""
    return int(n * min(p, 100 - p) / 100)


def _batches(values: Floats, k: int, p: float) -> Floats:
    return np.array([quantile(part, p / 100) for part in np.array_split(values, k)])


def _welch_of(x: Floats, y: Floats, wx: Floats, wy: Floats, size: int, p: float) -> LogRatio | None:
    """Welch on the mean logarithms of the percentiles of batches of `size`; with too few of them, of the whole samples
    without an error."""
    sides = []
    for values, weights in ((x, wx), (y, wy)):
        k = min(max(1, len(values) // max(size, 1)), 4 * BATCHES)
        parts = zip(np.array_split(values, k), np.array_split(weights, k), strict=True)
        sides.append(batch_logs(np.array([weighted_quantile(v, w, p / 100) for v, w in parts])))
    if sides[0] is not None and sides[1] is not None and sides[0].error is not None and sides[1].error is not None:
        return welch(sides[0], sides[1])
    whole = weighted_quantile(x, wx, p / 100), weighted_quantile(y, wy, p / 100)
    return LogRatio(math.log(whole[1] / whole[0])) if min(whole) > 0 else None


# --- the mix of lengths ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mix:
    """Weights that give B's measured ok requests A's shares of the length buckets; `overlap` is the smaller of the
    shares of the sides' requests that lie in buckets which both have."""

    a: Floats
    b: Floats
    overlap: float

    @property
    def usable(self) -> bool:
        return self.overlap >= LEAST_OVERLAP


def mixes_differ(a: Side, b: Side, alpha: float = 0.01) -> bool:
    """Do the lengths of the measured ok requests differ beyond chance (chi-squared test over the buckets)?"""
    if not len(a.ok) or not len(b.ok):
        return False
    codes, x, y = _counted(a, b)
    n, m = x.sum(), y.sum()
    expected = (x + y) / (n + m)
    enough = expected * min(n, m) >= 5  # the rest is one bucket
    x, y, expected = (np.append(v[enough], v[~enough].sum()) for v in (x, y, expected))
    kept = expected > 0
    statistic = (((x - n * expected) ** 2)[kept] / (n * expected)[kept]).sum()
    statistic += (((y - m * expected) ** 2)[kept] / (m * expected)[kept]).sum()
    df = int(kept.sum()) - 1
    return len(codes) > 1 and df > 0 and float(special.chdtrc(df, statistic)) < alpha


def mix_of(a: Side, b: Side) -> Mix:
    codes, x, y = _counted(a, b)
    both = (x > 0) & (y > 0)
    p, q = x / max(x.sum(), 1), y / max(y.sum(), 1)
    weight = np.where(both, p / np.where(q > 0, q, 1.0), 0.0)
    place_a, place_b = (np.searchsorted(codes, length_codes(side.ok)) for side in (a, b))
    return Mix(
        both[place_a].astype(np.float64) if len(codes) else np.zeros(0),
        weight[place_b] if len(codes) else np.zeros(0),
        float(min(p[both].sum(), q[both].sum())) if len(codes) else 0.0,
    )


def _counted(a: Side, b: Side) -> tuple[Int64, Floats, Floats]:
    one, other = length_codes(a.ok), length_codes(b.ok)
    codes = np.unique(np.concatenate((one, other)))
    x, y = (np.array([(side == code).sum() for code in codes], dtype=np.float64) for side in (one, other))
    return codes, x, y


def adjusted_percentile(a: Side, b: Side, metric: str, p: float, mix: Mix) -> LogRatio | None:
    """A percentile of B's requests at A's mix of lengths over A's own."""
    x, y = metrics.REQUEST_METRICS[metric](a.ok), metrics.REQUEST_METRICS[metric](b.ok)
    sides = []
    for side, values, weights in ((a, x, mix.a), (b, y, mix.b)):
        order = np.argsort(side.place, kind="stable")
        order = order[~np.isnan(values[order])]
        sides.append((values[order], weights[order]))
    n = min(len(values) for values, _ in sides)
    k = min(BATCHES, batch_count(n, max(a.turnover, b.turnover)), _most(n, p)) if n else 0
    return _welch_of(sides[0][0], sides[1][0], sides[0][1], sides[1][1], n // k if k else max(n, 1), p) if n else None


def adjusted_throughput(a: Side, b: Side, mix: Mix) -> LogRatio | None:
    """Output tokens per request-second at A's mix, of B over A; times the ratio of the loads where these differ. None
    for an open loop, whose throughput is what it was asked for."""
    if a.summary.rate is not None or b.summary.rate is not None:
        return None
    sides = []
    for side, weights in ((a, mix.a), (b, mix.b)):
        ok = side.ok
        spans = metrics.e2e(ok)
        known = ~np.isnan(spans) & (ok.output_count != NULL)
        order = np.argsort(side.place, kind="stable")
        order = order[known[order]]
        tokens, seconds = weights[order] * ok.output_count[order], weights[order] * spans[order] / 1e3
        if not seconds.sum() > 0 or not tokens.sum() > 0:
            return None
        k = min(SHARES, batch_count(len(order), side.turnover))
        value = math.log(tokens.sum() / seconds.sum() * side.turnover)
        cut = (np.array([part.sum() for part in np.array_split(what, max(k, 1))]) for what in (tokens, seconds))
        amounts, spans = cut
        found = batch_logs(np.divide(amounts, spans, out=np.zeros(len(amounts)), where=spans > 0)) if k else None
        sides.append(LogRatio(value, *((found.error, found.df) if found else (None, 0.0))))
    return welch(*sides)
