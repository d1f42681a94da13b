"""How every chart looks: colours, sizes, axes; and the few marks that all of them are made of.

Colours are chosen on white. `DARK` says what each becomes on a dark page; a page that colours by attribute can replace
them, as no chart uses any other for ink. Widths are those of the plotting area, chosen for a phone: on a wide screen
two charts stand side by side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

INK, MUTED, GRID = "#1f2328", "#57606a", "#e4e7eb"
BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0a62ad", "#b35309", "#1a7f37", "#c81e1e", "#7b3fa0", "#6e7781"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, RED, GREY)
# Ten steps of rising load: from pale to dark on white, and the other way round on black.
LOADS = (
    *("#8fc3ea", "#6fb0e2", "#4f9bd6", "#3587c6", "#2373b3"),
    *("#1a609b", "#154f83", "#113f6b", "#0d3054", "#09213e"),
)
DARK = {
    INK: "#e6edf3",
    MUTED: "#9aa4af",
    GRID: "#30363d",
    BLUE: "#58a6ff",
    ORANGE: "#f0883e",
    GREEN: "#4fc36b",
    RED: "#ff7b72",
    PURPLE: "#c297ff",
    GREY: "#8b949e",
    **dict(
        zip(
            LOADS,
            (
                *("#2b5f94", "#336fa9", "#3c7fbd", "#478fcf", "#57a0de"),
                *("#6bb1ea", "#82c1f3", "#9cd0f9", "#b9defd", "#d9edff"),
            ),
            strict=True,
        )
    ),
}
HEAT = ("#fdf3d8", "#f6c667", "#e2772f", "#9c2a1f", "#4a0d1c")  # the same on both grounds
ON_PALE, ON_DEEP = "#141414", "#fdfdfd"  # text on HEAT
VERDICTS = {
    "pass": (GREEN, "circle"),
    "fail": (RED, "cross"),
    "invalid": (RED, "diamond"),
    "marginal": (ORANGE, "triangle-up"),
    "inconclusive": (ORANGE, "square"),
    "baseline": (GREY, "circle"),
    "measured": (BLUE, "circle"),
}
VOID = "M-.6,-.6L.6,.6M-.6,.6L.6,-.6"  # a cross of lines: a step that does not count
FONT = "Arial, Helvetica, sans-serif"
LOG_FROM = 8.0  # times the smallest value

Rows = list[dict[str, Any]]


def data(rows: Sequence[Mapping[str, Any]]) -> alt.InlineData:
    """Rows inline. As a tuple: a list would be copied, row by row, whenever a chart becomes part of another."""
    return alt.InlineData(values=tuple(rows))


def scale_of(values: Sequence[float], *, zero: bool = True) -> alt.Scale:
    """Logarithmic where the values span more than LOG_FROM, else linear, from zero or not."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if low > 0 and high > LOG_FROM * low:
        return alt.Scale(type="log", nice=False, domain=[low / 1.12, high * 1.12])
    if zero:
        return alt.Scale(type="linear", nice=False, domain=[0, high * 1.1 or 1.0])
    return alt.Scale(type="linear", zero=False, nice=True)


def axis_of(values: Sequence[float], *, grid: bool = True) -> alt.Axis:
    """Ticks at 1, 2 and 5 of each decade, at 1 alone over many decades, where `scale_of` is logarithmic."""
    known = [v for v in values if v > 0]
    ticks: list[float] = []
    if known and min(values) > 0:
        first, last = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
        digits = (1, 2, 5) if last - first <= 3 else (1,)
        ticks = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
        ticks = [tick for tick in ticks if min(known) / 1.3 <= tick <= max(known) * 1.3]
    if len(ticks) < 2 or scale_of(values).type != "log":
        return alt.Axis(format=",~f", labelOverlap="greedy", labelSeparation=6, grid=grid, tickCount=6)
    return alt.Axis(values=ticks, format=",~f", labelOverlap="greedy", labelSeparation=6, grid=grid)


def load_axis(loads: Sequence[float], title: str | None) -> alt.X:
    """The load, logarithmic where it was doubled; its ticks are the loads that were measured."""
    ticks = sorted(set(loads))
    if len(ticks) > 1 and ticks[0] > 0 and ticks[-1] >= 6 * ticks[0]:
        scale = alt.Scale(type="log", base=2, nice=False, padding=14)
    else:
        scale = alt.Scale(type="linear", zero=False, nice=len(ticks) > 1, padding=14)
    axis = alt.Axis(values=ticks, labelOverlap="greedy", labelSeparation=4, format=",~f", grid=False)
    return alt.X("load:Q", title=title, scale=scale, axis=axis)


def rule_label(load: float, text: str, *, left: bool, colour: str = INK) -> Any:
    """A dashed vertical rule at a load, with its label at the top, to its left or its right."""
    rows = data([{"load": load, "text": text}])
    rule = alt.Chart(rows).mark_rule(color=colour, strokeDash=[5, 3], strokeWidth=1.2, aria=False).encode(x="load:Q")
    label = (
        alt.Chart(rows)
        .mark_text(
            align="right" if left else "left",
            dx=-4 if left else 4,
            baseline="top",
            color=colour,
            aria=False,
        )
        .encode(x="load:Q", y=alt.value(2), text="text:N")
    )
    return alt.layer(rule, label)


def config(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """The finished spec: a chart with the looks that all share."""
    text = {"labelColor": MUTED, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12.5, "titleFontWeight": 500}
    looks: dict[str, Any] = {
        "font": FONT,
        "background": "transparent",
        "view": {"stroke": None},
        "axis": {**text, "gridColor": GRID, "domainColor": MUTED, "tickColor": MUTED, "titlePadding": 6},
        "axisX": {"labelPadding": 5},
        "axisY": {"domain": False, "ticks": False, "tickCount": 5, "minExtent": 34},
        "legend": {
            **text,
            "labelColor": INK,
            "orient": "top",
            "direction": "horizontal",
            "title": None,
            "symbolSize": 60,
            "labelFontSize": 12,
            "labelLimit": 190,
            "columnPadding": 20,
            "offset": 6,
        },
        "header": {"labelColor": INK, "titleColor": INK},
        "title": {"color": INK, "fontSize": 12.5, "anchor": "start", "fontWeight": 600, "offset": 6},
        "text": {"color": INK, "fontSize": 12},
        "line": {"strokeWidth": 1.8},
        "rule": {"color": INK},
        "point": {"size": 55, "filled": True, "opacity": 1},
        "concat": {"spacing": 16},
    }
    spec: dict[str, Any] = chart.to_dict(validate=False)
    spec["config"] = looks
    spec["datasets"] = {name: list(rows) for name, rows in spec.get("datasets", {}).items()}
    spec.setdefault("padding", 4)
    return spec
