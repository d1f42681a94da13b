"""The next load of a sweep, or its end: one pure function of the levels measured so far.

Rules, in this order:
1. A level that says nothing more can be learnt (client limit, too many failures, budget, interrupt) ends the sweep.
2. A given list of levels is measured to its end.
3. Without a broken objective the load rises by `factor`, until throughput stops growing or the highest level is done.
4. The first level that fails gets a second window of the same load, and the second decides. Then the gap between the
   highest level that passes and the lowest that fails is halved on the log scale, `refine` times or down to the
   resolution. A fail that ends up as the edge of the answer gets its second window too.
An undecided level is never counted as held or broken. By its point estimate it may show that an objective is what ends
the rise, not the plateau: then rungs above it are measured until one fails.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import UsageError
from ..records import Estimate, LevelResult, NextLevel, Stop
from .verdict import ERRORS

_ENDED = {"client": "client_bound", "errors": "errors", "unauthorized": "errors"}  # any other ending is its own reason
_Z = 1.96  # half a printed 95 % interval, which already carries Student's t, is _Z standard errors wide
ADMISSION = "errors:admission_limit"
DETAIL_CHARS = 200  # of why a step was ended, in a sentence: the words may be a server's


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """How a sweep climbs. `gain` is the growth of throughput per doubling of load below which it no longer pays;
    `resolution` the ratio of broken to held level that is fine enough; `refine` the most levels spent on reaching it.

    Raises UsageError for a plan that cannot be meant.
    """

    start: int = 1
    factor: float = 2.0
    max_level: int = 256
    levels: tuple[int, ...] | None = None
    has_slo: bool = False
    gain: float = 0.05
    confirm: bool = True
    resolution: float = 1.05
    refine: int = 4

    def __post_init__(self) -> None:
        if self.levels is not None:
            if not self.levels or min(self.levels) < 1:
                raise UsageError("The list of levels needs whole numbers above zero.", "write it as in --levels 1,8,64")
            return
        if self.start < 1:
            raise UsageError(f"A sweep cannot start at {self.start}.", "give --start a whole number above zero")
        if not 1 < self.factor < math.inf:
            raise UsageError(f"A factor of {self.factor:g} does not raise the load.", "give --factor a number above 1")
        if self.max_level < self.start:
            raise UsageError(
                f"The highest level, {self.max_level}, is below the first, {self.start}.",
                "raise --max-level or lower --start",
            )


def parse_levels(text: str) -> tuple[int, ...]:
    """`1,2,8` → (1, 2, 8); UsageError naming the part that is no level."""
    levels = []
    for part in text.replace(",", " ").split():
        if not part.isascii() or not part.isdigit() or int(part) < 1:
            raise UsageError(f"'{part}' is not a level of concurrency.", "write whole numbers, as in --levels 1,8,64")
        levels.append(int(part))
    if not levels:
        raise UsageError("The list of levels is empty.", "write whole numbers, as in --levels 1,8,64")
    return tuple(levels)


def decide(history: Sequence[LevelResult], plan: SweepPlan) -> NextLevel | Stop:
    """What to do after `history`, the measured windows in their order."""
    latest = {level.concurrency: level for level in history}  # of several windows the last decides
    if history and (reason := ended_by(history[-1])):
        below = [n for n, level in latest.items() if n < history[-1].concurrency and ended_by(level) is None]
        if reason == "errors" and history[-1].admitted and below:
            reason = ADMISSION
        return _stop(reason, latest, plan, last=history[-1])
    if plan.levels is not None:
        if len(history) < len(plan.levels):
            return NextLevel(plan.levels[len(history)], f"level {len(history) + 1} of {len(plan.levels)}")
        unheld = plan.has_slo and (_edge(latest) is not None or _marginal(latest))
        reason = (_broken(latest) or "slo") if unheld else _flattened(latest, plan) or "max_level"
        return _stop(reason, latest, plan)
    if not history:
        return NextLevel(plan.start, "baseline")
    if plan.has_slo:
        if _marginal(latest):
            return _stop(_broken(latest) or "slo", latest, plan)
        if (edge := _edge(latest)) is not None:
            return _narrow(edge, latest, Counter(level.concurrency for level in history), plan)
    top = max(latest)
    if reason := _flattened(latest, plan):
        return _stop(reason, latest, plan)
    if top >= plan.max_level:
        return _stop("max_level", latest, plan)
    return NextLevel(_above(top, plan), "no objective broke yet" if plan.has_slo else "throughput may still grow")


def how_many_failed(level: LevelResult) -> str:
    """The share of failures, or why the step was ended for them, which may have been before anything was measured."""
    return level.detail[:DETAIL_CHARS] or f"{100 * level.error_rate:.3g} %"


def admits(limit: int) -> str:
    """The beginning of a sentence on a server's admission limit."""
    many = "1 request" if limit == 1 else f"{limit:,} requests"
    return f"The server's admission limit: it answers about {many} at once and refuses more"


