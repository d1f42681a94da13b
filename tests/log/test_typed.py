from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest

from loadgen.analysis import summarise_run
from loadgen.log import typed
from loadgen.log.columns import columns
from loadgen.results import Estimate, StepSummary, Window
from loadgen.slo import parse_slo
from tests.log.record_strategies import RECORD


@dataclass(frozen=True)
class Inner:
    value: float
    name: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Outer:
    one: Inner | None
    pair: tuple[int, float]
    many: tuple[Inner, ...] = ()
    by: Mapping[str, Inner] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    sure: bool = True


WHOLE = Outer(
    Inner(0.1 + 0.2, "b"), (2**60, -0.0), (Inner(math.inf), Inner(-math.inf)), {"ü": Inner(1e-308)}, ["\ud800", ""]
)


def test_what_goes_in_comes_out() -> None:
    for value in (WHOLE, replace(WHOLE, one=None, many=(), sure=False)):
        back = typed.loads(typed.dumps(value), Outer)
        assert back == value and repr(back) == repr(value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"one":{', '"two":{'),
        ('"b"', '"c"'),
        ("true", "1"),
        ('"pair":[', '"pair":[1,'),
        (":", ""),
        ('"name":"b"', '"name":null'),
    ],
)
def test_anything_else_is_refused(old: str, new: str) -> None:
    text = typed.dumps(WHOLE)
    assert old in text
    with pytest.raises((ValueError, TypeError, KeyError)):
        typed.loads(text.replace(old, new, 1), Outer)


@pytest.mark.parametrize("field", ["one", "pair", "many", "by", "names", "sure"])
@pytest.mark.parametrize("value", ["[]", "{}", '"ab"', "1", "[[1]]"])
def test_a_value_of_another_kind_is_refused_or_is_of_its_kind(field: str, value: str) -> None:
    told = {**json.loads(typed.dumps(WHOLE)), field: json.loads(value)}
    with contextlib.suppress(ValueError, TypeError, KeyError):
        assert typed.dumps(typed.loads(json.dumps(told), Outer)) == typed.dumps(told)


@pytest.mark.parametrize("text", ["[]", "3", '""', "null", "[" * 100_000, b"\xff"])
def test_what_is_no_object_is_refused(text: str | bytes) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        typed.loads(text, Outer)


def test_a_summary_comes_back_as_it_was() -> None:
    slo = parse_slo(["ttft_p95=80ms", "tpot=12ms", "attainment=90%"])
    (summary,) = summarise_run(columns(replace(RECORD, id=f"{i}") for i in range(40)), slo)
    assert summary.objectives and summary.latency["ttft"].n == 40
    summary = replace(summary, goodput=math.inf, window=Window(1, 2**62), completion_rate=Estimate(math.nan))
    assert repr(typed.loads(typed.dumps(summary), StepSummary)) == repr(summary)
