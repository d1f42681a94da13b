"""How far what loadgen reports is from the truth: a table against a server whose every token says when it was sent.

    python -m benchmarks.accuracy                     1, 16 and 64 streams
    python -m benchmarks.accuracy --streams 16 --rounds 3

`tokend` answers after exactly 50 ms and then sends a token every 10 ms. `set` is that, `true` what the server's own
stamps say of the same requests (from a request's arrival in the kernel, or the token before, to the moment before a
token is written), `measured` what the run's log says, `error` measured - true, request by request and token by token,
its p99 without its sign. Server and client have a core each. CPU is the client's between its first request and its last
token, by the events it received.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import child
from benchmarks.peers.truth import Sent, Truth, build, read_log
from loadgen.log.store import open_run
from loadgen.records import Record

ROOT = Path(__file__).resolve().parents[1]
TTFT_MS, ITL_MS, TOKENS = 50.0, 10.0, 64

Floats = NDArray[np.float64]


def serve(binary: Path, log: Path, core: int, *flags: str) -> tuple[subprocess.Popen[bytes], int]:
    """`tokend` without its start jitter and with these flags, pinned to `core` → the process and its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    numbers = ("-J", "-p", port, "-t", round(TTFT_MS * 1e3), "-i", round(ITL_MS * 1e3), "-l", log, *flags)
    process = subprocess.Popen(
        [str(binary), *map(str, numbers)],
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.01)
    return process, port


def run(binary: Path, streams: int, requests: int, cores: list[int]) -> tuple[list[Record], Truth, float]:
    """One run → its measured ok records, what the server sent, and the client's CPU in µs an event."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        log = folder / "tokend.log"
        server, port = serve(binary, log, cores[0])
        try:
            usage = child.run(
                [
                    *(sys.executable, "-m", "loadgen", "run", f"http://127.0.0.1:{port}", "-c", str(streams)),
                    *("--requests", str(requests), "--input-len", "50", "--output-len", str(TOKENS)),
                    *("-o", str(folder / "runs"), "--quiet"),
                ],
                cores={cores[-1]},
                timeout_s=300,
                out=folder / "output",
                folder=ROOT,
                env=dict(os.environ),
            )
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)
        if usage.code not in (0, 4):  # 4: this machine was too busy for a verdict, which is no matter here
            raise SystemExit((folder / "output").read_text())
        truth = read_log(log.read_bytes(), TOKENS)
        records = list(open_run(next((folder / "runs").iterdir())).records())
    cpu_s, _ = usage.between(*truth.span_ns)
    return [r for r in records if r.phase == "measured" and r.outcome == "ok"], truth, cpu_s * 1e6 / truth.events


def pairs(records: list[Record], truth: Truth) -> dict[str, tuple[Floats, Floats]]:
    """By metric: what the log says and what the server's stamps say, in ms, sample by sample."""
    sent = {r.rid: r for r in truth.requests}
    both: list[tuple[Record, Sent]] = [(r, sent[int((r.server_id or "").rpartition("-")[2], 16)]) for r in records]

    def ttft(r: Record) -> float:
        assert r.first_token_ns is not None and r.sent_ns is not None
        return (r.first_token_ns - r.sent_ns) / 1e6

    def tpot(r: Record) -> float:
        assert r.last_token_ns is not None and r.first_token_ns is not None
        return (r.last_token_ns - r.first_token_ns) / 1e6 / (TOKENS - 1)

    gaps = [r.events.gap_us[1:] for r, _ in both if r.events is not None]
    return {
        "TTFT": (np.array([ttft(r) for r, _ in both]), np.array([s.ttft_ms for _, s in both])),
        "ITL": (np.concatenate(gaps) / 1e3, np.concatenate([s.gaps_ms for _, s in both])),
        "TPOT": (
            np.array([tpot(r) for r, _ in both]),
            np.array([(s.e2e_ms - s.ttft_ms) / (TOKENS - 1) for _, s in both]),
        ),
    }


def rows(streams: int, found: dict[str, tuple[Floats, Floats]], cpu_us: float) -> list[list[str]]:
    lines = []
    for name, set_ms in (("TTFT", TTFT_MS), ("ITL", ITL_MS), ("TPOT", ITL_MS)):
        measured, true = found[name]
        error = 1e3 * (measured - true)
        cells = [f"{np.percentile(values, p):.3f}" for values in (true, measured) for p in (50, 99)]
        cells += [f"{np.percentile(error, 50):+.0f}", f"{np.percentile(np.abs(error), 99):.0f}"]
        cpu = f"{cpu_us:.0f}" if name == "TTFT" else ""
        lines.append([str(streams) if name == "TTFT" else "", name, f"{set_ms:g}", *cells, f"{len(measured):,}", cpu])
    return lines


HEAD = [
    "streams",
    "ms",
    "set",
    "true p50",
    "p99",
    "measured p50",
    "p99",
    "error p50, µs",
    "p99, µs",
    "n",
    "CPU µs/event",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="1,16,64", help="comma-separated  [1,16,64]")
    parser.add_argument("--waves", type=int, default=12, help="requests a stream, and at least 40 in all  [12]")
    parser.add_argument("--rounds", type=int, default=3, help="the round with the median p99 TTFT error counts  [3]")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as place:
        binary = build(Path(place))
        print("| " + " | ".join(HEAD) + " |\n" + "|" + " --: |" * len(HEAD), flush=True)
        for streams in map(int, arguments.streams.split(",")):
            tries = []
            for _ in range(arguments.rounds):
                records, truth, cpu_us = run(binary, streams, max(40, streams * arguments.waves), cores)
                found = pairs(records, truth)
                measured, true = found["TTFT"]
                tries.append((float(np.percentile(np.abs(measured - true), 99)), found, cpu_us))
            _, found, cpu_us = sorted(tries, key=lambda one: one[0])[len(tries) // 2]
            for line in rows(streams, found, cpu_us):
                print("| " + " | ".join(line) + " |", flush=True)


if __name__ == "__main__":
    main()
