"""Charts of several runs: their curves over each other, and the differences with their intervals. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
from altair.utils.schemapi import debug_mode

from ...analysis.compare import Compared, Comparison, Difference
from ...results import StepSummary
from ..compared import letter, metric_name, short
from ..numbers import NONE, number, with_error, with_interval
from ..text import load_cell
from ..words import ENGLISH, Words
from .figure import WIDTH, Figure, Table, thinned
from .style import GREEN, GREY, INK, RED, SERIES, Rows, axis_of, config, data, load_axis, scale_of

MOST_RUNS = len(SERIES)  # that have a colour of their own
MOST_DIFFERENCES = 30


@dataclass(frozen=True, slots=True)
class Several:
    """Runs side by side, the first of them A, each a list of steps."""

    names: Sequence[str]
    runs: Sequence[Sequence[StepSummary]]
    compared: Compared
    refused: str = ""
    words: Words = ENGLISH
    width: int = WIDTH

    @property
    def lettered(self) -> list[tuple[str, list[StepSummary]]]:
        """The runs that are drawn, each with its steps by load."""
        return [(letter(i), thinned(steps)) for i, steps in enumerate(self.runs[:MOST_RUNS])]

    @property
    def load_title(self) -> str:
        rates = any(s.rate is not None for steps in self.runs for s in steps)
        return self.words("axis.rate" if rates else "axis.in_flight")


def compared_figures(several: Several) -> list[Figure]:
    """All that these runs have something for, in the order of the page; without the differences where they were not
    compared."""
    with debug_mode(False):  # as in `draw`
        found = [differences(several)] if not several.refused else []
        found += [throughput(several), latency(several), pareto(several)]
    return [figure for figure in found if figure is not None]


def throughput(several: Several) -> Figure | None:
    """Output tokens/s against load, a line for each run."""
    w = several.words
    rows: Rows = []
    table = []
    for name, steps in several.lettered:
        for s in steps:
            e = s.output_throughput
            if e is None:
                continue
            low, high = e.low or e.value, e.high if e.high is not None and math.isfinite(e.high) else e.value
            tip = f"{name}, {load_cell(s)}: {with_error(e)} tokens/s, {_counts(several, s)}"
            rows.append(_row(name, s, e.value, low, high, tip))
            table.append((name, load_cell(s), with_error(e), f"{s.requests.get('ok', 0):,}", f"{s.failed:,}"))
    if not rows:
        return None
    top = max(row["high"] for row in rows) * 1.1
    chart = _lines(several, rows, w("axis.output"), alt.Scale(domain=[0, top], nice=False), alt.Axis(), 240)
    head = (w("table.run"), several.load_title, w("axis.output"), "n", w("table.failed"))
    return Figure("throughput", w("title.throughput"), _caption(several), config(chart), Table(head, tuple(table)))


def latency(several: Several) -> Figure | None:
    """p50 and p95 of TTFT and TPOT against load, a line for each run."""
    w = several.words
    found: list[tuple[Rows, str]] = []
    table = []
    for metric, label in (("ttft", "TTFT"), ("tpot", "TPOT")):
        for p in (50.0, 95.0):
            rows: Rows = []
            for name, steps in several.lettered:
                for s in steps:
                    q = s.latency[metric].at(p) if metric in s.latency else None
                    if q is None or q.value <= 0:
                        continue
                    shown = with_interval(q) if q.established else f"{number(q.value)} ({w('mark.weak')})"
                    tip = f"{name}, {label} p{p:g}, {load_cell(s)}: {shown} ms, {_counts(several, s)}"
                    rows.append(_row(name, s, q.value, q.low or q.value, q.high or q.value, tip))
                    table.append((name, f"{label} p{p:g}", load_cell(s), shown, f"{q.n:,}", f"{s.failed:,}"))
            if rows:
                found.append((rows, f"{label} p{p:g} (ms)"))
    if not found:
        return None
    panels = []
    for rows, title in found:
        values = [row[key] for row in rows for key in ("low", "high")]
        last = rows is found[-1][0]
        panels.append(_lines(several, rows, title, scale_of(values), axis_of(values), 120, titled=last))
    head = (w("table.run"), w("table.metric"), several.load_title, "ms [95 %]", "n", w("table.failed"))
    spec = config(alt.vconcat(*panels).resolve_scale(color="shared"))
    return Figure("latency", w("title.latency"), _caption(several), spec, Table(head, tuple(table)))


def pareto(several: Several) -> Figure | None:
    """Tokens/s per user against tokens/s in all, a line for each run."""
    w = several.words
    rows: Rows = []
    table = []
    for name, steps in several.lettered:
        for s in steps:
            if not s.tokens_per_user or s.output_throughput is None:
                continue
            total = s.output_throughput.value
            tip = (
                f"{name}, {load_cell(s)}: {number(s.tokens_per_user)} / {number(total)} tokens/s, {_counts(several, s)}"
            )
            rows.append({**_row(name, s, total, total, total, tip), "user": s.tokens_per_user})
            cells = (number(s.tokens_per_user), number(total), f"{s.requests.get('ok', 0):,}", f"{s.failed:,}")
            table.append((name, load_cell(s), *cells))
    if not rows:
        return None
    base = alt.Chart(data(rows)).encode(
        x=alt.X("user:Q", title=w("axis.user"), scale=alt.Scale(zero=False, nice=True, padding=10)),
        y=alt.Y("value:Q", title=w("axis.output"), scale=alt.Scale(zero=True, nice=True)),
        color=_colour(several),
    )
    chart = alt.layer(
        base.mark_line(strokeWidth=1.4, aria=False).encode(order="order:Q"),
        base.mark_point(size=55).encode(description="tip:N"),
    ).properties(width=several.width, height=220)
    head = (w("table.run"), several.load_title, w("axis.user"), w("axis.output"), "n", w("table.failed"))
    return Figure("pareto", w("title.pareto"), _caption(several), config(chart), Table(head, tuple(table)))


def differences(several: Several) -> Figure | None:
    """The change of each primary figure against A, with its interval; a panel for each run."""
    w = several.words
    panels = []
    for i, one in enumerate(several.compared.against_first[: MOST_RUNS - 1], 1):
        rows = [row for d in drawn_differences(one) if (row := _change(several, d)) is not None]
        if rows:
            panels.append(_forest(several, rows, letter(i)))
    if not panels:
        return None
    spec = config(alt.vconcat(*panels).resolve_scale(color="shared", x="independent", y="independent"))
    n = sum(s.requests.get("ok", 0) for steps in several.runs for s in steps)
    caption = w.sentences(w("caption.differences"), w("caption.count", n=f"{n:,}", runs=len(several.runs)))
    return Figure("differences", w("title.differences"), caption, spec, difference_table(several))


def drawn_differences(one: Comparison) -> list[Difference]:
    """Those over all loads together, then the primary ones; without any of these, all."""
    chosen = [*one.curve, *one.primary] or list(one.differences)
    return [d for d in chosen if d.ratio is not None][:MOST_DIFFERENCES]


def outcome(d: Difference) -> str:
    """Which word a difference gets: better, worse, or that none is established."""
    if not d.found or d.ratio is None:
        return "open"
    return "better" if (d.ratio.ratio.value > 1) == d.more_is_better else "worse"


def difference_table(several: Several) -> Table:
    """Every difference, of every run, with the counts of both sides' requests."""
    w = several.words
    n = [{s.load: s.requests.get("ok", 0) for s in steps} for steps in several.runs]
    rows = []
    for i, one in enumerate(several.compared.against_first, 1):
        for d in [*one.curve, *one.differences]:
            if d.ratio is None:
                continue
            counts = f"{_n(n[0], d)} / {_n(n[i], d)}"
            rows.append(
                (letter(i), w.said(short(d)), number(d.a), number(d.b), span(d), counts, w(f"mark.{outcome(d)}"))
            )
    head = (w("table.run"), w("table.metric"), "A", "B", w("table.change"), "n (A / B)", w("table.result"))
    return Table(head, tuple(rows))


