"""How many processes share a load."""

from __future__ import annotations

import pytest

from loadgen.runner.steps import enough_workers


@pytest.mark.parametrize(
    ("requests_s", "tokens", "cpus", "workers"),
    [
        (10, 100, 8, 1),
        (300, 100, 8, 1),
        (301, 1, 8, 2),
        (200, 200, 8, 1),  # 40,000 events a second
        (200, 201, 8, 2),
        (299, 1000, 16, 8),
        (10_000, 1000, 4, 3),  # one CPU stays for what decides
        (10_000, 1000, 2, 1),
        (10_000, 1000, 1, 1),
        (0, 0, 4, 1),
    ],
)
def test_another_process_only_where_one_is_not_enough(
    requests_s: float, tokens: float, cpus: int, workers: int
) -> None:
    assert enough_workers(requests_s, tokens, cpus) == workers
