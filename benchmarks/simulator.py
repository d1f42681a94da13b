"""The simulated server: what it carries, and whether it is the engine of the virtual runs.

    python -m benchmarks.simulator [--streams 1000] [--rate 20] [--seconds 10] [--json]
    python -m benchmarks.simulator --agree [--requests 400]

The first pins the server to one core and a bare reader to another. Every stream gets `--rate` tokens a second, all in
the same steps: the worst case, since every step then writes to every socket. CPU is the server's, user and kernel, with
what the requests cost; `waited` is what it stood ready while others had its core, and `lost` what its schedule lost by
its own /metrics: on a quiet machine both are nought. `--agree` runs `loadgen run` against engines of several kinds and
sets its percentiles beside those of long virtual runs with their standard errors.
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
from pathlib import Path
from urllib.parse import urlsplit

from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.engine.virtual import Mix
from loadgen.simulator.oracle import Effort, at
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
REFILL_S = 0.001  # from the last byte of an answer, over the client, to the server's look at the next request
FIGURES = {  # the oracle's name: the report's
    "ttft_p50_ms": "median_ttft_ms",
    "ttft_p95_ms": "p95_ttft_ms",
    "tpot_p50_ms": "median_tpot_ms",
    "tpot_p95_ms": "p95_tpot_ms",
}


def agree(name: str, in_flight: int, requests: int) -> dict[str, object]:
    """One load through `loadgen run`, and its truth."""
    config = ENGINES[name]
    mix, effort = Mix(64, 32, input_spread=65 / 128, spread=33 / 64), Effort(4, 2000, refill_s=REFILL_S)
    truth = at(config, mix, in_flight, effort=effort)
    with SimulatorProcess(config) as server, tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "loadgen",
            "run",
            server.url,
            "-c",
            str(in_flight),
            "--requests",
            str(requests),
        ]
        command += ["--input-len", "32-96", "--output-len", "16-48", "--json", "--quiet", "-o", folder]
        step = json.loads(subprocess.run(command, capture_output=True, check=False).stdout)["steps"][0]
        note = server.lag_note()
    row: dict[str, object] = {"engine": name, "in_flight": in_flight, "note": note}
    measured = {"throughput": step["output_throughput"]}
    measured |= {figure: step[reported] for figure, reported in FIGURES.items()}
    known = {"throughput": truth.throughput, **truth.figures}
    return row | {figure: (value, known[figure].value, known[figure].error) for figure, value in measured.items()}


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
        for name in ENGINES:
            row = agree(name, 20, flags.requests)
            if flags.json:
                print(json.dumps(row), flush=True)
                continue
            print(f"{name}, 20 in flight" + (f" · {row['note']}" if row["note"] else ""), flush=True)
            for figure in ("throughput", *FIGURES):
                measured, truth, error = row[figure]  # type: ignore[misc]
                print(
                    f"  {figure:<12} {measured:>9.2f}  virtual {truth:>9.2f} ±{error:.2f}  {measured / truth - 1:+.1%}"
                )
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