def _n(counts: dict[float, int], d: Difference) -> str:
    if d.load is None or len(counts) == 1:
        return f"{sum(counts.values()):,}"
    return f"{counts.get(d.load.value, 0):,}"


def span(d: Difference) -> str:
    """`+12.3 % [+10.1 %, +14.6 %]`."""
    if d.ratio is None:
        return NONE
    e = d.ratio.ratio
    return signed(e.value) + (f" [{signed(e.low)}, {signed(e.high)}]" if e.low and e.high else "")


def signed(ratio: float) -> str:
    return f"{100 * (ratio - 1):+z.1f} %".replace("-", "−")


def _label(d: Difference) -> str:
    """`p95 TTFT · 16`, short enough for the margin of a chart."""
    name = "tokens/s" if d.percentile is None else metric_name(d)
    return name if d.load is None else f"{name} · {d.load.value:,g}"


def _change(several: Several, d: Difference) -> dict[str, Any] | None:
    e = d.ratio.ratio if d.ratio is not None else None
    if e is None or not math.isfinite(e.value):
        return None
    w = several.words
    low, high = (100 * (x - 1) if x is not None and math.isfinite(x) else None for x in (e.low, e.high))
    value = 100 * (e.value - 1)
    return {
        "what": _label(d),
        "value": value,
        "low": value if low is None else low,
        "high": value if high is None else high,
        "result": w(f"mark.{outcome(d)}"),
        "tip": f"{w.said(short(d))}: {signed(e.value)}, {w(f'mark.{outcome(d)}')}",
    }


