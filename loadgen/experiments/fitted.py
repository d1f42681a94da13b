"""The step model fitted to a measured run, and what it predicts of loads that were not measured. Pure.

A step of the fitted engine lasts step + decode x (sequences) + context x (KV tokens read) + prefill x (prompt tokens),
and a request is seen `overhead` after it was sent. Least squares tell these five from what a run shows directly:

    prefill, overhead   TTFT at the lowest load over the input length: its slope, and what is left at length 0
    context             TPOT at the lowest load over the tokens read
    step, decode        the mean TPOT of each load, less what context and prompts take, over the number running

That is biased, as it knows neither queues nor how prompts fall into steps. So the same is told from the fitted engine's
own run, in virtual time and on the run's own lengths, and what it differs by is added, a few times over (indirect
inference: Gourieroux, Monfort and Renault 1993). Every second load is held out first: the error of a prediction is what
was seen there, with a fit that did not know it. Noise of the steps is not fitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..results import StepSummary
from ..simulator.engine import EngineConfig
from ..simulator.engine.virtual import Closed, Requests, simulate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FIGURES = ("output_throughput", "ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95")  # tokens/s, then ms
NAMES = ("overhead_ms", "step_ms", "decode_ms", "context_us", "prefill_ms")
LEAST = np.array([0.0, 1e-3, 0.0, 0.0, 0.0])  # of each
SAME = 0.05  # spread of the inputs over their mean, below which overhead and prefill are not told apart
ROUNDS = 4
FIT_REQUESTS, PREDICT_REQUESTS = (60, 200), 300  # of a run in virtual time: least and most, and of a prediction


@dataclass(frozen=True, slots=True)
class MeasuredLevel:
    """One closed-loop load: its figures by `FIGURES`, NaN where there is none, and of each ok request, in the order in
    which it was sent: input and output tokens, TTFT and TPOT in ms."""

    concurrency: int
    figures: Floats
    prompt: Ints
    output: Ints
    ttft_ms: Floats
    tpot_ms: Floats


@dataclass(frozen=True, slots=True)
class Predicted:
    """A load with what the fitted engine does there; `measured` is None where that was not measured."""

    concurrency: int
    figures: Floats
    measured: Floats | None = None

    @property
    def errors(self) -> Floats | None:
        """Predicted over measured, less 1, by figure."""
        return None if self.measured is None else self.figures / self.measured - 1


@dataclass(frozen=True, slots=True)
class Fit:
    """`held_out` are predictions by a fit that did not know them; `fitted` those of the loads it was fitted to;
    `predicted` of others. `told_apart`: whether the inputs differ enough to tell prefill from overhead."""

    config: EngineConfig
    fitted: tuple[Predicted, ...]
    held_out: tuple[Predicted, ...]
    predicted: tuple[Predicted, ...]
    told_apart: bool

    def error(self, figure: str) -> float | None:
        """The largest error of a figure over the loads held out, as a share; None without any."""
        place = FIGURES.index(figure)
        found = [abs(float(one.errors[place])) for one in self.held_out if one.errors is not None]
        found = [value for value in found if math.isfinite(value)]
        return max(found, default=None)


def figures_of(summary: StepSummary) -> Floats:
    """The figures of `FIGURES`, NaN where there is none."""
    values = [summary.output_throughput.value if summary.output_throughput else math.nan]
    for name in FIGURES[1:]:
        metric, _, p = name.partition("_p")
        found = summary.latency.get(metric)
        q = found.at(float(p)) if found else None
        values.append(q.value if q else math.nan)
    return np.array(values)


def fit(
    levels: Sequence[MeasuredLevel],
    like: EngineConfig,
    loads: Sequence[int] = (),
    told: Callable[[str], None] = lambda _: None,
) -> Fit:
    """`like` says what is not fitted: places in the batch, KV memory, budget of a step. `loads` are to be predicted.
    ValueError without a level that has requests with two tokens or more; UsageError where `like` cannot hold one."""
    levels = sorted((one for one in levels if len(one.prompt)), key=lambda one: one.concurrency)
    if not levels or not any(np.isfinite(one.tpot_ms).any() for one in levels):
        raise ValueError("no level has requests with two tokens or more")
    longest = max(int((one.prompt + one.output).max()) for one in levels)
    if longest > like.room:
        raise UsageError(
            f"the run has a request of {longest:,} tokens, and such an engine holds {like.room:,}",
            "raise context_length or kv_blocks, or leave them out",
        )
    held = levels[1:-1:2] if len(levels) > 2 else []
    held_out: list[Predicted] = []
    if held:
        told(f"held out: {', '.join(str(one.concurrency) for one in held)} in flight")
        known = [one for one in levels if one not in held]
        without = _refined(known, like)
        held_out = [_predict(without, one, measured=one.figures) for one in held]
    told("all loads")
    config = _refined(levels, like)
    spread = levels[0].prompt.std() / levels[0].prompt.mean()
    return Fit(
        config,
        tuple(_predict(config, one, measured=one.figures) for one in levels),
        tuple(held_out),
        tuple(_predict(config, replace(_nearest(levels, load), concurrency=load)) for load in loads),
        bool(spread >= SAME),
    )


def run_level(config: EngineConfig, like: MeasuredLevel, requests: int) -> MeasuredLevel:
    """The engine at a level's load, on its lengths over and over."""
    concurrency, prompt, output = like.concurrency, like.prompt, like.output
    count = requests + 4 * concurrency
    rows = np.arange(count) % len(prompt)
    asked = Requests(prompt[rows], output[rows])
    stay = float(np.mean(output)) * (config.step_ms + config.decode_ms * min(concurrency, config.max_batch)) / 1e3
    run = simulate(config, asked, Closed(concurrency, ramp_s=stay))
    opened = float(np.sort(run.done_s)[concurrency - 1])
    first = int(np.searchsorted(run.submitted_s, opened, side="right"))
    last = min(first + requests, count - 1)
    chosen = slice(first, last)
    ttft, tpot = run.ttft_s[chosen] * 1e3, run.tpot_s[chosen] * 1e3
    known = tpot[~np.isnan(tpot)]
    late = np.percentile(known, [50, 95]) if len(known) else (math.nan, math.nan)
    rate = run.throughput(opened, float(run.submitted_s[last]))
    figures = np.array([rate, *np.percentile(ttft, [50, 95]), *late])
    return MeasuredLevel(concurrency, figures, run.prompt[chosen], run.output[chosen], ttft, tpot)


