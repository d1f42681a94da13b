"""What each of several models or peers did in a step, in text and in JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..results import Distribution, PartSummary, StepSummary
from .numbers import NONE, clean, number, percent

POINTS = (50.0, 95.0)


def part_lines(summary: StepSummary, width: int = 120) -> list[str]:
    """A small table each, a row for each model, peer or turn; nothing where there is but one. Below the width of
    the whole table it has no TPOT."""
    tables = (("by model", summary.by_model), ("by peer", summary.by_peer), ("by turn", summary.by_turn))
    return [line for title, parts in tables for line in _table(title, parts, width)]


def _table(title: str, parts: Sequence[PartSummary], width: int) -> list[str]:
    if not parts:
        return []
    names = [_short(clean(one.name), max(16, min(40, width - 60))) for one in parts]
    size = max(16, *map(len, names)) + 2
    metrics = ("ttft", "tpot") if size + 75 <= width else ("ttft",)
    head = "".join(name.rjust(room) for name, room in (("ok", 7), ("failed", 8), ("output tok/s", 14)))
    head += "".join(f"{metric.upper()} p{p:g}".rjust(11) for metric in metrics for p in POINTS)
    cached = size + 83 <= width and any(one.cached_share is not None for one in parts)
    head += "cached".rjust(8) if cached else ""
    lines = [f"  {title.ljust(size)}{head}"]
    for one, name in zip(parts, names, strict=True):
        cells = f"{one.ok:>7,}{one.failed:>8,}{number(one.output_throughput):>14}"
        cells += "".join(_point(one.latency[metric], p).rjust(11) for metric in metrics for p in POINTS)
        if cached:
            cells += (NONE if one.cached_share is None else percent(one.cached_share)).rjust(8)
        lines.append(f"  {name.ljust(size)}{cells}")
    return lines


def _short(name: str, longest: int) -> str:
    """A name's end tells more than its beginning, which is often a path."""
    return name if len(name) <= longest else "…" + name[1 - longest :]


def parts_object(parts: Sequence[PartSummary]) -> dict[str, dict[str, Any]]:
    """Each one's figures under the step's own keys."""
    return {one.name: _object(one) for one in parts}


def _object(one: PartSummary) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "sent": one.sent,
        "completed": one.ok,
        "failed": one.failed,
        "output_throughput": one.output_throughput,
        "cached_share": one.cached_share,
    }
    weak = []
    for metric, found in one.latency.items():
        for p, name in zip(POINTS, (f"median_{metric}_ms", f"p95_{metric}_ms"), strict=True):
            q = found.at(p)
            figures[name] = q.value if q else None
            if q is not None and not q.established:
                weak.append(name)
    return {**figures, "not_established": weak}


def _point(found: Distribution, p: float) -> str:
    q = found.at(p)
    return NONE if q is None else number(q.value) + ("" if q.established or p == 50.0 else "*")
