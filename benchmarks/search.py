"""Does the search find what is true, and do its intervals hold what they promise? All in virtual time.

    python -m benchmarks.search [--only search,fixed,coverage,plateau,rate] [--engines 40] [--seeds 3] [--repeats 2000]

`search`    whole sweeps of seeded engines against limits from long runs
`fixed`     the same bisection with a fixed number of requests a level, and point decisions
`coverage`  how often a printed 95 % interval holds the true percentile; how often drift, stalls, lockstep are flagged
`plateau`   false and missed plateaus on curves of known gain
`rate`      open loop: which rates are called unstable
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.search_cases import Case, cases
from benchmarks.search_tables import coverage, plateau, rates
from benchmarks.search_tables import flags as unsteady
from benchmarks.virtual import VirtualServer, VirtualSweep, sweep
from loadgen.search import SweepPlan

NEAR = 0.05


@dataclass(frozen=True, slots=True)
class Found:
    """How one sweep did against the truth."""

    case: Case
    sweep: VirtualSweep
    answer: float | None

    @property
    def close(self) -> bool:
        """The answer is within 5 %, or 1, of the true limit, and what the truth leaves open."""
        load, doubt = self.case.load, self.case.doubt
        if self.answer is None:
            return math.isinf(load)
        return abs(self.answer - load) <= max(1.0, NEAR * load) + doubt

    @property
    def level_met(self) -> bool:
        """The true percentile at the answer is within 5 % of the objective."""
        if self.answer is None or self.answer < 1:
            return False
        return abs(self._of_limit(self.answer) - 1) <= NEAR

    @property
    def right(self) -> bool:
        if self.sweep.stop.first == "plateau":  # then no limit was looked for: nothing said may be false
            return self.certain
        return self.close or self.level_met or self.crosses

    @property
    def crosses(self) -> bool:
        """The true percentile crosses the objective just here: a percentile that is not monotone has several limits."""
        if self.answer is None or self.answer < 1:
            return False
        at, above = (self.case.percentile_ms(round(self.answer) + more) for more in (0, 1))
        return at <= self.case.limit_ms < above

    @property
    def certain(self) -> bool:
        """Neither end of the proven bracket is proven wrong by the truth."""
        stop, load, doubt = self.sweep.stop, self.case.load, self.case.doubt
        held = stop.held is None or stop.held <= load + doubt or self._of_limit(stop.held) <= 1
        return held and (stop.broke is None or stop.broke >= load - doubt or self._of_limit(stop.broke) > 1)

    def _of_limit(self, level: float) -> float:
        return self.case.percentile_ms(round(level)) / self.case.limit_ms


def searches(
    chosen: Sequence[Case], seeds: int, say: Callable[[str], None], effort: str, fixed: int | None = None
) -> list[Found]:
    found = []
    for one in chosen:
        for seed in range(seeds):
            server = VirtualServer(one.config, one.mix, seed=1 + seed + 100 * one.config.seed)
            done = sweep(server, SweepPlan(has_slo=True, max_level=one.most), one.slo, effort=effort, fixed=fixed)
            found.append(Found(one, done, done.stop.limit))
            say(told(found[-1]))
    return found


def told(found: Found) -> str:
    stop = found.sweep.stop
    marks = "".join("·" if good else letter for good, letter in ((found.right, "R"), (found.certain, "B")))
    return (
        f"{marks} {found.case.name:24} limit {found.case.load:6.1f} ±{found.case.error:4.2f}  "
        f"answer {stop.limit or '-'!s:>4} [{stop.held or '-'!s:>4}, {stop.broke or '-'!s:>4}]  "
        f"{stop.reason:14} {stop.first or '-':8} {found.sweep.requests:7,} requests, {len(found.sweep.history)} steps"
        f"{'  unsteady' if stop.unsteady else ''}"
    )


def by_engine(found: Sequence[Found], good: Callable[[Found], bool]) -> str:
    """How many sweeps, and how many engines in most of their sweeps."""
    engines: dict[str, list[bool]] = {}
    for one in found:
        engines.setdefault(one.case.name, []).append(good(one))
    most = sum(2 * sum(results) > len(results) for results in engines.values())
    return f"{sum(map(good, found)):3d} of {len(found)} sweeps, {most:2d} of {len(engines)} engines"


def print_searches(found: Sequence[Found]) -> None:
    print(f"answer within 5 % or 1, or percentile there within 5 %   {by_engine(found, lambda f: f.right)}")
    print(f"  answer within 5 % or 1 of the limit                    {by_engine(found, lambda f: f.close)}")
    print(f"certain bracket right                                    {by_engine(found, lambda f: f.certain)}")
    print(f"called unsteady (the engines are steady)                 {sum(f.sweep.stop.unsteady for f in found):3d}")
    requests = [f.sweep.requests for f in found]
    print(f"requests a sweep                                         {statistics.mean(requests):,.0f} on average")
    print(f"stop reasons   {dict(Counter(f.sweep.stop.reason for f in found))}")
    print(f"what came first {dict(Counter(f.sweep.stop.first for f in found))}")


def engines_of(text: str) -> slice:
    """The first so many, or FROM to TO, TO included. ArgumentTypeError for what is neither."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor FROM-TO")
    first, last = found.groups()
    return slice(int(last)) if first is None else slice(int(first), int(last) + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="search,fixed,coverage,plateau,rate")
    parser.add_argument("--engines", default="40", type=engines_of, help="how many, or FROM-TO (TO included)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--effort", default="normal")
    parser.add_argument("--verbose", action="store_true")
    flags = parser.parse_args()
    chosen = flags.only.split(",")
    engines = cases()[flags.engines]
    began = time.process_time()
    if "search" in chosen:
        print(f"\n{len(engines)} engines, {flags.seeds} seeds, effort {flags.effort}")
        print_searches(searches(engines, flags.seeds, print if flags.verbose else lambda line: None, flags.effort))
    for fixed in (1000, 4000) if "fixed" in chosen else ():
        print(
            f"\n{len(engines)} engines, {flags.seeds} seeds, {fixed:,} requests a level ({fixed * 5 // 2:,} for a p99)"
        )
        say = print if flags.verbose else lambda line: None
        print_searches(searches(engines, flags.seeds, say, flags.effort, fixed))
    if "coverage" in chosen:
        coverage(flags.repeats)
        unsteady(max(1, flags.repeats // 20))
    if "plateau" in chosen:
        plateau(max(1, flags.repeats // 10))
    if "rate" in chosen:
        rates(max(1, flags.repeats // 20))
    print(f"\n{time.process_time() - began:.0f} s of CPU")


if __name__ == "__main__":
    main()
