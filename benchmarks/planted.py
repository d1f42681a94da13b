"""Runs with one planted cause each, in virtual time: the engine's step loop, and on the way to it what a network, a
gateway or a proxy does. What comes out is what a log holds: records with every event, steps, and the server's metrics.

    run = play(Planted("batch_limit", EngineConfig(max_batch=8), Prompts(400, 100), levels=(1, 8, 16, 32)), seed=1)
    run.records, run.observations, run.server, run.manifest

No product code decides anything here: only the record types are the product's.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from loadgen.errors import Failure
from loadgen.records import Connect, Events, InputTokens, OutputTokens, Phase, Record
from loadgen.results import ClientHealth, Lag, Observation, ServerSample, Window
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.engine.core import Core
from loadgen.simulator.engine.disaggregated import core_for
from loadgen.simulator.engine.prefix import shared_prefix
from loadgen.simulator.engine.sequence import Sequence

LOCAL_MS = 0.15  # there and back to a server next door
PAUSE_S = 2.0  # between two steps
LEAST_ANSWERED = 30  # in a step, however many fail


@dataclass(frozen=True, slots=True)
class Prompts:
    """Lengths in tokens: lognormal around the means. `long_share` of the prompts have `long_tokens` instead. Every
    prompt begins with one of `prefixes` texts of `prefix` tokens; `told` says that the workload means it so."""

    input: float
    output: float
    sigma: float = 0.3
    long_share: float = 0.0
    long_tokens: float = 0.0
    prefix: int = 0
    prefixes: int = 4
    told: bool = True


@dataclass(frozen=True, slots=True)
class Way:
    """What lies between client and engine.

    `rtt_ms` there and back, `jitter_ms` mean of what the way back adds at random. `gate`: so many requests are let
    through at a time, the others wait before the server; `refuse` above so many in flight with 429. `rate_limit`:
    requests let in a second, the others get 429. `cut_s`: an answer that is not done by then ends in 504. `flush_ms`: a
    proxy lets go what it holds so often. `fail`: the share that ends in 500. `chunk`: tokens in an event. `late_ms`:
    the client looks so late, at the mean."""

    rtt_ms: float = LOCAL_MS
    jitter_ms: float = 0.0
    gate: int = 0
    refuse: int = 0
    rate_limit: float = 0.0
    cut_s: float = 0.0
    flush_ms: float = 0.0
    fail: float = 0.0
    chunk: int = 1
    late_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Planted:
    """One scenario. `levels` are requests in flight, or with `rates` requests/s. `asked` is how much longer than what
    comes the answers were asked to be. `metrics`: the server tells its own; `usage`: and its cached tokens."""

    cause: str
    engine: EngineConfig
    prompts: Prompts
    levels: tuple[float, ...]
    way: Way = field(default_factory=Way)
    rates: bool = False
    asked: float = 1.0
    metrics: bool = True
    usage: bool = False
    objectives: tuple[str, ...] = ()
    describe: Mapping[str, str] = field(default_factory=dict)
    requests: int = 120
    second: Planted | None = None  # a run to hold against this one


@dataclass(slots=True)
class PlayedRun:
    planted: Planted
    manifest: dict[str, Any]
    records: list[Record]
    observations: list[Observation]
    server: list[ServerSample]


@dataclass(slots=True)
class _One:
    """One request on its way."""

    number: int
    sent_s: float
    phase: Phase
    prompt: int
    output: int
    blocks: tuple[int, ...]
    again: bool  # its prefix was sent before in this step
    sequence: Sequence | None = None
    stamps: list[tuple[float, int]] = field(default_factory=list)
    failure: Failure | None = None
    ended_s: float = math.nan


def play(planted: Planted, seed: int) -> PlayedRun:
    """The whole run: every level of it on an engine of its own, one after the other."""
    run = PlayedRun(planted, _manifest(planted, seed), [], [], [])
    start_s = 0.0
    for number, level in enumerate(planted.levels, 1):
        step = _Step(planted, seed, number, level, start_s)
        step.run()
        run.records += step.records()
        run.observations.append(step.observation())
        run.server += step.samples
        start_s = step.now + PAUSE_S
    return run


class _Step:
    """One level."""

    def __init__(self, planted: Planted, seed: int, number: int, level: float, start_s: float) -> None:
        self.planted, self.number, self.level = planted, number, level
        self.way, self.now, self.start_s = planted.way, start_s, start_s
        self.engine: Core = core_for(replace(planted.engine, seed=seed * 1000 + number))  # type: ignore[assignment]
        self.random = random.Random(f"{seed} way {number}")
        self.lengths = np.random.default_rng([seed, 7])  # the same in every step
        self.closed = not planted.rates
        self.users = max(1, round(level)) if self.closed else 0
        self.warmup = self.users or 20
        self.measured = max(planted.requests, 5 * self.users)
        self.due: list[tuple[float, int]] = []
        self.gate: deque[_One] = deque()
        self.inside = 0  # of the gate
        self.everyone: list[_One] = []
        self.counted: list[_One] = []  # the measured ones
        self.prefixes: set[int] = set()
        self.by_handle: dict[int, _One] = {}
        self.samples: list[ServerSample] = []
        self.sums = dict.fromkeys(("queue", "prefill", "decode", "ttft", "e2e"), 0.0)
        self.finished = self.answered = self.served = 0
        self.window = [math.nan, math.nan]
        self.open = 0  # in flight, by the client's count
        self.refused_until: list[float] = []
        self.sampled_s = -math.inf
        self.ready_s = -math.inf
        self.allowance = 5.0
        self.allowed_s = start_s

    # --- the run of it ---

    def run(self) -> None:
        if self.closed:
            ramp = 0.02 * self.users
            for user in range(self.users):
                heapq.heappush(self.due, (self.start_s + ramp * user / self.users, user))
        else:
            heapq.heappush(self.due, (self.start_s + self.random.expovariate(self.level), 0))
        while True:
            if self.finished >= self.warmup and math.isnan(self.window[0]):
                self.window[0] = self.now
            if len(self.counted) >= self.measured and self.answered >= LEAST_ANSWERED:
                if math.isnan(self.window[1]):
                    self.window[1] = self.now
                if all(not math.isnan(one.ended_s) for one in self.counted):
                    return
            self._turn()

    def _turn(self) -> None:
        while self.due and self.due[0][0] <= self.now:
            self._send(heapq.heappop(self.due)[0])
        self._let_in()
        coming = self.due[0][0] if self.due else math.inf
        step = self.engine.step(self.now, coming)
        if step is None:
            ready = self.engine.next_ready()
            later = min(coming, math.inf if ready is None else ready)
            self.now = max(self.now + 1e-6, later) if math.isfinite(later) else self.now + 0.01
            self._sample()
            return
        self.now += step.duration_s
        for handle, count in zip(step.handles.tolist(), step.counts.tolist(), strict=True):
            self.by_handle[handle].stamps.append((self.now, count))
        for sequence in step.ended:
            self._end(self.by_handle[sequence.handle], self.now)
        if self.way.cut_s:
            for one in list(self.by_handle.values()):
                if math.isnan(one.ended_s) and self.now - one.sent_s > self.way.cut_s:
                    self.engine.cancel(one.number)
                    one.failure = Failure("http", "upstream request timeout", 504)
                    self._end(one, one.sent_s + self.way.cut_s)
        self._sample()

    def _send(self, at: float) -> None:
        p, number = self.planted.prompts, len(self.everyone)
        if not self.closed:
            heapq.heappush(self.due, (at + self.random.expovariate(self.level), 0))
        over = len(self.counted) >= self.measured and self.answered >= LEAST_ANSWERED
        phase: Phase = "warmup" if math.isnan(self.window[0]) else "filler" if over else "measured"
        prompt, output, prefix = self._draw()
        blocks = shared_prefix(prefix, p.prefix, self.planted.engine.block_tokens) if p.prefix else ()
        one = _One(number, at, phase, prompt, output, blocks, prefix in self.prefixes)
        self.prefixes.add(prefix)
        self.everyone.append(one)
        if phase == "measured":
            self.counted.append(one)
        self.open += 1
        refused = self._refused(at)
        if refused is not None:
            one.failure = refused
            self._end(one, at + 0.002 + self.way.rtt_ms / 1e3)
            return
        self.gate.append(one)

    def _draw(self) -> tuple[int, int, int]:
        p, engine = self.planted.prompts, self.planted.engine
        values = self.lengths.random(2), self.lengths.standard_normal(2), int(self.lengths.integers(max(p.prefixes, 1)))
        (chosen, _), (first, second), prefix = values
        long = chosen < p.long_share
        mean = p.long_tokens if long else p.input
        sigma = 0.1 if long else p.sigma
        prompt = max(4, round(mean * math.exp(sigma * first - sigma**2 / 2)))
        output = max(2, round(p.output * math.exp(p.sigma * second - p.sigma**2 / 2)))
        longest = engine.room - 1
        prompt = min(prompt + p.prefix, longest * 3 // 4)
        return prompt, min(output, longest - prompt), prefix

    def _refused(self, at: float) -> Failure | None:
        way = self.way
        if way.fail and self.random.random() < way.fail:
            return Failure("http", "internal server error", 500)
        if way.refuse and self.inside + len(self.gate) >= way.refuse:
            return Failure("http", "model overloaded", 429)
        if way.rate_limit:
            self.allowance = min(5.0, self.allowance + (at - self.allowed_s) * way.rate_limit)
            self.allowed_s = at
            if self.allowance < 1:
                return Failure("http", "rate limit reached", 429)
            self.allowance -= 1
        return None

    def _let_in(self) -> None:
        while self.gate and (not self.way.gate or self.inside < self.way.gate):
            one = self.gate.popleft()
            self.inside += 1
            at = max(one.sent_s + self.way.rtt_ms / 2e3, self.now if self.way.gate else 0.0)
            self.ready_s = max(self.ready_s, at + self.planted.engine.overhead_ms / 1e3)
            one.sequence = Sequence(one.number, one.prompt, one.output, at, self.ready_s, one.blocks)
            self.by_handle[one.number] = one
            self.engine.submit(one.sequence)

    def _end(self, one: _One, at: float) -> None:
        one.ended_s = at
        self.open -= 1
        if one.sequence is not None:
            self.inside -= 1
        if one.failure is None and one.sequence is not None:
            s = one.sequence
            self.served += 1
            for name, value in (
                ("queue", s.queue_s), ("prefill", s.prefill_s), ("decode", s.decode_s),
                ("ttft", s.first_s - s.submitted_s), ("e2e", s.done_s - s.submitted_s),
            ):  # fmt: skip
                self.sums[name] += value
        self.finished += 1
        self.answered += one.failure is None and one.phase == "measured"
        if self.closed:
            again = at + self.way.rtt_ms / 2e3 + 0.0002 + self.random.expovariate(1 / 0.0003) + self.way.late_ms / 1e3
            wait = 0.2 if one.failure is not None and one.sequence is None else 0.0
            heapq.heappush(self.due, (max(again, self.now) + wait, 0))

    def _sample(self) -> None:
        if not self.planted.metrics or self.now - self.sampled_s < 0.25:
            return
        self.sampled_s = self.now
        truth = self.engine.truth()
        done = float(self.served)
        values = {
            "running": float(truth.running), "waiting": float(truth.waiting), "kv_use_share": truth.kv_usage,
            "preemptions": float(truth.preemptions), "prefix_query_tokens": float(truth.prefix_queries),
            "prefix_hit_tokens": float(truth.prefix_hits), "prompt_tokens": float(truth.prompt_tokens),
            "generation_tokens": float(truth.generation_tokens), "finished": done,
            **{f"{name}_s_sum": value for name, value in self.sums.items()},
            **{f"{name}_s_count": done for name in self.sums},
        }  # fmt: skip
        if truth.kv_blocks is not None:
            values["kv_tokens"] = float(truth.kv_blocks * self.planted.engine.block_tokens)
            values["kv_block_tokens"] = float(self.planted.engine.block_tokens)
        if truth.draft_tokens:
            values["spec_draft_tokens"] = float(truth.draft_tokens)
            values["spec_accepted_tokens"] = float(truth.accepted_tokens)
        self.samples.append(ServerSample(round(self.now * 1e9), 1500, self.number, "http://server/metrics", values))

    # --- what is kept of it ---

    def observation(self) -> Observation:
        window = Window(round(self.window[0] * 1e9), round(self.window[1] * 1e9))
        area = 0.0
        for one in self.everyone:
            end = one.ended_s if not math.isnan(one.ended_s) else self.now
            area += max(0.0, min(end + self.way.rtt_ms / 2e3, self.window[1]) - max(one.sent_s, self.window[0]))
        late = self.way.late_ms
        lag = Lag(500, 1e3 * late, 4e3 * late, 6e3 * late) if late else Lag(500, 40.0, 160.0, 400.0)
        health = ClientHealth(
            stamps="kernel", seconds=window.seconds, cpu_share=0.97 if late else 0.15, wait_share=0.02,
            read_lag_us=lag, loop_lag_us=lag, refill_lag_us=lag, stamped=10_000, reads=10_000,
        )  # fmt: skip
        return Observation(
            self.number, self.users, window, round(area * 1e9), self.users or round(self.level), "complete",
            rate=None if self.closed else self.level, max_in_flight=None if self.closed else 100_000, health=health,
        )  # fmt: skip

    def records(self) -> list[Record]:
        return [self._record(one) for one in self.everyone]

    def _record(self, one: _One) -> Record:
        way, p = self.way, self.planted.prompts
        half_s = way.rtt_ms / 2e3
        sent = round(one.sent_s * 1e9)
        cut = math.isnan(one.ended_s)  # by the end of the step
        arrivals = self._arrivals(one) if one.failure is None else []
        stamps = [round((at + half_s) * 1e9) for at, _ in arrivals]
        counts = [n for _, n in arrivals]
        done = stamps[-1] + 20_000 if stamps else round(((self.now if cut else one.ended_s) + half_s) * 1e9)
        failed = one.failure is not None
        gaps, last = [], sent
        for stamp in stamps:
            gaps.append(max(0, round((stamp - last) / 1e3)))
            last += gaps[-1] * 1000
        asked = round(one.output * self.planted.asked)
        first = self.number == 1 and one.number < self.users
        cached = one.sequence.cached if one.sequence is not None else 0
        shared = None
        if p.prefix and p.told:
            shared = (p.prefix, p.prefix) if one.again or self.number > 1 else (0, 0)
        elif not p.prefix:
            shared = (0, 0)
        connect = (
            Connect(None, round(1e3 * way.rtt_ms), None) if first or (way.rtt_ms > 5 and one.number % 9 == 0) else None
        )
        stamp = stamps[0] if stamps else None
        events = Events(gaps, [n if way.chunk > 1 or n > 1 else 1 for n in counts]) if stamps else None
        return Record(
            id=f"s{self.number}-{one.number:06d}", step=self.number, concurrency=self.users, phase=one.phase, worker=0,
            scheduled_ns=sent, sent_ns=sent, connect=connect,
            first_byte_ns=stamp if stamp is not None else (done if failed else None), first_token_ns=stamp,
            first_content_ns=stamp, last_token_ns=stamps[-1] if stamps else None, done_ns=done,
            input_tokens=InputTokens(one.prompt, None, one.prompt, cached if self.planted.usage else None),
            output_tokens=OutputTokens(asked, sum(counts) if stamps else None, "usage" if stamps else None),
            first_event_tokens=counts[0] if counts and counts[0] > 1 else None, events=events,
            outcome="error" if failed else "cut" if cut else "ok", status=one.failure.code if failed else 200,  # type: ignore[union-attr, arg-type]
            error=one.failure, flags=("short_output",) if not failed and not cut and asked > one.output else (),
            finish_reason=None if failed else "stop" if asked > one.output else "length", shared=shared,
        )  # fmt: skip

    def _arrivals(self, one: _One) -> list[tuple[float, int]]:
        """Events as they reach the client, before half the way: (seconds, tokens)."""
        way = self.way
        found = one.stamps
        if way.chunk > 1:
            found = [
                (found[min(i + way.chunk, len(found)) - 1][0], sum(n for _, n in found[i : i + way.chunk]))
                for i in range(0, len(found), way.chunk)
            ]
        if way.flush_ms:
            every = way.flush_ms / 1e3
            begun = one.sent_s
            found = [(begun + math.ceil((at - begun) / every) * every + 2e-6 * i, n) for i, (at, n) in enumerate(found)]
        if way.jitter_ms or way.late_ms:
            mean, latest, moved = (way.jitter_ms + way.late_ms) / 1e3, 0.0, []
            for at, n in found:
                latest = max(latest, at + self.random.expovariate(1 / mean))
                moved.append((latest, n))
            found = moved
        return found


def _manifest(planted: Planted, seed: int) -> dict[str, Any]:
    p = planted.prompts
    workload: dict[str, Any] = {"kind": "shape", "content_sha256": f"{hash((p.input, p.output)) & 0xFFFFFFFF:08x}"}
    if p.prefix and p.told:
        workload["sharing"] = {"prefix_len": p.prefix, "groups": p.prefixes}
    return {
        "schema_version": 1,
        "status": "complete",
        "verb": "sweep",
        "workload": {**workload, "seed": seed, "text": "planted"},
        "slo": {"objectives": list(planted.objectives), "attainment": 0.95},
        "describe": dict(planted.describe),
        "simulator": {"engine": asdict(planted.engine)} if planted.describe.get("told") else None,
        "request": {"usage": True},
        "plan": {"max_error_rate": 0.01},
    }
