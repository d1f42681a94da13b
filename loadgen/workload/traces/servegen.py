"""ServeGen: clients, each a rate curve with its burstiness by windows of 600 s, and distributions of lengths by windows
of six hours. Its requests are drawn, from the seed.

    chunk-N-trace.csv      window start (s), rate (requests/s), CV of the gaps, Gamma | Weibull | nothing, shape, scale
    chunk-N-dataset.json   window start (s) → {"input_tokens": "{tokens: probability, …}", "output_tokens": "…"}
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import UsageError
from .row import MOST_TOKENS, RowFault, TraceRow, stamp
from .source import GIVE, Source

NAME = re.compile(r"(chunk-\d+)-trace\.csv")
_ENTRY = re.compile(r"\s*(\d{1,9})(?:\.0)?\s*:\s*([0-9.eE+-]{1,30})\s*(?:,|$)")
_KEYS = (("input_tokens", "text_tokens"), ("output_tokens",))
Drawn = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]  # values and their cumulative probabilities


def clients(path: Path) -> list[Path]:
    """The rate curves in a folder, in the order of their numbers."""
    found = [one for one in path.iterdir() if NAME.fullmatch(one.name)]
    return sorted(found, key=lambda one: int(one.name.split("-")[1]))


def rows(paths: list[Path], seed: int, dropped: Counter[str]) -> Iterator[TraceRow]:
    """The requests of all clients, merged by their times."""
    return heapq.merge(*(_client(path, seed, dropped) for path in paths), key=attrgetter("at_s"))


def _client(path: Path, seed: int, dropped: Counter[str]) -> Iterator[TraceRow]:
    source = Source(path)
    name = path.name.split("-")[1]
    lengths = _lengths(path.with_name(path.name.replace("-trace.csv", "-dataset.json")), dropped)
    starts = [start for start, _, _ in lengths]
    windows = [_window(source, line, cells) for block in source.cells() for line, cells in block]
    if any(later[1] <= earlier[1] for earlier, later in pairwise(windows)):
        line = next(b[0] for a, b in pairwise(windows) if b[1] <= a[1])
        raise source.fault(line, "its window does not begin after the one before")
    width = min((b[1] - a[1] for a, b in pairwise(windows)), default=600.0)
    left = 0.0  # mean gaps until the next request, carried from window to window
    for line, start, rate, pattern, shape in windows:
        if rate == 0:
            continue
        rng = np.random.default_rng([seed & 0xFFFFFFFF, int(name), int(start)])
        at, n = left, width * rate
        place = bisect_right(starts, start) - 1
        if place < 0:
            dropped["a window before any lengths"] += 1
            continue
        _, inputs, outputs = lengths[place]
        while True:
            gaps = _gaps(rng, pattern, shape, 256)
            for gap, u, v in zip(gaps, rng.random(256), rng.random(256), strict=True):
                if at >= n:
                    break
                # Lengths are independent draws: the data hold no joint distribution.
                yield TraceRow(start + at / rate, _pick(inputs, u), _pick(outputs, v), line, session=None)
                at += gap
            if at >= n:
                break
        left = at - n


def _window(source: Source, line: int, cells: list[str]) -> tuple[int, float, float, str, float]:
    try:
        if len(cells) != 6:
            raise RowFault(f"it has {len(cells)} columns, not six")
        start, rate = stamp(cells[0], "window", "s"), stamp(cells[1], "rate", "s")
        pattern = cells[3].strip()
        if not 0 <= rate <= 1e6:
            raise RowFault(f"a rate of {cells[1]} requests/s")
        if pattern not in ("Gamma", "Weibull", ""):
            raise RowFault(f"the pattern {pattern[:30]!r} is neither Gamma nor Weibull")
        shape = stamp(cells[4], "shape", "s") if pattern and rate else 1.0
        if not 1e-6 <= shape <= 1e6:
            raise RowFault(f"a shape of {cells[4][:30]}")
        return line, start, rate, pattern, shape
    except RowFault as fault:
        raise source.fault(line, str(fault)) from None


def _gaps(rng: np.random.Generator, pattern: str, shape: float, n: int) -> npt.NDArray[np.float64]:
    """Gaps of mean 1: the pattern's shape, with the scale that its rate asks for."""
    if pattern == "Gamma":
        return rng.gamma(shape, 1.0 / shape, n)
    if pattern == "Weibull":
        from math import gamma

        return rng.weibull(shape, n) / gamma(1 + 1 / max(shape, 0.01))
    return rng.exponential(1.0, n)


def _lengths(path: Path, dropped: Counter[str]) -> list[tuple[float, Drawn, Drawn]]:
    if not path.is_file():
        raise UsageError(f"{path} is missing: it holds the lengths of the client's requests", "put it beside its trace")
    source = Source(path)
    _, found = next(source.document(), (1, None))
    if not isinstance(found, dict):
        raise source.fault(1, "it is not an object of windows")
    windows: list[tuple[float, Drawn, Drawn]] = []
    for key, one in found.items():
        try:
            start = stamp(key, "window", "s")
            parts = [_distribution(one, names) for names in _KEYS]
        except RowFault as fault:
            raise source.fault(1, f"window {key[:20]}: {fault}") from None
        if parts[0] is None or parts[1] is None:
            dropped["a window without lengths"] += 1
        else:
            windows.append((start, parts[0], parts[1]))
    if not windows:
        raise source.fault(1, "none of its windows has lengths")
    return sorted(windows, key=lambda one: one[0])


def _distribution(window: Any, names: tuple[str, ...]) -> Drawn | None:
    """`{tokens: probability}` written as a dict of Python: read as data."""
    text = next((window[name] for name in names if name in window), None) if isinstance(window, dict) else None
    if not isinstance(text, str):
        raise RowFault(f"it has no {names[0]}")
    inner = text.strip().removeprefix("{").removesuffix("}").strip()
    values, weights, end = [], [], 0
    while end < len(inner):
        match = _ENTRY.match(inner, end)
        if match is None:
            raise RowFault(f"{names[0]} is no dict of tokens and probabilities near {inner[end : end + 20]!r}")
        values.append(int(match[1]))
        try:
            weights.append(float(match[2]))
        except ValueError:
            raise RowFault(f"{names[0]} has the probability {match[2]}") from None
        end = match.end()
    share = np.array(weights)
    kept = np.array(values, dtype=np.int64)
    if not values:
        return None
    if not np.isfinite(share).all() or share.min() < 0 or kept.max() > MOST_TOKENS:
        raise RowFault(f"{names[0]} has a probability below zero, or a length out of range")
    share[kept == 0] = 0.0
    if share.sum() <= 0:
        return None
    return kept, np.cumsum(share / share.sum())


def _pick(drawn: Drawn, u: float) -> int:
    values, cumulative = drawn
    return int(values[min(int(np.searchsorted(cumulative, u, side="right")), len(values) - 1)])


__all__ = ["GIVE", "NAME", "clients", "rows"]
