"""Do the experiments find what is there, and nothing where nothing is? All nine, in virtual time.

    python -m benchmarks.experiments [NAME…] [--seeds 20] [--write]

`true` is B over A by long runs of other seeds, and its standard error. Of so many experiments, each with a seed of its
own: in how many does the 95 % interval hold the true value (`inside`), how many end as expected (`as expected`), and
how many find any difference where both arms are A (`alarms`). `--write` puts the table into benchmarks/RESULTS.md.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadgen.analysis.interleaved import order, run_level
from loadgen.experiments.definition import Setting
from loadgen.experiments.effects import expected_ratio
from loadgen.experiments.library import load_experiment, names
from loadgen.experiments.verdict import judged
from loadgen.experiments.virtual import run_arm

RESULTS = Path(__file__).parent / "RESULTS.md"
BEGIN, END = "<!-- experiments: begin -->", "<!-- experiments: end -->"
LONGER, REPLICATIONS = 5, 6
TRUTH_SEED = 900_000


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    title: str
    figure: str
    formula: float | None
    true: float
    error: float
    inside: int
    as_expected: int
    alarms: int
    seeds: int

    def __str__(self) -> str:
        formula = "–" if self.formula is None else f"{self.formula:.3f}"
        return (
            f"| {self.name}: {self.title} | {self.figure} | {formula} | {self.true:.4f} ±{self.error:.4f} "
            f"| {self.inside} of {self.seeds} | {self.as_expected} | {self.alarms} |"
        )


HEAD = (
    "| experiment | figure | by formula, B / A | true, B / A | inside | as expected | alarms |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)


def truth(setting: Setting) -> tuple[float, float]:
    """B over A of the first figure: the mean log ratio of long runs, and the ratio's standard error."""
    length = LONGER * setting.load.requests
    logs = []
    for number in range(REPLICATIONS):
        seed = TRUTH_SEED + number
        runs = [
            [run_arm(setting, arm, seed, 2 * seed + i, requests=length)] for i, arm in enumerate((setting.a, setting.b))
        ]
        ratio = run_level(runs[0], runs[1], setting.primary)[0].ratio
        assert ratio is not None
        logs.append(ratio.value)
    ratio_true = math.exp(float(np.mean(logs)))
    return ratio_true, ratio_true * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))


def row(name: str, setting: Setting, seeds: int) -> Row:
    """Arm A of each pair is run twice, with noise of its own: the second time as an equal B."""
    true, error = truth(setting)
    figures = setting.primary
    inside = as_expected = alarms = 0
    for i in range(seeds):
        seed = 100 * (i + 1)
        a, b, equal = [], [], []
        for number, which in enumerate(order(setting.load.pairs)):
            pair = seed + number // 2
            arm = setting.a if which == "A" else setting.b
            (a if which == "A" else b).append(run_arm(setting, arm, pair, seed * 1000 + number))
            if which == "B":
                equal.append(run_arm(setting, setting.a, pair, seed * 1000 + 500 + number))
        found = run_level(a, b, figures)
        first = found[0].ratio
        assert first is not None
        interval = first.ratio
        inside += interval.low is not None and interval.high is not None and interval.low <= true <= interval.high
        as_expected += judged(setting, found).answer == "as expected"
        alarms += any(d.found for d in run_level(a, equal, figures))
    return Row(
        name, setting.title, setting.expect.figure.name, expected_ratio(setting), true, error, inside, as_expected,
        alarms, seeds,
    )  # fmt: skip


def write(table: str) -> None:
    text = RESULTS.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2] if rest else "\n"
    RESULTS.write_text(f"{before.rstrip()}\n\n{BEGIN}\n{table}\n{END}\n{after.lstrip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--requests", type=int, help="of each run, in place of the experiment's own")
    parser.add_argument("--write", action="store_true")
    flags = parser.parse_args()
    rows = []
    print(HEAD, flush=True)
    chosen = [load_experiment(name) for name in flags.names or names()]
    found = [(one.name, one.settings[i]) for i in (0, 1) for one in chosen if len(one.settings) > i]
    for name, setting in found:
        rows.append(row(name, setting.shortened(flags.requests, None), flags.seeds))
        print(rows[-1], flush=True)
    if flags.write:
        command = f"`python -m benchmarks.experiments --seeds {flags.seeds}`"
        text = (
            f"## Experiments\n\n{command}: each experiment of `loadgen experiment --list` in virtual time, as its file "
            f"says. *Inside*: the 95 % interval holds the true ratio, which long runs give ({REPLICATIONS} of "
            f"{LONGER} times the length). *Alarms*: experiments that found any difference between equal arms."
            f"\n\n{HEAD}\n"
        )
        write(text + "\n".join(map(str, rows)))


if __name__ == "__main__":
    main()
