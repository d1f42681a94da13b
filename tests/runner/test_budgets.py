"""What is announced before a run, and how long its requests are taken to be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest

from loadgen.client.budget import Budget
from loadgen.errors import UsageError
from loadgen.records import InputTokens, OutputTokens, Prompt, Record
from loadgen.results import LevelResult, Stop
from loadgen.runner import Budgets, OpenLoop, RunConfig
from loadgen.runner.budgets import announced, budget_of, foretold, most_tokens, unloaded_s, within_budget
from loadgen.search.effort import Forecast, step_rule
from loadgen.search.rates import RatePlan
from loadgen.search.sweep import SweepPlan, decide
from loadgen.slo import parse_slo
from loadgen.workload.plain import PlainWorkload, plain_workload

SHAPE = plain_workload("100-200", "10-50")


def prompts(*given: Prompt) -> PlainWorkload:
    return PlainWorkload(None, None, given, "prompts.jsonl")


def announce(config: RunConfig, levels: tuple[int, ...], request_s: float = 1.0) -> Forecast:
    return promised(config, levels, request_s)[0]


def promised(config: RunConfig, levels: tuple[int, ...], request_s: float = 1.0) -> tuple[Forecast, float | None]:
    """What is announced, and the seconds after which the budget ends the run; None where none do."""

    async def main() -> tuple[Forecast, float | None]:
        rule = step_rule(config.effort, config.slo, requests=config.requests, duration=config.duration_s)
        budget = budget_of(config, SHAPE)
        found = announced(config, SHAPE, budget, rule, levels, request_s)
        return found, None if budget.deadline is None else budget.deadline - anyio.current_time()

    return anyio.run(main)


@pytest.mark.parametrize(
    ("workload", "budget", "most"),
    [
        (SHAPE, Budget(), 204 + 50),
        (SHAPE, Budget(output_limit=5), 204 + 5),
        (SHAPE, Budget(choices=2), 204 + 100),
        (prompts(Prompt("abc", output_tokens=5), Prompt("a" * 100, output_tokens=1)), Budget(), 164 + 1),
        (prompts(Prompt("abc", output_tokens=5), Prompt("abc")), Budget(), None),
        (prompts(Prompt("abc"), Prompt("abcd")), Budget(output_limit=9), 68 + 9),
    ],
)
def test_the_most_tokens_of_one_request(workload: PlainWorkload, budget: Budget, most: int | None) -> None:
    assert most_tokens(budget, workload) == most


def test_every_step_of_a_ladder_is_announced() -> None:
    quick = RunConfig("sweep", "x", effort="quick")
    alone = announce(quick, (1,))
    assert announce(quick, (1, 2, 4)).requests > alone.requests
    objective = RunConfig("sweep", "x", effort="quick", slo=parse_slo(["ttft_p95=1s"]), plan=SweepPlan(has_slo=True))
    assert announce(objective, (1,)).requests > 1.5 * alone.requests, "second windows and halvings at the edge"
    once = RunConfig("sweep", "x", effort="quick", plan=SweepPlan(levels=(1,), second_tries=0))
    assert 2.5 * announce(once, (1,)).requests < alone.requests, "and levels that this client shapes are measured again"


@pytest.mark.parametrize("length", [{"effort": "quick"}, {"requests": 400}], ids=str)
@pytest.mark.parametrize("most", [8.0, 512.0])
def test_a_sweep_of_rates_has_time_enough_where_the_first_does_not_hold(most: float, length: dict[str, Any]) -> None:
    """Then it goes down to a 64th of it, and narrows from there: the lower the rate, the longer a step."""
    config = RunConfig("sweep", "x", open_loop=OpenLoop(8.0), rates=RatePlan(8.0, most=most), **length)
    lowest = announce(replace(config, rates=None, open_loop=OpenLoop(0.125)), ())
    highest = announce(replace(config, rates=None, open_loop=OpenLoop(most)), ())
    found = announce(config, ())
    if "requests" in length:
        assert found.seconds >= 7 * lowest.seconds
        assert found.requests >= 7 * highest.requests
    assert found.seconds >= 10 * highest.seconds * (1 - 1e-9)  # sums of floats


def test_the_users_own_limits_are_what_is_announced() -> None:
    config = RunConfig("run", "x", budgets=Budgets(max_time_s=7.0, max_requests=50, max_tokens=9_000), requests=1_000)
    found = announce(config, (4,))
    assert (found.requests, found.tokens) == (50, 9_000)
    assert found.seconds == pytest.approx(7.0, abs=0.5)


LOOPS: list[dict[str, Any]] = [
    {"verb": "run"},
    {"verb": "run", "open_loop": OpenLoop(8.0)},
    {"verb": "sweep"},
    {"verb": "sweep", "plan": SweepPlan(levels=(1, 2))},
    {"verb": "sweep", "open_loop": OpenLoop(8.0), "rates": RatePlan(8.0)},
]


@pytest.mark.parametrize("loop", LOOPS, ids=["run", "rate", "sweep", "levels", "rates"])
@pytest.mark.parametrize("length", [{"requests": 8}, {"duration_s": 3.0}, {}], ids=["requests", "duration", "effort"])
@pytest.mark.parametrize("most_s", [None, 2.0])
def test_no_time_that_nobody_gave_ends_steps_whose_length_was_given(
    loop: dict[str, Any], length: dict[str, Any], most_s: float | None
) -> None:
    """Answers may take a hundred times as long as that to the preflight."""
    config = RunConfig(url="x", budgets=Budgets(max_time_s=most_s), **loop, **length)
    found, ends_s = promised(config, () if "open_loop" in loop else (1, 2), request_s=0.025)
    if most_s is not None:
        assert ends_s == pytest.approx(most_s, abs=0.5)
    elif length:
        assert ends_s is None
    else:
        assert ends_s == pytest.approx(found.seconds, abs=0.5)
    assert found.kept == (ends_s is not None)
    assert (", about " in found.describe()) == (ends_s is None)
    assert 0 < found.seconds < 3600


@pytest.mark.parametrize("level", [1, 8, 256])
@pytest.mark.parametrize("length", [{"requests": 400}, {"duration_s": 30.0}, {"effort": "quick"}], ids=str)
def test_one_load_has_time_enough_even_where_requests_are_served_one_by_one(
    level: int, length: dict[str, object]
) -> None:
    """The time of the warm-up, the window, and the last of the sample, each request taking 2 s of the server alone."""
    config = RunConfig("run", "x", plan=SweepPlan(levels=(level,)), **length)  # type: ignore[arg-type]
    window = {"requests": 400 * 2.0, "duration_s": 30.0, "effort": 2 * level * 2.0}[next(iter(length))]
    found = announce(config, (level,), request_s=2.0)
    assert found.seconds >= level * 2.0 + window + level * 2.0
    assert found.requests >= level + int(window / 2.0) + level


@pytest.mark.parametrize("budgets", [Budgets(max_tokens=10), Budgets(max_cost=1.0, price=(1.0, 2.0))])
def test_a_limit_on_tokens_needs_to_know_them(budgets: Budgets) -> None:
    async def main(**change: object) -> Budget:
        config = RunConfig("run", "x", budgets=budgets, **change)  # type: ignore[arg-type]
        return budget_of(config, prompts(Prompt("abc")))

    with pytest.raises(UsageError, match="cannot be kept"):
        anyio.run(main)
    assert anyio.run(lambda: main(extra_body={"max_tokens": 4, "n": 2})).reserve(Prompt("abc")) == (67, 8)


def test_a_request_whose_answer_was_cut_short_is_reckoned_whole() -> None:
    def record(asked: int | None, count: int) -> Record:
        first, last = 300_000_000, 300_000_000 + (count - 1) * 10_000_000
        return Record(
            *("p", 0, 1, "preflight", 0, 0, 0, None, first, first, first, last, last),
            input_tokens=InputTokens(),
            output_tokens=OutputTokens(asked, count, "usage"),
            first_event_tokens=1,
            events=None,
            outcome="ok",
        )

    assert unloaded_s(record(100, 100), 100) == pytest.approx(0.3 + 0.99)
    assert unloaded_s(record(100, 100), 1_000) == pytest.approx(0.3 + 9.99)
    assert unloaded_s(record(100, 40), 100) == pytest.approx(0.3 + 0.39), "the server's own length is its own"
    assert unloaded_s(record(None, 40), None) == pytest.approx(0.3 + 0.39)
    assert unloaded_s(record(1, 1), 1_000) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("own", "kept", "names"),
    [
        (Budget(), Budget(requests=316, tokens=9_000, deadline=60.0), {"requests", "tokens", "time"}),
        (Budget(requests=50, tokens=9_000, deadline=7.0), Budget(requests=50, tokens=9_000, deadline=7.0), set()),
        (Budget(requests=10_000), Budget(requests=316), {"requests"}),
        (Budget(cost=1.0), Budget(cost=1.0), set()),
    ],
)
def test_limits_are_the_forecasts_where_the_user_left_more(own: Budget, kept: Budget, names: set[str]) -> None:
    assert foretold(own, kept) == names


@pytest.mark.parametrize(
    ("levels", "ended", "foretold", "reason", "said"),
    [
        ((4,), "complete", {"requests"}, "max_level", "Every level asked for was measured."),
        ((4, 8), "complete", {"requests"}, "budget:requests", "The announced requests budget was used up"),
        ((4,), "budget", {"requests"}, "budget:requests", "The announced requests budget was used up"),
        ((4,), "complete", {"tokens"}, "budget:requests", "The requests budget was used up"),
        ((4,), "budget", set(), "budget:requests", "The requests budget was used up"),
        ((4,), "errors", {"requests"}, "errors", "Too many requests failed"),
    ],
)
def test_a_forecast_that_was_met_is_not_the_users_budget(
    levels: tuple[int, ...], ended: str, foretold: set[str], reason: str, said: str
) -> None:
    history = [LevelResult(4, None, "measured", ended=ended, detail="refused")]
    plan = SweepPlan(levels=levels)
    found = within_budget(history, "requests", foretold, lambda told: decide(told, plan))
    assert isinstance(found, Stop)
    assert (found.reason, found.sentence[: len(said)]) == (reason, said)
    assert within_budget(history, None, foretold, lambda told: decide(told, plan)) == decide(history, plan)
