"""The engine's true answers: for a configuration, a workload and a load, by long runs in virtual time.

    level = at(config, mix, 64)                      # closed loop, 64 in flight
    level.throughput, level.figures["ttft_p95_ms"]   # each an Exact: value and standard error
    crossing(config, mix, Objective("ttft", 500, 0.95), 1, 256)   # the load where P(TTFT <= 500 ms) falls through 0.95

Errors come from independent replications with seeds of their own, so that no assumption about correlation is needed.
Results are kept in the user's cache under a hash of everything they depend on, the engine's source included.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .capacity import capacity
from .engine import EngineConfig
from .engine.virtual import Closed, Mix, VirtualTimes, poisson, simulate

Floats = NDArray[np.float64]
Loop = Literal["closed", "open"]
Metric = Literal["ttft", "tpot", "itl", "e2e"]

PERCENTILES = (50, 95, 99)
CLEAR = 0.1  # a probability so far from an objective's level needs no long run
WARM_TURNOVERS = 2  # of the batch, before a window opens; one is left out at its end, where the load falls off


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to run: so many replications of at least so many requests; and, in a closed loop, `refill_s` from the
    end of an answer until the next request is there."""

    replications: int = 8
    requests: int = 4000
    seed: int = 0
    refill_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Exact:
    """A true value, known to a standard error."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class Level:
    """The truth at one load. `throughput` is output tokens/s; `figures` has `METRIC_mean_ms`, `METRIC_pNN_ms`, and
    `requests` the number that a replication measured."""

    load: float
    requests: int
    throughput: Exact
    figures: Mapping[str, Exact]


@dataclass(frozen=True, slots=True)
class Objective:
    """A share `level` (0 … 1) of all requests (of all gaps, for itl) must be at most `limit_ms`."""

    metric: Metric
    limit_ms: float
    level: float = 0.95


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where the probability of meeting an objective falls through its level: `load` between two neighbours that were
    run, known to `error` (standard error, in units of load). Load 0: not even the lowest load meets it, and inf: also
    the highest does."""

    load: float
    error: float
    met: Mapping[float, Exact]  # load → probability of being met, for every load that was run


def at(config: EngineConfig, mix: Mix, load: float, *, loop: Loop = "closed", effort: Effort | None = None) -> Level:
    """The truth at `load` requests in flight, or a second (open: Poisson). ValueError if a request can never run;
    only the tail of lognormal lengths is cut."""
    effort = effort or Effort()
    _check_fits(config, mix)
    found = _kept(
        {"at": [asdict(config), asdict(mix), load, loop, asdict(effort)]}, lambda: _at(config, mix, load, loop, effort)
    )
    figures = {name: Exact(*pair) for name, pair in found["figures"].items()}
    return Level(load, found["requests"], figures.pop("throughput"), figures)


def _at(config: EngineConfig, mix: Mix, load: float, loop: Loop, effort: Effort) -> dict[str, Any]:
    rows: list[dict[str, float]] = []
    measured = 0
    for replication in range(effort.replications):
        window = _Window(config, mix, load, loop, effort, replication)
        row = {"throughput": window.throughput}
        for metric in ("ttft", "tpot", "itl", "e2e"):
            values = window.values_ms(metric)
            if len(values):
                row[f"{metric}_mean_ms"] = float(values.mean())
                row.update({f"{metric}_p{p}_ms": float(np.percentile(values, p)) for p in PERCENTILES})
        rows.append(row)
        measured = window.requests
    names = [name for name in rows[0] if all(name in row for row in rows)]
    return {"requests": measured, "figures": {name: _mean([row[name] for row in rows]) for name in names}}


