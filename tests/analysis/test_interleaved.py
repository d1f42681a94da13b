"""Pairs of runs: what failed in them."""

from __future__ import annotations

from dataclasses import replace

from loadgen.analysis import summarise_run
from loadgen.analysis.interleaved import failing
from loadgen.log.columns import columns
from loadgen.results import Slo, StepSummary
from tests.report.summaries import run_records


def runs(*counts: tuple[int, int]) -> list[StepSummary]:
    """(judged, failed) of each."""
    records, observations = run_records((1,))
    (one,) = summarise_run(columns(records), Slo(), observations)
    return [replace(one, judged=judged, failed=failed) for judged, failed in counts]


def test_a_run_that_judged_nothing_adds_nothing() -> None:
    told = ((50, 5), (50, 10), (50, 2), (50, 8))
    assert failing(runs(*told), runs(*told)) == failing(runs(*told, (0, 0), (0, 0)), runs(*told))


def test_no_share_of_nothing() -> None:
    assert failing([], []) == () and failing(runs((0, 0)), runs((10, 1))) == ()


def test_a_server_that_failed_once_for_a_while_is_not_one_that_fails() -> None:
    spread, once = (failing(runs(*[(50, 0)] * 8), runs(*b))[0] for b in ([(50, 10)] * 8, [(50, 40)] + [(50, 0)] * 7))
    assert spread.worse and not once.worse
