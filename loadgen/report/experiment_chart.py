"""An experiment's ratios with their intervals, as SVG or PNG. Needs the `plot` extra (Altair, vl-convert)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..experiments.definition import Experiment
from ..experiments.verdict import Judged
from .compared import metric_name
from .picture import check_picture, save

WIDTH, ROW = 460, 34


def check_plot(path: str) -> None:
    """As `check_picture`."""
    check_picture(Path(path))


def write_experiment_chart(experiment: Experiment, found: Sequence[Judged], path: str) -> None:
    """Raises UsageError as `check_plot`, LogError where the file cannot be written."""
    check_plot(path)
    import altair as alt

    save(_chart(alt, experiment, found), Path(path), scale=1.5)


def chart_rows(found: Sequence[Judged]) -> list[dict[str, Any]]:
    """One row a figure that has a ratio: B over A, its interval, and where there is one, the ratio by hand."""
    rows: list[dict[str, Any]] = []
    for one in found:
        for i, d in enumerate(one.differences):
            if d.ratio is None:
                continue
            ratio = d.ratio.ratio
            better = (ratio.value > 1) == d.more_is_better
            rows.append(
                {
                    "setting": one.setting.title,
                    "figure": metric_name(d),
                    "ratio": ratio.value,
                    "low": ratio.value if ratio.low is None else ratio.low,
                    "high": ratio.value if ratio.high is None else ratio.high,
                    "effect": "no difference" if not d.found else "B is better" if better else "B is worse",
                    "by hand": one.formula if i == 0 else None,
                    "place": len(rows),
                }
            )
    return rows


def _chart(alt: Any, experiment: Experiment, found: Sequence[Judged]) -> Any:
    rows = chart_rows(found)
    data = alt.Data(values=rows)
    every = [row[key] for row in rows for key in ("low", "high", "by hand") if row[key]]
    edges = [min(0.8, *every) / 1.1, max(1.25, *every) * 1.1] if every else [0.5, 2]
    scale = alt.Scale(type="log", domain=edges, nice=False)
    x = alt.X(
        "ratio:Q",
        scale=scale,
        title="B / A, log scale, with 95 % interval",
        axis=alt.Axis(tickCount=7, format="~g"),
    )
    y = alt.Y("figure:N", title=None, sort=alt.SortField("place"), axis=alt.Axis(labelLimit=180))
    color = alt.Color(
        "effect:N",
        title=None,
        scale=alt.Scale(domain=["B is better", "B is worse", "no difference"], range=["#2a7f4f", "#b5452c", "#777777"]),
        legend=alt.Legend(orient="bottom"),
    )
    base = alt.Chart(data)
    layers = alt.layer(
        base.mark_rule(color="#999999").encode(x=alt.datum(1.0, type="quantitative")),
        base.mark_rule(strokeWidth=3).encode(x=alt.X("low:Q", scale=scale), x2="high:Q", y=y, color=color),
        base.mark_point(filled=True, size=70, opacity=1).encode(x=x, y=y, color=color),
        base.mark_point(shape="diamond", size=140, color="#333333", strokeWidth=1.5)
        .transform_filter("isValid(datum['by hand'])")
        .encode(x=alt.X("by hand:Q", scale=scale), y=y),
    ).properties(width=WIDTH, height=alt.Step(ROW))
    title = alt.Title(experiment.name, subtitle=f"changed: {experiment.changed} · diamond: by hand", anchor="start")
    return (
        layers.facet(
            row=alt.Row(
                "setting:N",
                title=None,
                sort=alt.SortField("place"),
                header=alt.Header(labelOrient="top", labelAnchor="start"),
            )
        )
        .resolve_scale(y="independent")
        .properties(title=title)
    )
