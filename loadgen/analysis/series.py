"""What is drawn of a run, binned so that its size does not grow with the run: distributions, a timeline, TTFT against
input length. Pure.

Shapes are bounded by `POINTS`, `BINS` and `SAMPLED`; every series carries the n it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..log.columns import NULL, Columns, Int64
from ..records import FAILED_OUTCOMES
from ..results import ServerSample, StepSummary
from . import metrics
from .window import has_outcome, is_phase, tokens_in

Floats = NDArray[np.float64]

POINTS = 100  # of a distribution
BINS = 240  # of the timeline
SAMPLED = 60  # requests of a step that are drawn one by one
GROUPS = 8  # of input lengths
MOST_STEPS = 10  # whose distributions are drawn
SERVER_TERMS = ("running", "waiting", "kv_use_share")
DRAWN = ("ttft", "tpot", "e2e", "itl")
_LEAST = 0.001  # ms: on a log axis nothing is zero


@dataclass(frozen=True, slots=True)
class Curve:
    """An empirical distribution of n values in ms: `values[i]` is the smallest that at least `shares[i]` of them do not
    exceed; both ascending, of shape (at most POINTS + 1,)."""

    n: int
    values: Floats
    shares: Floats


@dataclass(frozen=True, slots=True)
class Span:
    """A step on the timeline, from its first request sent to its last one ended, in seconds since the run's start."""

    step: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """Means over equal bins; `edges_s` of shape (k + 1,), the rest of shape (k,). `server` holds, by term, times in
    seconds and values (shares from 0 to 1), added up over replicas, thinned to BINS."""

    edges_s: Floats
    in_flight: Floats
    output_tok_s: Floats
    failed: Floats
    n: int
    spans: tuple[Span, ...]
    server: Mapping[str, tuple[Floats, Floats]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LengthGroup:
    """TTFT in ms of the n requests whose input is from `low` to `high` tokens."""

    low: int
    high: int
    n: int
    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class ByInput:
    """TTFT in ms against input tokens in one step: `sampled` pairs (tokens, ms) of shape (at most SAMPLED, 2) of n
    requests, and groups of about as many requests each."""

    n: int
    sampled: Floats
    groups: tuple[LengthGroup, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """All of a run that is binned. `curves[metric]` and `by_input` hold, by step, those that are drawn: of the `steps`
    that have an answer, MOST_STEPS of them evenly by load."""

    curves: Mapping[str, Mapping[int, Curve]]
    timeline: Timeline | None
    by_input: Mapping[int, ByInput]
    steps: int = 0


def series(c: Columns, summaries: Sequence[StepSummary], samples: Sequence[ServerSample] = ()) -> Series:
    """Everything drawn of a run, of the steps that are summarised."""
    ordered = [s.step for s in sorted(summaries, key=lambda s: (s.load, s.step)) if s.requests.get("ok")]
    drawn = spread(ordered, MOST_STEPS)
    kept = c.where(np.isin(c.step, [s.step for s in summaries]) & ~is_phase(c, "preflight"))
    measured = kept.where(is_phase(kept, "measured") & has_outcome(kept, "ok"))
    curves: dict[str, dict[int, Curve]] = {name: {} for name in DRAWN}
    lengths: dict[int, ByInput] = {}
    for step in drawn:
        mine = measured.where(measured.step == step)
        for name in DRAWN:
            if name == "itl":
                pooled = [metrics.itl(part).values for part in mine.parts()]
                values = np.concatenate(pooled) if pooled else np.empty(0)
            else:
                values = metrics.REQUEST_METRICS[name](mine)
            found = curve(values)
            if found is not None:
                curves[name][step] = found
        if (told := by_input(mine)) is not None:
            lengths[step] = told
    return Series(curves, timeline(kept, samples), lengths, len(ordered))


def spread(items: Sequence[int], most: int) -> list[int]:
    """At most so many of these, evenly, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    at = np.unique(np.linspace(0, len(items) - 1, most).round().astype(int))
    return [items[i] for i in at]


def curve(values: Floats, points: int = POINTS) -> Curve | None:
    """The distribution of these values, NaN left out, dense towards its upper end; None without any."""
    values = values[np.isfinite(values)]
    n = len(values)
    if not n:
        return None
    body = np.linspace(0.0, 1.0, points // 2)
    tail = 1 - np.logspace(np.log10(0.5), -4, points - len(body))
    shares = np.unique(np.concatenate((body, tail)).round(6))
    ranks = np.unique(np.clip(np.ceil(shares * n).astype(np.int64), 1, n))
    return Curve(n, np.maximum(np.sort(values)[ranks - 1], _LEAST), ranks / n)


# --- over time ------------------------------------------------------------------------------------------------------


def timeline(c: Columns, samples: Sequence[ServerSample] = (), bins: int = BINS) -> Timeline | None:
    """Requests in flight, output tokens/s and failures over the run's time; None where nothing was sent at a known
    time."""
    c = c.where((c.sent_ns != NULL) & ~c.flag("untimed"))
    if not len(c):
        return None
    start, end = int(c.sent_ns.min()), int(c.done_ns.max())
    if end <= start:
        return None
    edges = np.linspace(start, end, bins + 1)
    width_s = (end - start) / bins / 1e9
    tokens, _ = tokens_in(c.where(has_outcome(c, "ok", "cut")), edges)
    failed = np.histogram(c.done_ns[has_outcome(c, *FAILED_OUTCOMES)], edges)[0].astype(np.float64)
    spans = tuple(
        Span(int(step), int(c.sent_ns[mine].min()) / 1e9, int(c.done_ns[mine].max()) / 1e9)
        for step in np.unique(c.step)
        if (mine := c.step == step).any()
    )
    return Timeline(
        edges_s=edges / 1e9,
        in_flight=np.diff(_area(c.sent_ns, c.done_ns, edges)) / (width_s * 1e9),
        output_tok_s=tokens / width_s,
        failed=failed,
        n=len(c),
        spans=spans,
        server=_server(samples, start, end, bins),
    )


def _area(sent: Int64, done: Int64, edges: Floats) -> Floats:
    """The integral of requests in flight up to each edge (request·ns): Σ (t - sent)⁺ - Σ (t - done)⁺."""

    def ramp(stamps: Int64) -> Floats:
        ranked = np.sort(stamps) - edges[0]
        sums = np.concatenate(([0.0], np.cumsum(ranked, dtype=np.float64)))
        at = np.searchsorted(ranked, edges - edges[0])
        return np.asarray(at * (edges - edges[0]) - sums[at], dtype=np.float64)

    return ramp(sent) - ramp(np.maximum(done, sent))


def _server(samples: Sequence[ServerSample], start: int, end: int, bins: int) -> dict[str, tuple[Floats, Floats]]:
    found: dict[str, tuple[Floats, Floats]] = {}
    replicas = len({s.source for s in samples})
    edges = np.linspace(start, end, bins + 1)
    for term in SERVER_TERMS:
        told = [(s.at_ns, s.values[term]) for s in samples if term in s.values and start <= s.at_ns <= end]
        if not told:
            continue
        at, values = (np.array(x, dtype=np.float64) for x in zip(*told, strict=True))
        counts, _ = np.histogram(at, edges)
        sums, _ = np.histogram(at, edges, weights=values)
        there = counts > 0
        means = sums[there] / counts[there] * (1 if term.endswith("_share") else replicas)
        found[term] = (((edges[:-1] + edges[1:]) / 2e9)[there], means)
    return found


# --- against the input's length -------------------------------------------------------------------------------------


def by_input(ok: Columns) -> ByInput | None:
    """TTFT against input length of these requests; None where no two lengths are known."""
    tokens, ttft = metrics.input_tokens(ok), metrics.ttft(ok)
    known = (tokens != NULL) & (tokens > 0) & np.isfinite(ttft)
    tokens, ttft = tokens[known], np.maximum(ttft[known], _LEAST)
    if len(np.unique(tokens)) < 2:
        return None
    order = np.argsort(tokens, kind="stable")
    tokens, ttft = tokens[order], ttft[order]
    # Cuts never part requests of one length.
    cuts = np.unique(np.searchsorted(tokens, np.quantile(tokens, np.linspace(0, 1, GROUPS + 1)[1:-1]), side="right"))
    groups = []
    for some, times in zip(np.split(tokens, cuts), np.split(ttft, cuts), strict=True):
        if len(some):
            p50, p95 = (float(np.percentile(times, p)) for p in (50, 95))
            groups.append(LengthGroup(int(some[0]), int(some[-1]), len(some), p50, p95))
    rows = np.unique(np.linspace(0, len(tokens) - 1, SAMPLED).round().astype(int))
    return ByInput(len(tokens), np.stack((tokens[rows].astype(np.float64), ttft[rows]), axis=1), tuple(groups))
