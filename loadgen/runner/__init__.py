"""One run: preflight, announcement, steps, signals, manifest."""

from __future__ import annotations

from .config import Budgets, Finished, Nobody, Opening, OpenLoop, RunConfig, Scraping, Watcher, WorkloadChoice
from .dry import dry_run
from .run import execute

__all__ = [
    "Budgets",
    "Finished",
    "Nobody",
    "OpenLoop",
    "Opening",
    "RunConfig",
    "Scraping",
    "Watcher",
    "WorkloadChoice",
    "dry_run",
    "execute",
]
