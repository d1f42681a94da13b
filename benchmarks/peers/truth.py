"""`tokend` as a child process, and what its log says really happened."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SOURCE = Path(__file__).resolve().parents[1] / "tokend.c"
LOG = np.dtype([("rid", "<u4"), ("index", "<i4"), ("real", "<i8"), ("mono", "<i8")])

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Load:
    """One closed loop: so many streams, each answered with `tokens` events after `ttft_ms`, one every `itl_ms`."""

    streams: int
    requests: int
    tokens: int
    ttft_ms: float
    itl_ms: float
    lockstep: bool
    input_tokens: int = 50

    @property
    def name(self) -> str:
        return f"{self.streams} streams, {'lockstep' if self.lockstep else 'smooth'}"

    @property
    def seconds(self) -> float:
        """About how long the requests and one wave of warm-up last for a client that adds nothing."""
        waves = 1 + -(-self.requests // self.streams)
        return waves * (self.ttft_ms + (self.lockstep + 0.5 + self.tokens) * self.itl_ms) / 1e3


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as the server saw it, ns on CLOCK_MONOTONIC: its arrival in the kernel, and each token's departure
    from there, or with a server that takes no transmit stamps the moment before its write()."""

    rid: int
    arrived_ns: int
    tokens_ns: NDArray[np.int64]
    begins: int  # the wall time, ns, that the text of its first token tells

    @property
    def ttft_ms(self) -> float:
        return float(self.tokens_ns[0] - self.arrived_ns) / 1e6

    @property
    def e2e_ms(self) -> float:
        return float(self.tokens_ns[-1] - self.arrived_ns) / 1e6

    @property
    def gaps_ms(self) -> Floats:
        return np.diff(self.tokens_ns) / 1e6


@dataclass(frozen=True, slots=True)
class Truth:
    """Every request that was answered with the full number of tokens, in order of arrival."""

    requests: tuple[Sent, ...]

    def last(self, n: int) -> Truth:
        """The sample of a client that warms up first: the last n to arrive."""
        return Truth(self.requests[-n:])

    def only(self, rids: Collection[int]) -> Truth:
        return Truth(tuple(r for r in self.requests if r.rid in rids))

    @property
    def events(self) -> int:
        return sum(len(r.tokens_ns) for r in self.requests)

    @property
    def span_ns(self) -> tuple[int, int]:
        """From the first arrival to the last token."""
        return min(r.arrived_ns for r in self.requests), max(int(r.tokens_ns[-1]) for r in self.requests)

    def rate(self, start_ns: int, end_ns: int) -> float:
        """Events/s between two times; NaN where nothing is between them."""
        stamps = np.concatenate([r.tokens_ns for r in self.requests])
        count = int(((stamps >= start_ns) & (stamps < end_ns)).sum())
        return count / (end_ns - start_ns) * 1e9 if end_ns > start_ns else float("nan")

    def stats(self) -> dict[str, float]:
        """The figures that every client reports, in ms, of these requests."""
        ttft = np.array([r.ttft_ms for r in self.requests])
        gaps = [r.gaps_ms for r in self.requests]
        return {
            "ttft_mean": float(ttft.mean()),
            "ttft_p50": float(np.percentile(ttft, 50)),
            "ttft_p99": float(np.percentile(ttft, 99)),
            "itl_mean": float(np.concatenate(gaps).mean()),
            "tpot_mean": float(np.mean([gap.mean() for gap in gaps])),
            "e2e_mean": float(np.mean([r.e2e_ms for r in self.requests])),
        }


def read_log(data: bytes, tokens: int) -> Truth:
    """The requests of a `tokend -l` log that were answered with exactly `tokens` tokens."""
    log = np.frombuffer(data, LOG)
    log = log[np.argsort(log["rid"], kind="stable")]
    found: list[Sent] = []
    for part in np.split(log, np.flatnonzero(np.diff(log["rid"].astype(np.int64))) + 1):
        if len(part) != tokens + 1 or part["index"][0] != -1:
            continue
        found.append(
            Sent(int(part["rid"][0]), int(part["mono"][0]), part["mono"][1:].astype(np.int64), int(part["real"][1]))
        )
    return Truth(tuple(sorted(found, key=lambda r: r.arrived_ns)))


def place(cores: set[int], nice: int) -> None:
    """Put this process on these cores; `nice` below 0, which takes root, keeps it before whatever else runs there."""
    os.sched_setaffinity(0, cores)
    if nice:
        os.setpriority(os.PRIO_PROCESS, 0, nice)


def build(folder: Path) -> Path:
    """Compile the server. Raises CalledProcessError or FileNotFoundError where there is no working C compiler."""
    binary = folder / "tokend"
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-w", "-o", str(binary), str(SOURCE)], check=True)
    return binary


class Tokend:
    """The server under one load, pinned to `core`; `stop` ends it and returns the truth: when packets came and left.
    Without `departures` it takes no stamps for the latter, which cost it CPU."""

    def __init__(self, binary: Path, load: Load, core: int, nice: int = 0, *, departures: bool = True) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.load = load
        self.log = Path(tempfile.mkstemp(prefix="tokend-", suffix=".log")[1])
        numbers = ("-p", self.port, "-n", load.tokens, "-t", round(load.ttft_ms * 1e3), "-i", round(load.itl_ms * 1e3))
        command = [str(binary), *map(str, numbers), "-l", str(self.log)]
        command += ["-T"] * departures + ["-L"] * load.lockstep
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=lambda: place({core}, nice))
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    break
            time.sleep(0.01)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> Truth:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        data = self.log.read_bytes()
        self.log.unlink()
        return read_log(data, self.load.tokens)