def crossing(
    config: EngineConfig,
    mix: Mix,
    objective: Objective,
    low: float,
    high: float,
    *,
    loop: Loop = "closed",
    effort: Effort | None = None,
) -> Crossing:
    """Bisects [low, high], whole numbers in a closed loop and to 1 % in an open one, taking it that more load never
    makes the objective easier; then interpolates between the two last neighbours. ValueError as for `at`."""
    effort = effort or Effort()
    glance = Effort(replications=2, requests=max(1, effort.requests // 8), seed=effort.seed)
    met: dict[float, Exact] = {}

    def probability(load: float) -> float:
        """At full length only where a glance leaves a doubt."""
        seen = share_met(config, mix, objective, load, loop=loop, effort=glance)
        if abs(seen.value - objective.level) < CLEAR + 5 * seen.error:
            seen = share_met(config, mix, objective, load, loop=loop, effort=effort)
        met[load] = seen
        return seen.value

    if probability(low) < objective.level:
        return Crossing(0.0, 0.0, met)
    if probability(high) >= objective.level:
        return Crossing(math.inf, 0.0, met)
    while high - low > (1 if loop == "closed" else 0.01 * low):
        middle = float((low + high) // 2) if loop == "closed" else (low + high) / 2
        if probability(middle) >= objective.level:
            low = middle
        else:
            high = middle
    for load in (low, high):
        met[load] = share_met(config, mix, objective, load, loop=loop, effort=effort)
    upper, lower = met[low], met[high]
    slope = (upper.value - lower.value) / (high - low)
    share = (upper.value - objective.level) / (upper.value - lower.value)
    noise = math.hypot((1 - share) * upper.error, share * lower.error)
    return Crossing(low + share * (high - low), noise / slope, met)


def share_met(
    config: EngineConfig,
    mix: Mix,
    objective: Objective,
    load: float,
    *,
    loop: Loop = "closed",
    effort: Effort | None = None,
) -> Exact:
    """The probability that a request (a gap, for itl) meets the objective at a load. ValueError as for `at`."""
    effort = effort or Effort()
    _check_fits(config, mix)

    def run() -> list[float]:
        shares = []
        for replication in range(effort.replications):
            values = _Window(config, mix, load, loop, effort, replication).values_ms(objective.metric)
            shares.append(float((values <= objective.limit_ms).mean()))
        return _mean(shares)

    of = [asdict(config), asdict(mix), asdict(objective), load, loop, asdict(effort)]
    return Exact(*_kept({"share_met": of}, run))


def saturation(config: EngineConfig, mix: Mix, *, effort: Effort | None = None) -> Exact:
    """Output tokens/s with every place of the batch taken and as many requests waiting: the closed loop's capacity."""
    return at(config, mix, 2 * config.max_batch, effort=effort).throughput


def quick_capacity(config: EngineConfig, input_len: int, output_len: int) -> float:
    """Output tokens/s at saturation: in closed form where there is one, else by one short run (good to some percent).
    ValueError if such a request can never run."""
    _check_fits(config, Mix(input_len, output_len))
    if config.simple:
        return capacity(config, input_len, output_len)
    effort = Effort(replications=1, requests=2 * config.max_batch)
    window = _Window(config, Mix(input_len, output_len, spread=0.2), 2 * config.max_batch, "closed", effort, 0)
    return window.throughput


def _check_fits(config: EngineConfig, mix: Mix) -> None:
    if mix.longest > config.room:
        raise ValueError(f"requests of up to {mix.longest} tokens exceed what this engine holds, {config.room}")


class _Window:
    """One replication, and the requests of it that saw the full load all the time."""

    def __init__(
        self, config: EngineConfig, mix: Mix, load: float, loop: Loop, effort: Effort, replication: int
    ) -> None:
        seed = effort.seed * 1000 + replication
        config = replace(config, seed=seed)
        turnover = round(load) if loop == "closed" else config.max_batch
        warm = WARM_TURNOVERS * turnover
        count = warm + max(effort.requests, turnover) + turnover
        longest = config.room
        requests = mix.draw(count, seed, block_tokens=config.block_tokens, longest=longest)
        if loop == "closed":
            pilot = mix.draw(2 * turnover, seed, block_tokens=config.block_tokens, longest=longest)
            stay = float(simulate(config, pilot, Closed(turnover)).e2e_s.mean())  # start spread over one residence
            self._run = simulate(config, requests, Closed(turnover, stay, effort.refill_s), gaps=True)
        else:
            self._run = simulate(config, requests, poisson(load, count, seed), gaps=True)
        self._chosen = slice(warm, count - turnover)
        self._since, self._until = (float(self._run.submitted_s[at]) for at in (warm, count - turnover))
        self.requests = count - turnover - warm

    @property
    def throughput(self) -> float:
        return self._run.throughput(self._since, self._until)

    def values_ms(self, metric: Metric) -> Floats:
        run: VirtualTimes = self._run
        if metric == "itl":
            inside = (run.gaps_end_s > self._since) & (run.gaps_end_s <= self._until)
            return run.gaps_s[inside] * 1e3
        column = {"ttft": run.ttft_s, "tpot": run.tpot_s, "e2e": run.e2e_s}[metric][self._chosen]
        return column[~np.isnan(column)] * 1e3


def _mean(values: list[float]) -> list[float]:
    """Mean and standard error of replications; a sole one has no error to tell."""
    column = np.array(values)
    error = float(column.std(ddof=1) / math.sqrt(len(column))) if len(column) > 1 else math.inf
    return [float(column.mean()), error]


# The cache.


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """`loadgen/oracle` in $XDG_CACHE_HOME, which is ~/.cache where it is not set to an absolute path."""
    base = environment.get("XDG_CACHE_HOME", "")
    home = Path(base) if base.startswith("/") else Path(environment.get("HOME") or Path.home()) / ".cache"
    return home / "loadgen" / "oracle"


@cache
def _source() -> str:
    digest = hashlib.sha256()
    here = Path(__file__)
    rooms = (here.parent / "engine", here.parent.parent / "hardware")  # hardware says how much KV memory there is
    for path in (here, *(path for room in rooms for path in sorted(room.glob("*.py")))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _kept(question: dict[str, Any], answer: Callable[[], Any]) -> Any:
    """The answer from the cache, or else found and kept; without a usable cache, found each time."""
    asked = json.dumps([question, _source(), np.__version__], sort_keys=True)
    path = cache_folder() / f"{hashlib.sha256(asked.encode()).hexdigest()[:32]}.json"
    try:
        return json.loads(path.read_text())["answer"]
    except (OSError, ValueError, KeyError):
        pass  # not there yet, or damaged
    found = answer()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({"question": question, "answer": found}))
        draft.replace(path)
    except OSError:
        pass  # a cache that cannot be written costs time, not the answer
    return found
