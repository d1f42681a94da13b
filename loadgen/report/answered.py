"""What can be said of a run whose log holds no answer of its own. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..results import StepSummary
from .facts import RunFacts
from .words import Words


def of_conversations(facts: RunFacts, summaries: Sequence[StepSummary]) -> bool:
    """Is the rate of its open loop one of conversations, not of requests?"""
    return not facts.traced and any(s.rate is not None for s in summaries) and any(s.sessions for s in summaries)


def load_words(words: Words, facts: RunFacts, summaries: Sequence[StepSummary], load: float) -> str:
    """`8 concurrent requests`, `2.5 requests/s`."""
    if any(s.rate is not None for s in summaries):
        key = "answer.conversations" if of_conversations(facts, summaries) else "answer.per_second"
    else:
        key = "answer.in_flight_one" if load == 1 else "answer.in_flight"
    return words(key, n=f"{load:,g}")


def measured_text(words: Words, facts: RunFacts, summaries: Sequence[StepSummary]) -> str:
    """What was measured, in a sentence."""
    sent, loads = sum(s.judged for s in summaries), [s.load for s in summaries]
    if not sent:
        return words("page.nothing")
    if len(loads) == 1 and not loads[0]:
        return words("answer.log", n=f"{sent:,}")
    low, high = f"{min(loads):,g}", load_words(words, facts, summaries, max(loads))
    if low == f"{max(loads):,g}":
        return words("answer.measured", load=high)
    return words("answer.loads", n=len(set(loads)), low=low, high=high)