def ended_by(level: LevelResult) -> str | None:
    """The stop reason of a level after which nothing more can be learnt; None where one may go on."""
    if level.verdict == "invalid":
        return "client_bound"
    if level.verdict == "fail" and ERRORS in level.broke:
        return "errors"
    return None if level.ended == "complete" else _ENDED.get(level.ended, level.ended)


def _above(level: int, plan: SweepPlan) -> int:
    return min(max(level + 1, round(level * plan.factor)), plan.max_level)


# --- objectives -----------------------------------------------------------------------------------------------------


def _edge(latest: Mapping[int, LevelResult]) -> int | None:
    """The lowest level that counts as too much: one that fails, or an undecided one that leans so while a level below
    leans the other way. A lone undecided start is no edge: a few requests at the baseline must not end a sweep."""
    within = False
    for level in sorted(latest):
        result = latest[level]
        if result.verdict == "fail" or (result.p_hat_beyond and within):
            return level
        within = within or not result.p_hat_beyond
    return None


def _narrow(edge: int, latest: Mapping[int, LevelResult], windows: Counter[int], plan: SweepPlan) -> NextLevel | Stop:
    top = max(latest)
    fails = [level for level, result in latest.items() if result.verdict == "fail"]
    if not fails and top < plan.max_level:
        return NextLevel(_above(top, plan), f"{edge} is undecided: look for a level that fails for certain")
    broke = min(fails, default=None)
    unconfirmed = broke is not None and plan.confirm and windows[broke] == 1
    if broke is not None and unconfirmed and broke == top:
        return NextLevel(broke, "a second window, to confirm that it fails")
    gap = _widest_gap(latest, broke, plan.resolution)
    if gap is not None and _refined(latest, plan) < plan.refine:
        low, high = gap
        return NextLevel(min(max(round(math.sqrt(low * high)), low + 1), high - 1), f"between {low} and {high}")
    if broke is not None and unconfirmed:
        return NextLevel(broke, "a second window, to confirm that it fails")
    return _stop(_broken(latest) or "slo", latest, plan)


def _widest_gap(latest: Mapping[int, LevelResult], broke: int | None, resolution: float) -> tuple[int, int] | None:
    """The gap worth halving: between the highest level that passes and the lowest that fails, or, with undecided levels
    in between, the wider of the two beside them. Halving among the undecided would only find more of them."""
    below = [level for level in latest if broke is None or level < broke]
    held = max((level for level in below if latest[level].verdict == "pass"), default=None)
    undecided = [level for level in below if held is None or level > held]
    ends = [(held, min(undecided)), (max(undecided), broke)] if undecided else [(held, broke)]
    gaps = [(a, b) for a, b in ends if a is not None and b is not None and b - a > 1 and b / a > resolution]
    return max(gaps, key=lambda gap: gap[1] / gap[0], default=None)


def _marginal(latest: Mapping[int, LevelResult]) -> bool:
    return any(level.verdict == "marginal" for level in latest.values())


def _refined(latest: Mapping[int, LevelResult], plan: SweepPlan) -> int:
    """How many of the measured levels are not rungs of the ladder."""
    rungs, level = {plan.start}, plan.start
    while level < min(max(latest), plan.max_level):
        level = _above(level, plan)
        rungs.add(level)
    return len(latest.keys() - rungs)


