"""A spec → SVG or PNG, without browser or network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import vl_convert

from ...log.whole import write_whole
from ..picture import check_picture, unwritable
from .style import INK

VEGA_LITE = "6.4"  # the version that these specs are drawn by
PNG_SCALE = 2.0


def svg(spec: dict[str, Any]) -> str:
    """On a transparent ground. Nothing is ever loaded from elsewhere."""
    text: str = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, allowed_base_urls=[])
    return text


def write(spec: dict[str, Any], title: str, path: Path, *, scale: float = PNG_SCALE) -> None:
    """One chart as a file, on white and with its title. Raises UsageError for another suffix, LogError where the file
    cannot be written."""
    check_picture(path)
    whole = {
        **spec,
        "title": {"text": title, "color": INK},
        "config": {**spec["config"], "background": "white"},
        "padding": 12,
    }
    if path.suffix.lower() == ".svg":
        content = svg(whole).encode()
    else:
        content = vl_convert.vegalite_to_png(whole, vl_version=VEGA_LITE, scale=scale, allowed_base_urls=[])
    try:
        write_whole(path, content)
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from None
