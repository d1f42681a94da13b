"""Formats whose rows say which conversation they go on: Qwen-Bailian and RAGPulse. Agent sessions: WEKA's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .row import Dropped, RowFault, TraceRow, hashes, name_or_none, request, stamp, tokens, tokens_or_none
from .source import Source

BAILIAN_BLOCK = 16
CHATS = 1_000_000  # of those that a later row may go on from, the latest are kept
_RAGPULSE = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")


def bailian() -> Callable[[Mapping[str, Any], int], TraceRow]:
    """Rows are joined by `parent_chat_id`: a session is named for the chat it began with. Times are in seconds."""
    roots: dict[str, str] = {}

    def make(record: Mapping[str, Any], line: int) -> TraceRow:
        chat, parent = name_or_none(record.get("chat_id")), name_or_none(record.get("parent_chat_id"))
        root = roots.get(parent, parent) if parent not in (None, "-1") else chat
        if chat is not None and root is not None:
            roots[chat] = root
            if len(roots) > CHATS:
                del roots[next(iter(roots))]
        inputs = tokens(record.get("input_length"), "input_length")
        return request(
            TraceRow(
                stamp(record.get("timestamp"), "timestamp", "s"),
                inputs,
                tokens(record.get("output_length"), "output_length"),
                line,
                session=root,
                turn=tokens_or_none(record.get("turn"), "turn"),
                hash_ids=hashes(record.get("hash_ids"), "hash_ids", inputs, BAILIAN_BLOCK),
                block_tokens=BAILIAN_BLOCK,
            )
        )

    return make


def ragpulse(record: Mapping[str, Any], line: int) -> TraceRow:
    """`hash_ids` is an object of lists; its ids name parts of lengths that stand in other files, so that they are names
    of equal text here, of no known number of tokens."""
    parts = record.get("hash_ids")
    if not isinstance(parts, dict):
        raise RowFault("its hash_ids are not an object")
    ids: list[int | str] = []
    for part in _RAGPULSE:
        found = parts.get(part) or []
        ids += [f"{part} {one}" for one in (found if isinstance(found, list) else [found])]
    return request(
        TraceRow(
            stamp(record.get("timestamp"), "timestamp", "s"),
            tokens(record.get("input_length"), "input_length"),
            tokens(record.get("output_length"), "output_length"),
            line,
            session=name_or_none(record.get("session_id")),
            hash_ids=ids,
        )
    )


def weka(source: Source, dropped: Counter[str]) -> Iterator[TraceRow]:
    """An agent's session, one object a file: `t` in seconds from its start; the requests of sub-agents, whose times
    count from theirs, are sessions of their own."""
    for line, one in source.document():
        if not isinstance(one, dict) or not isinstance(one.get("requests"), list):
            raise source.fault(line, "it is no agent session: it has no requests")
        try:
            block = tokens_or_none(one.get("block_size"), "block_size") or 64
            yield from _session(one["requests"], name_or_none(one.get("id")) or f"line {line}", block, line, dropped)
        except RowFault as fault:
            raise source.fault(line, str(fault)) from None


def _session(requests: list[Any], session: str, block: int, line: int, dropped: Counter[str]) -> Iterator[TraceRow]:
    turn = 0
    todo = [(session, 0.0, iter(requests))]
    turns: Counter[str] = Counter()
    while todo:
        name, start, rest = todo[-1]
        one = next(rest, None)
        if one is None:
            todo.pop()
            continue
        if not isinstance(one, dict):
            raise RowFault("one of its requests is not an object")
        at = start + stamp(one.get("t"), "t", "s")
        if one.get("type") == "subagent":
            inner = one.get("requests") or []
            if not isinstance(inner, list):
                raise RowFault("the requests of a sub-agent are not a list")
            todo.append((f"{name}/{name_or_none(one.get('agent_id')) or len(turns)}", at, iter(inner)))
            continue
        turns[name] += 1
        turn = turns[name]
        inputs = tokens(one.get("in"), "in")
        try:
            yield request(
                TraceRow(
                    at,
                    inputs,
                    tokens(one.get("out"), "out"),
                    line,
                    name_or_none(one.get("model")),
                    name,
                    turn,
                    hashes(one.get("hash_ids"), "hash_ids", None, block),
                    block,
                )
            )
        except Dropped as why:
            dropped[str(why)] += 1


# --- our own log ----------------------------------------------------------------------------------------------------


def own(record: Mapping[str, Any], line: int) -> TraceRow:
    """A line of a run's requests.jsonl: when it was due (of a closed loop: sent), the lengths that were asked for or,
    where none was, those that were counted. Times in ns."""
    if record.get("kind", "request") != "request":
        raise Dropped("not a request")
    if record.get("phase") == "preflight":
        raise Dropped("of the preflight")
    inputs, outputs = record.get("input_tokens"), record.get("output_tokens")
    if not isinstance(inputs, dict) or not isinstance(outputs, dict):
        raise RowFault("it is no line of a request log: its input_tokens and output_tokens are not objects")
    name = record.get("id")
    step, _, number = (name if isinstance(name, str) else "").removeprefix("s").partition("-")
    session = name_or_none(record.get("session"))
    if session is not None:  # its number is that of its first turn in the stream, and begins anew with each step
        number, session = session, f"{step}-{session}"
    place = (int(step), int(number)) if step.isdecimal() and number.isdecimal() and len(name or "") < 40 else None
    found_in = next((inputs[key] for key in ("asked", "server", "local") if inputs.get(key) is not None), None)
    found_out = next((outputs[key] for key in ("asked", "count") if outputs.get(key) is not None), None)
    return TraceRow(
        stamp(record.get("scheduled_ns"), "scheduled_ns", "ns"),
        tokens_or_none(found_in, "input_tokens"),
        tokens_or_none(found_out, "output_tokens") or None,
        line,
        name_or_none(record.get("model")),
        session=session,
        turn=tokens_or_none(record.get("turn"), "turn"),
        place=place,
    )
