"""`report --definitions TOOL`: a step as another tool counts it, ours beside. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..analysis.conventions import Counted
from ..results import StepSummary
from .numbers import NONE, number

_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}


def counted_lines(found: Sequence[Counted], summaries: Sequence[StepSummary]) -> list[str]:
    """A table for each step, latencies in ms: the tool's figures, then ours."""
    ours = {s.step: s for s in summaries}
    tool = found[0].tool if found else ""
    lines = [f"as {tool} counts (docs/foreign-logs.md says how); latencies in ms"]
    for one in found:
        lines.append(
            f"  step {one.step} · {one.completed:,} completed, {one.failed:,} failed"
            + (f" in {number(one.duration_s)} s" if one.duration_s is not None else " · duration not known")
        )
        head = ("mean", "p50", "p99", "n", "ours: mean", "p50", "p99")
        lines.append(f"    {'':<32}" + "".join(text.rjust(11) for text in head))
        for figure in one.figures:
            own = ours[one.step].latency.get(figure.metric) if one.step in ours else None
            points = [own.at(p) if own else None for p in (50.0, 99.0)]
            cells = [number(value) for value in (figure.mean, figure.median, figure.p99)]
            cells += [f"{figure.n:,}", number(own.mean.value) if own and own.mean else NONE]
            cells += [number(q.value) if q else NONE for q in points]
            lines.append(f"    {_NAMES[figure.metric]:<6}{figure.term:<26}" + "".join(cell.rjust(11) for cell in cells))
        summary = ours.get(one.step)
        rate = summary.output_throughput if summary else None
        own_rate = f" (ours {number(rate.value)})" if rate else ""
        lines.append(
            f"    {number(one.output_throughput)} output tokens/s{own_rate}"
            f" · {number(one.total_throughput)} tokens/s in and out · {number(one.request_throughput)} requests/s"
        )
    return lines if found else ["no step to count"]


def counted_object(found: Sequence[Counted]) -> list[dict[str, Any]]:
    """The same for `--json`, under the keys of `vllm bench serve` where it has one; `term` is the tool's own name."""
    names = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
    result = []
    for one in found:
        row: dict[str, Any] = {
            "definitions": one.tool,
            "step": one.step,
            "completed": one.completed,
            "failed": one.failed,
            "duration": one.duration_s,
            "request_throughput": one.request_throughput,
            "output_throughput": one.output_throughput,
            "total_token_throughput": one.total_throughput,
        }
        for figure in one.figures:
            name = names[figure.metric]
            row |= {
                f"mean_{name}_ms": figure.mean,
                f"median_{name}_ms": figure.median,
                f"p99_{name}_ms": figure.p99,
                f"{name}_samples": figure.n,
                f"{name}_term": figure.term,
            }
        result.append(row)
    return result
