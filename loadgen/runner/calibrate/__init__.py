"""`loadgen calibrate`: what this machine carries, and how wrong it is, against servers that tell the truth."""

from __future__ import annotations

from .run import Stage, calibrate
from .stages import DispatchStage, Ground, Plan, StreamStage
from .store import default_path, load, save

__all__ = ["DispatchStage", "Ground", "Plan", "Stage", "StreamStage", "calibrate", "default_path", "load", "save"]
