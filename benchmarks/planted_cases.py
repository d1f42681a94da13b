"""Scenarios to diagnose: one planted cause each, its parameters drawn from a seed.

Two families with ranges of their own. `develop` is for making rules: engines of invented times. `score` is for judging
them once: engines of other times, half of them named accelerators and models with a roofline, other lengths, other
ladders. No seed belongs to both.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.planted import Planted, Prompts, Way
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.engine.roofline import Roofline
from loadgen.simulator.engine.virtual import Closed, Mix, simulate
from loadgen.simulator.engine.work import Work
from loadgen.simulator.presets import PRESETS, machine_named, served

DEVELOP_SEEDS, SCORE_SEEDS = range(1000), range(5000, 6000)
# How many of each: 60 in all. Those whose shapes are alike come more often.
COUNTS = {
    "prefill_bound": 4,
    "batch_limit": 5,
    "decode_bound": 4,
    "kv_exhausted": 5,
    "admission_limit": 5,
    "overload": 4,
    "long_prompts": 4,
    "speculation": 3,
    "prefix_cache": 3,
    "prefix_cache_contaminated": 3,
    "communication": 3,
    "network": 4,
    "buffering_proxy": 3,
    "gateway_limit": 3,
    "short_outputs": 2,
    "requests_failing": 2,
    "client_bound": 3,
}
HEALTHY = 12
# What else is right, where the server's metrics do not tell on which side of its door requests wait.
CLASS = frozenset({"queueing", "batch_limit", "admission_limit"})


@dataclass(frozen=True, slots=True)
class Family:
    """Ranges (low, high): `step_ms` of a step, `prefill` ms a prompt token and `decode` ms a sequence as shares of it;
    lengths in tokens; `ladders` are shares of the highest level; `presets` stand in for some engines."""

    name: str
    step_ms: tuple[float, float]
    prefill: tuple[float, float]
    input: tuple[float, float]
    output: tuple[float, float]
    sigma: tuple[float, float]
    ladders: tuple[tuple[float, ...], ...]
    presets: tuple[str, ...] = ()


DEVELOP = Family(
    "develop",
    (6, 25),
    (0.002, 0.008),
    (80, 900),
    (50, 200),
    (0.25, 0.6),
    ((0.0, 0.25, 0.5, 1.0), (0.0, 0.1, 0.25, 0.5, 1.0)),
    ("h100-llama-3.1-8b", "l4-qwen2.5-7b"),
)
SCORE = Family(
    "score",
    (3, 45),
    (0.001, 0.01),
    (50, 1500),
    (30, 280),
    (0.15, 0.8),
    ((0.0, 0.2, 0.4, 0.7, 1.0), (0.0, 0.3, 1.0), (0.05, 0.15, 0.35, 0.6, 1.0)),
    ("a100-llama-3.1-8b", "l40s-llama-3.1-8b", "h100x4-llama-3.1-70b", "h100-qwen3-30b-a3b", "h200-llama-3.1-8b"),
)


class Draw:
    """The parameters of one scenario."""

    def __init__(self, family: Family, seed: int) -> None:
        self.family, self.random = family, random.Random(f"{family.name} {seed}")

    def log(self, low: float, high: float) -> float:
        return float(low * (high / low) ** self.random.random())

    def even(self, low: float, high: float) -> float:
        return self.random.uniform(low, high)

    def tame(self, most_prefill: float = 0.25, most_growth: float = 1.25) -> tuple[EngineConfig, Prompts, int]:
        """An engine, prompts, and the number in flight up to which prompts take at most that share of its time and TPOT
        grows by at most that factor: nothing is wrong with it."""
        f = self.family
        while True:
            prompts = Prompts(round(self.log(*f.input)), round(self.log(*f.output)), round(self.even(*f.sigma), 2))
            if f.presets and self.random.random() < 0.4:
                engine = replace(PRESETS[self.random.choice(f.presets)], prefix_cache=False)
                engine = replace(engine, overhead_ms=self.log(3, 15))
            else:
                step = self.log(*f.step_ms)
                prefill, decode = step * self.log(*f.prefill), step * self.log(0.002, 0.02)
                engine = EngineConfig(
                    step_ms=step, prefill_ms=prefill, decode_ms=decode, overhead_ms=self.log(2, 2 * step),
                    max_batch=512, max_prefill_tokens=self.random.choice((1024, 2048, 4096)),
                    noise_sigma=self.even(0.01, 0.05),
                )  # fmt: skip
            step, prefill, decode = _times(engine, prompts)
            most = 0
            for users in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64):
                share, growth = _shares(prompts, users, step, prefill, decode)
                if share <= most_prefill and growth <= most_growth:
                    most = users
            if most >= 8:
                return engine, prompts, most

    def ladder(self, most: float) -> tuple[float, ...]:
        shares = self.random.choice(self.family.ladders)
        return tuple(sorted({float(max(1, round(most * share))) for share in shares}))

    @property
    def coin(self) -> bool:
        return self.random.random() < 0.5


def _times(engine: EngineConfig, prompts: Prompts) -> tuple[float, float, float]:
    """ms of a step, a prompt token and a sequence; on a machine, about."""
    if engine.machine is None:
        return engine.step_ms, engine.prefill_ms, engine.decode_ms
    cost = Roofline(engine.machine)
    one = cost.milliseconds(Work(decoding=1, decode_tokens=1, decode_context=prompts.input))
    many = cost.milliseconds(Work(decoding=33, decode_tokens=33, decode_context=33 * prompts.input))
    pairs = prompts.input**2 / 2
    work = Work(prefilled=round(prompts.input), prefill_pairs=pairs, prefill_context=prompts.input, prompts_done=1)
    both = cost.milliseconds(work) - engine.machine.overhead_ms
    return one, both / prompts.input, (many - one) / 32


def _shares(prompts: Prompts, users: float, step: float, prefill: float, decode: float) -> tuple[float, float]:
    """Of the engine's time with so many in flight, what prompts take; and TPOT against that of one request."""
    work = (prompts.input + prompts.prefix) * prefill
    decoding = prompts.output * (step + users * decode) / users
    share = work / (work + decoding)
    return share, (step + users * decode) / (step + decode) / (1 - share)


