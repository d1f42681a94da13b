"""Charts against the load: throughput and latency percentiles. Pure.

The knee is where the two asymptotes of a closed system meet: throughput as it would grow at the rate of the lightest
load, and the highest throughput measured (operational analysis: N* = X_max / (X_1 / N_1)). There is none where the
highest throughput measured is not shown to be the server's: while it still grows, the second asymptote is not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import altair as alt

from ...results import Estimate, Percentile, StepSummary
from ...slo import objective_name
from ..numbers import number, with_error, with_interval
from ..text import load_cell, tail_percentile
from ..words import Words
from .figure import Figure, Table, View
from .style import (
    BLUE,
    GREY,
    INK,
    MUTED,
    ORANGE,
    RED,
    VERDICTS,
    VOID,
    Rows,
    axis_of,
    config,
    data,
    load_axis,
    rule_label,
    scale_of,
)

LATENCIES = (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "E2E"))
_STEPS = 25  # of the asymptote
_BETWEEN = 8


GAIN = 0.05  # of throughput per doubling of the load, as in a sweep: below it throughput no longer grows
TWO_DOUBLINGS = 3.5  # as rungs are rounded


def knee(view: View) -> float | None:
    """N* of these steps, in requests in flight; None where throughput is not shown to have stopped growing, where N*
    lies outside of the loads measured, or for an open loop."""
    known = [
        (s.load, s.output_throughput)
        for s in view.drawn
        if view.counts(s) and s.output_throughput and s.output_throughput.value
    ]
    if view.open_loop or not _saturated(known):
        return None
    (load, first), best = known[0], max(e.value for _, e in known)
    found = best / (first.value / load)
    return found if known[0][0] < found <= known[-1][0] else None


def _saturated(known: Sequence[tuple[float, Estimate]]) -> bool:
    """Is throughput proven to have grown by less than GAIN per doubling over the last two doublings of the load, or to
    be lower at the heaviest load than at a lighter one?"""
    sure = [(load, e.low, e.value, e.high) for load, e in known if e.low and e.high and math.isfinite(e.high)]
    if not sure:
        return False
    top, _, value, high = sure[-1]
    if any(low > high for load, low, _, _ in sure if load < top):
        return True
    reference = max((one for one in sure if one[0] * TWO_DOUBLINGS <= top), default=None)
    if reference is None:
        return False
    load, low, before, _ = reference
    most = math.log(value / before) + math.hypot(math.log(high / value), math.log(before / low))
    return most / math.log2(top / load) < math.log1p(GAIN)


def throughput(view: View) -> Figure | None:
    """Output tokens/s against load, with 95 % intervals, the verdicts, the knee and the answer."""
    w = view.words
    known = [(s, s.output_throughput) for s in view.drawn if s.output_throughput]
    if not known:
        return None
    rows = [_point(view, s, e) for s, e in known]
    loads = [s.load for s, _ in known]
    x = load_axis(loads, view.load_title)
    top = max(row["high"] for row in rows)
    y = alt.Y("value:Q", title=w("axis.output"), scale=alt.Scale(domain=[0, top * 1.12], nice=False))
    base = alt.Chart(data(rows)).encode(x=x)
    layers: list[Any] = []
    if view.stop is not None and view.stop.band is not None and len(set(loads)) > 1:
        low, high = (min(max(edge, min(loads)), max(loads)) for edge in view.stop.band)
        band = alt.Chart(data([{"load": low, "to": high}]))
        layers.append(band.mark_rect(color=ORANGE, opacity=0.14, aria=False).encode(x="load:Q", x2="to:Q"))
    star = knee(view)
    counted = [(s, e) for s, e in known if view.counts(s)]
    if star is not None:
        layers.append(_asymptotes(counted, loads, y))
    line = _straight([row for row, (s, _) in zip(rows, known, strict=True) if view.counts(s)])
    layers.append(alt.Chart(data(line)).mark_line(color=BLUE, aria=False).encode(x=x, y=y, order="order:Q"))
    layers.append(base.mark_rule(strokeWidth=1.6, color=INK, aria=False).encode(y="low:Q", y2="high:Q"))
    layers += _verdict_points(x, y, rows, w)
    span = math.log(max(loads)) - math.log(min(loads)) if min(loads) > 0 else 0.0
    named = [load for load in (view.answer, view.likely) if load]
    near = span and star and any(abs(math.log(star / load)) < 0.22 * span for load in named)
    for name, load in (("answer", view.answer), ("limit", view.likely)):
        if load is not None and len(set(loads)) > 1 and min(loads) <= load <= max(loads):
            text = f"{w(f'mark.{name}')} {load:,g}"
            layers.append(rule_label(load, text, left=_to_the_left(view, name, loads)))
    if star is not None and not near:
        text = f"{w('mark.knee')} {number(star)}"
        layers.append(rule_label(star, text, left=star > _middle(loads), colour=MUTED))
    n = sum(s.requests.get("ok", 0) for s, _ in known)
    caption = w("caption.throughput", n=f"{n:,}", steps=len(known))
    if star is not None:
        caption = w.sentences(caption, w("caption.knee", knee=number(star)))
    if view.stop is not None and view.stop.band is not None:
        caption = w.sentences(caption, w("caption.band", objective=view.stop.reason.partition(":")[2]))
    caption = view.captioned(caption)
    chart = alt.layer(*layers).properties(width=view.width, height=240)
    head = (
        view.load_title,
        w("axis.output"),
        w("table.interval"),
        w("table.completed"),
        w("table.window"),
        "n",
        w("table.failed"),
        w("table.verdict"),
    )
    table = [
        (
            load_cell(s),
            number(e.value),
            _interval(e),
            number(s.completion_rate.value) if s.completion_rate else "–",
            f"{number(s.window.seconds)} s" if s.window else "–",
            f"{s.requests.get('ok', 0):,}",
            f"{s.failed:,}",
            w(f"verdict.{view.verdict(s.step)}"),
        )
        for s, e in known
    ]
    return Figure("throughput", w("title.throughput"), caption, config(chart), Table(head, tuple(table)))


def _straight(rows: Rows) -> Rows:
    """Points between the points, so that a line is straight in the load itself, whatever the axis."""
    found: Rows = []
    for a, b in pairwise(rows):
        for i in range(_BETWEEN):
            part = i / _BETWEEN
            here = {key: a[key] + (b[key] - a[key]) * part for key in ("load", "value")}
            found.append({**here, "order": len(found)})
    return found + [{"load": row["load"], "value": row["value"], "order": len(found)} for row in rows[-1:]]


def _middle(loads: list[float]) -> float:
    return math.sqrt(min(loads) * max(loads)) if min(loads) > 0 else (min(loads) + max(loads)) / 2


def _to_the_left(view: View, name: str, loads: list[float]) -> bool:
    """On which side of its rule a label stands; of two, the lighter load's is to the left."""
    answer, likely = view.answer, view.likely
    if answer is not None and likely is not None:
        return (name == "answer") == (answer < likely)
    return (answer or likely or 0.0) > _middle(loads)


