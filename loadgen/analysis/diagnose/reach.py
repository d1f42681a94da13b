"""An objective that one request alone does not meet: then no load can. Pure."""

from __future__ import annotations

from ...results import Objective
from ..metrics import REQUEST_METRICS
from .finding import Fact, Finding
from .levels import Level, Levels, median


def reach_findings(run: Levels) -> list[Finding]:
    """`out_of_reach`: with one request in flight an objective is broken, and half of the requests are beyond it."""
    base = run.base
    if base is None or base.summary.concurrency != 1 or base.summary.rate is not None:
        return []
    broken = {check.metric for check in base.summary.objectives if check.verdict == "fail"}
    for objective in run.slo.objectives:
        alone = _alone_ms(base, objective) if broken else 0.0
        if alone > objective.limit_ms:
            return [_finding(base, objective, alone)]
    return []


def _alone_ms(base: Level, objective: Objective) -> float:
    metric = REQUEST_METRICS.get(objective.metric)
    return 0.0 if metric is None else median(metric(base.ok), 0.0)


def _finding(base: Level, objective: Objective, alone: float) -> Finding:
    name = objective.metric.upper()
    return Finding(
        "out_of_reach",
        "warning",
        "high",
        f"one request alone has a median {name} of {alone:,.3g} ms: no load can meet {objective.text}",
        (Fact("limit of the objective", objective.limit_ms, "ms"), *_made_of(base, objective)),
        "set an objective that a request alone can meet, or make what it takes alone shorter",
        (base.step,),
    )


def _made_of(base: Level, objective: Objective) -> list[Fact]:
    """What that time is made of, as far as is known."""
    server, ttft = base.summary.server, base.summary.latency.get("ttft")
    if objective.metric.startswith("e2e"):
        return [
            Fact("median TTFT of a request alone", median(base.ttft), "ms"),
            Fact("median TPOT of a request alone", median(base.tpot), "ms"),
        ]
    if server is None or not objective.metric.startswith("tt"):
        return []
    facts = []
    if server.queue_ms is not None:
        facts.append(Fact("mean time in the server's queue", server.queue_ms, "ms"))
    if server.prefill_ms is not None:
        facts.append(Fact("mean time of the prefill, by the server", server.prefill_ms, "ms"))
    if server.ttft_ms is not None and ttft is not None and ttft.mean is not None:
        facts.append(Fact("mean TTFT beyond the server's own", max(0.0, ttft.mean.value - server.ttft_ms), "ms"))
    return facts
