"""What a run may spend: the user's limits as a budget, and the most that is announced before it starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import anyio

from ..analysis.window import has_outcome, is_phase
from ..client.budget import Budget
from ..client.dialects.base import asked_output
from ..client.lengths import PROBES
from ..errors import UsageError
from ..log.columns import Columns
from ..records import Prompt, Record
from ..results import LevelResult, NextLevel, Observation, Stop
from ..search.effort import Forecast, StepRule, forecast, rate_forecast, rates_forecast
from ..workload.plain import PlainWorkload
from ..workload.traces.replayed import Replayed
from .config import Budgets, RunConfig

TRACE_ROOM_S = 20.0  # for a trace to be read, and for what a slow server still has to answer at its end
START_ROOM_S = 15.0  # for worker processes to come up, on a machine that has other things to do


def budget_of(config: RunConfig, workload: PlainWorkload) -> Budget:
    """The budget as the user set it; its time runs from now. Raises UsageError for one that cannot be kept."""
    limits, extra = config.budgets, config.extra_body
    choices = extra.get("n", config.sampling.get("n"))
    budget = Budget(
        requests=limits.max_requests,
        tokens=limits.max_tokens,
        deadline=None if limits.max_time_s is None else anyio.current_time() + limits.max_time_s,
        cost=limits.max_cost,
        price=limits.price or (0.0, 0.0),
        output_limit=asked_output(extra),
        choices=choices if isinstance(choices, int) and choices > 0 else 1,
    )
    limited = "--max-tokens" if limits.max_tokens is not None else "--max-cost" if limits.max_cost is not None else None
    if limited and workload.max_output_tokens is None and budget.output_limit is None:
        raise UsageError(
            f"{limited} cannot be kept where the server decides how long an answer is",
            "give --output-len, or an output_len for every prompt",
        )
    return budget


def probes_of(limits: Budgets) -> int:
    """How many requests the preflight may spend on learning exact lengths from their usage: few, or under a close
    budget none."""
    enough = (limits.max_requests or 100) >= 100 and (limits.max_tokens or 100_000) >= 100_000
    return PROBES if enough and limits.max_cost is None else 0


def most_tokens(budget: Budget, workload: PlainWorkload) -> int | None:
    """The most tokens, in and out, that one request of the workload can use; None where the server decides, or
    where not every prompt is known."""
    inputs, outputs = workload.max_input_tokens, workload.max_output_tokens
    if (outputs is None and budget.output_limit is None) or not workload.complete or workload.grows:
        return None
    if workload.trace is not None and not workload.sized:
        return None
    prompts = workload.prompts or (Prompt(input_tokens=inputs, output_tokens=outputs),)
    return max(sum(budget.reserve(prompt)) for prompt in prompts)


def announced(
    config: RunConfig,
    workload: PlainWorkload,
    budget: Budget,
    rule: StepRule,
    levels: Sequence[int],
    request_s: float,
    overlap_s: float = 0.0,
) -> Forecast:
    """The most that the rest of the run can send. The budget is lowered to it: from here on it is a promise. Its time
    is none where the user said how many requests a step measures, or for how long: a server may be slower than it was
    in the preflight, and each request is followed to its own end.

    Of conversations, a rate is that of their arrivals, each of which brings several requests, for as long as it lasts;
    a user in flight takes as long for a request as it and his thinking last.
    """
    sessions = workload.sessions
    turns, pause_s = (1.0, 0.0) if sessions is None else (sessions.mean_turns, sessions.pause_s)
    warmup = config.warmup
    if sessions is not None and warmup is None:
        warmup = math.ceil(turns * max(levels, default=0))
    if config.rates is not None:
        expected = rates_forecast(
            config.rates.rungs,
            rule,
            lower=config.rates.lower,
            extra_steps=config.rates.refine + config.rates.second_tries,
            warmup=config.warmup,
            tokens_per_request=most_tokens(budget, workload),
            drain_s=config.drain_s,
            request_s=(request_s + pause_s) * turns,
        )
    elif config.open_loop is not None:
        stages = config.open_loop.arrivals.stages
        expected = rate_forecast(
            max((config.open_loop.rate, *(max(stage.first, stage.last) for stage in stages))) * turns,
            rule,
            warmup=config.warmup,
            tokens_per_request=most_tokens(budget, workload),
            drain_s=config.drain_s,
            request_s=(request_s + pause_s) * turns,
            overlap_s=overlap_s,
        )
        expected = replace(expected, rate=config.open_loop.rate)
        if config.open_loop.timed and workload.trace is not None:  # which is all that there is to send
            expected = _of_trace(expected, workload.trace, most_tokens(budget, workload), request_s)
    else:
        climbs = config.verb == "sweep" and config.plan.levels is None
        expected = forecast(
            levels,
            rule,
            extra_steps=config.plan.extra if config.verb == "sweep" else 0,
            warmup=warmup,
            tokens_per_request=most_tokens(budget, workload),
            drain_s=config.drain_s,
            request_s=request_s + pause_s,
            overlap_s=overlap_s,
            every_level=not climbs,
        )
    tries = 1 + config.retry.times  # each is a request to the server
    most = None if expected.tokens is None else expected.tokens * tries
    longest_s = expected.seconds + (START_ROOM_S if overlap_s else 0.0)
    requests = None if expected.requests is None else expected.requests * tries
    given = rule.requests is not None or rule.duration is not None
    requests, tokens, left_s = budget.tighten(requests, most, math.inf if given else longest_s)
    kept = left_s < math.inf or not given
    return Forecast(
        expected.levels, requests, tokens, left_s if kept else longest_s, expected.rate, expected.rising, kept
    )


def foretold(own: Budget, kept: Budget) -> frozenset[str]:
    """The limits of the budget `kept` that are the forecast's: the user's `own` are higher, or none."""
    limits = {
        "requests": (own.requests, kept.requests),
        "tokens": (own.tokens, kept.tokens),
        "time": (own.deadline, kept.deadline),
    }
    return frozenset(name for name, (ours, now) in limits.items() if now is not None and (ours is None or now < ours))


def all_measured(seen: Observation, rule: StepRule, table: Columns) -> bool:
    """Was all measured that a step is made for, so that what ended it cut short no more than what came after?"""
    measured = table.where(is_phase(table, "measured"))
    if seen.window is None or has_outcome(measured, "cut").any():
        return False
    sent = len(measured)
    return seen.decided is not None or rule.ended(seen.concurrency, sent, sent, seen.window.seconds)


def within_budget(
    history: Sequence[LevelResult],
    spent: str | None,
    foretold: Collection[str],
    search: Callable[[Sequence[LevelResult]], NextLevel | Stop],
) -> NextLevel | Stop:
    """What `search` decides once a limit is `spent`. A run that is complete when its own forecast is met ends as the
    search says; what the forecast cut short is told as announced, not as a budget of the user's."""
    if spent is None or not history or history[-1].ended not in ("complete", "budget"):
        return search(history)
    if spent not in foretold:
        return search([*history[:-1], replace(history[-1], ended=f"budget:{spent}")])
    if history[-1].ended == "complete" and isinstance(done := search(history), Stop):
        return done
    found = search([*history[:-1], replace(history[-1], ended=f"budget:announced {spent}")])
    return (
        replace(found, reason=f"budget:{spent}") if isinstance(found, Stop) and "announced" in found.reason else found
    )


