"""A server's Prometheus text → one vocabulary, whatever the server calls it. Pure.

Which server says what is in `NAMES`: for each term the names in order of preference, of which the first that a page has
counts. Names are known with a colon or with an underscore after the server's (collectors rewrite it). Sources: a page
of vLLM 0.32, and the documentation of vLLM, SGLang, TGI, llama.cpp, TensorRT-LLM, Dynamo and NVIDIA's DCGM exporter.

Series of one name are added up, or averaged where they are shares. Series that differ in a rank alone are the same
engine told several times, and count once. What an `engine` (vLLM) or `dp_rank` (SGLang) label tells apart is also kept
apart.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

# term → names. Terms in requests unless their name says otherwise; those in COUNTERS only ever grow.
NAMES: dict[str, tuple[str, ...]] = {
    "running": (
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "tgi_batch_current_size",
        "llamacpp:requests_processing",
        "trtllm_num_requests_running",
    ),
    "waiting": (
        "vllm:num_requests_waiting",
        "vllm:num_requests_waiting_by_reason",
        "sglang:num_queue_reqs",
        "tgi_queue_size",
        "llamacpp:requests_deferred",
        "trtllm_num_requests_waiting",
    ),
    # All that a front end holds, told as one number; those before their first token are among them.
    "in_flight": ("dynamo_frontend_inflight_requests",),
    "kv_use_share": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "llamacpp:kv_cache_usage_ratio",
        "trtllm_kv_cache_utilization",
        "dynamo_component_kvstats_gpu_cache_usage_percent",
    ),
    "kv_tokens": ("sglang:max_total_num_tokens",),  # vLLM's is a label, with `kv_block_tokens`: see _cache_tokens
    "preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
    "prefix_query_tokens": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_hit_tokens": (
        "vllm:prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits_total",
        "sglang:cached_tokens_total",
    ),
    "spec_drafts": ("vllm:spec_decode_num_drafts_total",),
    "spec_draft_tokens": ("vllm:spec_decode_num_draft_tokens_total", "llamacpp:tokens_drafted_total"),
    "spec_accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total", "llamacpp:tokens_drafted_accepted_total"),
    "spec_accept_length_tokens": ("sglang:spec_accept_length",),
    "prompt_tokens": (
        "vllm:prompt_tokens_total",
        "sglang:prompt_tokens_total",
        "tgi_request_input_length_sum",
        "llamacpp:prompt_tokens_total",
        "dynamo_frontend_input_sequence_tokens_sum",
    ),
    "generation_tokens": (
        "vllm:generation_tokens_total",
        "sglang:generation_tokens_total",
        "tgi_request_generated_tokens_sum",
        "llamacpp:tokens_predicted_total",
        "dynamo_frontend_output_tokens_total",
    ),
    "step_tokens_sum": ("vllm:iteration_tokens_total_sum",),
    "step_tokens_count": ("vllm:iteration_tokens_total_count",),
    "queue_s_sum": (
        "vllm:request_queue_time_seconds_sum",
        "sglang:queue_time_seconds_sum",
        "tgi_request_queue_duration_sum",
    ),
    "queue_s_count": (
        "vllm:request_queue_time_seconds_count",
        "sglang:queue_time_seconds_count",
        "tgi_request_queue_duration_count",
    ),
    "prefill_s_sum": ("vllm:request_prefill_time_seconds_sum", "llamacpp:prompt_seconds_total"),
    "prefill_s_count": ("vllm:request_prefill_time_seconds_count",),
    "decode_s_sum": ("vllm:request_decode_time_seconds_sum", "llamacpp:tokens_predicted_seconds_total"),
    "decode_s_count": ("vllm:request_decode_time_seconds_count",),
    "ttft_s_sum": (
        "vllm:time_to_first_token_seconds_sum",
        "sglang:time_to_first_token_seconds_sum",
        "dynamo_frontend_time_to_first_token_seconds_sum",
    ),
    "ttft_s_count": (
        "vllm:time_to_first_token_seconds_count",
        "sglang:time_to_first_token_seconds_count",
        "dynamo_frontend_time_to_first_token_seconds_count",
    ),
    "e2e_s_sum": (
        "vllm:e2e_request_latency_seconds_sum",
        "sglang:e2e_request_latency_seconds_sum",
        "tgi_request_duration_sum",
    ),
    "e2e_s_count": (
        "vllm:e2e_request_latency_seconds_count",
        "sglang:e2e_request_latency_seconds_count",
        "tgi_request_duration_count",
    ),
    "finished": (
        "vllm:request_success_total",
        "sglang:num_requests_total",
        "tgi_request_success",
        "dynamo_frontend_requests_total",
    ),
    "rejected": ("vllm:admission_rejections_total", "tgi_request_failure"),
    "aborted": ("sglang:num_aborted_requests_total",),
    "gpu_use_percent": ("DCGM_FI_DEV_GPU_UTIL",),
    "gpu_engine_share": ("DCGM_FI_PROF_GR_ENGINE_ACTIVE",),
    "gpu_memory_mib": ("DCGM_FI_DEV_FB_USED",),
    "gpu_power_w": ("DCGM_FI_DEV_POWER_USAGE",),
}
COUNTERS = frozenset(
    name for name in NAMES if name.endswith(("_sum", "_count")) or name.startswith("prefix_")
) | {
    "preemptions", "prompt_tokens", "generation_tokens", "finished", "rejected", "aborted",
    "spec_drafts", "spec_draft_tokens", "spec_accepted_tokens",
}  # fmt: skip
_AVERAGED = {"kv_use_share", "spec_accept_length_tokens", "gpu_use_percent", "gpu_engine_share"}
# Labels by which a term is also kept apart, as `term:value`.
_REASONS = {
    "vllm:num_requests_waiting_by_reason": "reason",
    "vllm:request_success_total": "finished_reason",
    "vllm:admission_rejections_total": "reason",
    "tgi_request_failure": "err",
    "dynamo_frontend_requests_total": "status",
}
_CACHE_CONFIG = "vllm:cache_config_info"
_ENGINES = ("engine", "dp_rank")
_COPIES = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})
_REASON = re.compile(r"[A-Za-z0-9_.\-]{1,40}")  # a label's value that is kept
MAX_LINE = 1 << 14

# Possessive, and matched from where the last one ended: no text takes more than linear time.
_LABEL = re.compile(r'\s*+([A-Za-z_]\w*+)\s*+=\s*+"((?:[^"\\]|\\.)*+)"\s*+,?+', re.ASCII)
_SAMPLE = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*+(?: *+\{| ++[-+.0-9NI])", re.ASCII)
_KNOWN: dict[str, str] = {}
for _name in (_CACHE_CONFIG, *(name for names in NAMES.values() for name in names)):
    _KNOWN[_name] = _KNOWN[_name.replace(":", "_")] = _name
_TERMS = {name: term for term, names in NAMES.items() for name in names}

Series = dict[tuple[tuple[str, str], ...], tuple[str | None, float]]


class NoMetricsError(ValueError):
    """A page that tells nothing: no Prometheus text, or without a single name that is known here."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one page told: values by term (`NAMES`, and `term:reason`), and of each engine where it has several."""

    values: dict[str, float]
    engines: dict[str, dict[str, float]] = field(default_factory=dict)


