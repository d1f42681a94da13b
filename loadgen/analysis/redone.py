"""Steps in which this client was the limit, and whose load was then measured again: they never count. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..results import StepSummary


def without_redone(summaries: Sequence[StepSummary]) -> list[StepSummary]:
    """All but those for which a later step of the same load stands, which this client did not shape."""
    sound = [(s.step, s.concurrency, s.rate) for s in summaries if s.client_limit is None]
    return [
        s
        for s in summaries
        if s.client_limit is None
        or not any(step > s.step and (c, rate) == (s.concurrency, s.rate) for step, c, rate in sound)
    ]
