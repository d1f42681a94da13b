"""inference-perf's `per_request_lifecycle_metrics.json`: a list of requests, with every chunk as it came and its time.

Times are in seconds on a clock whose zero nobody knows. `output_token_times` has a chunk's time once for each token
that the tool's tokenizer finds in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from ...errors import Failure
from ...records import InputTokens, OutputTokens, Record
from .entry import Entry, Foreign, make_record, ns

TOOL = "inference-perf"


def recognises(document: Any) -> bool:
    first = document[0] if isinstance(document, list) and document else None
    return isinstance(first, Mapping) and {"start_time", "end_time", "info"} <= first.keys()


def read(documents: Sequence[Entry]) -> Foreign:
    whole = documents[0]
    rows = [Entry(f"{whole.where} request {i}", one) for i, one in enumerate(whole.value, 1)]
    zero = min(row.must("start_time") for row in rows)
    records = [_record(row, zero, i) for i, row in enumerate(rows, 1)]
    records.sort(key=lambda r: r.scheduled_ns)
    return Foreign(TOOL, records, model=next((r.model for r in records if r.model), None))


def _record(row: Entry, zero: float, number: int) -> Record:
    sent, done = ns(row.must("start_time") - zero), ns(row.must("end_time") - zero)
    info = row.object("info")
    answer = info.object("response_metrics")
    usage = answer.object("server_usage")
    asked = _json(row.text("request"))
    times, finish = _chunks(answer)
    per_chunk = Counter(answer.numbers("output_token_times") or ())
    stamps = [ns(time - zero) for time in times]
    counted = answer.count("output_tokens")
    completion = usage.count("completion_tokens")
    error = row.get("error")
    return make_record(
        row,
        name=str(number),
        step=1,
        concurrency=0,
        sent_ns=sent,
        first_ns=stamps[0] if stamps else None,
        last_ns=stamps[-1] if stamps else None,
        done_ns=done,
        event_ns=stamps or None,
        event_tokens=[per_chunk.get(time) for time in times],
        tokens_in=InputTokens(local=info.count("input_tokens"), server=usage.count("prompt_tokens")),
        tokens_out=OutputTokens(
            asked=Entry(row.where, asked).count("max_tokens"),
            count=counted if completion is None else completion,
            source="usage" if completion is not None else "tokenizer" if counted is not None else None,
        ),
        outcome="ok" if error is None else "error",
        error=None if error is None else _failure(error),
        finish_reason=finish,
        model=_text(asked.get("model")),
    )


def _chunks(answer: Entry) -> tuple[list[float], str | None]:
    """The times of the chunks that carry output, and the finish reason."""
    times = answer.numbers("chunk_times") or []
    chunks = answer.items("response_chunks", len(times)) if times else None
    if chunks is None:
        return list(dict.fromkeys(answer.numbers("output_token_times") or [])), None
    found, finish = [], None
    for time, text in zip(times, chunks, strict=True):
        choices = _json(text).get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
        delta = choice.get("delta")
        said = delta if isinstance(delta, Mapping) else {}
        if any(
            (
                choice.get("text"),
                *(said.get(key) for key in ("content", "reasoning", "reasoning_content", "tool_calls")),
            )
        ):
            found.append(time)
        finish = _text(choice.get("finish_reason")) or finish
    return found, finish


def _json(text: object) -> Mapping[str, Any]:
    """What is not JSON, or no object, tells nothing."""
    try:
        value = orjson.loads(text) if isinstance(text, str) else None
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _failure(error: object) -> Failure:
    told = error if isinstance(error, Mapping) else {"error_msg": str(error)}
    return Failure("server", str(told.get("error_msg") or told.get("error_type") or "not told")[:500])
