"""Typed text → values: durations, counts, level lists. Every mistake is one sentence."""

from __future__ import annotations

import itertools
import re
from typing import Any

import click

_UNITS_S = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-zµ]*)")
_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmM]?)")


class Duration(click.ParamType[float]):
    """`500ms`, `30s`, `5m`, `1h30m`; a bare number is seconds. The value is a float in seconds, above zero."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        text = str(value).strip().lower()
        parts = _DURATION.findall(text)
        if not parts or _DURATION.sub("", text).strip() or any(unit and unit not in _UNITS_S for _, unit in parts):
            self.fail(f"{value!r} is not a time: write 500ms, 30s, 5m or 1h", param, ctx)
        if len(parts) > 1 and any(not unit for _, unit in parts):
            self.fail(f"{value!r} is not a time: each part needs its unit, as in 1h30m", param, ctx)
        seconds = sum(float(number) * _UNITS_S[unit or "s"] for number, unit in parts)
        if seconds <= 0:
            self.fail(f"{value!r} must be above zero", param, ctx)
        return seconds


class Count(click.ParamType[int]):
    """A whole number of at least one, also as `10k` or `2.5M`."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _COUNT.fullmatch(str(value).strip())
        if not match:
            self.fail(f"{value!r} is not a number: write 1000 or 10k", param, ctx)
        number = float(match[1]) * {"": 1, "k": 1_000, "m": 1_000_000}[match[2].lower()]
        if number < 1 or number != int(number):
            self.fail(f"{value!r} must be a whole number of at least 1", param, ctx)
        return int(number)


class Share(click.ParamType[float]):
    """`1%` or `0.01`; the value is a float from 0 to 1."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            self.fail(f"{value!r} is not a share: write 1% or 0.01", param, ctx)
        return share


class Levels(click.ParamType[tuple[int, ...]]):
    """A list of concurrency levels: `1,2,4,8` or `8 16 32`, rising, each at least 1."""

    name = "levels"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        words = [word for word in re.split(r"[,\s]+", str(value).strip()) if word]
        levels = []
        for word in words:
            if not word.isdigit() or int(word) < 1:
                self.fail(f"{word!r} in {value!r} is not a level: write whole numbers, as in 1,2,4,8", param, ctx)
            levels.append(int(word))
        if not levels:
            self.fail("the list of levels is empty: write 1,2,4,8", param, ctx)
        if any(b <= a for a, b in itertools.pairwise(levels)):
            rising = ",".join(str(level) for level in sorted(set(levels)))
            self.fail(f"{value!r} must rise, each level once: write {rising}", param, ctx)
        return tuple(levels)


class Pair(click.ParamType[tuple[str, str]]):
    """KEY=VALUE."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, rest = str(value).partition("=")
        if not equals or not key.strip():
            self.fail(f"{value!r} is not KEY=VALUE, as in gpu=H100", param, ctx)
        return key.strip(), rest.strip()


class Header(click.ParamType[tuple[str, str]]):
    """NAME: VALUE, as curl takes it."""

    name = "header"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, colon, rest = str(value).partition(":")
        if not colon or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name.strip()) or re.search(r"[\r\n\0]", rest):
            # The value may be a secret: only what stands before a colon is shown.
            self.fail(f"header {name.strip()[:20]!r}… is not NAME: VALUE, as in 'X-Api-Key: abc'", param, ctx)
        return name.strip(), rest.strip()


class JsonObject(click.ParamType[dict[str, Any]]):
    """A JSON object, or @FILE that holds one."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        import json
        from pathlib import Path

        text = str(value)
        try:
            if text.startswith("@"):
                text = Path(text[1:]).read_text()
            parsed = json.loads(text)
        except OSError as error:
            self.fail(f"{text} cannot be read: {error.strerror}", param, ctx)
        except ValueError as error:
            self.fail(f"this is not JSON ({error}): {text[:60]}", param, ctx)
        if not isinstance(parsed, dict):
            self.fail('a JSON object is needed, as in {"top_k": 1}', param, ctx)
        return parsed
