"""A measured run held against the hardware's ceilings: how near each load came to them, what ran out first, how many
replicas a demand needs, and what the next doubling of each resource would buy. Pure.

    decode    the floor of a step of so many sequences (bytes / bandwidth, or FLOPs / peak) / the measured median TPOT
    prefill   the floor of the mean prompt (FLOPs / peak), less what was cached / the measured median TTFT
    both      the floor of a step and, of the n / O prompts that begin in it, theirs / the measured median TPOT
    FLOPs     those of all prompts and tokens a second / peak: model FLOPs utilisation
    doubling  by Little's law n O / (TTFT + (O - 1) TPOT), of whose measured times only the floors' part changes

What lies between a floor and the measured time is overhead, queueing, and what the two phases take from each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..hardware.deployment import Deployment, cache
from ..hardware.model import Model
from ..results import Estimate, StepSummary
from .capacity import concurrent, decode_floor
from .planning import Lengths

FULL_KV = 0.95  # of the blocks in use, at the peak
WAITING = 0.5  # requests in the server's queue, in the mean, that are a queue
NEAR = 0.5  # of a ceiling
FLAT = 0.35  # growth of throughput over that of load, on the log scale, that is hardly any
CLOSE = 0.8  # of what the KV memory holds
HELD = frozenset(("pass", "marginal", "baseline"))


@dataclass(frozen=True, slots=True)
class Level:
    """One load. `running` is the number in the batch by the server's own count where it told, else what is in flight.
    Shares are of the ceiling, 0 … 1; `kv_share` is the mean use that the server told, `kv_expected` what the plan says
    for so many sequences, which may exceed 1."""

    load: float
    step: int
    running: float
    waiting: float | None
    output_throughput: float | None
    request_throughput: Estimate | None
    tpot_ms: float | None
    tpot_floor_ms: float
    bound: str
    ttft_ms: float | None
    ttft_floor_ms: float
    flops_share: float | None
    kv_share: float | None
    kv_peak_share: float | None
    kv_expected: float | None
    preemptions: float | None
    verdict: str
    prompts_floor_ms: float = 0.0  # of the prompts that begin in one step, in the mean

    @property
    def both_share(self) -> float | None:
        return (self.tpot_floor_ms + self.prompts_floor_ms) / self.tpot_ms if self.tpot_ms else None

    @property
    def decode_share(self) -> float | None:
        return self.tpot_floor_ms / self.tpot_ms if self.tpot_ms else None

    @property
    def prefill_share(self) -> float | None:
        return self.ttft_floor_ms / self.ttft_ms if self.ttft_ms else None


@dataclass(frozen=True, slots=True)
class Doubled:
    """Output tokens/s with twice of one resource, over those now. `why` names what it acts on."""

    resource: str
    ratio: float
    why: str


@dataclass(frozen=True, slots=True)
class RunOut:
    """The resource that ran out first: at which load, and by what it is told."""

    resource: str
    load: float
    evidence: str


@dataclass(frozen=True, slots=True)
class Ceilings:
    """`kv_measured` is the KV memory in tokens, as the server told it or as its share in use implies; `kv_predicted`
    the plan's. `best` is the highest load that holds the objectives, without any the one of the highest throughput."""

    levels: tuple[Level, ...]
    kv_predicted: int
    kv_measured: float | None
    kv_source: str
    ran_out: RunOut | None
    best: Level | None
    undecided: tuple[float, ...]  # loads above the best that are not proven to break anything
    has_slo: bool
    doubled: tuple[Doubled, ...]
    gpus: int
    lengths: Lengths

    def replicas(self, rate: float) -> int | None:
        """Replicas for `rate` requests/s, each at the best load's proven rate (the lower end of its interval); None
        where no load holds."""
        each = self.each
        return math.ceil(rate / each - 1e-9) if each else None

    @property
    def each(self) -> float | None:
        """Requests/s that one replica is proven to carry; as measured, where no interval is established."""
        found = self.best.request_throughput if self.best else None
        if found is None:
            return None
        return found.low if found.low is not None else found.value

    def cost(self, price: float) -> float | None:
        """Of a million output tokens at the best load, with a GPU and hour at `price`."""
        rate = self.best.output_throughput if self.best else None
        return price * self.gpus / 3600 / rate * 1e6 if rate else None


