"""Formats that hold the text of the prompts: ShareGPT, vLLM's custom data set, AIPerf's turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .row import Dropped, RowFault, TraceRow, name_or_none, request, stamp, tokens_or_none
from .source import Source

CHARACTERS_PER_TOKEN = 4  # where nothing counts: of English text, about
Count = Callable[[str], int]


def estimated(text: str) -> int:
    """About how many tokens a text has."""
    return max(1, -(-len(text) // CHARACTERS_PER_TOKEN))


# --- ShareGPT -------------------------------------------------------------------------------------------------------

_USERS, _MODELS = {"human", "user"}, {"gpt", "assistant", "chatgpt", "bing", "bard"}


def sharegpt(
    source: Source, conversations: Iterator[tuple[int, Any]], dropped: Counter[str], count: Count
) -> Iterator[TraceRow]:
    """Every turn of a conversation is a row: the user's text, and the length of the answer that it got."""
    for line, one in conversations:
        try:
            yield from _conversation(one, line, dropped, count)
        except RowFault as fault:
            raise source.fault(line, str(fault)) from None


def _conversation(one: Any, line: int, dropped: Counter[str], count: Count) -> Iterator[TraceRow]:
    said = next((one[key] for key in ("conversations", "items") if key in one), None) if isinstance(one, dict) else None
    if not isinstance(said, list):
        raise RowFault("it is no conversation: it has neither conversations nor items, with a list")
    turn, question = 0, None
    for part in said:
        who = part.get("from", part.get("role")) if isinstance(part, dict) else None
        text = part.get("value", part.get("content")) if isinstance(part, dict) else None
        if not isinstance(who, str) or not isinstance(text, str):
            raise RowFault("a part of the conversation has no from with a value")
        if who in _USERS:
            question = text
        elif who in _MODELS and question is not None:
            turn += 1
            if question.strip() and text.strip():
                session = name_or_none(one.get("id")) or f"line {line}"
                yield TraceRow(None, count(question), count(text), line, session=session, turn=turn, text=question)
            else:
                dropped["an empty text"] += 1
            question = None
    if not turn:
        dropped["a conversation without a question and its answer"] += 1


# --- JSON Lines -----------------------------------------------------------------------------------------------------


def custom(count: Count) -> Callable[[Mapping[str, Any], int], TraceRow]:
    """vLLM's custom data set: a prompt a line, some with `output_tokens`."""

    def make(record: Mapping[str, Any], line: int) -> TraceRow:
        text = record.get("prompt")
        if not isinstance(text, str):
            raise RowFault("its prompt is not a text")
        if not text.strip():
            raise Dropped("an empty text")
        output = tokens_or_none(record.get("output_tokens"), "output_tokens")
        return request(TraceRow(None, count(text), output, line, text=text))

    return make


_MEDIA = ("image", "images", "audio", "audios", "video", "videos")


def aiperf_turn(count: Count) -> Callable[..., TraceRow]:
    """AIPerf's single turn: `text` or `texts`, with `timestamp` or `delay` in ms."""

    def make(record: Mapping[str, Any], line: int, session: str | None = None, turn: int | None = None) -> TraceRow:
        texts = record.get("texts", record.get("text", record.get("text_input")))
        parts = [texts] if isinstance(texts, str) else texts
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            if any(key in record for key in _MEDIA):
                raise Dropped("without a text (only images, audio or video)")
            raise RowFault("it has neither text nor texts")
        text = "\n".join(parts)
        if not text.strip():
            raise Dropped("an empty text")
        at, delay = record.get("timestamp"), record.get("delay")
        return request(
            TraceRow(
                None if at is None else stamp(at, "timestamp", "ms"),
                count(text),
                tokens_or_none(record.get("output_length"), "output_length"),
                line,
                name_or_none(record.get("model")),
                session if session is not None else name_or_none(record.get("session_id")),
                turn,
                text=text,
                delay_s=None if delay is None else stamp(delay, "delay", "ms"),
            )
        )

    return make


def aiperf_turns(source: Source, dropped: Counter[str], count: Count) -> Iterator[TraceRow]:
    """AIPerf's multi-turn lines: a session and its turns, of which lines with one session_id are joined."""
    make = aiperf_turn(count)
    turns: Counter[str] = Counter()
    for line, record in source.objects():
        parts = record.get("turns")
        session = name_or_none(record.get("session_id")) or f"line {line}"
        if not isinstance(parts, list):
            raise source.fault(line, "its turns are not a list")
        for part in parts:
            turns[session] += 1
            try:
                if not isinstance(part, dict):
                    raise RowFault("one of its turns is not an object")
                yield make(part, line, session, turns[session])
            except Dropped as why:
                dropped[str(why)] += 1
            except RowFault as fault:
                raise source.fault(line, str(fault)) from None
