"""What a second process costs: CPU per event of one run, by one worker and by two, on the same paced load.

    python -m benchmarks.workers                              1,024 streams of 50 events/s, smooth and lockstep
    python -m benchmarks.workers --streams 512 --rounds 5 --json
    python -m benchmarks.workers --spread                     two cores, and a core for each worker all the same

`tokend` has the first core for itself, the client's processes share the others. Where that is a single one, the two
workers take turns on it: they then have the same core and caches as the one they are compared with, where `--spread`
gives the second worker the server's, which is a worse one. The arms take turns; CPU is that of all of the client's
processes, the deciding one too, while the load is steady (from when every stream has been answered once until the last
request arrives), by the events sent in that time. A process that has fewer streams finds fewer events each time it
wakes, and so takes more CPU for each: two workers are compared with one that has as many streams as each of them (the
bar: within 10 %), and with one that has them all. What the machine takes for two processes that send at once is in a
third comparison, with two runs of half the streams each, started by hand at the same moment.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks.peers import child
from benchmarks.peers.truth import Load, Tokend, build
from loadgen.log.store import open_run

ROOT = Path(__file__).resolve().parents[1]
TTFT_MS, ITL_MS = 50.0, 20.0


class Arm(NamedTuple):
    name: str
    streams: int
    workers: int = 1
    runs: int = 1  # at the same time, each with its share of the streams


def measure(binary: Path, load: Load, arm: Arm, core: int, own: set[int]) -> dict[str, float]:
    """One arm's load sent once, the server on its `core` and the client's processes on their `own` → CPU µs an event,
    events/s and the seconds that count."""
    server = Tokend(binary, load, core, departures=False)
    one = shlex.join(
        [
            *(sys.executable, "-m", "loadgen", "run", server.url, "-c", str(load.streams // arm.runs)),
            *("--requests", str(load.requests // arm.runs), "--input-len", "50", "--output-len", str(load.tokens)),
            *("--workers", str(arm.workers), "--quiet"),
        ]
    )
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        try:
            folders = [folder / f"runs{number}" for number in range(arm.runs)]
            usage = child.run(
                ["sh", "-c", "".join(f"{one} -o {shlex.quote(str(runs))} & " for runs in folders) + "wait"],
                cores=own,
                timeout_s=300,
                out=folder / "output",
                folder=ROOT,
                env=dict(os.environ),
            )
        finally:
            truth = server.stop()
        found = [run for runs in folders for run in runs.glob("*")]
        by_worker = Counter((run, r.worker) for run in found for r in open_run(run).records() if r.step)
        if len(by_worker) != arm.workers * arm.runs:
            raise SystemExit((folder / "output").read_text())
    assert max(by_worker.values()) < 1.2 * min(by_worker.values()), by_worker
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
    parser.add_argument("--spread", action="store_true", help="let the client's processes have the server's core too")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    own = set(cores if args.spread or len(cores) == 1 else cores[1:])
    half = args.streams // 2
    arms = [Arm("half, one", half), Arm("all, one", 2 * half), Arm("two runs", 2 * half, runs=2)]
    arms.append(Arm("two workers", 2 * half, workers=2))
    found: dict[tuple[bool, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        binary = build(Path(place))
        for _ in range(args.rounds):
            for lockstep, arm in itertools.product((False, True), arms):
                load = Load(arm.streams, arm.streams * args.waves, args.tokens, TTFT_MS, ITL_MS, lockstep)
                one = measure(binary, load, arm, cores[0], own)
                print(f"… {load.name}, {arm.name}: {one['us_per_event']:.1f} µs", file=sys.stderr)
                found.setdefault((lockstep, arm.name), []).append(one)
    if args.json:
        print(
            json.dumps([{"lockstep": is_lockstep, "arm": arm, "rounds": r} for (is_lockstep, arm), r in found.items()])
        )
        return
    names = [arm.name for arm in arms]
    others = names[:-1]
    print(f"CPU µs/event; {2 * half:,} streams, {args.rounds} rounds, medians; ratios within rounds")
    print(f"| load | events/s | {' | '.join(names)} | two workers / {' | / '.join(others)} |\n|" + " --- |" * 9)
    for lockstep in (False, True):
        cost = {name: [r["us_per_event"] for r in found[lockstep, name]] for name in names}
        two = cost[names[-1]]
        cells = [
            "lockstep" if lockstep else "smooth",
            f"{median(r['events_s'] for r in found[lockstep, names[-1]]):,.0f}",
            *(f"{median(cost[name]):.1f}" for name in names),
            *(f"{median(b / a for a, b in zip(cost[name], two, strict=True)):.2f}" for name in others),
        ]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
