"""Was the server the same throughout a step? Where it was not, the step's intervals promise too much.

drift     throughput rose, fell or swung over the window, or its batch means follow each other, beyond chance
stalls    now and then nothing at all arrived, for many times longer than usual, though requests were in flight
lockstep  requests leave in waves, as with exactly equal lengths: latencies then depend on how the step began
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..log.columns import NULL, Columns
from ..results import Unsteady, Window
from ..stats import ANY_SLOPE, dispersion, serial_dependence, trend, without
from .metrics import input_tokens
from .window import idle_until

Floats = NDArray[np.float64]

LOCKSTEP = 2.0  # index of dispersion of the sends: 0.3 to 1.0 in steady state, 6 and more in lockstep
BINS = 8  # a turnover: finer ones see how the requests of one engine step leave together
LEAST_SENDS, LEAST_IN_FLIGHT = 100, 8
LEAST_CHANGE = 0.02  # of throughput within the window; less matters to nobody
STALL = 6.0  # times the 95th percentile of the gaps: 18 mean gaps, which is never seen where arrivals are independent
LEAST_STALL_NS = 100_000_000


def unsteadiness(c: Columns, window: Window, concurrency: int, slices: Floats) -> tuple[Unsteady, ...]:
    """What was wrong in a step: its rows of all phases, its load (0 of an open loop, or where a log does not tell), and
    its output tokens in equal slices of the window."""
    found: list[Unsteady] = []
    if len(slices) and slices.sum() > 0:
        beside, slopes = _beside(slices, _prompts(c, window, len(slices)), closed=concurrency > 0)
        if trend(slices, beside, LEAST_CHANGE, slopes=slopes) or serial_dependence(without(slices, beside, slopes)):
            found.append("drift")
    if _longest_gap(c, window):
        found.append("stalls")
    sent = c.sent_ns[(c.sent_ns >= window.start_ns) & (c.sent_ns < window.end_ns)]
    if concurrency >= LEAST_IN_FLIGHT and len(sent) >= LEAST_SENDS:
        bins = max(BINS, round(BINS * len(sent) / concurrency))
        counts, _ = np.histogram(sent, np.linspace(window.start_ns, window.end_ns, bins + 1))
        if dispersion(counts) > LOCKSTEP:
            found.append("lockstep")
    return tuple(found)


def _beside(slices: Floats, prompts: Floats, *, closed: bool) -> tuple[Floats, tuple[float, float]]:
    """What may explain the output of a slice, and with which slopes, before slices are compared.

    In a closed loop a slice in which many prompt tokens were processed has time for fewer output tokens. But a server
    that slows down does fewer of both, so their amount must not explain anything: it is their proportion, as shares of
    their means, that does. With a slope from 0 to 1 what is left is a weighted mean of outputs and prompts, the one
    that varies least. In an open loop both follow what is asked for, and so the amount explains, whichever way.
    """
    if not closed or prompts.sum() == 0:
        return prompts, ANY_SLOPE
    return slices / slices.mean() - prompts / prompts.mean(), (0.0, 1.0)


def _prompts(c: Columns, window: Window, k: int) -> Floats:
    """Prompt tokens processed in equal slices of the window, each request's when its first token came; the number of
    requests where their tokens are not known."""
    begun = c.first_token_ns != NULL
    tokens = input_tokens(c)[begun]
    weights = np.ones(len(tokens)) if (tokens == NULL).any() else tokens.astype(np.float64)
    edges = np.linspace(window.start_ns, window.end_ns, k + 1)
    return np.histogram(c.first_token_ns[begun], edges, weights=weights)[0].astype(np.float64)


def _longest_gap(c: Columns, window: Window) -> bool:
    """Is the longest time without any arrival many times longer than usual? Arrivals are first and last tokens, and
    times are those in which any request was in flight."""
    stamps = np.concatenate((c.first_token_ns, c.last_token_ns))
    stamps = np.sort(stamps[(stamps != NULL) & (stamps >= window.start_ns) & (stamps <= window.end_ns)])
    gaps = np.diff(stamps - idle_until(c, stamps))
    gaps = gaps[gaps > 0]
    if len(gaps) < LEAST_SENDS - 1:
        return False
    return bool(gaps.max() > max(STALL * float(np.quantile(gaps, 0.95)), LEAST_STALL_NS))
