"""AIPerf's `profile_export.jsonl`: a line a request, wall times in ns, figures each with their unit.

`credit_issued_ns` is when the request was due. Its start lies before the connection is opened, where there was none:
in its TTFT, unlike ours, that is included, and it cannot be told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any

from ...errors import Failure, LogError
from ...records import InputTokens, OutputTokens, Record
from .entry import Entry, Foreign, make_record

TOOL = "aiperf"
_TO_NS = {"ns": 1, "us": 1e3, "ms": 1e6, "sec": 1e9, "s": 1e9}


def recognises(document: Any) -> bool:
    if not isinstance(document, Mapping):
        return False
    metadata = document.get("metadata")
    return "aiperf_version" in document or (isinstance(metadata, Mapping) and "request_start_ns" in metadata)


def read(documents: Sequence[Entry]) -> Foreign:
    if documents[0].get("aiperf_version") is not None:
        raise LogError(
            f"{documents[0].where} holds the summary of an AIPerf run and no requests",
            "give the profile_export.jsonl that lies beside it",
        )
    starts = [one.object("metadata").count("request_start_ns") for one in documents]
    zero = min((start for start in starts if start), default=0)
    records = [_record(one, zero, i) for i, one in enumerate(documents, 1)]
    late = "a request's start lies before its connection is opened: TTFT includes that"
    return Foreign(TOOL, records, notes=(late,), epoch_ns=zero or None)


def add_summary(log: Foreign, summary: Entry) -> None:
    """Take from `profile_export_aiperf.json`, which lies beside, what the requests do not tell: the version, the model,
    the address, and the time between start and end of the whole phase, by which the tool divides."""
    if summary.get("aiperf_version") is None:
        return
    log.version = summary.text("aiperf_version")
    config = summary.object("input_config")
    model, *_ = config.object("models").items("items") or [None]
    url, *_ = config.object("endpoint").items("urls") or [None]
    log.model = model["name"] if isinstance(model, Mapping) and isinstance(model.get("name"), str) else None
    log.url = url if isinstance(url, str) else None
    start, end = summary.text("start_time"), summary.text("end_time")
    if start and end:
        try:
            log.durations_s[1] = (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
        except (ValueError, TypeError):
            raise summary.fault(f"start_time and end_time are {start[:40]!r} and {end[:40]!r}, not times") from None


def _record(one: Entry, zero: int, number: int) -> Record:
    metadata, metrics, error = one.object("metadata"), one.object("metrics"), one.object("error")
    start = metadata.count("request_start_ns")
    sent = start - zero if start else None
    ttft, latency = _span(metrics, "time_to_first_token"), _span(metrics, "request_latency")
    first = None if sent is None or ttft is None else sent + round(ttft)
    gaps = metrics.object("inter_chunk_latency")
    factor = _factor(gaps)
    spans = gaps.numbers("value")
    events = (
        None
        if first is None or spans is None
        else [round(t) for t in accumulate([first, *(g * factor for g in spans)])]
    )
    due, end = metadata.count("credit_issued_ns"), metadata.count("request_end_ns")
    usage, own = (metrics.object(f"usage_{side}_tokens").count("value") for side in ("completion", "prompt"))
    counted = metrics.object("output_sequence_length").count("value")
    cancelled = metadata.get("was_cancelled") is True
    failed = one.get("error") is not None
    warmup = metadata.text("benchmark_phase") == "warmup"
    code = error.get("code")
    return make_record(
        one,
        name=metadata.text("x_request_id") or str(number),
        step=1,
        concurrency=0,
        sent_ns=sent,
        first_ns=first,
        last_ns=None if sent is None or latency is None else sent + round(latency),
        done_ns=end - zero if end else None,
        scheduled_ns=due - zero if due else None,
        event_ns=events,
        tokens_in=InputTokens(local=metrics.object("input_sequence_length").count("value"), server=own),
        tokens_out=OutputTokens(
            count=counted if usage is None else usage,
            source="usage" if usage is not None else "tokenizer" if counted is not None else None,
        ),
        outcome="cut" if cancelled else "error" if failed else "ok",
        error=Failure(
            "http" if isinstance(code, int) and code >= 300 else "server",
            (error.text("message") or error.text("type") or "not told")[:500],
            code if isinstance(code, int | str) else None,
        )
        if failed and not cancelled
        else None,
        phase="warmup" if warmup else "measured",
    )


def _span(metrics: Entry, key: str) -> float | None:
    """In ns."""
    one = metrics.object(key)
    value = one.number("value")
    return None if value is None else value * _factor(one)


def _factor(one: Entry) -> float:
    unit = one.text("unit") or "ms"
    if unit not in _TO_NS:
        raise one.fault(f"the unit of a time is {unit!r}")
    return _TO_NS[unit]
