"""The lengths that requests asked for, beside those of their workload. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ..results import AskedLengths, StepSummary
from .numbers import number

LEAST = 30  # requests, of which something can be said
DEVIATION = 0.05  # of the mean; below it nobody's figures move
DEVIATIONS = {"p50": 0.05, "p90": 0.05, "p99": 0.10}
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
    """Where the lengths of a step's requests are not those of the workload, beyond chance: the mean, or else the
    percentile that is furthest off."""
    found: dict[str, tuple[bool, float, str]] = {}
    for summary in summaries:
        for side, seen in summary.asked.items():
            if side not in workload:
                continue
            for figure, off, is_, own in _deviations(seen, workload[side]):
                worst = figure == "mean", abs(off)
                if worst <= found.get(side, (False, 0.0, ""))[:2]:
                    continue
                mean = figure == "mean"
                have, has = (number(n) if mean else f"{n:,.0f}" for n in (is_, own))
                text = (
                    f"the {side}s that step {summary.step} asked for have {have} tokens"
                    f" {'in the mean' if mean else f'at {figure}'} of {seen.n:,} requests, where the workload's have"
                    f" {has} ({100 * off:+.0f} %, beyond chance)"
                )
                found[side] = (*worst, text)
    return [text for _, _, text in found.values()]


def _deviations(seen: AskedLengths, own: Mapping[str, float]) -> Iterator[tuple[str, float, float, float]]:
    """(figure, by what share of the workload's, what it is, what the workload's is) where chance does not do it."""
    if seen.n < LEAST:
        return
    margin = STANDARD_ERRORS * seen.std / math.sqrt(seen.n)
    mean: tuple[float | None, float | None] = (seen.mean - margin, seen.mean + margin)
    bounds = {"mean": mean, **dict(zip(DEVIATIONS, seen.within, strict=False))}
    for figure, (low, high) in bounds.items():
        is_, wanted = getattr(seen, figure), own[figure]
        beyond = (low is not None and wanted < low) or (high is not None and wanted > high)
        if wanted and beyond and abs(is_ - wanted) > DEVIATIONS.get(figure, DEVIATION) * wanted:
            yield figure, (is_ - wanted) / wanted, is_, wanted


def _figures(mean: float, p50: float, p90: float, p99: float) -> str:
    return f"{mean:,.0f} ({p50:,.0f}, {p90:,.0f}, {p99:,.0f})"
