"""GuideLLM's `benchmarks.json`: the requests of each benchmark by how they ended, with wall times in seconds.

It keeps the first and the last token's time and no others: there are no gaps, hence no ITL and no inter-chunk times.
Its `sample_size` may have left requests out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import Failure, LogError
from ...records import InputTokens, Outcome, OutputTokens, Record
from .entry import Entry, Foreign, make_record, ns

TOOL = "guidellm"
_OUTCOMES: dict[str, Outcome] = {"successful": "ok", "errored": "error", "incomplete": "cut"}
_BY_SCHEDULE = {"constant", "poisson", "trace", "replay"}  # the others send as soon as they can


def recognises(document: Any) -> bool:
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    return isinstance(metadata, Mapping) and "guidellm_version" in metadata and "benchmarks" in document


def read(documents: Sequence[Entry]) -> Foreign:
    whole = documents[0]
    backend = whole.object("config").object("spec").object("backend")
    log = Foreign(
        TOOL,
        [],
        version=whole.object("metadata").text("guidellm_version"),
        model=backend.text("model"),
        url=backend.text("target"),
        notes=("the log keeps no token's time but the first and the last: ITL cannot be told",),
    )
    rows: list[tuple[int, int, bool, Outcome, Entry]] = []
    for step, value in enumerate(whole.items("benchmarks") or (), 1):
        one = Entry(f"{whole.where} benchmark {step}", value)
        strategy = one.object("config").object("strategy")
        concurrency = strategy.count("streams") or 0
        by_schedule = strategy.text("type_") in _BY_SCHEDULE
        if (duration := one.number("duration")) is not None:
            log.durations_s[step] = duration
        requests = one.object("requests")
        if not requests.value:
            raise LogError(f"{one.where} holds no requests", "run it again with the output kind json")
        for kind, outcome in _OUTCOMES.items():
            for i, request in enumerate(requests.items(kind) or (), 1):
                rows.append((step, concurrency, by_schedule, outcome, Entry(f"{one.where} {kind} {i}", request)))
    starts = [start for *_, row in rows if (start := row.object("info").object("timings").number("request_start"))]
    zero = min(starts, default=0.0)
    log.epoch_ns = ns(zero) if zero else None
    log.records = [_record(*row, zero=zero, number=i) for i, row in enumerate(rows, 1)]
    # The order of the log is that of ending; ours is that of sending.
    log.records.sort(key=lambda r: r.scheduled_ns if r.sent_ns is None else r.sent_ns)
    return log


def _record(
    step: int, concurrency: int, by_schedule: bool, outcome: Outcome, row: Entry, *, zero: float, number: int
) -> Record:
    info = row.object("info")
    timings = info.object("timings")

    def at(key: str) -> int | None:
        seconds = timings.number(key)
        return None if seconds is None else ns(seconds - zero)

    error = info.get("error")
    failure = Failure("server", str(error or "not told")[:500]) if outcome == "error" else None
    return make_record(
        row,
        name=row.text("request_id") or str(number),
        step=step,
        concurrency=concurrency,
        sent_ns=at("request_start"),
        first_ns=at("first_token_iteration"),
        last_ns=at("last_token_iteration"),
        done_ns=at("request_end"),
        scheduled_ns=at("targeted_start") if by_schedule else None,
        tokens_in=InputTokens(
            server=row.object("input_metrics").count("total_tokens"),
            cached=row.object("input_metrics").count("cached_tokens"),
        ),
        tokens_out=OutputTokens(count=row.object("output_metrics").count("total_tokens")),
        outcome=outcome,
        error=failure,
    )
