"""Does a server that refuses requests refuse those above a number in flight? Then that number is its admission limit.

Servers with such a limit (text-generation-inference's `--max-concurrent-requests`, gateways' queues) answer 429 or 503
at once to whatever comes while so many are being answered, and to nothing else. So at the moment of every refusal as
many are in flight as the limit says, and hardly a request is let in while so many are. A limit on how often one may ask
(per minute, per key), or a server that fails by chance, shows no such number.
"""

from __future__ import annotations

import numpy as np

from ..log.columns import NULL, Columns
from ..records import FAILED_OUTCOMES
from .window import has_outcome

LEAST_REFUSALS = 5
REFUSED_SHARE = 0.9  # of the failures, those that must be refusals for overload
SPREAD = 0.2  # of the median: how far the middle 80 % of the counts may lie apart, or 2 requests
# Of the requests sent while as many are in flight, those that may be let in: one may have ended there and not yet here.
LET_IN_SHARE = 0.25


def admission_limit(c: Columns) -> int | None:
    """Of one step's requests, of any phase: how many the server answers at once before it refuses; None where that is
    not what its failures show. A request tried several times hides when it was refused: then nothing is said."""
    failed = has_outcome(c, *FAILED_OUTCOMES) & (c.sent_ns != NULL)
    if failed.sum() < LEAST_REFUSALS or (c.retries > 0).any():
        return None
    refused = np.zeros(len(c), dtype=np.bool_)
    for i in np.flatnonzero(failed):
        error = c.errors[i]
        refused[i] = error is not None and error.overload
    if refused.sum() < max(LEAST_REFUSALS, REFUSED_SHARE * failed.sum()):
        return None
    let_in = ~refused & (c.sent_ns != NULL)
    starts, ends = np.sort(c.sent_ns[let_in]), np.sort(c.done_ns[let_in])
    # In flight when each request was sent, itself left out.
    others = np.searchsorted(starts, c.sent_ns, side="right") - np.searchsorted(ends, c.sent_ns, side="right") - let_in
    low, median, high = np.quantile(others[refused], (0.1, 0.5, 0.9))
    full = others >= median
    told = high - low <= max(2, SPREAD * median) and (full & let_in).sum() <= LET_IN_SHARE * (full & ~let_in).sum()
    return round(median) if median >= 1 and told else None
