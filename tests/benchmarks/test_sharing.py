from __future__ import annotations

import pytest

from benchmarks.sharing import as_expected


@pytest.mark.parametrize(
    ("expected", "seen", "fine"),
    [
        ([0.5, 0.5], [None, 0.519], True),
        ([0.5, 0.6], [0.49, 0.61], True),
        ([0.5, 0.5], [0.5, 0.53], False),
        ([0.0, 0.0], [0.0, 0.0], True),
        (None, [0.0, 0.0], False),
        ([0.5, 0.5], [None, None], False),
    ],
    ids=["near", "range", "far", "nothing shared", "nothing expected", "nothing told"],
)
def test_a_share_is_near_what_is_expected(expected: list[float] | None, seen: list[float | None], fine: bool) -> None:
    assert as_expected(expected, seen) is fine
