"""Typed text → values: durations, counts, level lists. Every mistake is one sentence."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from ..errors import UsageError

LEAST_COLUMNS, MOST_COLUMNS = 60, 120

_UNITS_S = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-zµ]*)")
_COUNT = re.compile(r"(\d{1,18}(?:\.\d+)?)\s*([kKmM]?)")


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


class Whole(click.ParamType[int]):
    """A whole number from `low` on."""

    name = "integer"

    def __init__(self, low: int, high: int | None = None) -> None:
        self.low, self.high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip()
        number = int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else None
        if number is None or number < self.low or (self.high is not None and number > self.high):
            span = f"of at least {self.low}" if self.high is None else f"from {self.low} to {self.high}"
            self.fail(f"{value!r} is not a whole number {span}", param, ctx)
        return number


class Workers(Whole):
    """A whole number of at least one; `auto` is 0."""

    name = "auto|N"

    def __init__(self) -> None:
        super().__init__(1, 1024)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if str(value).strip().lower() == "auto":
            return 0
        return super().convert(value, param, ctx)


class Number(click.ParamType[float]):
    """A finite number above `above`, or from `low` to `high`."""

    name = "number"

    def __init__(self, low: float = 0.0, high: float = math.inf, *, above: float | None = None) -> None:
        self.low, self.high, self.above = low, high, above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if (
            not self.low <= number <= self.high
            or math.isinf(number)
            or (self.above is not None and number <= self.above)
        ):
            span = f"of at least {self.low:g}" if self.high == math.inf else f"from {self.low:g} to {self.high:g}"
            if self.above is not None:
                span = f"above {self.above:g}" + ("" if self.high == math.inf else f" and at most {self.high:g}")
            self.fail(f"{value!r} is not a number {span}", param, ctx)
        return number


class Rate(click.ParamType[float]):
    """`20`, `0.5`, `20/s` or `90/min`; the value is a float in requests per second."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        from ..workload.arrivals import RATES

        text, _, unit = str(value).strip().lower().partition("/")
        seconds = {"": 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}.get(unit.strip())
        try:
            rate = float(text) / (seconds or 1.0)
        except ValueError:
            seconds = None
        if seconds is None or math.isnan(rate):
            self.fail(f"{value!r} is not a rate: write 20 (requests per second), 0.5 or 90/min", param, ctx)
        if math.isinf(rate):
            self.fail("a rate without end is no rate: to send all at once, use -c N --requests N", param, ctx)
        if not RATES[0] <= rate <= RATES[1]:
            self.fail(f"{value!r} is not from {RATES[0]:g} to {RATES[1]:,.0f} requests per second", param, ctx)
        return rate


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
            if not re.fullmatch(r"[0-9]{1,18}", word) or int(word) < 1:
                self.fail(
                    f"{word[:40]!r} in {str(value)[:80]!r} is not a level: write whole numbers, as in 1,2,4,8",
                    param,
                    ctx,
                )
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
        name, colon, rest = (part.strip() for part in str(value).partition(":"))
        # The value may be a secret, and without a colon all of it is: only what stands before one is shown.
        if not colon or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
            what = f"{name[:40]!r}" if colon else "a text without a colon"
            self.fail(f"{what} does not begin a header: write NAME: VALUE, as in 'X-Api-Key: abc'", param, ctx)
        if not re.fullmatch(r"[\t\x20-\x7e]*", rest):
            self.fail(f"the value of {name} holds a line break or a letter outside ASCII", param, ctx)
        if name.lower() in ("content-length", "transfer-encoding"):
            self.fail(f"{name} follows from each body: leave it out", param, ctx)
        return name, rest


class JsonObject(click.ParamType[dict[str, Any]]):
    """A JSON object, or @FILE that holds one."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        import orjson

        text = str(value)
        try:
            if text.startswith("@"):
                text = Path(text[1:]).read_text()
            parsed = orjson.loads(text)
            json.loads(text, parse_int=lambda digits: self._whole(digits, param, ctx))
        except OSError as error:
            self.fail(f"{text} cannot be read: {error.strerror}", param, ctx)
        except ValueError as error:
            self.fail(f"this is not JSON ({error}): {text[:60]}", param, ctx)
        if not isinstance(parsed, dict):
            self.fail('a JSON object is needed, as in {"top_k": 1}', param, ctx)
        return parsed

    def _whole(self, digits: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:  # the parser would round it
            self.fail(f"{digits[:30]} is past 64 bits: put the bodies that hold it into a --prompts file", param, ctx)
        return int(digits)


def screen_width(*, err: bool = False) -> int:
    """Columns of the terminal behind stdout (or stderr), within reason; into a pipe or file always the most."""
    stream = sys.stderr if err else sys.stdout
    if not stream.isatty():
        return MOST_COLUMNS
    return max(LEAST_COLUMNS, min(MOST_COLUMNS, shutil.get_terminal_size().columns))


def keep_apart(output: str, *read: str, flag: str) -> None:
    """Raises UsageError where `output`, the value of `flag`, is a file among those that are `read`: a log, or any file
    of a run folder."""
    for path in map(Path, read):
        try:
            inside = [*path.iterdir()] if path.is_dir() else []
        except OSError:  # told where it is opened
            inside = []
        if any(_is_same(file, output) for file in (path, *inside)):
            what = "a file of the run" if inside else "the log itself"
            raise UsageError(f"{output} is {what}, which would be overwritten", f"give another file with {flag}")


def _is_same(file: Path, output: str) -> bool:
    try:
        return file.samefile(output)
    except (OSError, ValueError):  # one of them is not there
        return False


def typed(*names: str) -> str | None:
    """The first of these parameters that stood on the command line, as its flag is spelled there."""
    context = click.get_current_context()
    found = (n for n in names if context.get_parameter_source(n) is click.core.ParameterSource.COMMANDLINE)
    return next((name.replace("_", "-") for name in found), None)
