"""A run as the rules look at it: its levels by load, each with its requests, and what runs at each moment. Pure.

Nothing here knows a server's absolute speed. What is compared are ratios: of one load to the lowest one, of a request's
waiting to its whole time, of the spread of a number to the number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...log.columns import NULL, Columns
from ...results import Slo, StepSummary
from .. import metrics
from ..caching import cached_counts
from ..window import has_outcome, is_phase

Floats = NDArray[np.float64]

INSTANTS = 240  # of a window at which the requests in flight are counted
MOST_PAIRS = 1 << 22  # requests × instants at a time
LEAST_ROWS = 8  # of a level, to say anything of its latencies
LEAST_FIT = 12  # of a fit
ABOVE = 1.15  # more requests in flight than run, by this factor
MOST_SHARE = 1.15  # of an engine's time; a little above 1 is the error of the estimate
MOST_EVENTS = 400_000  # of a level that are looked at one by one
LEAST_R2 = 0.25  # of a fit whose slope is believed
LEAST_SPREAD = 0.08  # of the input lengths around their mean, for a slope over them


@dataclass(frozen=True, slots=True)
class Fit:
    """TTFT over input length by least squares: ms, ms a token; `error` is the slope's standard error."""

    intercept: float
    slope: float
    error: float
    r2: float
    n: int

    @property
    def sure(self) -> bool:
        return self.slope > 3 * self.error

    def at(self, tokens: Floats) -> Floats:
        return self.intercept + self.slope * tokens


@dataclass(frozen=True, slots=True)
class Instants:
    """What was in flight at equally spaced instants of a window; each of shape (k,). `decoding` have had their first
    token and not their last; `held` are the tokens, prompt and answer so far, of those."""

    in_flight: Floats
    decoding: Floats
    held: Floats