def _broken(latest: Mapping[int, LevelResult]) -> str | None:
    """`slo:<objective>` by the lowest level that did not hold, or that came closest to showing it."""
    ranked = [latest[level] for level in sorted(latest)]
    failed = [r for r in ranked if r.verdict == "fail"]
    marginal = [r for r in ranked if r.verdict == "marginal"]
    leaning = [r for r in ranked if r.verdict in ("inconclusive", "baseline") and r.p_hat_beyond]
    name = next((r.broke[0] for r in failed + marginal + leaning if r.broke), None)
    return f"slo:{name}" if name else None


# --- throughput -----------------------------------------------------------------------------------------------------


def _log_throughput(level: LevelResult) -> tuple[float, float] | None:
    """(log throughput, its 95 % half-width), None where no interval is known."""
    t = level.output_throughput
    if level.verdict == "invalid":  # its throughput is the client's
        return None
    if t is None or t.low is None or t.high is None or not 0 < t.low <= t.value <= t.high:
        return None
    return math.log(t.value), math.log(t.high / t.low) / 2


def _gain(low: LevelResult, high: LevelResult) -> tuple[float, float] | None:
    """(mean growth of log throughput per doubling of load between two levels, its upper 97.5 % bound)."""
    a, b = _log_throughput(low), _log_throughput(high)
    if a is None or b is None or high.concurrency <= low.concurrency:
        return None
    doublings = math.log2(high.concurrency / low.concurrency)
    gain = (b[0] - a[0]) / doublings
    return gain, gain + math.hypot(a[1], b[1]) / doublings


def _reference(latest: Mapping[int, LevelResult]) -> int | None:
    """The level two doublings below the highest (3.5 times, as rungs are rounded): two rungs down with factor 2.
    Comparing over two doublings halves the noise of the mean gain, as the level between cancels out."""
    return max((level for level in latest if level * 3.5 <= max(latest)), default=None)


def _flattened(latest: Mapping[int, LevelResult], plan: SweepPlan) -> str | None:
    """`over_saturated`: throughput is proven to have fallen over each of the last two steps. `plateau`: its mean gain
    over the last two doublings is proven to be below `gain`."""
    levels = sorted(latest)
    if len(levels) >= 3:
        steps = [_gain(latest[a], latest[b]) for a, b in zip(levels[-3:], levels[-2:], strict=False)]
        if all(step is not None and step[1] < 0 for step in steps):
            return "over_saturated"
    reference = _reference(latest)
    if reference is None:
        return None
    gain = _gain(latest[reference], latest[levels[-1]])
    return "plateau" if gain is not None and gain[1] < math.log1p(plan.gain) else None


def _peak(latest: Mapping[int, LevelResult], reason: str) -> Estimate | None:
    """The highest throughput found. At a plateau the weighted mean of the last two levels, as the larger of two equals
    is biased up; else the largest."""
    known = [
        level.output_throughput
        for _, level in sorted(latest.items())
        if level.output_throughput is not None and ended_by(level) not in ("client_bound", "errors")
    ]
    if not known:
        return None
    if reason != "plateau" or len(known) < 2:
        return max(known, key=lambda estimate: estimate.value)
    pair = known[-2:]
    errors = [(e.high - e.low) / 2 / _Z if e.low is not None and e.high is not None else 0.0 for e in pair]
    if min(errors) <= 0:
        return Estimate(sum(e.value for e in pair) / 2)
    weights = [1 / error**2 for error in errors]
    mean = sum(w * e.value for w, e in zip(weights, pair, strict=True)) / sum(weights)
    half = _Z / math.sqrt(sum(weights))
    return Estimate(mean, mean - half, mean + half)


# --- the answer -----------------------------------------------------------------------------------------------------


def _stop(reason: str, latest: Mapping[int, LevelResult], plan: SweepPlan, last: LevelResult | None = None) -> Stop:
    """`held` is the highest level that passed below every level that failed: a pass above a fail proves nothing."""
    broke = min((level for level, result in latest.items() if result.verdict == "fail"), default=None)
    held = max(
        (n for n, result in latest.items() if result.verdict == "pass" and (broke is None or n < broke)), default=None
    )
    peak = _peak(latest, reason)
    parts = [_why(reason, latest, plan, last)]
    if plan.has_slo:
        parts.append(_held(held, broke, latest))
    if peak is not None and not reason.startswith("slo"):
        parts.append(f"Highest output throughput: {_rate(peak)}.")
    return Stop(reason, held, broke, peak, " ".join(part for part in parts if part))