Maker = Callable[[Draw], Planted]


def _healthy(d: Draw) -> Planted:
    engine, prompts, most = d.tame(0.22, 1.22)
    return Planted("healthy", engine, prompts, d.ladder(most), metrics=d.coin, usage=d.coin)


def _prefill(d: Draw) -> Planted:
    engine, prompts, _ = d.tame()
    users = d.random.choice((8, 12, 16, 24))
    share = d.even(0.7, 0.9)  # of the time, that prompts take at the top
    prompts = replace(prompts, output=max(8.0, prompts.output * 0.4), sigma=min(prompts.sigma, 0.4))
    for _ in range(5):  # what a token costs depends on how many there are
        step, cost, _decode = _times(engine, prompts)
        length = share / (1 - share) * prompts.output * step / users / cost
        if length * cost < 2 * step:
            length = 3 * step / cost
            prompts = replace(prompts, output=max(4.0, length * cost * (1 - share) / share * users / step))
        prompts = replace(prompts, input=min(length, 24_000))
    return Planted("prefill_bound", engine, prompts, d.ladder(users), metrics=d.coin)


def _batch(d: Draw) -> Planted:
    engine, prompts, most = d.tame()
    cap = max(4, min(most, d.random.choice((4, 6, 8, 12, 16, 20))))
    top = round(cap * d.even(2, 4))
    return Planted("batch_limit", replace(engine, max_batch=cap), prompts, d.ladder(top), metrics=d.coin)


def _decode(d: Draw) -> Planted:
    while True:
        engine, prompts, _ = d.tame(0.2, 1.3)
        if engine.machine is None:
            engine = replace(engine, decode_ms=engine.step_ms * d.log(0.03, 0.12))
        else:
            prompts = replace(prompts, input=d.log(1500, 4000), output=d.log(150, 400))
        step, cost, each = _times(engine, prompts)
        for users in (16, 24, 32, 48, 64):
            share, growth = _shares(prompts, users, step, cost, each)
            if share < 0.3 and growth * (1 - share) >= d.even(1.8, 3.0):
                return Planted("decode_bound", engine, prompts, d.ladder(users), metrics=d.coin)


