"""The lengths that a step's requests asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadgen.analysis.lengths import QUANTILES, _finite, _within, asked_lengths
from loadgen.log.columns import columns
from loadgen.records import InputTokens, OutputTokens, Record
from tests.report.summaries import record


def asking(number: int, inputs: int | None, outputs: int | None, turn: int | None = None) -> Record:
    made = record(f"r{number}", 1, 1, number * 1000, 1000, 100)
    return replace(made, input_tokens=InputTokens(asked=inputs), output_tokens=OutputTokens(asked=outputs), turn=turn)


def test_figures_are_of_all_that_were_sent() -> None:
    rows = [asking(i, 10 * i, 5) for i in range(1, 101)]
    rows[50] = replace(rows[50], outcome="cut")
    found = asked_lengths(columns(rows))
    inputs, outputs = found["input"], found["output"]
    assert (inputs.n, inputs.mean, inputs.p50, inputs.p90, inputs.p99) == (100, 505.0, 500, 900, 990)
    assert (outputs.mean, outputs.std, outputs.p99) == (5, 0, 5)


def test_of_conversations_it_is_the_first_turns() -> None:
    found = asked_lengths(columns([asking(0, 10, 5, 1), asking(1, 90, 5, 2), asking(2, 20, 5, 1)]))
    assert (found["input"].n, found["input"].mean) == (2, 15)


def test_a_side_that_is_left_open_is_left_out() -> None:
    assert set(asked_lengths(columns([asking(0, None, 5), asking(1, 10, 5)]))) == {"output"}
    assert asked_lengths(columns([])) == {}


@pytest.mark.parametrize("kind", ["lognormal", "coin", "equal"])
@pytest.mark.parametrize("n", [1, 30, 400])
def test_the_quantiles_of_what_was_drawn_from_lie_within_their_bounds(kind: str, n: int) -> None:
    rng = np.random.default_rng(n)
    draws = {"lognormal": rng.lognormal(5, 1, (300, n)), "coin": rng.integers(1, 3, (300, n)) * 10.0,
             "equal": np.full((300, n), 7.0)}[kind]  # fmt: skip
    true = {"lognormal": np.exp(5 + np.array([0, 1.2816, 2.3263])), "coin": [10, 20, 20], "equal": [7, 7, 7]}[kind]
    widths = []
    [found] = asked_lengths(columns([asking(i, max(1, round(one)), None) for i, one in enumerate(draws[0])])).values()
    ranked = np.sort(np.maximum(1, draws[0].round()).astype(np.int64))
    assert found.within == tuple(tuple(map(_finite, _within(ranked, q))) for q in QUANTILES)
    for sample in draws:
        within = [_within(np.sort(sample.round().astype(np.int64)), q) for q in QUANTILES]
        for (low, high), value in zip(within, true, strict=True):
            assert low <= value + 0.5 and high >= value - 0.5
        widths.append(within[0][1] / max(1.0, within[0][0]))
    if kind == "lognormal" and n == 400:
        assert 1.2 < np.median(widths) < 1.9  # ± 4 standard errors of a median: 25 %