def _forest(several: Several, rows: Rows, name: str) -> Any:
    w = several.words
    names = [w("mark.better"), w("mark.worse"), w("mark.open")]
    order = list(dict.fromkeys(row["what"] for row in rows))
    colour = alt.Color("result:N", scale=alt.Scale(domain=names, range=[GREEN, RED, GREY]), legend=alt.Legend())
    base = alt.Chart(data(rows)).encode(
        y=alt.Y("what:N", sort=order, title=None, axis=alt.Axis(labelLimit=150, grid=False)), color=colour
    )
    zero = alt.Chart(data([{"value": 0}])).mark_rule(color=INK, strokeDash=[2, 2], aria=False)
    x = alt.X("value:Q", title=w("axis.change"), scale=alt.Scale(nice=True, padding=8), axis=alt.Axis(tickCount=5))
    return alt.layer(
        zero.encode(x="value:Q"),
        base.mark_rule(strokeWidth=2, aria=False).encode(x="low:Q", x2="high:Q"),
        base.mark_point(size=60).encode(x=x, description="tip:N"),
    ).properties(width=several.width - 110, height=max(40, 21 * len(order)), title=f"{name} / A")


def _lines(
    several: Several, rows: Rows, title: str, scale: alt.Scale, axis: alt.Axis, height: int, *, titled: bool = True
) -> Any:
    y = alt.Y("value:Q", title=title, scale=scale, axis=axis)
    base = alt.Chart(data(rows)).encode(
        x=load_axis([row["load"] for row in rows], several.load_title if titled else None), color=_colour(several)
    )
    return alt.layer(
        base.mark_line(aria=False).encode(y=y, order="order:Q"),
        base.mark_rule(strokeWidth=1.4, aria=False).encode(y="low:Q", y2="high:Q"),
        base.mark_point(size=50).encode(y=y, description="tip:N"),
    ).properties(width=several.width, height=height)


def _colour(several: Several) -> alt.Color:
    names = [name for name, _ in several.lettered]
    return alt.Color("run:N", scale=alt.Scale(domain=names, range=list(SERIES[: len(names)])), legend=alt.Legend())


def _row(name: str, s: StepSummary, value: float, low: float, high: float, tip: str) -> dict[str, Any]:
    order = s.load * 1e6 + s.step
    return {"run": name, "load": s.load, "value": value, "low": low, "high": high, "order": order, "tip": tip}


def _counts(several: Several, s: StepSummary) -> str:
    return f"n {s.requests.get('ok', 0):,}, {several.words('table.failed')} {s.failed:,}"


def _caption(several: Several) -> str:
    n = sum(s.requests.get("ok", 0) for _, steps in several.lettered for s in steps)
    return several.words("caption.several", n=f"{n:,}", runs=len(several.lettered))
