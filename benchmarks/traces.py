"""How fast a large trace starts, how fast it is read, and in how much memory.

    python -m benchmarks.traces                        # ten million rows, as CSV and as JSON Lines
    python -m benchmarks.traces --rows 1000000 --json
    python -m benchmarks.traces --rows 150000000 --formats csv --start    # 3 GB; its start alone
    python -m benchmarks.traces --rows 400000 --formats sessions          # what is kept of sessions and blocks

Start: from the open file until the first request could leave, of the whole trace. Whole: all rows in the order of their
times, as they are read while they are sent; of `sessions`, in turns of five blocks each, their prompts are made too.
Memory is the peak of a process of its own.
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

from loadgen.workload.traces import Mapped, open_trace
from loadgen.workload.traces.looking import look
from loadgen.workload.traces.replayed import Choice
from loadgen.workload.traces.timing import Timing, due

FORMATS = ("csv", "jsonl")
SESSIONS = "sessions"
BLOCK = 8  # tokens: short prompts, and yet many blocks
RATE = 50


def write(path: Path, rows: int) -> None:
    with path.open("w") as file:
        if path.suffix == ".csv":
            file.write("arrived_at,num_prefill_tokens,num_decode_tokens\n")
        for n in range(rows):
            size, out = 20 + n * 7919 % 4000, 1 + n * 104729 % 500
            if path.stem == SESSIONS:
                # 5 blocks a turn, those of the turn before and one of its own; 1,000 sessions at a time
                group, turn, lane = n // 4000, n // 1000 % 4, n % 1000
                session = 1000 * group + lane
                ids = [8 * session + k for k in range(turn + 1)] + [-(5 * n + k) for k in range(4 - turn)]
                one = {"timestamp": n * 1000 // RATE, "input_length": 5 * BLOCK, "output_length": out}
                file.write(json.dumps({**one, "session_id": f"session-{session}", "hash_ids": ids}) + "\n")
            elif path.suffix == ".csv":
                file.write(f"{n / RATE:.3f},{size},{out}\n")
            else:
                file.write(f'{{"arrival_time_ns": {n * 10**9 // RATE}, "input_toks": {size}, "output_toks": {out}}}\n')


def measure(path: Path, whole: bool) -> dict[str, float]:
    start, cpu = time.perf_counter(), time.process_time()
    made = path.stem == SESSIONS
    found = look(Choice(str(path), mapped=Mapped(block=BLOCK) if made else Mapped()))
    next(found.offsets())
    next(found.prompts("n", None))
    first, cpu = time.perf_counter() - start, time.process_time() - cpu
    started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.perf_counter()
    rows = found.prompts("n", None) if made else due(open_trace(path), Timing(), Counter())
    n = sum(1 for _ in rows) if whole else 0
    took = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    size = path.stat().st_size / 1e6
    return {
        "rows": n,
        "mb": size,
        "start_s": first,
        "start_cpu_s": cpu,
        "start_mb": started,
        "whole_s": took,
        "peak_mb": peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--formats", nargs="+", choices=(*FORMATS, SESSIONS), default=FORMATS)
    parser.add_argument("--start", action="store_true", help="do not read it to its end")
    parser.add_argument("--file", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.file:
        print(json.dumps(measure(Path(args.file), whole=not args.start)))
        return
    for kind in args.formats:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / (f"{kind}.jsonl" if kind == SESSIONS else f"trace.{kind}")
            write(path, args.rows)
            command = [sys.executable, "-m", "benchmarks.traces", "--file", str(path), *["--start"][: args.start]]
            row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        if args.json:
            print(json.dumps({"format": kind, **row}))
        else:
            said = f"{kind:6} {args.rows:>12,} rows {row['mb']:8,.0f} MB   starts in {row['start_s']:.2f} s"
            said += f" ({row['start_cpu_s']:.2f} s of CPU)"
            if not args.start:
                said += f"   whole in {row['whole_s']:.1f} s ({row['rows'] / row['whole_s'] / 1e3:,.0f} k rows/s)"
            print(f"{said}   peak {row['start_mb']:.0f} MB at the start, {row['peak_mb']:.0f} MB in all")


if __name__ == "__main__":
    main()
