"""A trace by its path: which format it is, told by its content, and its rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from ...errors import UsageError
from ..paths import asked
from . import chains, servegen, texts
from .flat import CSV_LAYOUTS, GUIDELLM, JSON_LAYOUTS, MOONCAKE, OFFLINE, Layout, maker, rows_of_cells, rows_of_records
from .row import MAP_REMEDY, Maker, Mapped, TraceRow
from .source import GIVE, Source

HEAD = 20  # records looked at to tell a format
_WORDS = {"clock": "wall clock", "s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_SERVEGEN = re.compile(rb"[0-9.]+,[0-9.eE+-]+,[0-9.eE+-]*,(Gamma|Weibull)?,[0-9.eE+-]*,[0-9.eE+-]*")


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace whose format is known. `rows` reads it anew, in the file's order, and counts by reason what it drops;
    it raises UsageError, with the line, for a row that cannot be. `unit` is that of its times, "" without any.
    `block_tokens` above 0: rows name the blocks of their prompts. `estimated` lengths are by the characters of a
    text. `delays`: rows of a session may have a delay in place of a time. `history`: rows of a session stand together,
    and each is to be sent with what was said before."""

    path: Path
    format: str
    unit: str
    rows: Callable[[Counter[str]], Iterator[TraceRow]]
    block_tokens: int = 0
    estimated: bool = False
    notes: tuple[str, ...] = ()
    delays: bool = False
    history: bool = False

    @property
    def timed(self) -> bool:
        return bool(self.unit)


def open_trace(
    path: str | Path, mapped: Mapped | None = None, *, seed: int = 0, count: Callable[[str], int] | None = None
) -> Trace:
    """The trace at `path`. `count` says how many tokens a text has; without it they are estimated. `seed` is for
    formats whose requests are drawn. Raises UsageError where it is none that is known."""
    path, mapped = asked(Path(path), "trace", GIVE), mapped or Mapped()
    if path.is_dir():
        return _folder(path, seed)
    source = Source(path)
    start = source.start()
    if start[:1] == b"[":
        return _array(source, count)
    if start[:1] == b"{":
        return _lines(source, mapped, count)
    return _table(source, mapped, seed)


def _folder(path: Path, seed: int) -> Trace:
    found = servegen.clients(path)
    if not found:
        raise UsageError(f"{path} is a folder, but no client of ServeGen (chunk-N-trace.csv)", "give one file of it")
    return _drawn(path, found, seed)


def _drawn(path: Path, clients: list[Path], seed: int) -> Trace:
    note = f"{len(clients):,} client{'s' if len(clients) > 1 else ''} of ServeGen: requests are drawn, by the seed"
    return Trace(path, "ServeGen", "seconds", lambda dropped: servegen.rows(clients, seed, dropped), notes=(note,))


def _array(source: Source, count: Callable[[str], int] | None) -> Trace:
    _, first = next(source.document(), (0, None))
    if isinstance(first, dict) and ("conversations" in first or "items" in first):
        found = _text(source, "ShareGPT", lambda d, c: texts.sharegpt(source, source.document(), d, c), count)
        return replace(found, history=True)
    if isinstance(first, dict) and "requests" in first:
        return _weka(source)
    raise UsageError(f"{source.path} is a JSON array of no known trace", "write its rows as lines: jq -c '.[]'")


def _weka(source: Source) -> Trace:
    return Trace(source.path, "WEKA agent session", "seconds", lambda dropped: chains.weka(source, dropped), 64)


def _lines(source: Source, mapped: Mapped, count: Callable[[str], int] | None) -> Trace:
    head: list[dict[str, Any]] = []
    number, line = next(source.lines())
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError as error:
        first = _document(source)
        if isinstance(first, dict) and "requests" in first:
            return _weka(source)
        raise source.fault(number, f"it is not JSON ({error.msg})") from None
    try:
        head += (record for _, record in islice(source.objects(), HEAD))
    except UsageError:  # is told when it is read
        head += (record for _, record in islice(source.objects(), 1))
    keys = set().union(*head)
    if mapped.columns:
        return _flat(source, _mapped(mapped, keys, source), mapped)
    if isinstance(head[0].get("requests"), list):
        return _weka(source)
    if "turns" in keys:
        timed = any("timestamp" in part for one in head for part in _parts(one))
        found = _text(
            source, "AIPerf", lambda d, c: texts.aiperf_turns(source, d, c), count, "milliseconds" if timed else ""
        )
        return replace(found, delays=True, history=True)
    if {"chat_id", "parent_chat_id"} <= keys:
        return _records(source, "Qwen-Bailian", "seconds", chains.bailian, chains.BAILIAN_BLOCK)
    if isinstance(head[0].get("hash_ids"), dict):
        return _records(source, "RAGPulse", "seconds", lambda: chains.ragpulse)
    if "scheduled_ns" in keys or head[0].get("kind") == "manifest":
        return _records(source, "loadgen", "nanoseconds", lambda: chains.own)
    if "input_length" in keys and not keys & {"text", "texts", "text_input"}:
        return _flat(source, _by_length(source, keys, mapped), mapped)
    layout = next((one for one in JSON_LAYOUTS if {one.input, one.output} <= keys), None)
    if layout is not None:
        return _flat(source, layout if layout.at in keys else replace(layout, at=""), mapped)
    if keys & {"text", "texts", "text_input"}:
        unit = "milliseconds" if "timestamp" in keys else ""

        def turns(dropped: Counter[str], c: texts.Count) -> Iterator[TraceRow]:
            return rows_of_records(source, texts.aiperf_turn(c), dropped)

        return replace(_text(source, "AIPerf", turns, count, unit), delays=True)
    if "conversations" in keys:
        found = _text(source, "ShareGPT", lambda d, c: texts.sharegpt(source, source.objects(), d, c), count)
        return replace(found, history=True)
    if isinstance(head[0].get("prompt"), str):
        return _text(source, "vLLM custom", lambda d, c: rows_of_records(source, texts.custom(c), d), count)
    if "messages" in keys or "body" in keys:
        raise UsageError(f"{source.path} holds request bodies, and no times or lengths", "send them with --prompts")
    raise UsageError(
        f"{source.path} has the keys {', '.join(sorted(keys))[:200]}, which are no known trace's", MAP_REMEDY
    )


