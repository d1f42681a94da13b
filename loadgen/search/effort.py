"""How long a step lasts, and from that what a whole run may send. Pure.

A step's window closes when enough requests have completed in it and it has lasted long enough, or at its cap. The caps
are what the run announces before it starts, and the run's budget keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..results import NextLevel, Slo


@dataclass(frozen=True, slots=True)
class StepRule:
    """The length of a step at any concurrency c.

    The window lasts at least `seconds_min`. It is looked at when `first_look` measured requests have completed (or 5 ·
    c where that is more), and whenever they have grown by `look_ratio`; it closes once the verdict is certain, or,
    without objectives, once throughput is known to `precision`. It closes undecided at `requests_cap` requests (or 8 ·
    c) or after `seconds_max` with at least 2 · c. The user's own `requests` (exactly so many) or `duration` replaces
    all of that.
    """

    first_look: int
    look_ratio: float
    requests_cap: int
    seconds_min: float
    seconds_max: float
    precision: float
    requests: int | None = None
    duration: float | None = None

    def look_sizes(self, concurrency: int) -> tuple[int, ...]:
        """At how many completed requests a look may be taken; none where the user fixed the length."""
        if self.requests is not None or self.duration is not None:
            return ()
        sizes = [float(max(self.first_look, 5 * concurrency))]
        while sizes[-1] * self.look_ratio <= self.requests_most(concurrency):
            sizes.append(sizes[-1] * self.look_ratio)
        return tuple(round(size) for size in sizes)

    def ended(self, concurrency: int, sent: int, done: int, seconds: float) -> bool:
        """Must the window close now, decided or not? `sent` and `done` count measured requests."""
        if self.requests is not None:
            return sent >= self.requests
        if self.duration is not None:
            return seconds >= self.duration
        if sent >= self.requests_most(concurrency):
            return True
        return seconds >= self.seconds_max and done >= 2 * concurrency

    def requests_most(self, concurrency: int) -> int:
        """The most measured requests a step may send."""
        return self.requests if self.requests is not None else max(self.requests_cap, 8 * concurrency)

    def share_done(self, concurrency: int, done: int, seconds: float) -> float:
        """How far the window is at the least, 0 to 1: for a progress bar."""
        if self.requests is not None:
            return min(1.0, done / self.requests)
        if self.duration is not None:
            return min(1.0, seconds / self.duration)
        return min(1.0, max(done / self.requests_most(concurrency), seconds / self.seconds_max))


# 130 requests are the fewest that can pass a p95 with a look's share of the error; a p99 needs 662 (one-sided 99 %, one
# exceedance allowed).
EFFORTS: dict[str, StepRule] = {
    "quick": StepRule(130, 1.6, 1_000, 3.0, 20.0, 0.05),
    "normal": StepRule(130, 1.3, 8_000, 5.0, 120.0, 0.03),
    "thorough": StepRule(130, 1.3, 16_000, 20.0, 900.0, 0.02),
}


def step_rule(
    effort: str,
    slo: Slo,
    *,
    requests: int | None = None,
    duration: float | None = None,
    precision: float | None = None,
) -> StepRule:
    """The rule for an effort, scaled to what the objectives need. `precision` takes the place of the effort's own."""
    base = EFFORTS[effort]
    base = base if precision is None else replace(base, precision=precision)
    highest = max((o.percentile or 100 * slo.attainment for o in slo.objectives), default=0.0)
    base = replace(base, requests=requests, duration=duration)
    if not slo:
        return replace(base, first_look=40)
    if highest > 97.5:
        return replace(
            base, first_look=662, requests_cap=base.requests_cap * 5 // 2, seconds_max=base.seconds_max * 2.5
        )
    return base


def rate_rule(rule: StepRule) -> StepRule:
    """The rule of a step in a sweep of rates: requests need time to pile up, and looks at it are few."""
    if rule.requests is not None or rule.duration is not None:
        return rule
    return replace(rule, first_look=max(rule.first_look, 300), look_ratio=1.5)


def baseline_rule(rule: StepRule) -> StepRule:
    """The baseline shows the server without load; it is not judged, so it need not establish a percentile."""
    if rule.requests is not None or rule.duration is not None:
        return rule
    return replace(rule, requests_cap=16, first_look=1_000_000, seconds_max=min(rule.seconds_max, 30.0))


