"""`export --format vllm`: a step as `vllm bench serve --save-detailed` would have written it. Pure.

Its figures are by vLLM's definitions, as are its names. The texts of the answers are in no log, and are empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import Any

from ..analysis.conventions import Counted
from ..records import LEFT_OUT_OUTCOMES, Record


def vllm_requests(records: Sequence[Record], step: int) -> list[Record]:
    """The requests of a step that vLLM would have listed: the measured ones, failed ones too."""
    return [r for r in records if r.step == step and r.phase == "measured" and r.outcome not in LEFT_OUT_OUTCOMES]


def vllm_object(
    records: Sequence[Record], counted: Counted, manifest: Mapping[str, Any] | None, rate: float | None
) -> dict[str, Any]:
    """`records` are those of `vllm_requests`, `counted` the same step by vLLM's definitions, `rate` that of an open
    loop in requests/s. Times are in seconds; what the log does not tell is null."""
    manifest = manifest or {}
    server, anchor = manifest.get("server"), manifest.get("started_epoch_ns")
    started = datetime.fromtimestamp(anchor / 1e9, UTC) if isinstance(anchor, int) else None
    untimed = any("untimed" in r.flags for r in records)
    good = [r.outcome in ("ok", "incomplete") for r in records]
    inputs = [
        next((n for n in (r.input_tokens.server, r.input_tokens.local, r.input_tokens.asked) if n is not None), None)
        for r in records
    ]
    outputs = [(r.output_tokens.count if fine else 0) for r, fine in zip(records, good, strict=True)]
    result: dict[str, Any] = {
        "date": started.strftime("%Y%m%d-%H%M%S") if started else None,
        "endpoint_type": None,
        "backend": None,
        "label": "loadgen",
        "model_id": server.get("model") if isinstance(server, Mapping) else None,
        "tokenizer_id": None,
        "num_prompts": len(records),
        "request_rate": rate if rate is not None else "inf",
        "burstiness": None,
        "max_concurrency": records[0].concurrency or None if records else None,
        "duration": counted.duration_s,
        "completed": counted.completed,
        "failed": counted.failed,
        "total_input_tokens": sum(n or 0 for n, fine in zip(inputs, good, strict=True) if fine),
        "total_output_tokens": sum(n or 0 for n in outputs),
        "request_throughput": counted.request_throughput,
        "request_goodput": None,
        "output_throughput": counted.output_throughput,
        "total_token_throughput": counted.total_throughput,
        "input_lens": inputs,
        "output_lens": outputs,
        "ttfts": [_seconds(r.sent_ns, r.first_token_ns, fine) for r, fine in zip(records, good, strict=True)],
        "itls": [_gaps(r) if fine else [] for r, fine in zip(records, good, strict=True)],
        "latencies": [_seconds(r.sent_ns, r.last_token_ns, fine) for r, fine in zip(records, good, strict=True)],
        "start_times": None if untimed else [None if r.sent_ns is None else r.sent_ns / 1e9 for r in records],
        "generated_texts": [""] * len(records),
        "errors": ["" if fine else _error(r) for r, fine in zip(records, good, strict=True)],
    }
    for figure in counted.figures:
        for name, value in (
            ("mean", figure.mean),
            ("median", figure.median),
            ("std", figure.std),
            ("p99", figure.p99),
        ):
            result[f"{name}_{figure.term}_ms"] = value
    return {key: value for key, value in result.items() if not (key == "start_times" and value is None)}


def _seconds(start: int | None, end: int | None, fine: bool) -> float:
    """vLLM writes 0 for what never came."""
    return (end - start) / 1e9 if fine and start is not None and end is not None else 0.0


def _gaps(record: Record) -> list[float]:
    """Between the events from the first token to the last: vLLM knows no others."""
    events, sent, first, last = record.events, record.sent_ns, record.first_token_ns, record.last_token_ns
    if events is None or sent is None or first is None or last is None:
        return []
    low, high = (first - sent) / 1000 - 1, (last - sent) / 1000 + 1
    stamps = [at for at in accumulate(events.gap_us) if low <= at <= high]
    return [(b - a) / 1e6 for a, b in pairwise(stamps)]


def _error(record: Record) -> str:
    return f"{record.error.kind}: {record.error.message}" if record.error else record.outcome