def _of_trace(expected: Forecast, trace: Replayed, each: int | None, request_s: float) -> Forecast:
    """What a trace sends at its own times, its requests of at most `each` tokens: of one that was looked at to its end,
    all that there is; of another, what bounds it. Turns of a conversation wait for each other."""
    if trace.complete:
        tokens = None if each is None else trace.requests * each
        turns, wait_s = trace.longest
        seconds = expected.seconds + TRACE_ROOM_S + wait_s + (turns - 1) * 8 * request_s
        return replace(expected, requests=trace.requests, tokens=tokens, seconds=seconds)
    asked = trace.choice
    seconds = math.inf if asked.seconds is None else 2 * asked.seconds + 60.0 + TRACE_ROOM_S
    return replace(expected, requests=asked.requests, tokens=None, seconds=seconds)


def unloaded_s(record: Record, output_tokens: int | None) -> float:
    """How long a request of the workload takes without load, by one whose answer may have been cut short."""
    start = record.scheduled_ns if record.sent_ns is None else record.sent_ns
    seconds = (record.done_ns - start) / 1e9
    made = record.output_tokens
    short = output_tokens is not None and made.asked is not None and made.asked < output_tokens
    if short and record.first_token_ns is not None and record.last_token_ns is not None and (made.count or 0) > 1:
        each = (record.last_token_ns - record.first_token_ns) / 1e9 / ((made.count or 0) - 1)
        seconds += each * ((output_tokens or 0) - (made.count or 0))
    return max(0.001, seconds)
