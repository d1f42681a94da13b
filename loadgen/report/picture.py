"""One Altair chart as a file of its own, SVG or PNG. Needs the `plot` extra (Altair, vl-convert)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import LogError, UsageError
from ..log.whole import whole_file

FORMATS = (".svg", ".png")


def check_picture(path: Path) -> None:
    """Raises UsageError for another suffix or without the extra: before anything is measured or drawn."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{path} is neither .svg nor .png", "name the file one or the other")
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError:
        raise UsageError("plots need the plot extra", "pip install 'loadgen[plot]'") from None


def save(chart: Any, path: Path, *, scale: float = 1.0) -> None:
    """Raises LogError where the file cannot be written."""
    try:
        with whole_file(path) as file:
            chart.save(str(file), format=path.suffix[1:].lower(), scale_factor=scale)
    except OSError as error:
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError | ValueError) -> LogError:
    reason = getattr(error, "strerror", None) or str(error)
    return LogError(f"{path} cannot be written: {reason}", "choose another place")
