"""What a second process costs: CPU per event of one run, by one worker and by two, on the same paced load.

    python -m benchmarks.workers                              1,024 streams of 50 events/s, smooth and lockstep
    python -m benchmarks.workers --streams 512 --rounds 5 --json

`tokend` has the first core, the client's processes share the others. The arms take turns; CPU is that of all of the
client's processes, the deciding one too, while the load is steady (from when every stream has been answered once until
the last request arrives), by the events sent in that time. A process that has fewer streams finds fewer events each
time it wakes, and so takes more CPU for each: two workers are compared with one that has as many streams as each of
them (the bar: within 10 %), and with one that has them all.
"""

from __future__ import annotations

import argparse
import itertools
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
    parser.add_argument("--streams", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--waves", type=int, default=4, help="requests a stream  [4]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    arms = {"half, one": (args.streams // 2, 1), "all, one": (args.streams, 1), "all, two": (args.streams, 2)}
    found: dict[tuple[bool, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        binary = build(Path(place))
        for _ in range(args.rounds):
            for lockstep, (arm, (streams, workers)) in itertools.product((False, True), arms.items()):
                load = Load(streams, streams * args.waves, args.tokens, TTFT_MS, ITL_MS, lockstep)
                one = measure(binary, load, workers, cores)
                print(f"… {load.name}, {workers}: {one['us_per_event']:.1f} µs", file=sys.stderr)
                found.setdefault((lockstep, arm), []).append(one)
    if args.json:
        print(
            json.dumps([{"lockstep": is_lockstep, "arm": arm, "rounds": r} for (is_lockstep, arm), r in found.items()])
        )
        return
    print(f"CPU µs/event; {args.streams:,} streams, {args.rounds} rounds, medians; ratios within rounds")
    print("| load | events/s | half, one | all, one | all, two | two / half | two / all |\n|" + " --- |" * 7)
    for lockstep in (False, True):
        half, one, two = ([r["us_per_event"] for r in found[lockstep, arm]] for arm in arms)
        events_s = median(r["events_s"] for r in found[lockstep, "all, two"])
        cells = [
            "lockstep" if lockstep else "smooth",
            f"{events_s:,.0f}",
            *(f"{median(x):.1f}" for x in (half, one, two)),
        ]
        cells += [f"{median(b / a for a, b in zip(x, two, strict=True)):.2f}" for x in (half, one)]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