def _kv(d: Draw) -> Planted:
    engine, prompts, most = d.tame()
    prompts = replace(prompts, sigma=max(prompts.sigma, 0.35), output=max(prompts.output, 80))
    users = max(16, most)
    held = prompts.input + prompts.output / 2
    blocks = round(users * held * d.even(0.3, 0.6) / engine.block_tokens)
    longest = 6 * (prompts.input + prompts.output)
    blocks = max(blocks, round(longest / engine.block_tokens))
    users = max(users, round(blocks * engine.block_tokens / held * d.even(1.6, 3.0)))
    return Planted(
        "kv_exhausted", replace(engine, kv_blocks=blocks), prompts, d.ladder(users), metrics=d.random.random() < 0.6
    )


def _admission(d: Draw) -> Planted:
    engine, prompts, most = d.tame()
    cap = max(4, min(most, d.random.choice((4, 6, 8, 12, 16))))
    top = round(cap * d.even(2, 4))
    way = Way(gate=cap) if d.random.random() < 0.6 else Way(refuse=cap)
    return Planted("admission_limit", engine, prompts, d.ladder(top), way, metrics=d.coin)


def _overload(d: Draw) -> Planted:
    engine, prompts, most = d.tame()
    engine = replace(engine, max_batch=max(8, most))
    drawn = Mix(prompts.input, prompts.output, sigma=prompts.sigma).draw(400, 1)
    run = simulate(engine, drawn, Closed(engine.max_batch))
    capacity = 400 / float(run.done_s.max())
    rates = tuple(capacity * share for share in (0.2, 0.5, d.even(1.25, 1.8)))
    return Planted("overload", engine, prompts, rates, rates=True, metrics=d.coin, requests=400)


def _long(d: Draw) -> Planted:
    engine, prompts, most = d.tame(0.15, 1.2)
    engine = replace(engine, max_prefill_tokens=16384, max_batched_tokens=0)
    if d.coin:
        engine = replace(engine, chunked_prefill=False)
    short, steps, tokens = min(prompts.input, 400.0), d.even(6, 15), 2000.0
    for _ in range(5):  # so long that they take so many steps' time
        step, cost, _ = _times(engine, replace(prompts, input=tokens))
        tokens = min(max(8 * short, steps * step / cost), 14_000)
    prompts = replace(
        prompts, input=short, long_share=d.even(0.04, 0.1), long_tokens=tokens, output=max(prompts.output, 60)
    )
    return Planted("long_prompts", engine, prompts, d.ladder(max(4, min(most, 16))), metrics=d.coin)


def _speculation(d: Draw) -> Planted:
    engine, prompts, most = d.tame()
    prompts = replace(prompts, output=max(prompts.output, 40))
    if d.random.random() < 0.7:
        engine = replace(engine, speculate=d.random.choice((2, 3, 4, 5)), acceptance=d.even(0.5, 0.85))
        return Planted("speculation", engine, prompts, d.ladder(most), metrics=d.coin)
    return Planted(
        "speculation", engine, prompts, d.ladder(most), Way(chunk=d.random.choice((2, 4, 8))), metrics=d.coin
    )


def _prefix(d: Draw) -> Planted:
    engine, prompts, most = d.tame()
    prompts = replace(prompts, prefix=round(prompts.input * d.even(0.4, 2)), prefixes=d.random.choice((1, 2, 4, 8)))
    metrics = d.coin
    return Planted(
        "prefix_cache", replace(engine, prefix_cache=True), prompts, d.ladder(most), metrics=metrics,
        usage=not metrics or d.coin,
    )  # fmt: skip


def _contaminated(d: Draw) -> Planted:
    planted = _prefix(d)
    return replace(planted, cause="prefix_cache_contaminated", prompts=replace(planted.prompts, told=False))


