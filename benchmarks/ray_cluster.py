"""What `--ray` costs and how soon it sees a loss, on a Ray cluster of three nodes on this machine:

    python -m benchmarks.ray_cluster [--rounds 5]

Told are the time from the command to the first request of a step; whether the log has each request that the server got,
once; the offsets and uncertainties of the clocks, whose true offset is 0 here; and how long after a signal the step was
over. Between machines round trips are longer. Some five minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadgen.simulator.scripted import ThreadedServer
from tests.cli.command import generations, records_of, start, until
from tests.ray.conftest import LocalCluster
from tests.ray.test_cluster import paced

HARMS: dict[str, Callable[[LocalCluster], Any]] = {
    "worker SIGKILL": lambda cluster: os.kill(cluster.workers()[1], signal.SIGKILL),
    "worker SIGSTOP": lambda cluster: os.kill(cluster.workers()[1], signal.SIGSTOP),
    "actor SIGKILL": lambda cluster: os.kill(cluster.actors()[1], signal.SIGKILL),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    cluster = LocalCluster()
    try:
        starts, uncertain, offsets, exact = [], [], [], 0
        for _ in range(rounds):
            with running(cluster, "--requests", "60") as (process, server, folder):
                starts.append(first_request_s(process, server))
                process.communicate(timeout=120)
                got = Counter(r.headers["x-request-id"].partition("-")[2] for r in generations(server.requests))
                exact += got == Counter(record["id"] for record in records_of(run_in(folder)))
                clocks = manifest(folder)["workers"]["steps"][0]["clocks"]
                uncertain += [clock["uncertainty_us"] for clock in clocks]
                offsets += [clock["offset_ns"] / 1e3 for clock in clocks]
        tell("from the command to the first request of the step", starts, "s")
        print(f"log and server have the same requests, each once: {exact} of {rounds}")
        tell("offset of a clock, truly 0, absolute", [abs(one) for one in offsets], "µs")
        tell("its uncertainty", uncertain, "µs")
        print(f"within it: {sum(abs(o) <= u for o, u in zip(offsets, uncertain, strict=True))} of {len(offsets)}")
        for name, harm in HARMS.items():
            noticed, lost = [], []
            for _ in range(rounds):
                with running(cluster, "--duration", "60s") as (process, server, folder):
                    first_request_s(process, server)
                    time.sleep(2.5)
                    at = time.time_ns()
                    harm(cluster)
                    process.communicate(timeout=120)
                    [seen] = [json.loads(line)["observation"] for line in (run_in(folder) / "steps.jsonl").open()]
                    noticed.append((manifest(folder)["started_epoch_ns"] + seen["window"]["end_ns"] - at) / 1e9)
                    lost.append(manifest(folder)["workers"]["lost"][0])
            tell(f"{name}: until the step was void", noticed, "s")
            gone, ended = (sum(one[key] for one in lost) for key in ("lost", "ended"))
            print(f"  of the {ended} ended requests of the lost workers {gone} are lost")
    finally:
        cluster.close()


@contextmanager
def running(cluster: LocalCluster, *more: str) -> Iterator[tuple[subprocess.Popen[bytes], ThreadedServer, Path]]:
    with tempfile.TemporaryDirectory() as folder, ThreadedServer(paced(20.0)) as server:
        process = start(
            *("run", server.url, "--input-len", "32", "--output-len", "4", "-c", "6", "--workers", "3"),
            *("--ray", cluster.address, "-o", folder, *more),
        )
        try:
            yield process, server, Path(folder)
        finally:
            process.kill()
            process.wait()
        until(lambda: not cluster.actors(), 15.0)


def first_request_s(process: subprocess.Popen[bytes], server: ThreadedServer) -> float:
    began = time.monotonic()
    until(
        lambda: (
            any("-s1-" in r.headers["x-request-id"] for r in generations(server.requests)[:50])
            or process.poll() is not None
        ),
        60.0,
    )
    return time.monotonic() - began


def run_in(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_in(folder) / "manifest.json").read_text())
    return found


def tell(what: str, figures: list[float], unit: str) -> None:
    low, high, median = min(figures), max(figures), statistics.median(figures)
    print(f"{what}: median {median:.3g} {unit}, {low:.3g} to {high:.3g}, n {len(figures)}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
