"""What other Python programs call: measure a server, read a log."""

from __future__ import annotations

from .measuring import Result, run, sweep
from .table import Requests, load

__all__ = ["Requests", "Result", "load", "run", "sweep"]
