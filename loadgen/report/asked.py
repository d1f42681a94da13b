"""The lengths that requests asked for, beside those of their workload. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..records import AskedLengths, StepSummary
from .numbers import number

LEAST = 30  # requests, of which something can be said
DEVIATION = 0.05  # of the mean; below it nobody's figures move
STANDARD_ERRORS = 4.0


def asked_line(summary: StepSummary, workload: Mapping[str, Mapping[str, float]]) -> str:
    """What a step's requests asked for, and what its workload has; nothing where all have one length."""
    parts = []
    for word, side in (("in", "input"), ("out", "output")):
        seen = summary.asked.get(side)
        if seen is None or (seen.std == 0 and side not in workload):
            continue
        text = f"{word} {_figures(seen.mean, seen.p50, seen.p90, seen.p99)}"
        if side in workload:
            own = workload[side]
            text += f" of {_figures(own['mean'], own['p50'], own['p90'], own['p99'])}"
        parts.append(text)
    return f"{' · '.join(parts)}: mean (p50, p90, p99)" if parts else ""


def asked_notes(summaries: Sequence[StepSummary], workload: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Where the mean length of a step's requests is not that of the workload, beyond chance."""
    found: dict[str, tuple[float, str]] = {}
    for summary in summaries:
        for side, seen in summary.asked.items():
            if side not in workload:
                continue
            off = _deviation(seen, workload[side]["mean"])
            if off and abs(off) > abs(found.get(side, (0.0, ""))[0]):
                found[side] = (
                    off,
                    f"the {side}s that step {summary.step} asked for have {number(seen.mean)} tokens in the mean of"
                    f" {seen.n:,} requests, where the workload's have {number(workload[side]['mean'])}"
                    f" ({100 * off:+.0f} %, beyond chance)",
                )
    return [text for _, text in found.values()]


def _deviation(seen: AskedLengths, mean: float) -> float:
    """By what share of the workload's mean; 0 where chance may do it."""
    if seen.n < LEAST or not mean:
        return 0.0
    off = seen.mean - mean
    beyond = abs(off) > STANDARD_ERRORS * seen.std / math.sqrt(seen.n) and abs(off) > DEVIATION * mean
    return off / mean if beyond else 0.0


def _figures(mean: float, p50: float, p90: float, p99: float) -> str:
    return f"{mean:,.0f} ({p50:,.0f}, {p90:,.0f}, {p99:,.0f})"
