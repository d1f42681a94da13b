"""Charts of distributions: latencies by step, gaps between tokens, TTFT against the input's length. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np

from ...analysis.series import Curve
from ...results import StepSummary
from ..numbers import number
from .figure import Figure, Table, View
from .style import BLUE, LOADS, ORANGE, PURPLE, Rows, axis_of, config, data, scale_of

SHARES = (0.5, 0.9, 0.95, 0.99)
_LABELS = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E", "itl": "ITL"}
_FLOOR = 1e-4  # of a share of gaps that is drawn
_FEW = 0.05  # of the gaps may be shorter than the axis begins
_LEAST_MS = 0.01


def distributions(view: View) -> Figure | None:
    """The share of requests within each latency, a line for each step: pale for light loads, dark for heavy ones."""
    w = view.words
    panels, table = [], []
    for metric in ("ttft", "tpot", "e2e"):
        curves = {step: one for step, one in view.series.curves.get(metric, {}).items() if one.n > 1}
        if not curves:
            continue
        label = f"{_LABELS[metric]} (ms)"
        panels.append(_ecdf(view, curves, label))
        table += _quantile_rows(view, metric, curves)
    if not panels:
        return None
    chart = alt.vconcat(*panels).resolve_scale(color="shared")
    caption = _caption(view, "caption.distributions", view.series.curves.get("e2e") or view.series.curves["ttft"])
    return Figure("distributions", w("title.distributions"), caption, config(chart), _table(view, table))


def itl(view: View) -> Figure | None:
    """The share of gaps between tokens that are longer than so many ms, a line for each step, both axes logarithmic."""
    w = view.words
    curves = view.series.curves.get("itl", {})
    if not curves:
        return None
    # Tokens that came together have gaps of next to nothing, and would take most of the axis.
    floor = min(float(np.interp(_FEW, curve.shares, curve.values)) for curve in curves.values()) / 2
    floor = max(floor, _LEAST_MS)
    rows: Rows = []
    for s, label, curve in _steps(view, curves):
        for value, share in zip(curve.values.tolist(), curve.shares.tolist(), strict=True):
            if 1 - share >= _FLOOR:
                rows.append({"ms": max(value, floor), "share": 1 - share, "load": label, "step": s.step})
    if not rows:
        return None
    gaps = [row["ms"] for row in rows]
    chart = (
        alt.Chart(data(rows))
        .mark_line(aria=False, clip=True)
        .encode(
            x=alt.X("ms:Q", title="ITL (ms)", scale=scale_of(gaps), axis=axis_of(gaps)),
            y=alt.Y(
                "share:Q",
                title=w("axis.longer"),
                scale=alt.Scale(type="log", domain=[_FLOOR, 1]),
                axis=alt.Axis(values=[1e-4, 1e-3, 1e-2, 1e-1, 1], format="~%"),
            ),
            color=_colour(view, curves),
            detail="step:N",
        )
        .properties(width=view.width, height=240)
    )
    caption = _caption(view, "caption.itl", curves)
    if any(s.estimated_itl for s in view.summaries):
        caption = w.sentences(caption, w("caption.estimated"))
    table = _table(view, _quantile_rows(view, "itl", curves))
    return Figure("itl", w("title.itl"), caption, config(chart), table)


def _ecdf(view: View, curves: Mapping[int, Curve], title: str) -> Any:
    rows: Rows = [
        {"ms": value, "share": share, "load": label, "step": s.step}
        for s, label, curve in _steps(view, curves)
        for value, share in zip(curve.values.tolist(), curve.shares.tolist(), strict=True)
    ]
    times = [row["ms"] for row in rows]
    return (
        alt.Chart(data(rows))
        .mark_line(interpolate="step-after", aria=False)
        .encode(
            x=alt.X("ms:Q", title=title, scale=scale_of(times, zero=False), axis=axis_of(times)),
            y=alt.Y("share:Q", title=view.words("axis.within"), scale=alt.Scale(domain=[0, 1]), axis=_shares()),
            color=_colour(view, curves),
            detail="step:N",
        )
        .properties(width=view.width, height=130)
    )


def _steps(view: View, curves: Mapping[int, Curve]) -> list[tuple[StepSummary, str, Curve]]:
    """The steps that are drawn, by load; of a load measured twice the second is named with its step."""
    known = sorted((s for s in view.summaries if s.step in curves), key=lambda s: (s.load, s.step))
    names: list[str] = []
    for s in known:
        name = view.named(s)
        names.append(name if name not in names and s.load else f"{name} · {s.step}")
    return [(s, name, curves[s.step]) for s, name in zip(known, names, strict=True)]


def _colour(view: View, curves: Mapping[int, Curve]) -> alt.Color:
    names = [name for _, name, _ in _steps(view, curves)]
    last = len(LOADS) - 1
    colours = [LOADS[round(last * i / max(len(names) - 1, 1)) if len(names) > 1 else 4] for i in range(len(names))]
    legend = alt.Legend(columns=0, symbolType="stroke", symbolStrokeWidth=3) if len(names) > 1 else None
    return alt.Color("load:N", scale=alt.Scale(domain=names, range=colours), sort=None, legend=legend)


def _shares() -> alt.Axis:
    return alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format="~%")


def _quantile_rows(view: View, metric: str, curves: Mapping[int, Curve]) -> list[tuple[str, ...]]:
    """Of the whole sample, by the analysis itself; not read off the curve."""
    found = []
    for s, name, curve in _steps(view, curves):
        points = [s.latency[metric].at(100 * share) for share in SHARES] if metric in s.latency else []
        shown = ["–" if q is None else number(q.value) + ("" if q.established else " *") for q in points]
        found.append((_LABELS[metric], name, *shown, number(float(curve.values[-1])), f"{curve.n:,}"))
    return found


def _table(view: View, rows: list[tuple[str, ...]]) -> Table:
    w = view.words
    shares = (f"p{100 * share:g} (ms)" for share in SHARES)
    return Table((w("table.metric"), view.load_title, *shares, w("table.max"), "n"), tuple(rows))


def _caption(view: View, key: str, curves: Mapping[int, Curve]) -> str:
    w = view.words
    text = w(key, n=f"{sum(curve.n for curve in curves.values()):,}", steps=len(curves))
    if view.series.steps > len(curves):
        text = w.sentences(text, w("caption.thinned", shown=len(curves), steps=view.series.steps))
    return text


# --- input length ---------------------------------------------------------------------------------------------------


def by_input(view: View) -> Figure | None:
    """TTFT against input tokens at the lightest load, at the answer and at the heaviest: some requests one by one, and
    the median of groups of as many requests each. Loads are kept apart, as each has its own TTFT."""
    w = view.words
    there = [s for s in view.drawn if s.step in view.series.by_input]
    if not there:
        return None
    chosen = {s.step: s for s in (there[0], *(s for s in there if s.load == view.answer), there[-1])}
    names = {step: view.named(s) for step, s in chosen.items()}
    dots: Rows = []
    lines: Rows = []
    table = []
    for step, name in names.items():
        found = view.series.by_input[step]
        dots += [{"tokens": tokens, "ms": ms, "load": name} for tokens, ms in found.sampled.tolist()]
        for g in found.groups:
            span = f"{g.low:,}–{g.high:,}" if g.low < g.high else f"{g.low:,}"
            tip = f"{name}, {span} {w('axis.input')}: p50 {number(g.p50)} ms, p95 {number(g.p95)} ms, n {g.n:,}"
            lines.append({"tokens": (g.low + g.high) / 2, "ms": g.p50, "load": name, "tip": tip})
            table.append((name, span, number(g.p50), number(g.p95), f"{g.n:,}"))
    tokens, times = ([row[key] for row in dots + lines] for key in ("tokens", "ms"))
    x = alt.X("tokens:Q", title=w("axis.input"), scale=scale_of(tokens, zero=False), axis=axis_of(tokens))
    y = alt.Y("ms:Q", title="TTFT (ms)", scale=scale_of(times), axis=axis_of(times))
    legend = alt.Legend(title=view.load_title) if len(names) > 1 else None
    colours = alt.Scale(domain=list(names.values()), range=[BLUE, ORANGE, PURPLE][: len(names)])
    colour = alt.Color("load:N", scale=colours, sort=None, legend=legend)
    base = alt.Chart(data(lines))
    chart = alt.layer(
        alt.Chart(data(dots)).mark_point(size=14, opacity=0.4, aria=False).encode(x=x, y=y, color=colour),
        base.mark_line(aria=False).encode(x=x, y=y, color=colour),
        base.mark_point(size=45).encode(x=x, y=y, color=colour, description="tip:N"),
    ).properties(width=view.width, height=240)
    n = sum(view.series.by_input[step].n for step in names)
    caption = w("caption.input", n=f"{n:,}", steps=len(names), drawn=f"{len(dots):,}")
    head = (view.load_title, w("axis.input"), "TTFT p50 (ms)", "TTFT p95 (ms)", "n")
    return Figure("input", w("title.input"), caption, config(chart), Table(head, tuple(table)))
