"""What the engine's steps are spent on: prompts, or tokens. Pure.

With p ms a prompt token (the slope of TTFT over input length without load), prompts take the share
    requests/s × prompt tokens × p
of one engine's time. What TPOT has grown by beyond that is the batch's and its contexts'.
"""

from __future__ import annotations

import numpy as np

from .finding import Fact, Finding
from .levels import Level, Levels, median
from .queues import queue_of
from .stalls import long_prompts

PREFILL_SHARE = 0.5  # of the time
WAITS = 1.3  # by less TPOT does not grow where an engine that computes tokens has prompts half of the time
GROWN = 1.35  # TPOT against the lowest load, prefill taken out
MATTERS = 0.25  # of what the largest other cause takes of a request's time: less is not told


def compute_findings(run: Levels) -> list[Finding]:
    """Stalls that take much less time than what else is found are left out: there is always a longest prompt."""
    others = [found for found in (prefill(run), decode(run)) if found is not None]
    most = max((share for _, share in others), default=0.0)
    stalls = long_prompts(run)
    told = [] if stalls is None or stalls[1] < MATTERS * most else [stalls[0]]
    return [*told, *(finding for finding, _ in others)]


def prefill(run: Levels) -> tuple[Finding, float] | None:
    """The finding, and the share of the time that prompts take where that is most."""
    cost = run.prefill_ms()
    shares = [(level, share) for level in run.by_load if (share := run.prefill_share(level)) is not None]
    if cost is None or not shares:
        return None
    level, share = max(shares, key=lambda pair: pair[1])
    grown = run.slower(level)
    # Where tokens do not wait for prompts, prompts are computed elsewhere, or by several engines that share them.
    apart = level is not run.base and grown is not None and grown < WAITS
    if share < PREFILL_SHARE or (apart and queue_of(run, level) is None):
        return None
    per_token, fit = cost
    facts = [Fact(f"share of the time that prompts take at {level.named}", min(share, 1.0), "share")]
    if fit is not None:
        facts += [
            Fact("slope of TTFT over the input length without load", per_token, "ms a token"),
            Fact("R² of that", fit.r2),
        ]
    facts.append(Fact("prompt tokens that one engine computes", 1e3 / per_token if per_token else 0.0, "tokens/s"))
    finding = Finding(
        "prefill_bound",
        "warning",
        "high" if share >= 0.65 and fit is not None else "medium",
        "the server computes prompts most of the time: TTFT grows with their length, and tokens wait for them",
        tuple(facts),
        "where prompts share text turn the prefix cache on, else give prefill more compute (one more GPU)",
        (level.step,),
    )
    return finding, min(share, 1.0)


def decode(run: Levels) -> tuple[Finding, float] | None:
    """The finding, and the share of a token's time that the batch has added."""
    base = run.base
    if base is None or not run.several:
        return None
    growth = [(grown, level) for level in run.by_load[1:] if (grown := _grown(run, base, level)) is not None]
    if not growth:
        return None
    grown, level = max(growth, key=lambda one: one[0])
    if grown < GROWN:
        return None
    low, high = median(base.tpot), median(level.tpot)
    facts = [
        Fact(f"median TPOT at {base.named}", low, "ms"),
        Fact(f"median TPOT at {level.named}", high, "ms"),
        Fact("growth", high / low, "times"),
        Fact("growth without what prompts take", grown, "times"),
    ]
    found = level.instants
    if found is not None:
        facts.append(Fact("median number of requests that decode at once", float(np.median(found.decoding))))
        facts.append(Fact("median of the tokens that they hold", float(np.median(found.held)), "tokens"))
    finding = Finding(
        "decode_bound",
        "warning",
        "high" if grown > 1.6 else "medium",
        "each token takes the longer the more requests are in the batch: their contexts are read, and their tokens"
        " computed, in every step",
        tuple(facts),
        "use weights of fewer bits (fp8), everything else as it is",
        (level.step,),
    )
    return finding, 1 - 1 / grown


def _grown(run: Levels, base: Level, level: Level) -> float | None:
    """TPOT at a level against that at the lowest load, each without the share of the time that prompts take of it."""
    low, high = median(base.tpot), median(level.tpot)
    if not (low > 0 and high > 0):
        return None
    shares = [min(run.prefill_share(one) or 0.0, 0.95) for one in (base, level)]
    if base.users <= 1.5:  # a request alone waits for no other's prompt
        shares[0] = 0.0
    return high * (1 - shares[1]) / (low * (1 - shares[0]))
