"""Requests of a virtual run → the columns that a log has, so that everything after is the product's own."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..log.columns import UNKNOWN, ColumnBuilder, Columns
from ..records import InputTokens, OutputTokens, Record

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def columns_of(
    stamps_s: Floats,
    lengths: Ints,
    phases: NDArray[np.int8],
    step: int,
    concurrency: int,
    events: tuple[Ints, Floats, Ints] | None = None,
) -> Columns:
    """n requests that all went well, in order of their ends. `stamps_s` has shape (n, 3): sent, first token, end;
    `lengths` shape (n, 2): input and output tokens; `events` each chunk's row, time in s and tokens. Without events a
    request's tokens are spread over its answer."""
    order = np.argsort(stamps_s[:, 2], kind="stable")
    sent, first, done = np.rint(stamps_s[order].T * 1e9).astype(np.int64)
    prompt, output = lengths[order].T
    n = len(order)
    kept: dict[str, Any] = {}
    like = _like()
    for field in fields(like):
        value = getattr(like, field.name)
        if field.name == "event_offsets":
            continue
        if isinstance(value, np.ndarray) and len(value) == 1:
            kept[field.name] = np.repeat(value, n, axis=0)
        elif field.name == "errors":
            kept["errors"] = [None] * n
        else:
            kept[field.name] = value
    kept |= {"step": np.full(n, step), "concurrency": np.full(n, concurrency), "phase": phases[order]}
    kept |= {"scheduled_ns": sent, "sent_ns": sent, "first_byte_ns": first, "first_token_ns": first}
    kept |= {"first_content_ns": first, "last_token_ns": done, "done_ns": done}
    kept |= {"input_asked": prompt, "output_asked": output, "output_count": output}
    kept["event_offsets"] = np.zeros(n + 1, np.int64)
    if events is not None:
        kept |= _events(order, *events)
    return Columns(**kept)


def _events(order: Ints, rows: Ints, seconds: Floats, tokens: Ints) -> dict[str, Any]:
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    rows = place[rows]
    by_row = np.argsort(rows, kind="stable")
    counts = np.bincount(rows, minlength=len(order))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    carried = tokens[by_row].astype(np.int32)
    return {
        "event_offsets": offsets,
        "event_ns": np.rint(seconds[by_row] * 1e9).astype(np.int64),
        "event_tokens": carried,
        "event_bound_us": np.full(len(rows), UNKNOWN, np.int32),
        "has_events": counts > 0,
        "first_event_tokens": carried[offsets[:-1]].astype(np.int64),
    }


@cache
def _like() -> Columns:
    """One request that went well, for all that is the same in every row."""
    builder = ColumnBuilder(ids=False)
    builder.add(
        Record(
            id="", step=1, concurrency=1, phase="measured", worker=0, scheduled_ns=0, sent_ns=0, connect=None,
            first_byte_ns=1, first_token_ns=1, first_content_ns=1, last_token_ns=2, done_ns=2,
            input_tokens=InputTokens(1), output_tokens=OutputTokens(1, 1, "usage"), first_event_tokens=1, events=None,
            outcome="ok", status=200,
        )
    )  # fmt: skip
    return builder.columns()
