"""The simulated server: what it carries, and whether it is the engine of the virtual runs.

    python -m benchmarks.simulator [--streams 1000] [--rate 20] [--seconds 10] [--json]
    python -m benchmarks.simulator --agree [--requests 400]

The first pins the server to one core and a bare reader to another. Every stream gets `--rate` tokens a second, all in
the same steps: the worst case, since every step then writes to every socket. CPU is the server's, user and kernel, with
what the requests cost; `waited` is what it stood ready while others had its core, and `lost` what its schedule lost by
its own /metrics: on a quiet machine both are nought. `--agree` runs `loadgen run` against engines of several kinds and
sets its percentiles beside those of the very same requests in virtual time, with their spread over seeds of the noise:
of an open loop at the times at which they were sent, of a closed one with the times in which it was refilled.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from loadgen.log.columns import NULL, Columns, columns
from loadgen.log.store import open_run
from loadgen.records import PHASES
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.engine.virtual import Arrivals, Closed, Mix, Requests, simulate
from loadgen.simulator.oracle import Effort, Exact, saturation
from loadgen.simulator.presets import PRESETS
from loadgen.simulator.process import SimulatorProcess


def measure(streams: int, rate: float, seconds: float) -> dict[str, float]:
    step_ms = 1e3 / rate
    config = EngineConfig(
        step_ms=step_ms,
        decode_ms=0,
        prefill_ms=0,
        overhead_ms=0,
        noise_sigma=0,
        max_batch=streams,
        max_prefill_tokens=streams,
    )
    cores = sorted(os.sched_getaffinity(0))
    with SimulatorProcess(config) as server:
        assert server.pid
        if len(cores) > 1:
            os.sched_setaffinity(server.pid, {cores[0]})
            os.sched_setaffinity(0, {cores[1]})
        address = urlsplit(server.url)
        body = json.dumps({"prompt": [1], "max_tokens": round(rate * seconds), "ignore_eos": True, "stream": True})
        request = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        before_s, waited_s, begun = _cpu_s(server.pid), _waited_s(server.pid), time.monotonic()
        tokens = _read_all(str(address.hostname), address.port or 0, request, streams)
        wall_s, cpu_s = time.monotonic() - begun, _cpu_s(server.pid) - before_s
        waited_s = _waited_s(server.pid) - waited_s
        lost_s = _metric(str(address.hostname), address.port or 0, "loadgen:simulator_lost_seconds_total")
    os.sched_setaffinity(0, set(cores))
    return {
        "streams": streams,
        "tokens": tokens,
        "tokens_per_s": tokens / wall_s,
        "us_per_token": cpu_s / tokens * 1e6,
        "core_share_at_pace": cpu_s / tokens * streams * rate,
        "waited_s": waited_s,
        "lost_s": lost_s,
    }


def _read_all(host: str, port: int, request: bytes, streams: int) -> int:
    """Ask on so many connections and read each to its end; counts the events with text."""
    selector = selectors.DefaultSelector()
    for _ in range(streams):
        sock = socket.create_connection((host, port))
        sock.sendall(request)
        selector.register(sock, selectors.EVENT_READ, bytearray())
    tokens, left = 0, streams
    while left:
        for key, _ in selector.select():
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            data = sock.recv(65536)
            tokens += data.count(b'"text":')
            if not data or data.endswith(b"0\r\n\r\n"):
                selector.unregister(sock)
                sock.close()
                left -= 1
    return tokens


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _waited_s(pid: int) -> float:
    """Time that its threads were ready to run and did not."""
    return sum(int(path.read_text().split()[1]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def _metric(host: str, port: int, name: str) -> float:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


ENGINES = {
    "plain": EngineConfig(),
    "prefix cache, tight memory": EngineConfig(max_batch=24, kv_blocks=120, prefix_cache=True),
    "speculation": EngineConfig(speculate=3),
    "whole prompts": EngineConfig(chunked_prefill=False),
    "two pools": EngineConfig(disaggregated=True),
    "h100-llama-3.1-8b": PRESETS["h100-llama-3.1-8b"],
}
IN_FLIGHT, SHARE = 20, 0.7  # the open loop's rate, of the closed one's throughput
MOST_RATE = 60.0  # requests/s
SEEDS = 12
FIGURES = {  # the oracle's name: the report's
    "throughput": "output_throughput",
    "ttft_p50_ms": "median_ttft_ms",
    "ttft_p95_ms": "p95_ttft_ms",
    "tpot_p50_ms": "median_tpot_ms",
    "tpot_p95_ms": "p95_tpot_ms",
}


class Measured(NamedTuple):
    """A load through `loadgen run`: its requests in the order in which they were sent, its figures, what the server
    says of its own pace, and how much later a last token came to the client than the engine had it, in the mean."""

    log: Columns
    step: dict[str, Any]
    note: str | None
    transit_s: float


def run(config: EngineConfig, load: list[str], requests: int) -> Measured:
    with SimulatorProcess(config) as server, tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "loadgen", "run", server.url, *load, "--requests", str(requests)]
        command += ["--input-len", "32-96", "--output-len", "16-48", "--json", "--quiet", "-o", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            step = json.loads(done.stdout)["steps"][0]
        except (ValueError, LookupError):
            sys.exit(f"loadgen run failed:\n{done.stderr}")
        (made,) = Path(folder).iterdir()
        log = columns(open_run(made).records())
        address = urlsplit(server.url)
        inside_s, ended = (
            _metric(str(address.hostname), address.port or 0, f"vllm:e2e_request_latency_seconds_{what}")
            for what in ("sum", "count")
        )
        transit_s = float((log.last_token_ns - log.sent_ns).sum()) / 1e9 / len(log) - inside_s / ended
        if ended != len(log):
            sys.exit(f"{len(log)} requests in the log, {ended:.0f} in the engine")
        log = log.where((log.sent_ns != NULL) & (log.phase != PHASES.index("preflight")))
        return Measured(log.at(np.argsort(log.sent_ns, kind="stable")), step, server.lag_note(), transit_s)


def virtual(config: EngineConfig, log: Columns, load: Closed | Arrivals) -> dict[str, Exact]:
    """The same figures of the very same requests in virtual time, with their spread over seeds of the noise."""
    asked = Requests(log.input_server, log.output_asked)
    measured = log.phase == PHASES.index("measured")
    found: dict[str, list[float]] = {}
    for seed in range(SEEDS):
        times = simulate(replace(config, seed=seed), asked, load)
        window = times.submitted_s[measured]
        found.setdefault("throughput", []).append(times.throughput(float(window.min()), float(window.max())))
        for metric, values in (("ttft", times.ttft_s), ("tpot", times.tpot_s)):
            values = values[measured & ~np.isnan(values)] * 1e3
            for percent in (50, 95):
                found.setdefault(f"{metric}_p{percent}_ms", []).append(float(np.percentile(values, percent)))
    return {name: Exact(mean(found[name]), stdev(found[name])) for name in FIGURES}


def agree(requests: int) -> None:
    """Every engine under both loads. What HTTP takes is in the client's TTFT and in the refill of a closed loop."""
    mix = Mix(64, 32, input_spread=65 / 128, spread=33 / 64)
    for name, config in ENGINES.items():
        rate = SHARE * saturation(config, mix, effort=Effort(1, 400)).value / mix.output_len
        rate = min(rate, MOST_RATE)
        one = run(config, ["--rate", f"{rate:.3f}"], requests)
        at_s = (one.log.sent_ns - one.log.sent_ns[0]) / 1e9
        told(f"{name}, {rate:.1f} requests/s", one, virtual(config, one.log, Arrivals(at_s)))

        one = run(config, ["-c", str(IN_FLIGHT)], requests)
        sent_ns, last_ns = one.log.sent_ns, np.sort(one.log.last_token_ns)
        client_s = (sent_ns[IN_FLIGHT:] - last_ns[: len(sent_ns) - IN_FLIGHT]) / 1e9
        ramp_s = float(sent_ns[IN_FLIGHT - 1] - sent_ns[0]) / 1e9
        load = Closed(IN_FLIGHT, ramp_s, tuple((client_s + one.transit_s).tolist()))
        title = f"{name}, {IN_FLIGHT} in flight, the client took {np.median(client_s) * 1e3:.2f} ms"
        told(title, one, virtual(config, one.log, load))


