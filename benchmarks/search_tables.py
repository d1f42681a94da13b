"""The tables of `benchmarks.search` that need no whole sweep on an engine: intervals, flags, plateaus, rates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.virtual import VirtualServer, measure
from loadgen.analysis.stability import increments
from loadgen.results import Estimate, LevelResult, Slo, Stop, Window
from loadgen.search import SweepPlan, decide
from loadgen.search.effort import rate_rule, step_rule
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.engine.virtual import Arrivals as At
from loadgen.simulator.engine.virtual import Closed, Mix, Requests, poisson, simulate
from loadgen.stats import LEVEL, batch_count, grows, percentile, rate_interval

CONCURRENCY = 16
MIX = Mix(200, 16, sigma=0.6)
SHARES = (0.9, 0.97, 1.03, 1.08, 1.15)  # of the capacity: rates of the open loop
ENGINES: dict[str, EngineConfig] = {
    "no queue": EngineConfig(max_batch=32),
    "queue for the batch": EngineConfig(max_batch=12),
    "bound by prompts": EngineConfig(max_batch=32, prefill_ms=0.5, max_prefill_tokens=512),
    "queue for KV memory": EngineConfig(max_batch=32, kv_blocks=150, context_length=2048),
}


def coverage(repeats: int) -> None:
    """Printed 95 % intervals against the truth: iid values, and windows of one long run of an engine."""
    print(
        f"\nCoverage of the 95 % interval, {repeats:,} repeats; c = {CONCURRENCY}, ten batches of two turnovers (20c)"
    )
    rng = np.random.default_rng(1)
    for p, n in ((95.0, 400), (95.0, 1000), (99.0, 1000)):
        truth = float(np.exp(0.5 * _normal_quantile(p / 100)))
        hits, open_ended = 0, 0
        for _ in range(repeats):
            found = percentile(np.exp(rng.normal(0, 0.5, n)), p, batch_count(n, 1))
            assert found is not None
            open_ended += not found.established
            hits += (found.low or -math.inf) <= truth <= (found.high or math.inf)
        print(
            f"  iid, p{p:g}, n = {n:5,}               {100 * hits / repeats:5.1f} %   open {open_ended / repeats:4.0%}"
        )
    for name, config in ENGINES.items():
        _engine_coverage(name, config, repeats)


def _engine_coverage(name: str, config: EngineConfig, repeats: int) -> None:
    n, c = 20 * CONCURRENCY, CONCURRENCY
    run = simulate(replace(config, seed=7), _requests(repeats * n + 8 * c, config), Closed(c, 1.0))
    at = slice(4 * c, 4 * c + repeats * n)
    columns = {"ttft p95": (run.ttft_s[at], run.first_s[at]), "tpot p95": (run.tpot_s[at], run.done_s[at])}
    said = []
    for label, (values, stamps) in columns.items():
        truth = float(np.nanquantile(values, 0.95))
        hits = 0
        for number in range(repeats):
            part = slice(number * n, (number + 1) * n)
            kept = values[part][np.argsort(stamps[part], kind="stable")]
            kept = kept[~np.isnan(kept)]
            found = percentile(kept, 95.0, batch_count(n, c))
            assert found is not None
            hits += (found.low or -math.inf) <= truth <= (found.high or math.inf)
        said.append(f"{label} {100 * hits / repeats:5.1f} %")
    rate, hits = run.throughput(run.submitted_s[at.start], run.submitted_s[at.stop - 1]), 0
    sums = np.concatenate(([0], np.cumsum(run.step_tokens)))
    for number in range(repeats):
        edges = np.linspace(*(run.submitted_s[at.start + m] for m in (number * n, (number + 1) * n - 1)), 11)
        tokens = np.diff(sums[np.searchsorted(run.steps_s, edges, side="right")]).astype(np.float64)
        found_rate = rate_interval(tokens, edges[-1] - edges[0])
        hits += (found_rate.low or 0.0) <= rate <= (found_rate.high or math.inf)
    print(f"  {name:22} {'   '.join(said)}   tokens/s {100 * hits / repeats:5.1f} %", flush=True)


def flags(repeats: int) -> None:
    """How often a step is called unsteady that is, and that is not."""
    print(f"\nSteps of 1,000 requests at c = 32 that are flagged, of {repeats}")
    base = EngineConfig(max_batch=32, step_ms=20)
    cells: dict[str, tuple[EngineConfig, Mix]] = {
        "steady": (base, MIX),
        "steady, with a queue": (replace(base, max_batch=20), MIX),
        "steady, bound by prompts": (replace(base, prefill_ms=0.5, max_prefill_tokens=512), MIX),
        "steady, bound by KV memory": (replace(base, kv_blocks=300, context_length=2048), MIX),
        "drift of 20 % in 120 s": (replace(base, drift=0.2, drift_period_s=120), MIX),
        "drift of 20 % in 30 s": (replace(base, drift=0.2, drift_period_s=30), MIX),
        "stalls of 1 s each 10 s": (replace(base, stall_every_s=10, stall_ms=1000), MIX),
        "equal lengths, a burst": (base, Mix(200, 16)),
    }
    for name, (config, mix) in cells.items():
        seen: Counter[str] = Counter()
        for seed in range(repeats):
            rule = step_rule("normal", Slo(), requests=1000)
            seen.update(measure(VirtualServer(config, mix, seed), 1, 32, rule, Slo()).summary.unsteady or ("none",))
        print(f"  {name:26} {'  '.join(f'{kind} {count}' for kind, count in sorted(seen.items()))}", flush=True)


def plateau(repeats: int) -> None:
    """Curves of known gain, each level known to ±3 %: where does the rise end?"""
    print(f"\nPlateaus on curves of known gain, levels known to ±3 %, {repeats} rises each")
    rng = np.random.default_rng(3)
    curves: dict[str, Callable[[int], float]] = {
        "+6 % a doubling": lambda c: c ** math.log2(1.06),
        "+8 % a doubling": lambda c: c ** math.log2(1.08),
        "+3 % a doubling from 16 on": lambda c: min(c, 16) * max(1.0, c / 16) ** math.log2(1.03),
        "hard knee at 24": lambda c: min(c, 24),
        "hyperbola, half at 16": lambda c: c / (c + 16),
    }
    for name, curve in curves.items():
        ends: Counter[str] = Counter()
        level_right = 0
        for _ in range(repeats):
            history: list[LevelResult] = []
            while not isinstance(found := decide(history, SweepPlan(max_level=1024, revisit=False)), Stop):
                value = 1000 * curve(found.concurrency) * math.exp(rng.normal(0, 0.03 / 1.96))
                estimate = Estimate(value, value * math.exp(-0.03), value * math.exp(0.03))
                history.append(LevelResult(found.concurrency, estimate, "measured"))
            ends[found.reason] += 1
            true = 1000 * curve(max(level.concurrency for level in history))
            level_right += found.peak_throughput is not None and abs(found.peak_throughput.value / true - 1) <= 0.05
        print(f"  {name:28} {dict(ends)}  level within 5 % {level_right}")


def rates(repeats: int, shares: Sequence[float] = SHARES) -> None:
    """Open loop: which share of steps is called unstable within 8 looks, by the rate's share of the capacity."""
    config, mix = EngineConfig(max_batch=32), MIX
    closed = simulate(config, mix.draw(20_000, 1), Closed(64))
    capacity = 19_000 / float(np.sort(closed.done_s)[19_499] - np.sort(closed.done_s)[499])
    sizes = replace(rate_rule(step_rule("normal", Slo())), first_look=300, requests_cap=5126).look_sizes(0)
    print(f"\nCalled unstable, of {repeats}; capacity {capacity:.1f} requests/s; looks at {sizes}")
    for share in shares:
        said = []
        for kind in ("poisson", "constant"):
            caught: list[int] = []
            for seed in range(repeats):
                count = sizes[-1] + 200
                at = poisson(capacity * share, count, seed)
                if kind == "constant":
                    at = At(np.arange(count) / (capacity * share))
                n = _caught(config, mix.draw(count, seed + 10), at, seed, sizes)
                caught += [n] if n else []
            after = f", after {np.mean(caught):,.0f}" if caught else ""
            said.append(f"{kind} {100 * len(caught) / repeats:5.1f} %{after}")
        print(f"  {share:4.2f} of the capacity   {'   '.join(said)}", flush=True)


