"""Does the search find what is true, and do its intervals hold what they promise? All in virtual time.

    python -m benchmarks.search [--only search,peak,fixed,coverage,plateau,rate] [--engines 40] [--seeds 3]

`search`    whole sweeps of seeded engines against limits from long runs
`peak`      whole sweeps of the same engines without an objective: where throughput stops growing, and at what level
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
from itertools import combinations
from typing import TypeVar

from benchmarks.search_cases import TRUTH, Case, cases
from benchmarks.search_tables import SHARES, coverage, plateau, rates
from benchmarks.search_tables import flags as unsteady
from benchmarks.virtual import VirtualServer, VirtualSweep, sweep
from loadgen.analysis.since import since, throughputs
from loadgen.results import Estimate, Slo
from loadgen.search import SweepPlan
from loadgen.simulator.oracle import Effort, Exact, at

NEAR = 0.05
LEAST_GAIN = math.log1p(SweepPlan().gain)
GLANCE = Effort(replications=3, requests=1000)


@dataclass(frozen=True, slots=True)
class Found:
    """How one sweep did against the truth."""

    case: Case
    sweep: VirtualSweep
    answer: float | None

    @property
    def near(self) -> bool:
        """The answer is within 5 %, or 1, of the limit that the long runs found."""
        if self.answer is None:
            return math.isinf(self.case.load)
        return abs(self.answer - self.case.load) <= max(1.0, NEAR * self.case.load)

    @property
    def close(self) -> bool:
        """The answer is within 5 %, or 1, of the true limit, and what the truth leaves open."""
        load, doubt = self.case.load, self.case.doubt
        if self.answer is None:
            return math.isinf(load)
        return abs(self.answer - load) <= max(1.0, NEAR * load) + doubt

    @property
    def to_the_letter(self) -> bool:
        """The answer is near, or the true percentile there within 5 % of the objective; the truth taken as exact. Where
        throughput stopped growing first, no limit was looked for."""
        return self.near or self.level_met or (self.sweep.stop.first == "plateau" and self.reason_right)

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

    @property
    def reason_right(self) -> bool:
        """Is the reason for which the sweep stopped true? Where throughput stops growing at the very rung at which the
        objective breaks, and where the true gain lies within its error of what counts as growth, both are."""
        kind, first = self.sweep.stop.reason.partition(":")[0], self.sweep.stop.first
        load, doubt = self.case.load, self.case.doubt
        top = max(level.concurrency for level in self.sweep.history)
        if first == "plateau":
            gain, error = self._gain(top)
            return gain - 2 * error < LEAST_GAIN and top <= 2 * (load + doubt)
        if kind == "max_level":
            return load + doubt >= self.case.most
        if kind != "slo" or not (math.isfinite(load) or self.level_met):
            return False
        rungs = [2**i for i in range(2, 20) if 2**i <= load - doubt and 2**i < top]
        if first == "tie" or not rungs:
            return True
        gain, error = self._gain(rungs[-1])
        return gain + 2 * error > LEAST_GAIN

    def _gain(self, level: int) -> tuple[float, float]:
        """The true growth of throughput per doubling over the two doublings up to a level, and its standard error."""
        low, high = (
            at(self.case.config, self.case.mix, n, effort=GLANCE).throughput for n in (max(1, level // 4), level)
        )
        return math.log(high.value / low.value) / 2, math.hypot(low.error / low.value, high.error / high.value) / 2

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
    said = ((found.right, "R"), (found.to_the_letter, "L"), (found.certain, "B"), (found.reason_right, "W"))
    marks = "".join("·" if good else letter for good, letter in said)
    return (
        f"{marks} {found.case.name:24} limit {found.case.load:6.1f} ±{found.case.error:4.2f}  "
        f"answer {stop.limit or '-'!s:>4} [{stop.held or '-'!s:>4}, {stop.broke or '-'!s:>4}]  "
        f"{stop.reason:14} {stop.first or '-':8} {found.sweep.requests:7,} requests, {len(found.sweep.history)} steps"
        f"{'  unsteady' if stop.unsteady else ''}"
    )


def between_runs(found: Sequence[Found]) -> str:
    """Of pairs of sweeps of the same engine, how many the product would call not steady from one to the next."""
    engines: dict[str, list[dict[float, Estimate]]] = {}
    for one in found:
        engines.setdefault(one.case.name, []).append(throughputs(one.sweep.summaries, ()))
    said = [since(a, b) for runs in engines.values() for a, b in combinations(runs, 2)]
    return f"{sum(one is not None and one.found for one in said):3d} of {len(said)} pairs"


Scored = TypeVar("Scored", "Found", "Peak")


def by_engine(found: Sequence[Scored], good: Callable[[Scored], bool]) -> str:
    """How many sweeps, and how many engines in most of their sweeps."""
    engines: dict[str, list[bool]] = {}
    for one in found:
        engines.setdefault(one.case.name, []).append(good(one))
    most = sum(2 * sum(results) > len(results) for results in engines.values())
    return f"{sum(map(good, found)):3d} of {len(found)} sweeps, {most:2d} of {len(engines)} engines"


def print_searches(found: Sequence[Found]) -> None:
    steep = [f for f in found if (f.case.steepness or 0) >= 2]
    none = [f for f in found if math.isinf(f.case.load)]
    print(f"answer within 5 % or 1, or percentile there within 5 %   {by_engine(found, lambda f: f.to_the_letter)}")
    print(f"  with what the truth leaves open, or a crossing there   {by_engine(found, lambda f: f.right)}")
    print(f"  by the distance to the limit alone                     {by_engine(found, lambda f: f.near)}")
    print(f"  the same, of steep engines                             {by_engine(steep, lambda f: f.near)}")
    print(f"  the same, and what the truth leaves open               {by_engine(steep, lambda f: f.close)}")
    print(f"certain bracket right                                    {by_engine(found, lambda f: f.certain)}")
    print(
        f"answer and bracket right                                 {by_engine(found, lambda f: f.right and f.certain)}"
    )
    print(f"stop reason right                                        {by_engine(found, lambda f: f.reason_right)}")
    print(
        f"no limit said, or met to within 5 %, where there is none {by_engine(none, lambda f: f.near or f.level_met)}"
    )
    print(f"called unsteady (the engines are steady)                 {sum(f.sweep.stop.unsteady for f in found):3d}")
    print(f"two sweeps of one engine said to differ                  {between_runs(found)}")
    requests = [f.sweep.requests for f in found]
    print(f"requests a sweep                                         {statistics.mean(requests):,.0f} on average")
    ladders = [rungs_below(f.case.load, f.case.most) for f in found]
    print(f"levels of a ladder of x1.05 up to the limit              {statistics.mean(ladders):,.1f} on average")
    print(f"stop reasons   {dict(Counter(f.sweep.stop.reason for f in found))}")
    print(f"what came first {dict(Counter(f.sweep.stop.first for f in found))}")


@dataclass(frozen=True, slots=True)
class Peak:
    """A sweep without an objective, to be held against long runs at its levels."""

    case: Case
    sweep: VirtualSweep

    @property
    def kind(self) -> str:
        return self.sweep.stop.reason

    @property
    def gain(self) -> tuple[float, float]:
        """The true growth of throughput per doubling over the last two doublings, and its standard error."""
        top = max(level.concurrency for level in self.sweep.history)
        low, high = (self._true(n) for n in (max(1, top // 4), top))
        return math.log(high.value / low.value) / 2, math.hypot(low.error / low.value, high.error / high.value) / 2

    @property
    def reason_right(self) -> bool:
        """Did it stop because throughput had stopped growing, and only then?"""
        gain, error = self.gain
        if self.kind == "max_level":
            return gain + 2 * error > LEAST_GAIN
        return gain - 2 * error < LEAST_GAIN

    @property
    def off(self) -> float:
        """By what share the level of the plateau is off the highest true throughput."""
        assert self.sweep.stop.peak_throughput is not None
        levels = {level.concurrency for level in self.sweep.history}
        return self.sweep.stop.peak_throughput.value / max(self._true(n).value for n in levels) - 1

    def _true(self, level: int) -> Exact:
        return at(self.case.config, self.case.mix, level, effort=TRUTH).throughput


def peaks(chosen: Sequence[Case], seeds: int, say: Callable[[str], None], effort: str) -> list[Peak]:
    found = []
    for one in chosen:
        for seed in range(seeds):
            server = VirtualServer(one.config, one.mix, seed=50 + seed + 100 * one.config.seed)
            found.append(Peak(one, sweep(server, SweepPlan(max_level=16 * one.config.max_batch), Slo(), effort=effort)))
            last = found[-1]
            gain, error = last.gain
            say(
                f"{'·' if last.reason_right else 'W'} {one.name:14} {last.kind:14} {last.off:+6.1%}  true gain"
                f" {gain:5.1%} ±{error:.1%}  {' '.join(str(level.concurrency) for level in last.sweep.history)}"
                f"  {last.sweep.requests:,} requests"
            )
    return found


def print_peaks(found: Sequence[Peak]) -> None:
    print(f"throughput found within 5 % of the highest true one      {by_engine(found, lambda f: abs(f.off) <= NEAR)}")
    print(f"stop reason right                                        {by_engine(found, lambda f: f.reason_right)}")
    requests = statistics.mean(one.sweep.requests for one in found)
    print(f"requests a sweep                                         {requests:,.0f} on average")
    print(f"stop reasons   {dict(Counter(f.kind for f in found))}")


def rungs_below(load: float, most: int) -> int:
    """How many levels a ladder of x1.05, or 1 where that is more, measures until it is past the limit or at its top."""
    level, rungs = 1, 1
    while level <= load and level < most:
        level, rungs = min(most, max(level + 1, round(1.05 * level))), rungs + 1
    return rungs


def engines_of(text: str) -> slice:
    """The first so many, or FROM to TO, TO included. ArgumentTypeError for what is neither."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor FROM-TO")
    first, last = found.groups()
    return slice(int(last)) if first is None else slice(int(first), int(last) + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="search,peak,fixed,coverage,plateau,rate")
    parser.add_argument("--engines", default="40", type=engines_of, help="how many, or FROM-TO (TO included)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--effort", default="normal")
    parser.add_argument("--fixed", type=int, nargs="+", default=[1000, 2000], help="requests a level, each by itself")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="of the capacity, for rate")
    parser.add_argument("--verbose", action="store_true")
    flags = parser.parse_args()
    chosen = flags.only.split(",")
    engines = cases()[flags.engines]
    began = time.process_time()
    if "search" in chosen:
        print(f"\n{len(engines)} engines, {flags.seeds} seeds, effort {flags.effort}")
        print_searches(searches(engines, flags.seeds, print if flags.verbose else lambda line: None, flags.effort))
    if "peak" in chosen:
        print(f"\n{len(engines)} engines, {flags.seeds} seeds, no objective")
        print_peaks(peaks(engines, flags.seeds, print if flags.verbose else lambda line: None, flags.effort))
    for fixed in flags.fixed if "fixed" in chosen else ():
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
        rates(max(1, flags.repeats // 10), flags.shares)
    print(f"\n{time.process_time() - began:.0f} s of CPU")


if __name__ == "__main__":
    main()
