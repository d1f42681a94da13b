"""An engine from named settings: what `loadgen simulate` takes as flags and an experiment as a table. Pure.

    configured({"model": "llama-3.1-8b", "gpu": "h100", "weight_bits": 8, "max_batch": 64})

A preset, or a model on accelerators, is taken as it is served by default; every further setting changes it.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ..errors import UsageError
from ..hardware.gpus import gpu_named
from ..hardware.model import Quantisation
from .engine import EngineConfig
from .presets import machine_named, preset, served

NAMED = ("preset", "model", "gpu")
MACHINE = ("tp", "weight_bits", "kv_bits", "tiled_attention", "tp_link_gb_s")  # which are of a machine alone
STEP_TIMES = ("step_ms", "decode_ms", "context_us", "prefill_ms")
ENGINE = tuple(field.name for field in fields(EngineConfig) if field.name != "machine")


_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def configured(settings: Mapping[str, Any]) -> EngineConfig:
    """The engine that is named, or else the one without a machine, with each setting in place of what it says. Raises
    UsageError for a setting there is not, and for those that cannot be meant together."""
    given = {name: value for name, value in settings.items() if value is not None}
    named = {name: given.pop(name) for name in NAMED if name in given}
    changes = {name: given.pop(name) for name in MACHINE if name in given}
    for name in given:
        if name not in ENGINE:
            known = (*NAMED, *MACHINE, *ENGINE)
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the settings are {', '.join(known)}"
            raise UsageError(f"the engine has no setting {name}", hint)
    for name, value in {**named, **changes, **given}.items():
        kinds = _kinds(name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise UsageError(f"the engine's {name} is {value!r}", f"give {_WORDS[kinds[-1]]}")
    for name, value in named.items():
        if not value:
            raise UsageError(f"the engine's {name} is ''", f"name one, or leave {name} out")
    if not 0 < changes.get("tp_link_gb_s", 1.0) < math.inf:
        raise UsageError(f"the engine's tp_link_gb_s is {changes['tp_link_gb_s']}", "give a number above 0")
    if named:
        config = _on_a_machine(named, changes)
        if wrong := [name for name in STEP_TIMES if name in given]:
            option = wrong[0].replace("_", "-")
            raise UsageError(f"--{option} is of an engine without a machine", f"leave out --{option} or the machine")
    elif changes:
        option = next(iter(changes)).replace("_", "-")
        raise UsageError(f"{option} is of a machine, and none was named", "give --preset, or --model and --gpu")
    else:
        config = EngineConfig()
    return replace(config, **given)


def _kinds(name: str) -> tuple[type, ...]:
    """What a setting's value may be."""
    if name in NAMED:
        return (str,)
    default = {"tp": 1, "tiled_attention": True}.get(name, 1.0) if name in MACHINE else getattr(EngineConfig(), name)
    return (int, float) if type(default) is float else (type(default),)


def _on_a_machine(named: Mapping[str, str], changes: Mapping[str, Any]) -> EngineConfig:
    preset_name, model_name, gpu_name = (named.get(name) for name in NAMED)
    if preset_name and model_name:
        raise UsageError("the model is given twice", "give --preset, or --model and --gpu")
    if model_name:
        machine = machine_named(model_name, gpu_name or "h100")
    elif preset_name:
        machine = preset(preset_name)
    else:
        raise UsageError("--gpu alone names no model", "add --model (loadgen plan --list), or give --preset")
    on, model = machine.on, machine.model
    if gpu_name:
        on = replace(on, gpu=gpu_named(gpu_name))
    if "tp_link_gb_s" in changes:
        on = replace(on, gpu=replace(on.gpu, link=changes["tp_link_gb_s"] * 1e9))
    on = replace(on, tensor_parallel=changes.get("tp", on.tensor_parallel), kv_bits=changes.get("kv_bits", on.kv_bits))
    if "weight_bits" in changes:
        bits = changes["weight_bits"]
        model = model.quantised(Quantisation(bits, name=f"{bits:g} bit"))
    tiled = changes.get("tiled_attention", machine.tiled_attention)
    return served(replace(machine, model=model, on=on, tiled_attention=tiled))