def rule_of(rule: StepRule, level: NextLevel, *, repeats: int = 1) -> StepRule:
    """The rule of a level's window: shorter where only its throughput is checked, and not for a precision, and where it
    is one of several that are pooled, which are of equal size and together about one step's most."""
    if rule.requests is not None or rule.duration is not None:
        return rule
    if level.precise:
        return replace(rule, first_look=130)
    if level.check:
        return replace(rule, first_look=130, requests_cap=EFFORTS["quick"].requests_cap)
    if level.repeat:
        return replace(rule, requests=max(rule.first_look, 8 * level.concurrency, rule.requests_cap // repeats))
    return rule


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run may send at the most. All of it is a promise, kept by the budget, but for a time that is not `kept`:
    that is how long it takes where answers take as long as in the preflight. `tokens` is None where the server decides
    how long an answer is. `requests` None and infinite `seconds` are those of a trace that is read as it is sent.
    `rate` is that of an open loop, in requests/s, which has no levels; of several rates, the highest."""

    levels: tuple[int, ...]
    requests: int | None
    tokens: int | None
    seconds: float
    rate: float | None = None
    rising: bool = False
    kept: bool = True

    def describe(self) -> str:
        """One line: what may be sent."""
        load = "concurrency " + ", ".join(f"{level:,}" for level in self.levels)
        if self.rate is not None:
            load = f"{'up to ' if self.rising else ''}{self.rate:,g} requests/s"
        tokens = "any number of tokens" if self.tokens is None else f"{self.tokens:,} tokens in and out"
        longest = _longest(self.seconds)
        longest = longest if self.kept or math.isinf(self.seconds) else f"about {longest}"
        if self.requests is None:
            return f"{load} at first; to the end of the trace, {tokens}, {longest}"
        return f"{load}; at most {self.requests:,} requests, {tokens}, {longest}"


def _longest(seconds: float) -> str:
    if math.isinf(seconds):
        return "for as long as it takes"
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 5400 else f"{math.ceil(seconds / 360) / 10:.1f} h"


def forecast(
    levels: Sequence[int],
    rule: StepRule,
    *,
    extra_steps: int,
    warmup: int | None,
    tokens_per_request: int | None,
    drain_s: float,
    request_s: float,
    every_level: bool = False,
    overlap_s: float = 0.0,
) -> Forecast:
    """The most that a ladder of `levels` with up to `extra_steps` more at its top can send.

    `request_s` is the measured time of one request without load. How many requests the server works on at once is not
    known. Where `every_level` is measured whatever comes, it may be one. A ladder is left soon after the level where
    throughput stops growing, so that four times the time without load, on average over its rungs, is enough. In each
    step load goes on for `overlap_s` longer than one process would send it.
    """
    steps = [*levels, *[max(levels)] * extra_steps]
    requests = 0
    seconds = 0.0
    for level in steps:
        most = rule.requests_most(level)
        if rule.duration is not None:
            most = max(1000, math.ceil(4 * level * rule.duration / request_s) + 12 * level)
        requests += most + 4 * level + (warmup or 0) + math.ceil(overlap_s * level / request_s)
        each = 1.25 * request_s if every_level else 4 * request_s / level
        if rule.duration is not None:
            window = rule.duration
        elif rule.requests is not None:
            window = max(1.0, each * rule.requests)
        else:
            window = max(rule.seconds_max, each * 2 * level)
        # Before it the warm-up, after it the way of the last of the sample, and of its fillers, to their end.
        around = each * ((level if warmup is None else warmup) + level) + min(drain_s, each * level)
        seconds += window + around + 1.0
    tokens = None if tokens_per_request is None else requests * tokens_per_request
    return Forecast(tuple(levels), requests, tokens, seconds)


def rates_forecast(
    rates: Sequence[float],
    rule: StepRule,
    *,
    lower: Sequence[float],
    extra_steps: int,
    warmup: int | None,
    tokens_per_request: int | None,
    drain_s: float,
    request_s: float,
) -> Forecast:
    """The most that a sweep of rates can send: its rise, or its way down through the `lower` ones where the first does
    not hold, and up to `extra_steps` more. The highest rate sends most, the lowest takes longest."""

    def step(rate: float) -> Forecast:
        window = rule.duration or min(rule.seconds_max, rule.requests_most(0) / rate)
        return rate_forecast(
            rate,
            replace(rule, duration=None if rule.requests is not None else window),
            warmup=warmup,
            tokens_per_request=tokens_per_request,
            drain_s=drain_s,
            request_s=request_s,
        )

    rise, fall = [step(rate) for rate in rates], [step(rate) for rate in (rates[0], *lower)]
    requests = max(sum(one.requests or 0 for one in way) for way in (rise, fall))
    requests += extra_steps * max(one.requests or 0 for one in (*rise, *fall))
    seconds = max(sum(one.seconds for one in way) for way in (rise, fall))
    seconds += extra_steps * max(one.seconds for one in (*rise, *fall))
    tokens = None if tokens_per_request is None else requests * tokens_per_request
    return Forecast((), requests, tokens, seconds, max(rates), True)


def rate_warmup_s(request_s: float) -> float:
    """How long an open loop warms up: twice the time of a request without load, and a second at the least."""
    return max(1.0, 2 * request_s)


def rate_forecast(
    rate: float,
    rule: StepRule,
    *,
    warmup: int | None,
    tokens_per_request: int | None,
    drain_s: float,
    request_s: float,
    overlap_s: float = 0.0,
) -> Forecast:
    """The most that one open-loop step can send. A server that does not keep up works off what piled up while fillers
    go on: that much again as the window lasts, and no more, is allowed for it."""
    if rule.duration is not None:
        window = rule.duration
    elif rule.requests is not None:
        window = rule.requests / rate
    else:
        window = max(rule.seconds_max, 8 * request_s)
    warm = rate_warmup_s(request_s) if warmup is None else warmup / rate + 4 * request_s
    sending = warm + 2 * window + 8 * request_s + 1.0 + overlap_s
    requests = math.ceil(1.1 * rate * sending) + (rule.requests or 0)
    tokens = None if tokens_per_request is None else requests * tokens_per_request
    return Forecast((), requests, tokens, sending + min(drain_s, 8 * request_s) + 1.0, rate)
