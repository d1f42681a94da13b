"""How the objectives stand in one step: the share of requests beyond each limit, with what can be proven of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from ..log.columns import NULL, Bools, Columns, Int64
from ..records import FAILED_OUTCOMES, LEFT_OUT_OUTCOMES
from ..results import Decided, Estimate, Objective, ObjectiveCheck, Slo
from ..slo import ATTAINMENT, check_names, objective_name, slo_text
from ..stats import LEVEL, batch_count, binomial_bounds, exceedance_n, quantile, verdict_batches
from .metrics import REQUEST_METRICS, itl
from .window import has_outcome

Floats = NDArray[np.float64]
MARGIN = 0.05  # a percentile proven to lie within this share of its objective is marginal
Verdict = Literal["pass", "fail", "marginal", "inconclusive"]


def judged(c: Columns) -> Columns:
    """The requests a verdict looks at: all but cut and cancelled."""
    return c.where(~has_outcome(c, *LEFT_OUT_OUTCOMES))


def time_order(c: Columns, metric: str) -> Int64:
    """Row numbers in the order in which the metric became known, for batch means: first_token_at for the TTFTs,
    first_content_at for ttfc, else last_token_at; a request without that stamp by its end."""
    stamps = c.last_token_ns
    if metric in ("ttft", "ttft_scheduled"):
        stamps = c.first_token_ns
    elif metric == "ttfc":
        stamps = c.first_content_ns
    stamps = np.where(has_outcome(c, "ok") & (stamps != NULL), stamps, c.done_ns)
    return np.argsort(stamps, kind="stable")


def sample(c: Columns, objective: Objective) -> Floats:
    """The judged sample of an objective in ms and in time order; failures are +inf.

    An ok request for which the metric is null (a TPOT of one token) is no sample. If it is null for every ok request
    (a TTFT without streaming), there is no sample at all: failures alone cannot speak for a metric nobody measured. In
    the pooled ITLs a failure counts as often as an ok request does on average.
    """
    failed = has_outcome(c, *FAILED_OUTCOMES)
    if objective.metric == "itl" and objective.percentile is not None:
        return _itl_sample(c, failed)
    values = np.where(failed, np.inf, _request_values(c, objective))[time_order(c, objective.metric)]
    values = values[~np.isnan(values)]
    if np.isinf(values).all() and not failed.all():
        return np.empty(0)
    return values


def _request_values(c: Columns, objective: Objective) -> Floats:
    if objective.metric != "itl":
        return REQUEST_METRICS[objective.metric](c)
    worst = np.full(len(c), -np.inf)  # a bound on each request's ITLs is a bound on its largest
    pooled = itl(c)
    np.maximum.at(worst, pooled.rows, pooled.values)
    return np.where(np.isinf(worst), np.nan, worst)


def _itl_sample(c: Columns, failed: Bools) -> Floats:
    pooled = itl(c.where(has_outcome(c, "ok")))
    ok_rows = np.flatnonzero(has_outcome(c, "ok"))
    n_ok = len(np.unique(pooled.rows))
    if n_ok == 0 and len(ok_rows):
        return np.empty(0)
    each = max(1, round(len(pooled.values) / n_ok)) if n_ok else 1
    values = np.concatenate((pooled.values, np.full(each * int(failed.sum()), np.inf)))
    rows = np.concatenate((ok_rows[pooled.rows], np.repeat(np.flatnonzero(failed), each)))
    rank = np.empty(len(c), dtype=np.int64)
    rank[time_order(c, "itl")] = np.arange(len(c))
    return values[np.argsort(rank[rows], kind="stable")]


def conforming(c: Columns, slo: Slo) -> Bools | None:
    """Which of these (judged) requests met every per-request objective: shape (n,).

    A failure never conforms. A metric that is null for one ok request does not count against it. None where there is no
    such objective, no request, or an objective without any sample.
    """
    bounds = [o for o in slo.objectives if o.percentile is None]
    if not bounds or len(c) == 0 or any(len(sample(c, o)) == 0 for o in bounds):
        return None
    met = ~has_outcome(c, *FAILED_OUTCOMES)
    for o in bounds:
        met &= ~(_request_values(c, o) > o.limit_ms)
    return met


def check_objectives(
    c: Columns, slo: Slo, concurrency: int, looks: int = 1, *, ahead: float = 1.0, decided: Decided | None = None
) -> tuple[ObjectiveCheck, ...]:
    """Every objective of the SLO against the judged requests `c` of one step, in the order given; then, with several
    per-request objectives, their joint attainment.

    pass: the upper bound of the share beyond the limit is at most what the objective allows. fail: the lower bound is
    above it. marginal: neither, but the percentile is proven within 5 % of its limit. Bounds are one-sided at 2.5 %,
    divided by the number of looks taken at the data; for fail also by the number of objectives, as one false alarm
    among them is enough, while a pass needs them all. With `ahead` the verdicts are those that `ahead` times as many
    requests of the same kind would have. What a look at the running step had `decided` of the same objectives is not
    taken back where all of `c` are undecided.
    """
    alpha = (1 - LEVEL) / looks
    several = max(len(slo.objectives), 1)
    k = verdict_batches(len(c), concurrency)
    checks = []
    for o in slo.objectives:
        p = 100 * slo.attainment if o.percentile is None else o.percentile
        checks.append(_check(objective_name(o), o.metric, sample(c, o), p, o.limit_ms, k, alpha, several, ahead))
    met = conforming(c, slo)
    if met is not None and sum(o.percentile is None for o in slo.objectives) > 1:
        broken = np.where(met, 0.0, 1.0)[time_order(c, "e2e")]
        joint = _check(ATTAINMENT, ATTAINMENT, broken, 100 * slo.attainment, 0.5, k, alpha, several, ahead, False)
        checks.append(joint)
    if decided is None or decided.slo != slo_text(slo):
        return tuple(checks)
    return tuple(_as_decided(check, name, decided) for check, name in zip(checks, check_names(slo), strict=False))


def _as_decided(check: ObjectiveCheck, name: str, decided: Decided) -> ObjectiveCheck:
    before = decided.verdicts.get(name)
    if check.verdict != "inconclusive" or before is None:
        return check
    return replace(check, verdict=cast(Verdict, before), decided_n=decided.n)


def _check(
    name: str,
    metric: str,
    x: Floats,
    p: float,
    limit: float,
    k: int,
    alpha: float,
    several: int,
    ahead: float,
    marginal: bool = True,
) -> ObjectiveCheck:
    allowed = round(1 - p / 100, 12)
    if len(x) == 0:
        return ObjectiveCheck(name, metric, allowed, None, None, 0, "inconclusive")
    share = float((x > limit).mean())
    n_star = exceedance_n(x, limit, p, k)
    low, high = binomial_bounds(share, n_star)

    def bounds(edge: float, alpha: float) -> tuple[float, float]:
        return binomial_bounds(float((x > edge).mean()), ahead * exceedance_n(x, edge, p, k), alpha)

    verdict: Verdict = "inconclusive"
    if bounds(limit, alpha)[1] <= allowed:
        verdict = "pass"
    elif bounds(limit, alpha / several)[0] > allowed:
        verdict = "fail"
    elif marginal:
        near = bounds(limit * (1 + MARGIN), alpha)[1] <= allowed and bounds(limit * (1 - MARGIN), alpha)[0] > allowed
        verdict = "marginal" if near else "inconclusive"
    value = None if metric == ATTAINMENT else quantile(x, p / 100)
    return ObjectiveCheck(name, metric, allowed, Estimate(share, low, high), value, len(x), verdict)


def attainment(c: Columns, slo: Slo, concurrency: int) -> tuple[int, Estimate] | None:
    """`attainment` of the judged requests `c`: how many met every per-request objective, and their share with its
    interval on the effective sample; None as `conforming`."""
    met = conforming(c, slo)
    if met is None:
        return None
    broken = np.where(met, 0.0, 1.0)[time_order(c, "e2e")]
    n_star = exceedance_n(broken, 0.5, 100 * slo.attainment, batch_count(len(c), concurrency))
    low, high = binomial_bounds(float(broken.mean()), n_star)
    return int(met.sum()), Estimate(float(met.mean()), 1 - high, 1 - low)
