"""The Pareto curve: what a user gets against what the server gives. Pure."""

from __future__ import annotations

from typing import Any

import altair as alt

from ..numbers import number
from ..text import load_cell
from .figure import Figure, Table, View
from .style import BLUE, GREY, INK, VOID, Rows, config, data


def pareto(view: View) -> Figure | None:
    """What a user gets against what the server gives, by load; per GPU with `gpus`, and the cost of a million output
    tokens with a `price` too."""
    w = view.words
    known = [
        (s, s.tokens_per_user, s.output_throughput.value)
        for s in view.drawn
        if s.tokens_per_user and s.output_throughput
    ]
    if not known:
        return None
    counted = [(user, total) for s, user, total in known if view.counts(s)]
    share = view.gpus or 1
    per_hour = view.price * share if view.price else None
    rows: Rows = []
    for s, user, total in known:
        front = not any(u >= user and t >= total and (u, t) != (user, total) for u, t in counted)
        place = ("front" if front else "behind") if view.counts(s) else ""
        cost = per_hour / (total * 3600 / 1e6) if per_hour and total else None
        rows.append(
            {
                "user": user,
                "value": total / share,
                "cost": cost,
                "order": s.load * 1e6 + s.step,
                "label": load_cell(s),
                "front": w(f"mark.{place}") if place else w("verdict.invalid"),
                "void": not place,
                "tip": f"{view.named(s)}: {number(user)} tokens/s/user, {number(total / share)} "
                f"{w('axis.output_gpu' if view.gpus else 'axis.output')}"
                + (f", {number(cost)} {w('axis.cost')}" if cost is not None else "")
                + f", n {s.requests.get('ok', 0):,}, {w('table.failed')} {s.failed:,}",
            }
        )
    panels = [_front(view, rows, "value", w("axis.output_gpu" if view.gpus else "axis.output"))]
    if per_hour:
        panels.append(_front(view, rows, "cost", w("axis.cost")))
    head = [view.load_title, w("axis.user"), w("axis.output_gpu" if view.gpus else "axis.output")]
    head += [w("axis.cost")] if per_hour else []
    table = [
        (
            row["label"],
            number(row["user"]),
            number(row["value"]),
            *((number(row["cost"]),) if per_hour else ()),
            row["front"],
            f"{s.requests.get('ok', 0):,}",
            f"{s.failed:,}",
        )
        for row, (s, _, _) in zip(rows, known, strict=True)
    ]
    n = sum(s.requests.get("ok", 0) for s, _, _ in known)
    caption = w("caption.pareto", n=f"{n:,}", steps=len(known))
    caption = view.captioned(caption)
    if view.gpus:
        caption = w.sentences(caption, w("caption.gpus", gpus=f"{view.gpus:,}"))
    if per_hour:
        caption = w.sentences(caption, w("caption.price", price=number(view.price)))
    full = Table((*head, w("table.front"), "n", w("table.failed")), tuple(table))
    return Figure("pareto", w("title.pareto"), caption, config(alt.vconcat(*panels)), full)


def _front(view: View, rows: Rows, field: str, title: str) -> Any:
    w = view.words
    scale = alt.Scale(zero=False, nice=True, padding=12)
    top = max(row[field] for row in rows) * 1.12
    x = alt.X("user:Q", title=w("axis.user"), scale=scale, axis=alt.Axis(tickCount=6))
    y = alt.Y(f"{field}:Q", title=title, scale=alt.Scale(domain=[0, top], nice=False))
    void, counted = ([row for row in rows if row["void"] is is_void] for is_void in (True, False))
    base, crossed = (alt.Chart(data(some)).encode(x=x, y=y) for some in (counted, void))
    names = [w("mark.front"), w("mark.behind")]
    colour = alt.Color("front:N", scale=alt.Scale(domain=names, range=[BLUE, GREY]), legend=alt.Legend())
    return alt.layer(
        base.mark_line(color=GREY, strokeWidth=1.2, aria=False).encode(order="order:Q"),
        base.mark_point(filled=True, size=70).encode(color=colour, description="tip:N"),
        crossed.mark_point(filled=False, size=60, strokeWidth=1.6, shape=VOID, color=GREY).encode(description="tip:N"),
        alt.Chart(data(_apart(rows, field)))
        .mark_text(align="left", dx=7, dy=-6, aria=False, color=INK)
        .encode(x="user:Q", y=f"{field}:Q", text="label:N"),
    ).properties(width=view.width, height=220)


def _apart(rows: Rows, field: str) -> Rows:
    """The points that stand far enough from those before to be labelled."""
    if not rows:
        return []
    reach = [max(row[key] for row in rows) - min(row[key] for row in rows) or 1.0 for key in ("user", field)]
    kept: Rows = []
    for row in rows:
        if all(
            abs(row["user"] - one["user"]) / reach[0] > 0.09 or abs(row[field] - one[field]) / reach[1] > 0.09
            for one in kept
        ):
            kept.append(row)
    return kept
