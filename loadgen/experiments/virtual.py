"""One run of one arm in virtual time → the summary that a run over HTTP has. Pure and seeded.

The lengths, and what prompts share, are the workload's own, drawn by `seed` as for a real server; `number` seeds what
the engine does by chance. The window opens when as many requests as are in flight have ended, and the sample is those
sent in it, each followed to its end while others hold the load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..analysis import summarise
from ..analysis.compare import Difference
from ..analysis.interleaved import order, run_level
from ..records import PHASES
from ..results import Observation, StepSummary, Window
from ..simulator.engine.virtual import Arrivals, Closed, Requests, VirtualTimes, poisson, simulate
from ..workload.definition import Workload
from ..workload.sharing import Head
from .columns import columns_of
from .definition import Arm, Setting

Floats = NDArray[np.float64]
WARMUP, MEASURED, FILLER = (PHASES.index(name) for name in ("warmup", "measured", "filler"))
OPEN_WARM = 0.2  # of the requests of an open loop, before its window


def run_pairs(setting: Setting, seed: int, arms: tuple[Arm, Arm] | None = None) -> list[Difference]:
    """All pairs of a setting, measured A B B A …, each pair with lengths of its own; `arms` in place of its own."""
    a, b = arms or (setting.a, setting.b)
    return run_level(*both(setting, seed, (a, b)), setting.primary)


def both(setting: Setting, seed: int, arms: tuple[Arm, Arm]) -> tuple[list[StepSummary], list[StepSummary]]:
    """The runs of either arm, pair by pair."""
    found: dict[str, list[StepSummary]] = {"A": [], "B": []}
    for number, which in enumerate(order(setting.load.pairs)):
        arm = arms["AB".index(which)]
        found[which].append(run_arm(setting, arm, seed + number // 2, seed * 1000 + number))
    return found["A"], found["B"]


def run_arm(setting: Setting, arm: Arm, seed: int, number: int, *, requests: int | None = None) -> StepSummary:
    """One run: `seed` makes the requests, `number` the engine's noise. `requests` in place of the setting's."""
    load = setting.load
    wanted = requests or load.requests
    config = replace(arm.engine, seed=number)
    events = any(figure.metric == "itl" for figure in setting.figures)
    if load.rate is None:
        warm, spare = load.concurrency, 3 * load.concurrency + wanted // 20
    else:
        warm, spare = math.ceil(OPEN_WARM * wanted), math.ceil(OPEN_WARM * wanted)
    asked = requests_of(setting.workload, seed, wanted + 2 * warm + spare, config.block_tokens)
    at = poisson(load.rate, len(asked.prompt), seed).at_s if load.rate is not None else None
    parts: list[tuple[NDArray[np.int64], VirtualTimes]] = []
    for replica in range(arm.replicas):
        rows = np.arange(replica, len(asked.prompt), arm.replicas)
        mine = Requests(
            asked.prompt[rows],
            asked.output[rows],
            tuple(asked.blocks[i] for i in rows.tolist()) if asked.blocks else (),
        )
        own = replace(config, seed=number * 64 + replica)
        if at is None:
            share = _share(load.concurrency, replica, arm.replicas)
            stay = float(simulate(own, _first(mine, 2 * share), Closed(share)).e2e_s.mean())
            how: Closed | Arrivals = Closed(share, ramp_s=stay)
        else:
            how = Arrivals(at[rows])
        parts.append((rows, simulate(own, mine, how, events=events)))
    return _summary(setting, parts, warm, wanted)


def _summary(
    setting: Setting, parts: Sequence[tuple[NDArray[np.int64], VirtualTimes]], warm: int, wanted: int
) -> StepSummary:
    load, runs = setting.load, [run for _, run in parts]
    stamps = np.concatenate([np.stack([run.submitted_s, run.first_s, run.done_s], axis=1) for run in runs])
    lengths = np.concatenate([np.stack([run.prompt, run.output], axis=1) for run in runs])
    sent = np.sort(stamps[:, 0])
    opened = float(np.sort(stamps[:, 2])[warm - 1]) if load.rate is None else float(sent[warm])
    first = int(np.searchsorted(sent, opened, side="right" if load.rate is None else "left"))
    last = min(first + wanted, len(sent) - 1)
    # No replica may have run out of requests before the window ends.
    closed = min(float(sent[last]), *(float(run.submitted_s.max()) for run in runs))
    phases = np.full(len(stamps), MEASURED, np.int8)
    phases[stamps[:, 0] < opened] = WARMUP
    phases[(stamps[:, 0] <= opened) & (load.rate is None)] = WARMUP
    phases[stamps[:, 0] >= closed] = FILLER
    events = None
    if len(runs[0].event_row):
        starts = np.cumsum([0, *(len(rows) for rows, _ in parts[:-1])])
        events = (
            np.concatenate([run.event_row + start for run, start in zip(runs, starts, strict=True)]),
            np.concatenate([run.event_s for run in runs]),
            np.concatenate([run.event_tokens for run in runs]),
        )
    table = columns_of(stamps, lengths, phases, 1, load.concurrency, events)
    window = Window(round(opened * 1e9), round(closed * 1e9))
    held = float(np.clip(np.minimum(stamps[:, 2], closed) - np.maximum(stamps[:, 0], opened), 0, None).sum())
    seen = Observation(
        1, load.concurrency, window, round(held * 1e9), load.concurrency or len(stamps), "complete", rate=load.rate
    )
    return summarise(table, 1, setting.slo, seen)


def requests_of(workload: Workload, seed: int, count: int, block_tokens: int) -> Requests:
    """The first requests of a workload's stream, as a server of such KV blocks sees them."""
    prompt, output, _ = workload.lengths.sample(seed, count)
    blocks: tuple[tuple[int, ...], ...] = ()
    if workload.sharing is not None:
        known: dict[tuple[Head, ...], tuple[int, ...]] = {}
        found = []
        for index, tokens in enumerate(prompt.tolist()):
            heads = workload.sharing.heads(seed, index)
            if heads not in known:
                known[heads] = _hashes(heads, block_tokens)
            found.append(known[heads][: (tokens - 1) // block_tokens])
        blocks = tuple(found)
    return Requests(prompt.astype(np.int64), output.astype(np.int64), blocks)


def _hashes(heads: Sequence[Head], block_tokens: int) -> tuple[int, ...]:
    """Of the whole blocks that the heads fill together: equal where all heads up to a block's end are."""
    found, ends = [], np.cumsum([head.tokens for head in heads])
    for number in range(int(ends[-1]) // block_tokens):
        within = int(np.searchsorted(ends, (number + 1) * block_tokens))
        found.append(hash((*(head.key for head in heads[: within + 1]), number)))
    return tuple(found)


def _share(concurrency: int, replica: int, replicas: int) -> int:
    return max(1, concurrency // replicas + (replica < concurrency % replicas))


def _first(requests: Requests, count: int) -> Requests:
    return Requests(requests.prompt[:count], requests.output[:count], requests.blocks[:count])
