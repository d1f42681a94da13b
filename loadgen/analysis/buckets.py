"""Latency and throughput by what requests were like: how long, at which load, when, and of which model, address, turn
or cached share. Pure.

Numbers are sorted into buckets by powers of two: 512–1,023 tokens is one. A cached share of s lies in (1/2, 1],
(1/4, 1/2] and so on; time is that since the run's start, in seconds. A bucket's figures are those of the measured ok
requests in it, and are established from an effective sample of `LEAST` on; a percentile's own interval asks for more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..log.columns import NULL, Columns, Int64
from ..records import FAILED_OUTCOMES
from ..results import Distribution, StepSummary
from . import metrics
from .caching import cached_counts
from .summary import latencies, request_latencies
from .window import has_outcome, is_phase

LEAST = 30  # effective requests
JUDGED = ("ttft", "tpot", "e2e")
NONE = -1  # a code: the request does not tell
_RATES = 1 << 16  # codes around this are of rates: above those of counts, and rising with the rate
AXES = ("input", "output", "concurrency", "time", "model", "peer", "turn", "cached")
UNITS = {
    "input": "input tokens",
    "output": "output tokens",
    "concurrency": "concurrent",
    "time": "since the start",
    "model": "model",
    "peer": "peer",
    "turn": "turn",
    "cached": "cached share",
}


@dataclass(frozen=True, slots=True)
class Bucket:
    """One cell of the table. `labels` by axis, in the order asked for. Shares are of all measured ok requests, and of
    their output tokens. `n_effective` is the smallest of the medians of TTFT, TPOT and E2E in each step, added up, by
    which `established` is judged; `latency` is by metric, in ms."""

    labels: Mapping[str, str]
    sent: int
    ok: int
    failed: int
    request_share: float
    token_share: float | None
    n_effective: float
    latency: Mapping[str, Distribution]

    @property
    def established(self) -> bool:
        return self.n_effective >= LEAST


def by_buckets(c: Columns, axes: Sequence[str], summaries: Sequence[StepSummary]) -> list[Bucket]:
    """All buckets that hold a measured request, in rising order of the axes. `summaries` tell the load of each step."""
    measured = c.where(is_phase(c, "measured"))
    if not len(measured) or not axes:
        return []
    turnover = {s.step: max(1, s.concurrency or round(s.concurrency_mean or 1)) for s in summaries}
    rates = {s.step: s.rate for s in summaries if s.rate}
    coded = [_load(measured, rates) if axis == "concurrency" else _AXES[axis](measured) for axis in axes]
    codes = np.stack([code for code, _ in coded], axis=1)
    cells, cell_of = np.unique(codes, axis=0, return_inverse=True)
    cell_of = cell_of.reshape(-1)
    ok_rows = has_outcome(measured, "ok")
    tokens = np.where(measured.output_count == NULL, 0, measured.output_count)
    all_tokens, all_ok = int(tokens[ok_rows].sum()), int(ok_rows.sum())
    found = []
    for number, cell in enumerate(cells):
        inside = cell_of == number
        mine = measured.where(inside)
        ok = mine.where(has_outcome(mine, "ok"))
        # What shares a batch is spread over the buckets: of c in flight, this one's part.
        spread = max((turnover.get(int(step), 1) for step in np.unique(mine.step)), default=1)
        latency = latencies(ok, max(1, round(spread * len(mine) / len(measured))))
        found.append(
            Bucket(
                labels={axis: label(int(code)) for axis, (_, label), code in zip(axes, coded, cell, strict=True)},
                sent=len(mine),
                ok=len(ok),
                failed=int(has_outcome(mine, *FAILED_OUTCOMES).sum()),
                request_share=len(ok) / all_ok if all_ok else 0.0,
                token_share=int(tokens[inside & ok_rows].sum()) / all_tokens if all_tokens else None,
                n_effective=_effective(ok, turnover, len(mine) / len(measured)),
                latency=latency,
            )
        )
    return found


def _effective(ok: Columns, turnover: Mapping[int, int], share: float) -> float:
    """Effective requests of a bucket: the steps' own, added up, as it is their load that tells them apart."""
    total = 0.0
    for step in np.unique(ok.step):
        mine = ok.where(ok.step == step)
        found = request_latencies(mine, max(1, round(turnover.get(int(step), 1) * share)), JUDGED)
        medians = [q.n_effective for name in JUDGED if (q := found[name].at(50.0)) is not None]
        total += min(medians, default=0.0)
    return total


