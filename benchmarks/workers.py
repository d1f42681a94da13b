"""What a second process costs: CPU per event of one run, by one worker and by two, on the same paced load.

    python -m benchmarks.workers                              512 streams of 50 events/s, smooth and lockstep
    python -m benchmarks.workers --streams 1024 --rounds 5 --json

`tokend` has the first core, the client's processes share the others. The arms take turns; CPU is that of all of the
client's processes, the deciding one too, while the load is steady (from when every stream has been answered once until
the last request arrives), by the events sent in that time. The bar: two within 10 % of one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.peers import child
from benchmarks.peers.truth import Load, Tokend, build
from loadgen.log.store import open_run

ROOT = Path(__file__).resolve().parents[1]
TTFT_MS, ITL_MS = 50.0, 20.0


def measure(binary: Path, load: Load, workers: int, cores: list[int]) -> dict[str, float]:
    """One run → CPU µs an event, events/s, the busy share of the client's cores, and requests by worker."""
    server = Tokend(binary, load, cores[0])
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        try:
            usage = child.run(
                [
                    *(sys.executable, "-m", "loadgen", "run", server.url, "-c", str(load.streams)),
                    *("--requests", str(load.requests), "--input-len", "50", "--output-len", str(load.tokens)),
                    *("--workers", str(workers), "-o", str(folder / "runs"), "--quiet"),
                ],
                cores=set(cores[1:] or cores),
                timeout_s=300,
                out=folder / "output",
                folder=ROOT,
                env=dict(os.environ),
            )
        finally:
            truth = server.stop()
        if usage.code not in (0, 4):  # 4: too busy a machine for a verdict; the CPU it took is what is asked for here
            raise SystemExit((folder / "output").read_text())
        by_worker = Counter(r.worker for r in open_run(next((folder / "runs").iterdir())).records() if r.step)
    assert len(by_worker) == workers and max(by_worker.values()) < 1.2 * min(by_worker.values()), by_worker
    start, end = truth.requests[2 * load.streams].arrived_ns, truth.requests[-1].arrived_ns
    stamps = np.concatenate([r.tokens_ns for r in truth.requests])
    events = int(((stamps >= start) & (stamps < end)).sum())
    cpu_s, _ = usage.between(start, end)
    return {
        "us_per_event": 1e6 * cpu_s / events,
        "events_s": 1e9 * events / (end - start),
        "seconds": (end - start) / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--waves", type=int, default=4, help="requests a stream  [4]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        binary = build(Path(place))
        for _ in range(args.rounds):
            for lockstep in (False, True):
                load = Load(args.streams, args.streams * args.waves, args.tokens, TTFT_MS, ITL_MS, lockstep)
                for workers in (1, 2):
                    one = measure(binary, load, workers, cores)
                    print(f"… {load.name}, {workers}: {one['us_per_event']:.1f} µs", file=sys.stderr)
                    found.setdefault((load.name, workers), []).append(one)
    if args.json:
        print(json.dumps([{"load": name, "workers": n, "rounds": rounds} for (name, n), rounds in found.items()]))
        return
    print("| load | events/s | one, µs/event | two, µs/event | ratio |\n| --- | --: | --: | --: | --: |")
    for name in dict.fromkeys(name for name, _ in found):
        one, two = ([r["us_per_event"] for r in found[name, n]] for n in (1, 2))
        ratio = median(b / a for a, b in zip(one, two, strict=True))
        events_s = median(r["events_s"] for r in found[name, 1])
        print(f"| {name} | {events_s:,.0f} | {median(one):.1f} | {median(two):.1f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
