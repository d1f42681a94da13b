"""An arm's run in virtual time: it is a run like any other, and agrees with what is known of the engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.analysis.compare import Difference
from loadgen.experiments.columns import columns_of
from loadgen.experiments.definition import Setting, parse_experiment
from loadgen.experiments.effects import expected_ratio
from loadgen.experiments.library import load_experiment, names
from loadgen.experiments.verdict import answer, goals, judged, judged_runs
from loadgen.experiments.virtual import both, requests_of, run_arm, run_pairs
from loadgen.simulator.engine.virtual import Mix
from loadgen.simulator.oracle import Effort, at
from tests.experiments.test_definition import SMALL
from tests.thorough import examples


def small(**changes: str) -> Setting:
    text = SMALL
    for old, new in changes.items():
        text = text.replace(old, new)
    return parse_experiment(text, "mine.toml").settings[0]


def test_a_run_has_what_was_asked_for_and_repeats_itself() -> None:
    setting = small()
    one, again = (run_arm(setting, setting.a, 3, 5) for _ in range(2))
    assert one == again
    assert one.sent == one.judged == 40 and one.failed == 0
    assert one.concurrency_mean == pytest.approx(4, rel=0.02)
    assert run_arm(setting, setting.a, 3, 6) != one
    # The same lengths, whatever the engine.
    other = run_arm(setting, setting.b, 3, 6)
    assert other.input_tokens_mean == pytest.approx(one.input_tokens_mean, rel=0.1)


def test_it_agrees_with_the_oracle() -> None:
    """The same engine and load by the oracle's own runs, which share nothing of the window's bookkeeping."""
    setting = small()
    found = run_arm(setting, setting.a, 1, 1, requests=900)
    mix = Mix(32, 6, input_spread=16.5 / 32, spread=2.5 / 6)
    truth = at(setting.a.engine, mix, 4, effort=Effort(2, 600))
    assert found.output_throughput is not None
    assert found.output_throughput.value == pytest.approx(truth.throughput.value, rel=0.02)
    tpot = found.latency["tpot"].at(95.0)
    assert tpot is not None and tpot.value == pytest.approx(truth.figures["tpot_p95_ms"].value, rel=0.03)


def test_gaps_are_seen_where_they_are_asked_for() -> None:
    setting = small(**{'"tpot_p95", "output': '"itl_p99", "output'})
    summary = run_arm(setting, setting.a, 1, 1)
    itl, tpot = summary.latency["itl"], summary.latency["tpot"]
    assert itl.n == pytest.approx(40 * (summary.output_tokens_mean or 0) - 40)
    assert itl.mean is not None and tpot.mean is not None
    assert itl.mean.value == pytest.approx(tpot.mean.value, rel=0.05)
    assert summary.estimated_token_share < 0.02


def test_replicas_share_the_load() -> None:
    setting = small(**{'label = "24 ms"': 'label = "two"\nreplicas = 2', "step_ms = 24": "step_ms = 12"})
    summary = run_arm(setting, setting.b, 1, 1)
    assert summary.concurrency_mean == pytest.approx(4, rel=0.05)
    alone = run_arm(small(**{"concurrency = 4": "concurrency = 2"}), setting.a, 1, 1)
    assert summary.output_throughput is not None and alone.output_throughput is not None
    assert summary.output_throughput.value == pytest.approx(2 * alone.output_throughput.value, rel=0.05)


def test_an_open_loop_has_its_rate() -> None:
    setting = small(**{"concurrency = 4": "rate = 5", "requests = 40": "requests = 300"})
    summary = run_arm(setting, setting.a, 1, 1)
    assert summary.rate == 5 and summary.sent == 300
    assert summary.request_throughput is not None
    assert summary.request_throughput.value == pytest.approx(5, rel=0.15)


@pytest.fixture(scope="module")
def pairs() -> dict[str, list[Difference]]:
    """A against the doubled step, and against itself."""
    setting = small()
    return {"b": run_pairs(setting, 8), "a": run_pairs(setting, 8, (setting.a, setting.a))}


def test_a_doubled_step_is_found_and_equal_arms_are_not_told_apart(pairs: dict[str, list[Difference]]) -> None:
    setting, first = small(), pairs["b"][0]
    assert first.found and first.ratio is not None and answer(setting, first) == "as expected"
    by_hand = expected_ratio(setting)
    assert by_hand is not None and first.ratio.ratio.value == pytest.approx(by_hand, rel=0.03)
    assert not any(d.found for d in pairs["a"])
    assert answer(setting, pairs["a"][0]) == "undecided"


@pytest.mark.parametrize(
    ("direction", "label", "expected"),
    [
        ("higher", "b", "as expected"),
        ("lower", "b", "contrary"),
        ("same", "b", "contrary"),
        ("same", "a", "as expected"),
    ],
)
def test_the_verdict(direction: str, label: str, expected: str, pairs: dict[str, list[Difference]]) -> None:
    setting = small(**{'direction = "higher"': f'direction = "{direction}"'})
    assert judged(setting, pairs[label]).answer == expected


def test_objectives_are_told_of_both_arms() -> None:
    setting = small(**{'effect = "TPOT is the step"': 'effect = "x"\nslo = ["tpot_p95=20ms"]'})
    sides = both(setting, 7, (setting.a, setting.b))
    (goal,) = goals(*sides)
    assert (goal.a, goal.b) == (1.0, 0.0)
    assert judged_runs(setting, *sides).goals == (goal,)


@pytest.mark.parametrize("name", names())
def test_every_formula_says_which_way(name: str) -> None:
    """By hand: on the expected side, or for `same` within the margin."""
    for setting in load_experiment(name).settings:
        ratio = expected_ratio(setting)
        if ratio is None:
            continue
        way, margin = setting.expect.direction, setting.expect.margin
        assert ratio > 1 if way == "higher" else ratio < 1 if way == "lower" else abs(ratio - 1) < margin


def test_shared_beginnings_are_shared_blocks() -> None:
    effect, _ = load_experiment("prefix-cache").settings
    asked = requests_of(effect.workload, 3, 40, 16)
    firsts = {blocks[0] for blocks in asked.blocks}
    assert len(firsts) == 4 and all(len(blocks) == 2048 // 16 for blocks in asked.blocks)
    assert len({blocks[-1] for blocks in asked.blocks}) == 4
    again = requests_of(effect.workload, 3, 40, 16)
    assert again.blocks == asked.blocks and (again.prompt == asked.prompt).all()


@settings(max_examples=examples(15), deadline=None)
@given(n=st.integers(1, 6), seed=st.integers(0, 1000), with_events=st.booleans())
def test_columns_keep_each_request_with_its_events(n: int, seed: int, with_events: bool) -> None:
    random = np.random.default_rng(seed)
    first = random.uniform(1, 2, n)
    counts = random.integers(1, 5, n)
    ends = first + (counts - 1) * 0.5
    stamps = np.stack([np.zeros(n), first, ends], axis=1)
    lengths = np.stack([np.arange(n) + 10, counts], axis=1)
    events = None
    if with_events:
        rows = np.repeat(np.arange(n), counts)
        at_s = np.concatenate([f + 0.5 * np.arange(c) for f, c in zip(first, counts, strict=True)])
        order = np.argsort(at_s, kind="stable")
        events = (rows[order], at_s[order], np.ones(len(rows), np.int64)[order])
    table = columns_of(stamps, lengths, np.ones(n, np.int8), 1, n, events)
    assert sorted(table.input_asked.tolist()) == sorted(lengths[:, 0].tolist())
    assert (np.diff(table.done_ns) >= 0).all()
    if with_events:
        for i in range(n):
            own = table.event_ns[table.event_offsets[i] : table.event_offsets[i + 1]]
            assert len(own) == table.output_count[i]
            assert own[0] == table.first_token_ns[i] and own[-1] == pytest.approx(table.last_token_ns[i], abs=2)


def test_long_and_short_setting_differ_in_length_alone() -> None:
    setting = small()
    assert replace(setting.shortened(10, 6), load=setting.load) == setting
