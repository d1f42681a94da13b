"""How far another clock is ahead, whatever the ways there and back took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.offset import Offset, RoundTrip, offset_of

WAYS = st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**8))  # there, back, pause before


def trips_of(ways: list[tuple[int, int, int]], ahead_ns: int, now_ns: int = 0) -> list[RoundTrip]:
    """Round trips with a clock that is ahead by so much, when each way took so long."""
    trips = []
    for there, back, pause in ways:
        sent = now_ns + pause
        now_ns = sent + there + back
        trips.append(RoundTrip(sent, sent + there + ahead_ns, now_ns))
    return trips


@given(st.lists(WAYS, min_size=1, max_size=20), st.integers(-(10**18), 10**18))
def test_the_true_offset_is_within_the_uncertainty_however_unequal_the_ways(
    ways: list[tuple[int, int, int]], ahead_ns: int
) -> None:
    found = offset_of(trips_of(ways, ahead_ns))
    assert abs(found.ns - ahead_ns) <= found.uncertainty_ns
    assert found.uncertainty_ns == -(-min(there + back for there, back, _ in ways) // 2)
    assert found.longest_ns == max(there + back for there, back, _ in ways)


def test_the_uncertainty_is_no_larger_than_the_truth_can_need() -> None:
    """Where the whole round trip was one way, the middle is wrong by all of the uncertainty."""
    for there, back in ((1_000, 0), (0, 1_000)):
        found = offset_of(trips_of([(there, back, 0)], 5_000))
        assert abs(found.ns - 5_000) == found.uncertainty_ns == 500


@given(
    st.lists(WAYS, min_size=1, max_size=5), st.lists(WAYS, min_size=1, max_size=5),
    st.integers(-(10**6), 10**6), st.floats(0, 1),
)  # fmt: skip
def test_what_was_assumed_in_between_was_wrong_by_no_more_than_is_said(
    before: list[tuple[int, int, int]], after: list[tuple[int, int, int]], drift_ns: int, share: float
) -> None:
    first = offset_of(trips_of(before, 7_000))
    last = offset_of(trips_of(after, 7_000 + drift_ns, 10**12))
    meanwhile = 7_000 + drift_ns * share
    assert abs(first.ns - meanwhile) <= first.error_ns(last) + 1


def test_one_round_trip_is_needed() -> None:
    with pytest.raises(ValueError):
        offset_of([])
    assert offset_of([RoundTrip(0, 10, 1)]) == Offset(10, 1, 1)
