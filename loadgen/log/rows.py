"""What a packed row holds: the columns of a `Record`'s whole numbers and codes, in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np

from ..records import FLAGS, OUTCOMES, PHASES, TOKEN_SOURCES, Record, TimeoutKind
from .packed import NULL, Int64

UNKNOWN = -1  # of a code, an event's token count, an event's bound

TIMEOUTS: tuple[str, ...] = get_args(TimeoutKind)

CODES: dict[str, dict[str, int]] = {
    "phase": {name: i for i, name in enumerate(PHASES)},
    "outcome": {name: i for i, name in enumerate(OUTCOMES)},
    "source": {name: i for i, name in enumerate(TOKEN_SOURCES)},
    "timeout": {name: i for i, name in enumerate(TIMEOUTS)},
}
FLAG_BITS = {name: 1 << i for i, name in enumerate(FLAGS)}
INT64_FIELDS = (
    *("step", "concurrency", "worker", "flags", "status", "scheduled_ns", "sent_ns", "first_byte_ns"),
    *("first_token_ns", "first_content_ns", "last_token_ns", "done_ns", "input_asked", "input_local", "input_server"),
    *("input_cached", "output_asked", "output_count", "first_event_tokens", "sent_bound_us", "choices"),
    *("retries", "session", "turn", "shared_low", "shared_high"),
)


# A row, flat: these, the parts of the connect time, model and peer, the codes, whether events were logged, how many.
ROW = (*INT64_FIELDS, "dns_us", "tcp_us", "tls_us", "model", "peer", *CODES, "has_events", "events")
AT = {name: place for place, name in enumerate(ROW)}
# Stamps are packed as differences from one that is near, or from scheduled_ns where that is NULL.
NEAR = dict.fromkeys(("sent_ns", "first_byte_ns", "first_token_ns", "last_token_ns"), "scheduled_ns")
NEAR |= {"first_content_ns": "first_token_ns", "done_ns": "last_token_ns"}


def flag_bits(flags: Sequence[str]) -> int:
    """Flags by name → bit i for records.FLAGS[i]; a newer version's are not known here."""
    bits = 0
    for flag in flags:
        bits |= FLAG_BITS.get(flag, 0)
    return bits


def reference(name: str, rows: Mapping[str, Int64]) -> Int64 | None:
    """What this column's values are packed as differences from; None: packed as they are."""
    if name not in NEAR:
        return None
    near = rows[NEAR[name]]
    return near if NEAR[name] == "scheduled_ns" else np.where(near == NULL, rows["scheduled_ns"], near)


def numbers_of(r: Record) -> tuple[int | None, ...]:
    """The values of INT64_FIELDS, in that order."""
    return (
        r.step,
        r.concurrency,
        r.worker,
        flag_bits(r.flags),
        r.status,
        r.scheduled_ns,
        r.sent_ns,
        r.first_byte_ns,
        r.first_token_ns,
        r.first_content_ns,
        r.last_token_ns,
        r.done_ns,
        r.input_tokens.asked,
        r.input_tokens.local,
        r.input_tokens.server,
        r.input_tokens.cached,
        r.output_tokens.asked,
        r.output_tokens.count,
        r.first_event_tokens,
        r.sent_bound_us,
        r.output_tokens.choices,
        max(0, len(r.attempts) - 1),
        r.session,
        r.turn,
        *(r.shared or (None, None)),
    )