def _why(reason: str, latest: Mapping[int, LevelResult], plan: SweepPlan, last: LevelResult | None) -> str:
    top = max(latest)
    kind, _, detail = reason.partition(":")
    where = f"at {_n(last.concurrency)}" if last is not None else ""
    if kind == "plateau":
        return _flat_sentence(latest, plan)
    if kind == "over_saturated":
        return f"Output throughput fell twice in a row, up to {_n(top)}: the server is past its best load."
    if kind == "max_level":
        if plan.levels is not None:
            return "Every level asked for was measured."
        return f"{_n(top)} is the highest level allowed; --max-level raises it."
    if kind == "errors" and last is not None:
        if last.ended == "unauthorized":
            return f"The server refused access {where}."
        if last.admitted:
            return f"{admits(last.admitted)} ({where}, {how_many_failed(last)})."
        return f"Too many requests failed {where}: {how_many_failed(last)}."
    if kind == "client_bound":
        how = f" ({last.detail[:DETAIL_CHARS]})" if last is not None and last.detail else ""
        return f"This client was the limit {where}, so that level says nothing of the server{how}."
    if kind == "budget":
        return f"The {detail or 'run'} budget was used up {where}."
    if kind == "interrupted":
        return f"The run was interrupted {where}."
    if kind == "slo":
        return ""
    return f"The sweep ended {where}: {reason.replace('_', ' ')}."


def _flat_sentence(latest: Mapping[int, LevelResult], plan: SweepPlan) -> str:
    top, reference = max(latest), _reference(latest)
    gain = _gain(latest[reference], latest[top]) if reference is not None else None
    if reference is None or gain is None:
        return "Output throughput stopped growing."
    percent, most = (100 * math.expm1(g) for g in gain)
    return (
        f"Output throughput stopped growing: from {reference} to {_n(top)} it changed by {percent:+.1f} % per doubling,"
        f" at most {most:+.1f} %, which is below {100 * plan.gain:g} %."
    )


def _held(held: int | None, broke: int | None, latest: Mapping[int, LevelResult]) -> str:
    names = f" ({', '.join(latest[broke].broke)})" if broke is not None and latest[broke].broke else ""
    undecided = sorted(
        n
        for n, result in latest.items()
        if result.verdict in ("inconclusive", "baseline") and n > (held or 0) and (broke is None or n < broke)
    )
    near = sorted(n for n, result in latest.items() if result.verdict == "marginal")
    if held is not None and broke is not None:
        said = f"{_n(held)} hold{'s' if held == 1 else ''} every objective, {broke} do not{names}."
    elif held is not None:
        said = f"{_n(held)} hold{'s' if held == 1 else ''} every objective."
    elif broke is not None and broke == min(latest):
        lower = "; try a lower --start" if broke > 1 else ""
        said = f"No level holds the objectives: {_n(broke)}, the lowest, already break{_s(broke)} them{names}{lower}."
    elif broke is not None:
        said = f"No level is proven to hold the objectives, and {_n(broke)} break{_s(broke)} them{names}."
    else:
        said = "No level is proven to hold or to break the objectives."
    if near:
        said += f" At {_n(near[0])} they are met to within 5 %: the limit lies there."
    if undecided:
        said += f" Undecided: {', '.join(map(str, undecided))}; longer steps would tell."
    return said


def _n(level: int) -> str:
    return f"{level} concurrent request{'' if level == 1 else 's'}"


def _s(level: int) -> str:
    return "s" if level == 1 else ""


def _rate(estimate: Estimate) -> str:
    digits = 0 if estimate.value >= 100 else 1
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:,.{digits}f} tokens/s"
    half = max(estimate.high - estimate.value, estimate.value - estimate.low)  # as in the report's table
    return f"{estimate.value:,.{digits}f} ±{half:,.{digits}f} tokens/s"
