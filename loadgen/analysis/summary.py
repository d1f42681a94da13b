"""One step's records → its `StepSummary`. Reads as the list of a report's figures; each is defined where it is made."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from ..log.columns import NULL, TIMEOUTS, UNKNOWN, ColumnBuilder, Columns, Int64
from ..log.table import PART_EVENTS
from ..records import FAILED_OUTCOMES, FLAGS, OUTCOMES
from ..results import (
    CacheShare,
    Distribution,
    Estimate,
    Observation,
    PartSummary,
    ServerSample,
    Slo,
    StepSummary,
    Window,
)
from ..stats import batch_count, mean_interval, percentile, rate_interval
from . import metrics
from .accuracy import client_limit, error_bounds, exact_share
from .admission import admission_limit
from .bursts import bursts
from .caching import cached_counts
from .lengths import asked_lengths
from .objectives import attainment, check_objectives, judged, time_order
from .serverload import beside_server
from .steadiness import unsteadiness
from .turns import NAMES as TURNS
from .turns import turn_groups
from .window import (
    attempts_in,
    completions_in,
    has_outcome,
    is_phase,
    peak_in_flight,
    residence_ns,
    steady_window,
    tokens_in,
)

Floats = NDArray[np.float64]
PERCENTILES = (50.0, 90.0, 95.0, 99.0)


def summarise_run(
    c: Columns | ColumnBuilder,
    slo: Slo,
    observations: Iterable[Observation] = (),
    server: Sequence[ServerSample] = (),
    *,
    uncounted: Collection[int] = (),
    each: Callable[[Callable[[int], StepSummary], Sequence[int]], Iterable[StepSummary]] = map,
) -> list[StepSummary]:
    """All steps of a run in their order, also those of which only the driver knows, beside what the server told; the
    `uncounted` are left out. Of a builder's events, no more than one step's are unpacked at a time. `each` may do
    several steps at once."""
    seen = {o.step: o for o in observations}

    def one(step: int) -> StepSummary:
        mine = c.of_step(step) if isinstance(c, ColumnBuilder) else c
        return beside_server(summarise(mine, step, slo, seen.get(step)), mine, server)

    return list(each(one, sorted({*c.steps(), *seen} - set(uncounted))))


def summarise(
    c: Columns,
    step: int,
    slo: Slo,
    observation: Observation | None = None,
    *,
    looks: int | None = None,
    ahead: float = 1.0,
) -> StepSummary:
    """One step of a run. `looks` is how often its verdict is looked at, else as observed; it widens the verdicts'
    intervals only. With `ahead` the verdicts are those of a sample so many times larger."""
    c = c.where((c.step == step) & ~is_phase(c, "preflight"))
    concurrency = observation.concurrency if observation else int(c.concurrency[0]) if len(c) else 0
    measured = c.where(is_phase(c, "measured"))
    ok = measured.where(has_outcome(measured, "ok"))
    sample = judged(measured)
    watched = observation is not None and observation.window is not None and observation.window.seconds > 0
    untimed = bool(measured.flag("untimed").any())  # no place in time: latencies and nothing else
    window = observation.window if observation and watched else None if untimed else steady_window(c)
    residence = residence_ns(c, window) if window else 0
    integral = observation.in_flight_integral_ns if observation and watched else None
    in_flight = (residence if integral is None else integral) / (window.seconds * 1e9) if window else None
    turnover = concurrency or max(1, round(in_flight or 0))  # completions in about one residence time

    open_loop = observation is not None and observation.rate is not None
    rates, slices = _rates(c, window, turnover) if window else (_NO_RATES, np.empty(0))
    met = attainment(sample, slo, turnover)
    latency, estimated_itl = _latencies(ok, turnover)
    tpot50 = latency["tpot"].at(50.0)
    counts, cached = cached_counts(ok)
    health = observation.health if observation else None
    in_bursts = bursts(ok, health)
    limit = client_limit(ok, health, open_loop=open_loop, in_bursts=in_bursts is not None)
    asked = (ok.output_asked != NULL) & (ok.output_count != NULL)
    return StepSummary(
        step=step,
        concurrency=concurrency,
        window=window,
        requests={name: n for i, name in enumerate(OUTCOMES) if (n := int((measured.outcome == i).sum()))},
        flags={name: n for name in FLAGS if (n := int(measured.flag(name).sum()))},
        errors=_errors(measured if len(measured) else c),  # a step may die in its warm-up
        sent=len(measured),
        judged=len(sample),
        failed=int(has_outcome(measured, *FAILED_OUTCOMES).sum()),
        input_tokens_mean=_mean(metrics.input_tokens(ok)),
        input_deviation=_deviation(ok.input_server, ok.input_asked),
        output_tokens_mean=_mean(ok.output_count),
        output_asked_mean=_mean(ok.output_asked),
        output_throughput_classic=None if untimed else output_throughput_classic(ok),
        tokens_per_user=1000 / tpot50.value if tpot50 and tpot50.value > 0 else None,
        estimated_itl=estimated_itl,
        cached_share=_share(counts[cached], metrics.input_tokens(ok)[cached]),
        latency=latency,
        goodput=met[0] / window.seconds if met and window else None,
        attainment=met[1] if met else None,
        concurrency_mean=in_flight,
        concurrency_peak=observation.in_flight_peak
        if observation
        else peak_in_flight(c)
        if len(c) and not untimed
        else None,
        littles_law_residual=integral / residence - 1 if integral is not None and residence else None,
        objectives=check_objectives(
            sample,
            slo,
            turnover,
            looks or (observation.looks if observation else 1),
            ahead=ahead,
            decided=observation.decided if observation else None,
        ),
        ended=observation.ended if observation else "complete",
        rate=observation.rate if observation else None,
        max_in_flight=observation.max_in_flight if observation else None,
        held_back=observation.held_back if observation else 0,
        not_dispatched=observation.not_dispatched if observation else 0,
        detail=observation.detail if observation else "",
        health=health,
        error_ms=error_bounds(ok, health),
        exact_share=exact_share(ok) if health else None,
        client_limit=limit,
        workers=observation.workers if observation else 1,
        by_model=_by_part(c.models, c.model, c, window, turnover),
        by_peer=_by_part(c.peers, c.peer, c, window, turnover),
        by_turn=_by_part(TURNS, turn_groups(c), c, window, turnover),
        sessions=len(np.unique(measured.session[measured.session != NULL])),
        cache=CacheShare(block=observation.cache_block if observation else None),
        retries=int(measured.retries.sum()),
        admitted=admission_limit(c),
        bursts=None if limit else in_bursts,
        asked=asked_lengths(measured),
        longer=int((asked & (ok.output_count > ok.output_asked)).sum()),
        unsteady=unsteadiness(c, window, 0 if open_loop else concurrency, slices) if window else (),
        **rates,
    )


def _by_part(
    names: Sequence[str], code_of: Int64, c: Columns, window: Window | None, turnover: int
) -> tuple[PartSummary, ...]:
    """The part of the step that each model, or each peer, has, by the same definitions; nothing where there is but
    one."""
    codes = [code for code in range(len(names)) if (code_of == code).any()]
    if len(codes) < 2:
        return ()
    found = []
    measured = is_phase(c, "measured")
    for code in codes:
        mine = c.where(measured & (code_of == code))
        ok = mine.where(has_outcome(mine, "ok"))
        delivered = c.where((code_of == code) & has_outcome(c, "ok", "cut"))
        tokens = float(tokens_in(delivered, _edges(window, 1))[0][0]) if window else 0.0
        k = batch_count(len(ok), round(turnover * len(mine) / max(int(measured.sum()), 1)))
        counts, cached = cached_counts(ok)
        values = {name: metrics.REQUEST_METRICS[name](ok)[time_order(ok, name)] for name in ("ttft", "tpot")}
        found.append(
            PartSummary(
                name=names[code],
                sent=len(mine),
                ok=len(ok),
                failed=int(has_outcome(mine, *FAILED_OUTCOMES).sum()),
                output_throughput=tokens / window.seconds if window and len(ok) else None,
                latency={name: distribution(v[~np.isnan(v)], k) for name, v in values.items()},
                cached_share=_share(counts[cached], metrics.input_tokens(ok)[cached]),
            )
        )
    return tuple(found)


class _Rates(TypedDict):
    output_throughput: Estimate | None
    output_throughput_failed: float | None
    total_throughput: float | None
    request_throughput: Estimate | None
    completion_rate: Estimate | None
    attempt_rate: float | None
    estimated_token_share: float


_NO_RATES: _Rates = {
    "output_throughput": None,
    "output_throughput_failed": None,
    "total_throughput": None,
    "request_throughput": None,
    "completion_rate": None,
    "attempt_rate": None,
    "estimated_token_share": 0.0,
}


def _rates(c: Columns, window: Window, concurrency: int) -> tuple[_Rates, Floats]:
    """`output_throughput`, `completion_rate` and what stands beside them, over the steady window; and the tokens in
    equal slices of it.

    All phases of the step count: a token of a warm-up request that is still running when the window opens, or of a
    filler, arrived in the window and took its share of the server. Taking the measured phase alone would miss the work
    on the requests in flight at the start, up to `concurrency` of them, and show a short window's rates too low. For
    the same reason `completion_rate` counts a request completed ok in the window whenever it was sent;
    `request_throughput` is that of the measured phase alone.
    """
    ok = c.where(has_outcome(c, "ok"))
    done = int(completions_in(ok, _edges(window, 1))[0])
    edges = _edges(window, max(batch_count(done, concurrency), 1))
    delivered = c.where(has_outcome(c, "ok", "cut"))
    tokens, guessed = tokens_in(delivered, edges)
    failed, _ = tokens_in(c.where(has_outcome(c, *FAILED_OUTCOMES)), _edges(window, 1))
    total = float(tokens.sum())
    ended = (ok.done_ns >= window.start_ns) & (ok.done_ns <= window.end_ns)
    prompt = metrics.input_tokens(ok)[ended]
    prompt = prompt[prompt != NULL]
    # No answer, no headline: a rate of zero beside a failed step reads as a slow server.
    output = rate_interval(tokens, window.seconds) if total > 0 and len(ok) else None
    rates: _Rates = {
        "output_throughput": output,
        "output_throughput_failed": float(failed[0]) / window.seconds,
        "total_throughput": output.value + int(prompt.sum()) / window.seconds if output and len(prompt) else None,
        "request_throughput": rate_interval(completions_in(ok.where(is_phase(ok, "measured")), edges), window.seconds),
        "completion_rate": rate_interval(completions_in(ok, edges), window.seconds),
        "attempt_rate": attempts_in(c, window) / window.seconds,
        "estimated_token_share": float(guessed.sum()) / total if total > 0 else 0.0,
    }
    return rates, tokens


def completed_throughput(c: Columns, window: Window, concurrency: int) -> Estimate:
    """Output tokens of the requests completed ok in the window / window: `output_throughput` as far as it can be told
    without the events, for a look at a step that still runs."""
    ok = c.where(has_outcome(c, "ok") & (c.done_ns >= window.start_ns) & (c.done_ns <= window.end_ns))
    edges = _edges(window, max(batch_count(len(ok), concurrency), 1))
    tokens = np.where(ok.output_count == NULL, 0, ok.output_count).astype(np.float64)
    return rate_interval(np.histogram(ok.done_ns, edges, weights=tokens)[0], window.seconds)


def _edges(window: Window, k: int) -> Floats:
    return np.linspace(window.start_ns, window.end_ns, k + 1)


def output_throughput_classic(ok: Columns) -> float | None:
    """`output_throughput_classic`: Σ output_tokens / (last last_token_at - first sent_at) over measured ok requests."""
    known = (ok.output_count != NULL) & (ok.last_token_ns != NULL) & (ok.sent_ns != NULL)
    if not known.any():
        return None
    span = int(ok.last_token_ns[known].max()) - int(ok.sent_ns[known].min())
    return int(ok.output_count[known].sum()) / (span / 1e9) if span > 0 else None


def latencies(ok: Columns, concurrency: int) -> dict[str, Distribution]:
    """Every latency metric of these requests, at so many in flight."""
    return _latencies(ok, concurrency)[0]


def request_latencies(ok: Columns, concurrency: int, names: Iterable[str]) -> dict[str, Distribution]:
    """Those that each request has one value of."""
    k = batch_count(len(ok), concurrency)
    found: dict[str, Distribution] = {}
    for name in names:
        values = metrics.REQUEST_METRICS[name](ok)[time_order(ok, name)]
        found[name] = distribution(values[~np.isnan(values)], k)
    return found


def _latencies(ok: Columns, concurrency: int) -> tuple[dict[str, Distribution], bool]:
    """The same, and whether any ITL was estimated."""
    k = batch_count(len(ok), concurrency)
    found = request_latencies(ok, concurrency, metrics.REQUEST_METRICS)
    itl: list[Floats] = []
    chunks: list[Floats | None] = []  # None: as the ITL of the same part
    estimated = False
    order = time_order(ok, "e2e")
    if metrics.one_each(ok):
        found["itl"] = found["inter_chunk"] = distribution(_gaps(ok, order), k)
        return found, False
    for part in ok.parts(order):
        gaps = metrics.inter_chunk_values(part)
        if metrics.one_each(part):
            itl.append(gaps)
            chunks.append(None)
            continue
        pool = metrics.itl(part)
        estimated |= pool.estimated
        itl.append(pool.values)
        chunks.append(gaps)
    alike = all(gaps is None for gaps in chunks)
    other = [] if alike else [a if b is None else b for a, b in zip(itl, chunks, strict=True)]
    found["itl"] = distribution(_joined(itl), k)
    found["inter_chunk"] = found["itl"] if alike else distribution(_joined(other), k)
    return found, estimated


def _gaps(ok: Columns, order: Int64) -> Floats:
    """All gaps between events in ms, of requests in this order, as `metrics.inter_chunk`; some at a time, so that none
    is held twice."""
    counts = np.diff(ok.event_offsets)[order]
    whole = np.empty(int(np.maximum(counts - 1, 0).sum()))
    at = 0
    cuts = np.searchsorted(np.cumsum(counts), np.arange(PART_EVENTS, int(counts.sum()), PART_EVENTS))
    for rows, n in zip(np.split(order, cuts), np.split(counts, cuts), strict=True):
        stamps = ok.events_at(rows)["event_ns"]
        later = np.ones(len(stamps), dtype=np.bool_)
        later[(np.cumsum(n) - n)[n > 0]] = False
        upto = at + int(np.count_nonzero(later))
        np.divide(np.diff(stamps)[later[1:]], 1e6, out=whole[at:upto])
        at = upto
    return whole


def _joined(parts: list[Floats]) -> Floats:
    """Empties the list: no value is held twice for longer than it takes."""
    whole = np.concatenate(parts) if parts else np.empty(0)
    parts.clear()
    return whole


def distribution(values: Floats, k: int) -> Distribution:
    """Mean, spread and percentiles of time-ordered values in ms; `std` divides by n, as NumPy does."""
    if len(values) == 0:
        return Distribution(0, None, None, None, ())
    # Of a step's every gap: what is made on the way to the spread has room for the sorted ones. As `values.std()`.
    ranked = values - values.mean()
    ranked *= ranked
    std = math.sqrt(float(ranked.sum()) / len(values))
    ranked[:] = values
    ranked.sort()
    found = (percentile(values, p, k, ranked) for p in PERCENTILES)
    return Distribution(
        n=len(values),
        mean=mean_interval(values, k),
        std=std,
        max=float(ranked[-1]),
        percentiles=tuple(q for q in found if q is not None),
    )


def _mean(counts: Int64) -> float | None:
    known = counts[counts != NULL]
    return float(known.mean()) if len(known) else None


def _deviation(counted: Int64, asked: Int64) -> float | None:
    """By how much the counts are above what was asked for, in the mean of those that have both."""
    both = (counted != NULL) & (asked != NULL) & (asked > 0)
    return float(counted[both].mean() / asked[both].mean() - 1) if both.any() else None


def _share(part: Int64, whole: Int64) -> float | None:
    known = whole != NULL
    total = int(whole[known].sum())
    return int(part[known].sum()) / total if total > 0 else None


def _errors(c: Columns) -> tuple[tuple[str, int], ...]:
    """What failed, most frequent first; failures of one kind and code are one entry, with the first one's words."""
    counts: Counter[tuple[object, ...]] = Counter()
    words: dict[tuple[object, ...], str] = {}
    for i in np.flatnonzero(has_outcome(c, *FAILED_OUTCOMES)):
        outcome, failure = OUTCOMES[c.outcome[i]], c.errors[i]
        timeout = TIMEOUTS[c.timeout[i]] if c.timeout[i] != UNKNOWN else None
        key = (outcome, timeout, failure.kind if failure else None, failure.code if failure else None)
        counts[key] += 1
        if key in words:
            continue
        if outcome == "timeout":
            what = f"timeout {timeout or ''}".strip().replace("_", " ")
        elif failure is None or outcome in ("empty", "incomplete"):
            what = outcome
        else:
            what = failure.kind if failure.code is None else f"{failure.kind} {failure.code}"
        message = " ".join(failure.message.split()) if failure else ""
        words[key] = f"{what}: {message}"[:200] if message else what
    return tuple((words[key], n) for key, n in counts.most_common())
