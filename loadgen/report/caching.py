"""What the prefix cache saved against what it could, and conversations, as text and JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..analysis.caching import TOLERANCE, unexpected
from ..results import CacheShare, StepSummary
from .numbers import percent, plural

_SOURCES = {"usage": "by its usage", "metrics": "by its own metrics"}


def cache_lines(summary: StepSummary) -> list[tuple[str, str]]:
    """Lines of a step's details, as (label, text): where something was shared, and where there were conversations."""
    cache = summary.cache
    found = []
    if cache is not None and cache.expected is not None:
        parts = [f"expected {_range(cache.expected)}"]
        parts.append(
            "the server tells nothing"
            if cache.seen is None or cache.source is None
            else f"server {percent(cache.seen)} {_SOURCES[cache.source]}"
        )
        parts.append(f"blocks of {cache.block:,} tokens" if cache.block else "block unknown (--cache-block)")
        found.append(("cached share", " · ".join(parts)))
    if summary.sessions:
        parts = [plural(summary.sessions, "conversation")]
        if n := summary.flags.get("context_cut"):
            parts.append(f"{n:,} ended where the next turn might not have fitted the context")
        if summary.failed:
            parts.append(f"{summary.failed:,} ended by a turn that failed")
        if summary.concurrency and summary.concurrency_mean is not None:
            parts.append(f"of {plural(summary.concurrency, 'user')} {percent(_busy(summary))} waited for an answer")
        found.append(("conversations", " · ".join(parts)))
    return found


def cache_notes(summaries: Sequence[StepSummary], *, apart: bool) -> list[str]:
    """Where the server's share is not the one that was sent; `apart`: the prompts were made to share nothing."""
    told = [s for s in summaries if s.cache is not None and s.cache.expected is not None]
    if told:
        off = [s for s in told if unexpected(s.cache) is not None]
        if not off:
            return []
        worst = max(off, key=lambda s: abs(unexpected(s.cache) or 0.0))
        cache = worst.cache
        assert cache is not None
        assert cache.expected is not None
        assert cache.seen is not None
        less = cache.seen < cache.expected[0]
        why = (
            "its prefix cache is off, too small for what is in flight, or its block is larger than was taken"
            if less
            else "other traffic, or an earlier run with --same-text, has warmed its prefix cache"
        )
        where = f" at step {worst.step}" if len(summaries) > 1 else ""
        return [
            f"cached share{where}: {_range(cache.expected)} expected of what was sent, {percent(cache.seen)} by the"
            f" server: {why}"
        ]
    shares = [s.cache.seen for s in summaries if s.cache is not None and s.cache.seen is not None]
    usage = max((s.cached_share or 0.0 for s in summaries), default=0.0)
    if apart and (worst_share := max(shares, default=0.0)) > TOLERANCE:
        return [
            f"up to {percent(worst_share)} of a step's prompt tokens came from the server's prefix cache, though these"
            " prompts have nothing in common: other traffic, or a text that the server puts before each"
        ]
    if usage > 0.01:
        return [f"up to {percent(usage)} of a step's prompt tokens came from the server's prefix cache"]
    return []


def cache_object(cache: CacheShare | None) -> dict[str, Any] | None:
    """For the JSON report."""
    if cache is None or (cache.expected is None and cache.seen is None):
        return None
    return {
        "expected_share": cache.expected,
        "server_share": cache.seen,
        "source": cache.source,
        "block_tokens": cache.block,
    }


def sessions_object(summary: StepSummary) -> dict[str, Any] | None:
    """For the JSON report; None without conversations."""
    if not summary.sessions:
        return None
    return {
        "conversations": summary.sessions,
        "failed": summary.failed,
        "cut_context": summary.flags.get("context_cut", 0),
    }


def _range(expected: tuple[float, float]) -> str:
    low, high = (percent(share) for share in expected)
    return low if low == high else f"{low.removesuffix(' %')}–{high}"


def _busy(summary: StepSummary) -> float:
    return (summary.concurrency_mean or 0.0) / summary.concurrency
