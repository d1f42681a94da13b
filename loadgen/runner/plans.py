"""What is to be done in a step, and which steps there may be. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..client.driver import Progress, StepPlan
from ..search.effort import StepRule, rate_warmup_s
from ..search.sweep import SweepPlan
from ..workload.plain import PlainWorkload
from .config import RunConfig


def planned_levels(plan: SweepPlan) -> tuple[int, ...]:
    """The rungs of a ladder to its top, or the levels that were given."""
    if plan.levels is not None:
        return plan.levels
    levels = [plan.start]
    while levels[-1] < plan.max_level:
        levels.append(min(plan.max_level, max(levels[-1] + 1, round(levels[-1] * plan.factor))))
    return tuple(levels)


def step_plan(
    config: RunConfig,
    workload: PlainWorkload,
    number: int,
    concurrency: int,
    rule: StepRule,
    enough: Callable[[Progress], bool],
    *,
    seed: int,
    request_s: float,
    most_in_flight: int,
) -> StepPlan:
    """The step of that number; `request_s` is how long a request takes, as far as is known.

    Without a number given it warms up until every user has come to the end of a conversation, in the mean: then they
    are at all its turns. An open loop, whose `concurrency` is 0, warms up for a time, and at least one request.
    """
    sessions = workload.sessions
    turns = sessions.mean_turns if sessions is not None else 1.0  # requests of a conversation, in the mean
    turn_s = request_s + (sessions.pause_s if sessions is not None else 0.0)  # from one of a user's to his next
    plan = StepPlan(
        step=number,
        concurrency=concurrency,
        enough=enough,
        stagger_s=turn_s,
        warmup=round(concurrency * turns) if config.warmup is None else config.warmup,
        requests=rule.requests,
        drain_s=config.drain_s,
        max_error_rate=config.max_error_rate,
        retry=replace(config.retry, seed=seed),
    )
    load = config.open_loop
    if load is None:
        return plan
    return replace(
        plan,
        rate=load.rate,
        warmup=1 if config.warmup is None else config.warmup,
        warmup_s=rate_warmup_s(turn_s * turns) if config.warmup is None else 0.0,
        max_in_flight=load.max_in_flight,
        most_in_flight=most_in_flight,
    )