# --- the fit --------------------------------------------------------------------------------------------------------


def told_by(levels: Sequence[MeasuredLevel], most: int) -> Floats:
    """The five of `NAMES` by least squares on the levels, of which at most `most` requests run at once."""
    lowest = levels[0]
    inputs, outputs = lowest.prompt.astype(float), lowest.output.astype(float)
    if inputs.std() >= SAME * inputs.mean():
        prefill, rest = (float(one) for one in np.polyfit(inputs, lowest.ttft_ms, 1))
    else:
        prefill = rest = float(np.median(lowest.ttft_ms)) / 2
        prefill /= float(inputs.mean())
    read, sure = inputs + outputs / 2, np.isfinite(lowest.tpot_ms)
    context = 0.0
    if sure.sum() > 10 and read[sure].std() >= SAME * read[sure].mean():
        context = float(np.polyfit(read[sure], lowest.tpot_ms[sure], 1)[0]) / lowest.concurrency
    running, left = [], []
    for one in levels:
        n = min(one.concurrency, most)
        # By flow balance: what each of n that run adds to a step.
        each = context * float(np.mean(one.prompt + one.output / 2))
        each += prefill * float(np.mean(one.prompt) / np.mean(one.output)) * (n - 1) / n
        running.append(float(n))
        left.append(float(np.nanmean(one.tpot_ms)) - n * each)
    if max(running) > min(running):
        decode, step = (float(one) for one in np.polyfit(running, left, 1, w=1 / np.array(_scale(levels))))
    else:
        decode, step = 0.0, left[0]
    return np.array([rest - step, step, decode, 1e3 * context, prefill])


def _scale(levels: Sequence[MeasuredLevel]) -> list[float]:
    """What an error of a level's TPOT is measured by: the TPOT itself, so that errors count as shares."""
    return [float(np.nanmean(one.tpot_ms)) for one in levels]


def _refined(levels: Sequence[MeasuredLevel], like: EngineConfig) -> EngineConfig:
    shown = told_by(levels, like.max_batch)
    values = _possible(shown, levels)
    low, high = FIT_REQUESTS
    for _ in range(ROUNDS):
        config = _config(values, like)
        runs = [run_level(config, one, min(high, max(low, 8 * one.concurrency))) for one in levels]
        values = _possible(values + shown - told_by(runs, like.max_batch), levels)
    return _config(values, like)


def _possible(values: Floats, levels: Sequence[MeasuredLevel]) -> Floats:
    """Nothing below `LEAST`. Where each further sequence would take less than nothing, what it takes in all is kept:
    the lowest load made context, then prompts, look dearer than they are among others, as on hardware that reads while
    it computes. The mean TTFT alone is kept too, by the overhead."""
    overhead, step, decode, context, prefill = (float(one) for one in values)
    context, prefill = max(0.0, context), max(0.0, prefill)
    prompt = float(np.mean([one.prompt.mean() for one in levels]))
    output = float(np.mean([one.output.mean() for one in levels]))
    if decode < 0:
        cut = min(context, -decode / (prompt + output / 2) * 1e3)
        context, decode = context - cut, decode + cut * (prompt + output / 2) / 1e3
    if decode < 0:
        cut = min(prefill, -decode / (prompt / output))
        prefill, overhead = prefill - cut, overhead + cut * float(levels[0].prompt.mean())
    found: Floats = np.maximum(np.array([overhead, step, decode, context, prefill]), LEAST)
    return found


def _config(values: Floats, like: EngineConfig) -> EngineConfig:
    return replace(like, noise_sigma=0.0, **dict(zip(NAMES, values.tolist(), strict=True)))


def _predict(config: EngineConfig, one: MeasuredLevel, measured: Floats | None = None) -> Predicted:
    found = run_level(config, one, PREDICT_REQUESTS).figures
    return Predicted(one.concurrency, found, measured)


def _nearest(levels: Sequence[MeasuredLevel], load: int) -> MeasuredLevel:
    return min(levels, key=lambda one: abs(math.log(one.concurrency / load)))
