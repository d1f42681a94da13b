"""What a run folder says of its run: enough to repeat it, nothing secret. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..analysis import DEFINITIONS
from ..analysis import VERSION as DEFINITIONS_VERSION
from ..client.dialects.sampling import FLAGS
from ..client.lengths import BY
from ..client.preflight import Prepared
from ..client.secrets import masked_body
from ..log.codec import stop_object
from ..records import SCHEMA_VERSION
from ..results import LevelResult, Stop
from ..search.effort import Forecast, StepRule
from ..workload.passed import told_object
from ..workload.plain import PlainWorkload
from . import host
from .config import OpenLoop, RunConfig


def opening_manifest(
    config: RunConfig,
    prepared: Prepared,
    workload: PlainWorkload,
    *,
    seed: int,
    nonce: str,
    started_epoch_ns: int,
    forecast: Forecast,
    rule: StepRule,
    clock: str,
    tokenizer: Mapping[str, str] | None = None,
    scraping: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The manifest as it stands before the first step: status `running`."""
    facts = prepared.facts
    options = prepared.options
    return {
        "schema_version": SCHEMA_VERSION,
        "status": "running",
        "verb": config.verb,
        "command": list(config.command),
        "started_epoch_ns": started_epoch_ns,
        "clock": {"source": clock, "unit": "ns", "zero": "the run's start, CLOCK_MONOTONIC"},
        "transport": config.access.transport,
        "definitions": {"version": DEFINITIONS_VERSION, "ids": DEFINITIONS},
        "target": {
            "url": prepared.target.display(),
            **({"urls": [t.display() for t in (prepared.target, *prepared.others)]} if prepared.others else {}),
            "endpoint": prepared.target.endpoint,
            "access": config.access.redacted(prepared.target.url),
        },
        "server": {
            "kind": facts.kind,
            "version": facts.version,
            "model": facts.model,
            "context_length": facts.context_length,
            "forced_length": facts.forced_length,
            "usage": facts.usage,
            "continuous_usage": facts.continuous_usage,
            "overhead_tokens": facts.overhead_tokens,
            "tokens_per_word": facts.tokens_per_word,
            "observed_output_tokens": facts.observed_output_tokens,
            "flags": dict(facts.flags),
            "warnings": list(facts.warnings),
        },
        "request": {
            "usage": options.usage,
            "continuous_usage": options.continuous_usage,
            "force_length": options.force_length,
            **{flag: config.sampling.get(flag, "server default") for flag in FLAGS},
            "extra_body": masked_body(options.extra_body),
        },
        "workload": {
            **workload.manifest(),
            **({} if (made := told_object(workload)) is None else {"made": made}),
            "text": workload.describe() + exactly(prepared),
            "seed": seed,
            "nonce": nonce,
            "same_text": config.workload.same_text,
            "input_deviation": prepared.deviation,
            "input_exact_by": prepared.exact,
            "tokenizer": tokenizer,
            "token_ids": config.token_ids,
        },
        "plan": {
            **(_open_loop(config.open_loop) if config.open_loop is not None else asdict(config.plan)),
            "effort": config.effort,
            "step": asdict(rule),
            "warmup": config.warmup,
            "drain_s": config.drain_s,
            "max_error_rate": config.max_error_rate,
            "workers": config.workers or "auto",
        },
        "slo": {
            "objectives": [objective.text for objective in config.slo.objectives],
            "attainment": config.slo.attainment,
        },
        "budgets": {**asdict(config.budgets), "announced": asdict(forecast)},
        "timeouts_s": asdict(config.timeouts),
        "retries": {"most": config.retry.times, "max_wait_s": config.retry.max_wait_s},
        "scraping": scraping,
        "describe": dict(config.describe),
        "simulator": config.simulator,
        "host": host.facts(),
        "notes": [*prepared.notes, *workload.notes, *facts.warnings],
    }


def exactly(prepared: Prepared) -> str:
    """How lengths of input are met, as it stands beside the workload; nothing where they are about right."""
    return f" · exact {BY[prepared.exact]}" if prepared.exact is not None else ""


def closing_manifest(
    opening: Mapping[str, Any],
    *,
    status: str,
    stop: Stop,
    levels: Sequence[tuple[int, LevelResult]],
    seconds: float,
    exit_code: int,
    error: str | None = None,
    scraping: Mapping[str, Any] | None = None,
    carries: str | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The manifest at the end. `levels` are (step number, result); `error` is set where a fault ended the run;
    `scraping` is what came of the server's metrics; `carries` cites the machine's calibration; `notes` are what became
    known since the start, `closing_notes` how many they are: a run that is resumed draws them again."""
    clock = dict(opening.get("clock") or {})
    if carries is not None and clock.get("source"):
        clock["text"] = f"{clock['source']} stamps · {carries}"
    return {
        **opening,
        "clock": clock,
        "scraping": scraping,
        "status": status,
        "stop": stop_object(stop),
        "levels": [
            {
                "step": step,
                "concurrency": level.concurrency,
                "rate_req_s": level.rate,
                "verdict": level.verdict,
                "broke": list(level.broke),
            }
            for step, level in levels
        ],
        "duration_s": seconds,
        "exit_code": exit_code,
        "error": error,
        "notes": [*opening.get("notes", ()), *notes],
        "closing_notes": len(notes),
    }


def with_earlier(before: Any, now: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of workers on other machines, with the steps of the run's earlier parts before those of this one."""
    earlier = before if isinstance(before, dict) else {}
    return {**now, **{name: [*earlier.get(name, ()), *now[name]] for name in ("steps", "lost")}}


def _open_loop(plan: OpenLoop) -> dict[str, Any]:
    return {"rate_req_s": plan.rate, "arrivals": plan.process, "max_in_flight": plan.max_in_flight}
