"""The conditions of runs side by side: what was the same, what was changed, and what nobody wrote down. Pure.

They come from the manifests and from `--describe`. Unknown is never equal. A comparison answers one question where one
main variable was changed; where more were, their effects cannot be told apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..results import StepSummary

State = Literal["same", "changed", "unknown"]

# Facts that a server learns anew at each start, or that follow from others.
_LEARNT = {"num_gpu_blocks", "kv_cache_size_tokens", "available_kv_cache_memory"}
_DESCRIBED = {"precision": ("precision", "dtype", "quantization"), "GPU": ("gpu", "gpus", "accelerator", "hardware")}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition: its value in each run, None where it is not known. `main`: it may be what is compared."""

    name: str
    values: tuple[str | None, ...]
    main: bool

    @property
    def state(self) -> State:
        known = [value for value in self.values if value is not None]
        if len(set(known)) > 1:
            return "changed"
        return "unknown" if len(known) < len(self.values) else "same"


def conditions(
    manifests: Sequence[Mapping[str, Any] | None], summaries: Sequence[Sequence[StepSummary]]
) -> list[Condition]:
    """All conditions of these runs, in the order of the page. `manifests` are read leniently."""
    told = [_told(manifest or {}, steps) for manifest, steps in zip(manifests, summaries, strict=True)]
    return [
        Condition(name, tuple(one[name] for one in told), main=name not in _NOT_MAIN)
        for name in (told[0] if told else ())
    ]


def changed(found: Sequence[Condition]) -> list[str]:
    """The main variables that were changed."""
    return [c.name for c in found if c.main and c.state == "changed"]


def unknown(found: Sequence[Condition]) -> list[str]:
    """The main variables that not every run tells."""
    return [c.name for c in found if c.main and c.state == "unknown"]


_NOT_MAIN = {"target", "seed", "client", "flags of the client"}


def _told(manifest: Mapping[str, Any], steps: Sequence[StepSummary]) -> dict[str, str | None]:
    server, request, workload, plan = (mapping(manifest.get(key)) for key in ("server", "request", "workload", "plan"))
    describe, flags = mapping(manifest.get("describe")), dict(mapping(server.get("flags")))
    simulator, target = mapping(manifest.get("simulator")), mapping(manifest.get("target"))
    engine = {key: value for key, value in mapping(simulator.get("engine")).items() if key != "seed"}
    parts = {name: next((describe[key] for key in keys if key in describe), None) for name, keys in _DESCRIBED.items()}
    precision = parts["precision"] or flags.get("dtype") or flags.get("quantization")
    flags = {key: value for key, value in {**flags, **engine}.items() if key not in _LEARNT | {"dtype", "quantization"}}
    definitions = mapping(manifest.get("definitions"))
    endings = {"force_length": request.get("force_length"), "stop": _extra(request, "stop"), "retries": _most(manifest)}
    known = bool(request)
    return {
        "target": _text(target.get("url")),
        "model": _text(server.get("model")) or _text(describe.get("model")),
        "precision": _text(precision),
        "GPU": _text(parts["GPU"]) or ("simulated" if engine else None),
        "server version": _joined(server.get("kind"), server.get("version")) or _text(describe.get("server")),
        "server flags": _short(flags) if flags else None,
        "context length": _text(server.get("context_length")),
        "sampling": _short(_sampling(request)) if known else None,
        "completion": _short({key: value for key, value in endings.items() if value is not None}) if known else None,
        "API": _joined(target.get("endpoint"), None),
        "workload": _text(workload.get("content_sha256")),
        "concurrency": _loads(steps, plan),
        "seed": _text(workload.get("seed", manifest.get("seed"))),
        "client": _joined("loadgen", mapping(manifest.get("host")).get("loadgen"), needs_all=True),
        "metric definitions": _text(definitions.get("version")),
    }


def same_work(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> bool:
    """Were both sent the same lengths in the same order: workload hash and seed are known and agree?"""
    one, other = (mapping(mapping(manifest).get("workload")) for manifest in (a, b))
    return all(
        one.get(key) is not None and one.get(key) == other.get(key) for key in ("content_sha256", "seed")
    ) and one.get("models") == other.get("models")


def same_workload(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> bool:
    one, other = (mapping(mapping(manifest).get("workload")).get("content_sha256") for manifest in (a, b))
    return one is not None and one == other


def _loads(steps: Sequence[StepSummary], plan: Mapping[str, Any]) -> str | None:
    """The loads measured; a search chooses its own, which are then not what was changed."""
    if not steps:
        return None
    if len({s.load for s in steps}) > 1 and not plan.get("levels"):
        return "searched"
    loads = sorted({(s.load, s.rate is not None) for s in steps})
    return ", ".join(f"{load:,g}{'/s' if rate else ''}" for load, rate in loads if load) or None


def _sampling(request: Mapping[str, Any]) -> dict[str, Any]:
    skip = {"usage", "continuous_usage", "force_length", "stop"}
    found = {
        key: value for key, value in request.items() if key not in skip and value not in ("server default", {}, None)
    }
    return found or {"all": "server default"}


def _extra(request: Mapping[str, Any], key: str) -> Any:
    value = request.get(key)
    return None if value in (None, "server default", [], ()) else value


def _most(manifest: Mapping[str, Any]) -> Any:
    return mapping(manifest.get("retries")).get("most") or None


def _short(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key}={value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)}"
        for key, value in sorted(values.items())
    )


def _joined(*parts: object, needs_all: bool = False) -> str | None:
    texts = [_text(part) for part in parts]
    if needs_all and None in texts:
        return None
    return " ".join(text for text in texts if text) or None


def _text(value: object) -> str | None:
    return None if value is None or value == "" or isinstance(value, (Mapping, list)) else str(value)


def mapping(value: object) -> Mapping[str, Any]:
    """A part of a manifest that should be an object; empty where it is none."""
    return value if isinstance(value, Mapping) else {}