def power_codes(values: Int64) -> Int64:
    """Which power of two a count lies in: 0 → 0, 1 → 1, 2 and 3 → 2, 4 to 7 → 3, …; NULL → NONE."""
    known = np.maximum(values, 0)
    codes = np.where(known > 0, np.frexp(known.astype(np.float64))[1], 0)
    return np.where(values == NULL, NONE, codes).astype(np.int64)


def length_codes(c: Columns) -> Int64:
    """One code for input and output length together, by powers of two."""
    return power_codes(metrics.input_tokens(c)) * 128 + power_codes(_output(c))


Coded = tuple[Int64, Callable[[int], str]]


def _output(c: Columns) -> Int64:
    return np.where(c.output_count == NULL, c.output_asked, c.output_count)


def _counts(values: Callable[[Columns], Int64]) -> Callable[[Columns], Coded]:
    return lambda c: (power_codes(values(c)), _power)


def _power(code: int) -> str:
    if code == NONE:
        return "not told"
    low, high = (1 << code) >> 1, max((1 << code) - 1, 0)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _time(c: Columns) -> Coded:
    at = np.where(c.sent_ns == NULL, c.scheduled_ns, c.sent_ns) // 1_000_000_000
    codes = np.where(c.flag("untimed"), NONE, power_codes(np.maximum(at, 0)))
    return codes, lambda code: "not told" if code == NONE else f"{(1 << code) >> 1:,}–{max(1 << code, 1):,} s"


def _load(c: Columns, rates: Mapping[int, float]) -> Coded:
    """Requests in flight or, of an open loop, whose records have 0 there, the rate of the step, in requests/s."""
    codes = np.where(c.concurrency == 0, NONE, power_codes(c.concurrency))
    for step, rate in rates.items():
        codes = np.where((c.step == step) & (c.concurrency == 0), _RATES + int(np.frexp(rate)[1]), codes)
    return codes, lambda code: _power(code) if code < _RATES // 2 else _rate(code - _RATES)


def _rate(exponent: int) -> str:
    return f"{2.0 ** (exponent - 1):,g}–{2.0**exponent:,g} requests/s"


def _named(names: list[str], codes: Int64) -> Coded:
    return codes, lambda code: names[code] if 0 <= code < len(names) else "not told"


def _cached(c: Columns) -> Coded:
    counts, known = cached_counts(c)
    prompt = metrics.input_tokens(c)
    known = known & (prompt != NULL) & (prompt > 0)
    share = np.where(known & (counts > 0), counts / np.maximum(prompt, 1), 0.0)
    # frexp: a share of (1/4, 1/2] has the exponent -1 once it is put just below; below 1/8 is one bucket.
    exponents = np.frexp(np.nextafter(np.minimum(share, 1.0), 0.0))[1]
    codes = np.where(share > 0, np.maximum(exponents, -3) + 4, 0)
    names = ["none", "up to 1/8", "1/8–1/4", "1/4–1/2", "1/2–1"]
    return _named(names, np.where(known, codes, NONE).astype(np.int64))


_AXES: dict[str, Callable[[Columns], Coded]] = {
    "input": _counts(metrics.input_tokens),
    "output": _counts(_output),
    "time": _time,
    "model": lambda c: _named(c.models, c.model),
    "peer": lambda c: _named(c.peers, c.peer),
    "turn": _counts(lambda c: c.turn),
    "cached": _cached,
}
