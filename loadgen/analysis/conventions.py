"""How other tools count: the same requests under each tool's own definitions, read in its source. Pure.

Every function of one tool is one definition; its docstring opens with the tool's own term and names the place where the
tool defines it. Values are float64 in ms, one per counted request unless said otherwise. Requests of the measured phase
are looked at. A log holds what it holds: where a tool stamps something that no log keeps (the first event with an empty
delta, say), the nearest stamp stands in, and `docs/foreign-logs.md` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..log.columns import NULL, Bools, Columns, Int64
from .metrics import Floats, event_tokens, first_event_tokens, input_tokens, inter_chunk, span_ms
from .window import has_outcome, is_phase

Values = tuple[Floats, Int64 | None]  # and how often each counts; None is once


@dataclass(frozen=True, slots=True)
class Figure:
    """One latency as a tool counts it, in ms. `metric` is the one of ours that it is nearest to, `term` the tool's
    name; None where the log does not tell it."""

    metric: str
    term: str
    n: int
    mean: float | None
    median: float | None
    p99: float | None
    std: float | None = None  # divides by n


@dataclass(frozen=True, slots=True)
class Counted:
    """A step as a tool counts it. Throughputs are per second of `duration_s`; None is not told by the log."""

    tool: str
    step: int
    completed: int
    failed: int
    duration_s: float | None
    request_throughput: float | None
    output_throughput: float | None
    total_throughput: float | None
    figures: tuple[Figure, ...]


def counted(tool: str, c: Columns, step: int, duration_s: float | None = None) -> Counted:
    """One step of a run as `tool`, one of TOOLS, counts it. `duration_s` is the time that the tool itself wrote down;
    without it, the tool's span is taken from the stamps."""
    convention = TOOLS[tool]
    c = c.where((c.step == step) & is_phase(c, "measured"))
    good = c.where(convention.counts(c))
    failed = int((~convention.counts(c) & ~has_outcome(c, "cut", "cancelled")).sum())
    untimed = bool(c.flag("untimed").any())
    seconds = duration_s if duration_s is not None else None if untimed else convention.seconds(c, good)
    out, into = good.output_count, convention.tokens_in(good)
    known_out, known_in = out[out != NULL], into[into != NULL]
    output, total = int(known_out.sum()), int(known_out.sum()) + int(known_in.sum())

    def rate(n: int, told: bool) -> float | None:
        return n / seconds if seconds and told else None

    return Counted(
        tool=tool,
        step=step,
        completed=len(good),
        failed=failed,
        duration_s=seconds,
        request_throughput=rate(len(good), len(good) > 0),
        output_throughput=rate(output, len(known_out) > 0),
        total_throughput=rate(total, len(known_out) > 0 and len(known_in) > 0),
        figures=tuple(
            _figure(metric, term, definition(good), convention.between)
            for metric, term, definition in convention.latencies
        ),
    )


def _figure(metric: str, term: str, values: Values, between: bool) -> Figure:
    found, times = values
    if times is not None:
        found = np.repeat(found, times)
    found = found[~np.isnan(found)]
    if not len(found):
        return Figure(metric, term, 0, None, None, None)
    # GuideLLM takes the first value at which the distribution reaches the share, the others interpolate.
    median, p99 = np.percentile(found, [50, 99], method="linear" if between else "inverted_cdf")
    return Figure(metric, term, len(found), float(found.mean()), float(median), float(p99), float(found.std()))


# --- which requests count -------------------------------------------------------------------------------------------


def answered(c: Columns) -> Bools:
    """A stream that ended without an error counts, whether or not its end was marked."""
    return has_outcome(c, "ok", "incomplete")


# --- vLLM: vllm/benchmarks/serve.py calculate_metrics, lib/endpoint_request_func.py ----------------------------------


def vllm_ttft(c: Columns) -> Values:
    """`ttft`: first event that has `choices` - start. Of an event with an empty delta before it no log tells."""
    return span_ms(c.sent_ns, c.first_token_ns), None


def vllm_tpot(c: Columns) -> Values:
    """`tpot`: (latency - ttft) / (output tokens - 1), of answers with more than one token."""
    return _per(span_ms(c.first_token_ns, c.last_token_ns), _counts(c) - 1), None


