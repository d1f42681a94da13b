"""What a reader has to know of steps in which the server was not the same throughout. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.redone import without_redone
from ..results import StepSummary, Unsteady
from .numbers import plural

_WORDS: dict[Unsteady, str] = {
    "drift": "throughput drifted: its intervals are too narrow, and only runs at other times tell the true spread",
    "stalls": "now and then nothing arrived for many times longer than usual: the intervals are too narrow for that",
    "lockstep": "requests left in waves, as with exactly equal lengths: latencies depend on how the step began; lengths"
    " that vary by 10 % mend it",
}


def unsteady_notes(summaries: Sequence[StepSummary]) -> list[str]:
    """A sentence for each kind, with the steps in which it was seen."""
    found, counted = [], without_redone(summaries)
    for kind, words in _WORDS.items():
        steps = [f"{s.step}" for s in counted if kind in s.unsteady]
        if steps:
            named = f"step {steps[0]}" if len(steps) == 1 else plural(len(steps), "step")
            found.append(f"in {named} of {len(summaries)}, {words}")
    return found
