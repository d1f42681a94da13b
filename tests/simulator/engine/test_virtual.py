from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from loadgen.simulator.capacity import capacity, virtual_run
from loadgen.simulator.engine import Engine, EngineConfig
from loadgen.simulator.engine.virtual import Arrivals, Closed, Mix, Requests, poisson, simulate

QUIET = EngineConfig(step_ms=10, decode_ms=1, prefill_ms=0.1, overhead_ms=5, max_batch=4, noise_sigma=0)


def test_it_is_the_same_engine_as_step_by_step() -> None:
    """The closed loop by hand over `Engine`, as a server drives it, gives the same times to the last bit."""
    config = replace(QUIET, noise_sigma=0.1, speculate=2, kv_blocks=28, seed=3)
    requests = Mix(100, 20, spread=0.5).draw(40, seed=1)
    run = simulate(config, requests, Closed(6))
    engine, now, sent = Engine(config), 0.0, 0
    first, done, submitted = {}, {}, {}
    while len(done) < 40:
        while sent < 40 and sent - len(done) < 6:
            engine.submit(str(sent), int(requests.prompt[sent]), int(requests.output[sent]), now)
            submitted[str(sent)] = now
            sent += 1
        result = engine.step(now)
        if result is None:
            now = max(now, engine.next_ready() or now)
            continue
        now += result.duration_s
        for name in result.tokens:
            first.setdefault(name, now)
        done.update(dict.fromkeys(result.finished, now))
    names = [str(number) for number in range(40)]
    for column, told in ((run.submitted_s, submitted), (run.first_s, first), (run.done_s, done)):
        assert column.tolist() == [told[name] for name in names]
    assert run.truth.preemptions > 0


def test_the_columns_by_hand() -> None:
    run = simulate(QUIET, Requests(np.array([100, 50]), np.array([3, 1])), Arrivals(np.array([1.0, 1.001])), gaps=True)
    assert run.submitted_s.tolist() == [1.0, 1.001]
    assert run.scheduled_s == pytest.approx([1.005, 1.025])  # 5 ms of overhead; the second waits for a step's end
    assert run.first_s == pytest.approx([1.025, 1.041])  # 10 + 10; then 10 + 1 + 5
    assert run.done_s == pytest.approx([1.052, 1.041])
    assert run.ttft_s == pytest.approx([0.025, 0.040])
    assert run.tpot_s[0] == pytest.approx(0.0135) and np.isnan(run.tpot_s[1])
    assert run.gaps_s == pytest.approx([0.016, 0.011]) and run.gaps_end_s == pytest.approx([1.041, 1.052])
    assert run.steps_s == pytest.approx([1.025, 1.041, 1.052]) and run.step_tokens.tolist() == [1, 2, 1]
    assert run.throughput(1.025, 1.052) == pytest.approx(3 / 0.027)


def test_a_closed_loop_keeps_its_number_in_flight() -> None:
    run = simulate(QUIET, Mix(50, 10, spread=0.5).draw(200, seed=1), Closed(7))
    for at in np.linspace(run.submitted_s[10], run.submitted_s[-1], 50, endpoint=False):
        assert np.count_nonzero((run.submitted_s <= at) & (run.done_s > at)) == 7
    ramp = simulate(QUIET, Mix(50, 10).draw(20, seed=1), Closed(4, ramp_s=2.0))
    assert {0.0, 0.5, 1.0, 1.5} <= set(ramp.submitted_s.tolist())


def test_a_ramp_longer_than_a_residence_holds_no_refill_back() -> None:
    """Request 0 ends long before the second place of the ramp is due, and its place is taken again at once."""
    run = simulate(QUIET, Mix(50, 10).draw(40, seed=1), Closed(4, ramp_s=10.0, refill_s=0.001))
    assert run.done_s[0] < 1 and run.submitted_s[1] == run.done_s[0] + 0.001
    assert (np.diff(run.submitted_s) >= 0).all()
    assert (run.scheduled_s - run.submitted_s).max() < 0.05  # four places: nobody waits longer than a step
    assert {2.5, 5.0} <= set(run.submitted_s.tolist())


def test_the_mean_in_flight_is_rate_times_stay() -> None:
    """Little's law, exactly, over a run that starts and ends empty."""
    requests = Mix(80, 20, sigma=0.7).draw(400, seed=4)
    run = simulate(QUIET, requests, poisson(20.0, 400, seed=4))
    events = np.concatenate([run.submitted_s, run.done_s])
    change = np.concatenate([np.ones(400), -np.ones(400)])[np.argsort(events)]
    in_flight = float((np.cumsum(change)[:-1] * np.diff(np.sort(events))).sum())
    assert in_flight == pytest.approx(run.e2e_s.sum())


def test_saturated_throughput_is_the_closed_form() -> None:
    config = EngineConfig(max_batch=64)
    run = simulate(config, Mix(512, 128, spread=0.5).draw(1500, seed=2), Closed(96))
    measured = run.throughput(run.submitted_s[200], run.submitted_s[1400])
    assert measured == pytest.approx(capacity(config, 512, 128), rel=0.02)
    assert measured == pytest.approx(virtual_run(config, 96, 512, 128, requests=500, spread=0.5).throughput, rel=0.02)


def test_lengths_have_their_means_and_fit() -> None:
    for mix in (Mix(200, 50, spread=0.5), Mix(200, 50, sigma=0.8)):
        drawn = mix.draw(20_000, seed=1)
        assert drawn.prompt.mean() == pytest.approx(200, rel=0.03) and drawn.output.mean() == pytest.approx(
            50, rel=0.03
        )
        assert drawn.prompt.min() >= 1 and drawn.output.min() >= 1
        assert (mix.draw(100, 2).prompt == mix.draw(100, 2).prompt).all()
    cut = Mix(200, 50, sigma=1.0).draw(5000, seed=1, longest=300)
    assert (cut.prompt + cut.output).max() == 300 and cut.output.min() >= 1


@pytest.mark.parametrize(
    ("requests", "load", "words"),
    [
        (Requests(np.array([10]), np.array([1])), Arrivals(np.zeros(2)), "2 arrivals for 1"),
        (Requests(np.array([32768]), np.array([1])), Closed(1), "context"),
    ],
    ids=["arrivals", "context"],
)
def test_a_run_that_cannot_be_is_refused(requests: Requests, load: Closed | Arrivals, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        simulate(QUIET, requests, load)


def test_a_million_tokens_take_seconds() -> None:
    """About 0.35 s of CPU on a present core; the bound is for a slow one."""
    requests = Mix(512, 128, spread=0.5).draw(1600, seed=1)
    begun = time.process_time()
    simulate(EngineConfig(max_batch=64), requests, Closed(64))
    assert (time.process_time() - begun) * 1e6 / requests.output.sum() < 5
