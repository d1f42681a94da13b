from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.report.numbers import clean, number, percent, with_error, with_interval
from loadgen.results import Estimate, Percentile


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.0, 3, "0"),
        (38.24, 3, "38.2"),
        (212.4, 3, "212"),
        (3922.3, 3, "3,922"),
        (1234567.8, 3, "1,234,568"),
        (0.0339, 3, "0.0339"),
        (55.0459, 4, "55.05"),
        (-5.25, 3, "-5.25"),
        (None, 3, "–"),
        (math.nan, 3, "–"),
        (math.inf, 3, "never"),
    ],
)
def test_numbers(value: float | None, digits: int, text: str) -> None:
    assert number(value, digits) == text


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(3922.4, 3864.1, 3980.7), "3,922 ±58"),
        (Estimate(81.71, 81.1, 82.3), "81.7 ±0.6"),
        (Estimate(5000.0, 4999.8, 5000.2), "5,000.0 ±0.2"),
        (Estimate(5000.0, 5000.0, 5000.0), "5,000 ±0"),
        (Estimate(12.0), "12.0"),
        (Estimate(12.0, 11.0, math.inf), "12.0"),
        (None, "–"),
    ],
)
def test_estimates(estimate: Estimate | None, text: str) -> None:
    assert with_error(estimate) == text


def test_percentiles_without_proof_are_not_shown_as_if_they_had_it() -> None:
    assert with_interval(Percentile(95.0, 381.2, 362.1, 402.3, 420, 200.0, True)) == "381 [362, 402]"
    assert with_interval(Percentile(95.0, 381.2, None, None, 16, 16.0, False)) == "not established"
    assert with_interval(None) == "–"


@pytest.mark.parametrize(("share", "text"), [(0.0, "0 %"), (0.0004, "0.04 %"), (0.052, "5.2 %"), (1.0, "100 %")])
def test_shares(share: float, text: str) -> None:
    assert percent(share) == text


@given(st.text())
def test_no_words_of_a_server_reach_the_terminal_as_commands(text: str) -> None:
    assert all(c.isprintable() or c.isspace() or ord(c) >= 0xA0 for c in clean(text))
    assert "\x1b" not in clean(text) and "\n" not in clean(text)


@given(st.floats(1e-3, 1e9))
def test_what_is_shown_is_within_half_a_percent(value: float) -> None:
    assert float(number(value).replace(",", "")) == pytest.approx(value, rel=0.005)
