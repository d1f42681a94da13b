"""Objectives as people type them → `Slo`. Pure.

ttft_p95=500ms     the 95th percentile of TTFT is at most 500 ms
tpot=50ms          each request's TPOT is; the share of requests that meet all such bounds is the attainment
attainment=95%     what that share must be
mlperf:llama2-70b  what a benchmark or a paper asks for, by name: see PRESETS
ttft:200 e2el:900  the form of `vllm bench serve --goodput`: milliseconds; e2el is e2e
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from typing import cast

from .errors import UsageError
from .results import SLO_METRICS, Objective, ObjectiveCheck, Slo, SloMetric

ATTAINMENT = "attainment"  # the name of the joint check of all per-request objectives
_ALIASES = {"e2el": "e2e"}  # its name in `vllm bench serve --goodput`; ttft and tpot are the same there
_UNIT_MS = {"": 1.0, "ms": 1.0, "s": 1000.0, "us": 0.001, "µs": 0.001, "μs": 0.001}
_NUMBER = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)(.*)", re.IGNORECASE)
_PARTS = re.compile(r"([^<>=:]*)(<=|>=|[<>=:])(.*)")
_METRIC = re.compile(r"([a-z0-9_]*?)(?:_p(\d+(?:\.\d+)?))?")
_NAMES = f"{', '.join(SLO_METRICS)}; e2el is e2e"
# 99th percentiles of TTFT and TPOT in ms, Server scenario: mlcommons/inference, loadgen/mlperf.conf (2026-08).
_MLPERF = {
    "llama2-70b": (2000, 200),
    "llama2-70b-interactive": (450, 40),
    "mixtral-8x7b": (2000, 200),
    "llama3.1-405b": (6000, 175),
    "llama3.1-405b-interactive": (4500, 80),
    "llama3.1-8b": (2000, 100),
    "llama3.1-8b-interactive": (500, 30),
    "deepseek-r1": (2000, 80),
    "deepseek-r1-interactive": (1500, 15),
    "gpt-oss-120b": (3000, 80),
    "gpt-oss-120b-interactive": (2000, 15),
}
# TTFT and TPOT in ms, both met by 90 % of the requests: DistServe (OSDI 2024), its artefact.
_DISTSERVE = {
    "opt-13b-sharegpt": (250, 100),
    "opt-66b-sharegpt": (400, 100),
    "opt-175b-sharegpt": (4000, 200),
    "opt-66b-humaneval": (125, 200),
    "opt-66b-longbench": (15_000, 150),
}
# Objectives by name. Mooncake (FAST 2025) bounds TTFT and, as TBT, the mean of the longest tenth of a request's gaps:
# the 95th percentile of all gaps, the middle of the longest tenth of them, stands for that here.
PRESETS: dict[str, str] = {
    **{f"mlperf:{name}": f"ttft_p99={ttft}ms tpot_p99={tpot}ms" for name, (ttft, tpot) in _MLPERF.items()},
    "mlperf:qwen3-vl-235b-a22b": "e2e_p99=12s",
    **{f"distserve:{name}": f"ttft={ttft}ms tpot={tpot}ms attainment=90%" for name, (ttft, tpot) in _DISTSERVE.items()},
    **{f"mooncake:tbt-{tbt}ms": f"ttft=30s itl_p95={tbt}ms" for tbt in (100, 200, 300)},
}
_FAMILIES = {name.partition(":")[0] for name in PRESETS}
_FORMS = f"write METRIC=LIMIT or METRIC_pNN=LIMIT, as in ttft_p95=500ms; METRIC is one of {_NAMES}"


def parse_slo(texts: Sequence[str]) -> Slo:
    """All `--slo` values of a command line, ANDed; several objectives may stand in one text, apart by space or comma.

    Raises UsageError for the first thing that cannot be meant.
    """
    objectives: list[Objective] = []
    attainment: float | None = None
    names: set[str] = set()
    for text in map(_spelt_out, texts):
        parts = _split(text)
        if not parts:
            raise UsageError("An objective is empty.", _FORMS)
        for part in parts:
            match = _PARTS.fullmatch(part)
            if match is None:
                raise UsageError(f"The objective '{part}' has no limit.", _FORMS)
            left, op, right = match.groups()
            if left.lower() == ATTAINMENT:
                if attainment is not None:
                    raise UsageError("The attainment is given twice.", "keep one of the two")
                attainment = _attainment(part, op, right)
                continue
            objective = _objective(part, left, op, right)
            name = objective_name(objective)
            if name in names:
                raise UsageError(f"The objective {name} is given twice.", "keep one of the two limits")
            names.add(name)
            objectives.append(objective)
    if attainment is not None and all(o.percentile is not None for o in objectives):
        raise UsageError(
            "An attainment is given, but no objective that bounds each request.",
            "add one without a percentile, as in tpot=50ms, or leave the attainment out",
        )
    return Slo(tuple(objectives)) if attainment is None else Slo(tuple(objectives), attainment)


def _spelt_out(text: str) -> str:
    """The objectives of a preset; any other text as it is."""
    name = text.strip().lower()
    if name in PRESETS:
        return PRESETS[name]
    if name == "list" or name.partition(":")[0] in _FAMILIES:
        close = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.6)
        known = ", ".join(PRESETS)
        what = "To list is no objective." if name == "list" else f"There are no objectives named '{text.strip()}'."
        raise UsageError(what, f"did you mean {' or '.join(close)}?" if close else f"the names are {known}")
    return text


def objective_name(objective: Objective) -> str:
    """The short name a table shows: `ttft_p95`, `tpot`."""
    return objective.metric if objective.percentile is None else f"{objective.metric}_p{objective.percentile:g}"


def check_names(slo: Slo) -> tuple[str, ...]:
    """What tells the checks of these objectives apart, in their order: each with its limit, then the joint one."""
    return (*(f"{objective_name(o)}={o.limit_ms:g}ms" for o in slo.objectives), ATTAINMENT)


def by_failures(check: ObjectiveCheck) -> bool:
    """Does the percentile of an objective lie among the failures, which count as infinitely late?"""
    return check.value_ms == math.inf


def broken_names(broke: Sequence[str], checks: Sequence[ObjectiveCheck]) -> str:
    """What a level broke, with the word where failures did it: `ttft_p95, tpot_p95, by failures`."""
    failed = {check.objective for check in checks if by_failures(check)}
    if broke and failed.issuperset(broke):
        return f"{', '.join(broke)}, by failures"
    return ", ".join(f"{name} by failures" if name in failed else name for name in broke)


def slo_text(slo: Slo) -> str:
    """The same for the same objectives, in whatever order and unit they were typed."""
    return " ".join((*sorted(check_names(slo)[:-1]), f"{ATTAINMENT}={slo.attainment:g}"))


def _split(text: str) -> list[str]:
    text = re.sub(r"\s*(<=|>=|[<>=:])\s*", r"\1", text.strip())
    text = re.sub(r"(\d)\s+(ms|us|µs|μs|s|%)(?=$|[\s,;])", r"\1\2", text, flags=re.IGNORECASE)
    # A comma before a digit is a decimal comma and stays in its part, where the number is refused by name.
    return [part for part in re.split(r"(?:[\s;]|,(?!\d))+", text) if part]


def _objective(part: str, left: str, op: str, right: str) -> Objective:
    match = _METRIC.fullmatch(left.lower())
    base, percentile_text = match.groups() if match else (left, None)
    metric = _ALIASES.get(base, base)
    if metric not in SLO_METRICS:
        raise UsageError(f"The objective '{part}' names no metric that can have one: '{left}'.", _FORMS)
    if op in (">", ">="):
        raise UsageError(f"The objective '{part}' asks for a latency above its limit.", f"write {left}={right}")
    percentile = None if percentile_text is None else float(percentile_text)
    if percentile is not None and not 0 < percentile < 100:
        raise UsageError(
            f"The objective '{part}' names the percentile {percentile:g}.",
            f"choose one above 0 and below 100, as in {metric}_p99",
        )
    if metric == "itl" and percentile is None:
        raise UsageError(
            f"The objective '{part}' bounds each request, but a request has many ITLs.",
            f"write itl_p99={right} for the pooled ITLs, or tpot={right} for each request's mean",
        )
    number, unit = _number(part, right)
    if unit.lower() not in _UNIT_MS:
        raise UsageError(f"The objective '{part}' has the unknown unit '{unit}'.", "use ms, s or us (none means ms)")
    limit_ms = number * _UNIT_MS[unit.lower()]
    if not 0 < limit_ms < float("inf"):
        raise UsageError(f"The limit of the objective '{part}' is not a time above zero.", "give one, as in 500ms")
    return Objective(metric=cast(SloMetric, metric), percentile=percentile, limit_ms=limit_ms, text=part)


def _attainment(part: str, op: str, right: str) -> float:
    remedy = "write a share above 0 and below 1 or its percentage, as in attainment=0.95 or attainment=95%"
    if op in ("<", "<="):
        raise UsageError(f"'{part}' bounds the attainment from above, but it is what must be reached.", remedy)
    number, unit = _number(part, right)
    share = number / 100 if unit == "%" else number
    if unit not in ("", "%") or not 0 < share < 1:
        reason = "; no sample can prove 100 %" if share == 1 else ""
        raise UsageError(f"'{part}' is not an attainment{reason}.", remedy)
    return share


def _number(part: str, text: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise UsageError(f"'{part}' has no number after its sign: '{text}'.", "give one, as in 500ms, 0.5s or 95%")
    if "," in match.group(2):
        raise UsageError(f"'{part}' has a comma in its number.", "write a decimal point, as in 0.5s")
    return float(match.group(1)), match.group(2)
