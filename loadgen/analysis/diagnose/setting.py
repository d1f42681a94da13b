"""The questions before the causes: is there an objective, is the workload what was asked for, do weights and KV fit?
Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import UsageError
from ...hardware.deployment import Deployment
from ...hardware.gpus import gpu_named
from ...hardware.named import model_named
from ..conditions import mapping
from ..planning import Lengths, plan
from .finding import Check
from .levels import Levels
from .parallel import tensor_parallel

OFF = 0.02  # of the lengths asked for
UNLIKE = 0.15  # of the shortest mean


def checks(run: Levels) -> tuple[Check, ...]:
    return (objective(run), workload(run), memory(run))


def objective(run: Levels) -> Check:
    if not run.slo:
        return Check("objective", "none given: what is too slow cannot be said (--slo ttft_p95=500ms)", None)
    names = ", ".join(o.text for o in run.slo.objectives)
    held, broken = run.held, run.broken
    parts = [names]
    if held:
        parts.append(f"held at {_loads(held)}")
    if broken:
        which = sorted({check.objective for s in run.judged for check in s.objectives if check.verdict == "fail"})
        parts.append(f"broken at {_loads(broken)} ({', '.join(which)})")
    if not held and not broken:
        parts.append("undecided")
    return Check("objective", " · ".join(parts), not broken if held or broken else None)


def _loads(loads: list[float]) -> str:
    return ", ".join(f"{load:,g}" for load in loads)


def workload(run: Levels) -> Check:
    told = [s for s in run.all if s.requests.get("ok")]
    if not told:
        return Check("workload", "no request was answered", False)
    wrong = []
    off = max((s.input_deviation or 0.0 for s in told), key=abs)
    if abs(off) > OFF:
        wrong.append(f"prompts are {100 * off:+.1f} % off the length asked for")
    asked = [(s.output_tokens_mean, s.output_asked_mean) for s in told if s.output_tokens_mean and s.output_asked_mean]
    if asked:
        got = sum(a for a, _ in asked) / sum(b for _, b in asked)
        if abs(got - 1) > OFF:
            wrong.append(f"answers have {100 * got:.0f} % of the tokens asked for")
    shortest, longest = _unlike(run)
    if longest > shortest:
        wrong.append(f"prompts are not alike from step to step: {shortest:,.0f} to {longest:,.0f} tokens in the mean")
    if wrong:
        return Check("workload", "; ".join(wrong), False)
    inputs, outputs = (
        [x for s in told if (x := getattr(s, name)) is not None] for name in ("input_tokens_mean", "output_tokens_mean")
    )
    size = " · ".join(f"{what} {np.mean(values):,.0f}" for what, values in (("in", inputs), ("out", outputs)) if values)
    if not asked and all(s.input_deviation is None for s in told):
        return Check(
            "workload", f"{size} tokens; what was asked for is not told" if size else "lengths are not told", None
        )
    return Check("workload", f"as asked: {size} tokens in the mean", True)


def _unlike(run: Levels) -> tuple[float, float]:
    """The mean prompts of the two steps that differ most, in tokens, if by more than `UNLIKE` and than chance; else
    (0, 0)."""
    steps = []
    for level in run.by_load:
        known = level.inputs[np.isfinite(level.inputs)]
        if len(known):
            steps.append((float(known.mean()), float(known.var()) / len(known)))
    if len(steps) < 2:
        return 0.0, 0.0
    low, high = min(steps), max(steps)
    beyond = high[0] - low[0] > max(UNLIKE * low[0], 4 * (low[1] + high[1]) ** 0.5)
    return (low[0], high[0]) if beyond else (0.0, 0.0)


def memory(run: Levels) -> Check:
    """`plan` of the model and GPU, where they are told."""
    found = _deployment(run.manifest)
    lengths = [(level.inputs, level.outputs) for level in run.by_load]
    tokens = [np.concatenate(side) for side in zip(*lengths, strict=True)] if lengths else []
    if tokens:
        known = np.isfinite(tokens[0]) & np.isfinite(tokens[1])
        tokens = [side[known] for side in tokens]
    if found is None or not tokens or not len(tokens[0]):
        why = (
            "model or GPU not told (--describe model=llama-3.1-8b --describe gpu=h100)"
            if found is None
            else "no lengths"
        )
        server = [s.server.kv_tokens for s in run.all if s.server is not None and s.server.kv_tokens]
        if server and tokens and len(tokens[0]):
            each = float((tokens[0] + tokens[1] / 2).mean())
            return Check(
                "memory",
                f"the KV cache holds {server[-1]:,.0f} tokens by the server: {server[-1] / each:,.0f} such requests",
                server[-1] > each,
            )
        return Check("memory", why, None)
    name, on = found
    model = model_named(name)
    told = plan(model, on, Lengths.of(*tokens))
    where = (
        f"{model.name} on {on.tensor_parallel} × {on.gpu.name}"
        if on.tensor_parallel > 1
        else f"{model.name} on {on.gpu.name}"
    )
    if not told.fits:
        return Check("memory", f"{where}: weights and KV of the longest request do not fit", False)
    peak = max((level.users for level in run.by_load), default=0.0)
    text = f"{where}: weights fit, the KV cache holds about {told.concurrent_held:,} of these requests"
    if peak > told.concurrent_held:
        return Check("memory", f"{text}, and {peak:,.0f} were in flight", False)
    return Check("memory", text, True)


def _deployment(manifest: Mapping[str, Any]) -> tuple[str, Deployment] | None:
    describe, server = mapping(manifest.get("describe")), mapping(manifest.get("server"))
    model = str(describe.get("model") or server.get("model") or "")
    gpu = str(describe.get("gpu") or describe.get("GPU") or "")
    if not model or not gpu:
        return None
    name = model.rsplit("/", 1)[-1].lower().removesuffix("-instruct")
    try:
        model_named(name)
        counted = re.fullmatch(r"(?:(\d{1,4})\s*[x×]\s*)?(.+)", gpu.strip(), re.IGNORECASE)
        number, card = (counted[1], gpu_named(counted[2])) if counted is not None else (None, gpu_named(gpu))
    except (UsageError, ValueError):
        return None
    return name, Deployment(card, tensor_parallel=tensor_parallel(manifest) or int(number or 0) or 1)
