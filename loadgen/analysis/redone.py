"""Steps in which this client was the limit, and whose load was then measured again: they never count. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import StepSummary


def redone(summaries: Sequence[StepSummary]) -> list[StepSummary]:
    """Those that a later step of the same load, which this client did not shape, stands for."""
    return [
        step
        for place, step in enumerate(summaries)
        if step.client_limit is not None
        and any(
            later.client_limit is None and (later.concurrency, later.rate) == (step.concurrency, step.rate)
            for later in summaries[place + 1 :]
        )
    ]


def without_redone(summaries: Sequence[StepSummary]) -> list[StepSummary]:
    away = redone(summaries)
    return [step for step in summaries if not any(step is one for one in away)]
