"""What a sweep found, in figures and in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..results import Came, Estimate, LevelResult, Stop
from ..slo import broken_names
from .levels import (
    Latest,
    again_above,
    band,
    bracket,
    certain,
    changed,
    flattened,
    gain,
    latest_of,
    marginal,
    two_doublings_below,
    unsampled,
)
from .peak import highest, mean_of, of_levels, peak_goodput, throughputs, within
from .repeats import differ, pooled

DETAIL_CHARS = 200  # of why a step was ended, in a sentence: the words may be a server's


def stopped(
    reason: str,
    history: Sequence[LevelResult],
    *,
    has_slo: bool,
    gain: float,
    last: LevelResult | None = None,
    listed: bool,
    verb: str = "sweep",
    repeated: bool = False,
    precision: float | None = None,
) -> Stop:
    """The answer at the end. `last` is the level that ended the sweep, if one did; `gain` the growth per doubling below
    which load no longer pays; `listed` says that the levels were given, by the flags of `verb`; `repeated` that a
    level's windows are pooled; `precision` is how well the highest throughput was to be known, as a share of it."""
    latest = pooled(history) if repeated else latest_of(history)
    held, broke = certain(latest)
    known = of_levels(latest) if precision is None else throughputs(history)
    best = mean_of(highest(known, reason, precision))
    kind, _, objective = reason.partition(":")
    limit, around = None, None
    missing, again = unsampled(latest), again_above(latest)
    if kind == "slo" and not missing:
        low, high = bracket(latest)
        limit = marginal(latest) or (low if high is not None else None)
        around = band(latest, limit, objective) if limit is not None else None
    unsteady = _differing(history) if repeated else _unsteady(history)
    parts = [_why(reason, latest, gain, last, listed)]
    if has_slo:
        parts += [why_undecidable(name, why) for name, why in missing.items()]
        lower = "a lower -c" if verb != "sweep" else "lower --levels" if listed else "a lower --start"
        more = _more(kind, detail=objective, verb=verb)
        parts.append(_held(held, broke, limit, latest, lower=lower, more=more) if kind != "no_sample" else "")
        if around is not None:
            parts.append(
                f"{objective} stays within 5 % of its limit from {around[0]:,.3g} to {around[1]:,.3g} in flight."
            )
    if best is not None and (kind != "slo" or precision is not None):
        parts.append(f"Highest output throughput: {_rate(best)}.")
    if best is not None and precision is not None and not unsteady and not within(best, precision):
        parts.append(f"It is not known to ±{100 * precision:g} %, as was asked for; longer steps (--effort) may tell.")
    parts.append(_repeated(latest))
    parts.append(unsteady)
    return Stop(
        reason,
        held,
        broke,
        best,
        " ".join(part for part in parts if part),
        limit=limit,
        band=around,
        first=_first(kind, latest, gain),
        peak_goodput=peak_goodput(latest),
        unsteady=bool(unsteady),
        held_again=again,
    )


def how_many_failed(level: LevelResult) -> str:
    """The share of failures, or why the step was ended for them, which may have been before anything was measured."""
    return level.detail[:DETAIL_CHARS] or f"{100 * level.error_rate:.3g} %"


def why_failed(level: LevelResult, where: str) -> str:
    """Why a level that ended in failures did, `where` it was, in a sentence."""
    if level.ended == "unauthorized":
        return f"The server refused access {where}."
    if level.admitted:
        return f"{admits(level.admitted)} ({where}, {how_many_failed(level)})."
    return f"Too many requests failed {where}: {how_many_failed(level)}."


def why_cut(kind: str, detail: str, where: str) -> str:
    """Why a run ended before it was done: a `budget`, which the detail names, or an interrupt."""
    if kind == "budget":
        return f"The {detail or 'run'} budget was used up {where}."
    return f"The run was interrupted {where}."


def why_again(level: LevelResult) -> str:
    """Why a level that this client shaped is measured once more."""
    return "again, as this client was the limit" + (f" ({level.detail[:DETAIL_CHARS]})" if level.detail else "")


def why_undecidable(objective: str, why: str) -> str:
    """A sentence on an objective of which no answer has a sample."""
    return f"{objective} has no sample, as {why}: no load can be told to hold or to break it."


def admits(limit: int) -> str:
    """The beginning of a sentence on a server's admission limit."""
    many = "1 request" if limit == 1 else f"{limit:,} requests"
    return f"The server's admission limit: it answers about {many} at once and refuses more"


def _first(kind: str, latest: Latest, least_gain: float) -> Came | None:
    """What came first as the load rose: the plateau, or the end of an objective; at one and the same rung, neither."""
    if kind == "slo":
        return "tie" if flattened(latest, least_gain) else "slo"
    return "plateau" if kind in ("plateau", "over_saturated") else None


