"""The prefix cache: at work as the workload means it, or where it should not be. Pure."""

from __future__ import annotations

import numpy as np

from ...log.columns import NULL
from .. import metrics
from ..caching import TOLERANCE, unexpected
from ..window import has_outcome
from .finding import Fact, Finding
from .levels import Level, Levels, median

LEAST_SEEN = 0.05  # of the prompt tokens
FASTER = 0.6  # of what the prompt's length costs by the first of its kind: less, and a cache helped


def cache_findings(run: Levels) -> list[Finding]:
    told = [s for s in run.all if s.cache is not None and s.cache.seen is not None]
    worst = max(told, key=lambda s: (s.cache.seen or 0.0) if s.cache else 0.0, default=None)
    if worst is None or worst.cache is None or worst.cache.seen is None:
        return _by_times(run)
    seen, expected = worst.cache.seen, worst.cache.expected
    facts = [Fact(f"share of the prompt tokens from the cache, by the server's {worst.cache.source}", seen, "share")]
    if expected is not None:
        facts.append(Fact("share of the prompt tokens that this run sent before, at most", expected[1], "share"))
    steps = tuple(s.step for s in told if s.cache is not None and (s.cache.seen or 0.0) >= LEAST_SEEN)
    off = unexpected(worst.cache)
    more = (off is not None and off > 0) or (run.apart and expected is None and seen > TOLERANCE)
    if more:
        return [
            Finding(
                "prefix_cache_contaminated",
                "error",
                "high",
                "the server had prompts in its prefix cache that this run did not send before: TTFT is not that of the"
                " workload",
                tuple(facts),
                "restart the server, so that its prefix cache is empty, and measure again",
                steps,
            )
        ]
    if seen < LEAST_SEEN:
        return []
    return [
        Finding(
            "prefix_cache",
            "info",
            "high",
            "the prefix cache saves part of the prompts, as the workload shares it: TTFT holds for this sharing only",
            tuple(facts),
            "compare with prompts that share nothing (--shared-prefix-len 0)",
            steps,
        )
    ]


def _by_times(run: Levels) -> list[Finding]:
    """Where the server tells nothing: prompts of which a part was sent before are answered sooner than their length
    costs those that were new."""
    base = run.base
    if base is None:
        return []
    found = _saved(base)
    if found is None:
        return []
    share, n = found
    return [
        Finding(
            "prefix_cache",
            "info",
            "medium" if n >= 5 else "low",
            "prompts of which a part was sent before get their first token sooner than new ones of their length: a"
            " prefix cache is at work",
            (
                Fact("their TTFT a token, as a share of that of new prompts", share, "share"),
                Fact("new prompts", float(n)),
            ),
            "let the server tell its cached tokens (vLLM: --enable-prompt-tokens-details), and measure again",
            (base.step,),
        )
    ]


def _saved(base: Level) -> tuple[float, int] | None:
    """The TTFT a token of prompts that were sent before in part, as a share of that of new ones; and how many these
    are. None where they are not clearly sooner, or too few."""
    known = (base.rows.shared_low != NULL) & (metrics.input_tokens(base.rows) > 0)
    c = base.rows.where(has_outcome(base.rows, "ok") & known)
    if not len(c):
        return None
    tokens = metrics.input_tokens(c).astype(np.float64)
    again = c.shared_low > 0.2 * tokens
    if again.sum() < 5 or (~again).sum() < 2:
        return None
    each = metrics.ttft(c) / tokens
    share = median(each[again]) / median(each[~again])
    return (share, int((~again).sum())) if share < FASTER else None
