"""Does a server that refuses requests refuse those above a number in flight? Then that number is its admission limit.

Servers with such a limit (text-generation-inference's `--max-concurrent-requests`, gateways' queues) answer 429 or 503
at once to whatever comes while so many are being answered, and to nothing else. So at the moment of every refusal as
many are in flight as the limit says, and hardly a request is let in while so many are. A limit on how often one may ask
(per minute, per key), or a server that fails by chance, shows no such number: where nearly all slots of a closed loop
are busy at any time, nearly all refusals see the same number too, but so do the requests that are let in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..log.columns import NULL, Columns
from ..records import FAILED_OUTCOMES
from .window import has_outcome

LEAST_REFUSALS = 5
REFUSED_SHARE = 0.9  # of the failures, those that must be refusals for overload
SPREAD = 0.2  # of the median: how far the middle 80 % of the counts may lie apart, or 2 requests
# Of the requests sent while as many are in flight, those that may be let in: one may have ended there and not yet here.
LET_IN_SHARE = 0.25


# Of `Standing.share`, by its size and its error; nearly all pairs are clear however few were let in.
CLEAR, SIGMAS, NEARLY_ALL = 0.7, 2.0, 0.95

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Standing:
    """Of all pairs of a refused request and one let in: the share where some number was higher for the refused one
    (Mann and Whitney's, ties as halves), and its standard error where the number makes no difference."""

    share: float
    error: float

    @property
    def sigmas(self) -> float:
        return (self.share - 0.5) / self.error

    @property
    def below(self) -> bool:
        return Standing(1 - self.share, self.error).above

    @property
    def above(self) -> bool:
        """Is it higher for the refused ones, beyond chance?"""
        return self.share >= CLEAR and (self.sigmas >= SIGMAS or self.share >= NEARLY_ALL)


def refusals(c: Columns) -> Bools:
    """Which requests were refused for overload."""
    return np.array([error is not None and error.overload for error in c.errors], dtype=np.bool_)


def by_number(c: Columns, refused: Bools) -> Standing | None:
    """Were more in flight when requests of a step were refused than when others were let in?

    What ends while a request is on its way may end before it is there: where a slot tries again and again, it is let in
    when one more is in flight by this client's count than by the server's. So those that end within the time of a
    refusal count as ended.
    """
    sent = c.sent_ns != NULL
    refused, inside = refused & sent, ~refused & sent
    if not refused.any():
        return None
    away = int(np.median(c.done_ns[refused] - c.sent_ns[refused]))
    starts, ends = np.sort(c.sent_ns[inside]), np.sort(c.done_ns[inside])
    started = np.searchsorted(starts, c.sent_ns, side="left")
    others = started - np.minimum(np.searchsorted(ends, c.sent_ns + away, side="right"), started)
    return _standing(others[refused], others[_let_in(c) & inside])


def by_time(c: Columns, refused: Bools) -> Standing | None:
    """Was it longer since the last one let in when requests of a step were refused than when others were let in? A rate
    that is kept evenly refuses soon after it has let one in; an allowance that is spent, for long."""
    let_in = _let_in(c) & ~refused
    starts = np.sort(c.sent_ns[let_in])
    place = np.searchsorted(starts, c.sent_ns, side="left")
    known = (c.sent_ns != NULL) & (place > 0)
    since = c.sent_ns[known] - starts[place[known] - 1]
    return _standing(since[refused[known]], since[let_in[known]])


def _let_in(c: Columns) -> Bools:
    """Which requests neither were refused nor failed in another way, perhaps before anyone had let them in."""
    found: Bools = ~has_outcome(c, *FAILED_OUTCOMES) & (c.sent_ns != NULL)
    return found


def _standing(refused: NDArray[np.int64], let_in: NDArray[np.int64]) -> Standing | None:
    n, m = len(refused), len(let_in)
    if not n or not m:
        return None
    ordered = np.sort(let_in)
    below = np.searchsorted(ordered, refused, side="left") + np.searchsorted(ordered, refused, side="right")
    return Standing(float(below.mean()) / 2 / m, math.sqrt((n + m + 1) / (12 * n * m)))


def admission_limit(c: Columns) -> int | None:
    """Of one step's requests, of any phase: how many the server answers at once before it refuses; None where that is
    not what its failures show. A request tried several times hides when it was refused: then nothing is said."""
    failed = has_outcome(c, *FAILED_OUTCOMES) & (c.sent_ns != NULL)
    if failed.sum() < LEAST_REFUSALS or (c.retries > 0).any():
        return None
    refused = failed & refusals(c)
    if refused.sum() < max(LEAST_REFUSALS, REFUSED_SHARE * failed.sum()):
        return None
    let_in = ~refused & (c.sent_ns != NULL)
    starts, ends = np.sort(c.sent_ns[let_in]), np.sort(c.done_ns[let_in])
    # In flight when each request was sent, itself left out.
    others = np.searchsorted(starts, c.sent_ns, side="right") - np.searchsorted(ends, c.sent_ns, side="right") - let_in
    low, median, high = np.quantile(others[refused], (0.1, 0.5, 0.9))
    full = others >= median
    told = high - low <= max(2, SPREAD * median) and (full & let_in).sum() <= LET_IN_SHARE * (full & ~let_in).sum()
    standing = by_number(c, refused)
    return round(median) if median >= 1 and told and standing is not None and standing.above else None