def vllm_itl(c: Columns) -> Values:
    """`itl`: gaps between events, however many tokens one carries, pooled."""
    return _gaps(c), None


def vllm_e2el(c: Columns) -> Values:
    """`e2el`: last event that has `choices` - start."""
    return span_ms(c.sent_ns, c.last_token_ns), None


# --- SGLang: sglang/benchmark/serving.py calculate_metrics, async_request_openai_chat_completions --------------------


def sglang_tpot(c: Columns) -> Values:
    """`tpot`: (latency - ttft) / (output tokens - 1), where latency runs to the end of the stream."""
    return _per(span_ms(c.first_token_ns, c.done_ns), _counts(c) - 1), None


def sglang_e2e(c: Columns) -> Values:
    """`e2e_latency`: the stream's last line, [DONE] included, - start."""
    return span_ms(c.sent_ns, c.done_ns), None


# --- GuideLLM: guidellm/schemas/base/request_stats.py, benchmark/schemas/metrics.py ----------------------------------


def guidellm_tpot(c: Columns) -> Values:
    """`time_per_output_token_ms`: (last token - request start) / output tokens: the wait for the first token is inside.
    Each request counts once per token."""
    return _per(span_ms(c.sent_ns, c.last_token_ns), _counts(c)), np.maximum(_counts(c), 0)


def guidellm_itl(c: Columns) -> Values:
    """`inter_token_latency_ms`: (last token - first token) / (output tokens - 1), a mean of each request, which counts
    once per token but the first."""
    return _per(span_ms(c.first_token_ns, c.last_token_ns), _counts(c) - 1), np.maximum(_counts(c) - 1, 0)


def guidellm_latency(c: Columns) -> Values:
    """`request_latency`: request end - request start, the end of the body."""
    return span_ms(c.sent_ns, c.done_ns), None


def guidellm_seconds(c: Columns, _good: Columns) -> float | None:
    """`duration`: last end - first start, of all requests. Its rates are time-weighted means over that."""
    return _seconds(c.sent_ns, c.done_ns)


# --- AIPerf: aiperf/metrics/types/ -----------------------------------------------------------------------------------


def aiperf_answered(c: Columns) -> Bools:
    """`request_count`: without an error, and with content."""
    found: Bools = answered(c) & (c.first_token_ns != NULL)
    return found


def aiperf_itl(c: Columns) -> Values:
    """`inter_token_latency`: (request latency - TTFT) / (output tokens - tokens of the first chunk), of answers with
    two tokens or more; the first chunk's are 1 where unknown. A mean of each request, each of which counts once."""
    later = _counts(c) - first_event_tokens(c)
    later = np.where(later < 1, _counts(c) - 1, later)
    return _per(span_ms(c.first_token_ns, c.last_token_ns), later), None


def own_tokens_first(c: Columns) -> Int64:
    """`input_sequence_length`: by its own tokenizer, else the server's count."""
    return np.where(c.input_local != NULL, c.input_local, c.input_server)


def aiperf_seconds(_c: Columns, good: Columns) -> float | None:
    """`benchmark_duration`: last (start + request latency) - first start, of the requests that count. Where it knows
    the bounds of the whole phase, which stand in its summary, it divides by these."""
    return _seconds(good.sent_ns, good.last_token_ns)


# --- inference-perf: inference_perf/reportgen/base.py compute_request_latency_metrics, summarize_requests -------------


def inference_perf_ttft(c: Columns) -> Values:
    """`time_to_first_token`: first token - start, of streams of more than one token."""
    return np.where(_streams(c), span_ms(c.sent_ns, c.first_token_ns), np.nan), None


def inference_perf_tpot(c: Columns) -> Values:
    """`time_per_output_token`: (last token - first token) / (output tokens - 1), of streams of more than one
    token."""
    return np.where(_streams(c), _per(span_ms(c.first_token_ns, c.last_token_ns), _counts(c) - 1), np.nan), None


