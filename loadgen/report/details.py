"""All there is to say of one step, as a block of text. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from ..results import Distribution, Estimate, Percentile, StepSummary
from .asked import asked_line
from .caching import cache_lines
from .health import health_lines
from .models import part_lines
from .numbers import NONE, arriving, clean, decimals, number, percent, plural, with_error
from .serverview import server_lines

_LATENCIES = (
    ("ttft", "TTFT"),
    ("ttfc", "time to first content"),
    ("tpot", "TPOT"),
    ("itl", "ITL"),
    ("inter_chunk", "inter-chunk gap"),
    ("e2e", "E2E"),
    ("ttft_scheduled", "TTFT from schedule"),
    ("e2e_scheduled", "E2E from schedule"),
    ("dispatch_lag", "dispatch lag"),
)
_POINTS = (50.0, 90.0, 95.0, 99.0)
NOTHING: Mapping[str, Mapping[str, float]] = MappingProxyType({})
TABLE_WIDTH = 112  # of all columns of the latencies


def step_details(
    summary: StepSummary,
    *,
    in_seconds: bool = False,
    width: int = 120,
    asked: Mapping[str, Mapping[str, float]] = NOTHING,
    traced: bool = False,
) -> list[str]:
    """Latencies, throughputs, tokens and checks of one step; `in_seconds`: in the unit of an imported CSV; `traced`:
    its rate is that of a trace's requests, not of conversations. Below the width of the whole table of latencies it has
    percentiles alone. Other lines may be longer than `width`."""
    table = _latency_table(summary, in_seconds, wide=width >= TABLE_WIDTH)
    comes = arriving(0 if traced else summary.sessions)
    return [_title(summary, comes), *table, *_figures(summary, asked, comes), *part_lines(summary, width)]


def _title(summary: StepSummary, comes: str) -> str:
    parts = [f"step {summary.step}"]
    if summary.rate is not None:
        parts.append(f"{summary.rate:,g} {comes} asked for")
    elif summary.concurrency:
        parts.append(f"{summary.concurrency:,} concurrent")
    if summary.concurrency_mean is not None and summary.concurrency_peak is not None:
        parts.append(
            f"observed {number(summary.concurrency_mean)} in the mean, {summary.concurrency_peak:,} at the peak"
        )
    others = {k: n for k, n in summary.requests.items() if k != "ok"}
    counts = [f"{summary.requests.get('ok', 0):,} ok", f"{summary.failed:,} failed"]
    counts += [f"{n:,} {name}" for name, n in others.items() if name in ("cut", "cancelled")]
    parts.append(", ".join(counts))
    if summary.window is not None:
        parts.append(f"window {number(summary.window.seconds)} s")
    if summary.ended != "complete":
        parts.append(f"ended by {summary.ended}")
    return " · ".join(parts)


def _latency_table(summary: StepSummary, in_seconds: bool, *, wide: bool) -> list[str]:
    rows = [(label, summary.latency[key]) for key, label in _LATENCIES if _worth(summary, key)]
    if not rows:
        return []
    silent = ["TTFT, TPOT, ITL".ljust(24) + "n/a (not streaming)"] if "not_streamed" in summary.flags else []
    silent = silent if not summary.latency["ttft"].n else []
    unit = "s" if in_seconds else "ms"
    head = "".join(f"p{p:g}".rjust(10) for p in _POINTS)
    head += "mean".rjust(17) + "std".rjust(10) + "max".rjust(10) if wide else ""
    lines = [f"  {'latency in ' + unit:<24}{head}{'n':>9}"]
    for label, found in rows:
        marked = label + (" (estimated)" if label == "ITL" and summary.estimated_itl else "")
        lines.append(f"  {marked:<24}{_latency_row(found, in_seconds, wide=wide)}{found.n:>9,}")
    lines += [f"  {text}" for text in silent]
    weak = sorted({p.p for _, d in rows for p in d.percentiles if not p.established})
    if weak:
        names = ", ".join(f"p{p:g}" for p in weak)
        lines.append(f"  * not established: too few independent requests for a 95 % interval of {names}")
    return lines


def _worth(summary: StepSummary, key: str) -> bool:
    """Is there anything to show that the line above does not say already?"""
    found = summary.latency.get(key)
    if found is None or found.n == 0 or (key == "dispatch_lag" and found.max == 0):
        return False
    twin = {"ttfc": "ttft", "ttft_scheduled": "ttft", "e2e_scheduled": "e2e", "inter_chunk": "itl"}.get(key)
    other = summary.latency.get(twin) if twin else None
    return other is None or (other.n, other.mean, other.max) != (found.n, found.mean, found.max)


def _latency_row(found: Distribution, in_seconds: bool, *, wide: bool) -> str:
    # One scale a row, so that its figures can be compared at sight: three significant digits of the median.
    median = found.at(50.0)
    scale = 1e-3 if in_seconds else 1.0
    base = (median.value if median else found.max or 1.0) * scale
    places = min(decimals(base), 6) if base else 3
    if in_seconds:
        places = max(places, 3)

    def show(value: float | None) -> str:
        return NONE if value is None else f"{value * scale:,.{places}f}"

    def point(q: Percentile | None) -> str:
        return NONE + " " if q is None else show(q.value) + (" " if q.established else "*")

    mean = show(found.mean.value if found.mean else None)
    if found.mean and found.mean.high is not None:
        mean += f" ±{show(found.mean.high - found.mean.value)}"
    points = "".join(point(found.at(p)).rjust(10) for p in _POINTS)
    return points + (mean.rjust(17) + show(found.std).rjust(10) + show(found.max).rjust(10) if wide else "")


def _figures(summary: StepSummary, asked: Mapping[str, Mapping[str, float]], comes: str) -> list[str]:
    lines: list[tuple[str, str]] = []
    classic = summary.output_throughput_classic
    output = []
    if summary.output_throughput:
        share = summary.estimated_token_share
        by = f", {percent(share)} of it by estimate" if share > 0.0005 else ""
        output.append(f"{with_error(summary.output_throughput, 4)} tokens/s in the window{by}")
    if classic is not None:
        tokens = (summary.output_tokens_mean or 0.0) * summary.requests.get("ok", 0)
        output.append(f"{number(classic, 4)} tokens/s (classic, over {number(tokens / classic)} s)")
    if summary.output_throughput_failed:
        output.append(f"failed requests: {number(summary.output_throughput_failed)} tokens/s more")
    lines.append(("output", " · ".join(output)))
    total = f"{number(summary.total_throughput, 4)} tokens/s" if summary.total_throughput else ""
    lines.append(("input + output", total))
    requests = []
    if summary.completion_rate:
        requests.append(f"{with_error(summary.completion_rate)} requests/s completed")
    if summary.attempt_rate is not None:
        requests.append(f"{number(summary.attempt_rate)} requests/s attempted")
    requests.append(f"{summary.failed:,} of {summary.judged:,} failed")
    lines.append(("requests", " · ".join(requests)))
    lines.append(("arrivals", _arrivals(summary, comes)))
    lines.append(("lengths", _lengths(summary)))
    lines.append(("asked lengths", asked_line(summary, asked)))
    good = [f"{number(summary.goodput)} requests/s"] if summary.goodput is not None else []
    if summary.attainment:
        met = summary.attainment
        interval = f" [{percent(met.low)}, {percent(met.high)}]" if met.low is not None else ""
        good.append(f"attainment {percent(met.value)}{interval} of {plural(summary.judged, 'request')}")
    lines.append(("goodput", " · ".join(good)))
    for i, check in enumerate(summary.objectives):
        seen = f"{percent(check.exceedance.value)} beyond" if check.exceedance else "no sample"
        if check.exceedance and check.exceedance.low is not None:
            seen += f" [{percent(check.exceedance.low)}, {percent(check.exceedance.high)}]"
        value = f", at {number(check.value_ms)} ms" if check.value_ms is not None else ""
        if check.value_ms is not None and math.isinf(check.value_ms):
            value = ", reached by failures"
        text = f"{check.objective}: {seen}, {percent(check.allowed)} allowed{value}, n {check.n:,} → {check.verdict}"
        if check.exceedance and check.verdict == "inconclusive" and _apart(check.exceedance, check.allowed):
            text += ", as each of the looks at the step has a wider interval"
        if check.decided_n is not None:
            text += f", as of the look at {check.decided_n:,} of them that ended the step"
        lines.append(("" if i else "objectives", text))
    if summary.littles_law_residual is not None:
        lines.append(("Little's law", f"in flight against residence {100 * summary.littles_law_residual:+z.2f} %"))
    lines += cache_lines(summary)
    lines += server_lines(summary)
    lines += health_lines(summary)
    lines.append(("flags", ", ".join(f"{name} {n:,}" for name, n in summary.flags.items())))
    return [part for label, text in lines if text for part in _wrapped(label, text)]


def _arrivals(summary: StepSummary, comes: str) -> str:
    """How an open loop kept its schedule."""
    if summary.rate is None:
        return ""
    parts = [f"{summary.rate:,g} {comes} asked for"]
    if summary.attempt_rate is not None:
        parts[0] += f", {number(summary.attempt_rate, 4)} {'requests/s ' if summary.sessions else ''}sent"
    lag = summary.latency.get("dispatch_lag")
    points = [(p, lag.at(p)) for p in (50.0, 99.0)] if lag else []
    shown = ", ".join(f"p{p:g} {number(q.value)}" for p, q in points if q is not None)
    if shown:
        parts.append(f"sent late by {shown} ms")
    parts.append(f"{summary.held_back:,} held back, {summary.not_dispatched:,} never sent")
    return " · ".join(parts)


def _wrapped(label: str, text: str) -> list[str]:
    return [f"  {label:<16}{clean(text)}"]


def _apart(found: Estimate, allowed: float) -> bool:
    """Does the interval, of one look, leave out what is allowed?"""
    return found.low is not None and found.high is not None and not found.low <= allowed < found.high


def _lengths(summary: StepSummary) -> str:
    parts = []
    if summary.input_tokens_mean is not None:
        cached = f" ({percent(summary.cached_share)} cached)" if summary.cached_share is not None else ""
        parts.append(f"in {number(summary.input_tokens_mean)}{cached}")
    if summary.output_tokens_mean is not None:
        asked = f" of {number(summary.output_asked_mean)} asked for" if summary.output_asked_mean is not None else ""
        parts.append(f"out {number(summary.output_tokens_mean)}{asked}")
    return " · ".join(parts) + " tokens in the mean" if parts else ""