class Level:
    """One load: its summary, its rows of all phases, and of the measured ok requests their times in ms and lengths in
    tokens, NaN where not known."""

    def __init__(self, summary: StepSummary, rows: Columns) -> None:
        self.summary, self.rows = summary, rows
        self.ok = rows.where(is_phase(rows, "measured") & has_outcome(rows, "ok"))
        self.ttft, self.tpot, self.e2e = metrics.ttft(self.ok), metrics.tpot(self.ok), metrics.e2e(self.ok)
        self.inputs = _known(metrics.input_tokens(self.ok))
        counts, told = cached_counts(self.ok)
        self.computed = np.where(told, self.inputs - counts, self.inputs)  # prompt tokens less those told as cached
        self.outputs = _known(self.ok.output_count)

    @property
    def load(self) -> float:
        return self.summary.load

    @property
    def step(self) -> int:
        return self.summary.step

    @property
    def named(self) -> str:
        return f"{self.load:,.3g} requests/s" if self.summary.rate is not None else f"{self.load:,g} in flight"

    @property
    def users(self) -> float:
        """Requests in flight: asked for, or of an open loop as observed."""
        return self.summary.concurrency or self.summary.concurrency_mean or 0.0

    @property
    def known(self) -> bool:
        return int((~np.isnan(self.e2e)).sum()) >= LEAST_ROWS

    @cached_property
    def rate(self) -> float:
        """Requests completed a second."""
        rate = self.summary.completion_rate or self.summary.request_throughput
        return rate.value if rate else 0.0

    @cached_property
    def throughput(self) -> float:
        found = self.summary.output_throughput
        return found.value if found else 0.0

    @cached_property
    def fit(self) -> Fit | None:
        """TTFT over the prompt tokens that were computed."""
        return least_squares(self.computed, self.ttft)

    @cached_property
    def instants(self) -> Instants | None:
        window, c = self.summary.window, self.rows
        known = (c.sent_ns != NULL) & (c.first_token_ns != NULL) & (c.last_token_ns != NULL)
        if window is None or window.seconds <= 0 or known.sum() < LEAST_ROWS:
            return None
        c = c.where(known)
        at = np.linspace(window.start_ns, window.end_ns, INSTANTS + 2)[1:-1]
        prompt = np.nan_to_num(_known(metrics.input_tokens(c)))
        answer = np.nan_to_num(_known(c.output_count))
        totals = np.zeros((3, len(at)))
        size = max(1, MOST_PAIRS // len(at))
        for i in range(0, len(c), size):
            rows = slice(i, i + size)
            sent, first, last = (x[rows, None] for x in (c.sent_ns, c.first_token_ns, c.last_token_ns))
            decoding = (at >= first) & (at < last)
            done = (at - first) / np.maximum(last - first, 1)
            totals[0] += ((at >= sent) & (at < last)).sum(axis=0)
            totals[1] += decoding.sum(axis=0)
            totals[2] += np.where(decoding, prompt[rows, None] + answer[rows, None] * done, 0.0).sum(axis=0)
        return Instants(*totals)

    @cached_property
    def sampled(self) -> Columns:
        """Measured ok requests with events, as many as may be looked at event by event."""
        c = self.ok.where(self.ok.has_events & (np.diff(self.ok.event_offsets) > 1) & ~self.ok.flag("not_streamed"))
        held = int(np.searchsorted(np.cumsum(np.diff(c.event_offsets)), MOST_EVENTS))
        return c if held >= len(c) else c.at(np.arange(held))


def engines(summary: StepSummary) -> int:
    """How many a step was served by, as far as is told: replicas or engines by the server's metrics, or addresses."""
    return max(1, len(summary.server.parts) if summary.server is not None else 1, len(summary.by_peer))


@dataclass(frozen=True, slots=True)
class Levels:
    """A run: its levels by rising load (of a load measured twice the later), manifest, and objectives. `all` are the
    steps as they came, also those without an answer."""

    all: tuple[StepSummary, ...]
    by_load: tuple[Level, ...]
    columns: Columns
    manifest: Mapping[str, Any]
    slo: Slo
    apart: bool

    @property
    def base(self) -> Level | None:
        return self.by_load[0] if self.by_load else None

    @property
    def top(self) -> Level | None:
        return self.by_load[-1] if self.by_load else None

    @property
    def several(self) -> bool:
        return len(self.by_load) > 1

    @property
    def open_loop(self) -> bool:
        return any(level.summary.rate is not None for level in self.by_load)

    @property
    def held(self) -> list[float]:
        """The loads whose objectives are proven to hold, where this client was not the limit."""
        return sorted({s.load for s in self.judged if all(check.verdict == "pass" for check in s.objectives)})

    @property
    def broken(self) -> list[float]:
        """The loads of which an objective is proven to break, likewise."""
        return sorted({s.load for s in self.judged if any(check.verdict == "fail" for check in s.objectives)})

    @property
    def judged(self) -> list[StepSummary]:
        """The steps with objectives, but those of which this client was the limit: they say nothing of the server."""
        sound = [s for s in self.all if s.ended != "client" and not s.requests.get("client_error")]
        return [s for s in sound if s.objectives and s.client_limit is None]

    def prefill_ms(self) -> tuple[float, Fit | None] | None:
        """What a prompt token costs, in ms: the slope of TTFT over the input length at the lowest load that shows one,
        else by the server's own prefill time at the lowest, else, where lengths do not vary, at most the TTFT there,
        less a step. Lengths that vary and show no slope tell of no such cost."""
        for level in self.by_load:
            fit = level.fit
            if fit is not None and fit.sure and fit.r2 >= LEAST_R2:
                return fit.slope, fit
        base = self.base
        tokens = float(np.nanmean(base.computed)) if base and not np.isnan(base.computed).all() else 0.0
        if base is None or not tokens:
            return None
        server, step = base.summary.server, median(base.tpot, 0.0)
        if server is not None and server.prefill_ms is not None:
            return max(0.0, server.prefill_ms - step) / tokens, None
        if base.users > 2 or not self.several or any(level.fit is not None for level in self.by_load):
            return None
        return max(0.0, median(base.ttft) - step) / tokens, None

    def prefill_share(self, level: Level) -> float | None:
        """Of the time, what an engine spends on this level's prompts: requests/s × prompt tokens × ms a token, over the
        number of engines that are told of."""
        cost = self.prefill_ms()
        if cost is None or np.isnan(level.computed).all():
            return None
        server = level.summary.server
        cached = server.prefix_hit_share if server is not None and (level.ok.input_cached == NULL).all() else None
        tokens = float(np.nanmean(level.computed)) * (1 - (cached or 0.0))
        share = level.rate * tokens * cost[0] / 1e3 / engines(level.summary)
        grown = self.slower(level)
        if grown is not None and (cost[1] is None or share > MOST_SHARE):
            # Without a slope, what stands before every first token counts as the prompt's; and more than all the time
            # of one engine is that of several. But steps took no less than they do alone, which leaves the rest.
            share = min(share, max(0.0, 1 - 1 / grown))
        return share

    def slower(self, level: Level) -> float | None:
        """TPOT at a level, as a multiple of that at the lowest load; of answers of one token, TTFT."""
        base = self.base or level
        one_token = not any(np.isfinite(one.tpot).any() for one in (base, level))
        low, high = (median(one.ttft if one_token else one.tpot) for one in (base, level))
        return high / low if low > 0 and high > 0 else None

    def queue_ms(self, level: Level) -> float | None:
        """What the median request waited beyond its TTFT without load: that of its length at the lowest load, and the
        step at hand when it came. None where there is no lower load."""
        base = self.base
        if base is None or level is base or not np.isfinite(level.ttft).any():
            return None
        fit = base.fit
        still = fit.at(level.computed) if fit is not None and fit.sure else np.full(len(level.ok), median(base.ttft))
        return float(np.nanmedian(level.ttft - still)) - median(level.tpot, 0.0)


def levels_of(
    summaries: Sequence[StepSummary], columns: Columns, manifest: Mapping[str, Any], slo: Slo, *, apart: bool
) -> Levels:
    found: dict[float, Level] = {}
    for summary in summaries:
        rows = columns.where((columns.step == summary.step) & ~is_phase(columns, "preflight"))
        level = Level(summary, rows)
        if level.known:
            found[level.load] = level
    return Levels(tuple(summaries), tuple(found[load] for load in sorted(found)), columns, manifest, slo, apart)


def least_squares(x: Floats, y: Floats) -> Fit | None:
    """None where too few are known, or the x are too much alike. The slowest twentieth is left out of the second and
    last fit: a hiccup is no slope."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) < LEAST_FIT or x.std() < LEAST_SPREAD * max(float(x.mean()), 1.0):
        return None
    slope, intercept = np.polyfit(x, y, 1)
    left = y - intercept - slope * x
    kept = left <= np.quantile(left, 0.95)
    x, y = x[kept], y[kept]
    around = float(((x - x.mean()) ** 2).sum())
    if around <= 0:
        return None
    slope, intercept = np.polyfit(x, y, 1)
    rest, total = float(((y - intercept - slope * x) ** 2).sum()), float(((y - y.mean()) ** 2).sum())
    error = (rest / max(len(x) - 2, 1) / around) ** 0.5
    return Fit(float(intercept), float(slope), error, 1 - rest / total if total > 0 else 0.0, len(x))


def median(values: Floats, otherwise: float = float("nan")) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else otherwise


def spread(values: Floats) -> float:
    """The standard deviation over the mean; 0 of nothing."""
    mean = float(values.mean()) if len(values) else 0.0
    return float(values.std()) / mean if mean > 0 else 0.0


def _known(values: NDArray[np.int64]) -> Floats:
    return np.where(values == NULL, np.nan, values.astype(np.float64))
