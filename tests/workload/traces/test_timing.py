from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.workload.traces import Trace, TraceRow
from loadgen.workload.traces.timing import REACH, Timing, due, quantum

from .samples import SAMPLES


def trace(stamps: list[float | None]) -> Trace:
    return Trace(
        Path("t"), "made", "seconds", lambda dropped: (TraceRow(at, 10 + i, 1, i + 1) for i, at in enumerate(stamps))
    )


def times(stamps: list[float | None], timing: Timing = Timing()) -> list[tuple[int, int]]:  # noqa: B008 - frozen
    return [(at, row.line) for at, row in due(trace(stamps), timing, Counter())]


def test_times_begin_at_zero_are_sorted_stably_and_scaled() -> None:
    assert times([5.0, 3.0, 3.0, 9.5]) == [(0, 2), (0, 3), (2 * 10**9, 1), (6_500_000_000, 4)]
    assert times([5.0, 3.0, 9.5], Timing(scale=2.0)) == [(0, 2), (10**9, 1), (3_250_000_000, 3)]
    dropped: Counter[str] = Counter()
    assert [row.line for _, row in due(trace([1.0, None, 2.0]), Timing(), dropped)] == [1, 3]
    assert dropped == {"no time of its own": 1}


@given(st.lists(st.floats(-1e6, 1e6), max_size=60), st.floats(0.01, 100), st.floats(0, 10), st.integers())
@settings(deadline=None)
def test_any_order_of_times_becomes_an_ascending_one_of_the_same_rows(
    stamps: list[float], scale: float, step: float, seed: int
) -> None:
    found = times(list(stamps), Timing(scale, step, seed))
    assert sorted(line for _, line in found) == list(range(1, len(stamps) + 1))
    assert [at for at, _ in found] == sorted(at for at, _ in found)
    assert not found or found[0][0] == 0
    for at, line in found:  # within a quantum of where it was
        assert abs(at / 1e9 * scale - (stamps[line - 1] - min(stamps))) <= step + 1e-3


def test_a_row_far_below_where_it_belongs_is_refused_by_its_line() -> None:
    late = [*map(float, range(REACH + 10)), 5.0]
    with pytest.raises(UsageError, match=f"line {REACH + 11:,} of t.*4.000 s before"):
        times(list(late))
    assert len(times([*map(float, range(REACH - 10)), 5.0])) == REACH - 9


def test_coarse_stamps_are_spread_by_the_seed_and_not_otherwise() -> None:
    stamps = [3.0 * (i // 10) for i in range(400)]
    assert quantum(stamps) == 3.0
    one, same, other = (times(list(stamps), Timing(1.0, 3.0, seed)) for seed in (1, 1, 2))
    assert one == same != other
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(one)]
    assert max(gaps) < 3e9 and len({at for at, _ in one}) == 400
    in_quantum = Counter(int((at / 1e9) // 30) for at, _ in one)
    assert all(80 <= n <= 120 for k, n in in_quantum.items() if k < 3)


def test_turns_of_a_session_stay_in_their_order_where_stamps_are_spread() -> None:
    rows = [TraceRow(3.0 * (i // 9), 10, 1, i + 1, session=f"s{i % 3}") for i in range(270)]
    made = Trace(Path("t"), "made", "seconds", lambda dropped: iter(rows))
    found = list(due(made, Timing(1.0, 3.0, 1), Counter()))
    for session in ("s0", "s1", "s2"):
        lines = [row.line for _, row in found if row.session == session]
        assert lines == sorted(lines) and len(lines) == 90
    assert len({at for at, _ in found}) > 30, "and yet they are spread"


MOONCAKE = [round(i * 3.0 + 0.003 * ((i * 7) % 3 - 1), 3) for i in range(100) for _ in range(5)]


@pytest.mark.parametrize(
    ("stamps", "step"),
    [
        pytest.param(MOONCAKE, 3.0, id="three seconds, give or take three milliseconds"),
        pytest.param(
            [float(n) for n in (0, 0, 1, 3, 3, 3, 4, 8, 9, 9, *range(20, 60), 60, 60)], 1.0, id="whole seconds"
        ),
        pytest.param([0.5 * i for i in range(500)], 0.0, id="even, each its own"),
        pytest.param([i * i * 0.00137 for i in range(500)], 0.0, id="fine"),
        pytest.param([10.0 * (i // 50) for i in range(500)], 0.0, id="too few to tell"),
        pytest.param([(i // 2) * 0.731 + (i // 2) ** 2 * 0.0113 for i in range(500)], 0.0, id="pairs at fine times"),
        pytest.param([], 0.0, id="none"),
        pytest.param([0.0, *map(float, range(30)), 2e-311], 1.0, id="a gap that is hardly one"),
        pytest.param([7.0] * 50, 0.0, id="all at once"),
    ],
)
def test_a_quantum_is_told_from_stamps(stamps: list[float], step: float) -> None:
    assert quantum(stamps) == pytest.approx(step, rel=0.01)


def test_the_samples_are_timed_or_not() -> None:
    assert {s.name for s in SAMPLES if not s.unit} >= {"sharegpt", "vllm-custom", "sarathi-lengths"}
