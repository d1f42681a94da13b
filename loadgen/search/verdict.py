"""A measured step → what the search makes of it."""

from __future__ import annotations

from typing import Literal

from ..results import LevelResult, Slo, StepSummary, Verdict
from ..slo import ATTAINMENT, objective_name
from ..stats import LEVEL, binomial_bounds

ERRORS = "errors"  # the name under which too many failures break a level

# A schedule kept to 10 ms, or to a tenth of the median TTFT, is kept: that moves no arrival enough to shape a queue.
LATE_MS = 10.0
LATE_SHARE = 0.1
UNSENT_SHARE = 0.01
LEAST_ANSWERS = 8  # of which none has a sample of a metric, to say that no answer has


def errors_verdict(
    failed: int, judged: int, allowed: float, looks: int = 1
) -> Literal["within", "beyond", "undecided"]:
    """Is the share of failures above the one `allowed`? Beyond it is one whose lower bound is (Clopper-Pearson,
    two-sided 95 %, the error divided among all `looks`): one failure in 40 requests is no proof of more than 1 %.
    Within is one that is not above it as seen: to prove 1 % takes 300 requests, which no level is made to last for."""
    if failed <= allowed * judged:
        return "within"
    low, _ = binomial_bounds(failed / judged, judged, (1 - LEVEL) / looks)
    return "beyond" if low > allowed else "undecided"


def judge(
    summary: StepSummary, slo: Slo, *, max_error_rate: float = 0.01, baseline: bool = False, looks: int = 1
) -> LevelResult:
    """The verdict on one level. `looks` is how often one may be asked for while the step runs.

    invalid: the client was the limit, so nothing is said of the server. fail: proven to have more failures than
    allowed, or ended for a run of them, or any objective proven broken. pass: all objectives proven held. marginal:
    none worse than proven to lie within 5 % of its limit. inconclusive: the rest, and always where an objective has no
    sample, or more failed than is allowed but too few to prove it. Without objectives a level is `measured`. The first
    level (`baseline`) is called that unless its objectives are decided. `broke` of a level that neither passed nor
    failed names what kept it from passing.
    """
    verdict: Verdict
    broke: tuple[str, ...] = ()
    error_rate = summary.failed / summary.judged if summary.judged else 0.0
    errors = errors_verdict(summary.failed, summary.judged, max_error_rate, looks)
    unsure = (ERRORS,) if errors == "undecided" else ()
    per_request = {objective_name(o) for o in slo.objectives if o.percentile is None}
    joint = any(check.objective == ATTAINMENT for check in summary.objectives)
    # Requests must meet all per-request bounds at once: where that is checked jointly, the single ones only give names.
    deciding = [c for c in summary.objectives if not (joint and c.objective in per_request)]
    said = {c.verdict for c in deciding}
    beyond = any(c.exceedance is not None and c.exceedance.value > c.allowed for c in deciding)

    ours = summary.ended == "client" or summary.requests.get("client_error", 0)
    if ours or summary.client_limit is not None or sent_late(summary):
        verdict = "invalid"
    elif errors == "beyond" or summary.ended == "errors":
        verdict, broke, beyond = "fail", (ERRORS,), True
    elif not slo:
        verdict, broke = ("inconclusive", unsure) if unsure else ("measured", ())
        verdict = "baseline" if baseline else verdict
    elif "fail" in said:
        names = [c.objective for c in summary.objectives if c.verdict == "fail"]
        single = [name for name in names if name != ATTAINMENT]
        verdict, broke = "fail", tuple(single or names)
    else:
        # An undecided share of failures leans no way: the search goes by the objectives.
        broke = (*(c.objective for c in deciding if c.verdict != "pass"), *unsure)
        if not said or "inconclusive" in said or unsure:
            verdict = "baseline" if baseline else "inconclusive"
        else:
            verdict = "marginal" if broke else "pass"
    return LevelResult(
        concurrency=summary.concurrency,
        output_throughput=summary.output_throughput,
        verdict=verdict,
        broke=broke,
        error_rate=error_rate,
        ended=summary.ended,
        p_hat_beyond=beyond,
        detail=summary.detail or (summary.client_limit.what if summary.client_limit else ""),
        rate=summary.rate,
        admitted=summary.admitted,
        of_limit=_of_limit(summary, slo),
        goodput=summary.goodput,
        completed=summary.completion_rate.value if summary.completion_rate else None,
        checks=tuple(deciding),
        unsampled={
            c.objective: _why_unsampled(c.metric, summary)
            for c in deciding
            if c.exceedance is None and summary.requests.get("ok", 0) >= LEAST_ANSWERS
        },
    )


def _why_unsampled(metric: str, summary: StepSummary) -> str:
    """Why no answer has a sample of a metric, to stand after "as"."""
    if summary.flags.get("not_streamed", 0) >= summary.requests.get("ok", 0):
        return "the server does not stream its answers"
    if metric == "ttfc":
        return "no answer has content beside its reasoning"
    if summary.output_tokens_mean is not None and summary.output_tokens_mean <= 1:
        return "answers have one token"
    return "answers come in one piece"


def _of_limit(summary: StepSummary, slo: Slo) -> dict[str, float]:
    limits = {objective_name(o): o.limit_ms for o in slo.objectives}
    return {
        c.objective: c.value_ms / limits[c.objective]
        for c in summary.objectives
        if c.value_ms is not None and c.objective in limits
    }


def sent_late(summary: StepSummary) -> str | None:
    """Was this client, and no limit that the user set, late with its arrivals? How much, in words; None if it was not.

    Late is the 99th percentile of the dispatch lag (the highest that is established) above 10 ms and above a tenth of
    the median TTFT, or more than 1 % of the arrivals unsent.
    """
    if summary.rate is None or summary.held_back:
        return None
    due = summary.sent + summary.not_dispatched
    if summary.not_dispatched > max(1, UNSENT_SHARE * due):
        return f"{summary.not_dispatched:,} of {due:,} requests could not be sent in time"
    lag, ttft = summary.latency.get("dispatch_lag"), summary.latency.get("ttft")
    known = [q for q in lag.percentiles if q.established or q.p == 50] if lag else []
    highest = max(known, key=lambda q: q.p, default=None)
    median = ttft.at(50.0) if ttft else None
    limit = max(LATE_MS, LATE_SHARE * median.value if median else 0.0)
    if highest is not None and highest.value > limit:
        return f"requests were sent up to {highest.value:.1f} ms late (p{highest.p:g})"
    return None
