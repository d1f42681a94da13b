"""What a log means: pure functions over columns."""

from __future__ import annotations

from .definitions import DEFINITIONS, VERSION
from .summary import summarise, summarise_run

__all__ = ["DEFINITIONS", "VERSION", "summarise", "summarise_run"]
