"""How exact is a stamp that is called exact? Each token's stamp against the moment its packet left the server.

    python -m benchmarks.stamps [--streams 16,64,256] [--waves 8]

`tokend -T` tells two moments of every token: before its write(), and the kernel's transmit stamp, as its packet passes
to the device. Between them lies the server's own way through the kernel, which is long for the first write after a
pause, and which no client can know. Only tokens whose stamp the record calls exact, µs, by the sender that runs use.
Server and client have a core each.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from pathlib import Path

import anyio
import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import TOKENS, serve
from benchmarks.peers.truth import LOG, build
from loadgen.client.clock import Clock
from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import RequestOptions
from loadgen.client.exchange import HttpxSender
from loadgen.client.health import quiet, tune_process
from loadgen.client.transport import Access, open_client
from loadgen.records import Prompt, Record, RequestSpec

Ints = NDArray[np.int64]
DIALECT = DIALECTS["chat"]


async def records(port: int, streams: int, waves: int) -> list[Record]:
    """What came of so many requests of each stream, with times on CLOCK_MONOTONIC."""
    found: list[Record] = []
    async with open_client(Access(), streams, tls=False) as client:
        url = f"http://127.0.0.1:{port}/v1{DIALECT.path}"
        sender = HttpxSender(client, url, DIALECT, RequestOptions("m"), zero_ns=0)

        async def one(slot: int) -> None:
            for number in range(waves):
                spec = RequestSpec(f"s1-{slot * waves + number:06d}", Prompt("hi", 5, TOKENS), 1, streams, "measured")
                found.append(await sender.send(spec, time.monotonic_ns()))

        with quiet():
            async with anyio.create_task_group() as group:
                for slot in range(streams):
                    group.start_soon(one, slot)
    return found


def errors(found: list[Record], log: NDArray[np.void], offset_ns: int) -> tuple[Ints, Ints, float]:
    """ns by which each exact stamp came after the moment before write(), and after the packet left; the exact share."""
    tokens = {(int(row["rid"]), int(row["index"])): row for row in log if row["index"] >= 0}
    before: list[int] = []
    left: list[int] = []
    seen = 0
    for record in found:
        if record.outcome != "ok" or record.events is None or record.sent_ns is None:
            raise SystemExit(f"a request failed: {record.error}")
        rid = int((record.server_id or "").rpartition("-")[2], 16)
        bounded = {place for place, _ in record.events.bounded}
        for place, stamp in enumerate((record.sent_ns + 1000 * np.cumsum(record.events.gap_us)).tolist()):
            seen += 1
            row = tokens[rid, place]
            if place not in bounded:
                before.append(stamp - (int(row["real"]) - offset_ns))
                left.append(stamp - int(row["mono"]))
    return np.array(before), np.array(left), len(before) / max(1, seen)


def measure(binary: Path, streams: int, waves: int, cores: list[int], *more: str) -> tuple[Ints, Ints, float]:
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "tokend.log"
        server, port = serve(binary, log, cores[0], "-T", *more)
        try:
            os.sched_setaffinity(0, {cores[-1]})
            found = anyio.run(records, port, streams, waves)
        finally:
            os.sched_setaffinity(0, set(cores))
            server.send_signal(signal.SIGTERM)
            server.wait(30)
        return errors(found, np.fromfile(log, LOG), Clock().offset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="16,64,256")
    parser.add_argument("--waves", type=int, default=8, help="requests a stream")
    flags = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    tune_process()
    print("| streams | tokens | exact | after before write(): p50 | p99 | after its packet left: p50 | p99 | max |")
    print("| --- | --: | --: | --: | --: | --: | --: | --: |")
    with tempfile.TemporaryDirectory() as place:
        binary = build(Path(place))
        for streams in map(int, flags.streams.split(",")):
            for name, more in (("smooth", ()), ("lockstep", ("-L",))):
                before, left, exact = measure(binary, streams, flags.waves, cores, *more)
                cells = [f"{np.percentile(one, p) / 1e3:.1f}" for one in (before, left) for p in (50, 99)]
                cells.append(f"{left.max() / 1e3:.1f}")
                print(f"| {streams} {name} | {len(left):,} | {exact:.1%} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
