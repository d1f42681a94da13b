"""Charts of what happened: the timeline of a run, its failures by load, the instrument's own error. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

import altair as alt
import numpy as np

from ...analysis.series import Timeline
from ...results import StepSummary
from ..health import bound_ms
from ..numbers import clean, number, percent
from ..text import load_cell
from .figure import Figure, Table, View
from .style import (
    BLUE,
    GREEN,
    GREY,
    MUTED,
    ORANGE,
    PURPLE,
    RED,
    SERIES,
    VOID,
    Rows,
    axis_of,
    config,
    data,
    load_axis,
    scale_of,
)

MOST_KINDS = 5  # of failures with a colour of their own
LONGEST = 34  # of a kind's name in a legend
MOST_SPANS = 40  # steps shaded on the timeline
MOST_ROWS = 200  # of a table
BROAD = 600  # px: below, a legend has two columns and an axis few ticks


def timeline(view: View) -> Figure | None:
    """Requests in flight, output tokens/s, failures and the server's own metrics over the run's time, each step
    shaded."""
    w = view.words
    line = view.series.timeline
    if line is None:
        return None
    middle = (line.edges_s[:-1] + line.edges_s[1:]) / 2
    x_domain = [float(line.edges_s[0]), float(line.edges_s[-1])]
    ours = w("legend.client")
    names: dict[str, str] = {ours: BLUE, w("legend.running"): GREEN, w("legend.waiting"): ORANGE}
    flight = _rows(middle, line.in_flight, ours)
    for term in ("running", "waiting"):
        if term in line.server:
            flight += _rows(*line.server[term], w(f"legend.{term}"))
    shades = _shades(view, line)
    tokens, kv, failed = w("legend.tokens"), w("legend.kv"), w("legend.failed")
    tracks = [
        (flight, w("axis.in_flight"), names, 150),
        (_rows(middle, line.output_tok_s, tokens), w("axis.output"), {tokens: BLUE}, 110),
    ]
    if "kv_use_share" in line.server:
        at, shares = line.server["kv_use_share"]
        tracks.append((_rows(at, 100 * shares, kv), w("axis.kv"), {kv: PURPLE}, 90))
    if line.failed.any():
        tracks.append((_rows(middle, line.failed, failed), w("axis.failed"), {failed: RED}, 80))
    last = len(tracks) - 1
    panels = [_track(view, *track, x_domain, shades, labelled=i == 0, last=i == last) for i, track in enumerate(tracks)]
    told = [w("caption.server")] if line.server else []
    caption = w.sentences(w("caption.timeline", n=f"{line.n:,}", bins=len(middle)), *told)
    chart = alt.vconcat(*panels, spacing=10).resolve_scale(color="independent")
    return Figure("timeline", w("title.timeline"), caption, config(chart), _span_table(view, line), wide=True)


def _rows(at: Any, values: Any, name: str) -> Rows:
    # Four digits are more than a pixel shows, and keep the page small.
    return [
        {"s": round(t, 3), "value": float(f"{v:.4g}"), "which": name}
        for t, v in zip(np.asarray(at).tolist(), np.asarray(values).tolist(), strict=True)
    ]


def _shades(view: View, line: Timeline) -> Rows:
    summaries = {s.step: s for s in view.summaries}
    spans = [span for span in line.spans if span.step in summaries][:MOST_SPANS]
    length = float(line.edges_s[-1] - line.edges_s[0])
    return [
        {
            "s": span.start_s,
            "to": span.end_s,
            "middle": (span.start_s + span.end_s) / 2,
            "label": load_cell(summaries[span.step]) if (span.end_s - span.start_s) > 0.05 * length else "",
            "odd": i % 2,
        }
        for i, span in enumerate(spans)
    ]


def _track(
    view: View,
    rows: Rows,
    title: str,
    names: dict[str, str],
    height: int,
    domain: list[float],
    shades: Rows,
    *,
    labelled: bool,
    last: bool,
) -> Any:
    there = {row["which"] for row in rows}
    names = {name: colour for name, colour in names.items() if name in there}
    x = alt.X(
        "s:Q",
        title=view.words("axis.time") if last else None,
        scale=alt.Scale(domain=domain, nice=False),
        axis=alt.Axis(grid=False, tickCount=6 if view.width < BROAD else 12),
    )
    columns = 2 if view.width < BROAD else 3
    legend = alt.Legend(symbolType="stroke", symbolStrokeWidth=3, columns=columns) if len(names) > 1 else None
    # Room for the labels above the line; a cache that was never used has an axis of one percent.
    top = max(max(row["value"] for row in rows) * (1.22 if labelled else 1.1), 1.0)
    scale = alt.Scale(domain=[0, top], nice=False)
    layers: list[Any] = []
    if len(shades) > 1:
        band = alt.Chart(data([row for row in shades if row["odd"]]))
        layers.append(band.mark_rect(color=GREY, opacity=0.13, aria=False).encode(x=x, x2="to:Q"))
    layers.append(
        alt.Chart(data(rows))
        .mark_line(interpolate="step", strokeWidth=1.4, aria=False)
        .encode(
            x=x,
            y=alt.Y("value:Q", title=title, scale=scale, axis=alt.Axis(tickCount=4, format=",~f")),
            color=alt.Color("which:N", scale=alt.Scale(domain=list(names), range=list(names.values())), legend=legend),
        )
    )
    if labelled and len(shades) > 1:
        layers.append(
            alt.Chart(data(shades))
            .mark_text(baseline="top", color=MUTED, aria=False)
            .encode(x=alt.X("middle:Q", scale=alt.Scale(domain=domain, nice=False)), y=alt.value(3), text="label:N")
        )
    return alt.layer(*layers).properties(width=view.width, height=height)


def _span_table(view: View, line: Timeline) -> Table:
    w = view.words
    spans = {span.step: span for span in line.spans}
    rows = []
    for s in list(view.summaries)[:MOST_ROWS]:
        span, server = spans.get(s.step), s.server
        rows.append(
            (
                f"{s.step}",
                load_cell(s),
                f"{span.start_s:,.1f} – {span.end_s:,.1f}" if span else "–",
                number(s.concurrency_mean),
                number(s.output_throughput.value) if s.output_throughput else "–",
                number(server.running) if server else "–",
                number(server.waiting) if server else "–",
                percent(server.kv_use_share) if server else "–",
                f"{s.sent:,}",
                f"{s.failed:,}",
            )
        )
    head = (
        *(w("table.step"), view.load_title, w("table.when"), w("table.mean_in_flight"), w("axis.output")),
        *(w("legend.running"), w("legend.waiting"), w("legend.kv"), "n", w("table.failed")),
    )
    return Table(head, tuple(rows))


# --- failures -------------------------------------------------------------------------------------------------------


def failures(view: View) -> Figure | None:
    """The share of requests that failed by load, stacked by kind."""
    w = view.words
    totals: Counter[str] = Counter()
    for s in view.summaries:
        for what, n in s.errors:
            totals[_kind(what)] += n
    if not totals:
        return None
    named = [kind for kind, _ in totals.most_common(MOST_KINDS)]
    others = w("mark.others")
    rows, table = [], []
    for s in view.drawn or list(view.summaries)[:MOST_ROWS]:
        kinds: Counter[str] = Counter()
        for what, n in s.errors:
            kinds[_kind(what) if _kind(what) in named else others] += n
        # A step that died in its warm-up has no measured request to hold them against.
        of = max(s.judged, sum(kinds.values()))
        for kind, n in kinds.items():
            tip = f"{load_cell(s)}: {n:,} × {kind}, {percent(n / of)} · n {of:,}"
            rows.append({"load": f"{load_cell(s)}", "step": s.step, "kind": kind, "share": n / of, "tip": tip})
            table.append((f"{s.step}", load_cell(s), kind, f"{n:,}", percent(n / of), f"{of:,}"))
        if not kinds:
            rows.append({"load": f"{load_cell(s)}", "step": s.step, "kind": named[0], "share": 0.0, "tip": ""})
    order = list(dict.fromkeys(str(row["load"]) for row in rows))
    kinds_shown = [*named, others] if any(row["kind"] == others for row in rows) else named
    chart = (
        alt.Chart(data(rows))
        .mark_bar()
        .encode(
            x=alt.X("load:N", title=view.load_title, sort=order, axis=alt.Axis(labelAngle=0, labelOverlap="greedy")),
            y=alt.Y("share:Q", title=w("axis.share_failed"), axis=alt.Axis(format="~%"), aggregate="max", stack="zero"),
            color=alt.Color(
                "kind:N",
                scale=alt.Scale(domain=kinds_shown, range=[RED, ORANGE, PURPLE, BLUE, GREEN, GREY][: len(kinds_shown)]),
                legend=alt.Legend(columns=1, labelLimit=view.width - 20),
            ),
            description="tip:N",
        )
        .properties(width=view.width, height=180)
    )
    n = sum(max(s.judged, 0) for s in view.summaries)
    caption = w("caption.failures", failed=f"{sum(s.failed for s in view.summaries):,}", n=f"{n:,}")
    head = (w("table.step"), view.load_title, w("table.kind"), w("table.count"), w("table.share"), "n")
    return Figure("failures", w("title.failures"), caption, config(chart), Table(head, tuple(table[:MOST_ROWS])))


def _kind(what: str) -> str:
    """A failure's kind, without the server's words where there are many."""
    text = clean(what)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


# --- the instrument -------------------------------------------------------------------------------------------------


def instrument(view: View) -> Figure | None:
    """The most that the client can have moved p99 of TTFT and ITL, beside these themselves, on one logarithmic axis."""
    w = view.words
    found: list[tuple[Rows, str]] = []
    table = []
    for metric, label in (("ttft", "TTFT"), ("itl", "ITL")):
        rows: Rows = []
        for s in view.drawn:
            bound, all_of = s.error_ms.get(metric), s.latency.get(metric)
            q = all_of.at(99.0) if all_of else None
            if bound is None or q is None or q.value <= 0 or bound.p99 <= 0:
                continue
            for which, value in ((w("legend.measured"), q.value), (w("legend.bound"), bound.p99)):
                tip = f"{label} p99, {view.named(s)}: {number(q.value)} ms,"
                tip += f" {w('legend.bound')} {bound_ms(bound.p99)} ms, n {q.n:,}"
                order, void = s.load * 1e6 + s.step, not view.counts(s)
                rows.append({"load": s.load, "value": value, "which": which, "order": order, "tip": tip, "void": void})
            table.append(
                (
                    label,
                    load_cell(s),
                    number(q.value),
                    bound_ms(bound.p99),
                    percent(bound.p99 / q.value),
                    *_client(s),
                    f"{q.n:,}",
                )
            )
        if rows:
            found.append((rows, label))
    if not found:
        return None
    panels = [_bounds(view, *one, last=one is found[-1]) for one in found]
    head = (
        w("table.metric"),
        view.load_title,
        "p99 (ms)",
        w("table.bound"),
        w("table.of_it"),
        w("table.cpu"),
        w("table.lag"),
        "n",
    )
    n = sum(s.requests.get("ok", 0) for s in view.drawn)
    chart = alt.vconcat(*panels).resolve_scale(color="shared")
    caption = view.captioned(w("caption.instrument", n=f"{n:,}", steps=len(view.drawn)))
    return Figure("instrument", w("title.instrument"), caption, config(chart), Table(head, tuple(table)))


def _client(s: StepSummary) -> tuple[str, str]:
    h = s.health
    lag = h.loop_lag_us if h else None
    return percent(h.cpu_share) if h and h.cpu_share is not None else "–", number(lag.p99 / 1e3) if lag else "–"


def _bounds(view: View, rows: Rows, label: str, *, last: bool) -> Any:
    w = view.words
    names = [w("legend.measured"), w("legend.bound")]
    values = [row["value"] for row in rows]
    counted, crossed = (
        alt.Chart(data([row for row in rows if row["void"] is void])).encode(
            x=load_axis([row["load"] for row in rows], view.load_title if last else None),
            y=alt.Y("value:Q", title=f"{label} p99 (ms)", scale=scale_of(values), axis=axis_of(values)),
            color=alt.Color("which:N", scale=alt.Scale(domain=names, range=[SERIES[0], RED]), legend=alt.Legend()),
        )
        for void in (False, True)
    )
    return alt.layer(
        counted.mark_line(aria=False).encode(order="order:Q"),
        counted.mark_point(size=55).encode(description="tip:N"),
        crossed.mark_point(size=60, filled=False, strokeWidth=1.6, shape=VOID).encode(description="tip:N"),
    ).properties(width=view.width, height=130)