def read_page(text: str) -> Reading:
    """A page of Prometheus text, or of OpenMetrics, in linear time. Lines that are neither are passed over.

    Raises NoMetricsError, and nothing else, where it tells nothing.
    """
    found: dict[str, Series] = {}
    cache: dict[str | None, tuple[float, float]] = {}
    for line in text.split("\n"):
        head, brace, rest = line.partition("{")
        if not brace:
            head, _, rest = line.partition(" ")
        name = _KNOWN.get(head.rstrip())
        if name is None or len(line) > MAX_LINE:
            continue
        labels: dict[str, str] = {}
        if brace:
            parsed = _labels(rest)
            if parsed is None:
                continue
            labels, rest = parsed
        value = _value(rest)
        if value is None:
            continue
        engine = next((labels[key] for key in _ENGINES if _REASON.fullmatch(labels.get(key, ""))), None)
        if name == _CACHE_CONFIG:
            cache[engine] = _cache_tokens(labels)
            continue
        series = found.setdefault(name, {})
        key = tuple(sorted(pair for pair in labels.items() if pair[0] not in _COPIES))
        before = series.get(key)
        series[key] = (engine, value if before is None else max(before[1], value))
    return _reading(found, cache, text)


def _reading(found: dict[str, Series], cache: dict[str | None, tuple[float, float]], text: str) -> Reading:
    totals: dict[str, float] = {}
    engines: dict[str, dict[str, float]] = {}

    def add(term: str, pairs: list[tuple[str | None, float]], averaged: bool) -> None:
        totals[term] = _sum([value for _, value in pairs], averaged)
        for engine in {engine for engine, _ in pairs} - {None}:
            assert engine is not None
            engines.setdefault(engine, {})[term] = _sum([v for e, v in pairs if e == engine], averaged)

    for term, names in NAMES.items():
        name = next((name for name in names if name in found), None)
        if name is not None:
            add(term, list(found[name].values()), term in _AVERAGED)
    for name, label in _REASONS.items():
        by: dict[str, list[tuple[str | None, float]]] = {}
        for key, pair in found.get(name, {}).items():
            reason = dict(key).get(label, "")
            if _REASON.fullmatch(reason):
                by.setdefault(reason, []).append(pair)
        for reason, pairs in by.items():
            add(f"{_TERMS[name]}:{reason}", pairs, averaged=False)
    tokens = [(engine, value) for engine, (value, _) in cache.items() if value]
    if tokens:
        add("kv_tokens", tokens, averaged=False)
    block = max((block for _, block in cache.values()), default=0.0)
    if block:
        totals["kv_block_tokens"] = block
    if not totals:
        # The text, not what was found: a server that has just started may have no series yet.
        if any(_SAMPLE.match(line) for line in text.split("\n")):
            raise NoMetricsError("none of its names is known here")
        raise NoMetricsError("it is no Prometheus text")
    return Reading(totals, engines if len(engines) > 1 else {})


def _sum(values: list[float], averaged: bool) -> float:
    total = sum(values)
    return total / len(values) if averaged else total


def _labels(text: str) -> tuple[dict[str, str], str] | None:
    """`a="1",b="2"} 3` → the labels and what follows them; None where they are malformed."""
    labels: dict[str, str] = {}
    at = 0
    while (match := _LABEL.match(text, at)) is not None:
        labels[match[1]] = match[2]
        at = match.end()
    rest = text[at:].lstrip()
    return (labels, rest[1:]) if rest.startswith("}") else None


def _value(text: str) -> float | None:
    """The number at the start; a timestamp or an exemplar may follow. None for none, NaN and infinity."""
    words = text.split(None, 1)
    try:
        value = float(words[0]) if words else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _cache_tokens(labels: dict[str, str]) -> tuple[float, float]:
    """The sizes of vLLM's KV cache and of a block of it, which it tells in labels; 0 where it does not."""

    def number(name: str) -> float:
        text = labels.get(name, "")
        return float(text) if len(text) < 16 and text.isascii() and text.isdigit() else 0.0

    block = number("block_size")
    return number("kv_cache_size_tokens") or number("num_gpu_blocks") * block, block
