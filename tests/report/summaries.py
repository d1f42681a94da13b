"""A small run with all there is to say: records by a closed form, summarised by the real analysis."""

from __future__ import annotations

import random

from loadgen.errors import Failure
from loadgen.records import Events, InputTokens, OutputTokens, Record
from loadgen.results import Observation, Window

TOKENS = 20


def record(
    name: str, step: int, concurrency: int, sent_ns: int, ttft_us: int, tpot_us: int, **change: object
) -> Record:
    last = sent_ns + (ttft_us + tpot_us * (TOKENS - 1)) * 1000
    first = sent_ns + ttft_us * 1000
    values: dict[str, object] = {
        "id": name,
        "step": step,
        "concurrency": concurrency,
        "phase": "measured",
        "worker": 0,
        "scheduled_ns": sent_ns,
        "sent_ns": sent_ns,
        "connect": None,
        "first_byte_ns": first,
        "first_token_ns": first,
        "first_content_ns": first,
        "last_token_ns": last,
        "done_ns": last,
        "input_tokens": InputTokens(asked=200, server=200),
        "output_tokens": OutputTokens(asked=TOKENS, count=TOKENS, source="usage"),
        "first_event_tokens": 1,
        "events": Events([ttft_us, *[tpot_us] * (TOKENS - 1)], [1] * TOKENS),
        "outcome": "ok",
        "finish_reason": "length",
        "status": 200,
    }
    return Record(**{**values, **change})  # type: ignore[arg-type]


BUSY = Failure("http", "the server is \x1b[31mbusy\nnow", 503)


def run_records(levels: tuple[int, ...] = (1, 8, 64), seed: int = 1) -> tuple[list[Record], list[Observation]]:
    """Per level c: 40·c requests (at least 200), TTFT about 20 + 4c ms, TPOT about 10 ms; at c = 64 each 40th fails."""
    rng = random.Random(seed)
    records: list[Record] = []
    observations: list[Observation] = []
    start = 0
    for step, c in enumerate(levels, 1):
        free = [start] * c
        count = max(200, 40 * c)
        area = 0
        for i in range(count):
            slot = i % c
            ttft = int((20 + 4 * c) * 1000 * rng.uniform(0.9, 1.1))
            change = {"outcome": "error", "error": BUSY, "status": 503} if c == 64 and i % 40 == 0 else {}
            one = record(f"s{step}-{i}", step, c, free[slot], ttft, int(10_000 * rng.uniform(0.95, 1.05)), **change)
            free[slot] = one.done_ns
            area += one.done_ns - (one.sent_ns or 0)
            records.append(one)
        end = max(free)
        observations.append(Observation(step, c, Window(start, end), area, c, "complete"))
        start = end + 10**9
    return records, observations
