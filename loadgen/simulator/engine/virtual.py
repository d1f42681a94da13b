"""Whole workloads in virtual time: requests and a load in, one row of times for each request out.

mix = Mix(input_len=512, output_len=128, spread=0.5)
run = simulate(EngineConfig(max_batch=64), mix.draw(10_000, seed=1), Closed(64))
np.percentile(run.ttft_s, 95)
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence as Several
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .config import EngineConfig
from .disaggregated import core_for
from .prefix import shared_prefix
from .sequence import Sequence
from .truth import EngineTruth

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Requests:
    """What is asked for, in order of submission. `blocks`, if given, are each prompt's chained hashes."""

    prompt: Ints
    output: Ints
    blocks: Several[tuple[int, ...]] = ()


@dataclass(frozen=True, slots=True)
class Mix:
    """Lengths in tokens, drawn independently: lognormal with `sigma` around the mean, or else uniform within `spread`
    (a share) of it; the prompts within `input_spread`, where it is given. `prefixes` > 0: each prompt begins with one
    of so many texts of `prefix_len` tokens, all equally likely, which come on top of `input_len`."""

    input_len: float
    output_len: float
    spread: float = 0.0
    sigma: float = 0.0
    prefixes: int = 0
    prefix_len: int = 0
    input_spread: float | None = None

    def draw(self, count: int, seed: int, *, block_tokens: int = 16, longest: int = 1 << 40) -> Requests:
        """`count` requests; prompt and output are cut so that they fit into `longest` together."""
        random = np.random.default_rng([seed, 2])
        prompt = self._lengths(
            self.input_len, self.spread if self.input_spread is None else self.input_spread, count, random
        )
        output = self._lengths(self.output_len, self.spread, count, random)
        blocks: tuple[tuple[int, ...], ...] = ()
        if self.prefixes:
            known = [shared_prefix(number, self.prefix_len, block_tokens) for number in range(self.prefixes)]
            blocks = tuple(known[number] for number in random.integers(self.prefixes, size=count).tolist())
            prompt = prompt + self.prefix_len
        prompt = np.minimum(prompt, longest - 1)
        return Requests(prompt, np.minimum(output, longest - prompt), blocks)

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and output together. Lognormal lengths have no highest, and are cut:
        of them, a request of mean lengths."""
        spreads = self.spread if self.input_spread is None else self.input_spread, self.spread
        if self.sigma:
            spreads = 0.0, 0.0
        highest = [mean * (1 + spread) for mean, spread in zip((self.input_len, self.output_len), spreads, strict=True)]
        return self.prefix_len * (self.prefixes > 0) + sum(max(1, math.ceil(one - 0.5 - 1e-6)) for one in highest)

    def _lengths(self, mean: float, spread: float, count: int, random: np.random.Generator) -> Ints:
        if self.sigma:
            drawn = random.lognormal(math.log(mean) - self.sigma**2 / 2, self.sigma, count)
        else:
            drawn = random.uniform(mean * (1 - spread), mean * (1 + spread), count)
        return np.maximum(1, np.rint(drawn)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Closed:
    """So many in flight; the first ones are submitted over `ramp_s`, every further one `refill_s` after another ends,
    or one of these, drawn anew each time: what a client and the way to it take. At 0 a loop may lock onto the steps of
    an even engine as no real client would, and always at the same."""

    concurrency: int
    ramp_s: float = 0.0
    refill_s: float | tuple[float, ...] = 0.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The open loop: request i arrives at `at_s[i]`, in order."""

    at_s: Floats


def poisson(rate: float, count: int, seed: int) -> Arrivals:
    """`count` arrivals of a Poisson process of `rate` a second."""
    return Arrivals(np.cumsum(np.random.default_rng([seed, 3]).exponential(1 / rate, count)))


