"""Does output come as it is made, or is it held back on its way and let go in bursts? Pure, over columns.

A proxy that collects a body for so many ms or KB passes on many events at a time. So an answer came in bursts if nearly
all its events came right behind another one, in groups of at least three and far apart. What also looks so:

- Several tokens in one event (speculative decoding, a stream interval) are one event.
- A server that writes each token of an accepted draft as an event of its own has groups too, but whenever the first
  guess is wrong a group of one, which is more than one in twenty.
- n choices make n events at a time: groups are counted by the choice.
- A fast server (under 1 ms a token) or one with long stalls: near is near for the answer itself, and never above 1 ms.
- A server that answers all at once, in no time: bursts are at least 20 ms apart, or the answer took as long.
- A client that lags finds many events in a read: bursts are much further apart than it usually lags, and answers that
  came whole took longer than it nearly ever does.

An answer of fewer than eight events, for each choice, tells nothing.
"""

from __future__ import annotations

import numpy as np

from ..log.columns import NULL, Bools, Columns, Int64
from ..results import Bursts, ClientHealth
from .metrics import Floats

LEAST_EVENTS = 8  # of an answer
LEAST_ANSWERS = 3
NEAR_SHARE, NEAR_NS = 0.1, 1e6  # an event is near the one before: of the answer's mean gap, and at most
AT_ONCE_NS = 50_000  # is near where the answer as a whole, its wait included, took much longer for an event
LEAST_SIZE, MOST_ALONE = 3.0, 0.05  # events in a burst in the mean; the share of bursts of one
LEAST_APART_MS = 20.0  # from burst to burst, and
LAGS, LAGS_WHOLE = 4.0, 2.0  # of the client's median lag; where there is but one burst, of its p99
MOST_ANSWERS = 0.5  # the share of answers that makes it a finding


def bursts(ok: Columns, health: ClientHealth | None = None) -> Bursts | None:
    """The bursts of the answers, where more than half of them came so; None where they did not, or nothing tells."""
    counts = np.diff(ok.event_offsets)
    c = ok.where(ok.has_events & ~ok.flag("not_streamed") & (counts >= LEAST_EVENTS * ok.choices))
    if len(c) < LEAST_ANSWERS:
        return None
    found = [_answers(part, health) for part in c.parts()]
    so, mean_size, apart_ms = (np.concatenate(one) for one in zip(*found, strict=True))
    if so.sum() < LEAST_ANSWERS or so.sum() <= MOST_ANSWERS * len(c):
        return None
    return Bursts(int(so.sum()), len(c), float(np.median(mean_size[so])), float(np.median(apart_ms[so])))


def _begins(c: Columns) -> tuple[Bools, Int64]:
    """Which events begin a burst, shape (m,); and how many bursts each answer has, shape (n,)."""
    counts = np.diff(c.event_offsets)
    heads, tails = c.event_offsets[:-1], c.event_offsets[1:] - 1  # the first and the last event of each answer
    sent = np.where(c.sent_ns == NULL, c.scheduled_ns, c.sent_ns)
    mean_gap = (c.event_ns[tails] - c.event_ns[heads]) / (counts - 1)
    mean_time = (c.event_ns[tails] - sent) / counts
    near = np.minimum(NEAR_SHARE * mean_gap, NEAR_NS)
    near = np.maximum(near, np.minimum(NEAR_SHARE * mean_time, AT_ONCE_NS))
    begins = np.diff(c.event_ns, prepend=0) > np.repeat(near, counts)
    begins[heads] = True
    return begins, np.add.reduceat(begins, heads, dtype=np.int64)


def _answers(c: Columns, health: ClientHealth | None) -> tuple[Bools, Floats, Floats]:
    """Of the answers that can have come so (most cannot, and that is soon seen): did they, the mean size of their
    bursts in events, how far apart these were."""
    begins, n = _begins(c)
    can = LEAST_SIZE * np.maximum(n - 1, 1) <= np.diff(c.event_offsets)  # all but the last burst count
    if not can.any():
        none = np.empty(0)
        return none.astype(np.bool_), none, none
    if not can.all():
        c = c.where(can)
        begins, n = _begins(c)
    rows, heads = c.event_rows(), c.event_offsets[:-1]
    sent = np.where(c.sent_ns == NULL, c.scheduled_ns, c.sent_ns)
    at = np.flatnonzero(begins)  # the first event of each burst
    row = rows[at]
    last = np.append(row[1:] != row[:-1], True)
    whole = ~last | (n[row] == 1)  # the last one holds what was left, unless there is no other
    size = np.diff(at, append=len(rows)) / c.choices[row]
    judged = np.bincount(row[whole], minlength=len(c))
    mean_size = np.bincount(row[whole], weights=size[whole], minlength=len(c)) / judged
    alone = np.bincount(row[whole], weights=size[whole] <= 1, minlength=len(c)) / judged

    apart = np.where(n > 1, c.event_ns[at[last]] - c.event_ns[heads], c.event_ns[heads] - sent)
    apart_ms = apart / np.maximum(n - 1, 1) / 1e6
    median_ms, p99_ms = _lag_ms(health)
    least_ms = np.maximum(np.where(n > 1, LAGS * median_ms, LAGS_WHOLE * p99_ms), LEAST_APART_MS)
    so = (mean_size >= LEAST_SIZE) & (alone <= MOST_ALONE) & (apart_ms >= least_ms)
    return so, mean_size, apart_ms


def _lag_ms(health: ClientHealth | None) -> tuple[float, float]:
    """How late the client was, at the median and at p99."""
    lags = [lag for lag in (health.read_lag_us, health.loop_lag_us) if lag] if health else []
    return max((lag.p50 for lag in lags), default=0.0) / 1e3, max((lag.p99 for lag in lags), default=0.0) / 1e3
