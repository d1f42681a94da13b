"""Is the planted cause the first finding? 60 scenarios with one cause each and 12 healthy ones, in virtual time.

    python -m benchmarks.diagnose --develop --seed 0      # for making rules; any number of times
    python -m benchmarks.diagnose --write docs/diagnose.md  # seeds from 5000, other ranges: judged

The rules' thresholds are fixed before the second is run. A scenario counts as found where its cause stands first; where
the server's metrics are missing, a limit of the batch and one before the server are one class.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.planted import Planted, play
from benchmarks.planted_cases import COUNTS, DEVELOP, HEALTHY, SCORE, right, scenarios
from loadgen.analysis import summarise_run
from loadgen.analysis.diagnose import CAUSES, Diagnosis, Measured, diagnose
from loadgen.log.columns import columns
from loadgen.report.facts import facts_of
from loadgen.slo import parse_slo

BEGIN, END = "<!-- begin: scores -->", "<!-- end: scores -->"


def measured(planted: Planted, seed: int) -> Measured:
    """A played run as the command would read it."""
    run = play(planted, seed)
    slo = parse_slo(list(planted.objectives))
    table = columns(run.records)
    facts = facts_of(run.manifest, source="", status="complete", requests=len(table), failed=0)
    return Measured(summarise_run(table, slo, run.observations, run.server), table, run.manifest, slo, facts.apart)


def diagnosed(planted: Planted, seed: int) -> Diagnosis:
    other = measured(planted.second, seed + 1) if planted.second is not None else None
    return diagnose(measured(planted, seed), other)


def confusion(rows: Sequence[tuple[Planted, Diagnosis]]) -> list[str]:
    """The table: planted cause by first finding."""
    counts: dict[str, Counter[str]] = {cause: Counter() for cause in [*COUNTS, "healthy"]}
    hits: Counter[str] = Counter()
    for planted, found in rows:
        first = found.first.cause if found.first else "none"
        counts[planted.cause][first] += 1
        hits[planted.cause] += first in right(planted)
    lines = ["| planted | scenarios | first finding is right | first findings |", "| --- | --- | --- | --- |"]
    for cause, found_by in counts.items():
        if not found_by:
            continue
        told = ", ".join(f"{name} {n}" for name, n in found_by.most_common())
        share = f"{hits[cause]} of {found_by.total()}" if cause != "healthy" else "–"
        lines.append(f"| {cause} | {found_by.total()} | {share} | {told} |")
    total = [(p, d) for p, d in rows if p.cause != "healthy"]
    healthy = [d for p, d in rows if p.cause == "healthy"]
    found_n = sum(hits[cause] for cause in COUNTS)
    lines.append("")
    if total:
        lines.append(f"Right cause first: {found_n} of {len(total)} ({100 * found_n / len(total):.0f} %).")
    if healthy:
        errors = sum(d.failed for d in healthy)
        lines.append(f"Healthy servers with an error-level finding: {errors} of {len(healthy)}.")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--develop", action="store_true")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", default="")
    parser.add_argument("--write", type=Path)
    flags = parser.parse_args()
    family = DEVELOP if flags.develop else SCORE
    first = flags.seed if flags.seed is not None else 0 if flags.develop else 5000
    rows = []
    for seed, planted in scenarios(family, first):
        if flags.only and planted.cause not in flags.only.split(","):
            continue
        found = diagnosed(planted, seed)
        rows.append((planted, found))
        told = ", ".join(f"{f.cause}({f.gravity[0]}{f.confidence[0]})" for f in found.findings[:5])
        first_cause = found.first.cause if found.first else "none"
        mark = " " if planted.cause == "healthy" else "+" if first_cause in right(planted) else "MISS"
        if planted.cause == "healthy" and found.failed:
            mark = "ERROR"
        print(f"{seed} {planted.cause:26} {'m' if planted.metrics else '-'} {mark:5} {told}", flush=True)
    lines = confusion(rows)
    print("\n".join(lines))
    if flags.write:
        text = flags.write.read_text()
        head, tail = text.split(BEGIN)[0], text.split(END)[1]
        flags.write.write_text(f"{head}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{tail}")


if __name__ == "__main__":
    assert set(COUNTS) <= set(CAUSES)
    assert HEALTHY
    main()
