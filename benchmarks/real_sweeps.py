"""Does the same sweep of a real vLLM give the same answer, several times in a row?

    python -m benchmarks.real_sweeps "tools/real-vllm start DIR" [--sweeps 5] [--slo tpot_p95=40ms] [--max-time 8m]
        [--precision 2.5%]

The command is one that, with a port and flags behind it, starts a server on the CPU and prints its process id once it
answers. Give client and server a core of their own (`taskset -c 0` for this, `taskset -c 1` within the command).

Two sweeps agree where their brackets [highest load that passed, lowest that failed] overlap, their limits are within a
factor of 1.1, or their percentiles at the limit within 5 %; and where their peak throughputs, each as precise as asked
for, are within 5 %. A sweep that calls the server unsteady claims nothing of its peak, within itself or since the one
before: their logs are in one folder.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import combinations
from typing import Any, NamedTuple

from benchmarks.real_experiments import LOADGEN, OFF, PORTS, server
from loadgen.analysis.since import UNSTEADY


class Answer(NamedTuple):
    seconds: float
    code: int
    requests: int
    reason: str
    held: float | None
    broke: float | None
    limit: float | None
    at_limit: float | None  # the percentile of the objective there, ms
    peak: tuple[float, float, float] | None
    unsteady: bool
    since: str  # what it says of the sweep before
    levels: str
    sentence: str

    @property
    def changed(self) -> bool:
        """Does it say that server or machine are not what they were in the sweep before?"""
        return self.since.startswith(UNSTEADY)


def sweep(url: str, slo: str, more: list[str], folder: str) -> Answer:
    begun = time.monotonic()
    shape = ["--input-len", "32-64", "--output-len", "16-32", "--slo", slo, "--json", "--quiet", "-o", folder]
    done = subprocess.run([*LOADGEN, "sweep", url, *shape, *more], capture_output=True, text=True)
    try:
        told: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        sys.exit(f"the sweep ended with {done.returncode}:\n{done.stderr}")
    answer, steps = told["answer"], told["steps"]
    metric, percentile = slo.partition("=")[0].rsplit("_p", 1)
    there = [s for s in steps if s["max_concurrency"] == answer["limit"]]
    peak = answer["peak_throughput_tok_s"]
    return Answer(
        seconds=time.monotonic() - begun,
        code=done.returncode,
        requests=told["requests"],
        reason=answer["reason"],
        held=answer["held"],
        broke=answer["broke"],
        limit=answer["limit"],
        at_limit=there[-1].get(f"p{percentile}_{metric}_ms") if there else None,
        peak=None if peak is None else (peak["value"], peak["low"] or 0.0, peak["high"] or float("inf")),
        unsteady=answer["unsteady"],
        since=next((note for note in told["notes"] if "from the run before" in note), ""),
        levels=" ".join(f"{s['max_concurrency']}:{s['verdict']}" for s in steps),
        sentence=answer["sentence"],
    )


def same(a: Answer, b: Answer) -> bool:
    """Do two answers say the same of where the limit is?"""
    lows = (a.held or 0.0, b.held or 0.0)
    highs = (a.broke or float("inf"), b.broke or float("inf"))
    if a.broke and b.broke and max(lows) <= min(highs):
        return True
    if a.limit and b.limit and max(a.limit, b.limit) <= 1.1 * min(a.limit, b.limit):
        return True
    return bool(a.at_limit and b.at_limit and max(a.at_limit, b.at_limit) <= 1.05 * min(a.at_limit, b.at_limit))


def spread(peak: tuple[float, float, float]) -> float:
    """Half of its interval, as a share."""
    return (peak[2] - peak[1]) / 2 / peak[0]


def share(text: str) -> float:
    return float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)


def apart(a: Answer, b: Answer) -> float:
    """Their peaks, the higher over the lower."""
    if a.peak is None or b.peak is None:
        return float("inf")
    return max(a.peak[0], b.peak[0]) / min(a.peak[0], b.peak[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", help="a command that takes PORT and flags, and prints the server's process id")
    parser.add_argument("--sweeps", type=int, default=5)
    parser.add_argument("--slo", default="tpot_p95=40ms")
    parser.add_argument("--max-time", default="8m")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--precision", default="2.5%", help="of the peak throughput")
    parser.add_argument("--from", dest="first", default="1", help="the concurrency that each sweep begins with")
    flags = parser.parse_args()
    answers = []
    more = ["--effort", flags.effort, "--max-time", flags.max_time, "--start", flags.first]
    more += ["--precision", flags.precision]
    with server(flags.start, PORTS[0], OFF) as url, tempfile.TemporaryDirectory() as folder:
        for number in range(flags.sweeps):
            answers.append(sweep(url, flags.slo, more, folder))
            print(f"{number + 1} {answers[-1]}", flush=True)

    print(f"\n| sweep | limit | proven | {flags.slo.partition('=')[0]} there, ms | peak tokens/s | requests | s |")
    print("| --: | --: | --: | --: | --: | --: | --: |")
    for number, one in enumerate(answers, 1):
        peak = "–" if one.peak is None else f"{one.peak[0]:.0f} ±{100 * spread(one.peak):.1f} %"
        print(
            f"| {number} | {one.limit} | {one.held} to {one.broke} | {one.at_limit or float('nan'):.1f} | {peak}"
            f" | {one.requests} | {one.seconds:.0f} |{' unsteady' if one.unsteady else ''}"
            f"{' changed since the one before' if one.changed else ''}"
        )
    print()
    for number, one in enumerate(answers, 1):
        print(f"{number}: {one.since}")
    print()
    for name, some in (
        ("all sweeps", answers),
        ("those that do not call the server unsteady", [one for one in answers if not one.unsteady]),
    ):
        pairs = list(combinations(some, 2))
        peaks = [one.peak[0] for one in some if one.peak is not None]
        most = f"; peaks, highest over lowest: {max(peaks) / min(peaks):.3f}" if peaks else ""
        print(f"{name}: {sum(same(a, b) for a, b in pairs)} of {len(pairs)} pairs agree on the limit{most}")
    steady = [one for one in answers if not one.unsteady]
    rough = [one for one in steady if one.peak is None or spread(one.peak) > share(flags.precision) + 0.0005]
    print(f"steady, but with a peak less precise than ±{flags.precision}: {len(rough)} of {len(answers)}")
    untold = [
        (i, j)
        for (i, a), (j, b) in combinations([(i, one) for i, one in enumerate(answers) if not one.unsteady], 2)
        if apart(a, b) > 1.05 and not any(one.changed for one in answers[i + 1 : j + 1])
    ]
    print(f"steady, peaks more than 5 % apart, and no change told between them: {len(untold)} pairs")
    return 0 if all(same(a, b) for a, b in combinations(answers, 2)) and not untold and not rough else 1


if __name__ == "__main__":
    sys.exit(main())
