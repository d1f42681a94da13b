"""What the simulated server carries: many streams at a steady pace, the server on one core and the client on the other.

    python benchmarks/simulator.py [--streams 1000] [--rate 20] [--seconds 10] [--json]

Every stream gets `--rate` tokens a second, all in the same steps: the worst case, since every step then writes to every
socket. `cpu` is the server's, of one core, in user and kernel mode, with the requests' own cost; `late` is what its
schedule lost, as its /metrics tell; `share` is how much of the engine's virtual pace was delivered.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import selectors
import socket
import time
from urllib.parse import urlsplit

from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.process import SimulatorProcess


def measure(streams: int, rate: float, seconds: float) -> dict[str, float]:
    step_ms = 1e3 / rate
    config = EngineConfig(
        step_ms=step_ms, decode_ms=0, prefill_ms=0, overhead_ms=0, noise_sigma=0, max_batch=streams, max_prefill_tokens=streams
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
        before_s, begun = _cpu_s(server.pid), time.monotonic()
        tokens = _read_all(str(address.hostname), address.port or 0, request, streams)
        wall_s, cpu_s = time.monotonic() - begun, _cpu_s(server.pid) - before_s
        late_s = _metric(str(address.hostname), address.port or 0, "loadgen:simulator_late_seconds_total")
    os.sched_setaffinity(0, set(cores))
    return {
        "streams": streams,
        "tokens": tokens,
        "tokens_per_s": tokens / wall_s,
        "share": seconds / wall_s,
        "cpu": cpu_s / wall_s,
        "us_per_token": cpu_s / tokens * 1e6,
        "late_s": late_s,
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
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _metric(host: str, port: int, name: str) -> float:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=20.0, help="tokens a second of each stream")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    row = measure(flags.streams, flags.rate, flags.seconds)
    if flags.json:
        print(json.dumps(row))
        return
    print(f"{row['streams']:,} streams · {row['tokens_per_s']:,.0f} tokens/s of {flags.streams * flags.rate:,.0f}"
          f" · server CPU {row['cpu']:.0%} of a core · {row['us_per_token']:.1f} µs a token · late {row['late_s']:.2f} s")


if __name__ == "__main__":
    main()
