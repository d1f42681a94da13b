from __future__ import annotations

import numpy as np
import pytest

from loadgen.analysis.stability import increments, piling_up
from loadgen.results import Window
from loadgen.stats import grows

SECOND = 10**9


def queue(load: float, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """An M/M/1 queue of capacity 10/s: when each was sent, and when it was done."""
    rng = np.random.default_rng(seed)
    sent = np.cumsum(rng.exponential(0.1 / load, n))
    service = rng.exponential(0.1, n)
    done = np.empty(n)
    free = 0.0
    for i in range(n):
        free = max(free, sent[i]) + service[i]
        done[i] = free
    return np.rint(sent * SECOND).astype(np.int64), np.sort(np.rint(done * SECOND).astype(np.int64))


def called(load: float, repeats: int = 200, n: int = 2000, alpha: float = 0.05) -> float:
    found = 0
    for seed in range(repeats):
        sent, done = queue(load, n, seed)
        found += grows(increments(sent, done, Window(int(sent[100]), int(sent[-1]))), alpha)
    return found / repeats


def test_a_queue_that_keeps_up_is_left_alone_and_one_that_does_not_is_found() -> None:
    assert called(0.5) <= 0.09  # 5 % are allowed; three standard errors of 200 repeats are 4.6 %
    assert called(0.8) <= 0.09
    assert called(1.2) >= 0.95


def test_increments_by_hand() -> None:
    """In flight: 0 at the middle of the window, 2 at the end, which come in the fourth and the seventh slice."""
    window = Window(0, 200)
    sent = np.array([10, 135, 165])
    found = increments(sent, np.array([20, 500, 600]), window)
    assert found.tolist() == [0, 0, 0, 1, 0, 0, 1, 0, 0, 0]


def test_seen_from_outside_it_is_the_same() -> None:
    for load in (0.6, 1.3):
        sent, done = queue(load, 1500, 3)
        window = Window(int(sent[100]), int(sent[-1]))
        times = np.sort(np.concatenate((sent, done)))
        in_flight = np.searchsorted(sent, times, side="right") - np.searchsorted(done, times, side="right")
        assert piling_up(times, in_flight, window, 5) == grows(increments(sent, done, window), 0.01)


@pytest.mark.parametrize("n", [0, 1])
def test_nothing_seen_is_nothing_proven(n: int) -> None:
    assert not piling_up(np.zeros(n, np.int64), np.zeros(n, np.int64), Window(0, SECOND), 1)