def _caught(config: EngineConfig, requests: Requests, at: At, seed: int, sizes: tuple[int, ...]) -> int | None:
    """After how many completions the step is called unstable; the first 100 arrivals are warm-up. Most of those that
    are show it early: the whole step is only run where its beginning did not."""
    for count in (1200, len(at.at_s)):
        part = Requests(requests.prompt[:count], requests.output[:count])
        run = simulate(replace(config, seed=seed), part, At(at.at_s[:count]))
        sent, done = (np.rint(np.sort(stamps) * 1e9).astype(np.int64) for stamps in (run.submitted_s, run.done_s))
        measured = np.sort(np.rint(run.done_s[100:] * 1e9).astype(np.int64))
        for n in sizes:
            window = Window(int(sent[100]), int(measured[min(n, len(measured)) - 1]))
            if window.end_ns > sent[-1]:
                if count < len(at.at_s):
                    break  # what follows in the whole step is not seen here
                window = Window(window.start_ns, int(sent[-1]))  # no further arrivals were made
            if grows(increments(sent, done, window), (1 - LEVEL) / len(sizes)):
                return n
    return None


def _requests(count: int, config: EngineConfig) -> Requests:
    return MIX.draw(count, 5, block_tokens=config.block_tokens, longest=min(config.context_length, 1024))


def _normal_quantile(q: float) -> float:
    from scipy import special

    return float(special.ndtri(q))
