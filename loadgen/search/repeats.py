"""Levels measured several times over, in turn: what their windows say together, and which window is next. Pure.

A server that drifts or stalls differs from one minute to the next by more than the batches of one window show. Windows
of one level that lie far apart in time, with those of the other levels between them, do show it. So each window counts
as one value here, and every interval comes from how much the windows differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..results import Estimate, LevelResult, Verdict
from ..stats import LEVEL, RATE_FLOOR, binomial_bounds, homogeneous, t_quantile
from .levels import BAND, Latest, bracket, certain, latest_of, log_throughput, marginal, two_doublings_below
from .verdict import ERRORS

LEAST = 5  # windows of a level: fewer do not tell how much windows differ
MOST = 5  # levels on which an answer rests


def climb_of(history: Sequence[LevelResult]) -> Sequence[LevelResult]:
    """The windows before any level was repeated. A baseline that is measured at full length is not repeated."""
    seen: set[int] = set()
    for place, level in enumerate(history):
        if level.concurrency in seen:
            return history[:place]
        if level.verdict != "baseline":
            seen.add(level.concurrency)
    return history


def answering(latest: Latest) -> tuple[int, ...]:
    """The levels on which the answer rests: of an objective the ends of its brackets and the limit; else the last two
    levels, and the one that a plateau is told by."""
    near, far = bracket(latest)
    found = {near, far, *certain(latest), marginal(latest)} - {None}
    if far is None and marginal(latest) is None:
        found = {*sorted(latest)[-2:], two_doublings_below(latest)}
    return tuple(sorted(level for level in found if level is not None))


def in_turn(levels: Sequence[int], repeats: int) -> tuple[int, ...]:
    """So many rounds of the levels, every other one backwards, so that a steady drift adds to none of them."""
    return tuple(n for number in range(repeats) for n in (levels if number % 2 == 0 else reversed(levels)))


def pooled(history: Sequence[LevelResult]) -> Latest:
    """Each level's windows as one result; of a level measured once, that window."""
    by_level: dict[int, list[LevelResult]] = {}
    for level in history:
        by_level.setdefault(level.concurrency, []).append(level)
    return {
        n: pool(kept) if len(kept := [w for w in windows if w.verdict != "baseline"]) > 1 else latest_of(windows)[n]
        for n, windows in by_level.items()
    }


def pool(windows: Sequence[LevelResult]) -> LevelResult:
    """At least two windows of one level as one result.

    Throughput: the mean of its logs, with Student's t on their spread. An objective: the mean share of requests beyond
    its limit is judged at the effective sample p(1-p) / (s²/k) · (1.96 / t(k-1))² of k windows whose shares have the
    variance s², which is Korn and Graubard's with the windows as batches; `marginal` where the interval of the mean log
    of the percentile lies within 5 % of the limit. One-sided at 2.5 %, for a fail divided by the number of objectives.
    """
    last, k = windows[-1], len(windows)
    names = [check.objective for check in last.checks]
    said = {name: _verdict(windows, name, len(names)) for name in names}
    beyond = any(_share(windows, name)[0] > _allowed(windows, name) for name in names)
    failed = tuple(name for name, verdict in said.items() if verdict == "fail")
    verdict: Verdict = last.verdict
    broke: tuple[str, ...] = last.broke
    if names:
        undecided = (ERRORS,) if any(ERRORS in w.broke for w in windows) else ()
        broke = failed or (*(name for name, one in said.items() if one != "pass"), *undecided)
        verdict = "fail" if failed else "pass" if not broke else "marginal"
        if not failed and ("inconclusive" in said.values() or undecided):
            verdict = "inconclusive"
    return replace(
        last,
        output_throughput=_throughput(windows),
        verdict=verdict,
        broke=broke,
        p_hat_beyond=beyond,
        error_rate=sum(w.error_rate for w in windows) / k,
        of_limit={name: math.exp(_logs(windows, name)[0]) for name in last.of_limit},
        goodput=_mean([w.goodput for w in windows]),
        completed=_mean([w.completed for w in windows]),
        windows=k,
    )


def differ(history: Sequence[LevelResult]) -> bool:
    """Do the windows of any level differ in throughput by more than their own intervals allow?"""
    levels = {level.concurrency for level in history}
    of = {n: [w for w in history if w.concurrency == n and w.verdict != "baseline"] for n in levels}
    several = [windows for windows in of.values() if len(windows) > 1]
    for windows in several:
        known = [log for w in windows if (log := log_throughput(w)) is not None]
        if len(known) > 1 and not homogeneous([y for y, _ in known], [half for _, half in known], len(several)):
            return True
    return False


def _verdict(windows: Sequence[LevelResult], name: str, several: int) -> Verdict:
    share, n = _share(windows, name)
    allowed = _allowed(windows, name)
    if n <= 0:
        return "inconclusive"
    if binomial_bounds(share, n, 1 - LEVEL)[1] <= allowed:
        return "pass"
    if binomial_bounds(share, n, (1 - LEVEL) / several)[0] > allowed:
        return "fail"
    mean, half = _logs(windows, name)
    near = math.log1p(-BAND) <= mean - half and mean + half <= math.log1p(BAND)
    return "marginal" if near else "inconclusive"


def _share(windows: Sequence[LevelResult], name: str) -> tuple[float, float]:
    """(mean share of requests beyond the limit, effective sample); (0, 0) where a window has no sample."""
    checks = [check for w in windows for check in w.checks if check.objective == name]
    shares = [check.exceedance.value for check in checks if check.exceedance is not None]
    k = len(shares)
    if k < max(2, len(windows)):
        return 0.0, 0.0
    p = sum(shares) / k
    spread = sum((share - p) ** 2 for share in shares) / (k - 1) / k
    most = float(sum(check.n for check in checks))
    n = min(most, p * (1 - p) / spread) if spread > 0 else most
    return p, n * (1.96 / t_quantile((1 + LEVEL) / 2, k - 1)) ** 2


def _allowed(windows: Sequence[LevelResult], name: str) -> float:
    return next(check.allowed for check in windows[-1].checks if check.objective == name)


def _logs(windows: Sequence[LevelResult], name: str) -> tuple[float, float]:
    """(mean log of the percentile over its limit, half-width of its 95 % interval); infinite where not known."""
    ratios = [w.of_limit.get(name, math.inf) for w in windows]
    if any(not 0 < ratio < math.inf for ratio in ratios):
        return (math.inf if math.inf in ratios else -math.inf), math.inf
    return _mean_log(ratios)


def _throughput(windows: Sequence[LevelResult]) -> Estimate | None:
    known = [w.output_throughput.value for w in windows if w.output_throughput is not None]
    known = [value for value in known if value > 0]
    if len(known) < 2:
        return windows[-1].output_throughput
    mean, half = _mean_log(known)
    half = max(half, RATE_FLOOR)
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _mean_log(values: Sequence[float]) -> tuple[float, float]:
    logs, k = [math.log(value) for value in values], len(values)
    mean = sum(logs) / k
    spread = math.sqrt(sum((y - mean) ** 2 for y in logs) / (k - 1) / k)
    return mean, t_quantile((1 + LEVEL) / 2, k - 1) * spread


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
