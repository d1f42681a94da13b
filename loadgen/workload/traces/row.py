"""The row that every trace reader makes, and how its parts are read from what a file holds. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, NoReturn

from ...errors import UsageError

MOST_TOKENS = 100_000_000  # of one request; above it the column is not one of tokens
LONGEST_S = 1e11  # 3,000 years: above it a stamp is not in the unit taken for it
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
MAP_REMEDY = (
    "write --map at=COLUMN,input=COLUMN,output=COLUMN, with unit=s|ms|us|ns|clock, model=, session=, turn=, hashes= and"
    " block=TOKENS where there are such"
)


class TraceRow(NamedTuple):
    """One request of a trace; None is not told.

    `at_s` are seconds on the trace's own clock. `hash_ids` name its prompt's blocks of `block_tokens` tokens each, the
    last one in part: equal ids are equal text. `text` is the prompt itself, where the trace has it. `delay_s` is the
    wait after the session's turn before. `place` is (step, number) of a request of our own log, or of its conversation.
    `line` is where it stands in the file, from 1. `rest` are rows of its session that follow it, one after the other.
    """

    at_s: float | None
    input_tokens: int | None
    output_tokens: int | None
    line: int = 0
    model: str | None = None
    session: str | None = None
    turn: int | None = None
    hash_ids: Sequence[int | str] = ()
    block_tokens: int = 0
    text: str | None = None
    delay_s: float | None = None
    place: tuple[int, int] | None = None
    rest: Sequence[TraceRow] = ()


class RowFault(Exception):  # noqa: N818 - what is wrong with a row, without which row it is
    pass


class Dropped(Exception):  # noqa: N818 - a row that is well-formed and still no request to send; says why
    pass


@dataclass(frozen=True, slots=True)
class Mapped:
    """`--map`: the columns of any CSV or JSON Lines. With `unit` or `block` alone, a known format is read so."""

    at: str = ""
    input: str = ""
    output: str = ""
    model: str = ""
    session: str = ""
    turn: str = ""
    hashes: str = ""
    unit: str = ""
    block: int = 0

    @property
    def columns(self) -> bool:
        return bool(self.input or self.at or self.output)


def parse_map(text: str) -> Mapped:
    """`at=col,input=col,output=col[,unit=ms]…`. Raises UsageError."""
    found: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or key not in Mapped.__dataclass_fields__:
            raise UsageError(f"--map has {part.strip()[:60]!r}, which maps nothing known", MAP_REMEDY)
        if key in found:
            raise UsageError(f"--map names {key} twice", MAP_REMEDY)
        found[key] = value
    if "unit" in found and found["unit"] not in (*UNITS, "clock"):
        raise UsageError(f"--map has the unit {found['unit'][:20]!r}", MAP_REMEDY)
    if "block" in found:
        if not re.fullmatch(r"[1-9][0-9]{0,6}", found["block"]):
            raise UsageError(f"--map has the block {found['block'][:20]!r}, not a number of tokens", MAP_REMEDY)
        found["block"] = int(found["block"])
    mapped = Mapped(**found)
    if mapped.columns and not mapped.input:
        raise UsageError("--map names no column of input tokens", MAP_REMEDY)
    return mapped


# --- the parts of a row ---------------------------------------------------------------------------------------------


def tokens(value: Any, name: str) -> int:
    """A number of tokens; 80 and "80" and 80.0 (as pandas writes a column with holes). Raises RowFault."""
    if type(value) is int and 0 <= value <= MOST_TOKENS:
        return value
    number = _number(value, name)
    if number < 0:
        raise RowFault(f"{name} is {_shown(value)}, below zero")
    if number > MOST_TOKENS:
        raise RowFault(f"{name} is {_shown(value)}: no request has so many tokens")
    if number != int(number):
        raise RowFault(f"{name} is {_shown(value)}, not a whole number of tokens")
    return int(number)


def tokens_or_none(value: Any, name: str) -> int | None:
    return None if value is None or value == "" else tokens(value, name)


def stamp(value: Any, name: str, unit: str) -> float:
    """A time in seconds, of a number in `unit` or, of the unit clock, an ISO 8601 date and time. Raises RowFault."""
    if unit == "clock":
        return clock(value, name)
    seconds = _number(value, name) * UNITS[unit]
    if abs(seconds) > LONGEST_S:
        raise RowFault(f"{name} is {_shown(value)}, which is out of range for a time in {unit}")
    return seconds


def clock(value: Any, name: str) -> float:
    """Seconds since 1970 of `2023-11-16 18:17:03.9799600`, `…+00:00` or `…Z`: digits below 1 µs are left out."""
    try:
        at = datetime.fromisoformat(value)
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        raise RowFault(f"{name} is {_shown(value)}, not a date and time as in 2024-05-10 00:00:00.009") from None


def _number(value: Any, name: str) -> float:
    if type(value) is int:
        if abs(value) >= 1 << 80:
            raise RowFault(f"{name} is {_shown(value)}, which is out of range")
        return value
    if isinstance(value, str) and len(value) <= 40 and "_" not in value:
        try:
            value = float(value)
        except ValueError:
            _no_number(value, name)
    if type(value) is not float:
        _no_number(value, name)
    if not math.isfinite(value):
        raise RowFault(f"{name} is {_shown(value)}, not a finite number")
    return float(value)


def _no_number(value: Any, name: str) -> NoReturn:
    if value is None or value == "":
        raise RowFault(f"{name} is missing")
    hint = " (decimal comma? use a point)" if isinstance(value, str) and re.fullmatch(r"-?\d+,\d+", value) else ""
    raise RowFault(f"{name} is {_shown(value)}, not a number{hint}")


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 80:
        return "a number of many digits"
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def name_or_none(value: Any) -> str | None:
    """A model's or a session's name, which some files write as a number; None where there is none."""
    if value is None or value == "" or isinstance(value, dict | list | bool):
        return None
    return str(value)


_IDS = frozenset((int, str))


def hashes(value: Any, name: str, input_tokens: int | None, block: int) -> Sequence[int | str]:
    """The ids of a prompt's blocks. Raises RowFault where they do not cover the input, or cover far more than it."""
    if value is None:
        return ()
    if not isinstance(value, list) or not _IDS.issuperset(map(type, value)):
        raise RowFault(f"{name} is {_shown(value)}, not a list of block ids")
    if block and value and input_tokens is not None:
        needed = -(-input_tokens // block)
        if len(value) < needed:
            raise RowFault(
                f"{len(value):,} {name} of {block} tokens a block cannot cover its input of {input_tokens:,} tokens"
            )
        if len(value) > needed + 1:
            raise RowFault(
                f"{len(value):,} {name} are too many for an input of {input_tokens:,} tokens in blocks of {block}"
                f" (blocks of {max(1, -(-input_tokens // len(value)))}?)"
            )
    return value


def request(row: TraceRow) -> TraceRow:
    """The row, if it is one to send. Raises Dropped."""
    if row.output_tokens == 0:
        raise Dropped("no output")
    if row.input_tokens == 0:
        raise Dropped("no input")
    return row


Maker = Callable[[Any, int], TraceRow]  # (a record of the file, its line) → its row; raises RowFault or Dropped
