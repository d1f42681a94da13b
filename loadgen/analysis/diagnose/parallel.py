"""Two runs on different numbers of GPUs: does the model run as much faster as there are more of them? Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..conditions import mapping
from .finding import Check, Fact, Finding
from .levels import Level, Levels, median

EFFICIENT = 0.7  # of the ideal speed-up; below it the exchanges between GPUs, or a fixed time a step, take over
_KEYS = ("tp", "tensor_parallel", "tensor_parallel_size", "tensor-parallel-size", "tp_size", "num_shard", "gpus")


def parallel_findings(run: Levels, other: Levels) -> list[Finding]:
    """Of two runs at different tensor parallelism."""
    degrees = [tensor_parallel(one.manifest) for one in (run, other)]
    if None in degrees or degrees[0] == degrees[1]:
        return []
    few, many = sorted(((d or 1, one) for d, one in zip(degrees, (run, other), strict=True)), key=lambda pair: pair[0])
    pairs = _common(few[1], many[1])
    ideal = many[0] / few[0]
    rows = [(a, b, median(a.tpot) / median(b.tpot)) for a, b in pairs if median(b.tpot) > 0 and median(a.tpot) > 0]
    if not rows:
        return []
    a, b, speedup = rows[0]
    efficiency = speedup / ideal
    if efficiency >= EFFICIENT:
        return []
    facts = [
        Fact(f"TPOT on {few[0]} at {a.load:g} in flight", median(a.tpot), "ms"),
        Fact(f"TPOT on {many[0]} at {b.load:g} in flight", median(b.tpot), "ms"),
        Fact("speed-up", speedup, "times"),
        Fact("ideal speed-up", ideal, "times"),
        Fact("share of the ideal that is reached", efficiency, "share"),
    ]
    costs = few[1].prefill_ms(), many[1].prefill_ms()
    if costs[0] is not None and costs[1] is not None and costs[1][0] > 0:
        facts.append(Fact("speed-up of a prompt token", costs[0][0] / costs[1][0], "times"))
    return [
        Finding(
            "communication",
            "warning",
            "high" if efficiency < 0.6 and len(rows) > 1 else "medium",
            f"{many[0]} GPUs are {speedup:.2f} times as fast as {few[0]}, not {ideal:g}: the rest goes to"
            " exchanges between them, and to what does not shrink",
            tuple(facts),
            f"share each layer among fewer GPUs (tp {max(1, many[0] // 2)}) and run more replicas instead",
            (b.step,),
        )
    ]


def side_by_side(run: Levels, other: Levels) -> Check:
    """What the two runs are, as far as that is told."""
    degrees = [tensor_parallel(one.manifest) for one in (run, other)]
    if None in degrees:
        return Check("GPUs", "tensor parallelism is not told of both runs (--describe tp=4): not compared", None)
    if degrees[0] == degrees[1]:
        return Check("GPUs", f"both runs are on tp {degrees[0]}: no speed-up to compare", None)
    if not _common(run, other):
        return Check("GPUs", f"tp {degrees[0]} and tp {degrees[1]}, with no load in common: not compared", None)
    return Check("GPUs", f"tp {degrees[0]} and tp {degrees[1]}", True)


def tensor_parallel(manifest: Mapping[str, Any]) -> int | None:
    """As `--describe`, the server's flags, or the simulator say; None where none does."""
    server, simulator = (mapping(manifest.get(key)) for key in ("server", "simulator"))
    engine = mapping(mapping(mapping(simulator.get("engine")).get("machine")).get("on"))
    for source in (mapping(manifest.get("describe")), mapping(server.get("flags")), engine):
        for key in _KEYS:
            found = re.search(r"\d+", str(source[key])) if key in source else None
            if found is not None and 0 < int(found[0]) <= 4096:
                return int(found[0])
    return None


def _common(a: Levels, b: Levels) -> list[tuple[Level, Level]]:
    """Levels of one load in both, rising; of two runs of a single load each these."""
    if len(a.by_load) == len(b.by_load) == 1:
        return [(a.by_load[0], b.by_load[0])]
    theirs = {level.load: level for level in b.by_load}
    return [(level, theirs[level.load]) for level in a.by_load if level.load in theirs]
