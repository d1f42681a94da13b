"""Long prompts that hold up the other requests: gaps between tokens that coincide with the prefill of a prompt much
longer than usual. Pure.

A gap counts by what it is longer than the usual one, so that many small delays by usual prompts do not outvote a few
large ones. It coincides with a prompt whose prefill (its length × ms a token before its first token) it overlaps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...log.columns import NULL, Bools
from .. import metrics
from .finding import Fact, Finding
from .levels import Floats, Level, Levels, median

LONG = 3.0  # times the tokens of the median prompt
RARE = 0.35  # of the requests, at most, are long; if more, they are what is usual
LEAST_LONG = 4
SPIKE = 2.5  # times the usual gap, and more than the prompts that are not long can make it
LEAST_SPIKES = 5
MOST_SPIKES = 0.3  # of the gaps; if more, they are what is usual
EXPLAINED = 0.6  # of the time in spikes coincides with a long prompt,
LIFT = 2.0  # and so many times of what chance would have it
LEAST_BEYOND = 0.01  # of the others' time, that spikes take beyond the usual gap
MARGIN = 1.3  # on how long a prefill is thought to take


@dataclass(frozen=True, slots=True)
class Stalls:
    """Of a level: the share of the time in spikes that coincides with long prompts, that of all gaps, what spikes take
    of the others' time beyond the usual gap, and the facts."""

    level: Level
    explained: float
    beyond: float
    facts: tuple[Fact, ...]


def long_prompts(run: Levels) -> tuple[Finding, float] | None:
    """The finding, and the share of the others' time that it takes at the load where that is most."""
    found = [stalls for level in run.by_load if (stalls := stalls_of(run, level)) is not None]
    if not found:
        return None
    worst = max(found, key=lambda stalls: stalls.beyond)
    finding = Finding(
        "long_prompts",
        "warning",
        "high" if worst.explained > 0.8 and len(found) > 1 else "medium",
        "while a long prompt is computed the other requests get no token: their gaps coincide with it",
        worst.facts,
        "compute long prompts in smaller pieces (vLLM: chunked prefill, a lower --max-num-batched-tokens)",
        tuple(stalls.level.step for stalls in found),
    )
    return finding, worst.beyond


def stalls_of(run: Levels, level: Level) -> Stalls | None:
    rows, c = level.rows, level.sampled
    usual_prompt = median(level.inputs)
    if len(c) < LEAST_LONG or level.users < 1.5 or not usual_prompt > 0:
        return None
    prompt = metrics.input_tokens(rows).astype(np.float64)
    long = (prompt > LONG * usual_prompt) & (rows.first_token_ns != NULL) & (rows.sent_ns != NULL)
    if long.sum() < LEAST_LONG or float((level.inputs > LONG * usual_prompt).mean()) > RARE:
        return None
    row = c.event_rows()
    short = metrics.input_tokens(c) <= LONG * usual_prompt
    later = np.flatnonzero((row[1:] == row[:-1]) & short[row[1:]]) + 1
    start, end = c.event_ns[later - 1].astype(np.float64), c.event_ns[later].astype(np.float64)
    gaps = end - start
    usual = float(np.median(gaps)) if len(gaps) else 0.0
    cost = run.prefill_ms()
    by_usual = 2 * usual + cost[0] * LONG * usual_prompt * 1e6 if cost is not None else 0.0
    spikes = gaps > max(SPIKE * usual, by_usual)
    if usual <= 0 or spikes.sum() < LEAST_SPIKES or spikes.mean() > MOST_SPIKES:
        return None
    sent, first = (x[long].astype(np.float64) for x in (rows.sent_ns, rows.first_token_ns))
    took = np.maximum(MARGIN * cost[0] * prompt[long] * 1e6, usual) if cost is not None else first - sent
    inside = overlaps(start + 0.25 * usual, end + 0.25 * usual, np.maximum(sent, first - took), first)
    excess = np.where(spikes, gaps - usual, 0.0)
    explained = float(excess[inside].sum() / excess.sum())
    beyond = float(excess[inside].sum() / gaps.sum())
    chance = float(gaps[inside].sum() / gaps.sum())
    if explained < max(EXPLAINED, min(LIFT * chance, 0.95)) or beyond < LEAST_BEYOND:
        return None
    told = spikes & inside
    ids = tuple(c.ids[int(i)] for i in dict.fromkeys(row[later[told]][:50].tolist())) if c.ids else ()
    facts = (
        Fact("share of the time in long gaps that coincides with a long prompt", explained, "share", ids[:3]),
        Fact("share of all time that does", chance, "share"),
        Fact("median long gap", float(np.median(gaps[told])) / 1e6, "ms"),
        Fact("usual gap", usual / 1e6, "ms"),
        Fact("median long prompt", float(np.median(prompt[long])), "tokens"),
        Fact("median prompt", usual_prompt, "tokens"),
        Fact("share of the others' time that these gaps take", beyond, "share"),
    )
    return Stalls(level, explained, beyond, facts)


def overlaps(start: Floats, end: Floats, begins: Floats, ends: Floats) -> Bools:
    """Which of the intervals (start, end), shape (n,), overlap any of (begins, ends), shape (m,)."""
    begun = np.searchsorted(np.sort(begins), end, side="left")
    over = np.searchsorted(np.sort(ends), start, side="left")
    return np.asarray(begun > over, dtype=np.bool_)
