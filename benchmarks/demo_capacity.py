"""Does the demonstration find the capacity of the server it measures? A table of `sweep --simulate --demo` by seed.

    python -m benchmarks.demo_capacity                 ten seeds
    python -m benchmarks.demo_capacity --seeds 3,4

`peak` is the highest output throughput that the sweep reports. `capacity` is the simulator's, computed in closed form
from the mean lengths of the requests at that level, by the server's own count; `virtual` is the same by a run of the
step model in virtual time over lengths as varied as the demonstration's. Exits with 1 where a peak is more than 10 %
off.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time

from loadgen.cli.sweep import DEMO
from loadgen.simulator.capacity import capacity, virtual_run
from loadgen.simulator.engine import EngineConfig
from loadgen.workload.prompts import LengthRange, parse_length

ALLOWED = 0.10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3,4,5,6,7,8,9,10", help="comma-separated")
    inputs, outputs = (parse_length(str(DEMO[name]), name) for name in ("input_len", "output_len"))
    print("| seed | in | out | capacity | virtual | peak | of capacity | of virtual | held | broke | s |")
    print("|" + " --: |" * 11)
    missed = 0
    for seed in map(int, parser.parse_args().seeds.split(",")):
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "loadgen", "sweep", "--simulate", "--demo", "--seed", str(seed)]
            done = subprocess.run([*command, "--json", "-o", folder], capture_output=True, text=True)
        seconds = time.monotonic() - started
        report = json.loads(done.stdout)
        answer = report["answer"]
        best = max(report["steps"], key=lambda step: step["output_throughput"] or 0.0)
        mean_in, mean_out = (best[f"total_{name}_tokens"] / best["completed"] for name in ("input", "output"))
        config = EngineConfig(seed=seed)
        closed = capacity(config, mean_in, mean_out)
        virtual = virtual_run(
            config, best["max_concurrency"], round(inputs.mean), round(outputs.mean), 4000, seed, spread(inputs)
        )
        peak = answer["peak_throughput_tok_s"]["value"]
        missed += abs(peak / closed - 1) > ALLOWED
        cells = (
            *(seed, f"{mean_in:.1f}", f"{mean_out:.1f}", f"{closed:.0f}", f"{virtual.throughput:.0f}", f"{peak:.0f}"),
            *(f"{peak / closed:.1%}", f"{peak / virtual.throughput:.1%}", answer["held"], answer["broke"]),
            f"{seconds:.0f}",
        )
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    return 1 if missed else 0


def spread(lengths: LengthRange) -> float:
    return (lengths.high - lengths.low) / 2 / lengths.mean


if __name__ == "__main__":
    sys.exit(main())
