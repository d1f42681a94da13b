"""The line in which a run cites the calibration of its machine. Pure; reads the JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any


def cite(calibration: Mapping[str, Any], events_per_s: float, streams: int) -> str | None:
    """How much more than this run's events/s the calibrated machine carries, in one clause; None where there was
    nothing to carry or the calibration does not say."""
    try:
        capacity = calibration["capacity"]
        carried, most, at_least = float(capacity["events_per_s"]), int(capacity["streams"]), capacity["at_least"]
        day = date.fromisoformat(str(calibration["created"])[:10]).isoformat()
    except (KeyError, TypeError, ValueError):
        return None
    if not (events_per_s > 0 and carried > 0):
        return None
    tried = f" with {most:,} streams" if streams > most else ""
    when = f"(calibrated {day}{tried})"
    ratio = carried / events_per_s
    if ratio >= 1:
        return f"this machine carries {'at least ' if at_least else ''}{_times(ratio)} what this run needed {when}"
    if at_least:
        return f"this run needed {_times(1 / ratio)} what this machine has been seen to carry {when}"
    return f"this run needed {_times(1 / ratio)} what this machine carries {when}"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}x" if ratio < 10 else f"{ratio:,.0f}x"
