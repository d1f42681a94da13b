"""A trace as a step sends it: when, what, in how many workers."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.workload.plain import traced_workload
from loadgen.workload.prompts import Calibration
from loadgen.workload.traces import describe_trace, open_trace
from loadgen.workload.traces.looking import look, replayed_of
from loadgen.workload.traces.replayed import Choice, Replayed

from .samples import SAMPLES, lines


def vidur(folder: Path, rows: list[tuple[float, int, int]]) -> str:
    path = folder / "t.csv"
    head = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
    path.write_text(head + "".join(f"{at},{i},{o}\n" for at, i, o in rows))
    return str(path)


ROWS = [(0.0, 20, 1), (0.5, 30, 2), (0.5, 40, 3), (2.0, 50, 4), (1.0, 25, 5)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replayed")


@given(
    st.lists(st.tuples(st.floats(0, 50), st.integers(1, 60), st.integers(1, 9)), min_size=1, max_size=40),
    st.integers(1, 5),
    st.booleans(),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_workers_send_the_same_trace_together(
    place: Path, rows: list[tuple[float, int, int]], workers: int, timed: bool
) -> None:
    found = look(Choice(vidur(place, rows), timed=timed, as_recorded=True))
    there = replayed_of(orjson.loads(orjson.dumps(found.as_object())), None)
    assert list(itertools.islice(there.prompts("n", None), 60)) == list(itertools.islice(found.prompts("n", None), 60))
    whole = list(itertools.islice(found.prompts("n", None), 60))
    parts = [found.prompts("n", None, w, workers) for w in range(workers)]
    assert [next(parts[k % workers]) for k in range(len(whole))] == whole
    assert [p.output_tokens for p in whole[: len(rows)]] == [
        o for _, _, o in (sorted(rows, key=lambda row: row[0]) if timed else rows)
    ]
    if timed:
        assert len(whole) == len(rows)
        times = list(found.offsets())
        splits = [found.offsets(w, workers) for w in range(workers)]
        assert [next(splits[k % workers]) for k in range(len(times))] == times == sorted(times)
        assert all(next(split, None) is None for split in splits)
        assert times == [found.offsets().offset_ns(k) for k in range(len(rows))]
        assert found.end_ns >= times[-1] and found.offsets().offset_ns(len(rows) + 3) > found.end_ns


def test_what_is_sent_is_what_was_looked_at(tmp_path: Path) -> None:
    path = vidur(tmp_path, ROWS)
    found = look(Choice(path, scale=2.0, seconds=0.6))
    assert (found.requests, found.span_s, found.inputs, found.outputs) == (4, 0.5, (20, 28.75, 40), (1, 2.75, 5))
    assert found.rate == pytest.approx(6.0)
    assert look(Choice(path, requests=2)).requests == 2
    limited = look(Choice(path, max_total=45))
    assert limited.requests == 4 and limited.dropped == {"more than 45 tokens": 1}
    assert list(limited.offsets()) == [0, 500_000_000, 500_000_000, 10**9]
    with pytest.raises(UsageError, match="5 more than 10 tokens"):
        look(Choice(path, max_total=10))


def test_of_a_long_trace_the_beginning_is_looked_at_and_all_of_it_is_sent(tmp_path: Path) -> None:
    path = vidur(tmp_path, [(n / 10, 20 + n, 1) for n in range(100)])
    found = look(Choice(path, looked_at=30))
    assert (found.complete, found.requests, found.span_s, found.end_ns) == (False, 30, pytest.approx(2.9), None)
    assert found.most_requests > 10**9 and look(Choice(path, looked_at=30, requests=50)).most_requests == 50
    there = replayed_of(orjson.loads(orjson.dumps(found.as_object())), None)
    for one in (found, there):
        assert len(list(one.offsets())) == len(list(one.prompts("n", None))) == 100
        assert list(one.offsets(1, 3)) == [n * 10**8 for n in range(1, 100, 3)]
        assert one.offsets().offset_ns(102) == pytest.approx(10.2e9)
    some = look(Choice(path, looked_at=30, seconds=5.0))
    assert len(list(some.offsets())) == len(list(some.prompts("n", None))) == 50
    assert not some.complete and any("first 30 requests" in note for note in some.notes())


def test_a_file_that_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    found = look(Choice(vidur(tmp_path, ROWS)))
    vidur(tmp_path, ROWS[:2])
    with pytest.raises(UsageError, match="has changed"):
        replayed_of(found.as_object(), None)
    with pytest.raises(UsageError, match="has changed"):
        list(found.offsets())


def shared(trace: Replayed) -> list[str]:
    return [prompt.text for prompt in trace.prompts("n", Calibration())]


def test_blocks_of_one_hash_are_one_text_in_a_run_and_another_in_the_next(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    row = {"output_length": 3, "input_length": 1400}
    path.write_text(
        lines(
            {"timestamp": 0, "hash_ids": [0, 1, 2], **row},
            {"timestamp": 50, "hash_ids": [0, 1, 5], **row},
            {"timestamp": 90, "hash_ids": [7, 8, 9], **row},
        )
    )
    found = look(Choice(str(path)))
    one, two, three = (text.split() for text in shared(found))
    same = next(i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b)
    assert 1024 <= same <= 1030 and one[:10] != three[:10]
    assert [len(text) for text in (one, two, three)] == [1400] * 3
    assert [prompt.shared for prompt in found.prompts("n", None)] == [(0, 0), (1024, 1024), (0, 0)]
    assert next(found.prompts("another", None)).text.split()[:10] != one[:10]


SERVEGEN_LENGTHS = {"0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{3: 1.0}"},
                    "21600": {"input_tokens": "{}", "output_tokens": "{}"}}  # fmt: skip


def servegen(folder: Path) -> Path:
    for n, curve in ((0, "0,5,1.0,Gamma,1.0,0.2\n600,0,0,,,\n1200,10,2.0,Weibull,0.8,0.09\n"), (3, "0,1,1,,,\n")):
        (folder / f"chunk-{n}-trace.csv").write_text(curve)
        (folder / f"chunk-{n}-dataset.json").write_text(json.dumps(SERVEGEN_LENGTHS))
    return folder


def test_servegen_clients_are_drawn_at_their_rates_and_merged(tmp_path: Path) -> None:
    rows = list(open_trace(servegen(tmp_path), seed=4).rows(Counter()))
    at = [row.at_s for row in rows if row.at_s is not None]
    assert at == sorted(at) and len(at) == len(rows)
    counts = [sum(a <= t < a + 600 for t in at) for a in (0, 600, 1200)]
    assert counts[0] == pytest.approx(3600, rel=0.1) and counts[1] == 0 and counts[2] == pytest.approx(6000, rel=0.1)
    inputs = Counter(row.input_tokens for row in rows)
    assert set(inputs) == {10, 20} and inputs[10] == pytest.approx(len(rows) / 2, rel=0.1)
    assert {row.output_tokens for row in rows} == {3}
    assert [r.at_s for r in open_trace(tmp_path, seed=4).rows(Counter())] == at
    assert [r.at_s for r in open_trace(tmp_path, seed=5).rows(Counter())] != at


@pytest.mark.parametrize(
    ("curve", "lengths", "says"),
    [
        ("0,5,1,Gamma,1\n", "{}", "five|not six|begins with"),
        ("0,-5,1,Gamma,1,1\n", json.dumps(SERVEGEN_LENGTHS), "begins with|a rate of"),
        ("0,5,1,Gamma,1,1\n", "[]", "not an object"),
        ("0,5,1,Gamma,1,1\n", "{}", "none of its windows"),
        (
            "0,5,1,Gamma,1,1\n",
            '{"0": {"input_tokens": "__import__(1)", "output_tokens": "{1: 1}"}}',
            "no dict of tokens",
        ),
        ("600,5,1,Gamma,1,1\n0,5,1,Gamma,1,1\n", json.dumps(SERVEGEN_LENGTHS), "does not begin after"),
    ],
)
def test_a_servegen_client_that_is_wrong_is_said(curve: str, lengths: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "chunk-0-trace.csv").write_text(curve)
    (tmp_path / "chunk-0-dataset.json").write_text(lengths)
    with pytest.raises(UsageError, match=says):
        describe_trace(tmp_path / "chunk-0-trace.csv")


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.unit], ids=str)
def test_every_timed_format_becomes_a_workload(sample: object, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(sample.text)  # type: ignore[attr-defined]
    found = traced_workload(look(Choice(str(path), output_len=5)))
    prompts = list(found.stream(1, "n"))
    assert len(prompts) == found.trace.arrivals <= found.trace.requests  # type: ignore[union-attr]
    assert all(prompt.text and prompt.output_tokens for prompt in prompts)
    assert found.describe() and found.manifest()["kind"] == "trace" and describe_trace(path).lines()
