"""Per-request metrics over columns. Each function is one definition; its docstring opens with the definition's id.

Results are float64 in ms, one per row, NaN where the metric is null, unless said otherwise. Outcomes are not looked at
here: who belongs to a sample is decided by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..log.columns import NULL, Bools, Columns, Int64
from ..log.packed import one_for_all

MOST_COPIES = 16_384  # of one gap between events

Floats = NDArray[np.float64]


def span_ms(start: Int64, end: Int64) -> Floats:
    """From one stamp to the other; NaN where either is NULL."""
    known = (start != NULL) & (end != NULL)
    return np.where(known, np.subtract(end, start, where=known, out=np.zeros_like(end)) / 1e6, np.nan)


def _streamed(c: Columns, values: Floats) -> Floats:
    # An answer that came in one piece has one arrival: calling it a first token would show its E2E as a TTFT.
    return np.where(c.flag("not_streamed"), np.nan, values)


def ttft(c: Columns) -> Floats:
    """`ttft`: first_token_at - sent_at; null where the answer was not streamed."""
    return _streamed(c, span_ms(c.sent_ns, c.first_token_ns))


def ttfc(c: Columns) -> Floats:
    """`ttfc`: first_content_at - sent_at, so reasoning is waited out; null where the answer was not streamed."""
    return _streamed(c, span_ms(c.sent_ns, c.first_content_ns))


def e2e(c: Columns) -> Floats:
    """`e2e`: last_token_at - sent_at. Trailing usage and the end mark do not count."""
    return span_ms(c.sent_ns, c.last_token_ns)


def dispatch_lag(c: Columns) -> Floats:
    """`dispatch_lag`: sent_at - scheduled_at, the client's own delay (and that of opening a connection)."""
    return span_ms(c.scheduled_ns, c.sent_ns)


def ttft_scheduled(c: Columns) -> Floats:
    """`ttft_scheduled`: first_token_at - scheduled_at; no coordinated omission."""
    return _streamed(c, span_ms(c.scheduled_ns, c.first_token_ns))


def e2e_scheduled(c: Columns) -> Floats:
    """`e2e_scheduled`: last_token_at - scheduled_at; no coordinated omission."""
    return span_ms(c.scheduled_ns, c.last_token_ns)


def connect_ms(c: Columns) -> Floats:
    """`connect`: shape (n, 3), name look-up, TCP and TLS; NaN on a reused connection or where not told apart."""
    return np.where(c.connect_us == NULL, np.nan, c.connect_us / 1e3)


def first_event_tokens(c: Columns) -> Int64:
    """`first_event_tokens`: known from the event, else assumed to be 1. Counts, never NULL."""
    return np.where(c.first_event_tokens == NULL, 1, c.first_event_tokens)


def tpot(c: Columns) -> Floats:
    """`tpot`: (last_token_at - first_token_at) / (output_tokens - first_event_tokens); null when that is below 1."""
    later = np.where(c.output_count == NULL, 0, c.output_count) - first_event_tokens(c)
    span = span_ms(c.first_token_ns, c.last_token_ns)
    return _streamed(c, np.where(later >= 1, span / np.maximum(later, 1), np.nan))


def input_tokens(c: Columns) -> Int64:
    """The server's count of prompt tokens, else the local tokenizer's, else what was asked for, else NULL."""
    local = np.where(c.input_local != NULL, c.input_local, c.input_asked)
    return np.where(c.input_server != NULL, c.input_server, local)


REQUEST_METRICS = {
    "ttft": ttft,
    "ttfc": ttfc,
    "tpot": tpot,
    "e2e": e2e,
    "ttft_scheduled": ttft_scheduled,
    "e2e_scheduled": e2e_scheduled,
    "dispatch_lag": dispatch_lag,
}


@dataclass(frozen=True, slots=True)
class Pooled:
    """Values in ms of all requests together; `rows` says whose each is, ascending, `later` which event ended the gap,
    and `tokens` what its length was divided by."""

    values: Floats
    rows: Int64
    later: Int64
    tokens: Floats
    estimated: bool = False


def inter_chunk(c: Columns) -> Pooled:
    """`inter_chunk`: gaps between successive output events of a request."""
    later = np.flatnonzero(_later(c))
    rows = np.repeat(np.arange(len(c)), np.maximum(np.diff(c.event_offsets) - 1, 0))
    return Pooled(inter_chunk_values(c), rows, later, np.broadcast_to(1.0, later.shape))


