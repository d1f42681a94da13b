"""How long a step lasts, and from that what a whole run may send. Pure.

A step's window closes when enough requests have completed in it and it has lasted long enough, or at its cap. The caps
are what the run announces before it starts, and the run's budget keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..records import Slo


@dataclass(frozen=True, slots=True)
class StepRule:
    """The length of a step at any concurrency c.

    The window closes at max(`least`, `per_slot` · c) completions once `seconds_min` have passed, or at `seconds_max`
    with at least 2 · c completions, or after `requests_most` sends. `requests` (exactly so many) and `duration`
    (exactly so long) are the user's own and override all of that.
    """

    least: int
    per_slot: int
    seconds_min: float
    seconds_max: float
    requests: int | None = None
    duration: float | None = None

    def enough(self, concurrency: int, sent: int, done: int, seconds: float) -> bool:
        """Close the window now? `sent` and `done` count measured requests; `seconds` is the window so far."""
        if self.requests is not None:
            return sent >= self.requests
        if self.duration is not None:
            return seconds >= self.duration
        if sent >= self.requests_most(concurrency):
            return True
        if seconds >= self.seconds_max:
            return done >= 2 * concurrency
        return done >= max(self.least, self.per_slot * concurrency) and seconds >= self.seconds_min

    def requests_most(self, concurrency: int) -> int:
        """The most measured requests a step may send."""
        if self.requests is not None:
            return self.requests
        return 8 * max(self.least, self.per_slot * concurrency)

    def share_done(self, concurrency: int, done: int, seconds: float) -> float:
        """How far the window is, 0 to 1: for a progress bar."""
        if self.requests is not None:
            return min(1.0, done / self.requests)
        if self.duration is not None:
            return min(1.0, seconds / self.duration)
        natural = min(done / max(self.least, self.per_slot * concurrency), seconds / self.seconds_min)
        return min(1.0, max(natural, seconds / self.seconds_max))


# The least counts are for a p95 objective: 72 effective requests establish its interval, and correlated requests count
# for less than one each. A p99 needs five times as many; without an objective, throughput needs few.
EFFORTS: dict[str, StepRule] = {
    "quick": StepRule(least=100, per_slot=3, seconds_min=3.0, seconds_max=15.0),
    "normal": StepRule(least=300, per_slot=6, seconds_min=10.0, seconds_max=90.0),
    "thorough": StepRule(least=1500, per_slot=12, seconds_min=30.0, seconds_max=600.0),
}


def step_rule(effort: str, slo: Slo, *, requests: int | None = None, duration: float | None = None) -> StepRule:
    """The rule for an effort, scaled to what the objectives need."""
    base = EFFORTS[effort]
    highest = max((o.percentile or 95.0 for o in slo.objectives), default=0.0)
    scale = 0.25 if not slo else (5.0 if highest > 97.5 else 1.0)
    seconds_max = base.seconds_max * (3.0 if highest > 97.5 else 1.0)
    return StepRule(
        max(16, round(base.least * scale)), base.per_slot, base.seconds_min, seconds_max, requests, duration
    )


def baseline_rule(rule: StepRule) -> StepRule:
    """The baseline shows the server without load; it is not judged, so it need not establish a percentile."""
    if rule.requests is not None or rule.duration is not None:
        return rule
    return StepRule(16, 1, min(rule.seconds_min, 3.0), min(rule.seconds_max, 30.0))


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run may send at the most. All of it is a promise, kept by the budget."""

    levels: tuple[int, ...]
    requests: int
    tokens: int
    seconds: float

    def describe(self) -> str:
        """One line: what may be sent."""
        levels = ", ".join(f"{level:,}" for level in self.levels)
        longest = f"{self.seconds:.0f} s" if self.seconds < 90 else f"{self.seconds / 60:.0f} min"
        most = f"{self.requests:,} requests, {self.tokens:,} tokens in and out, {longest}"
        return f"concurrency {levels}; at most {most}"


def forecast(
    levels: Sequence[int],
    rule: StepRule,
    *,
    extra_steps: int,
    warmup: int | None,
    tokens_per_request: float,
    drain_s: float,
    request_s: float,
) -> Forecast:
    """The most that a ladder of `levels` with up to `extra_steps` more at its top can send.

    `request_s` is the measured time of one request without load. Warm-up and the way out each take about one residence
    time, counted here as up to four times the unloaded one.
    """
    steps = [*levels, *[max(levels)] * extra_steps]
    requests = 0
    seconds = 0.0
    for level in steps:
        requests += rule.requests_most(level) + 4 * level + (warmup or 0)
        if rule.duration is not None:
            window = rule.duration
        elif rule.requests is not None:
            window = max(1.0, 4 * request_s * rule.requests / level)
        else:
            window = max(rule.seconds_max, 8 * request_s)
        seconds += window + 8 * request_s + min(drain_s, 4 * request_s) + 1.0
    if rule.duration is not None:
        requests = max(requests, round(sum(4 * level * (rule.duration / request_s + 4) for level in steps)))
    return Forecast(tuple(levels), requests, round(requests * tokens_per_request), seconds)