def _why(reason: str, latest: Latest, least_gain: float, last: LevelResult | None, listed: bool) -> str:
    top = max(latest)
    kind, _, detail = reason.partition(":")
    where = f"at {_n(last.concurrency)}" if last is not None else ""
    if kind == "plateau":
        return _flat_sentence(latest, least_gain)
    if kind == "over_saturated":
        return f"Output throughput fell twice in a row, up to {_n(top)}: the server is past its best load."
    if kind == "max_level":
        if listed:
            return "Every level asked for was measured."
        return f"No limit up to {_n(top)}, the highest level allowed; --max-level raises it."
    if kind == "errors" and last is not None:
        return why_failed(last, where)
    if kind == "client_bound":
        how = f" ({last.detail[:DETAIL_CHARS]})" if last is not None and last.detail else ""
        return f"This client was the limit {where}, so that level says nothing of the server{how}."
    if kind in ("budget", "interrupted"):
        return why_cut(kind, detail, where)
    if kind in ("slo", "no_sample"):
        return ""
    return f"The sweep ended {where}: {reason.replace('_', ' ')}."


def _flat_sentence(latest: Latest, least_gain: float) -> str:
    top, reference = max(latest), two_doublings_below(latest)
    growth = gain(latest[reference], latest[top]) if reference is not None else None
    if reference is None or growth is None:
        return "Output throughput stopped growing."
    percent, most = (100 * math.expm1(g) for g in growth)
    return (
        f"Output throughput stopped growing: from {reference} to {_n(top)} it changed by {percent:+z.1f} % per"
        f" doubling, at most {most:+z.1f} %, which is below {100 * least_gain:g} %."
    )


def _more(kind: str, detail: str, verb: str) -> str:
    """What would decide the levels that are undecided."""
    if kind == "interrupted" and verb == "sweep":
        return "--resume goes on with them"
    if kind == "budget":
        return f"a larger {detail or 'run'} budget may tell"
    return "longer steps would tell"


def _held(held: int | None, broke: int | None, limit: int | None, latest: Latest, *, lower: str, more: str) -> str:
    names = f" ({broken_names(latest[broke].broke, latest[broke].checks)})" if broke and latest[broke].broke else ""
    undecided = sorted(
        n
        for n, result in latest.items()
        if result.verdict in ("inconclusive", "baseline")
        and not result.unsampled
        and n > (held or 0)
        and (broke is None or n < broke)
    )
    near, again = marginal(latest), again_above(latest)
    if held is not None and broke is not None:
        said = f"{_n(held)} hold{'s' if held == 1 else ''} every objective, {broke} do not{names}."
    elif held is not None:
        said = f"{_n(held)} hold{'s' if held == 1 else ''} every objective."
    elif broke is not None and again:
        said = f"{_n(broke)} break{_s(broke)} the objectives{names}, and no lower level is proven to hold them."
    elif broke is not None and broke == min(latest):
        advice = f"; try {lower}" if broke > 1 else ""
        said = f"No level holds the objectives: {_n(broke)}, the lowest, already break{_s(broke)} them{names}{advice}."
    elif broke is not None:
        said = f"No level is proven to hold the objectives, and {_n(broke)} break{_s(broke)} them{names}."
    else:
        said = "No level is proven to hold or to break the objectives."
    if again:
        said += f" Above that, {_and(again)} hold{_s(len(again))} every objective again."
    if near is not None:
        said += f" At {_n(near)} they are met to within 5 %: the limit lies there."
    elif limit is not None and limit != held:
        said += f" The limit is most likely {_n(limit)}{_side(limit, latest)}."
    if undecided:
        said += f" Undecided: {', '.join(map(str, undecided))}; {more}."
    return said


def _side(limit: int, latest: Latest) -> str:
    above = min((n for n in latest if n > limit), default=None)
    return f", by the estimates there and at {above}" if above is not None else ""


def _unsteady(history: Sequence[LevelResult]) -> str:
    pair = changed(history)
    if pair is None:
        return ""
    first, second = (level.output_throughput.value for level in pair if level.output_throughput is not None)
    return (
        f"The server was not steady: at {_n(pair[0].concurrency)} it gave {first:,.0f} tokens/s at first and"
        f" {second:,.0f} later, so that the intervals here are too narrow: measure it several times over."
    )


def _differing(history: Sequence[LevelResult]) -> str:
    if not differ(history):
        return ""
    return (
        "The server was not steady: its windows differ by more than each shows by itself; the intervals include that."
    )


def _repeated(latest: Latest) -> str:
    said = [
        f"{n}: {_rate(level.output_throughput)}{f' ({level.verdict})' if level.checks else ''}"
        for n, level in sorted(latest.items())
        if level.windows > 1 and level.output_throughput is not None
    ]
    windows = min((level.windows for level in latest.values() if level.windows > 1), default=0)
    return f"Over {windows} windows each, in turn, {', '.join(said)}." if said else ""


def _n(level: int) -> str:
    return f"{level} concurrent request{'' if level == 1 else 's'}"


def _s(level: int) -> str:
    return "s" if level == 1 else ""


def _and(levels: Sequence[int]) -> str:
    *others, last = map(str, levels)
    return f"{', '.join(others)} and {last}" if others else last


def _rate(estimate: Estimate) -> str:
    digits = 0 if estimate.value >= 100 else 1
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:,.{digits}f} tokens/s"
    half = max(estimate.high - estimate.value, estimate.value - estimate.low)  # as in the report's table
    return f"{estimate.value:,.{digits}f} ±{half:,.{digits}f} tokens/s"
