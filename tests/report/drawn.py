"""A run with something for every chart, by a closed form: its log folder, seeded, of any size.

A server of 16 places: beyond that TTFT grows with the queue, and throughput does not. Lengths vary, one in forty
requests fails above 32 in flight, the server's metrics are read once a second, the client tells how it fared.
"""

from __future__ import annotations

import heapq
import random
from pathlib import Path
from typing import Any

from loadgen.errors import Failure
from loadgen.log.codec import stop_object
from loadgen.log.store import RunFolder
from loadgen.records import Events, InputTokens, OutputTokens, Record
from loadgen.results import ClientHealth, Estimate, Lag, Observation, ServerSample, Stop, Window

PLACES = 16
LEVELS = (1, 2, 4, 8, 16, 24, 32, 64)
HEALTH = ClientHealth(
    stamps="kernel",
    seconds=10.0,
    cpu_share=0.12,
    wait_share=0.01,
    loop_lag_us=Lag(100, 80.0, 900.0, 2000.0),
    read_lag_us=Lag(1000, 20.0, 150.0, 800.0),
)


def drawn_run(
    parent: Path,
    *,
    levels: tuple[int, ...] = LEVELS,
    each: int = 400,
    seed: int = 1,
    tokens: tuple[int, int] = (8, 40),
    failing: float = 1 / 40,
    models: tuple[str, ...] = (),
    message: str = "the server is busy",
    slower: float = 1.0,
    manifest: dict[str, Any] | None = None,
    name: str = "drawn",
) -> Path:
    """Write the run's folder into `parent`. `failing` is the share that fails above 32 in flight, at 1.0 at any load;
    `slower` stretches all times."""
    rng = random.Random(seed)
    with RunFolder.create(parent, name) as run:
        start = 0
        for step, c in enumerate(levels, 1):
            free = [start + i * 1_000_000 for i in range(c)]
            heapq.heapify(free)
            area = 0
            for i in range(each):
                sent = heapq.heappop(free)
                fails = failing >= 1 or (c > 32 and rng.random() < failing)
                one = _record(rng, f"s{step}-{i}", step, c, sent, tokens, slower, models, message if fails else None)
                heapq.heappush(free, one.done_ns)
                area += one.done_ns - sent
                run.append(one)
            end = max(free)
            for at in range(start, end, 1_000_000_000):
                values = {
                    "running": float(min(c, PLACES)),
                    "waiting": float(max(0, c - PLACES)),
                    "kv_use_share": min(c, 16) / 20,
                }
                run.append_server(ServerSample(at, 2000, step, "http://replica-1/metrics", values))
            window = Window(start, end) if end > start else None
            run.append_step(Observation(step, c, window, area, c, "complete", health=HEALTH))
            start = end + 1_500_000_000
        stop = Stop("slo:ttft_p95", 16, 24, Estimate(900, 880, 920), "", limit=16, band=(15.0, 17.5))
        run.write_manifest(
            {
                "status": "complete",
                "verb": "sweep",
                "started_epoch_ns": 1_796_000_000_000_000_000,
                "server": {"kind": "vllm", "version": "0.32.0", "model": "llama-3.1-8b", "context_length": 131072},
                "target": {"url": "http://gpu1:8000/v1/chat/completions"},
                "workload": {"kind": "shape", "text": "made text · in 32–2,000 · out 8–40", "seed": 7},
                "clock": {"source": "kernel"},
                "slo": {"objectives": ["ttft_p95=400ms", "tpot_p95=50ms"], "attainment": 0.95},
                "plan": {"max_error_rate": 0.01},
                "stop": stop_object(stop) if len(levels) > 4 else None,
                **(manifest or {}),
            }
        )
    return run.path


def _record(
    rng: random.Random,
    name: str,
    step: int,
    c: int,
    sent: int,
    tokens: tuple[int, int],
    slower: float,
    models: tuple[str, ...],
    failure: str | None,
) -> Record:
    busy = min(c, PLACES)
    prompt, n = int(rng.lognormvariate(5.6, 0.9)) + 32, rng.randint(*tokens)
    gap = (12 + 0.4 * busy) * slower
    queue = max(0, c - PLACES) / PLACES * n * gap
    ttft = (20 + prompt * 0.04 * (1 + busy / 16) + queue) * rng.uniform(0.85, 1.2) * slower
    gaps = [int(1000 * gap * rng.uniform(0.9, 1.1) * (6 if rng.random() < 0.003 else 1)) for _ in range(n - 1)]
    first = sent + int(ttft * 1e6)
    last = first + sum(gaps) * 1000
    values: dict[str, Any] = {
        "id": name,
        "step": step,
        "concurrency": c,
        "phase": "measured",
        "worker": 0,
        "scheduled_ns": sent,
        "sent_ns": sent,
        "connect": None,
        "first_byte_ns": first,
        "first_token_ns": first,
        "first_content_ns": first,
        "last_token_ns": last,
        "done_ns": last,
        "input_tokens": InputTokens(asked=prompt, server=prompt),
        "output_tokens": OutputTokens(asked=n, count=n, source="usage"),
        "first_event_tokens": 1,
        "events": Events([int(ttft * 1000), *gaps], [1] * n),
        "outcome": "ok",
        "finish_reason": "length",
        "status": 200,
        "model": rng.choice(models) if models else None,
    }
    if failure is not None:
        nothing = dict.fromkeys(("first_token_ns", "first_content_ns", "last_token_ns", "finish_reason", "events"))
        values |= {**nothing, "outcome": "error", "status": 503, "done_ns": sent + 5_000_000}
        values |= {"error": Failure("http", failure, 503), "output_tokens": OutputTokens(asked=n)}
    return Record(**values)
