"""What a diagnosis is made of. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Gravity = Literal["error", "warning", "info"]
Confidence = Literal["high", "medium", "low"]

# Every cause there is, in the order in which findings of one gravity are told: what makes the figures worthless first,
# then what is not as it was meant, then what is peculiar to one mechanism, last what every server comes to in the end.
CAUSES: Mapping[str, str] = {
    "client_bound": "the client was the limit",
    "gateway_limit": "a gateway ends or refuses requests",
    "admission_limit": "an admission limit before the server",
    "requests_failing": "requests fail",
    "buffering_proxy": "output is held back and comes in bursts",
    "prefix_cache_contaminated": "the prefix cache holds what it should not",
    "short_outputs": "answers are shorter than asked",
    "communication": "the GPUs wait for each other",
    "prefix_cache": "the prefix cache is at work",
    "speculation": "several tokens come at a time",
    "kv_exhausted": "the KV cache is exhausted",
    "overload": "overload",
    "network": "the network, or what lies on the way",
    "batch_limit": "a limit of the batch",
    "queueing": "requests queue before they run",
    "long_prompts": "long prompts stall the other requests",
    "prefill_bound": "prefill is the limit",
    "decode_bound": "decode is the limit",
    "out_of_reach": "no load can meet the objective",
    "unsteady": "the steps were not steady",
    "unidentified": "cause not identified",
}
_RANK = {cause: place for place, cause in enumerate(CAUSES)}


@dataclass(frozen=True, slots=True)
class Fact:
    """One number that a finding rests on; `rows` are ids of requests that show it, a few."""

    what: str
    value: float
    unit: str = ""
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause, what speaks for it, and the one change to try. `steps` are the steps that show it.

    error: the figures do not answer the question, or requests are lost. warning: it costs what was asked for, an
    objective or throughput. info: how this server works; nothing need be changed.
    """

    cause: str
    gravity: Gravity
    confidence: Confidence
    sentence: str
    facts: tuple[Fact, ...]
    change: str
    steps: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        return CAUSES[self.cause]


@dataclass(frozen=True, slots=True)
class Check:
    """One question that comes before the causes, its answer, and whether that is as it should be (None: not known)."""

    what: Literal["objective", "workload", "memory", "GPUs"]
    text: str
    good: bool | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The questions first, then the findings: errors before the rest, then in the order of `CAUSES`. `findings` is
    empty where nothing is wrong and nothing is peculiar. `levels` counts the loads that were looked at."""

    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]
    levels: int

    @property
    def first(self) -> Finding | None:
        return self.findings[0] if self.findings else None

    @property
    def failed(self) -> bool:
        return any(finding.gravity == "error" for finding in self.findings)


def ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    """Of each cause the first finding, in the order of telling, without numbers that a log could not tell."""
    kept: dict[str, Finding] = {}
    for finding in findings:
        facts = tuple(fact for fact in finding.facts if math.isfinite(fact.value))
        kept.setdefault(finding.cause, replace(finding, facts=facts))
    return tuple(sorted(kept.values(), key=lambda f: (f.gravity != "error", _RANK[f.cause])))