def ceilings(
    model: Model, on: Deployment, summaries: Sequence[StepSummary], verdicts: Mapping[int, str], *, has_slo: bool
) -> Ceilings | None:
    """None where no step has a request that went well. `verdicts` are by step."""
    steps = [s for s in summaries if s.input_tokens_mean and s.output_tokens_mean]
    if not steps:
        return None
    levels = sorted((_level(model, on, s, verdicts.get(s.step, "measured")) for s in steps), key=lambda one: one.load)
    best = _best(levels, has_slo)
    n = sum(s.sent for s in steps)
    mean_in = sum((s.input_tokens_mean or 0) * s.sent for s in steps) / n
    mean_out = sum((s.output_tokens_mean or 0) * s.sent for s in steps) / n
    lengths = Lengths(mean_in, mean_out, mean_in, mean_in + mean_out)
    measured, source = _kv_measured(steps, lengths)
    return Ceilings(
        tuple(levels),
        cache(model, on).tokens,
        measured,
        source,
        _ran_out(levels),
        best,
        tuple(
            one.load
            for one in levels
            if has_slo and one.verdict == "inconclusive" and (not best or one.load > best.load)
        ),
        has_slo,
        tuple(_doubled(model, on, levels, best, lengths)) if best else (),
        on.gpus,
        lengths,
    )


def _level(model: Model, on: Deployment, s: StepSummary, verdict: str) -> Level:
    inputs, outputs = s.input_tokens_mean or 0.0, s.output_tokens_mean or 0.0
    context, server = inputs + outputs / 2, s.server
    cached = ((s.cache.seen if s.cache else None) or 0.0) * inputs
    told = server.running if server is not None else None
    running = told if told else s.concurrency_mean or s.load
    floor = decode_floor(model, on, max(1, round(running)), context)
    prompt_flops = model.prefill_flops(inputs, cached)
    peak = on.gpu.peak(model.quantisation.bits) * on.tensor_parallel * on.expert_parallel
    completed = s.completion_rate or s.request_throughput
    rate = completed.value if completed else None
    held = cache(model, on).tokens
    return Level(
        load=s.load,
        step=s.step,
        running=running,
        waiting=server.waiting if server else None,
        output_throughput=s.output_throughput.value if s.output_throughput else None,
        request_throughput=completed,
        tpot_ms=_median(s, "tpot"),
        tpot_floor_ms=floor.tpot_s * 1e3,
        bound=floor.bound,
        ttft_ms=_median(s, "ttft"),
        ttft_floor_ms=prompt_flops / peak * 1e3,
        flops_share=rate * (prompt_flops + (outputs - 1) * model.decode_flops(context)) / peak if rate else None,
        kv_share=server.kv_use_share if server else None,
        kv_peak_share=server.kv_use_peak_share if server else None,
        kv_expected=running * context / held if held else None,
        preemptions=server.preemptions if server else None,
        verdict=verdict,
        prompts_floor_ms=running / max(1.0, outputs) * prompt_flops / peak * 1e3,
    )


def _median(s: StepSummary, metric: str) -> float | None:
    found = s.latency.get(metric)
    q = found.at(50.0) if found else None
    return q.value if q else None


def _best(levels: Sequence[Level], has_slo: bool) -> Level | None:
    if has_slo:
        broken = min((one.load for one in levels if one.verdict == "fail"), default=math.inf)
        return max(
            (one for one in levels if one.verdict in HELD and one.load < broken), key=lambda one: one.load, default=None
        )
    return max(
        (one for one in levels if one.output_throughput), key=lambda one: one.output_throughput or 0.0, default=None
    )


def _kv_measured(steps: Sequence[StepSummary], lengths: Lengths) -> tuple[float | None, str]:
    told = [s.server.kv_tokens for s in steps if s.server and s.server.kv_tokens]
    if told:
        return told[-1], "told by the server"
    implied = [
        (s.server.kv_use_share, s.server.running * lengths.held_mean / s.server.kv_use_share)
        for s in steps
        if s.server and s.server.running and s.server.kv_use_share and s.server.kv_use_share > 0.02
    ]
    if implied:
        return max(implied)[1], "implied by the share in use"
    return None, ""


