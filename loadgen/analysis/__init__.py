"""What a log means: pure functions over columns."""

from __future__ import annotations

from .definitions import DEFINITIONS, VERSION
from .serverload import beside_server
from .summary import summarise, summarise_run

__all__ = ["DEFINITIONS", "VERSION", "beside_server", "summarise", "summarise_run"]
