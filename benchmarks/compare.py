"""How often do comparisons cry wolf, and what do they find? Runs of engines of known difference, in virtual time.

    python -m benchmarks.compare [--only paired,welch,mix,loads,stalls,drift] [--repeats 200] [--requests 1000]

`paired`  same lengths in the same order, margin 0: equal engines, a true 5 % loss, a true 10 % rise of p95 TTFT
`welch`   the same with other lengths in each run of the same workload
`mix`     B asked for other lengths: are equal engines called equal once its requests are weighted to A's mix?
`loads`   sweeps of three loads, same lengths and others: differences at any load, and over all of them together
`stalls`, `drift`  8 interleaved ABBA pairs on such an engine, judged on run-level log ratios
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.virtual import VirtualServer, VirtualStep, measure
from loadgen.analysis.compare import Comparison, Difference, RunSide, compare, guarded_differences, together
from loadgen.analysis.interleaved import order, run_level
from loadgen.analysis.regression import judge_losses
from loadgen.results import Slo
from loadgen.search.effort import StepRule
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.engine.virtual import Mix

LOSS, RISE = 0.05, 0.10


@dataclass(frozen=True, slots=True)
class Engine:
    name: str
    config: EngineConfig
    mix: Mix
    concurrency: int
    queued: bool = False


ENGINES = (
    Engine("batch, no queue", EngineConfig(max_batch=32, noise_sigma=0.05), Mix(64, 24, sigma=0.6), 16),
    Engine("batch, queue", EngineConfig(max_batch=16), Mix(64, 24, sigma=0.6), 32, queued=True),
    Engine(
        "prefill",
        EngineConfig(max_batch=32, prefill_ms=0.12, max_prefill_tokens=512, chunked_prefill=True),
        Mix(256, 12, sigma=0.6),
        16,
        queued=True,
    ),
    Engine(
        "KV", EngineConfig(max_batch=64, kv_blocks=280, context_length=4096), Mix(128, 24, sigma=0.5), 32, queued=True
    ),
)
UNSTEADY = {
    "stalls": {"stall_every_s": 5.0, "stall_ms": 300.0},
    "drift": {"drift": 0.03, "drift_period_s": 600.0},
}


def slower(config: EngineConfig, loss: float = LOSS) -> EngineConfig:
    """Every time longer, so that throughput is less by exactly `loss`."""
    factor = 1 / (1 - loss)
    names = ("step_ms", "decode_ms", "prefill_ms", "overhead_ms")
    return replace(config, **{name: getattr(config, name) * factor for name in names})


def later(engine: Engine, rise: float = RISE) -> EngineConfig:
    """Such that the p95 of TTFT is higher by `rise`, as long runs show. Without a queue each first token is later by a
    while; in a queue that would only shorten the wait, and every time is longer."""
    if engine.queued:
        return slower(engine.config, 1 - 1 / (1 + rise))
    before, added = long_p95(engine, engine.config), rise
    for _ in range(4):
        config = replace(engine.config, overhead_ms=engine.config.overhead_ms + added * before)
        added *= rise / (long_p95(engine, config) / before - 1)
    return config


def long_p95(engine: Engine, config: EngineConfig) -> float:
    found = [
        run(engine, config, 9_000 + seed, 1, requests=10_000).summary.latency["ttft"].at(95.0) for seed in range(3)
    ]
    return sum(q.value for q in found if q is not None) / len(found)


def run(
    engine: Engine,
    config: EngineConfig,
    seed: int,
    number: int,
    *,
    requests: int,
    mix: Mix | None = None,
    start_s: float = 0.0,
) -> VirtualStep:
    """One run: `seed` makes the lengths, `number` the engine's noise."""
    rule = StepRule(130, 1.3, 8_000, 0.0, 1e9, 0.03, requests=requests)
    server = VirtualServer(config, mix or engine.mix, seed=seed)
    return measure(server, number, engine.concurrency, rule, Slo(), ramp_s=1.0, start_s=start_s)


def side(step: VirtualStep, work: int | None) -> RunSide:
    manifest = None if work is None else {"workload": {"content_sha256": "made", "seed": work}}
    return RunSide("run", manifest, step.columns, [step.summary])


def alarms(found: Comparison) -> set[str]:
    """The metrics with a regression at margin 0."""
    return {one.difference.metric for one in judge_losses(found.primary, 0.0) if one.answer == "regression"}


@dataclass(slots=True)
class Count:
    """Of all comparisons: those with an alarm, with any difference (two-sided), by metric, and interval coverage."""

    n: int = 0
    any: int = 0
    differ: int = 0
    throughput: int = 0
    ttft: int = 0
    tpot: int = 0

    def add(self, regressed: set[str], differ: bool) -> None:
        self.n += 1
        self.any += bool(regressed)
        self.differ += differ
        self.throughput += "output_throughput" in regressed
        self.ttft += "ttft" in regressed
        self.tpot += "tpot" in regressed

    def __str__(self) -> str:
        return (
            f"{self.any:4d} of {self.n} alarms (throughput {self.throughput}, p95 TTFT {self.ttft}, "
            f"p95 TPOT {self.tpot}); any difference {self.differ}"
        )


