"""Records of a known load beside what the server said of itself → how wrong the records were. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...records import Record

Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

_ID = re.compile(rb'"id":"([^"]+)"')
_ARRIVAL = re.compile(rb'"arrival_ns":(\d+)')
_SENT = re.compile(rb" M(\d{19}) I")


class Heard(NamedTuple):
    """What the ground-truth server said in one answer, in ns of CLOCK_MONOTONIC: when the request reached it, and when
    it sent each token."""

    arrival_ns: int
    sent_ns: Int64


def heard(parts: Sequence[bytes]) -> tuple[str, Heard] | None:
    """(answer's id, what it said) from the pieces of its body; None where it never began."""
    body = b"".join(parts)
    rid, arrival = _ID.search(body), _ARRIVAL.search(body)
    if rid is None or arrival is None:
        return None
    stamps = np.array(_SENT.findall(body), dtype="S19").astype(np.int64)
    return rid[1].decode(), Heard(int(arrival[1]), stamps)


@dataclass(frozen=True, slots=True)
class Spread:
    """n values in µs: median, 99th percentile, largest."""

    n: int
    p50: float
    p99: float
    max: float


def spread(values_ns: Int64) -> Spread | None:
    """None without values."""
    if not len(values_ns):
        return None
    p50, p99 = np.percentile(values_ns, (50, 99)) / 1e3
    return Spread(len(values_ns), float(p50), float(p99), float(values_ns.max()) / 1e3)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of many answers, shape (n,) each, in ns: when the server sent them (CLOCK_MONOTONIC), how late the
    record's stamp was, and how late it said that it may be, -1 where it claimed to be exact."""

    sent_ns: Int64
    error_ns: Int64
    bound_ns: Int64

    def where(self, mask: Bools) -> Tokens:
        return Tokens(self.sent_ns[mask], self.error_ns[mask], self.bound_ns[mask])


def token_errors(records: Iterable[Record], said: Mapping[str, Heard], zero_ns: int) -> Tokens:
    """Every token that is both in a record and in what the server said."""
    sent, errors, bounds = [], [], []
    for record in records:
        truth = said.get(record.server_id or "")
        if truth is None or record.events is None or record.sent_ns is None:
            continue
        stamps = zero_ns + record.sent_ns + 1000 * np.cumsum(np.array(record.events.gap_us, dtype=np.int64))
        bound = np.full(len(stamps), -1, dtype=np.int64)
        for index, bound_us in record.events.bounded:
            bound[index] = 1000 * bound_us
        n = min(len(stamps), len(truth.sent_ns))  # an answer that was cut may have been heard further
        sent.append(truth.sent_ns[:n])
        errors.append(stamps[:n] - truth.sent_ns[:n])
        bounds.append(bound[:n])
    empty = np.zeros(0, dtype=np.int64)
    return Tokens(*(np.concatenate(parts) if parts else empty for parts in (sent, errors, bounds)))


@dataclass(frozen=True, slots=True)
class StampErrors:
    """Arrival stamps against the server's own. `exact` are the tokens whose stamp claimed to be exact, the others have
    a bound: `covered` is the share of these whose stamp was no later than their bound says, beside what an exact stamp
    may err (its p99), `bound_p99_us` the bound's own p99."""

    all: Spread | None
    exact: Spread | None
    exact_share: float
    covered: float | None
    bound_p99_us: float | None


def stamp_errors(tokens: Tokens) -> StampErrors:
    exact = tokens.bound_ns < 0
    spread_exact = spread(tokens.error_ns[exact])
    others = tokens.where(~exact)
    covered = bound = None
    if len(others.sent_ns):
        slack_ns = 1000 + (0 if spread_exact is None else 1e3 * spread_exact.p99)  # records round to 1 µs
        covered = float(np.mean(others.error_ns <= others.bound_ns + slack_ns))
        bound = float(np.percentile(others.bound_ns, 99)) / 1e3
    share = float(np.mean(exact)) if len(exact) else 0.0
    return StampErrors(spread(tokens.error_ns), spread_exact, share, covered, bound)


def ttft_errors(records: Iterable[Record], said: Mapping[str, Heard]) -> Spread | None:
    """The record's TTFT − the server's own (from the request's arrival there to its first token's send): the way there
    and back, and both ends' errors."""
    errors = [
        record.first_token_ns - record.sent_ns - (int(truth.sent_ns[0]) - truth.arrival_ns)
        for record in records
        if (truth := said.get(record.server_id or "")) is not None
        and record.first_token_ns is not None
        and record.sent_ns is not None
        and len(truth.sent_ns)
    ]
    return spread(np.array(errors, dtype=np.int64))


def wire_lags(records: Iterable[Record], said: Mapping[str, Heard], zero_ns: int) -> Spread | None:
    """When the request reached the server − when it was scheduled."""
    lags = [
        truth.arrival_ns - zero_ns - record.scheduled_ns
        for record in records
        if (truth := said.get(record.server_id or "")) is not None
    ]
    return spread(np.array(lags, dtype=np.int64))


def dispatch_lags(records: Iterable[Record]) -> Spread | None:
    """When the request was sent − when it was scheduled, by the client's own account."""
    lags = [record.sent_ns - record.scheduled_ns for record in records if record.sent_ns is not None]
    return spread(np.array(lags, dtype=np.int64))
