"""Experiments on a real vLLM, end to end: the server is started with the documented flags of each arm, in turn.

    python -m benchmarks.real_experiments "tools/real-vllm start DIR" [--only prefix-cache,…] [--pairs 5] [--fit]

The command is one that, with a port and flags behind it, starts a server on the CPU and prints its process id once it
answers. Two servers run side by side, one an arm, and each is asked only while the other rests: A B B A, as
`loadgen experiment FILE URL_A URL_B` does. A tiny model on a CPU has 2,048 tokens of context, so the workloads are the
experiments' own made small; the flags are those that the experiments document.

`--fit` then sweeps one server and fits the engine to that: `simulate --like`, whose table says where it does not hold.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOADGEN = [sys.executable, "-m", "loadgen"]
PORTS = (18511, 18512)
COMMON = "--enable-prompt-tokens-details"
OFF = "--no-enable-prefix-caching"

# The variable's own flags for A and B, what both are started with, and the workload made small.
CASES: dict[str, tuple[str, str, str, str]] = {
    "prefix-cache": (
        OFF,
        "--enable-prefix-caching",
        COMMON,
        """
lengths = { input = { kind = "uniform", low = 1100, high = 1300 }, output = { kind = "uniform", low = 8, high = 16 } }
sharing = { prefix_tokens = 1024, groups = 4 }
|4|"ttft_p95", "output_throughput"|lower|a block of 128 tokens is computed once a group""",
    ),
    "chunked-prefill": (
        "--max-num-batched-tokens 2048",
        "--max-num-batched-tokens 256",
        f"{OFF} --enable-chunked-prefill --max-num-seqs 64",
        """
lengths = { input = { kind = "mixture", weights = [80, 20], parts = [{ kind = "uniform", low = 32, high = 96 },
  { kind = "uniform", low = 1400, high = 1800 }] }, output = { kind = "uniform", low = 24, high = 48 } }
|8|"itl_p99", "ttft_p95", "output_throughput"|lower|a step holds 256 prompt tokens at the most""",
    ),
    "continuous-batching": (
        "--max-num-seqs 4",
        "--max-num-seqs 32",
        OFF,
        """
lengths = { input = { kind = "uniform", low = 32, high = 96 }, output = { kind = "uniform", low = 16, high = 48 } }
|32|"output_throughput", "tpot_p95", "ttft_p95"|higher|more sequences share a step; each waits longer for it""",
    ),
}


def definition(name: str, requests: int) -> str:
    """The experiment's TOML. The engine's settings stand for nothing here: no arm is simulated."""
    a, b, _, rest = CASES[name]
    workload, concurrency, metrics, direction, effect = rest.strip().rsplit("|", 4)
    workload = " ".join(workload.splitlines()).replace("} } sharing", "} }\nsharing")
    return f"""
name = "{name}-vllm"
question = "What does {name} do on this server?"
changed = "{a} to {b}"
[workload]
{workload}
[load]
concurrency = {concurrency}
requests = {requests}
pairs = 5
[a]
label = "{a}"
engine = {{ step_ms = 12 }}
flags = {{ vllm = "{a}" }}
[b]
label = "{b}"
engine = {{ step_ms = 13 }}
flags = {{ vllm = "{b}" }}
[expect]
metrics = [{metrics}]
direction = "{direction}"
effect = "{effect}"
"""


@contextmanager
def server(start: str, port: int, flags: str) -> Iterator[str]:
    """A server started by that command; ended by its process id."""
    done = subprocess.run([*shlex.split(start), str(port), *shlex.split(flags)], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"the server did not start with {flags}")
    pid = int(done.stdout.split()[-1])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.kill(pid, signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", help="a command that takes PORT and flags, and prints the server's process id")
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--runs", default="results")
    flags = parser.parse_args()
    for name in flags.only.split(",") if flags.only else ():
        a, b, common, _ = CASES[name]
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(definition(name, flags.requests))
            file.flush()
            with (
                server(flags.start, PORTS[0], f"{common} {a}") as one,
                server(flags.start, PORTS[1], f"{common} {b}") as other,
            ):
                print(f"$ vllm serve … {common} {a}   |   … {common} {b}", flush=True)
                command = [*LOADGEN, "experiment", file.name, one, other, "--repeats", str(flags.pairs), "--seed", "7"]
                subprocess.run([*command, "-o", flags.runs])
    if flags.fit:
        with server(flags.start, PORTS[0], OFF) as url, tempfile.TemporaryDirectory() as folder:
            shape = ["--input-len", "40-400", "--output-len", "16-48", "--requests", "120", "--seed", "7", "--quiet"]
            subprocess.run([*LOADGEN, "sweep", url, "--levels", "1,2,4,8,16,32", *shape, "-o", folder])
            (run,) = Path(folder).iterdir()
            subprocess.run([*LOADGEN, "simulate", "--like", str(run), "--levels", "24,48"])


if __name__ == "__main__":
    main()
