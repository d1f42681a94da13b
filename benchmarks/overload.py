"""Does a client that is the limit say so, and does a healthy one keep quiet?

    python -m benchmarks.overload [--runs 50] [--json FILE]

Each run measures the embedded simulator, on a core of its own, with `loadgen run` on another one. In a planted run the
client has, for as long as its step lasts, the lowest priority (nice 19) and a busy neighbour on its core: it must be
called `invalid`. Its healthy twin has not: it must not be, if the kernel's own accounting (schedstat) says that the
client hardly ever waited for its core. A healthy run that other work on this machine disturbed proves nothing, and is
counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from typing import Any

import anyio

from loadgen.results import StepSummary
from loadgen.runner import Nobody, RunConfig, WorkloadChoice, execute
from loadgen.search.sweep import SweepPlan
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.process import SimulatorProcess

UNDISTURBED_WAIT = 0.03  # of the window, ready to run without a CPU
UNDISTURBED_STEAL = 0.01
NEIGHBOUR = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
parent = os.getppid()
sys.stdin.read(1)
end = time.monotonic() + 300
while os.getppid() == parent and time.monotonic() < end:
    for _ in range(100_000):
        pass
"""


class Overloaded(Nobody):
    """Takes the CPU away when the step starts, and gives it back at its end."""

    def __init__(self, core: int) -> None:
        self.neighbour = subprocess.Popen(
            [sys.executable, "-c", NEIGHBOUR, str(core)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )

    def step_started(self, progress: Any, why: str, share: Any) -> None:
        assert self.neighbour.stdin is not None
        self.neighbour.stdin.write(b"x")
        self.neighbour.stdin.flush()
        os.nice(19)

    def step_ended(self, summary: StepSummary, level: Any) -> None:
        self.stop()

    def stop(self) -> None:
        self.neighbour.kill()
        self.neighbour.wait()
        with contextlib.suppress(OSError):
            self.neighbour.stdin.close()  # type: ignore[union-attr]


def child(url: str, core: int, planted: bool, streams: int, requests: int, httpx_pool: bool) -> None:
    """One run, in a process of its own; says on stdout what came of it."""
    from dataclasses import replace

    os.sched_setaffinity(0, {core})
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(
            "run",
            url,
            workload=WorkloadChoice("64", "32"),
            plan=SweepPlan(levels=(streams,)),
            requests=requests,
            output=folder,
        )
        config = replace(config, access=replace(config.access, httpx_pool=httpx_pool))
        watcher = Overloaded(core) if planted else Nobody()
        try:
            finished = anyio.run(execute, config, watcher)
        finally:
            if isinstance(watcher, Overloaded):
                watcher.stop()
    summary, level = finished.summaries[0], finished.levels[0]
    health = summary.health
    assert health is not None
    said = {
        "planted": planted,
        "verdict": level.verdict,
        "why": summary.client_limit.what if summary.client_limit else None,
        "remedy": summary.client_limit.remedy if summary.client_limit else None,
        "reason": finished.stop.reason,
        "health": asdict(health),
        "error_ms": {name: asdict(bound) for name, bound in summary.error_ms.items()},
        "ttft_p50_ms": summary.latency["ttft"].percentiles[0].value if summary.latency["ttft"].n else None,
        "e2e_p50_ms": summary.latency["e2e"].percentiles[0].value if summary.latency["e2e"].n else None,
        "little": summary.littles_law_residual,
    }
    sys.stdout.write(json.dumps(said) + "\n")


def undisturbed(run: dict[str, Any]) -> bool:
    health = run["health"]
    return (health["wait_share"] or 0.0) < UNDISTURBED_WAIT and (health["steal_share"] or 0.0) < UNDISTURBED_STEAL


def line(run: dict[str, Any]) -> str:
    health = run["health"]
    kind = "planted" if run["planted"] else "undisturbed" if undisturbed(run) else "disturbed"
    loop, refill = ((health[key] or {}).get("p99", 0.0) / 1e3 for key in ("loop_lag_us", "refill_lag_us"))
    return (
        f"{kind:<12}{run['verdict']:<10} cpu {100 * health['cpu_share']:5.1f} %  wait {100 * health['wait_share']:5.1f}"
        f" %  loop p99 {loop:8.2f} ms  refill p99 {refill:8.2f} ms  e2e p50 {run['e2e_p50_ms'] or 0:8.1f} ms"
        f"  {run['why'] or ''}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="planted runs, and as many healthy ones (default 3)")
    parser.add_argument("--streams", type=int, default=8, help="requests in flight (default 8)")
    parser.add_argument("--requests", type=int, default=40, help="measured requests a run (default 40)")
    parser.add_argument("--only", choices=["planted", "healthy"], help="half of it")
    parser.add_argument("--httpx-pool", action="store_true", help="httpx's own transport, with user stamps")
    parser.add_argument("--json", metavar="FILE", help="write every run, one a line")
    parser.add_argument("--child", nargs=3, metavar=("URL", "CORE", "PLANTED"), help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.child:
        url, core, planted = flags.child
        child(url, int(core), planted == "1", flags.streams, flags.requests, flags.httpx_pool)
        return 0

    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("this needs two cores: one for the server, one for the client")
    kept = open(flags.json, "w") if flags.json else None  # noqa: SIM115, PTH123 - open for the whole run
    os.sched_setaffinity(0, {cores[0]})
    counts: Counter[str] = Counter()
    with SimulatorProcess(EngineConfig(max_batch=flags.streams, prefill_ms=0.02)) as simulator:
        for number in range(flags.runs):
            for planted in (True, False):
                if flags.only and (flags.only == "planted") != planted:
                    continue
                command = [sys.executable, "-m", "benchmarks.overload", "--child", simulator.url, str(cores[-1])]
                command += [str(int(planted)), "--streams", str(flags.streams), "--requests", str(flags.requests)]
                command += ["--httpx-pool"] if flags.httpx_pool else []
                done = subprocess.run(command, capture_output=True, text=True, timeout=600)
                if done.returncode:
                    sys.exit(f"a run failed:\n{done.stderr}")
                run = json.loads(done.stdout)
                kind = "planted" if planted else "undisturbed" if undisturbed(run) else "disturbed"
                counts[kind] += 1
                counts[f"{kind} invalid"] += run["verdict"] == "invalid"
                print(f"{number + 1:3d} {line(run)}", flush=True)
                if kept:
                    kept.write(json.dumps(run) + "\n")
                    kept.flush()
    print(f"\nplanted      {counts['planted invalid']} of {counts['planted']} called invalid")
    print(f"undisturbed  {counts['undisturbed invalid']} of {counts['undisturbed']} called invalid")
    print(f"disturbed    {counts['disturbed invalid']} of {counts['disturbed']} called invalid (these prove nothing)")
    good = counts["planted invalid"] == counts["planted"] and not counts["undisturbed invalid"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
