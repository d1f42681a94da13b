"""KV memory that is full: by the server's own word, or by streams that stop and a number of tokens that stays the same.
Pure."""

from __future__ import annotations

import numpy as np

from .finding import Confidence, Fact, Finding
from .levels import ABOVE, Level, Levels, median, spread
from .queues import Queue

KV_FULL = 0.93  # use of the KV cache at the peak, where requests wait
KV_LOW = 0.8  # at the highest peak: then it was never the limit
LEAST_PAUSES, PAUSE_SHARE = 3, 0.02  # requests whose stream stops while the others go on
MANY_PAUSES = 0.05  # of the requests: then also where no queue shows
PAUSE = 8.0  # gaps of the level, at least


def kv_finding(run: Levels, queue: Queue | None) -> Finding | None:
    found = _by_server(run) or _by_streams(run, queue)
    if found is None:
        return None
    facts, steps, confidence = found
    seen = queue.level.instants if queue is not None else None
    if seen is not None:
        facts.append(Fact("median of the tokens that running requests hold", float(np.median(seen.held)), "tokens"))
        facts.append(Fact("its spread around the mean", spread(seen.held), "share"))
        facts.append(Fact("spread of the number that run around its mean", spread(seen.decoding), "share"))
    return Finding(
        "kv_exhausted",
        "warning",
        confidence,
        "the KV cache holds no more tokens: requests wait for memory, or are thrown out and computed again",
        tuple(facts),
        "give the KV cache more memory (vLLM: a higher --gpu-memory-utilization), everything else as it is",
        tuple(dict.fromkeys(steps)),
    )


_Found = tuple[list[Fact], list[int], Confidence]


def _by_server(run: Levels) -> _Found | None:
    """It preempts, or its cache is full while requests wait."""
    facts: list[Fact] = []
    told = [(s.step, s.server) for s in run.all if s.server is not None]
    preempted = {step: server.preemptions for step, server in told if server.preemptions}
    if preempted:
        facts.append(Fact("preemptions in the steady windows, by the server", float(sum(preempted.values()))))
    full = [(step, v) for step, v in told if (v.kv_use_peak_share or 0.0) >= KV_FULL and (v.waiting or 0.0) >= 1.0]
    if full:
        worst = full[-1][1]
        facts.append(Fact("share of the KV cache in use at the peak", worst.kv_use_peak_share or 0.0, "share"))
        facts.append(Fact("mean number of requests that wait meanwhile", worst.waiting or 0.0))
    return (facts, [*preempted, *(step for step, _ in full)], "high") if facts else None


def _by_streams(run: Levels, queue: Queue | None) -> _Found | None:
    """Streams stop while others go on, or the tokens held are what stays the same in a queue. Not where the server says
    that its cache was never nearly full, nor where streams stop at the lowest load too."""
    peaks = [s.server.kv_use_peak_share for s in run.all if s.server is not None]
    told = [peak for peak in peaks if peak is not None]
    if told and max(told) <= KV_LOW:
        return None
    paused = [(level, ids) for level in run.by_load if (ids := pauses(level)) is not None]
    held = queue is not None and _held_is_the_limit(queue.level)
    many = any(len(ids) >= MANY_PAUSES * len(level.sampled) for level, ids in paused)
    if run.base is not None and run.several and pauses(run.base) is not None:
        return None
    if not (held or (paused and (queue is not None or many))):
        return None
    facts, steps = [], [level.step for level, _ in paused]
    if paused:
        level, ids = paused[-1]
        share = len(ids) / len(level.sampled)
        facts.append(Fact("share of the answers that stop for long while others go on", share, "share", ids[:3]))
    if held and queue is not None:
        steps.append(queue.level.step)
    return facts, steps, "medium" if paused and held else "low"


def _held_is_the_limit(level: Level) -> bool:
    """Is it the tokens held that stay the same, and not the number that hold them?"""
    found = level.instants
    if found is None or median(found.decoding) < 3 or median(found.in_flight) < ABOVE * median(found.decoding):
        return False
    mean = float((level.inputs + level.outputs).mean())  # NaN where the tokens of any are not known
    if not mean > 0 or max(level.outputs.std(), level.inputs.std()) < 0.1 * mean:
        return False
    return spread(found.held) < 0.7 * spread(found.decoding) and spread(found.held) < 0.12


def pauses(level: Level) -> tuple[str, ...] | None:
    """Requests whose stream stopped for `PAUSE` usual gaps while those of the others went on, as one that is preempted
    does. None where they are too few."""
    c = level.sampled
    if len(c) < LEAST_PAUSES or level.summary.client_limit is not None:
        return None
    heads, tails = c.event_offsets[:-1], c.event_offsets[1:] - 1
    gaps = np.diff(c.event_ns).astype(np.float64)
    inside = np.ones(len(gaps), dtype=np.bool_)
    inside[heads[1:] - 1] = False
    usual = float(np.median(gaps[inside])) if inside.any() else 0.0
    if usual <= 0:
        return None
    long = np.flatnonzero(inside & (gaps > PAUSE * usual))
    if len(long) < LEAST_PAUSES:
        return None
    every = np.unique(c.event_ns)  # a step of the server brings all its tokens at once
    steps = np.searchsorted(every, c.event_ns[long + 1] - 0.2 * usual) - np.searchsorted(
        every, c.event_ns[long] + 0.2 * usual, side="right"
    )
    # The others went on as usual in that time: at least half as many moments of arrival as the gap has usual gaps.
    alone = long[steps >= 0.5 * gaps[long] / usual]
    rows = np.unique(np.searchsorted(tails, alone, side="left"))
    if len(rows) < max(LEAST_PAUSES, PAUSE_SHARE * len(c)):
        return None
    return tuple(c.ids[int(i)] for i in rows) if c.ids else tuple("" for _ in rows)
