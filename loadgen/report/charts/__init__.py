"""The charts of a run by name. Each is one small function from a `View` to a `Figure`, or None where the run has
nothing for it. Needs the `plot` extra (Altair, vl-convert): import this room only when a chart is asked for."""

from __future__ import annotations

from collections.abc import Callable

from altair.utils.schemapi import debug_mode

from .figure import Buckets, Figure, Table, View
from .heat import buckets
from .levels import latency, throughput
from .overtime import failures, instrument, timeline
from .pareto import pareto
from .spread import by_input, distributions, itl

__all__ = ["CHARTS", "Buckets", "Figure", "Table", "View", "draw", "figures"]

# In the order of a page.
CHARTS: dict[str, Callable[[View], Figure | None]] = {
    "throughput": throughput,
    "pareto": pareto,
    "latency": latency,
    "distributions": distributions,
    "timeline": timeline,
    "itl": itl,
    "input": by_input,
    "buckets": buckets,
    "instrument": instrument,
    "failures": failures,
}


def draw(name: str, view: View) -> Figure | None:
    """The chart of this name. Specs are held against the schema by the tests, and not again whenever one is drawn: that
    takes longer than the drawing."""
    with debug_mode(False):
        return CHARTS[name](view)


def figures(view: View) -> list[Figure]:
    """All that this run has something for."""
    return [found for name in CHARTS if (found := draw(name, view)) is not None]