@dataclass(frozen=True, slots=True)
class VirtualTimes:
    """One row a request, in order of submission, in seconds from the start; `steps_s` and `step_tokens` are the end of
    every step that emitted and how many tokens. `gaps_s` are the times between a request's successive chunks, in order
    of time, all requests together, and `gaps_end_s` when each ended (empty unless asked for). `event_row`, `event_s`
    and `event_tokens` are every chunk in order of time: whose it is, when it came, how many tokens (likewise)."""

    prompt: Ints
    output: Ints
    submitted_s: Floats
    scheduled_s: Floats
    first_s: Floats
    done_s: Floats
    cached: Ints
    preemptions: Ints
    steps_s: Floats
    step_tokens: Ints
    gaps_s: Floats
    gaps_end_s: Floats
    truth: EngineTruth
    event_row: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    event_s: Floats = field(default_factory=lambda: np.empty(0))
    event_tokens: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def ttft_s(self) -> Floats:
        return self.first_s - self.submitted_s

    @property
    def tpot_s(self) -> Floats:
        """(last - first) / (tokens - 1); NaN for answers of one token."""
        more = self.output - 1
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(more > 0, (self.done_s - self.first_s) / more, np.nan)

    @property
    def e2e_s(self) -> Floats:
        return self.done_s - self.submitted_s

    def throughput(self, since_s: float, until_s: float) -> float:
        """Output tokens/s of the steps that ended in (since, until]."""
        chosen = (self.steps_s > since_s) & (self.steps_s <= until_s)
        return float(self.step_tokens[chosen].sum() / (until_s - since_s))


@dataclass(slots=True)
class _Columns:
    steps: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    gaps: list[Floats] = field(default_factory=list)
    handles: list[Ints] = field(default_factory=list)
    counts: list[Ints] = field(default_factory=list)


def simulate(
    config: EngineConfig, requests: Requests, load: Closed | Arrivals, *, gaps: bool = False, events: bool = False
) -> VirtualTimes:
    """Run all requests to their end. ValueError if one can never run, or arrivals are not one for each request."""
    count = len(requests.prompt)
    if isinstance(load, Arrivals) and len(load.at_s) != count:
        raise ValueError(f"{len(load.at_s)} arrivals for {count} requests")
    if count and int((requests.prompt + requests.output).max()) > config.context_length:
        raise ValueError("a request exceeds the context")
    engine, overhead = core_for(config), config.overhead_ms / 1e3
    closed, refills = isinstance(load, Closed), np.empty(0)
    if isinstance(load, Closed):
        refills = np.random.default_rng([config.seed, 5]).choice(np.atleast_1d(load.refill_s), max(1, count))
        first = min(load.concurrency, count)
        due = [load.ramp_s * number / first for number in range(first)]
    else:
        due = load.at_s.tolist()
    heapq.heapify(due)
    prompt, output = requests.prompt.tolist(), requests.output.tolist()
    blocks = requests.blocks or ((),) * count
    everyone: list[Sequence] = []
    columns = _Columns()
    last = np.full(count if gaps else 0, np.nan)
    now, ended = 0.0, 0
    while ended < count:
        while due and due[0] <= now:
            at, number = heapq.heappop(due), len(everyone)
            everyone.append(Sequence(number, prompt[number], output[number], at, at + overhead, blocks[number]))
            engine.submit(everyone[-1])
        coming = due[0] if due else math.inf
        step = engine.step(now, coming)
        if step is None:
            ready = engine.next_ready()
            now = max(now, min(coming, math.inf if ready is None else ready))
            continue
        now += step.duration_s
        columns.steps.append(now)
        columns.tokens.append(int(step.counts.sum()))
        if gaps:
            columns.gaps.append(now - last[step.handles])
            last[step.handles] = now
        if events:
            columns.handles.append(step.handles)
            columns.counts.append(step.counts)
        ended += len(step.ended)
        if closed:
            for _ in range(min(len(step.ended), count - len(everyone) - len(due))):
                heapq.heappush(due, now + float(refills[len(everyone) + len(due) - 1]))
    passed = np.concatenate(columns.gaps) if columns.gaps else np.empty(0)
    ends = np.repeat(columns.steps, [len(some) for some in columns.gaps]) if columns.gaps else np.empty(0)
    known = ~np.isnan(passed)
    return VirtualTimes(
        prompt=requests.prompt,
        output=requests.output,
        submitted_s=np.array([sequence.submitted_s for sequence in everyone]),
        scheduled_s=np.array([sequence.scheduled_s for sequence in everyone]),
        first_s=np.array([sequence.first_s for sequence in everyone]),
        done_s=np.array([sequence.done_s for sequence in everyone]),
        cached=np.array([sequence.cached for sequence in everyone], np.int64),
        preemptions=np.array([sequence.preemptions for sequence in everyone], np.int64),
        steps_s=np.array(columns.steps),
        step_tokens=np.array(columns.tokens, np.int64),
        gaps_s=passed[known],
        gaps_end_s=ends[known],
        truth=engine.truth(),
        event_row=np.concatenate(columns.handles) if columns.handles else np.empty(0, np.int64),
        event_s=np.repeat(columns.steps, [len(some) for some in columns.handles]) if events else np.empty(0),
        event_tokens=np.concatenate(columns.counts) if columns.counts else np.empty(0, np.int64),
    )