def inter_chunk_values(c: Columns) -> Floats:
    """`inter_chunk`, the values alone."""
    return np.diff(c.event_ns)[_later(c)[1:]] / 1e6


def _later(c: Columns) -> Bools:
    """Which events are not the first of their request; shape (m,)."""
    later = np.ones(len(c.event_ns), dtype=np.bool_)
    later[c.event_offsets[:-1][np.diff(c.event_offsets) > 0]] = False
    return later


def one_each(c: Columns) -> bool:
    """Is it known that every event carried one token?"""
    return len(c.event_tokens) > 0 and one_for_all(c.event_tokens) and int(c.event_tokens[0]) == 1


def itl(c: Columns) -> Pooled:
    """`itl`: each gap divided by the tokens of its later event, once per token.

    Where events do not say their tokens, the request's other tokens are spread evenly over those events (at least one
    each), and the result is marked estimated. An event that is known to carry no token has no sample; none stands for
    more than MOST_COPIES, whatever a server says it counted.
    """
    if one_each(c):
        return inter_chunk(c)
    tokens, rows = event_tokens(c), c.event_rows()
    later = np.flatnonzero(_later(c))
    # Arrays of a step's every token: each is dropped as soon as it can be.
    rows, guessed, share = rows[later], tokens.estimated[later], tokens.count[later]
    del tokens
    estimated = bool(guessed.any())
    if estimated:
        share = np.where(guessed, np.maximum(share, 1.0), share)
        # A share of 2.5 tokens is 2 copies, then 3: rounding the running sum keeps their number right over the request.
        running = np.concatenate(([0.0], np.cumsum(np.where(guessed, share, 0.0))))
        start = running[np.searchsorted(rows, rows)]  # each request by itself, whatever stands before it
        copies = np.where(guessed, np.round(running[1:] - start) - np.round(running[:-1] - start), share)
        copies = copies.astype(np.int64)
        del running, start
    else:
        copies = share.astype(np.int64)
    copies = np.minimum(copies, MOST_COPIES)
    divisor = np.maximum(share, 1.0)
    del share, guessed
    values = (c.event_ns[later] - c.event_ns[later - 1]) / 1e6 / divisor
    if (copies == 1).all():
        return Pooled(values, rows, later, divisor, estimated)
    return Pooled(
        np.repeat(values, copies),
        np.repeat(rows, copies),
        np.repeat(later, copies),
        np.repeat(divisor, copies),
        estimated,
    )


@dataclass(frozen=True, slots=True)
class EventTokens:
    """How many tokens each event carried; shape (m,). `estimated` marks those that the event did not tell."""

    count: Floats
    estimated: Bools


def event_tokens(c: Columns) -> EventTokens:
    """Tokens per event: as counted where the event told, else by spreading the request's known total.

    The first event gets `first_event_tokens` (assumed 1), the rest of the total goes evenly to the later events that
    did not tell theirs. With a single event, all goes there. With no total known, each such event counts 1.
    """
    known = c.event_tokens >= 0
    if known.all():
        one = one_for_all(c.event_tokens)
        sure = np.broadcast_to(np.float64(c.event_tokens[0]), known.shape) if one else c.event_tokens.astype(np.float64)
        return EventTokens(sure, np.broadcast_to(np.False_, known.shape))
    n, rows = len(c), c.event_rows()
    count = np.where(known, c.event_tokens, 0).astype(np.float64)
    filled = np.diff(c.event_offsets) > 0
    first = np.zeros(len(rows), dtype=np.bool_)
    first[c.event_offsets[:-1][filled]] = True
    spread = ~known & ~first  # unknown later events
    spread_n = np.bincount(rows[spread], minlength=n)
    told = np.bincount(rows, weights=count, minlength=n)
    total = np.where(c.output_count == NULL, -1, c.output_count)

    head = ~known & first
    r = rows[head]
    assumed = first_event_tokens(c)[r].astype(np.float64)
    alone = (spread_n[r] == 0) & (total[r] >= 0)
    count[head] = np.where(alone, np.maximum(total[r] - told[r], 0), assumed)
    told += np.bincount(r, weights=count[head], minlength=n)

    r = rows[spread]
    rest = np.maximum(total - told, 0) / np.maximum(spread_n, 1)
    count[spread] = np.where(total[r] >= 0, rest[r], 1.0)
    # A first event whose count its record holds is as good as one that told it.
    sure_head = head & (c.first_event_tokens[rows] != NULL) & (count == first_event_tokens(c)[rows])
    return EventTokens(count, ~known & ~sure_head)
