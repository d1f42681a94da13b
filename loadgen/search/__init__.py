"""How load is raised: pure decisions over the levels measured so far."""

from __future__ import annotations

from .sweep import SweepPlan, decide
from .verdict import judge

__all__ = ["SweepPlan", "decide", "judge"]