def singles(engine: Engine, other: EngineConfig, repeats: int, requests: int, *, same: bool, mix: Mix | None) -> Count:
    count = Count()
    for i in range(repeats):
        a = run(engine, engine.config, 2 * i + 1, 1, requests=requests)
        b = run(engine, other, 2 * i + (1 if same else 2), 2, requests=requests, mix=mix)
        found = compare(side(a, i if same else None), side(b, i if same else None))
        count.add(alarms(found), any(d.found for d in found.primary))
    return count


def sweeps(engine: Engine, other: EngineConfig, repeats: int, requests: int, *, same: bool) -> str:
    """At 1, half and all of the engine's load, a quarter of the requests at 1."""
    at_a_load = pooled = 0
    for i in range(repeats):
        differences: list[Difference] = []
        for seed, users in enumerate((1, engine.concurrency // 2, engine.concurrency), 10 * i):
            loaded, n = replace(engine, concurrency=users), requests if users > 1 else requests // 4
            a = run(loaded, engine.config, seed, 2 * seed, requests=n)
            b = run(loaded, other, seed if same else seed + 1_000_000, 2 * seed + 1, requests=n)
            found = compare(side(a, seed if same else None), side(b, seed if same else None))
            differences += found.differences
        judged = [d for d in guarded_differences([*differences, *together(differences)]) if d.primary and d.found]
        at_a_load += any(d.load is not None for d in judged)
        pooled += any(d.load is None for d in judged)
    return f"of {repeats}: a difference at a load {at_a_load}, over all loads together {pooled}"


def interleaved(engine: Engine, other: EngineConfig, repeats: int, requests: int, pairs: int) -> Count:
    """Pairs in ABBA order on one clock, with five seconds between two runs."""
    count = Count()
    for i in range(repeats):
        clock, steps = 1000.0 * i, {"A": [], "B": []}  # type: ignore[var-annotated]
        for number, which in enumerate(order(pairs)):
            config = engine.config if which == "A" else other
            seed = 1 + i * pairs + number // 2
            steps[which].append(run(engine, config, seed, number + 1, requests=requests, start_s=clock).summary)
            window = steps[which][-1].window
            assert window is not None
            clock = window.end_ns / 1e9 + 5.0
        found = run_level(steps["A"], steps["B"])
        regressed = {one.difference.metric for one in judge_losses(found, 0.0) if one.answer == "regression"}
        count.add(regressed, any(d.found for d in found))
    return count


def table(title: str, rows: Callable[[Engine, EngineConfig], Count]) -> None:
    for engine in ENGINES:
        began = time.process_time()
        cases = (("equal", engine.config), ("5 % loss", slower(engine.config)), ("10 % p95 TTFT", later(engine)))
        for what, other in cases:
            print(f"{title:8}{engine.name:18}{what:14}{rows(engine, other)}", flush=True)
        print(f"{'':8}{time.process_time() - began:.0f} s of CPU", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="paired,welch,mix,loads,stalls,drift")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=8)
    flags = parser.parse_args()
    chosen = flags.only.split(",")
    n, requests = flags.repeats, flags.requests
    if "paired" in chosen:
        table("paired", lambda e, other: singles(e, other, n, requests, same=True, mix=None))
    if "welch" in chosen:
        table("welch", lambda e, other: singles(e, other, n, requests, same=False, mix=None))
    if "mix" in chosen:
        for engine in ENGINES:
            mix = replace(engine.mix, output_len=engine.mix.output_len * 1.3)
            found = singles(engine, engine.config, n, requests, same=False, mix=mix)
            print(f"{'mix':8}{engine.name:18}{'equal':14}{found}", flush=True)
    if "loads" in chosen:
        for engine in ENGINES:
            for what, other in (("equal", engine.config), ("5 % loss", slower(engine.config))):
                for how, same in (("paired", True), ("welch", False)):
                    told = sweeps(engine, other, n, requests, same=same)
                    print(f"{'loads':8}{engine.name:18}{what:14}{how:8}{told}", flush=True)
    for name in chosen:
        if name not in UNSTEADY:
            continue
        engine = replace(ENGINES[0], config=replace(ENGINES[0].config, **UNSTEADY[name]))  # type: ignore[arg-type]
        for what, other in (("equal", engine.config), ("5 % loss", slower(engine.config))):
            found = interleaved(engine, other, n, requests, flags.pairs)
            print(f"{'pairs':8}{name:18}{what:14}{found}", flush=True)


if __name__ == "__main__":
    main()
