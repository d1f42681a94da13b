"""A capacity plan as text and as JSON. Pure: a plan in, words out."""

from __future__ import annotations

from typing import Any

from ..analysis.planning import CapacityPlan
from ..hardware.deployment import Deployment
from ..hardware.model import GB, GIB, KIB
from .compared import wrapped
from .numbers import number, plural

WIDTH = 120


def render(plan: CapacityPlan, width: int = WIDTH) -> str:
    model, on, use = plan.model, plan.on, plan.memory
    cache, lengths = plan.cache, plan.lengths
    lines = [
        _row(
            "model",
            f"{model.name} · {_billions(model.parameters)} parameters{_active(plan)} · {model.quantisation.name}",
        ),
        _row(
            "", f"{_attention(plan)} · context {number(model.max_context)}" if model.max_context else _attention(plan)
        ),
        _row("on", f"{_layout(on)} · {_gib(on.gpu.memory)} GiB each, {on.utilisation:.0%} of it used"),
        _row(
            "requests",
            f"in {number(lengths.input_mean)} · out {number(lengths.output_mean)}"
            f" · p99 in all {number(lengths.total_p99)} tokens",
        ),
        "",
        _row("weights", f"{_gib(use.weights)} GiB a GPU · {model.weight_bytes() / GB:,.1f} GB in all"),
        _row("reserve", f"{_gib(use.activations)} GiB for activations, {_gib(use.runtime)} GiB for the runtime"),
    ]
    if use.kv > 0:
        lines.append(
            _row(
                "KV cache",
                f"{_gib(use.kv)} GiB a GPU · {_kib(cache.bytes_per_token)} a token"
                f" · {cache.blocks:,} blocks of {on.block} = {cache.tokens:,} tokens",
            )
        )
    else:
        lines.append(_row("KV cache", f"none: the GPU is {_gib(-use.kv)} GiB too small for the model"))
    lines.append("")
    lines.append(_row("fits", _fits(plan)))
    if plan.concurrent_held:
        lines.append(
            _row(
                "holds",
                f"{plural(plan.concurrent_held, 'request')} in flight at {number(lengths.held_mean)} tokens on average"
                f" · {plan.concurrent_mean:,} at their mean length in all · {plan.concurrent_p99:,} at the p99",
            )
        )
        lines.append(_row("context", f"{plan.longest_context:,} tokens for a single sequence"))
    lines += ["", *_floors(plan)]
    for note in model.notes:
        lines.append(_row("note", note))
    lines.append(_row("source", f"{model.source or 'as given'} · {on.gpu.source}"))
    return "\n".join(wrapped(lines, width))


def as_json(plan: CapacityPlan) -> dict[str, Any]:
    """The same figures, units in the keys."""
    model, on, use, cache = plan.model, plan.on, plan.memory, plan.cache
    return {
        "model": {
            "name": model.name,
            "source": model.source,
            "parameters": model.parameters,
            "active_parameters": model.active_parameters,
            "layers": model.layers,
            "weight_bytes": model.weight_bytes(),
            "quantisation": model.quantisation.name,
            "max_context_tokens": model.max_context,
            "flops_per_token": 2 * model.active_parameters,
            "state_bytes_per_sequence": model.state_elements * model.state_bytes,
            "notes": list(model.notes),
        },
        "deployment": {
            "gpu": on.gpu.name,
            "source": on.gpu.source,
            "gpus": on.gpus,
            "tensor_parallel": on.tensor_parallel,
            "pipeline_parallel": on.pipeline_parallel,
            "expert_parallel": on.expert_parallel,
            "kv_bits": on.kv_bits,
            "block_tokens": on.block,
        },
        "requests": {
            "input_tokens_mean": plan.lengths.input_mean,
            "output_tokens_mean": plan.lengths.output_mean,
            "input_tokens_p99": plan.lengths.input_p99,
            "total_tokens_p99": plan.lengths.total_p99,
        },
        "memory_per_gpu": {
            "total_bytes": use.total,
            "usable_bytes": use.usable,
            "weight_bytes": use.weights,
            "activation_bytes": use.activations,
            "runtime_bytes": use.runtime,
            "kv_bytes": use.kv,
        },
        "kv_cache": {
            "bytes_per_token": cache.bytes_per_token,
            "bytes_per_token_gpu": cache.bytes_per_token_gpu,
            "blocks": cache.blocks,
            "tokens": cache.tokens,
        },
        "fits": plan.fits,
        "gpus_needed": plan.needed.gpus if plan.needed else None,
        "concurrent_requests": {
            "held_mean": plan.concurrent_held,
            "full_mean": plan.concurrent_mean,
            "full_p99": plan.concurrent_p99,
        },
        "longest_context_tokens": plan.longest_context,
        "floors": {
            "ttft_ms_mean": plan.prefill_mean_s * 1e3,
            "ttft_ms_p99": plan.prefill_p99_s * 1e3,
            "tpot_ms_alone": plan.alone.tpot_s * 1e3,
            "tpot_ms_full": plan.full.tpot_s * 1e3 if plan.full else None,
            "bound_full": plan.full.bound if plan.full else None,
            "compute_bound_batch": plan.compute_bound_batch,
            "output_tokens_per_s": plan.output_limit_per_s,
        },
    }


