"""A chart's SVG as it stands in a page: what it says under the pointer, names that do not meet those of other charts,
and nothing but shapes and text. Pure but for the drawing.

Vega describes each mark with `description` as an aria-label; a page shows it as the mark's <title>. The picture itself
is one image to a screen reader, whose figures are the table below it.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

from ..charts.render import svg
from .html import Html, raw

_NS = "{http://www.w3.org/2000/svg}"
_SHAPES = {
    *("svg", "g", "path", "line", "rect", "text", "tspan", "defs", "clipPath", "linearGradient", "stop", "title"),
    *("circle", "ellipse", "polygon", "polyline"),
}
_KEPT = {
    *("d", "x", "y", "x1", "x2", "y1", "y2", "dx", "dy", "width", "height", "transform", "viewBox", "points", "r"),
    *("cx", "cy", "rx", "ry", "fill", "stroke", "opacity", "fill-opacity", "stroke-opacity", "stroke-width"),
    *("stroke-dasharray", "stroke-dashoffset", "stroke-linecap", "stroke-linejoin", "stroke-miterlimit"),
    *("text-anchor", "font-size", "font-weight", "font-style", "clip-path", "id", "offset", "stop-color"),
    *("gradientUnits", "gradientTransform"),
}
_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_URL = re.compile(r"url\(#([^)]+)\)")


def drawn(spec: dict[str, Any], name: str, label: str) -> tuple[Html, float]:
    """One chart, `label` its alternative text, and its height in px of its own. `name` is unique in the page."""
    root = ET.fromstring(svg(spec))  # noqa: S314  (drawn here, from a spec made here)
    _tidy(root, name)
    height = float(root.get("height", "0"))
    for key in ("width", "height"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", label)
    root.set("class", "plot")
    text = ET.tostring(root, encoding="unicode", short_empty_elements=True)
    return raw(text), height


def _tidy(element: ET.Element, name: str) -> None:
    element.tag = element.tag.removeprefix(_NS)
    told = element.get("aria-label") if element.get("role") == "graphics-symbol" else None
    mark = told if element.get("aria-roledescription") != "axis" and "title" not in element.get("class", "") else None
    for key in list(element.attrib):
        value = element.attrib[key]
        if key not in _KEPT or (key == "transform" and value == "translate(0,0)"):
            del element.attrib[key]
        elif key == "id":
            element.set(key, f"{name}-{value}")
        elif key in ("opacity", "fill-opacity", "stroke-opacity") and value == "1":
            del element.attrib[key]
        else:
            element.set(key, _URL.sub(rf"url(#{name}-\1)", _NUMBER.sub(_short, value)))
    for child in list(element):
        if child.tag.removeprefix(_NS) not in _SHAPES or child.get("display") == "none" or _empty(child):
            element.remove(child)
        else:
            _tidy(child, name)
    if mark and len(element) == 0:
        ET.SubElement(element, "title").text = mark


def _empty(element: ET.Element) -> bool:
    """Labels that were left out for want of room, and grounds of no size."""
    tag = element.tag.removeprefix(_NS)
    if tag == "text":
        return not (element.text or len(element))
    return tag == "path" and element.get("d", "") in ("", "M0,0h0v0h0Z")


def _short(match: re.Match[str]) -> str:
    return f"{float(match[0]):.1f}".rstrip("0").rstrip(".")
