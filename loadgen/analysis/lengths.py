"""The lengths that a step's requests asked for, to be held against those of its workload. Pure."""

from __future__ import annotations

import numpy as np

from ..log.columns import NULL, Columns
from ..records import AskedLengths


def asked_lengths(measured: Columns) -> dict[str, AskedLengths]:
    """By side, of the measured requests whatever came of them; of conversations their first turns, as later ones grow.
    A side that some request leaves open is left out."""
    first = (measured.turn == NULL) | (measured.turn == 1)
    found: dict[str, AskedLengths] = {}
    for side, column in (("input", measured.input_asked), ("output", measured.output_asked)):
        tokens = column[first]
        if len(tokens) and not (tokens == NULL).any():
            p50, p90, p99 = (float(q) for q in np.quantile(tokens, (0.5, 0.9, 0.99), method="inverted_cdf"))
            found[side] = AskedLengths(len(tokens), float(tokens.mean()), float(tokens.std()), p50, p90, p99)
    return found
