"""Memory of a GPU against requests in flight, as SVG or PNG. Needs the `plot` extra (Altair, vl-convert)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..analysis.planning import CapacityPlan
from ..hardware.model import GIB
from .picture import check_picture, save


def write_memory_chart(plan: CapacityPlan, path: Path) -> None:
    """Raises UsageError for another suffix or without the extra, LogError where the file cannot be written."""
    check_picture(path)
    import altair as alt

    save(_chart(alt, plan), path)


def _chart(alt: Any, plan: CapacityPlan) -> Any:
    use = plan.memory
    parts = (("weights", use.weights), ("activations", use.activations), ("runtime", use.runtime))
    fixed = sum(size for _, size in parts)
    rows = [
        {"requests": n, "GiB": size / GIB, "part": name, "order": order}
        for n, used in plan.curve
        for order, (name, size) in enumerate((*parts, ("KV cache", used - fixed)))
    ]
    limits = [
        {"GiB": use.usable / GIB, "limit": f"usable ({plan.on.utilisation:.0%})"},
        {"GiB": use.total / GIB, "limit": f"all of a {plan.on.gpu.name}"},
    ]
    names = [name for name, _ in parts] + ["KV cache"]
    area = (
        alt.Chart(alt.Data(values=rows))
        .mark_area()
        .encode(
            x=alt.X("requests:Q", title=f"requests in flight, {plan.lengths.held_mean:,.0f} tokens each on average"),
            y=alt.Y("GiB:Q", stack=True, title="memory of one GPU (GiB)"),
            color=alt.Color("part:N", sort=names, title=None),
            order=alt.Order("order:Q"),
        )
    )
    rule = alt.Chart(alt.Data(values=limits)).mark_rule(strokeDash=[6, 3]).encode(y="GiB:Q")
    label = (
        alt.Chart(alt.Data(values=limits))
        .mark_text(align="left", dx=4, dy=-6, fontSize=11)
        .encode(y="GiB:Q", x=alt.value(0), text="limit:N")
    )
    title = f"{plan.model.name} on {plan.on.gpus} × {plan.on.gpu.name}"
    return alt.layer(area, rule, label).properties(width=520, height=300, title=title)
