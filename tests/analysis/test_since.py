"""Is throughput what it was in the run before: found where it is not, and seldom where it is."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis import summarise_run
from loadgen.analysis.since import UNSTEADY, Since, comparable, since, throughputs, usable
from loadgen.log.columns import columns
from loadgen.results import Estimate, Slo
from tests.report.summaries import run_records


def known(value: float, share: float = 0.025) -> Estimate:
    return Estimate(value, value * (1 - share), value * (1 + share))


FOUR = {load: known(100 * load) for load in (1.0, 2.0, 4.0, 8.0)}


def scaled(by: float, *loads: float) -> dict[float, Estimate]:
    """`FOUR`, with some of it, or all, so many times as high."""
    return {load: known(one.value * (by if load in (loads or FOUR) else 1.0)) for load, one in FOUR.items()}


CASES: dict[str, tuple[dict[float, Estimate], float, tuple[float, ...] | None]] = {
    "the same": (scaled(1.0), 1.0, None),
    "a tenth more at each": (scaled(1.1), 1.1, tuple(FOUR)),
    "a tenth less at each": (scaled(0.9), 0.9, tuple(FOUR)),
    "beyond chance, but next to nothing": ({n: known(1.02 * one.value, 1e-4) for n, one in FOUR.items()}, 1.02, None),
    "less than chance": ({n: known(1.1 * one.value, 0.4) for n, one in FOUR.items()}, 1.1, None),
    "one alone": (scaled(1.09, 4.0), 1.09**0.25, None),
    "up here, down there": ({**scaled(1.2, 1.0), 2.0: known(200 / 1.2)}, 1.0, None),
    "one load in common": ({4.0: known(480), 16.0: known(9)}, 1.2, (4.0,)),
}  # fmt: skip


@pytest.mark.parametrize(("now", "factor", "loads"), CASES.values(), ids=CASES)
def test_what_is_found(now: dict[float, Estimate], factor: float, loads: tuple[float, ...] | None) -> None:
    found = since(FOUR, now)
    assert found is not None
    assert found.found == (loads is not None)
    assert found.ratio.value == pytest.approx(factor, rel=1e-3)
    if loads is not None:
        assert found.loads == loads


def test_without_a_common_load_there_is_nothing_to_say() -> None:
    assert since(FOUR, {3.0: known(1)}) is None and since({}, FOUR) is None


@given(st.lists(st.tuples(*[st.floats(1, 1e5)] * 2, *[st.floats(1e-3, 0.5)] * 2), min_size=1, max_size=8))
def test_seen_from_the_other_run_it_is_the_reverse(levels: list[tuple[float, float, float, float]]) -> None:
    before = {float(i): Estimate(a, a / (1 + s), a * (1 + s)) for i, (a, _, s, _) in enumerate(levels)}
    now = {float(i): Estimate(b, b / (1 + s), b * (1 + s)) for i, (_, b, _, s) in enumerate(levels)}
    there, back = since(before, now), since(now, before)
    assert there is not None and back is not None
    assert (there.found, there.loads) == (back.found, back.loads)
    assert there.ratio.value * back.ratio.value == pytest.approx(1.0)


@pytest.mark.parametrize(("change", "least", "most"), [(0.0, 0.0, 0.004), (0.06, 0.99, 1.0)], ids=["none", "6 %"])
def test_of_many_pairs(change: float, least: float, most: float) -> None:
    """Runs of six loads, each known to ±2.5 %: what is not there is found in one of a thousand, 6 % nearly always."""
    rng = random.Random(7)

    def run(by: float) -> dict[float, Estimate]:
        return {2.0**i: known(100 * by * math.exp(rng.gauss(0, 0.025 / 1.96))) for i in range(6)}

    pairs = [since(run(1.0), run(1 + change)) for _ in range(2000)]
    share = sum(one is not None and one.found for one in pairs) / len(pairs)
    assert least <= share <= most


@given(*[st.tuples(st.floats(), st.floats(), st.floats())] * 2)
def test_no_figure_is_too_odd(one: tuple[float, float, float], other: tuple[float, float, float]) -> None:
    a, b = (Estimate(value, low, high) for value, low, high in (one, other))
    if usable(a) and usable(b):
        found = since({1.0: a, 2.0: b}, {1.0: b, 2.0: a})
        assert found is not None and math.isfinite(found.ratio.value) and found.sentence("x")


def test_a_narrow_interval_is_no_more_certain_than_any_can_be() -> None:
    narrow = {1.0: Estimate(100.0, 100.0, math.nextafter(100.0, 200.0))}
    assert usable(narrow[1.0])
    found = since(narrow, narrow)
    assert found is not None and not found.found and found.ratio.low is not None and found.ratio.low < 0.9995


def test_what_counts_of_a_run() -> None:
    first, second, third = summarise_run(columns(run_records((1, 8, 8))[0]), Slo())
    known_by = throughputs([first, second, third], [])
    assert known_by == {1.0: first.output_throughput, 8.0: third.output_throughput}, "of one load the later"
    assert throughputs([first, second, third], [3]) == {1.0: first.output_throughput, 8.0: second.output_throughput}
    assert throughputs([replace(first, rate=2.0), replace(second, output_throughput=Estimate(3.0))], []) == {}


MANIFEST: dict[str, Any] = {
    "target": {"url": "http://gpu:8000", "endpoint": "chat"},
    "server": {"model": "m", "kind": "vllm", "version": "0.31", "flags": {"max_num_seqs": 64}},
    "workload": {"content_sha256": "abc", "seed": 1},
    "request": {"temperature": 0},
    "describe": {},
}


@pytest.mark.parametrize(
    ("part", "key", "value", "same"),
    [
        ("workload", "seed", 2, True),
        ("workload", "content_sha256", "def", False),
        ("workload", "content_sha256", None, False),
        ("target", "url", "http://gpu:8001", False),
        ("target", "url", None, False),
        ("server", "model", "n", False),
        ("server", "version", "0.32", False),
        ("server", "flags", {"max_num_seqs": 128}, False),
        ("server", "flags", {"max_num_seqs": 64, "num_gpu_blocks": 9}, True),
        ("request", "temperature", 1, False),
        ("describe", "gpu", "H100", False),
        ("describe", "arm", "B", False),
        ("workload", "same_text", True, False),
        ("target", "access", {"transport": "httpx"}, False),
        ("target", "urls", ["http://gpu:8000", "http://gpu:8001"], False),
    ],
)
def test_which_runs_are_of_the_same_thing(part: str, key: str, value: Any, same: bool) -> None:
    other = {**MANIFEST, part: {**MANIFEST[part], key: value}}
    assert comparable(MANIFEST, MANIFEST)
    assert comparable(MANIFEST, other) == comparable(other, MANIFEST) == same


@pytest.mark.parametrize("manifest", [{}, {"target": 3}, {"target": {"url": 1}, "workload": []}])
def test_a_manifest_of_anything_is_not_comparable(manifest: dict[str, Any]) -> None:
    assert not comparable(manifest, manifest) and not comparable(MANIFEST, manifest)


def test_the_sentences() -> None:
    less = Since(Estimate(0.9, 0.885, 0.915), (8.0, 1.0), True).sentence("38 min earlier (r)")
    assert less.startswith(
        "not steady between runs: output throughput at 1, 8 in flight differs by -10.0 % (-11.5 to -8.5)"
    )
    assert less.startswith(UNSTEADY)
    same = Since(Estimate(1.004, 0.99, 1.02), (16.0,), False).sentence("2 h earlier (r)")
    assert same == (
        "output throughput at 16 in flight differs by +0.4 % (-1.0 to +2.0) from the run before, 2 h earlier (r):"
        " no change is proven"
    )