def _parts(record: dict[str, Any]) -> list[dict[str, Any]]:
    turns = record.get("turns")
    return [part for part in turns if isinstance(part, dict)] if isinstance(turns, list) else []


def _document(source: Source) -> Any:
    try:
        return next(source.document(), (0, None))[1]
    except UsageError:
        return None


def _by_length(source: Source, keys: set[str], mapped: Mapped) -> Layout:
    """Several formats say input_length; some of them count time in seconds."""
    if "timestamp" not in keys:
        return OFFLINE if "request_id" in keys else replace(OFFLINE, name="lengths")
    if "duration" in keys and "hash_ids" not in keys:
        return GUIDELLM
    if keys & {"hash_ids", "session_id", "delay"} or mapped.unit:
        return MOONCAKE
    raise UsageError(
        f"{source.path} has timestamps that may be milliseconds (Mooncake, AIPerf) or seconds (GuideLLM)",
        "add --map unit=ms, or --map unit=s",
    )


def _table(source: Source, mapped: Mapped, seed: int) -> Trace:
    first = next(source.cells(), None)
    if not first:
        raise UsageError(f"{source.path} is empty", GIVE)
    _, header = first[0]
    names = [name.strip() for name in header]
    if mapped.columns:
        return _csv(source, _mapped(mapped, set(names), source), names, mapped)
    _, line = next(source.lines())
    if _SERVEGEN.fullmatch(line.strip()):
        if not servegen.NAME.fullmatch(source.path.name):
            raise UsageError(
                f"{source.path} is a rate curve of ServeGen, whose lengths are found by its name",
                "keep the names chunk-N-trace.csv and chunk-N-dataset.json",
            )
        return _drawn(source.path, [source.path], seed)
    layout = next((one for one in CSV_LAYOUTS if {one.input, one.output, one.at} - {""} <= set(names)), None)
    if layout is None:
        shown = ", ".join(names)[:200]
        raise UsageError(f"{source.path} begins with {shown!r}, which is no known trace's header", MAP_REMEDY)
    if layout.at == "start_ts" and "scheduled_ts" in names:
        layout = replace(layout, at="scheduled_ts")
    return _csv(source, layout, names, mapped)


def _mapped(mapped: Mapped, names: set[str], source: Source) -> Layout:
    wanted = (mapped.at, mapped.input, mapped.output, mapped.model, mapped.session, mapped.turn, mapped.hashes)
    missing = [name for name in wanted if name and name not in names]
    if missing:
        raise UsageError(
            f"{source.path} has no {missing[0]!r}; its columns are {', '.join(sorted(names))[:200]}", MAP_REMEDY
        )
    return Layout(
        "mapped", mapped.input, mapped.output, mapped.at, "s", mapped.model, mapped.session, mapped.turn, mapped.hashes
    )


def _set(layout: Layout, mapped: Mapped) -> Layout:
    return replace(layout, unit=mapped.unit or layout.unit, block=mapped.block or layout.block)


def _csv(source: Source, layout: Layout, names: Sequence[str], mapped: Mapped) -> Trace:
    twice = next((n for n in (layout.input, layout.output, layout.at) if n and names.count(n) > 1), None)
    if twice:
        raise UsageError(f"{source.path} has the column {twice} twice", "keep one of them")
    layout = _set(layout, mapped)
    notes = ("the images of its requests are not sent",) if "NumImages" in names else ()
    unit = _WORDS[layout.unit] if layout.at else ""
    return Trace(
        source.path, layout.name, unit, lambda dropped: rows_of_cells(source, layout, names, dropped), notes=notes
    )


def _flat(source: Source, layout: Layout, mapped: Mapped) -> Trace:
    layout = _set(layout, mapped)
    unit = _WORDS[layout.unit] if layout.at else ""
    found = _records(source, layout.name, unit, lambda: maker(layout), layout.block if layout.hashes else 0)
    return replace(found, delays=bool(layout.delay_ms))


def _records(source: Source, name: str, unit: str, make: Callable[[], Maker], block: int = 0) -> Trace:
    return Trace(source.path, name, unit, lambda dropped: rows_of_records(source, make(), dropped), block)


def _text(
    source: Source,
    name: str,
    rows: Callable[[Counter[str], texts.Count], Iterator[TraceRow]],
    count: Callable[[str], int] | None,
    unit: str = "",
) -> Trace:
    note = f"lengths of its texts are estimated at {texts.CHARACTERS_PER_TOKEN} characters a token; --tokenizer counts"
    counted = count or texts.estimated
    return Trace(
        source.path, name, unit, lambda dropped: rows(dropped, counted),
        estimated=count is None, notes=() if count is not None else (note,),
    )  # fmt: skip
