"""How much of the prompts the server's prefix cache saved, against what it could at the most. Pure.

- Expected: of each measured ok request that says how many of its first tokens were sent before (`Record.shared`), that
  number rounded down to the server's cache block, never the whole prompt (its last token is always computed); their sum
  over the sum of the prompts. A range, as a chat template may stand before or after the text, and as an answer that is
  sent back may be read in other tokens than it was written in. A cache that forgets nothing is assumed.
- The server's: `cached_tokens` of the same requests' usage, else the hit counters of its own metrics over the window.
- The block: the one given, else the one the server's metrics tell, else the greatest that divides all of its
  `cached_tokens`. Without any, a token.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..log.columns import NULL, Columns, Int64
from ..results import CacheShare, ServerSample, StepSummary
from . import metrics
from .window import has_outcome, is_phase

TOLERANCE = 0.05  # of the prompt tokens; further from what is expected is a finding
LEAST_COUNTS = 3  # of cached tokens, to tell a block by


def with_cache(summary: StepSummary, c: Columns, samples: Iterable[ServerSample]) -> StepSummary:
    """The summary with its `cache`; `c` and `samples` may hold other steps too. `samples` must have been looked at."""
    mine = c.where((c.step == summary.step) & is_phase(c, "measured") & has_outcome(c, "ok"))
    prompt = metrics.input_tokens(mine)
    block = summary.cache.block if summary.cache is not None else None
    block_told = max((s.values.get("kv_block_tokens", 0.0) for s in samples if s.step == summary.step), default=0.0)
    block = block or round(block_told) or block_of(mine.input_cached)
    known = (mine.shared_low != NULL) & (prompt != NULL) & (prompt > 0)
    counts, told = cached_counts(mine)
    expected, share = None, summary.cached_share
    if known.any():
        both = known & told
        share = int(counts[both].sum()) / int(prompt[both].sum()) if both.any() else None
        total = int(prompt[known].sum())
        low, high = (
            int(held(shared[known], prompt[known], block or 1).sum()) / total
            for shared in (mine.shared_low, mine.shared_high)
        )
        expected = low, high
    by_metrics = summary.server.prefix_hit_share if summary.server is not None else None
    if share is not None:
        return replace(summary, cache=CacheShare(expected, share, "usage", block))
    if by_metrics is not None:
        return replace(summary, cache=CacheShare(expected, by_metrics, "metrics", block))
    return replace(summary, cache=CacheShare(expected, block=block))


def held(shared: Int64, prompt: Int64, block: int) -> Int64:
    """What a cache of such blocks holds of prompts of which so many first tokens were sent before."""
    return np.maximum(0, np.minimum(shared, prompt - 1)) // block * block


def block_of(cached: Int64) -> int | None:
    """The greatest block that the counts of cached tokens are whole numbers of; None where too few tell."""
    counts = np.unique(cached[(cached != NULL) & (cached > 0)])
    if (cached != NULL).sum() < LEAST_COUNTS or not len(counts):
        return None
    found = math.gcd(*(int(n) for n in counts))
    # One count alone may be any number of blocks, of which a power of two is as good a guess as any.
    return found if len(counts) > 1 else found & -found


def cached_counts(c: Columns) -> tuple[Int64, NDArray[np.bool_]]:
    """The cached tokens of each request, and of which they are known. A server that tells them of some requests, and
    never a zero, leaves the zeros out (vLLM does): there, untold is none."""
    known = c.input_cached != NULL
    counts = np.where(known, c.input_cached, 0)
    leaves_out = bool(known.any()) and not known.all() and bool((counts[known] > 0).all())
    return counts, np.ones(len(c), dtype=np.bool_) if leaves_out else known


def unexpected(cache: CacheShare | None) -> float | None:
    """By how much the server's share is beyond what was expected (0.1 is ten points too much); None where it is not, or
    where either is not known."""
    if cache is None or cache.expected is None or cache.seen is None:
        return None
    low, high = cache.expected
    if low - TOLERANCE <= cache.seen <= high + TOLERANCE:
        return None
    return cache.seen - high if cache.seen > high else cache.seen - low