def _floors(plan: CapacityPlan) -> list[str]:
    alone, full = plan.alone, plan.full
    rows = [
        _row(
            "TTFT ≥",
            f"{number(plan.prefill_mean_s * 1e3)} ms at the mean input, "
            f"{number(plan.prefill_p99_s * 1e3)} ms at its p99",
        ),
        _row(
            "TPOT ≥",
            f"{number(alone.tpot_s * 1e3)} ms alone"
            + (f", {number(full.tpot_s * 1e3)} ms with {full.batch:,} in flight ({full.bound}-bound)" if full else ""),
        ),
    ]
    if plan.output_limit_per_s is not None:
        rows.append(_row("at most", f"{number(plan.output_limit_per_s)} output tokens/s, prefill included"))
    batch = plan.compute_bound_batch
    rows.append(
        _row(
            "decode",
            f"turns compute-bound at a batch of {batch:,}"
            if batch
            else "never turns compute-bound: the cache is read faster than it is worked on",
        )
    )
    return rows


def _fits(plan: CapacityPlan) -> str:
    needed = plan.needed
    smallest = (
        f"the smallest of these that would do is {_layout(needed)}" if needed else "no number of such GPUs would do"
    )
    if plan.fits:
        return "yes" if needed is None or needed.gpus >= plan.on.gpus else f"yes · {_layout(needed)} would do"
    if plan.memory.kv <= 0:
        return f"no: the weights and reserves do not · {smallest}"
    return f"no: not one request of {number(plan.lengths.total_p99)} tokens · {smallest}"


def _layout(on: Deployment) -> str:
    parts = [
        f"{name} {n}"
        for name, n in (("TP", on.tensor_parallel), ("PP", on.pipeline_parallel), ("EP", on.expert_parallel))
        if n > 1
    ]
    return f"{on.gpus} × {on.gpu.name}" + (f" ({' · '.join(parts)})" if parts else "")


def _attention(plan: CapacityPlan) -> str:
    model = plan.model
    kind = "latent attention" if model.latent_rank else f"{model.heads} heads, {model.kv_heads} of keys and values"
    windows = "".join(f", {g.count} with a window of {g.window:,}" for g in model.attention if g.window)
    recurrent = model.layers - model.attention_layers
    return f"{model.layers} layers{windows}{f', {recurrent} recurrent' if recurrent else ''} · {kind}"


def _active(plan: CapacityPlan) -> str:
    model = plan.model
    return f", {_billions(model.active_parameters)} active" if model.experts else ""


def _billions(parameters: float) -> str:
    return f"{number(parameters / 1e9)} B"


def _gib(size: float) -> str:
    return number(size / GIB)


def _kib(size: float) -> str:
    return f"{number(size / KIB)} KiB"


def _row(name: str, text: str) -> str:
    return f"{name:9} {text}" if text else ""