def told(title: str, one: Measured, known: dict[str, Exact]) -> None:
    transit_ms = one.transit_s * 1e3
    print(f"{title}, HTTP {transit_ms:.2f} ms" + (f" · {one.note}" if one.note else ""))
    for figure, exact in known.items():
        measured = one.step[FIGURES[figure]]
        expected = exact.value + (transit_ms if figure.startswith("ttft") else 0.0)
        off = (measured - expected) / exact.error if exact.error else float("nan")
        print(
            f"  {figure:<12} {measured:>9.2f}  virtual {expected:>9.2f} ±{exact.error:.2f}"
            f"  {measured / expected - 1:+6.1%}  {off:+5.1f} of its spread",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=20.0, help="tokens a second of each stream")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--agree", action="store_true")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    if flags.agree:
        agree(flags.requests)
        return
    row = measure(flags.streams, flags.rate, flags.seconds)
    if flags.json:
        print(json.dumps(row))
        return
    print(
        f"{row['streams']:,} streams of {flags.rate:g} tokens/s · {row['us_per_token']:.1f} µs of CPU a token"
        f" = {row['core_share_at_pace']:.0%} of a core · delivered {row['tokens_per_s']:,.0f} tokens/s, start included"
        f" · waited {row['waited_s']:.1f} s for the core · lost {row['lost_s']:.2f} s"
    )


if __name__ == "__main__":
    main()
