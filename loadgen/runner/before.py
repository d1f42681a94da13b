"""The run before of the same thing in the same folder of results, and what has changed since. Reads, never writes."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from ..analysis.conditions import mapping
from ..analysis.since import comparable, since, throughputs, usable
from ..log.opened import MANIFEST, STEPS
from ..results import Estimate, LevelResult, StepSummary

LOOK_BACK = 20  # runs, the latest first
RUN = re.compile(r"\d{8}T\d{6}Z-")  # as `log.store` calls them
MANIFEST_BYTES = 4 << 20


def since_the_one_before(
    folder: Path, manifest: Mapping[str, Any], steps: Sequence[StepSummary], levels: Sequence[tuple[int, LevelResult]]
) -> str | None:
    """What the latest earlier run of the same workload on the same address, beside `folder`, gave at the same loads;
    None where there is none. What cannot be read is passed over."""
    started = manifest.get("started_epoch_ns")
    now = throughputs(steps, [step for step, level in levels if level.verdict == "invalid"])
    if not isinstance(started, int) or not now:
        return None
    for earlier in _latest_first(folder):
        told = _object(earlier / MANIFEST)
        begun = told.get("started_epoch_ns")
        if not isinstance(begun, int) or begun >= started or not comparable(told, manifest):
            continue
        found = since(_earlier(earlier / STEPS), now)
        if found is not None:
            return found.sentence(f"{_ago((started - begun) / 1e9)} ({earlier.name})")
    return None


def _latest_first(folder: Path) -> Iterator[Path]:
    """What is called like a run folder beside one, by the time in their names."""
    try:
        names = [path.name for path in folder.parent.iterdir() if path.name < folder.name and RUN.match(path.name)]
    except OSError:
        names = []
    return itertools.islice((folder.parent / name for name in sorted(names, reverse=True)), LOOK_BACK)


def _object(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            found = orjson.loads(file.read(MANIFEST_BYTES))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _earlier(path: Path) -> dict[float, Estimate]:
    """By requests in flight, the latest output throughput of the steps in a file, as far as it can be read."""
    found: dict[float, Estimate] = {}
    with contextlib.suppress(OSError), path.open("rb") as file:
        for line in file:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                step = mapping(orjson.loads(line))
                summary = mapping(step.get("summary"))
                told = mapping(summary.get("output_throughput_tok_s"))
                estimate = Estimate(*(float(told[name]) for name in ("value", "low", "high")))
                if summary.get("rate_req_s") is None and step.get("verdict") != "invalid" and usable(estimate):
                    found[float(summary["concurrency"])] = estimate
    return found


def _ago(seconds: float) -> str:
    for unit, most, each in (("s", 120, 1), ("min", 7200, 60), ("h", 172_800, 3600)):
        if seconds < most:
            return f"{seconds / each:.0f} {unit} earlier"
    return f"{seconds / 86_400:.0f} days earlier"
