"""Did an open loop keep up with its arrivals? Where it does not, the requests in flight grow as long as it lasts.

In flight is compared over 10 equal slices of the second half of the window: ten increments that are nearly independent
and have mean zero in steady state. Half is left out because a queue that starts empty grows at first in any case.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..log.columns import NULL, Columns
from ..results import Window
from ..stats import LEVEL, grows

Floats = NDArray[np.float64]
SLICES = 10


def overloaded(c: Columns, window: Window, looks: int) -> bool:
    """Is it proven that requests in flight grew: t test of the increments, one-sided at 5 % divided by the looks? `c`
    holds the requests of all phases; one that is not answered yet has its `done_ns` after the window."""
    sent = np.sort(c.sent_ns[c.sent_ns != NULL])
    done = np.sort(c.done_ns[c.sent_ns != NULL])
    return grows(increments(sent, done, window), (1 - LEVEL) / looks)


def piling_up(times_ns: NDArray[np.int64], in_flight: NDArray[np.int64], window: Window, looks: int) -> bool:
    """The same, from the number in flight as it was seen at ascending times, while the step runs."""
    if len(times_ns) < 2:
        return False
    seen = np.maximum(np.searchsorted(times_ns, _edges(window), side="right") - 1, 0)
    return grows(np.diff(in_flight[seen]).astype(np.float64), (1 - LEVEL) / looks)


def increments(sent_ns: NDArray[np.int64], done_ns: NDArray[np.int64], window: Window) -> Floats:
    """Growth of the number in flight over each slice, from sorted stamps; shape (10,)."""
    edges = _edges(window)
    in_flight = np.searchsorted(sent_ns, edges, side="right") - np.searchsorted(done_ns, edges, side="right")
    return np.diff(in_flight).astype(np.float64)


def _edges(window: Window) -> Floats:
    return np.linspace((window.start_ns + window.end_ns) / 2, window.end_ns, SLICES + 1)
