"""Records as Parquet: a row a request, typed, times in integer nanoseconds of the run's clock, null where not known.

Needs pyarrow, which the extra `parquet` brings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, BinaryIO

from ..errors import UsageError
from ..records import Record
from .formats import selected

GROUP_ROWS = 10_000

# Column → its Arrow type. Lists hold a value for each output event.
COLUMNS: dict[str, str] = {
    "request_id": "string",
    "step": "int64",
    "concurrency": "int64",
    "phase": "string",
    "outcome": "string",
    "scheduled_ns": "int64",
    "sent_ns": "int64",
    "first_byte_ns": "int64",
    "first_token_ns": "int64",
    "first_content_ns": "int64",
    "last_token_ns": "int64",
    "done_ns": "int64",
    "input_tokens": "int64",
    "input_asked_tokens": "int64",
    "input_local_tokens": "int64",
    "input_server_tokens": "int64",
    "cached_tokens": "int64",
    "output_tokens": "int64",
    "output_asked_tokens": "int64",
    "token_source": "string",
    "first_event_tokens": "int64",
    "ttft_ms": "double",
    "tpot_ms": "double",
    "e2e_ms": "double",
    "event_gap_us": "list",
    "event_tokens": "list",
    "status": "int64",
    "finish_reason": "string",
    "error_kind": "string",
    "error_message": "string",
    "flags": "string",
    "peer": "string",
    "model": "string",
    "source_id": "string",
    "session": "int64",
    "turn": "int64",
}


def write_parquet(records: Iterable[Record], out: BinaryIO, *, everything: bool = False) -> int:
    """Write the rows in groups of GROUP_ROWS; → their number. UsageError where pyarrow is missing."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageError(
            "Parquet is written by pyarrow, which is not installed", "pip install 'loadgen[parquet]'"
        ) from None

    types = {"list": pyarrow.list_(pyarrow.int64()), "double": pyarrow.float64()}
    schema = pyarrow.schema([(name, types.get(kind) or getattr(pyarrow, kind)()) for name, kind in COLUMNS.items()])
    count = 0
    with parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        group: list[dict[str, Any]] = []
        for record in selected(records, everything=everything):
            group.append(row(record))
            count += 1
            if len(group) == GROUP_ROWS:
                writer.write_table(pyarrow.Table.from_pylist(group, schema))
                group.clear()
        if group:
            writer.write_table(pyarrow.Table.from_pylist(group, schema))
    return count


def row(r: Record) -> dict[str, Any]:
    """The values of COLUMNS."""
    tokens_in, tokens_out, events = r.input_tokens, r.output_tokens, r.events
    later = None if tokens_out.count is None else tokens_out.count - (r.first_event_tokens or 1)
    decode = _ms(r.first_token_ns, r.last_token_ns)
    return {
        "request_id": _plain(r.id),
        "step": r.step,
        "concurrency": r.concurrency,
        "phase": r.phase,
        "outcome": r.outcome,
        "scheduled_ns": r.scheduled_ns,
        "sent_ns": r.sent_ns,
        "first_byte_ns": r.first_byte_ns,
        "first_token_ns": r.first_token_ns,
        "first_content_ns": r.first_content_ns,
        "last_token_ns": r.last_token_ns,
        "done_ns": r.done_ns,
        "input_tokens": next((n for n in (tokens_in.server, tokens_in.local, tokens_in.asked) if n is not None), None),
        "input_asked_tokens": tokens_in.asked,
        "input_local_tokens": tokens_in.local,
        "input_server_tokens": tokens_in.server,
        "cached_tokens": tokens_in.cached,
        "output_tokens": tokens_out.count,
        "output_asked_tokens": tokens_out.asked,
        "token_source": tokens_out.source,
        "first_event_tokens": r.first_event_tokens,
        "ttft_ms": _ms(r.sent_ns, r.first_token_ns),
        "tpot_ms": decode / later if decode is not None and later is not None and later >= 1 else None,
        "e2e_ms": _ms(r.sent_ns, r.last_token_ns),
        "event_gap_us": None if events is None else events.gap_us,
        "event_tokens": None if events is None else events.tokens,
        "status": r.status,
        "finish_reason": _plain(r.finish_reason),
        "error_kind": r.error.kind if r.error else None,
        "error_message": _plain(r.error.message) if r.error else None,
        "flags": " ".join(r.flags),
        "peer": _plain(r.peer),
        "model": _plain(r.model),
        "source_id": _plain(r.source_id),
        "session": r.session,
        "turn": r.turn,
    }


def _ms(start: int | None, end: int | None) -> float | None:
    return None if start is None or end is None else (end - start) / 1e6


def _plain(text: str | None) -> str | None:
    """UTF-8 cannot hold a lone surrogate, which a server may have sent."""
    return None if text is None else text.encode("utf-8", "replace").decode()
