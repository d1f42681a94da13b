"""Reads the answers of servers that speak the OpenAI formats. Pure; any JSON is taken, of whatever shape.

Output is what the definition of the first token says: text that is not empty, in content, reasoning, a refusal or a
tool call's name or arguments, of any choice. One space is output; null and "" are none. Chat deltas, text completions
and whole messages differ only in where that text stands, so one reader serves them all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from ...errors import Failure
from ..sse import SSEEvent
from .base import CallPart, MalformedEvent, Piece, Usage

MESSAGE_CHARS = 2000  # of a server's error message
_REASONING_PARTS = frozenset({"thinking", "reasoning", "reasoning_text", "summary_text"})
# What there may be beside a message where an object is nothing but a refusal.
_REFUSAL = frozenset({"message", "error_msg", "code", "success", "request_id", "requestId", "path", "timestamp"})
_ABORTED = frozenset({"error", "abort"})  # finish reasons that say the server gave up


def read_event(event: SSEEvent) -> Piece:
    """What an event carries. Raises `MalformedEvent` where its data is not JSON."""
    data = event.data.strip()
    if event.name == "error":
        return Piece(error=_error_event(data))
    if data == b"[DONE]":
        return Piece(done=True)
    if not data:
        return Piece(ignored=True)
    return _read(parse_json(data))


def read_payload(payload: bytes) -> Piece:
    """What a whole JSON answer carries. Raises `MalformedEvent` where it is not JSON."""
    return _read(parse_json(payload))


def parse_json(data: bytes) -> Any:
    """JSON, taken generously: NaN and infinities (log-probabilities), lone surrogates and broken UTF-8 do not spoil it.

    Raises `MalformedEvent`.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise MalformedEvent(f"not JSON: {error}") from None


def _read(value: Any) -> Piece:
    if not isinstance(value, dict):
        return Piece(ignored=True)
    piece = Piece(server_id=as_text(value.get("id")) or None)
    choices = value.get("choices")
    usage = read_usage(value.get("usage"))
    if usage is None and isinstance(value.get("x_groq"), dict):
        usage = read_usage(value["x_groq"].get("usage"))
    known = usage is not None or (choices is None and "choices" in value)
    if isinstance(choices, list):
        known = known or not choices
        indices: list[int] = []
        finished: list[int] = []
        for place, choice in enumerate(choices):
            if isinstance(choice, dict):
                known = True
                index = as_count(choice.get("index"))
                index = place if index is None else index
                indices.append(index)
                reason = _finish_reason(choice)
                usage = _read_choice(choice, index, reason, piece) or usage
                if reason:
                    finished.append(index)
        piece.choices = tuple(indices)
        piece.finished = tuple(finished)
    piece.usage = usage
    piece.error = _error(value, known) or piece.error
    if piece.error is None and piece.finish_reason in _ABORTED:
        piece.error = Failure("server", f"the server ended the answer with finish_reason {piece.finish_reason!r}")
    piece.ignored = (piece.ignored or not known) and piece.error is None
    return piece


