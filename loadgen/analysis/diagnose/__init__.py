"""From a log to the cause, in the order an experienced engineer would take. Pure, over summaries and columns.

1. Is there an objective; is the workload fixed and as asked; do weights and KV fit (`setting`)?
2. What makes figures worthless or costs requests: the client, failures, bursts, a cache that was warm (`outcomes`,
   `wire`, `caches`).
3. The shape of the metrics over length, load and time (`queues`, `places`, `kv`, `overload`, `compute`, `stalls`), what
   one request alone cannot do (`reach`), and two runs side by side (`parallel`).
4. One change to try: the first finding's, never two.

    found = diagnose(summaries, columns, manifest, slo)
    found.first, found.failed

"cause not identified" is a finding where something is wrong and no rule says what. No finding at all: nothing is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...log.columns import Columns
from ...results import Slo, StepSummary
from ...stats import binomial_bounds
from ..conditions import mapping
from ..redone import without_redone
from .caches import cache_findings
from .compute import compute_findings
from .finding import CAUSES, Check, Diagnosis, Fact, Finding, ordered
from .levels import Levels, levels_of, median
from .outcomes import MOST_FAILED, failures, outcome_findings
from .parallel import parallel_findings, side_by_side
from .places import queue_findings
from .reach import reach_findings
from .setting import checks
from .wire import wire_findings

__all__ = ["CAUSES", "FACTS_ONLY", "Check", "Diagnosis", "Fact", "Finding", "Measured", "diagnose"]

SLOWER = 2.0  # E2E at the highest load against the lowest, where throughput
GAINED = 1.1  # did not grow by more at the last level: something holds it up
FACTS_ONLY = frozenset({"prefix_cache", "speculation", "short_outputs"})  # say what was measured, not what limits it


@dataclass(frozen=True, slots=True)
class Measured:
    """One run to look at: its steps, all its records, its manifest. `apart`: its prompts were made to share nothing."""

    summaries: Sequence[StepSummary]
    columns: Columns
    manifest: Mapping[str, Any]
    slo: Slo
    apart: bool = False

    def levels(self) -> Levels:
        return levels_of(self.summaries, self.columns, self.manifest, self.slo, apart=self.apart)


def diagnose(measured: Measured, other: Measured | None = None) -> Diagnosis:
    """What is wrong with a run, or with two side by side, and what to change."""
    run = measured.levels()
    found = [*outcome_findings(run), *_failing_loads(run), *wire_findings(run), *cache_findings(run)]
    beside = other.levels() if other is not None else None
    found += parallel_findings(run, beside) if beside is not None else []
    found += [*queue_findings(run), *compute_findings(run), *reach_findings(run), *_unsteady(run)]
    if not any(finding.cause not in FACTS_ONLY for finding in found):
        found += _unidentified(run)
    asked = checks(run)
    if beside is not None:
        asked = (*asked, side_by_side(run, beside))
    return Diagnosis(asked, ordered(found), len(run.by_load))


def _failing_loads(run: Levels) -> list[Finding]:
    """Failures that are few of the whole run, and too many of the loads that they ended or broke."""
    rate = mapping(run.manifest.get("plan")).get("max_error_rate")
    allowed = float(rate) if isinstance(rate, int | float) else MOST_FAILED
    beyond = [s.step for s in without_redone(run.all) if s.ended == "errors" or _proven(s, allowed)]
    if not beyond or failures(run):
        return []
    judged = {**run.manifest, "plan": {"max_error_rate": 0.0}}  # beyond it they are, each by itself
    return failures(replace(run, columns=run.columns.where(np.isin(run.columns.step, beyond)), manifest=judged))


def _proven(s: StepSummary, allowed: float) -> bool:
    """Do more of a step's requests fail than is allowed, beyond chance?"""
    low = binomial_bounds(s.failed / s.judged, s.judged)[0] if s.failed else 0.0
    return low > allowed


def _unsteady(run: Levels) -> list[Finding]:
    shaky = [s for s in run.all if s.unsteady]
    if not shaky or 2 * len(shaky) < len(run.all):
        return []
    kinds = sorted({kind for s in shaky for kind in s.unsteady})
    return [
        Finding(
            "unsteady",
            "info",
            "medium",
            f"most steps were not steady ({', '.join(kinds)}): their intervals promise too much",
            (Fact("steps that were not steady", float(len(shaky))), Fact("steps", float(len(run.all)))),
            "measure longer, and again at another time",
            tuple(s.step for s in shaky),
        )
    ]


def _unidentified(run: Levels) -> list[Finding]:
    """Something is wrong, and nothing above says why."""
    broken = [s for s in run.judged if any(check.verdict == "fail" for check in s.objectives)]
    facts: list[Fact] = []
    base, top = run.base, run.top
    if base is not None and top is not None and run.several:
        slower = median(top.e2e) / median(base.e2e) if median(base.e2e) > 0 else 0.0
        gained = (
            top.throughput / max((level.throughput for level in run.by_load[:-1]), default=0.0)
            if base.throughput
            else 0.0
        )
        if slower >= SLOWER and gained and gained < GAINED:
            facts += [Fact("growth of E2E from the lowest to the highest load", slower, "times")]
            facts += [Fact("throughput there, against the best below", gained, "times")]
    if broken:
        facts.append(Fact("steps that break an objective", float(len(broken))))
    if not facts:
        return []
    return [
        Finding(
            "unidentified",
            "info",
            "low",
            "something holds it up, and the log does not tell what",
            tuple(facts),
            "let the server's own metrics be read (--metrics-url), at loads from 1 up, and diagnose that run",
            tuple(s.step for s in broken),
        )
    ]
