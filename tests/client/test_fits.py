"""Does a workload fit the context? What share does not, what helps, and what is too short to be had."""

from __future__ import annotations

import pytest

from loadgen.client.fits import check_fits, least_input, nearly_full
from loadgen.client.remedies import PreflightError
from loadgen.workload.definition import parse_workload
from loadgen.workload.plain import defined_workload, plain_workload
from loadgen.workload.prompts import Calibration
from loadgen.workload.vocabulary import Vocabulary

DEFINED = parse_workload(
    """
name = "n"
[lengths]
input = { kind = "uniform", low = 1, high = 1000 }
output = { kind = "fixed", value = 100 }
""",
    "f",
)


def test_what_does_not_fit_is_a_share_and_the_remedy_helps() -> None:
    workload = defined_workload(DEFINED)
    check_fits(None, workload)
    check_fits(1100, workload)
    with pytest.raises(PreflightError) as caught:
        check_fits(900, workload)
    assert "20 % of the requests of n, which have up to 1,100 tokens, do not fit" in caught.value.message
    assert "add --max-total-len 900" in caught.value.remedy
    check_fits(900, defined_workload(DEFINED.limited(900, "--max-total-len")))


def test_a_share_too_small_to_be_seen_is_refused_all_the_same() -> None:
    with pytest.raises(PreflightError, match="a few of the requests of n"):
        rare = parse_workload(
            'name = "n"\n[lengths]\ninput = { kind = "mixture", weights = [1e7, 1], parts = ['
            '{ kind = "fixed", value = 5 }, { kind = "fixed", value = 900 }] }\n'
            'output = { kind = "fixed", value = 5 }\n',
            "f",
        )
        check_fits(100, defined_workload(rare))


def test_nearly_full_counts_input_and_output_as_they_come_together() -> None:
    assert nearly_full(1129, defined_workload(DEFINED)) and not nearly_full(1131, defined_workload(DEFINED))
    limited = defined_workload(DEFINED.limited(500, "--max-total-len"))
    assert nearly_full(500, limited) and not nearly_full(600, limited)
    assert nearly_full(640, plain_workload()) and not nearly_full(700, plain_workload())


def test_inputs_that_are_too_short_to_be_had_are_a_share() -> None:
    around = Calibration(49, 1, Vocabulary(50, ("the",), tuple(f"w{i}" for i in range(30))))
    said = least_input(defined_workload(DEFINED), around)
    assert said is not None and said.startswith("the 4.9 % of inputs of less than 50 tokens cannot be had")
    assert least_input(plain_workload("100-200"), around) is None
    said = least_input(plain_workload("10-200"), around)
    assert said is not None and said.startswith("inputs of less than 50 tokens cannot be had")
    assert least_input(plain_workload("10-200"), Calibration()) is None