def _read_choice(choice: dict[str, Any], index: int, reason: str | None, piece: Piece) -> Usage | None:
    """Adds one choice to `piece`; the usage that some servers keep inside of it."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        piece.ignored |= delta is not None
        delta = choice.get("message")
    if not isinstance(delta, dict):
        delta = {}
    plain = choice.get("text")
    if not (delta and read_delta(delta, index, piece)) and isinstance(plain, str) and plain:
        piece.has_output = piece.has_content = True
        piece.text += plain
    ids = choice.get("token_ids")
    if ids is None:
        ids = delta.get("token_ids")
    if isinstance(ids, list):
        piece.token_ids = (piece.token_ids or 0) + len(ids)
    piece.finish_reason = piece.finish_reason or reason
    error = choice.get("error")
    if isinstance(error, dict | str) and error:
        piece.error = failure_of(error, choice)
    if "usage" not in choice and "usage" not in delta:  # nearly always
        return None
    return read_usage(choice.get("usage")) or read_usage(delta.get("usage"))


def read_delta(delta: Mapping[str, Any], choice: int, piece: Piece) -> bool:
    """Adds what a delta or message says to `piece`; whether it said anything."""
    spoken = False
    for content, text in _output(delta, piece):
        spoken = True
        piece.has_content |= content
        piece.text += text
    calls = tuple(_calls(delta, choice)) if "tool_calls" in delta or "function_call" in delta else ()
    if calls:
        spoken = piece.has_content = True
        piece.calls += calls
    piece.has_output |= spoken
    return spoken


def _output(delta: Mapping[str, Any], piece: Piece) -> Iterator[tuple[bool, str]]:
    """(is it content, not reasoning?; text) for each output of a delta or message; what is neither text nor parts is
    noted as ignored."""
    for key in ("reasoning_content", "reasoning"):
        if value := delta.get(key):
            if isinstance(value, str):
                yield False, value
            else:
                yield from _odd_texts(value, False, piece)
            break  # the same text under both names, for old clients and new
    for key in ("content", "text", "refusal"):
        if value := delta.get(key):
            if isinstance(value, str):
                yield True, value
            else:
                yield from _odd_texts(value, True, piece)


def _odd_texts(value: Any, content: bool, piece: Piece) -> Iterator[tuple[bool, str]]:
    """Parts, or one part."""
    if isinstance(value, list | dict):
        yield from parts_of(value if isinstance(value, list) else [value], content)
    else:
        piece.ignored = True


def _calls(delta: Mapping[str, Any], choice: int) -> Iterator[CallPart]:
    """What a delta or message adds to its tool calls. A call without an index is known by its place; the one of the
    old `function_call` has no others beside it."""
    calls = delta.get("tool_calls")
    for place, call in enumerate(calls if isinstance(calls, list) else ()):
        if isinstance(call, dict):
            index = as_count(call.get("index"))
            part = call_part(choice, place if index is None else index, call.get("function", call.get("custom")))
            if part is not None:
                yield part
    part = call_part(choice, 0, delta.get("function_call"))
    if part is not None:
        yield part


def call_part(choice: int, index: int, function: Any) -> CallPart | None:
    """The name and arguments (or `input`) that an object holds; None where both are missing or empty."""
    if not isinstance(function, dict):
        return None
    name, arguments, given = (
        value if isinstance(value, str) else compact(value) if isinstance(value, dict) and value else ""
        for value in map(function.get, ("name", "arguments", "input"))
    )
    return CallPart(choice, index, name, arguments + given) if name or arguments or given else None


def parts_of(parts: list[Any], content: bool = True, depth: int = 3) -> Iterator[tuple[bool, str]]:
    """Content given as a list of parts, thoughts among them."""
    for part in parts:
        if isinstance(part, str) and part:
            yield content, part
        elif isinstance(part, dict):
            own = content and part.get("type") not in _REASONING_PARTS
            for key in ("text", "thinking", "refusal"):
                value = part.get(key)
                if isinstance(value, str) and value:
                    yield own, value
                elif isinstance(value, list) and depth:
                    yield from parts_of(value, own, depth - 1)


def _finish_reason(choice: dict[str, Any]) -> str | None:
    reason = choice.get("finish_reason")
    if isinstance(reason, dict):
        reason = reason.get("type")
    return as_text(reason) or None


def read_usage(value: Any) -> Usage | None:
    """Token counts under either pair of names; None where there are none."""
    if not isinstance(value, dict):
        return None
    prompt = _first_count(value, "prompt_tokens", "input_tokens")
    completion = _first_count(value, "completion_tokens", "output_tokens")
    if prompt is None and completion is None:
        return None
    cached = _first_count(value, "prompt_cache_hit_tokens")
    for key in ("prompt_tokens_details", "input_tokens_details"):
        details = value.get(key)
        if cached is None and isinstance(details, dict):
            cached = _first_count(details, "cached_tokens")
    return Usage(prompt, completion, cached)


def _error(value: dict[str, Any], known: bool) -> Failure | None:
    """The error that a JSON object is or holds. Without an `error` key, an object that carries an answer is none."""
    error = value.get("error")
    if error:
        return failure_of(error, value)
    if value.get("object") == "error" or value.get("type") == "error":
        return failure_of(value, value)
    if known:
        return None
    if value.get("detail"):  # FastAPI's own
        return failure_of(value["detail"], value)
    errors = value.get("errors")
    if isinstance(errors, list) and errors:
        return failure_of(errors[0], value)
    if not (as_text(value.get("message")) or as_text(value.get("error_msg"))):
        return None
    status = _first_count(value, "status_code", "status", "code", "error_code")
    failed = as_text(value.get("status")).lower() in ("error", "failed", "failure")
    if status is None:
        refused = failed or value.keys() <= _REFUSAL
    else:  # an error_code has numbers of its own, and 0 for none
        refused = status >= 400 or (status > 0 and "error_code" in value)
    return failure_of(value, value) if refused else None


def _error_event(data: bytes) -> Failure:
    """An event that is named an error is one, whatever it holds."""
    try:
        value = parse_json(data)
    except MalformedEvent:
        value = data.decode("utf-8", "replace")
    if isinstance(value, dict):
        return _error(value, known=False) or failure_of(value, value)
    return failure_of(value, {})


def failure_of(error: Any, around: Mapping[str, Any]) -> Failure:
    """`error` is an object or the message itself; a code that it does not hold is looked for `around` it."""
    message = ""
    code: int | str | None = None
    if isinstance(error, dict):
        message = next(
            (text for key in ("message", "detail", "msg", "error_msg") if (text := as_text(error.get(key)))), ""
        )
        code = _code(error)
    elif isinstance(error, str):
        message = error
    if code is None:
        code = _code(around)
    message = message or (compact(error) if error else "the server sent an error without a message")
    return Failure("server", message[:MESSAGE_CHARS], code)


def _code(value: Mapping[str, Any]) -> int | str | None:
    for key in ("code", "error_code", "status_code", "status", "error_type", "type"):
        code = value.get(key)
        if isinstance(code, int) and not isinstance(code, bool):
            return code
        if isinstance(code, str) and code and code != "error":
            return code
    return None


def _first_count(value: Mapping[str, Any], *keys: str) -> int | None:
    return next((count for key in keys if (count := as_count(value.get(key))) is not None), None)


def as_count(value: Any) -> int | None:
    """A number that can be a count of tokens, also where a server writes 8.0."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def compact(value: Any) -> str:
    """A value as JSON, for people to read."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return repr(type(value))
