"""What a report says of a run besides its steps: who was measured, with what, and where the log lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..results import ServerFacts
from .numbers import clean


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts of one run; an empty text or None is not known and is not shown.

    `status` is complete, interrupted, failed or imported. `requests` and `failed` count the whole log, all phases.
    """

    source: str
    status: str = "complete"
    target: str = ""
    server: ServerFacts = field(default_factory=ServerFacts)
    workload: str = ""
    seed: int | None = None
    clock: str = ""
    requests: int = 0
    failed: int = 0
    truncated_lines: int = 0
    notes: tuple[str, ...] = ()
    is_csv: bool = False
    asked: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # the workload's own lengths, by side
    traced: bool = False  # is its rate that of a trace's requests, though they may be turns of conversations?
    apart: bool = False  # were the prompts made so that they share nothing?
    resumable: bool = False  # is it a sweep that can be gone on with?
    cause: str = ""  # what a diagnosis of the run names first


def facts_of(
    manifest: Mapping[str, Any] | None,
    *,
    source: str,
    status: str,
    requests: int,
    failed: int,
    truncated_lines: int = 0,
    is_csv: bool = False,
) -> RunFacts:
    """Read a manifest leniently: what is missing, or of a later version, is left out of the report."""
    manifest = manifest or {}
    server = _object(manifest.get("server"))
    seed, context = manifest.get("seed", _object(manifest.get("workload")).get("seed")), server.get("context_length")
    notes = manifest.get("notes")
    notes = list(notes) if isinstance(notes, list) else []
    if _text(manifest.get("error")):
        notes.insert(0, f"a fault ended the run: {_text(manifest.get('error'))}")
    return RunFacts(
        source=source,
        status=status,
        target=_urls(_object(manifest.get("target"))) or _text(manifest.get("target"), "url"),
        server=ServerFacts(
            kind=_text(server.get("kind")) or None,
            version=_text(server.get("version")) or None,
            model=_text(server.get("model")) or _text(manifest.get("model")) or None,
            context_length=context if isinstance(context, int) else None,
        ),
        workload=_text(manifest.get("workload"), "text", "description") or _shape(_object(manifest.get("workload"))),
        seed=seed if isinstance(seed, int) else None,
        clock=_text(manifest.get("clock"), "text", "source"),
        requests=requests,
        failed=failed,
        truncated_lines=truncated_lines,
        notes=tuple(clean(note) for note in notes),
        is_csv=is_csv,
        asked=_asked(_object(manifest.get("workload"))),
        traced=_object(manifest.get("workload")).get("kind") == "trace",
        apart=_apart(_object(manifest.get("workload"))),
        resumable=manifest.get("verb") == "sweep" and status in ("interrupted", "failed"),
    )


def _apart(workload: Mapping[str, Any]) -> bool:
    shared = any(workload.get(key) for key in ("sharing", "sessions", "same_text"))
    return workload.get("kind") in ("shape", "definition") and not shared


def _asked(workload: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The figures of a definition's lengths, of the sides that have all of them."""
    found: dict[str, dict[str, float]] = {}
    for side, figures in _object(workload.get("asked")).items():
        own = {key: _object(figures).get(key) for key in ("mean", "p50", "p90", "p99")}
        if side in ("input", "output") and all(isinstance(n, (int, float)) for n in own.values()):
            found[side] = {key: float(n) for key, n in own.items() if n is not None}
    return found


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _urls(target: Mapping[str, Any]) -> str:
    """All addresses of a run that had several."""
    found = target.get("urls")
    return " + ".join(clean(url) for url in found if isinstance(url, str)) if isinstance(found, list) else ""


def _text(value: object, *keys: str) -> str:
    if isinstance(value, str):
        return clean(value)
    found = (_object(value).get(key) for key in keys)
    return clean(next((text for text in found if isinstance(text, str) and text), ""))


def _shape(workload: Mapping[str, Any]) -> str:
    parts = [clean(workload["source"])] if isinstance(workload.get("source"), str) else []
    for key, label in (("input_len", "in"), ("output_len", "out")):
        span = workload.get(key)
        if isinstance(span, list) and len(span) == 2:
            parts.append(f"{label} {span[0]}" if span[0] == span[1] else f"{label} {span[0]}-{span[1]}")
    return " · ".join(parts)
