"""`vllm bench serve --save-result --save-detailed`: one JSON object, the requests as lists side by side, in seconds.

`start_times` are of a clock whose zero nobody knows; older releases write neither these nor `latencies`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from ...errors import Failure, LogError
from ...records import Flag, InputTokens, OutputTokens, Record
from .entry import Entry, Foreign, make_record, ns

TOOL = "vllm bench serve"
NO_STARTS = "the log does not say when requests were sent: there are latencies, and no rates but the tool's own"


def recognises(document: Any) -> bool:
    return (
        isinstance(document, Mapping)
        and "mean_ttft_ms" in document
        and "num_prompts" in document
        and "total_input_tokens" in document
    )


def read(documents: Sequence[Entry]) -> Foreign:
    records: list[Record] = []
    durations: dict[int, float] = {}
    for step, one in enumerate(documents, 1):
        if one.get("ttfts") is None:
            raise LogError(
                f"{one.where} holds the summary of a vllm bench run and no requests",
                "run it again with --save-result --save-detailed",
            )
        records += side_by_side(one, step)
        if (duration := one.number("duration")) is not None:
            durations[step] = duration
    return Foreign(
        tool=TOOL,
        records=records,
        model=documents[0].text("model_id"),
        durations_s=durations,
        notes=(NO_STARTS,) if any("untimed" in r.flags for r in records) else (),
    )


def side_by_side(one: Entry, step: int) -> list[Record]:
    """The requests of an object that holds their figures in lists, as `vllm bench` and SGLang write it."""
    ttfts = one.items("ttfts") or []
    n = len(ttfts)
    lists = {
        key: one.items(key, n) for key in ("itls", "input_lens", "output_lens", "latencies", "start_times", "errors")
    }
    for key in ("itls", "output_lens"):
        if lists[key] is None:
            raise one.fault(f"{key} is missing")
    rows = [
        Entry(
            f"{one.where} request {i + 1}", {"ttft": ttfts[i], **{k: v[i] for k, v in lists.items() if v is not None}}
        )
        for i in range(n)
    ]
    starts = [start for row in rows if (start := _start(row)) is not None]
    zero = min(starts, default=0.0)
    concurrency = one.count("max_concurrency") or 0
    return [_record(row, f"{step}-{i}", step, concurrency, zero, untimed=not starts) for i, row in enumerate(rows, 1)]


def _start(row: Entry) -> float | None:
    """0 stands for never, where the request failed."""
    start = row.number("start_times")
    return None if start == 0 and not row.count("output_lens") else start


def _record(row: Entry, name: str, step: int, concurrency: int, zero: float, *, untimed: bool) -> Record:
    error, count = row.text("errors"), row.count("output_lens")
    start, ttft, latency = _start(row), row.number("ttft"), row.number("latencies")
    failed = bool(error) or not count
    lines = [line for line in (error or "").splitlines() if line.strip()]
    gaps = row.numbers("itls") or []
    sent = 0 if untimed else ns(start - zero) if start is not None else None
    first = sent + ns(ttft) if sent is not None and ttft else None
    stamps = (
        None if first is None or sent is None or ttft is None else [sent + ns(t) for t in accumulate([ttft, *gaps])]
    )
    last = sent + ns(latency) if sent is not None and latency else stamps[-1] if stamps else None
    flags: tuple[Flag, ...] = ("untimed",) if untimed else ()
    return make_record(
        row,
        name=name,
        step=step,
        concurrency=concurrency,
        sent_ns=sent,
        first_ns=first,
        last_ns=last if stamps or not failed else None,
        event_ns=stamps,
        tokens_in=InputTokens(local=row.count("input_lens")),
        tokens_out=OutputTokens(count=None if failed and not count else count),
        outcome="error" if failed else "ok",
        error=Failure("server", (lines[-1].strip() if lines else "not told")[:500]) if failed else None,
        flags=flags,
    )