def _communication(d: Draw) -> Planted:
    gpu = (
        d.random.choice(("h100", "a100-80gb", "h200"))
        if d.family is DEVELOP
        else d.random.choice(("h100", "h200", "b200"))
    )
    model = d.random.choice(("llama-3.1-8b", "qwen2.5-7b"))
    few, many = d.random.choice(((1, 4), (1, 8), (2, 8)))
    slow = d.even(40, 120)
    prompts = Prompts(round(d.log(100, 400)), round(d.log(50, 150)), 0.4)
    runs = []
    for tp in (few, many):
        machine = replace(machine_named(model, gpu, tp), link_latency_us=slow)
        engine = replace(served(machine), prefix_cache=False)
        runs.append(
            Planted(
                "communication", engine, prompts, (1.0, 4.0, 8.0), metrics=False, describe={"tp": str(tp), "gpu": gpu}
            )
        )
    return replace(runs[0], second=runs[1])


def _network(d: Draw) -> Planted:
    engine, prompts, most = d.tame()
    engine = replace(engine, overhead_ms=min(engine.overhead_ms, 10.0))
    step, cost, _ = _times(engine, prompts)
    still = engine.overhead_ms + step + cost * prompts.input
    way = Way(rtt_ms=max(25.0, still * d.even(0.8, 3)), jitter_ms=d.even(0, 2))
    return Planted("network", engine, prompts, d.ladder(most), way, metrics=d.coin)


def _proxy(d: Draw) -> Planted:
    engine, prompts, most = d.tame()
    prompts = replace(prompts, output=max(prompts.output, 60))
    step = _times(engine, prompts)[0]
    return Planted(
        "buffering_proxy",
        engine,
        prompts,
        d.ladder(most),
        Way(flush_ms=max(60.0, step * d.even(5, 14))),
        metrics=d.coin,
    )


def _gateway(d: Draw) -> Planted:
    engine, prompts, most = d.tame()
    step, cost, _ = _times(engine, prompts)
    if d.coin:
        prompts = replace(prompts, sigma=max(prompts.sigma, 0.5), output=max(prompts.output, 100))
        usual = (prompts.input * cost + prompts.output * step) / 1e3
        return Planted(
            "gateway_limit", engine, prompts, d.ladder(most), Way(cut_s=usual * d.even(1.1, 1.5)), metrics=d.coin
        )
    one = (prompts.input * cost + prompts.output * step + engine.overhead_ms) / 1e3
    return Planted(
        "gateway_limit", engine, prompts, d.ladder(most), Way(rate_limit=d.even(1.5, 3.0) / one), metrics=d.coin
    )


def _short(d: Draw) -> Planted:
    engine, prompts, most = d.tame()
    return Planted("short_outputs", engine, prompts, d.ladder(most), asked=d.even(1.3, 4), metrics=d.coin)


def _failing(d: Draw) -> Planted:
    engine, prompts, most = d.tame()
    return Planted("requests_failing", engine, prompts, d.ladder(most), Way(fail=d.even(0.05, 0.3)), metrics=d.coin)


def _client(d: Draw) -> Planted:
    engine, prompts, most = d.tame()
    step = _times(engine, prompts)[0]
    return Planted("client_bound", engine, prompts, d.ladder(most), Way(late_ms=step * d.even(0.3, 2)), metrics=d.coin)


MAKERS: dict[str, Maker] = {
    "healthy": _healthy,
    "prefill_bound": _prefill,
    "batch_limit": _batch,
    "decode_bound": _decode,
    "kv_exhausted": _kv,
    "admission_limit": _admission,
    "overload": _overload,
    "long_prompts": _long,
    "speculation": _speculation,
    "prefix_cache": _prefix,
    "prefix_cache_contaminated": _contaminated,
    "communication": _communication,
    "network": _network,
    "buffering_proxy": _proxy,
    "gateway_limit": _gateway,
    "short_outputs": _short,
    "requests_failing": _failing,
    "client_bound": _client,
}


def scenarios(family: Family, first_seed: int) -> list[tuple[int, Planted]]:
    """The 60 and the 12, each with a seed of its own."""
    causes = [cause for cause, count in COUNTS.items() for _ in range(count)] + ["healthy"] * HEALTHY
    return [(first_seed + i, MAKERS[cause](Draw(family, first_seed + i))) for i, cause in enumerate(causes)]


def right(planted: Planted) -> frozenset[str]:
    """The causes that are right to be first."""
    if planted.cause in CLASS and not planted.metrics and not planted.way.refuse:
        return CLASS
    return frozenset({planted.cause})
