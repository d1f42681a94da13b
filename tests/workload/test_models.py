"""Which model each request asks for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from loadgen.errors import UsageError
from loadgen.workload.models import ModelMix, parse_models
from loadgen.workload.plain import plain_workload

PARSED: dict[tuple[str, ...], ModelMix | None] = {
    (): None,
    ("m",): ModelMix(("m",), (1.0,)),
    ("m=1",): ModelMix(("m",), (1.0,)),
    ("a", "b"): ModelMix(("a", "b"), (0.5, 0.5)),
    ("a=3", "b=1"): ModelMix(("a", "b"), (0.75, 0.25)),
    ("org/a:v=0.5", "b=5e-1"): ModelMix(("org/a:v", "b"), (0.5, 0.5)),
    ("key=value",): ModelMix(("key=value",), (1.0,)),
}


@pytest.mark.parametrize("texts", PARSED, ids=" ".join)
def test_names_and_shares(texts: tuple[str, ...]) -> None:
    assert parse_models(texts) == PARSED[texts]


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (("",), "names no model"),
        (("=1",), "names no model"),
        (("a=0",), "no share above zero"),
        (("a=-1", "b=2"), "no share above zero"),
        (("a=nan",), "no share above zero"),
        (("a=inf", "b=1"), "no share above zero"),
        (("a=1", "a=2"), "names a twice"),
        (("a=1", "b"), "--model b has no share"),
    ],
)
def test_what_cannot_be_meant(texts: tuple[str, ...], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_models(texts)


def test_draws_are_the_seeds_and_split_over_workers_exactly() -> None:
    mix = parse_models(("base=0.7", "lora=0.3"))
    workload = replace(plain_workload("20-60", 4), models=mix)

    def models(seed: int, worker: int = 0, workers: int = 1, n: int = 3000) -> list[str | None]:
        return [p.model for p in islice(workload.stream(seed, "n", worker=worker, workers=workers), n)]

    whole = models(1)
    assert whole == models(1) != models(2)
    assert Counter(whole)["base"] == pytest.approx(2100, abs=100)  # four standard deviations
    parts = [models(1, worker, 3, 1000) for worker in range(3)]
    assert [name for turn in zip(*parts, strict=True) for name in turn] == whole
    # The text of a stream does not change with the models that it is sent to.
    plain = plain_workload("20-60", 4)
    assert [p.text for p in islice(workload.stream(1, "n"), 9)] == [p.text for p in islice(plain.stream(1, "n"), 9)]
    assert workload.describe().endswith("models base 0.7, lora 0.3")
    assert workload.manifest()["models"] == {"base": 0.7, "lora": 0.3}
