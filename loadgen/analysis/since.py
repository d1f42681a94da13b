"""The run before of the same thing: are its throughputs what they are now? Pure.

An interval is made within one run. What a machine does from hour to hour is in none of them, so two answers that are
both right for their hour may be further apart than either allows; that is seen only from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..results import Estimate, StepSummary
from .conditions import changed, conditions, mapping, same_workload
from .ratios import LEAST_ERROR

LEAST = 0.03  # a smaller change is of no consequence
UNSTEADY = "not steady between runs"  # a note that begins so is a warning
Z95, Z_NEEDED = 1.96, 3.29  # 5 % and 0.1 % of a normal's values are farther out
LOWEST, HIGHEST = 1e-9, 1e12  # tokens/s; beyond is damage


@dataclass(frozen=True, slots=True)
class Since:
    """By what factor output throughput is now another than in a run before, in the mean over the closed-loop `loads` of
    both. `found`: beyond what the intervals of the two runs allow."""

    ratio: Estimate
    loads: tuple[float, ...]
    found: bool

    def sentence(self, before: str) -> str:
        """`before` says which run that was."""
        value, low, high = (100 * (x - 1) for x in (self.ratio.value, self.ratio.low or 0.0, self.ratio.high or 0.0))
        by = f"{value:+.1f} % ({low:+.1f} to {high:+.1f})"
        loads = ", ".join(f"{load:,g}" for load in sorted(self.loads))
        if not self.found:
            return (
                f"output throughput at {loads} in flight differs by {by} from the run before, {before}: no change is"
                " proven"
            )
        return (
            f"not steady between runs: output throughput at {loads} in flight differs by {by} from the run before,"
            f" {before}, and neither tells of a change: server or machine is not what it was, and each interval here"
            " is that of its own run"
        )


def comparable(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Was the earlier run of the same workload on the same address, reached in the same way, as far as the manifests
    tell? What one describes and the other does not is a change."""
    told = [(mapping(m.get("target")), mapping(m.get("describe")), mapping(m.get("workload"))) for m in (before, now)]
    (target, describe, workload), (other, described, other_workload) = told
    return (
        target.get("url") is not None
        and (target, describe) == (other, described)
        and workload.get("same_text") == other_workload.get("same_text")
        and same_workload(before, now)
        and not changed(conditions([before, now], [(), ()]))
    )


def throughputs(steps: Sequence[StepSummary], invalid: Sequence[int]) -> dict[float, Estimate]:
    """By requests in flight, the latest output throughput that has an interval; none of `invalid` steps."""
    return {
        s.load: s.output_throughput
        for s in steps
        if s.rate is None and s.step not in invalid and s.output_throughput is not None and usable(s.output_throughput)
    }


def since(before: Mapping[float, Estimate], now: Mapping[float, Estimate]) -> Since | None:
    """The mean of the logarithms, each by its certainty. A load alone is not judged: near a server's limit its few
    batches promise too much. None where no load is common to both."""
    loads = tuple(load for load in now if load in before)
    if not loads:
        return None
    ratios = [_ratio(before[load], now[load]) for load in loads]
    total = sum(1 / error**2 for _, error in ratios)
    value, error = sum(value / error**2 for value, error in ratios) / total, total**-0.5
    ratio = Estimate(*(math.exp(value + z * error) for z in (0.0, -Z95, Z95)))
    return Since(ratio, loads, abs(value) > max(math.log1p(LEAST), Z_NEEDED * error))


def usable(estimate: Estimate) -> bool:
    """Has it an interval that a ratio can be made of?"""
    low, high = estimate.low, estimate.high
    return low is not None and high is not None and LOWEST < low < high < HIGHEST and LOWEST < estimate.value < HIGHEST


def _ratio(before: Estimate, now: Estimate) -> tuple[float, float]:
    """Its logarithm, with the standard error that the intervals of both give it."""
    widths = [math.log((one.high or 1.0) / (one.low or 1.0)) / 2 / Z95 for one in (before, now)]
    return math.log(now.value / before.value), max(math.hypot(*widths), LEAST_ERROR)
