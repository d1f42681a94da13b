"""The simulated server's `/metrics`: the engine's truth in Prometheus' text format, under vLLM's names. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from .engine import EngineTruth
from .engine.sequence import Sequence

# Upper ends of vLLM's buckets for the phases of a request, in seconds.
BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
Samples = Iterable[tuple[str, float]]


class Histogram:
    """Counts of seconds in `BUCKETS_S`."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BUCKETS_S, seconds)] += 1
        self._sum += seconds

    def samples(self, name: str, label: str) -> Samples:
        below = 0
        for end, count in zip((*BUCKETS_S, "+Inf"), self._counts, strict=True):
            below += count
            yield f'{name}_bucket{{{label},le="{end}"}}', below
        yield f"{name}_count{{{label}}}", below
        yield f"{name}_sum{{{label}}}", self._sum


class Phases:
    """How long ended requests queued, were prefilled, decoded, and ran (from their first step to their last token)."""

    def __init__(self) -> None:
        self.histograms = {name: Histogram() for name in ("queue", "prefill", "decode", "inference")}

    def add(self, ended: Sequence) -> None:
        times = (ended.queue_s, ended.prefill_s, ended.decode_s, ended.prefill_s + ended.decode_s)
        for histogram, seconds in zip(self.histograms.values(), times, strict=True):
            histogram.add(seconds)


def render(
    truth: EngineTruth, phases: Phases, finished: Mapping[str, int], model: str, tokens: tuple[int, int], late_s: float
) -> str:
    """The whole page. `finished` counts requests by the reason they ended; `tokens` are prompt tokens processed and
    tokens that reached a client."""
    label = f'engine="0",model_name="{model}"'
    lines: list[str] = []

    def family(name: str, kind: str, text: str, samples: Samples) -> None:
        lines.extend((f"# HELP {name} {text}", f"# TYPE {name} {kind}"))
        lines.extend(f"{sample} {float(value)}" for sample, value in samples)

    def one(name: str, kind: str, text: str, value: float) -> None:
        family(name, kind, text, [(f"{name}{{{label}}}", value)])

    one("vllm:num_requests_running", "gauge", "Requests in the batch.", truth.running)
    one("vllm:num_requests_waiting", "gauge", "Requests waiting for a slot.", truth.waiting)
    one("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", truth.kv_usage)
    one("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up.", truth.prefix_queries)
    one("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found.", truth.prefix_hits)
    one("vllm:num_preemptions_total", "counter", "Preemptions.", truth.preemptions)
    one("vllm:prompt_tokens_total", "counter", "Prompt tokens processed.", tokens[0])
    one("vllm:generation_tokens_total", "counter", "Tokens generated.", tokens[1])
    if truth.draft_tokens:
        one("vllm:spec_decode_num_draft_tokens_total", "counter", "Tokens drafted.", truth.draft_tokens)
        one("vllm:spec_decode_num_accepted_tokens_total", "counter", "Of these, accepted.", truth.accepted_tokens)
    ends = "vllm:request_success_total"
    reasons = [(f'{ends}{{{label},finished_reason="{reason}"}}', count) for reason, count in finished.items()]
    family(ends, "counter", "Requests by the reason they ended.", reasons)
    for phase, histogram in phases.histograms.items():
        name = f"vllm:request_{phase}_time_seconds"
        family(name, "histogram", f"Time of a request's {phase} phase.", histogram.samples(name, label))
    one("loadgen:simulator_late_seconds", "gauge", "Time lost to a busy machine.", late_s)
    return "\n".join(lines) + "\n"
