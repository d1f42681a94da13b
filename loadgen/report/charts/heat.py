"""Buckets of requests as heat maps: a latency by two of their properties. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import altair as alt

from ...analysis.buckets import LEAST, Bucket
from ..numbers import clean, number, percent
from .figure import Figure, Table, View
from .style import HEAT, MUTED, ON_DEEP, ON_PALE, Rows, config, data

SHOWN = (("ttft", "TTFT"), ("tpot", "TPOT"))
MOST = 14  # labels of an axis that are drawn
LONGEST = 18  # of a label
MOST_ROWS = 200
BROAD = 600  # px: from here on two heat maps stand side by side
LEAST_SPAN = 1.5  # smaller differences are not to look large


def buckets(view: View) -> Figure | None:
    """Median TTFT and TPOT by two properties of the requests, a heat map for each pair of properties."""
    w = view.words
    panels, table = [], []
    told: list[str] = []
    for one in view.buckets:
        found = one.cells
        if len(found) < 2 or len(found[0].labels) != 2:
            continue
        axes = list(found[0].labels)
        where = f"{view.load_title} {one.load}" if one.load else w("mark.all_loads")
        kept = [list(_order(found, axis).values()) for axis in axes]
        suffix = f" · {view.load_title} {one.load}" if one.load else ""
        pair = []
        for metric, label in SHOWN:
            rows = _cells(view, found, axes, metric, label)
            if any(row["value"] is not None for row in rows):
                pair.append(_heat(view, rows, axes, kept, f"{label} p50 (ms){suffix}"))
        if pair:
            panels.append(alt.hconcat(*pair) if view.width >= BROAD else alt.vconcat(*pair))
        table += [_line(view, bucket, axes) for bucket in found]
        n = sum(bucket.ok for bucket in found)
        told.append(w("caption.bucketed", n=f"{n:,}", where=where))
    if not panels:
        return None
    caption = w.sentences(*dict.fromkeys(told), w("caption.buckets", least=LEAST))
    chart = alt.vconcat(*panels)
    head = (
        w("table.bucket"),
        w("table.bucket"),
        "TTFT p50 (ms)",
        "TTFT p95 (ms)",
        "TPOT p50 (ms)",
        w("table.share"),
        "n",
        w("table.failed"),
    )
    return Figure(
        "buckets", w("title.buckets"), caption, config(chart), Table(head, tuple(table[:MOST_ROWS])), wide=True
    )


def _cells(view: View, found: Sequence[Bucket], axes: list[str], metric: str, label: str) -> Rows:
    kept = [_order(found, axis) for axis in axes]
    rows: Rows = []
    for bucket in found:
        x, y = (bucket.labels[axis] for axis in axes)
        if x not in kept[0] or y not in kept[1]:
            continue
        q = bucket.latency[metric].at(50.0) if metric in bucket.latency else None
        value = q.value if q is not None and bucket.established else None
        shown = number(value) if value is not None else f"n {bucket.ok:,}"
        tip = (
            f"{view.words('bucket.' + axes[0])} {clean(x)}, {view.words('bucket.' + axes[1])} {clean(y)}: "
            f"{label} p50 {number(value) + ' ms' if value is not None else view.words('mark.weak')}, "
            f"n {bucket.ok:,}, {view.words('table.failed')} {bucket.failed:,}"
        )
        rows.append({"x": kept[0][x], "y": kept[1][y], "value": value, "shown": shown, "tip": tip})
    values = [row["value"] for row in rows if row["value"] is not None]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    high = max(high, LEAST_SPAN * low)
    for row in rows:
        part = 0.0 if row["value"] is None or high <= low else (row["value"] - low) / (high - low)
        row["deep"] = part > 0.55
    return rows


def _order(found: Sequence[Bucket], axis: str) -> dict[str, str]:
    """Label → what is drawn of it, in rising order; no two alike."""
    labels = sorted(dict.fromkeys(bucket.labels[axis] for bucket in found), key=_first)[:MOST]
    shown: dict[str, str] = {}
    for i, label in enumerate(labels):
        text = clean(label)
        text = text if len(text) <= LONGEST else "…" + text[1 - LONGEST :]
        shown[label] = text if text not in shown.values() else f"{text} {i + 1}"
    return shown


def _first(label: str) -> float:
    """The number that a label begins with; one without keeps its place."""
    match = re.match(r"[\d,]+(?:\.\d+)?(?![\d/])", label)
    return float(match[0].replace(",", "")) if match and "/" not in label.split(" ")[0] else 0.0


def _heat(view: View, rows: Rows, axes: list[str], kept: list[list[str]], title: str) -> Any:
    w = view.words
    columns, lines = kept
    x = alt.X(
        "x:O",
        sort=columns,
        title=w("bucket." + axes[0]),
        axis=alt.Axis(labelAngle=0, labelOverlap="greedy", grid=False),
    )
    y = alt.Y("y:O", sort=lines[::-1], title=w("bucket." + axes[1]), axis=alt.Axis(grid=False))
    known = [row for row in rows if row["value"] is not None]
    weak = [row for row in rows if row["value"] is None]
    layers: list[Any] = []
    if known:
        base = alt.Chart(data(known)).encode(x=x, y=y)
        values = [row["value"] for row in known]
        low, high = min(values), max(*values, LEAST_SPAN * min(values))
        scale = alt.Scale(range=list(HEAT), interpolate="lab", domain=[low, high])
        layers.append(
            base.mark_rect().encode(color=alt.Color("value:Q", scale=scale, legend=None), description="tip:N")
        )
        text = alt.condition("datum.deep", alt.value(ON_DEEP), alt.value(ON_PALE))
        # The number lies on its cell, so that it is what the pointer is on.
        layers.append(base.mark_text().encode(text="shown:N", color=text, description="tip:N"))
    if weak:
        layers.append(
            alt.Chart(data(weak))
            .mark_text(color=MUTED, fontSize=10.5)
            .encode(x=x, y=y, text="shown:N", description="tip:N")
        )
    width = view.width / 2 - 75 if view.width >= BROAD else view.width - 40
    return (
        alt.layer(*layers)
        .resolve_scale(color="independent")
        .properties(width=width, height=max(34, 30 * len(lines)), title=title)
    )


def _line(view: View, bucket: Bucket, axes: list[str]) -> tuple[str, ...]:
    w = view.words
    points = [(name, p) for name, p in (("ttft", 50.0), ("ttft", 95.0), ("tpot", 50.0))]
    cells = []
    for name, p in points:
        q = bucket.latency[name].at(p) if bucket.established and name in bucket.latency else None
        cells.append("–" if q is None else number(q.value) + ("" if q.established or p == 50.0 else " *"))
    names = [f"{w('bucket.' + axis)} {clean(bucket.labels[axis])}" for axis in axes]
    return (*names, *cells, percent(bucket.request_share), f"{bucket.ok:,}", f"{bucket.failed:,}")
