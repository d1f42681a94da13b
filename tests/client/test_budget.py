"""The budget against a server's bill, request by request."""

from __future__ import annotations

import random

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.budget import Budget
from loadgen.records import InputTokens, Outcome, OutputTokens, Prompt, Record, TokenSource


def ended(name: str, outcome: Outcome, server: int | None, count: int | None, source: TokenSource = "usage") -> Record:
    return Record(
        *(name, 1, 1, "measured", 0, 0, 0, None, None, None, None, None, 1),
        input_tokens=InputTokens(server=server),
        output_tokens=OutputTokens(count=count, source=source),
        first_event_tokens=None,
        events=None,
        outcome=outcome,
    )


@given(
    limit=st.integers(0, 20_000),
    concurrency=st.integers(1, 12),
    seed=st.integers(0, 10**6),
    fails=st.sampled_from([0.0, 0.3, 1.0]),
    told=st.booleans(),
)
def test_the_bill_never_exceeds_the_tokens_allowed(
    limit: int, concurrency: int, seed: int, fails: float, told: bool
) -> None:
    """A server that counts up to 2 % more than asked, generates up to what was asked, and may fail at the very end."""
    rng = random.Random(seed)
    budget = Budget(tokens=limit)
    bill, flying = 0, []
    for number in range(300):
        while len(flying) >= concurrency:
            name, inputs, outputs = flying.pop(rng.randrange(len(flying)))
            failed = rng.random() < fails
            budget.settle(ended(name, "error" if failed else "ok", inputs if told else None, outputs if told else None))
        prompt = Prompt(input_tokens=rng.randint(50, 600), output_tokens=rng.randint(1, 200))
        if not budget.take(f"r{number}", prompt):
            break
        inputs = rng.randint(prompt.input_tokens // 2, int(prompt.input_tokens * 1.02))
        outputs = rng.randint(0, prompt.output_tokens)
        bill += inputs + outputs
        flying.append((f"r{number}", inputs, outputs))
    assert bill <= limit


@pytest.mark.parametrize(
    ("prompt", "most"),
    [
        (Prompt(input_tokens=500, output_tokens=10), (510, 10)),
        (Prompt(text="né", output_tokens=3), (64 + 3, 3)),
        (Prompt(text="abc"), (64 + 3, 0)),
        (Prompt(body={"n": 3}, output_tokens=5), (64 + len('{"n":3}'), 15)),
        (Prompt(body={"n": "many"}, output_tokens=5), (64 + len('{"n":"many"}'), 5)),
    ],
)
def test_the_most_that_a_request_can_use(prompt: Prompt, most: tuple[int, int]) -> None:
    assert Budget().reserve(prompt) == most


def test_the_users_own_fields_are_the_most() -> None:
    assert Budget(output_limit=7, choices=2).reserve(Prompt(input_tokens=100, output_tokens=5)) == (102, 14)


def test_a_server_that_counts_more_is_paid_and_learnt_from() -> None:
    budget = Budget(tokens=2_000)
    assert budget.take("a", Prompt(input_tokens=100, output_tokens=10))
    budget.settle(ended("a", "ok", 700, 10))
    assert budget.tokens == 2_000 - 710
    assert budget.reserve(Prompt(input_tokens=100, output_tokens=10)) == (700, 10)


@pytest.mark.parametrize("outcome", ["error", "cut", "cancelled", "timeout", "empty", "incomplete"])
def test_a_request_that_did_not_end_ok_stays_paid_for(outcome: Outcome) -> None:
    budget = Budget(tokens=1_000)
    assert budget.take("a", Prompt(input_tokens=100, output_tokens=50))
    budget.settle(ended("a", outcome, None, 3, "events"))
    assert budget.tokens == 1_000 - 152


def test_events_are_not_taken_for_tokens() -> None:
    """An event may hold several tokens: counted by events, what was asked for stays the most."""
    budget = Budget(tokens=1_000)
    assert budget.take("a", Prompt(input_tokens=100, output_tokens=50))
    budget.settle(ended("a", "ok", 100, 10, "events"))
    assert budget.tokens == 1_000 - 150


def test_the_first_limit_met_is_the_one_that_is_told() -> None:
    budget = Budget(requests=2, tokens=1_000)
    prompt = Prompt(input_tokens=10, output_tokens=10)
    assert [budget.take(str(i), prompt) for i in range(3)] == [True, True, False]
    budget.tokens = 0
    assert not budget.take("x", prompt)
    assert budget.spent == "requests"


def test_cost_is_tokens_by_price() -> None:
    budget = Budget(cost=1.0, price=(2.0, 10.0))
    assert budget.take("a", Prompt(input_tokens=100_000, output_tokens=50_000))  # 0.204 and 0.5
    assert budget.cost == pytest.approx(0.296)
    assert not budget.take("b", Prompt(input_tokens=100_000, output_tokens=10_000))  # 0.204 and 0.1
    assert budget.spent == "cost"


def test_time_runs_out_between_two_requests() -> None:
    async def main() -> None:
        budget = Budget(deadline=anyio.current_time() + 0.02)
        prompt = Prompt(input_tokens=1, output_tokens=1)
        assert budget.take("a", prompt)
        await anyio.sleep(0.03)
        assert not budget.take("b", prompt)
        assert budget.spent == "time"

    anyio.run(main)


def test_a_forecast_lowers_what_is_left_and_leaves_the_users_time_alone() -> None:
    async def main() -> None:
        now = anyio.current_time()
        assert Budget().tighten(10, 100, 5.0) == pytest.approx((10, 100, 5.0), abs=0.5)
        assert Budget(requests=3, tokens=200).tighten(10, 100, 5.0)[:2] == (3, 100)
        assert Budget(deadline=now + 60).tighten(10, None, 5.0) == (10, None, pytest.approx(60, abs=0.5))

    anyio.run(main)
