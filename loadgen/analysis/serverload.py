"""What a server told of a step, and whether its count of requests agrees with the driver's (Little's law). Pure.

Both count the same requests, but not at the same place: the driver from the first byte sent to the end of the answer,
the server from the moment its engine knows of a request until its last step. How far the two may lie apart without a
fault, in requests, is the rate of requests times

- the way there and back: no longer than a whole scrape takes (the median one);
- what the server itself says it had a request for outside of its engine: E2E - (queue + prefill + decode); or, where
  that is more, how far its count lies below its own E2E times: a server that is asked between two steps of a busy CPU
  tells the count of a moment that is not like the others, while each request is in those times as long as it was there;
- what comes after the last token: the mean of done_at - last_token_at;
- one step of the engine, which brings its count up to date but once a step: the median gap between events.

To this comes what the driver counts that was not on its way at all, by its own residual.

Beyond that the server's mean is a sample's, with an interval from batch means; a disagreement is more than both
together and 5 % of the driver's count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..log.columns import NULL, Columns
from ..results import Estimate, ServerSample, ServerView, StepSummary, Window
from ..stats import batch_count, mean_interval
from .caching import with_cache
from .serverside import COUNTERS
from .window import has_outcome, is_phase

Floats = NDArray[np.float64]
TOLERANCE = 0.05  # of the driver's count

_Values = Mapping[str, float]


def beside_server(summary: StepSummary, c: Columns, samples: Iterable[ServerSample]) -> StepSummary:
    """The summary of a step with what its server told of it: `server` and `littles_law_server_residual`. `c` and
    `samples` may hold other steps too."""
    samples = list(samples)
    if summary.window is None:
        return with_cache(summary, c, samples)
    ok = c.where((c.step == summary.step) & has_outcome(c, "ok") & ~is_phase(c, "preflight"))
    ended = ok.last_token_ns != NULL
    tail_s = float((ok.done_ns - ok.last_token_ns)[ended].mean()) / 1e9 if ended.any() else 0.0
    gaps = summary.latency.get("inter_chunk")
    gap = gaps.at(50.0) if gaps else None
    mine = [sample for sample in samples if sample.step == summary.step]
    server = view(mine, summary.window, summary.attempt_rate, tail_s, gap.value / 1e3 if gap else 0.0)
    held, ours = server.in_flight if server else None, summary.concurrency_mean
    if server is not None and server.edge_requests is not None and ours and summary.littles_law_residual is not None:
        own = abs(summary.littles_law_residual) * ours
        server = replace(server, edge_requests=server.edge_requests + own)
    residual = held.value / ours - 1 if held is not None and ours else None
    return with_cache(replace(summary, server=server, littles_law_server_residual=residual), c, samples)


def view(
    samples: Iterable[ServerSample], window: Window, rate: float | None, tail_s: float, gap_s: float
) -> ServerView | None:
    """What the samples of a step say of its window; None without one that lies in it. `rate` is the step's requests/s,
    `tail_s` the mean time from the last token to the end, `gap_s` the median gap between events."""
    inside = [s for s in samples if window.start_ns <= s.at_ns <= window.end_ns]
    if not inside:
        return None
    by: dict[str, list[ServerSample]] = {sample.source: [] for sample in inside}
    for sample in inside:
        if sample.error is None:
            by[sample.source].append(sample)
    told = [sorted(mine, key=lambda s: s.at_ns) for mine in by.values() if mine]
    silent = len(by) - len(told)  # replicas of which nothing is known in this window

    def load(term: str) -> list[Estimate]:
        return [found for mine in told if (found := gauge(mine, term, window)) is not None]

    front = load("in_flight")  # a front end's count has its engines' in it
    fronts = [mine for mine in told if any("in_flight" in s.values for s in mine)]
    replicas = [mine for mine in told if any("running" in s.values for s in mine)]
    whole = front or [f for mine in replicas if (f := gauge(mine, _held, window)) is not None]
    complete = not silent and (bool(front) or len(whole) == len(replicas))
    took = [float(np.median([s.took_us for s in mine])) / 1e6 for mine in told]
    times = {what: _mean_ms(told, what) for what in ("queue", "prefill", "decode", "ttft", "e2e")}
    in_flight, counted = _added(whole) if complete else None, fronts or replicas
    # Of those alone whose count it is: an engine's requests are its front end's too.
    timed = _rate(counted, "e2e_s_sum")
    edge = rate * (max(took) + tail_s + gap_s) if rate is not None and took else None
    if rate is not None and edge is not None:
        below = timed - in_flight.value if timed is not None and in_flight is not None else 0.0
        edge += max(rate * _outside_s(times), below)
    kv = [(f, max(s.values.get("kv_use_share", 0.0) for s in mine)) for mine in told if (f := _kv(mine, window))]
    return ServerView(
        scrapes=sum(map(len, told)),
        failed=sum(sample.error is not None for sample in inside),
        in_flight=in_flight,
        running=_total(load("running")) if not silent else None,
        waiting=_total(load("waiting")) if not silent else None,
        edge_requests=edge,
        kv_use_share=sum(f.value for f, _ in kv) / len(kv) if kv else None,
        kv_use_peak_share=max(peak for _, peak in kv) if kv else None,
        kv_tokens=_total(load("kv_tokens")),
        preemptions=_growth(told, "preemptions"),
        rejected=_growth(told, "rejected"),
        prefix_hit_share=_ratio(told, "prefix_hit_tokens", "prefix_query_tokens"),
        spec_accepted_share=_ratio(told, "spec_accepted_tokens", "spec_draft_tokens"),
        prompt_tok_s=_rate(told, "prompt_tokens"),
        generation_tok_s=_rate(told, "generation_tokens"),
        queue_ms=times["queue"],
        prefill_ms=times["prefill"],
        decode_ms=times["decode"],
        ttft_ms=times["ttft"],
        e2e_ms=times["e2e"],
        gpu_use_percent=_average(load("gpu_use_percent")),
        parts=_parts(replicas, window),
    )


def disagrees(summary: StepSummary) -> bool:
    """Do the server's count and the driver's lie further apart than `TOLERANCE`, the edge and the interval explain?
    Never where no interval could be established."""
    server, ours = summary.server, summary.concurrency_mean
    if server is None or server.in_flight is None or server.in_flight.low is None or server.edge_requests is None:
        return False
    if not ours or summary.littles_law_server_residual is None:
        return False
    half = server.in_flight.value - server.in_flight.low
    return abs(server.in_flight.value - ours) > TOLERANCE * ours + server.edge_requests + half


def gauge(
    samples: Sequence[ServerSample], term: str | Callable[[_Values], float | None], window: Window
) -> Estimate | None:
    """The time-weighted mean over the window: each sample stands for the time that is nearest to it. Its interval is
    that of the mean of as many values, from batch means in their order. None without a sample that tells."""

    def told(values: _Values) -> float | None:
        return values.get(term) if isinstance(term, str) else term(values)

    known = [(s.at_ns, v) for s in samples if (v := told(s.values)) is not None]
    if not known:
        return None
    at = np.array([t for t, _ in known], dtype=np.float64)
    values = np.array([v for _, v in known], dtype=np.float64)
    edges = np.concatenate(([window.start_ns], (at[1:] + at[:-1]) / 2, [window.end_ns]))
    mean = float(np.average(values, weights=np.diff(edges))) if edges[-1] > edges[0] else float(values.mean())
    spread = mean_interval(values, batch_count(len(values), 1))
    if spread is None or spread.low is None:
        return Estimate(mean)
    half = spread.value - spread.low
    return Estimate(mean, mean - half, mean + half)


def _held(values: _Values) -> float | None:
    return values["running"] + values["waiting"] if "running" in values and "waiting" in values else None


def _kv(samples: Sequence[ServerSample], window: Window) -> Estimate | None:
    return gauge(samples, "kv_use_share", window)


def _added(parts: Sequence[Estimate]) -> Estimate | None:
    """The sum of independent means; without an interval where one of them has none."""
    if not parts:
        return None
    total = sum(part.value for part in parts)
    halves = [part.value - part.low for part in parts if part.low is not None]
    if len(halves) < len(parts):
        return Estimate(total)
    half = float(np.sqrt(np.square(halves).sum()))
    return Estimate(total, total - half, total + half)


def _total(parts: Sequence[Estimate]) -> float | None:
    return sum(part.value for part in parts) if parts else None


def _average(parts: Sequence[Estimate]) -> float | None:
    return sum(part.value for part in parts) / len(parts) if parts else None


def _parts(replicas: Sequence[Sequence[ServerSample]], window: Window) -> dict[str, float]:
    """The mean in flight of each replica, else of each engine; of none where there is but one."""
    if len(replicas) > 1:
        means = {mine[0].source: gauge(mine, _held, window) for mine in replicas}
    elif replicas:
        names = sorted({engine for sample in replicas[0] for engine in sample.engines})
        means = {
            name: gauge(
                [_only(sample, name) for sample in replicas[0] if name in sample.engines],
                _held,
                window,
            )
            for name in names
        }
    else:
        means = {}
    return {name: mean.value for name, mean in means.items() if mean is not None}


def _only(sample: ServerSample, engine: str) -> ServerSample:
    return ServerSample(sample.at_ns, sample.took_us, sample.step, sample.source, sample.engines[engine])


def _outside_s(times: Mapping[str, float | None]) -> float:
    """How long the server had a request outside of its engine; 0 where it does not tell all the parts."""
    e2e, parts = times["e2e"], [times[what] for what in ("queue", "prefill", "decode")]
    if e2e is None or any(part is None for part in parts):
        return 0.0
    return max(0.0, e2e - sum(part or 0.0 for part in parts)) / 1e3


# --- counters -------------------------------------------------------------------------------------------------------


def _grown(samples: Sequence[ServerSample], term: str) -> tuple[float, float] | None:
    """(how much a counter grew between the first and the last sample that tell it, the seconds between them). What it
    lost in a restart of the server is not held against it. None with fewer than two."""
    assert term in COUNTERS
    known = [(s.at_ns, s.values[term]) for s in samples if term in s.values]
    if len(known) < 2 or known[-1][0] <= known[0][0]:
        return None
    grown = sum(max(0.0, b - a) for (_, a), (_, b) in pairwise(known))
    return grown, (known[-1][0] - known[0][0]) / 1e9


def _all(told: Sequence[Sequence[ServerSample]], term: str) -> list[tuple[float, float]]:
    return [grown for mine in told if (grown := _grown(mine, term)) is not None]


def _growth(told: Sequence[Sequence[ServerSample]], term: str) -> float | None:
    found = _all(told, term)
    return sum(amount for amount, _ in found) if found else None


def _rate(told: Sequence[Sequence[ServerSample]], term: str) -> float | None:
    found = _all(told, term)
    return sum(amount / seconds for amount, seconds in found) if found else None


def _ratio(told: Sequence[Sequence[ServerSample]], part: str, whole: str) -> float | None:
    above, below = _growth(told, part), _growth(told, whole)
    return above / below if above is not None and below else None


def _mean_ms(told: Sequence[Sequence[ServerSample]], what: str) -> float | None:
    mean_s = _ratio(told, f"{what}_s_sum", f"{what}_s_count")
    return None if mean_s is None else 1e3 * mean_s
