"""The simulated server's `/metrics`: the engine's truth in Prometheus' text format, under vLLM's names. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .engine import EngineTruth
from .engine.sequence import Sequence

# Upper ends of vLLM's buckets: of a request's phases and its whole, of its first token, of a token after it (seconds),
# and of the tokens of a step.
PHASE_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
FIRST_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
STEP_TOKENS = tuple(float(n) for n in (1, *(8 << power for power in range(12))))
Samples = Iterable[tuple[str, float]]


class Histogram:
    """Counts of values by the bucket whose upper end they do not pass."""

    def __init__(self, ends: tuple[float, ...]) -> None:
        self._ends = ends
        self._counts = [0] * (len(ends) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._ends, value)] += 1
        self._sum += value

    def samples(self, name: str, label: str) -> Samples:
        below = 0
        for end, count in zip((*self._ends, "+Inf"), self._counts, strict=True):
            below += count
            yield f'{name}_bucket{{{label},le="{end}"}}', below
        yield f"{name}_count{{{label}}}", below
        yield f"{name}_sum{{{label}}}", self._sum


class Requests:
    """What the engine did for the requests that ended, and in its steps. Times are those of its schedule: from arrival
    to the first step, to the first token, to the last; `inference` runs from the first step to the last token."""

    def __init__(self) -> None:
        self.histograms = {
            "vllm:request_queue_time_seconds": Histogram(PHASE_S),
            "vllm:request_prefill_time_seconds": Histogram(PHASE_S),
            "vllm:request_decode_time_seconds": Histogram(PHASE_S),
            "vllm:request_inference_time_seconds": Histogram(PHASE_S),
            "vllm:e2e_request_latency_seconds": Histogram(PHASE_S),
            "vllm:time_to_first_token_seconds": Histogram(FIRST_S),
            "vllm:request_time_per_output_token_seconds": Histogram(TOKEN_S),
            "vllm:iteration_tokens_total": Histogram(STEP_TOKENS),
        }
        self._steps = self.histograms["vllm:iteration_tokens_total"]

    def ended(self, one: Sequence) -> None:
        per_token_s = one.decode_s / (one.output - 1) if one.output > 1 else 0.0
        whole_s, inference_s = one.done_s - one.submitted_s, one.prefill_s + one.decode_s
        values = (one.queue_s, one.prefill_s, one.decode_s, inference_s, whole_s, one.first_s - one.submitted_s)
        for histogram, value in zip(self.histograms.values(), (*values, per_token_s), strict=False):
            histogram.add(value)

    def step(self, tokens: int) -> None:
        """A step over so many prompt and output tokens."""
        self._steps.add(tokens)


@dataclass(frozen=True, slots=True)
class Served:
    """What the server knows beside its engine. `finished` counts requests by the reason they ended, tokens are those
    processed of prompts and those that reached a client; `lag_s`, `lost_s` and `saturated` as in `realtime.Pace`."""

    model: str
    block_tokens: int
    finished: Mapping[str, int]
    prompt_tokens: int
    generation_tokens: int
    lag_s: float
    lost_s: float
    saturated: bool


def render(truth: EngineTruth, requests: Requests, served: Served) -> str:
    """The whole page."""
    label = f'engine="0",model_name="{served.model}"'
    lines: list[str] = []

    def family(name: str, kind: str, text: str, samples: Samples) -> None:
        lines.extend((f"# HELP {name} {text}", f"# TYPE {name} {kind}"))
        lines.extend(f"{sample} {float(value)}" for sample, value in samples)

    def one(name: str, kind: str, text: str, value: float) -> None:
        family(name, kind, text, [(f"{name}{{{label}}}", value)])

    one("vllm:num_requests_running", "gauge", "Requests in the batch.", truth.running)
    one("vllm:num_requests_waiting", "gauge", "Requests waiting for a slot.", truth.waiting)
    one("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", truth.kv_usage)
    if truth.kv_blocks is not None:
        name = "vllm:cache_config_info"
        about = f'block_size="{served.block_tokens}",num_gpu_blocks="{truth.kv_blocks}"'
        family(name, "gauge", "The KV memory.", [(f"{name}{{{label},{about}}}", 1)])
    one("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up.", truth.prefix_queries)
    one("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found.", truth.prefix_hits)
    one("vllm:num_preemptions_total", "counter", "Preemptions.", truth.preemptions)
    one("vllm:prompt_tokens_total", "counter", "Prompt tokens processed.", served.prompt_tokens)
    one("vllm:generation_tokens_total", "counter", "Tokens generated.", served.generation_tokens)
    if truth.draft_tokens:
        one("vllm:spec_decode_num_drafts_total", "counter", "Sequences drafted for.", truth.drafts)
        one("vllm:spec_decode_num_draft_tokens_total", "counter", "Tokens drafted.", truth.draft_tokens)
        one("vllm:spec_decode_num_accepted_tokens_total", "counter", "Of these, accepted.", truth.accepted_tokens)
    ends = "vllm:request_success_total"
    reasons = [(f'{ends}{{{label},finished_reason="{reason}"}}', count) for reason, count in served.finished.items()]
    family(ends, "counter", "Requests by the reason they ended.", reasons)
    for name, histogram in requests.histograms.items():
        family(name, "histogram", "As the engine's schedule has it.", histogram.samples(name, label))
    one("loadgen:simulator_engine_busy_seconds_total", "counter", "Engine time of all steps.", truth.busy_s)
    one("loadgen:simulator_lag_seconds", "gauge", "How long after a step its tokens are out, lately.", served.lag_s)
    one("loadgen:simulator_lost_seconds_total", "counter", "Time the schedule lost to a busy machine.", served.lost_s)
    text = "1 while the machine, not the engine, is the limit: more than 1 % of the last 10 s was lost."
    one("loadgen:simulator_saturated", "gauge", text, served.saturated)
    return "\n".join(lines) + "\n"
