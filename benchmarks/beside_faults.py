"""`python -m benchmarks.beside_faults`: do streams that break disturb the stamps of those beside them?

Sixteen healthy streams from `tokend`, which says when it sent each token, are measured twice: alone, and with eight
more of the same client that meet every cell of the fault matrix, in turn, without a pause. What counts is the error of
the healthy streams' stamps against the server's own. The servers have a core, the client has another; arms take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

import anyio
import numpy as np

from benchmarks.accuracy import TOKENS, pairs, serve
from benchmarks.peers.truth import build, read_log
from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import RequestOptions
from loadgen.client.exchange import HttpxSender, Timeouts
from loadgen.client.health import quiet, tune_process
from loadgen.client.transport import Access, open_client
from loadgen.records import Prompt, Record, RequestSpec
from tests.faults.matrix import CELLS, LIMIT
from tests.faults.test_matrix import play, read_request

HEALTHY, BROKEN = 16, 8
DIALECT = DIALECTS["chat"]


def fault_server() -> None:
    """Play the cells, each to the next request; the port is the first line of stdout."""

    async def main() -> None:
        turns = count()

        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while not writer.is_closing():
                    await read_request(reader)
                    await play(CELLS[next(turns) % len(CELLS)].parts, reader, writer)
            writer.close()

        server = await asyncio.start_server(one, "127.0.0.1", 0)
        sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()
        await server.serve_forever()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())


async def measure(port: int, fault_port: int | None, waves: int) -> tuple[list[Record], int]:
    """The healthy streams' records, and how many requests broke beside them."""
    records: list[Record] = []
    broken = 0
    async with open_client(Access(), HEALTHY + BROKEN, tls=False) as client:

        def sender(to: int, timeouts: Timeouts) -> HttpxSender:
            return HttpxSender(
                client,
                f"http://127.0.0.1:{to}/v1{DIALECT.path}",
                DIALECT,
                RequestOptions("m"),
                zero_ns=0,
                timeouts=timeouts,
                max_event_bytes=LIMIT,
            )

        async def healthy(slot: int) -> None:
            to = sender(port, Timeouts())
            for number in range(waves):
                spec = RequestSpec(f"s1-{slot * waves + number:06d}", Prompt("hi", 5, TOKENS), 1, HEALTHY, "measured")
                records.append(await to.send(spec, time.monotonic_ns()))

        async def breaking(slot: int) -> None:
            nonlocal broken
            assert fault_port is not None
            to = sender(fault_port, Timeouts(1, 0.3, 0.3, 2))
            for number in count():
                spec = RequestSpec(f"s2-{slot * 100_000 + number:06d}", Prompt("hi", 5, 5), 2, BROKEN, "measured")
                broken += (await to.send(spec, time.monotonic_ns())).outcome != "ok"

        with quiet():
            async with anyio.create_task_group() as group:
                async with anyio.create_task_group() as inner:
                    if fault_port is not None:
                        for slot in range(BROKEN):
                            group.start_soon(breaking, slot)
                    for slot in range(HEALTHY):
                        inner.start_soon(healthy, slot)
                group.cancel_scope.cancel()
    return [record for record in records if record.outcome == "ok"], broken


def main() -> int:
    parser = argparse.ArgumentParser(prog="beside_faults")
    parser.add_argument("--waves", type=int, default=8, help="requests of each healthy stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        fault_server()
        return 0
    cores = sorted(os.sched_getaffinity(0))
    tune_process()
    errors: dict[str, list[tuple[float, float, int]]] = {"alone": [], "beside faults": []}
    with tempfile.TemporaryDirectory() as place:
        binary = build(Path(place))
        for _ in range(options.rounds):
            for arm in errors:
                log = Path(place) / "tokend.log"
                log.unlink(missing_ok=True)
                server, port = serve(binary, log, cores[0])
                faults, fault_port = None, None
                if arm != "alone":
                    faults = subprocess.Popen(
                        [sys.executable, "-m", "benchmarks.beside_faults", "--serve"],
                        stdout=subprocess.PIPE,
                        preexec_fn=lambda: os.sched_setaffinity(0, {cores[0]}),
                    )
                    assert faults.stdout is not None
                    fault_port = int(faults.stdout.readline())
                try:
                    os.sched_setaffinity(0, {cores[-1]})
                    records, broken = anyio.run(measure, port, fault_port, options.waves)
                finally:
                    os.sched_setaffinity(0, set(cores))
                    server.send_signal(signal.SIGTERM)
                    server.wait(30)
                    if faults is not None:
                        faults.send_signal(signal.SIGINT)
                        faults.wait(30)
                if len(records) < HEALTHY * options.waves:
                    raise SystemExit(f"{HEALTHY * options.waves - len(records)} healthy requests failed")
                found = pairs(records, read_log(log.read_bytes(), TOKENS))
                p99 = {
                    name: float(np.percentile(np.abs(found[name][0] - found[name][1]), 99)) for name in ("TTFT", "ITL")
                }
                errors[arm].append((p99["TTFT"], p99["ITL"], broken))
    for arm, rounds in errors.items():
        ttft, itl, failed = (float(np.median(column)) for column in zip(*rounds, strict=True))
        sys.stdout.write(
            f"{arm:14} error of the healthy streams, p99: TTFT {ttft:.3f} ms, ITL {itl:.3f} ms; {failed:.0f} broke\n"
        )
    medians = {arm: np.median(np.array(rounds)[:, :2], axis=0) for arm, rounds in errors.items()}
    moved = float((medians["beside faults"] - medians["alone"]).max())
    sys.stdout.write(f"moved by {moved:+.3f} ms at p99; at most 1 ms is right\n")
    return int(moved > 1.0)


if __name__ == "__main__":
    sys.exit(main())
