"""How fast a large trace starts, how fast it is read, and in how much memory.

    python -m benchmarks.traces                        # ten million rows, as CSV and as JSON Lines
    python -m benchmarks.traces --rows 1000000 --json

Start: from the open file until the first request could leave, where ten minutes of the trace are sent (--duration 10m).
Whole: all rows in the order of their times, as without --duration. Memory is the peak of a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from loadgen.workload.traces import open_trace
from loadgen.workload.traces.replayed import Choice, look
from loadgen.workload.traces.timing import Timing, due

FORMATS = ("csv", "jsonl")
RATE = 50


def write(path: Path, rows: int) -> None:
    with path.open("w") as file:
        if path.suffix == ".csv":
            file.write("arrived_at,num_prefill_tokens,num_decode_tokens\n")
        for n in range(rows):
            size, out = 20 + n * 7919 % 4000, 1 + n * 104729 % 500
            if path.suffix == ".csv":
                file.write(f"{n / RATE:.3f},{size},{out}\n")
            else:
                file.write(f'{{"arrival_time_ns": {n * 10**9 // RATE}, "input_toks": {size}, "output_toks": {out}}}\n')


def measure(path: Path) -> dict[str, float]:
    start = time.perf_counter()
    found = look(Choice(str(path), seconds=600.0))
    next(found.offsets())
    next(found.prompts("n", None))
    first = time.perf_counter() - start
    start = time.perf_counter()
    n = sum(1 for _ in due(open_trace(path), Timing(), Counter()))
    whole = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows": n, "mb": path.stat().st_size / 1e6, "start_s": first, "whole_s": whole, "peak_mb": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--file", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.file:
        print(json.dumps(measure(Path(args.file))))
        return
    for kind in FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"trace.{kind}"
            write(path, args.rows)
            command = [sys.executable, "-m", "benchmarks.traces", "--file", str(path)]
            row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        if args.json:
            print(json.dumps({"format": kind, **row}))
        else:
            print(
                f"{kind:6} {row['rows']:>12,} rows {row['mb']:8,.0f} MB   starts in {row['start_s']:.2f} s   whole in"
                f" {row['whole_s']:.1f} s ({row['rows'] / row['whole_s'] / 1e3:,.0f} k rows/s)"
                f"   peak {row['peak_mb']:.0f} MB"
            )


if __name__ == "__main__":
    main()
