"""How well an open loop keeps its schedule: the rate it reaches, and how late its requests leave and arrive.

    python -m benchmarks.dispatch                                    # Poisson, 100 and 500 requests/s, both transports
    python -m benchmarks.dispatch --rates 200 --arrivals constant --requests 10000 --json

Dispatch lag is this client's own (sent_at - scheduled_at); wire lag is the truth: when the server's kernel had the
request (`tokend`'s receive stamp) minus when it was due. Connections are open before the window. The server runs on the
first core and the client on the last; the arms take turns in each round, and the median round by wire p99 is shown.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.peers.truth import Load, Tokend, Truth, build
from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import RequestOptions
from loadgen.client.exchange import HttpxSender
from loadgen.client.kernel import KernelTransport
from loadgen.client.openloop import run_open_step
from loadgen.client.step import StepPlan
from loadgen.client.transport import Access, open_client
from loadgen.records import Prompt, Record
from loadgen.results import Observation
from loadgen.workload.arrivals import Schedule, parse_arrivals

ARMS = {"kernel": Access(), "thread": Access(threaded=True), "httpx": Access(httpx_pool=True)}
TOKENS, TTFT_MS, ITL_MS = 5, 20.0, 10.0  # 70 ms a request: 35 in flight at 500 requests/s


Lags = tuple[float, float, float]  # p50, p99, max in ms


@dataclass(frozen=True, slots=True)
class Row:
    """One run of one arm."""

    arm: str
    rate: float
    requests: int
    achieved: float
    failed: int
    connects: int
    dispatch: Lags
    wire: Lags
    cpu_us: float  # a request, of the whole process
    waited_us: float  # a request, of the loop's thread for a core


def prompts() -> Iterator[Prompt]:
    for rid in itertools.count():
        yield Prompt(body={"messages": [{"role": "user", "content": "x" * 400}], "rid": rid}, output_tokens=TOKENS)


async def drive(arm: str, url: str, args: argparse.Namespace, rate: float) -> tuple[Observation, list[Record], int]:
    records: list[Record] = []
    zero = time.monotonic_ns()
    in_flight = max(8, round(4 * rate * (TTFT_MS + TOKENS * ITL_MS) / 1e3))
    async with open_client(ARMS[arm], 10 * in_flight, tls=False) as client:
        if isinstance(client._transport, KernelTransport):
            await client._transport.warm(client.build_request("POST", url).url, in_flight)
        sender = HttpxSender(client, url, DIALECTS["chat"], RequestOptions(model="m", usage=True), zero_ns=zero)
        plan = StepPlan(
            step=1, concurrency=0, enough=lambda progress: False, requests=args.requests or round(rate * args.seconds),
            warmup=round(rate), rate=rate, max_error_rate=1.0,
        )  # fmt: skip
        seen = await run_open_step(
            sender, prompts(), plan, Schedule(parse_arrivals(args.arrivals), rate, args.seed),
            on_record=records.append, clock=time.monotonic_ns, zero_ns=zero,
        )  # fmt: skip
    return seen, records, zero


def measure(arm: str, rate: float, binary: Path, args: argparse.Namespace, cores: tuple[int, int]) -> Row:
    load = Load(0, 0, TOKENS, TTFT_MS, ITL_MS, lockstep=False)
    server = Tokend(binary, load, cores[0], departures=False)
    waited, cpu = _waited_ns(), time.process_time_ns()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        seen, records, zero = asyncio.run(drive(arm, f"{server.url}/v1/chat/completions", args, rate))
    finally:
        gc.enable()
        gc.unfreeze()
        truth = server.stop()
    spent = (time.process_time_ns() - cpu) / len(records) / 1e3, (_waited_ns() - waited) / len(records) / 1e3
    return row(arm, rate, seen, records, zero, truth, spent)


def row(
    arm: str, rate: float, seen: Observation, records: list[Record], zero: int, truth: Truth, spent: tuple[float, float]
) -> Row:
    measured = [r for r in records if r.phase == "measured"]
    arrived = {sent.rid: sent.arrived_ns - zero for sent in truth.requests}
    dispatch = [r.sent_ns - r.scheduled_ns for r in measured if r.sent_ns is not None]
    at = [(r, arrived.get(int(r.id.rpartition("-")[2]))) for r in measured]
    wire = [stamp - r.scheduled_ns for r, stamp in at if stamp is not None]
    assert seen.window is not None
    in_window = sum(seen.window.start_ns <= stamp < seen.window.end_ns for stamp in arrived.values())
    return Row(
        arm=arm,
        rate=rate,
        requests=len(measured),
        achieved=in_window / seen.window.seconds,
        failed=sum(r.outcome != "ok" for r in measured),
        connects=sum(r.connect is not None for r in measured),
        dispatch=lags(dispatch),
        wire=lags(wire),
        cpu_us=spent[0],
        waited_us=spent[1],
    )


def lags(values_ns: list[int]) -> Lags:
    p50, p99, most = np.percentile(np.array(values_ns) / 1e6, (50, 99, 100))
    return float(p50), float(p99), float(most)


def _waited_ns() -> int:
    """How long this process was ready to run and had no core."""
    return int(Path("/proc/self/schedstat").read_text().split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="100,500", help="requests/s, with commas")
    parser.add_argument("--arrivals", default="poisson")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--requests", type=int, help="measured requests, instead of --seconds")
    parser.add_argument("--arms", default="kernel,httpx", help=f"of {', '.join(ARMS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    usable = sorted(os.sched_getaffinity(0))
    cores = usable[0], usable[-1]
    os.sched_setaffinity(0, {cores[1]})
    rows: dict[tuple[float, str], list[Row]] = {}
    with tempfile.TemporaryDirectory() as folder:
        binary = build(Path(folder))
        for _ in range(args.rounds):
            for rate, arm in itertools.product(map(float, args.rates.split(",")), args.arms.split(",")):
                one = measure(arm, rate, binary, args, cores)
                print(f"… {arm} {rate:g}/s: wire p99 {one.wire[1]:.2f} ms", file=sys.stderr)
                rows.setdefault((rate, arm), []).append(one)
    chosen = [sorted(same, key=lambda r: r.wire[1])[len(same) // 2] for same in rows.values()]
    if args.json:
        print(json.dumps({"arrivals": args.arrivals, "rows": [asdict(r) for same in rows.values() for r in same]}))
        return
    print(f"{args.arrivals} arrivals, pre-connected; lags in ms; the median of {args.rounds} rounds by wire p99")
    names = ["arm", "asked /s", "reached /s", "error", "n", "failed", "dispatch p50 / p99 / max"]
    names += ["wire p50 / p99 / max", "CPU µs", "waited µs"]
    print("| " + " | ".join(names) + " |")
    print("|" + " --- |" * len(names))
    for r in chosen:
        print("| " + " | ".join(cells(r)) + " |")


def cells(r: Row) -> list[str]:
    return [
        r.arm,
        f"{r.rate:g}",
        f"{r.achieved:.2f}",
        f"{100 * (r.achieved / r.rate - 1):+.2f} %",
        f"{r.requests:,}",
        str(r.failed),
        "{:.3f} / {:.2f} / {:.1f}".format(*r.dispatch),
        "{:.3f} / {:.2f} / {:.1f}".format(*r.wire),
        f"{r.cpu_us:.0f}",
        f"{r.waited_us:.0f}",
    ]


if __name__ == "__main__":
    main()
