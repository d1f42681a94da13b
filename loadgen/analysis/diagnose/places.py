"""Where requests wait before they run, and for what: memory, a place in the batch, a place before the server. Pure.

A request waits for a place where the number that run is the same at any moment and at any load above it; it waits for
memory where that number varies, and the tokens that the running ones hold do not. With the server's own count of
running and waiting requests, one sees directly on which side of its door they wait.
"""

from __future__ import annotations

import numpy as np

from .finding import Fact, Finding
from .kv import kv_finding
from .levels import ABOVE, Floats, Level, Levels, median
from .overload import load_findings
from .queues import Queue, longest_queue

FLAT = 0.2  # the middle 80 % of the number that run lie within this share of it, or within two requests
PREFILL_SHARE = 0.55  # of the time, that prompts take: then it is not a place that is missing
OUTSIDE = 0.12  # of the requests in flight, not in the server


def queue_findings(run: Levels) -> list[Finding]:
    found = [*load_findings(run)]
    queue = longest_queue(run)
    memory = kv_finding(run, queue)
    if memory is not None:
        return [*found, memory]
    if queue is not None:
        return [*found, *_place(run, queue)]
    return found


def _place(run: Levels, queue: Queue) -> list[Finding]:
    level = queue.level
    server, found = level.summary.server, level.instants
    share = run.prefill_share(level)
    limit = _limit(found.decoding) if found is not None else None
    facts = [Fact(f"wait of the median request at {level.named}", queue.wait_ms, "ms")]
    if not queue.alone:
        facts.append(Fact("share of its whole time", queue.share, "share"))
    ratio = _tpot_holds(run, level)
    if ratio is not None:
        facts.append(Fact("TPOT against that at the load before", ratio, "times"))
    outside = _outside(run, level)
    if (
        outside is not None
        and outside > OUTSIDE
        and (server is None or (server.waiting or 0.0) < outside * level.users)
    ):
        assert server is not None
        assert server.in_flight is not None
        facts += [
            Fact("requests in flight from here", level.summary.concurrency_mean or level.users),
            Fact("requests in the server, by its own count", server.in_flight.value),
        ]
        return [
            Finding(
                "admission_limit",
                "warning",
                "high",
                "requests wait before they reach the server: a gateway or proxy lets only so many through at a time",
                tuple(facts),
                f"raise the limit of what stands before the server, now about {server.in_flight.value:.0f}",
                (level.step,),
            )
        ]
    if share is not None and share >= PREFILL_SHARE:
        return []  # prompts are what they wait for: `compute` says so
    if server is not None and server.waiting is not None and server.running is not None:
        if server.waiting < max(1.0, 0.05 * level.users):
            return _unplaced(run, queue, facts)
        facts += [
            Fact("requests running, by the server", server.running),
            Fact("requests waiting there", server.waiting),
        ]
        return [
            Finding(
                "batch_limit",
                "warning",
                "high" if limit is not None else "medium",
                f"the server admits about {server.running:.0f} requests to its batch, the others wait in its queue",
                tuple(facts),
                f"raise the limit of sequences in a batch (vLLM: --max-num-seqs), now about {server.running:.0f}",
                (level.step,),
            )
        ]
    if limit is None:
        return _unplaced(run, queue, facts)
    facts += [Fact("requests that run at once", limit), Fact("requests in flight", level.users)]
    return [
        Finding(
            "queueing",
            "warning",
            "medium" if queue.alone or not _same_below(run, level, limit) else "high",
            f"about {limit:.0f} requests run at once whatever is sent, the others wait: a limit of the batch, or of"
            " what stands before the server",
            tuple(facts),
            "let the server's own metrics be read (--metrics-url): they tell on which side of its door requests wait",
            (level.step,),
        )
    ]


def _unplaced(run: Levels, queue: Queue, facts: list[Fact]) -> list[Finding]:
    if queue.alone:
        return []
    return [
        Finding(
            "queueing",
            "warning",
            "low",
            "requests wait before their first token, the longer the more are in flight, and what for does not show",
            tuple(facts),
            "let the server's own metrics be read (--metrics-url), and measure again",
            (queue.level.step,),
        )
    ]


def _limit(running: Floats) -> float | None:
    """The number that run, where it is the same at nearly any moment."""
    low, middle, high = (float(q) for q in np.quantile(running, (0.1, 0.5, 0.9)))
    return high if middle >= 1 and high - low <= max(2.0, FLAT * middle) else None


def _same_below(run: Levels, level: Level, limit: float) -> bool:
    """Did as many run at the load before, if that was above the limit too?"""
    before = [one for one in run.by_load if one.load < level.load and one.users > ABOVE * limit]
    found = before[-1].instants if before else None
    return found is not None and abs(float(np.quantile(found.decoding, 0.9)) - limit) <= max(1.0, 0.1 * limit)


def _tpot_holds(run: Levels, level: Level) -> float | None:
    before = [one for one in run.by_load if one.load < level.load]
    low = median(before[-1].tpot) if before else float("nan")
    return median(level.tpot) / low if low > 0 else None


def _outside(run: Levels, level: Level) -> float | None:
    """The share of the requests in flight that the server does not know of, beyond what the way explains."""
    server, ours = level.summary.server, level.summary.concurrency_mean
    if server is None or server.in_flight is None or not ours:
        return None
    # What is on its way takes its time at the lowest load too, and is as many as its share of a request's time.
    edge = min(server.edge_requests or 0.0, 0.5 * ours)
    base = run.base
    if base is not None and base is not level and base.summary.server is not None and base.summary.server.in_flight:
        at_base = (base.summary.concurrency_mean or 0.0) - base.summary.server.in_flight.value
        edge = max(0.0, min(edge, at_base * level.rate / base.rate)) if base.rate else edge
    return 1 - (server.in_flight.value + edge) / ours
