"""The steady window of a step, and what happened inside it: tokens, completions, requests in flight."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..log.columns import NULL, Bools, Columns, Int64
from ..records import OUTCOMES, PHASES, Window
from .metrics import event_tokens, first_event_tokens

Floats = NDArray[np.float64]


def is_phase(c: Columns, *names: str) -> Bools:
    """Rows in any of these phases."""
    return np.isin(c.phase, [PHASES.index(name) for name in names])


def has_outcome(c: Columns, *names: str) -> Bools:
    """Rows with any of these outcomes."""
    return np.isin(c.outcome, [OUTCOMES.index(name) for name in names])


def steady_window(c: Columns) -> Window | None:
    """`steady_window` of one step, from its records alone: from the first measured request's scheduled_at to the first
    filler's, else (no filler was needed) to the last measured request's end. None without a measured request or with no
    length. A driver that watched the load knows better; its window is to be preferred."""
    measured = is_phase(c, "measured")
    if not measured.any():
        return None
    start = int(c.scheduled_ns[measured].min())
    fillers = c.scheduled_ns[is_phase(c, "filler")]
    fillers = fillers[fillers > start]
    end = int(fillers.min()) if len(fillers) else int(c.done_ns[measured].max())
    return Window(start, end) if end > start else None


def tokens_in(c: Columns, edges: Floats) -> tuple[Floats, Floats]:
    """Output tokens of these requests that arrived between successive `edges` (ns, ascending, shape (k + 1,)): all of
    them, and of these the ones placed by estimate; each of shape (k,).

    Placed by each event's stamp and count. The tokens of an answer that was not streamed arrive with the end of its
    body. Requests whose events were not logged are spread evenly from their first to their last token, all of it
    estimated.
    """
    placed, guessed = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
    for part in c.parts():
        tokens = event_tokens(part)
        placed += _histogram(part.event_ns, tokens.count, edges)
        guessed += _histogram(part.event_ns[tokens.estimated], tokens.count[tokens.estimated], edges)

    whole = c.flag("not_streamed") & (np.diff(c.event_offsets) == 0)
    ended = whole & (c.last_token_ns != NULL) & (c.output_count != NULL)
    placed += _histogram(c.last_token_ns[ended], c.output_count[ended].astype(np.float64), edges)

    bare = ~c.has_events & ~whole & (c.last_token_ns != NULL) & (c.output_count != NULL)
    last = c.last_token_ns[bare]
    first = np.where(c.first_token_ns[bare] == NULL, last, c.first_token_ns[bare])
    total = c.output_count[bare].astype(np.float64)
    head = np.where(first == last, total, np.minimum(first_event_tokens(c)[bare], total))
    placed_head = _histogram(first, head, edges)
    # The share of [first, last] before each edge, per request: shape (rows, k + 1); rows in blocks to bound the memory.
    tail = np.zeros(len(edges) - 1)
    rows = max(1, (1 << 22) // len(edges))
    for i in range(0, len(total), rows):
        block = slice(i, i + rows)
        span = np.maximum(last[block] - first[block], 1)[:, None]
        before = np.clip((edges[None, :] - first[block][:, None]) / span, 0.0, 1.0)
        tail += np.diff((total - head)[block] @ before)
    estimate = placed_head + tail
    return placed + estimate, guessed + estimate


def _histogram(stamps: Int64, weights: Floats, edges: Floats) -> Floats:
    """Weights by bin, every bin but the first open to the left: what arrives at an edge belongs to the time before."""
    k = len(edges) - 1
    at = np.searchsorted(edges, stamps, side="left") - 1
    at[stamps == edges[0]] = 0
    inside = (at >= 0) & (at < k)
    return np.bincount(at[inside], weights=weights[inside], minlength=k).astype(np.float64)


def completions_in(c: Columns, edges: Floats) -> Floats:
    """How many of these requests ended between successive edges; shape (k,)."""
    return _histogram(c.done_ns, np.ones(len(c)), edges)


def attempts_in(c: Columns, window: Window) -> int:
    """How many of these requests were sent in the window; one that never got a connection counts when scheduled."""
    at = np.where(c.sent_ns == NULL, c.scheduled_ns, c.sent_ns)
    return int(((at >= window.start_ns) & (at < window.end_ns)).sum())


def residence_ns(c: Columns, window: Window) -> int:
    """Σ(done_at - sent_at) clipped to the window, all outcomes: the area under the requests in flight (request·ns)."""
    sent = c.sent_ns != NULL
    start = np.clip(c.sent_ns[sent], window.start_ns, window.end_ns)
    end = np.clip(c.done_ns[sent], window.start_ns, window.end_ns)
    return int(np.maximum(end - start, 0).sum())


def peak_in_flight(c: Columns) -> int:
    """The most requests that were in flight at once; one that ends as another is sent does not overlap it."""
    sent = c.sent_ns != NULL
    stamps = np.concatenate((c.sent_ns[sent], c.done_ns[sent]))
    change = np.repeat([1, -1], int(sent.sum()))
    order = np.lexsort((change, stamps))
    return int(np.cumsum(change[order]).max()) if sent.any() else 0
