"""A log's summaries, computed once: what a long log says for one set of objectives is kept beside it."""

from __future__ import annotations

import functools
import hashlib
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..results import StepSummary

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..log.columns import ColumnBuilder
    from ..log.store import Run
    from ..results import Slo

MANY_REQUESTS = 5_000  # of a log whose steps are shared out among processes,
MOST_EVENTS = 50_000_000  # which unpack no more than these at a time: 1.2 GB
_CODE = ("analysis", "log", "records.py", "results.py", "stats.py", "slo.py", "errors.py")  # what a summary depends on


@dataclass(frozen=True, slots=True)
class Digest:
    """What a report needs of a log besides its steps' lines: how many requests it holds, how many of them failed, how
    many lines of them are half-written, and what each step comes to."""

    requests: int
    failed: int
    truncated_lines: int
    summaries: tuple[StepSummary, ...]


def digest(run: Run, slo: Slo) -> tuple[Digest, Callable[[], ColumnBuilder]]:
    """The digest under these objectives, and what reads the records themselves, should they be needed."""
    from ..log import cache, typed
    from ..log.quick import read

    place = cache.place_of(run)
    # Loading what sums up takes as long as reading thousands of requests.
    builder = functools.cache(lambda: read(run, lambda: importlib.import_module("loadgen.analysis")))
    key = "" if place is None else _key(run, slo, place[1])
    if place is not None:
        try:
            kept = typed.loads(cache.recall(place[0], key) or b"", Digest)
        except (ValueError, TypeError, KeyError, AttributeError):
            pass
        else:
            run.truncated_lines = run.truncated_beside + kept.truncated_lines
            return kept, builder
    found = _digest(run, slo, builder())
    if place is not None and cache.place_of(run) == place:
        cache.remember(place[0], key, typed.dumps(found).encode())
    return found, builder


def _digest(run: Run, slo: Slo, builder: ColumnBuilder) -> Digest:
    from ..analysis import summarise_run
    from ..log import forked, typed
    from ..records import FAILED_OUTCOMES, OUTCOMES
    from ..results import StepSummary

    outcome = builder.columns(events=False).outcome
    # Copies of a process have their price: a short log's steps are summed up sooner than one has begun.
    few = len(outcome) < MANY_REQUESTS
    at_once = 1 if few else min(forked.usable_cpus(), max(1, MOST_EVENTS // max(1, builder.largest_step())))
    way = forked.Way[StepSummary](
        lambda s: [typed.dumps(s).encode()], lambda data: typed.loads(bytes(data), StepSummary)
    )
    each = functools.partial(forked.each, way=way, processes=at_once)
    summaries = summarise_run(builder, slo, run.observations, run.server, uncounted=run.uncounted, each=each)
    return Digest(
        requests=len(outcome),
        failed=sum(int((outcome == OUTCOMES.index(name)).sum()) for name in FAILED_OUTCOMES),
        truncated_lines=run.truncated_lines - run.truncated_beside,
        summaries=tuple(summaries),
    )


def _key(run: Run, slo: Slo, files: object) -> str:
    """Everything that a digest is made from: the files, the objectives and this program."""
    from ..log import typed

    asked = (files, run.observations, run.server, sorted(run.uncounted), slo, _program())
    return hashlib.sha256(typed.dumps(asked).encode()).hexdigest()[:32]


@functools.cache
def _program() -> list[tuple[str, int, int]]:
    """The files of this program that make summaries: a digest of another version's is none of this one's."""
    root = Path(__file__).parent.parent
    found = [path for name in _CODE for path in ((root / name).glob("*.py") if "." not in name else (root / name,))]
    return [(path.name, told.st_size, told.st_mtime_ns) for path in sorted(found) if (told := path.stat())]
