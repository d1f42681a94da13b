"""Turns of conversations, gathered so that there are few of them: the first ten each by itself. Pure."""

from __future__ import annotations

import numpy as np

from ..log.columns import NULL, Columns, Int64

FIRST = (*range(1, 11), 11, 21, 51, 101, 501)  # the first turn of each group
NAMES = (*(str(n) for n in range(1, 11)), "11–20", "21–50", "51–100", "101–500", "501 and later")


def turn_groups(c: Columns) -> Int64:
    """An index into `NAMES` for each request, -1 outside of conversations."""
    found = np.searchsorted(np.array(FIRST), c.turn, side="right") - 1
    return np.where(c.turn == NULL, -1, found).astype(np.int64)
