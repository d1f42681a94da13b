"""The lengths that a step's requests asked for."""

from __future__ import annotations

from dataclasses import replace

from loadgen.analysis.lengths import asked_lengths
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