def _point(view: View, s: StepSummary, e: Estimate) -> dict[str, Any]:
    w = view.words
    verdict = view.verdict(s.step)
    return {
        "load": s.load,
        "value": e.value,
        "low": e.value if e.low is None else e.low,
        "high": e.value if e.high is None or math.isinf(e.high) else e.high,
        "verdict": w(f"verdict.{verdict}"),
        "void": not view.counts(s),
        "order": s.load * 1e6 + s.step,
        "tip": f"{load_cell(s)}: {with_error(e)} tokens/s, n {s.requests.get('ok', 0):,}, "
        f"{w('table.failed')} {s.failed:,}, {w(f'verdict.{verdict}')}",
    }


def _verdict_points(x: alt.X, y: alt.Y, rows: Rows, w: Words) -> list[Any]:
    """Points in the colour and the shape of their verdict, hollow where a step does not count; a legend where there are
    several."""
    seen = {row["verdict"] for row in rows}
    names = {w(f"verdict.{key}"): looks for key, looks in VERDICTS.items() if w(f"verdict.{key}") in seen}
    legend = alt.Legend() if len(seen) > 1 else None
    colours = alt.Scale(domain=list(names), range=[colour for colour, _ in names.values()])
    shapes = alt.Scale(domain=list(names), range=[shape for _, shape in names.values()])
    return [
        alt.Chart(data([row for row in rows if row["void"] is void]))
        .mark_point(filled=not void, size=75, strokeWidth=1.6 if void else 0)
        .encode(
            x=x,
            y=y,
            color=alt.Color("verdict:N", scale=colours, legend=legend),
            shape=alt.Shape("verdict:N", scale=shapes, legend=legend),
            description="tip:N",
        )
        for void in sorted({row["void"] for row in rows})
    ]


def _asymptotes(known: list[tuple[StepSummary, Estimate]], loads: list[float], y: alt.Y) -> Any:
    """Growth at the lightest load's rate, and the highest throughput."""
    first, best = known[0], max(e.value for _, e in known)
    slope = first[1].value / first[0].load
    reach = min(max(loads), best * 1.06 / slope)
    low, high = math.log(min(loads)), math.log(max(reach, min(loads)))
    at = [math.exp(low + (high - low) * i / _STEPS) for i in range(_STEPS + 1)]
    rows = [{"load": x, "value": x * slope, "which": "a"} for x in at]
    rows += [{"load": x, "value": best, "which": "b"} for x in (min(loads), max(loads))]
    return (
        alt.Chart(data(rows))
        .mark_line(color=GREY, strokeDash=[2, 3], strokeWidth=1.2, clip=True, aria=False)
        .encode(x="load:Q", y=y, detail="which:N")
    )


def _interval(e: Estimate) -> str:
    return "–" if e.low is None or e.high is None else f"{number(e.low)} – {number(e.high)}"


