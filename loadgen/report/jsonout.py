"""`report --json`: strict JSON under the keys of `vllm bench serve` where it has one. Pure.

Its keys without a unit are named in `units`; every other key carries its own. A number that could not be established is
null or listed in `not_established`, never NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..log.codec import plain, stop_object
from ..records import DEFINITIONS_VERSION, SCHEMA_VERSION
from ..results import Estimate, Slo, StepSummary, Stop
from .caching import cache_object, sessions_object
from .facts import RunFacts
from .models import parts_object
from .text import Mark

UNITS = {
    "duration": "s",
    "request_throughput": "requests/s",
    "request_goodput": "requests/s",
    "output_throughput": "tokens/s",
    "total_token_throughput": "tokens/s",
    "completed": "requests",
    "failed": "requests",
    "total_input_tokens": "tokens",
    "total_output_tokens": "tokens",
    "max_concurrency": "requests",
    "request_rate": "requests/s",
    "max_concurrent_requests": "requests",
}

# Our metric → the name it has in `vllm bench serve`, or would have.
_NAMES = {
    "ttft": "ttft",
    "ttfc": "ttfc",
    "tpot": "tpot",
    "itl": "itl",
    "inter_chunk": "inter_chunk",
    "e2e": "e2el",
    "ttft_scheduled": "ttft_scheduled",
    "e2e_scheduled": "e2el_scheduled",
    "dispatch_lag": "dispatch_lag",
}


def report_object(
    facts: RunFacts,
    summaries: Sequence[StepSummary],
    marks: Mapping[int, Mark],
    stop: Stop | None = None,
    slo: Slo | None = None,
) -> dict[str, Any]:
    """The whole report as an object for `codec.encode`: the run, its steps in order, the answer."""
    slo = slo or Slo()
    result: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "definitions_version": DEFINITIONS_VERSION,
        "source": facts.source,
        "status": facts.status,
        "target": facts.target or None,
        "server": {
            "kind": facts.server.kind,
            "version": facts.server.version,
            "model": facts.server.model,
            "context_length_tokens": facts.server.context_length,
        },
        "workload": facts.workload or None,
        "seed": facts.seed,
        "clock": facts.clock or None,
        "requests": facts.requests,
        "requests_failed": facts.failed,
        "truncated_lines": facts.truncated_lines,
        "notes": list(facts.notes),
        "slo": {
            "objectives": [
                {"metric": o.metric, "percentile": o.percentile, "limit_ms": o.limit_ms} for o in slo.objectives
            ],
            "attainment": slo.attainment if any(o.percentile is None for o in slo.objectives) else None,
        }
        if slo
        else None,
        "units": UNITS,
        "steps": [step_object(s, marks.get(s.step, Mark(""))) for s in summaries],
        "pareto": pareto(summaries, marks),
        "answer": stop_object(stop) if stop else None,
    }
    plain_result: dict[str, Any] = plain(result)
    return plain_result


def pareto(summaries: Sequence[StepSummary], marks: Mapping[int, Mark]) -> list[dict[str, Any]]:
    """What a user gets against what the server gives, a point for each step that has both, by load. A point is on the
    front where no other is better in one and as good in the other; steps that this client shaped are on none."""
    known = [
        (s, s.tokens_per_user, s.output_throughput.value)
        for s in summaries
        if s.tokens_per_user and s.output_throughput
    ]
    void = {step for step, mark in marks.items() if mark.verdict == "invalid"}
    counted = [(user, server) for s, user, server in known if s.step not in void]
    return [
        {
            "step": s.step,
            "load": s.load,
            "tokens_per_user_tok_s": user,
            "output_throughput_tok_s": server,
            "front": s.step not in void
            and not any(u >= user and t >= server and (u, t) != (user, server) for u, t in counted),
        }
        for s, user, server in sorted(known, key=lambda point: (point[0].load, point[0].step))
    ]


def step_object(s: StepSummary, mark: Mark) -> dict[str, Any]:
    """One step: what `vllm bench serve` would say of it first, then what it has no word for."""
    completed = s.requests.get("ok", 0)
    step: dict[str, Any] = {
        "step": s.step,
        "max_concurrency": s.concurrency or s.max_in_flight,
        "request_rate": s.rate,
        "verdict": mark.verdict or None,
        "broke": list(mark.broke),
        "completed": completed,
        "failed": s.failed,
        "duration": s.window.seconds if s.window else None,
        "total_input_tokens": _total(s.input_tokens_mean, completed),
        "total_output_tokens": _total(s.output_tokens_mean, completed),
        "request_throughput": _value(s.request_throughput),
        "request_goodput": s.goodput,
        "output_throughput": _value(s.output_throughput),
        "total_token_throughput": s.total_throughput,
        "max_concurrent_requests": s.concurrency_peak,
    }
    weak: list[str] = []
    for key, name in _NAMES.items():
        found = s.latency.get(key)
        median = found.at(50.0) if found else None
        step[f"mean_{name}_ms"] = _value(found.mean) if found else None
        step[f"median_{name}_ms"] = median.value if median else None
        step[f"std_{name}_ms"] = found.std if found else None
        for p in (90.0, 95.0, 99.0):
            q = found.at(p) if found else None
            step[f"p{p:g}_{name}_ms"] = q.value if q else None
            if q is not None and not q.established:
                weak.append(f"p{p:g}_{name}_ms")
        step[f"max_{name}_ms"] = found.max if found else None
    step |= {
        "not_established": weak,
        "sent": s.sent,
        "judged": s.judged,
        "outcomes": s.requests,
        "flags": s.flags,
        "errors": [{"what": what, "count": n} for what, n in s.errors],
        "ended": s.ended,
        "window_start_ns": s.window.start_ns if s.window else None,
        "window_end_ns": s.window.end_ns if s.window else None,
        "output_throughput_interval_tok_s": _interval(s.output_throughput),
        "output_throughput_classic_tok_s": s.output_throughput_classic,
        "output_throughput_failed_tok_s": s.output_throughput_failed,
        "request_throughput_interval_req_s": _interval(s.request_throughput),
        "completion_rate_req_s": _value(s.completion_rate),
        "completion_rate_interval_req_s": _interval(s.completion_rate),
        "attempt_rate_req_s": s.attempt_rate,
        "held_back_requests": s.held_back,
        "not_dispatched_requests": s.not_dispatched,
        "tokens_per_user_tok_s": s.tokens_per_user,
        "input_mean_tokens": s.input_tokens_mean,
        "input_deviation_share": s.input_deviation,
        "output_mean_tokens": s.output_tokens_mean,
        "output_asked_mean_tokens": s.output_asked_mean,
        "asked_tokens": s.asked,
        "cached_share": s.cached_share,
        "estimated_token_share": s.estimated_token_share,
        "estimated_itl": s.estimated_itl,
        "attainment_share": _value(s.attainment),
        "attainment_interval_share": _interval(s.attainment),
        "concurrency_mean_requests": s.concurrency_mean,
        "littles_law_residual_share": s.littles_law_residual,
        "littles_law_server_residual_share": s.littles_law_server_residual,
        "server": s.server,
        "error_bounds_ms": {_NAMES[key]: bound for key, bound in s.error_ms.items()},
        "exact_share": s.exact_share,
        "client_limit": s.client_limit,
        "client": s.health,
        "workers": s.workers,
        "by_model": parts_object(s.by_model),
        "by_peer": parts_object(s.by_peer),
        "by_turn": parts_object(s.by_turn),
        "cache": cache_object(s.cache),
        "sessions": sessions_object(s),
        "retries": s.retries,
        "admitted_requests": s.admitted,
        "bursts": s.bursts,
        "longer_output_requests": s.longer,
        "unsteady": s.unsteady,
        "objectives": s.objectives,
        "percentiles_ms": {_NAMES[key]: found.percentiles for key, found in s.latency.items() if key in _NAMES},
    }
    return step


def _value(estimate: Estimate | None) -> float | None:
    return estimate.value if estimate else None


def _interval(estimate: Estimate | None) -> list[float | None] | None:
    """[low, high] of the two-sided 95 % interval."""
    return [estimate.low, estimate.high] if estimate and estimate.low is not None else None


def _total(mean: float | None, n: int) -> int | None:
    return round(mean * n) if mean is not None else None
