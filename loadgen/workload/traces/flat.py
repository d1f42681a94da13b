"""Formats in which a request is one record and its parts are columns: most of them, and what `--map` names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from .row import (
    MOST_TOKENS,
    UNITS,
    Dropped,
    Maker,
    RowFault,
    TraceRow,
    clock,
    hashes,
    name_or_none,
    request,
    stamp,
    tokens,
    tokens_or_none,
)
from .source import Source


@dataclass(frozen=True, slots=True)
class Layout:
    """A format, by the names of its columns; "" is one that it does not have. `needs` are (column, its value, why a row
    with another one is dropped)."""

    name: str
    input: str
    output: str = ""
    at: str = ""
    unit: str = "s"
    model: str = ""
    session: str = ""
    turn: str = ""
    hashes: str = ""
    block: int = 0
    delay_ms: str = ""
    needs: Sequence[tuple[str, str, str]] = field(default=())


CSV_LAYOUTS = (
    Layout("Azure LLM", "ContextTokens", "GeneratedTokens", "TIMESTAMP", "clock"),
    Layout("BurstGPT", "Request tokens", "Response tokens", "Timestamp", model="Model", session="Session ID"),
    Layout("Vidur", "num_prefill_tokens", "num_decode_tokens", "arrived_at"),
    Layout("lengths (Sarathi, Vidur)", "num_prefill_tokens", "num_decode_tokens"),
    Layout(
        "loadgen export",
        "input_tokens",
        "output_tokens",
        "start_ts",
        model="model",
        session="session",
        turn="turn",
        needs=(("outcome", "ok", "not ok"), ("phase", "measured", "not of the measured phase")),
    ),
    Layout("GuideLLM", "input_length", "output_length", "timestamp"),
    Layout("GuideLLM", "prompt_tokens_count", "output_tokens_count"),
)
JSON_LAYOUTS = (
    Layout("LLMServingSim", "input_toks", "output_toks", "arrival_time_ns", "ns"),
    Layout("GuideLLM", "prompt_tokens_count", "output_tokens_count"),
)
MOONCAKE = Layout(
    "Mooncake", "input_length", "output_length", "timestamp", "ms", hashes="hash_ids", block=512, session="session_id",
    delay_ms="delay",
)  # fmt: skip
GUIDELLM = Layout("GuideLLM", "input_length", "output_length", "timestamp", "s")
OFFLINE = Layout("ServeGen offline", "input_length", "output_length", hashes="hash_ids", block=16)


def rows_of_records(source: Source, make: Maker, dropped: Counter[str]) -> Iterator[TraceRow]:
    """The rows of JSON Lines. Raises UsageError with the line of one that cannot be."""
    for line, record in source.objects():
        try:
            yield make(record, line)
        except Dropped as why:
            dropped[str(why)] += 1
        except RowFault as fault:
            raise source.fault(line, str(fault)) from None


def maker(layout: Layout) -> Maker:
    """Records of a layout, one by one."""

    def make(record: Mapping[str, Any], line: int) -> TraceRow:
        for column, wanted, why in layout.needs:
            if record.get(column, "") not in ("", wanted):
                raise Dropped(why)
        inputs = tokens(record.get(layout.input), layout.input)
        at = record.get(layout.at) if layout.at else None
        delay = record.get(layout.delay_ms) if layout.delay_ms else None
        return request(
            TraceRow(
                None if (at is None and delay is not None) or not layout.at else stamp(at, layout.at, layout.unit),
                inputs,
                tokens_or_none(record.get(layout.output), layout.output) if layout.output else None,
                line,
                name_or_none(record.get(layout.model)) if layout.model else None,
                name_or_none(record.get(layout.session)) if layout.session else None,
                tokens_or_none(record.get(layout.turn), layout.turn) if layout.turn else None,
                hashes(record.get(layout.hashes), layout.hashes, inputs, layout.block) if layout.hashes else (),
                layout.block if layout.hashes else 0,
                delay_s=None if delay is None else stamp(delay, layout.delay_ms, "ms"),
            )
        )

    return make


def rows_of_cells(source: Source, layout: Layout, header: Sequence[str], dropped: Counter[str]) -> Iterator[TraceRow]:
    """The rows of a CSV below its header. A block is converted column by column; only one in which that fails is gone
    through row by row, to say which it is."""
    names = [name.strip() for name in header]
    place = {name: names.index(name) for name in names if name}  # pandas leaves its index column without one
    make, fast = maker(layout), _columns(layout, place)
    first = True
    for block in source.cells():
        if first:
            block, first = block[1:], False
        rows = fast(block)
        if rows is not None:
            yield from rows
            continue
        for line, cells in block:
            if len(cells) < len(names):
                short = f"it has {len(cells)} columns, the header {len(names)}"
                if all(place[one] < len(cells) for one in (layout.input, layout.output, layout.at) if one):
                    cells = cells + [""] * (len(names) - len(cells))
                else:
                    raise source.fault(line, short)
            try:
                yield make(dict(zip(names, cells, strict=False)), line)
            except Dropped as why:
                dropped[str(why)] += 1
            except RowFault as fault:
                raise source.fault(line, str(fault)) from None


Block = list[tuple[int, list[str]]]


def _columns(layout: Layout, place: Mapping[str, int]) -> Callable[[Block], Iterator[TraceRow] | None]:
    """What converts a block all at once, or is None where some row of it needs a closer look."""
    needs = [(place[column], wanted) for column, wanted, _ in layout.needs if column in place]
    optional = {column: place[column] for column in (layout.model, layout.session) if column in place}
    simple = not layout.hashes and not layout.delay_ms
    inputs_at, outputs_at, at = (place.get(name) for name in (layout.input, layout.output, layout.at))
    read_clock, factor = layout.unit == "clock", UNITS.get(layout.unit, 1.0)
    turns_at = place.get(layout.turn) if layout.turn else None

    def convert(block: Block) -> Iterator[TraceRow] | None:
        if not simple or inputs_at is None:
            return None
        cells = [row for _, row in block]
        n = len(cells)
        try:
            for column, wanted in needs:
                if any(row[column] not in ("", wanted) for row in cells):
                    return None
            numeric = [inputs_at, *([outputs_at] if outputs_at is not None else []), *([at] if at is not None else [])]
            if any("_" in row[i] for i in numeric for row in cells):  # 1_000 is a number to Python alone
                return None
            inputs = [int(row[inputs_at]) for row in cells]
            outputs: list[Any] = [None] * n if outputs_at is None else [int(row[outputs_at]) for row in cells]
            times: list[Any] = [None] * n
            if at is not None and read_clock:
                times = [clock(row[at], layout.at) for row in cells]
            elif at is not None:
                times = [float(row[at]) * factor for row in cells]
                if not -1e11 < min(times) <= max(times) < 1e11 or not sum(times) < 1e15:  # not of NaN either
                    return None
            if n and (min(inputs) < 1 or max(inputs) > MOST_TOKENS):
                return None
            if n and outputs_at is not None and (min(outputs) < 1 or max(outputs) > MOST_TOKENS):
                return None
            names = [[row[i] or None for row in cells] for i in optional.values()]
        except (ValueError, IndexError, RowFault, TypeError):
            return None
        if turns_at is not None and any(row[turns_at] for row in cells):
            return None
        by_name = dict(zip(optional, names, strict=True))
        empty = [None] * n
        return map(
            TraceRow,
            times,
            inputs,
            outputs,
            map(itemgetter(0), block),
            by_name.get(layout.model, empty),
            by_name.get(layout.session, empty),
        )

    return convert