def inference_perf_itl(c: Columns) -> Values:
    """`inter_token_latency`: gaps between tokens, pooled; the tokens of one chunk have its time, so that all but one
    of their gaps are 0. An event whose tokens are not known is taken for one."""
    pooled = inter_chunk(c)
    tokens = event_tokens(c)
    each = np.where(tokens.estimated, 1, np.rint(tokens.count)).astype(np.int64)
    gaps = pooled.values[each[pooled.later] > 0]
    return np.concatenate((gaps, np.zeros(int(np.maximum(each - 1, 0).sum())))), None


def inference_perf_latency(c: Columns) -> Values:
    """`request_latency`: end - start, the end of the body."""
    return span_ms(c.sent_ns, c.done_ns), None


# --- the table ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Convention:
    """How one tool counts: `seconds` takes all requests and those that count; `between` says whether its percentiles
    lie between two values."""

    latencies: tuple[tuple[str, str, Callable[[Columns], Values]], ...]
    seconds: Callable[[Columns, Columns], float | None]
    counts: Callable[[Columns], Bools] = answered
    tokens_in: Callable[[Columns], Int64] = input_tokens
    between: bool = True


def all_seconds(c: Columns, _good: Columns) -> float | None:
    """From the first sending to the last end, of all requests: the tool's own watch runs a little longer."""
    return _seconds(c.sent_ns, c.done_ns)


TOOLS: dict[str, Convention] = {
    "vllm": Convention(
        (
            ("ttft", "ttft", vllm_ttft),
            ("tpot", "tpot", vllm_tpot),
            ("itl", "itl", vllm_itl),
            ("e2e", "e2el", vllm_e2el),
        ),
        all_seconds,
    ),
    "sglang": Convention(
        (
            ("ttft", "ttft", vllm_ttft),
            ("tpot", "tpot", sglang_tpot),
            ("itl", "itl", vllm_itl),
            ("e2e", "e2e_latency", sglang_e2e),
        ),
        all_seconds,
    ),
    "guidellm": Convention(
        (
            ("ttft", "time_to_first_token_ms", vllm_ttft),
            ("tpot", "time_per_output_token_ms", guidellm_tpot),
            ("itl", "inter_token_latency_ms", guidellm_itl),
            ("e2e", "request_latency", guidellm_latency),
        ),
        guidellm_seconds,
        between=False,
    ),
    "aiperf": Convention(
        (
            ("ttft", "time_to_first_token", vllm_ttft),
            ("tpot", "inter_token_latency", aiperf_itl),
            ("itl", "inter_chunk_latency", vllm_itl),
            ("e2e", "request_latency", vllm_e2el),
        ),
        aiperf_seconds,
        counts=aiperf_answered,
        tokens_in=own_tokens_first,
    ),
    "inference-perf": Convention(
        (
            ("ttft", "time_to_first_token", inference_perf_ttft),
            ("tpot", "time_per_output_token", inference_perf_tpot),
            ("itl", "inter_token_latency", inference_perf_itl),
            ("e2e", "request_latency", inference_perf_latency),
        ),
        all_seconds,
        tokens_in=own_tokens_first,
    ),
}


def _per(span: Floats, tokens: Int64) -> Floats:
    """Per token, where there is at least one."""
    return np.where(tokens >= 1, span / np.maximum(tokens, 1), np.nan)


def _gaps(c: Columns) -> Floats:
    """Of `inter_chunk`, the gaps from the first token to the last: a growing usage without text is an event of its own
    in our log only. Events are logged to the µs."""
    pooled = inter_chunk(c)
    start, end = c.event_ns[pooled.later - 1], c.event_ns[pooled.later]
    within = (start + 1000 >= c.first_token_ns[pooled.rows]) & (end - 1000 <= c.last_token_ns[pooled.rows])
    return pooled.values[within]


def _counts(c: Columns) -> Int64:
    """Output tokens, 0 where not known: one less than NULL would be a large number."""
    return np.where(c.output_count == NULL, 0, c.output_count)


def _streams(c: Columns) -> Bools:
    several: Bools = (_counts(c) > 1) & ~c.flag("not_streamed")
    return several


def _seconds(start: Int64, end: Int64) -> float | None:
    known_start, known_end = start[start != NULL], end[end != NULL]
    if not len(known_start) or not len(known_end):
        return None
    span = int(known_end.max()) - int(known_start.min())
    return span / 1e9 if span > 0 else None


__all__ = ["TOOLS", "Counted", "Figure", "counted"]
