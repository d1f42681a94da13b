"""The steady window of a step, and what happened inside it: tokens, completions, requests in flight."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..log.columns import NULL, Bools, Columns, Int64
from ..log.packed import one_for_all
from ..records import OUTCOMES, PHASES
from ..results import Window
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
        together, across = _placed_whole(part, edges)
        rest = part if len(across) == len(part) else part.at(across)
        tokens = event_tokens(rest)
        placed += together + _histogram(rest.event_ns, tokens.count, edges)
        guessed += _histogram(rest.event_ns[tokens.estimated], tokens.count[tokens.estimated], edges)

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


def _placed_whole(c: Columns, edges: Floats) -> tuple[Floats, Int64]:
    """The tokens of the requests whose events all lie between the same two edges, shape (k,), and the rows of the
    others. Only where every event told its tokens: sums of whole numbers are the same in any order."""
    k, counts = len(edges) - 1, np.diff(c.event_offsets)
    rows, one = np.flatnonzero(counts), one_for_all(c.event_tokens)
    if not len(rows) or (c.event_tokens[:1] if one else c.event_tokens).min() < 0:
        return np.zeros(k), np.arange(len(c))
    heads = c.event_offsets[:-1][rows]
    first = _bins(np.minimum.reduceat(c.event_ns, heads), edges)
    last = _bins(np.maximum.reduceat(c.event_ns, heads), edges)
    tokens = counts[rows] * int(c.event_tokens[0]) if one else np.add.reduceat(c.event_tokens, heads, dtype=np.int64)
    inside = (first == last) & (first >= 0) & (first < k)
    whole = np.bincount(first[inside], weights=tokens[inside], minlength=k).astype(np.float64)
    return whole, rows[first != last]


def _histogram(stamps: Int64, weights: Floats, edges: Floats) -> Floats:
    """Weights by bin, every bin but the first open to the left: what arrives at an edge belongs to the time before."""
    k = len(edges) - 1
    at = _bins(stamps, edges)
    inside = (at >= 0) & (at < k)
    return np.bincount(at[inside], weights=weights[inside], minlength=k).astype(np.float64)


def _bins(stamps: Int64, edges: Floats) -> Int64:
    """Between which two edges each stamp lies; -1 before the first, k after the last of k + 1."""
    at = np.searchsorted(edges, stamps, side="left") - 1
    at[stamps == edges[0]] = 0
    return at


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


def idle_until(c: Columns, at: Int64) -> Int64:
    """For how long (ns), after the first request was sent, none had been in flight until each of these times; a time
    that none was in flight at is counted only where it ended before."""
    sent = c.sent_ns != NULL
    order = np.argsort(c.sent_ns[sent], kind="stable")
    began, ended = c.sent_ns[sent][order], np.maximum.accumulate(c.done_ns[sent][order])
    idle = np.maximum(began[1:] - ended[:-1], 0)
    before: Int64 = np.concatenate(([0], np.cumsum(idle)))[np.searchsorted(began[1:], at, side="right")]
    return before