def _ran_out(levels: Sequence[Level]) -> RunOut | None:
    """The first load at which one of them is exhausted, or from which on throughput hardly grows."""
    for i, one in enumerate(levels):
        if one.preemptions:
            return RunOut("KV memory", one.load, f"{one.preemptions:,.0f} preemptions")
        if one.kv_peak_share is not None and one.kv_peak_share >= FULL_KV:
            return RunOut("KV memory", one.load, f"{one.kv_peak_share:.0%} of its blocks in use at the peak")
        flat = i > 0 and one.running < 1.05 * levels[i - 1].running
        if one.waiting is not None and one.waiting > max(WAITING, 0.05 * one.running) and flat:
            return RunOut(
                "places in the batch",
                one.load,
                f"{one.waiting:,.1f} requests wait while {one.running:,.1f} run and KV memory is free",
            )
        if one.waiting is None and one.kv_expected is not None and one.kv_expected >= 1:
            return RunOut("KV memory", one.load, f"the plan says {one.kv_expected:.0%} of it for what is in flight")
        if i > 0 and _elasticity(levels[i - 1], one) < FLAT:
            return _nearest(one)
    return None


def _elasticity(before: Level, one: Level) -> float:
    """d ln throughput / d ln load; above `FLAT` where it cannot be told."""
    if not before.output_throughput or not one.output_throughput or one.load <= before.load:
        return 1.0
    return math.log(one.output_throughput / before.output_throughput) / math.log(one.load / before.load)


def _nearest(one: Level) -> RunOut:
    """What a load whose throughput hardly grows came nearest to."""
    share = one.both_share or 0.0
    if share < NEAR:
        why = f"throughput hardly grows, at {share:.0%} of what the hardware sets: overhead, scheduler or client"
        return RunOut("nothing of the hardware", one.load, why)
    prompts = one.prompts_floor_ms > one.tpot_floor_ms
    resource = "FLOPs" if prompts or one.bound == "compute" else "bandwidth"
    what = "prompts" if prompts else "decoding"
    return RunOut(resource, one.load, f"throughput hardly grows, at {share:.0%} of the ceiling, most of it {what}")


def _doubled(model: Model, on: Deployment, levels: Sequence[Level], best: Level, lengths: Lengths) -> list[Doubled]:
    """Only the floors' part of the measured times changes; all else is left as it was, so a gain is the least there
    is."""
    if best.tpot_ms is None or best.ttft_ms is None:
        return []
    tpot_ms, n = best.tpot_ms, best.running
    ttft_ms = min(one.ttft_ms for one in levels if one.ttft_ms is not None)  # without a queue
    prompt_ms = min(best.ttft_floor_ms, ttft_ms)  # a floor above it is that of another machine
    floor_ms, context, outputs = best.tpot_floor_ms, lengths.held_mean, lengths.output_mean

    def output(on: Deployment, n: float, prompt_share: float = 1.0) -> float:
        """Output tokens/s of n at once, by Little's law: n O / (TTFT + (O - 1) TPOT)."""
        step_ms = decode_floor(model, on, max(1, round(n)), context).tpot_s * 1e3
        beside_ms = prompt_ms / outputs * (n * prompt_share - best.running)  # what prompts take from each step
        residence = (
            ttft_ms
            - prompt_ms * (1 - prompt_share)
            + (outputs - 1) * max(step_ms, tpot_ms - floor_ms + step_ms + beside_ms)
        )
        return n * outputs / residence

    gpu, now, found = on.gpu, output(on, n), []
    found.append(Doubled("bandwidth", output(_with(on, bandwidth=2 * gpu.bandwidth), n) / now, "decode steps"))
    peaks = _with(on, peak_16=2 * gpu.peak_16, peak_8=2 * gpu.peak_8)
    found.append(Doubled("FLOPs", output(peaks, n, 0.5) / now, "prompts"))
    holds, more = (concurrent(model, one, context) for one in (on, _with(on, memory=2 * gpu.memory)))
    full = best.kv_peak_share is not None and best.kv_peak_share >= FULL_KV
    if holds and (full or n >= CLOSE * holds):
        larger = n * more / holds
        found.append(Doubled("memory", output(on, larger) / now, f"{larger:,.0f} requests at once"))
    else:
        found.append(Doubled("memory", 1.0, f"nothing: {n:,.0f} requests run where {holds:,} fit"))
    if 2 * n <= holds:
        found.append(Doubled("requests at once", output(on, 2 * n) / now, "if the objectives allow their TPOT"))
    found.append(Doubled("replicas", 2.0, "everything, at twice the cost"))
    return found


def _with(on: Deployment, **changes: Any) -> Deployment:
    return replace(on, gpu=replace(on.gpu, **changes))
