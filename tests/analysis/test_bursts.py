"""Logs of answers as servers and proxies send them: bursts are found where something held them back, and only there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest

from loadgen.analysis import summarise
from loadgen.analysis.bursts import bursts
from loadgen.log.columns import columns
from loadgen.records import Events, OutputTokens, Record
from loadgen.results import Bursts, ClientHealth, Lag, Observation, Slo
from tests.log.record_strategies import RECORD

Times = list[float]  # of the events of one answer, in ms since it was sent
Rng = random.Random


def of(make: Callable[[Rng], Times], answers: int = 20, choices: int = 1, seed: int = 1) -> Bursts | None:
    rng = random.Random(seed)
    return bursts(columns(record(make(rng), choices) for _ in range(answers)))


def record(times: Times, choices: int = 1) -> Record:
    gaps = [round(1000 * (b - a)) for a, b in pairwise([0.0, *times])]
    tokens = OutputTokens(len(times), len(times), "usage", choices)
    return replace(RECORD, events=Events(gaps, [1] * len(gaps), []), output_tokens=tokens, sent_ns=0, scheduled_ns=0)


def even(rng: Rng, n: int = 64, tpot: float = 10.0, jitter: float = 0.2, ttft: float = 80.0) -> Times:
    return list(accumulate((tpot * max(0.01, rng.gauss(1, jitter)) for _ in range(n - 1)), initial=ttft))


def held_ms(times: Times, ms: float) -> Times:
    """As a proxy passes it on that collects for so many ms, from the first byte on that it holds."""
    out: Times = []
    until = -1.0
    for at in times:
        if at > until:
            until = at + ms
        out.append(until)
    return [at + 0.02 * i for at, group in _groups(out) for i in range(group)]


def held_events(times: Times, n: int) -> Times:
    """…that collects so many bytes, which are so many events, and the rest at the end."""
    ends = [times[min(i // n * n + n, len(times)) - 1] for i in range(len(times))]
    return [at + 0.02 * i for at, group in _groups(ends) for i in range(group)]


def _groups(times: Times) -> Iterator[tuple[float, int]]:
    for at in dict.fromkeys(times):
        yield at, times.count(at)


def speculative(rng: Rng, accepted: float, most: int, n: int = 64, step: float = 30.0) -> Times:
    """Each accepted token an event of its own, all of a step at once."""
    times: Times = []
    at = 80.0
    while len(times) < n:
        size = 1
        while size <= most and rng.random() < accepted:
            size += 1
        times += [at + 0.01 * i for i in range(size)]
        at += step
    return times


def stalled(rng: Rng, tpot: float, stall: float) -> Times:
    times = even(rng, tpot=tpot)
    cut = rng.randrange(10, 50)
    return times[:cut] + [at + stall for at in times[cut:]]


HELD: dict[str, tuple[Callable[[Rng], Times], float, float]] = {  # events in a burst, ms from one to the next
    "for 200 ms": (lambda r: held_ms(even(r), 200), 20, 210),
    "for 50 ms": (lambda r: held_ms(even(r), 50), 6, 60),
    "for 200 ms, of a slow server": (lambda r: held_ms(even(r, tpot=50), 200), 5, 250),
    "for 200 ms, of a fast server": (lambda r: held_ms(even(r, tpot=1, n=600), 200), 200, 200),
    "for 16 events' bytes": (lambda r: held_events(even(r), 16), 16, 160),
    "whole": (lambda r: held_events(even(r), 1000), 64, 710),
    "whole, short answers": (lambda r: held_events(even(r, n=8), 1000), 8, 150),
    "in lengths that vary": (lambda r: held_ms(even(r, n=r.randrange(8, 300)), 200), 20, 210),
    "for 200 ms, what was drafted": (lambda r: held_ms(speculative(r, 0.7, 4, n=128), 200), 19, 210),
}


@pytest.mark.parametrize("case", HELD)
def test_output_that_is_held_back(case: str) -> None:
    make, events, every = HELD[case]
    found = of(make)
    assert found is not None
    assert found.events == pytest.approx(events, rel=0.25)
    assert found.every_ms == pytest.approx(every, rel=0.25)
    assert found.requests > 0.5 * found.judged


FREE: dict[str, Callable[[Rng], Times]] = {
    "even": even,
    "with much jitter": lambda r: even(r, jitter=0.8),
    "as a Poisson process": lambda r: list(accumulate((r.expovariate(0.1) for _ in range(63)), initial=80.0)),
    "fast": lambda r: even(r, tpot=0.4, jitter=0.5, n=500),
    "fast, after a long wait": lambda r: even(r, tpot=0.4, jitter=0.5, ttft=20_000.0),
    "few, and slow": lambda r: even(r, n=8, tpot=200),
    "with a long stall": lambda r: stalled(r, 10, 20_000),
    "fast, with a stall": lambda r: stalled(r, 1.5, 500),
    "two at a time now and then": lambda r: [at - (9.99 if r.random() < 0.2 else 0) for at in even(r, jitter=0)],
    "drafted, seldom accepted": lambda r: speculative(r, 0.4, 4),
    "drafted, often accepted": lambda r: speculative(r, 0.8, 5),
    "drafted, nearly always accepted": lambda r: speculative(r, 0.88, 8, n=200),
    "two tokens a step": lambda r: [at for at in even(r, n=32, tpot=20) for _ in range(2)],
    "all at once, and at once": lambda r: [5.0] * 64,
    "answers that are too short to tell": lambda r: [200.0] * 7,
}


@pytest.mark.parametrize("case", FREE)
def test_output_that_comes_as_it_is_made(case: str) -> None:
    for seed in range(20):
        assert of(FREE[case], seed=seed) is None, seed


@pytest.mark.parametrize("n", [2, 4, 8])
def test_choices_come_together_and_are_no_burst(n: int) -> None:
    def together(rng: Rng) -> Times:
        return [at for at in even(rng) for _ in range(n)]

    assert of(together, choices=n) is None
    found = of(lambda r: held_ms(together(r), 200), choices=n)
    assert found is not None
    assert found.events == pytest.approx(20, rel=0.25)


def test_most_answers_make_a_finding_and_a_few_do_not() -> None:
    rng = random.Random(1)
    free = [record(even(rng)) for _ in range(10)]
    held = [record(held_ms(even(rng), 200)) for _ in range(30)]
    found = bursts(columns([*free, *held]))
    assert found is not None
    assert (found.requests, found.judged) == (30, 40)
    assert bursts(columns([*free, *held[:9]])) is None
    assert bursts(columns(held[:2])) is None, "two answers show nothing"
    assert bursts(columns([])) is None


def test_a_client_that_lags_may_have_made_the_bursts_itself() -> None:
    rng = random.Random(1)
    held = columns([record(held_ms(even(rng), 50)) for _ in range(9)])
    whole = columns([record(held_events(even(rng, n=16, ttft=10), 99)) for _ in range(9)])
    for p50, p99, held_shows, whole_shows in ((1e2, 5e3, True, True), (1e3, 9e4, True, False), (2e4, 3e4, False, True)):
        health = ClientHealth("kernel", 1.0, loop_lag_us=Lag(99, p50, p99, 2 * p99))
        assert (bursts(held, health) is not None) == held_shows
        assert (bursts(whole, health) is not None) == whole_shows


def test_answers_without_events_tell_nothing() -> None:
    rng = random.Random(1)
    whole = [replace(record(held_ms(even(rng), 200)), flags=("not_streamed",)) for _ in range(9)]
    assert bursts(columns(whole)) is None
    assert bursts(columns([replace(one, events=None, flags=()) for one in whole])) is None


@pytest.mark.parametrize(
    "hold", [lambda t: held_ms(t, 200.0), lambda t: held_events(t, 20), lambda t: [t[-1]] * len(t)]
)
def test_a_client_is_not_blamed_for_the_gaps_within_bursts(hold: Callable[[Times], Times]) -> None:
    """A tail of the client's lag that would shape an ITL of 0.02 ms is little beside what the proxy held back."""
    lag = Lag(500, 250.0, 3_100.0, 6_200.0)
    health = ClientHealth("kernel", 30.0, cpu_share=0.02, wait_share=0.0, reads=500, stamped=500, read_lag_us=lag)
    records = [together(record(hold(even(random.Random(i))))) for i in range(20)]
    seen = Observation(RECORD.step, RECORD.concurrency, None, 0, RECORD.concurrency, "complete", health=health)
    summary = summarise(columns(records), RECORD.step, Slo(), seen)
    assert summary.client_limit is None
    assert summary.bursts is not None and summary.bursts.requests == 20
    worse = replace(seen, health=replace(health, wait_share=0.95))
    starved = summarise(columns(records), RECORD.step, Slo(), worse)
    assert starved.client_limit is not None and starved.bursts is None, "then it is not known whose they are"


def together(r: Record) -> Record:
    """Events less than 1 ms after one another came in one read: their stamps are bounded by the time back to the read
    before."""
    assert r.events is not None
    gaps = r.events.gap_us
    bounded = [(i, 3_000_000) for i in range(len(gaps) - 1) if gaps[i + 1] < 1000]
    last = sum(gaps) * 1000
    return replace(
        r, events=replace(r.events, bounded=bounded), first_token_ns=gaps[0] * 1000, first_content_ns=gaps[0] * 1000,
        last_token_ns=last, done_ns=last, flags=("bounded",),
    )  # fmt: skip