# --- latency --------------------------------------------------------------------------------------------------------


def latency(view: View) -> Figure | None:
    """p50 and a tail percentile of TTFT, TPOT and E2E against load, with intervals and the objectives' limits."""
    w = view.words
    found_rows: list[tuple[str, str, Rows, float]] = []
    table = []
    for metric, label in LATENCIES:
        tail = tail_percentile(view.slo, metric)
        rows: Rows = []
        for s in view.drawn:
            found = s.latency.get(metric)
            for p in (50.0, tail):
                q = found.at(p) if found else None
                if q is not None and q.value > 0:
                    rows.append(_quantile(view, s, q, label))
        if not rows:
            continue
        found_rows.append((metric, label, rows, tail))
        for s in view.drawn:
            found = s.latency.get(metric)
            half, high = (found.at(50.0), found.at(tail)) if found else (None, None)
            if found and half:
                table.append(
                    (
                        label,
                        load_cell(s),
                        number(half.value),
                        with_interval(high) if high is None or high.established else w("mark.weak"),
                        f"p{tail:g}",
                        f"{found.n:,}",
                        f"{s.failed:,}",
                    )
                )
    if not found_rows:
        return None
    panels = [_panel(view, *one, last=one is found_rows[-1]) for one in found_rows]
    head = (
        w("table.metric"),
        view.load_title,
        "p50 (ms)",
        w("table.tail"),
        w("table.percentile"),
        "n",
        w("table.failed"),
    )
    ok = [s.requests.get("ok", 0) for s in view.drawn]
    least, most = f"{min(ok):,}", f"{max(ok):,}"
    span = least if least == most else w("caption.span", least=least, most=most)
    caption = w("caption.latency", n=f"{sum(ok):,}", steps=len(ok), span=span)
    caption = view.captioned(caption)
    chart = alt.vconcat(*panels).resolve_scale(color="shared")
    return Figure("latency", w("title.latency"), caption, config(chart), Table(head, tuple(table)))


def _quantile(view: View, s: StepSummary, q: Percentile, label: str) -> dict[str, Any]:
    w = view.words
    shown = with_interval(q) if q.established else f"{number(q.value)} ({w('mark.weak')})"
    return {
        "load": s.load,
        "value": q.value,
        "low": q.low if q.low else q.value,
        "high": q.high if q.high else q.value,
        "p": f"p{q.p:g}",
        "sure": q.established,
        "void": not view.counts(s),
        "order": s.load * 1e6 + s.step,
        "tip": f"{label} p{q.p:g}, {view.named(s)}: {shown} ms, n {q.n:,}, {w('table.failed')} {s.failed:,}",
    }


def _panel(view: View, metric: str, label: str, rows: Rows, tail: float, *, last: bool) -> Any:
    limits = [
        {"value": o.limit_ms, "text": f"{objective_name(o)} ≤ {number(o.limit_ms)} ms"}
        for o in view.slo.objectives
        if o.metric == metric
    ]
    values = [row[key] for row in rows for key in ("low", "value", "high")] + [one["value"] for one in limits]
    scale = scale_of(values)
    y = alt.Y("value:Q", title=f"{label} (ms)", scale=scale, axis=axis_of(values))
    x = load_axis([row["load"] for row in rows], view.load_title if last else None)
    base = alt.Chart(data(rows)).encode(x=x)
    counted = alt.Chart(data([row for row in rows if not row["void"]])).encode(x=x)
    names = ["p50", f"p{tail:g}"]
    colour = alt.Color("p:N", scale=alt.Scale(domain=names, range=[BLUE, ORANGE]), legend=alt.Legend())
    layers: list[Any] = [
        counted.mark_line(aria=False).encode(y=y, color=colour, order="order:Q"),
        base.mark_rule(strokeWidth=1.6, aria=False).encode(y="low:Q", y2="high:Q", color=colour),
    ]
    # Filled where the interval is established, hollow where the sample is too small for one, crossed where the step
    # does not count.
    hollow = {"size": 60, "filled": False, "strokeWidth": 1.6}
    for looks, chosen in (
        ({"size": 55}, [row for row in rows if row["sure"] and not row["void"]]),
        (hollow, [row for row in rows if not row["sure"] and not row["void"]]),
        ({**hollow, "shape": VOID}, [row for row in rows if row["void"]]),
    ):
        points = alt.Chart(data(chosen)).encode(x=x).mark_point(**looks)
        layers.append(points.encode(y=y, color=colour, description="tip:N"))
    if limits:
        rule = alt.Chart(data(limits))
        layers.append(rule.mark_rule(color=RED, strokeDash=[6, 3], aria=False).encode(y=alt.Y("value:Q", scale=scale)))
        layers.append(
            rule.mark_text(color=RED, align="left", baseline="bottom", dx=4, dy=-2, aria=False).encode(
                x=alt.value(0), y="value:Q", text="text:N"
            )
        )
    return alt.layer(*layers).properties(width=view.width, height=150)
