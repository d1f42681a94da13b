"""The Responses API: `POST …/responses`.

Every event names its type. One whose type ends in `delta` brings output, of reasoning where the type says so; the name
of a tool comes with the item that opens its call. What `….done` and the last event repeat is not output once more. The
last one, `response.completed`, `.incomplete` or `.failed`, holds the counts and ends the stream: there is no [DONE].
"""

from __future__ import annotations

from typing import Any

from ...records import Prompt
from ..sse import SSEEvent
from .base import (
    LENGTH_KEYS,
    CallPart,
    Piece,
    RequestOptions,
    asked_length,
    forced,
    messages,
    sampling,
    with_extra,
    with_model,
)
from .reading import as_count, as_text, call_part, failure_of, parse_json, parts_of, read_event, read_usage

_LENGTH = "max_output_tokens"
_ENDED = {"max_output_tokens": "length", "max_tokens": "length"}  # why an answer is incomplete, in the others' words
_FINAL = frozenset({"completed", "incomplete", "failed", "cancelled"})
_SILENT = frozenset({"keepalive", "ping"})


class ResponsesDialect:
    """A prompt is the input text. Nothing is to be kept by the server: `store` is false unless the user says else."""

    name = "responses"
    path = "/responses"
    at_root = False
    media = "text/event-stream"
    names_model = True
    whole = True

    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        own = {"input": messages(prompt) if prompt.history else prompt.text}
        body = with_model(own if prompt.body is None else _translated(prompt.body), options, prompt.model)
        length = asked_length(prompt)
        if length is not None:
            body[_LENGTH] = length
            if options.force_length:
                body.update(forced(length))
        body.setdefault("store", False)
        return with_extra({**body, **sampling(options), "stream": options.stream}, options)

    def read(self, event: SSEEvent) -> Piece:
        data = event.data.strip()
        if event.name == "error" or data == b"[DONE]" or not data:
            return read_event(event)
        value = parse_json(data)
        if not isinstance(value, dict):
            return Piece(ignored=True)
        kind = as_text(value.get("type")) or event.name
        if kind.endswith("delta") and kind.startswith("response."):
            return _delta(kind, value)
        if kind == "response.output_item.added":
            return _opened(value)
        response = value.get("response")
        if isinstance(response, dict):
            piece = _response(response, kind)
            piece.done = piece.finish_reason is not None
            return piece
        if kind == "error" or value.get("error"):
            return Piece(error=failure_of(value.get("error") or value, value))
        return Piece(ignored=not kind.startswith("response.") and kind not in _SILENT)

    def read_whole(self, payload: bytes) -> Piece:
        value = parse_json(payload)
        if not isinstance(value, dict) or value.get("object") != "response":
            return read_event(SSEEvent("message", payload))  # an error of any shape
        piece = _response(value, "")
        items = value.get("output")
        for place, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, dict):
                _add_item(item, place, piece)
        piece.has_output = piece.has_output or bool(piece.text or piece.calls)
        return piece


def _translated(body: Any) -> dict[str, Any]:
    """A body of chat completions in the words of this API; one of its own stays as it is."""
    own = dict(body)
    if "input" not in own and "messages" in own:
        own["input"] = own.pop("messages")
    for key in LENGTH_KEYS:
        if key != _LENGTH and key in own:
            own.setdefault(_LENGTH, own.pop(key))
    own.pop("stream_options", None)
    return own


def _delta(kind: str, value: dict[str, Any]) -> Piece:
    text = as_text(value.get("delta"))
    piece = Piece(has_output=bool(text), has_content=bool(text) and "reasoning" not in kind, choices=(0,))
    if "call" in kind and "code" not in kind:
        place = as_count(value.get("output_index")) or 0
        piece.calls = (CallPart(0, place, "", text),) if text else ()
    else:
        piece.text = text
    return piece


def _opened(value: dict[str, Any]) -> Piece:
    """An item begins: of a call it brings the name, sometimes all of its arguments."""
    item = value.get("item")
    part = call_part(0, as_count(value.get("output_index")) or 0, item) if _is_call(item) else None
    return Piece() if part is None else Piece(has_output=True, has_content=True, calls=(part,), choices=(0,))


def _response(response: dict[str, Any], kind: str) -> Piece:
    """The response object, as it begins, goes on and ends; the event that brings it is of `kind`."""
    piece = Piece(server_id=as_text(response.get("id")) or None, usage=read_usage(response.get("usage")))
    status = as_text(response.get("status"))
    if status not in _FINAL and kind.removeprefix("response.") in _FINAL:
        status = kind.removeprefix("response.")
    if response.get("error") or status in ("failed", "cancelled"):
        error = response.get("error") or f"the server ended the answer with status {status!r}"
        piece.error = failure_of(error, {})
    elif status in _FINAL:
        details = response.get("incomplete_details")
        reason = as_text(details.get("reason")) if isinstance(details, dict) else ""
        items = response.get("output")
        called = isinstance(items, list) and any(map(_is_call, items))
        piece.finish_reason = _ENDED.get(reason, reason) or ("tool_calls" if called else "stop")
        piece.choices = piece.finished = (0,)
    return piece


def _is_call(item: Any) -> bool:
    return isinstance(item, dict) and as_text(item.get("type")).endswith("call")


def _add_item(item: dict[str, Any], place: int, piece: Piece) -> None:
    if _is_call(item):
        part = call_part(0, place, item)
        piece.calls += () if part is None else (part,)
        piece.has_content |= part is not None
        return
    reasoning = item.get("type") == "reasoning"
    for key in ("summary", "content"):
        parts = item.get(key)
        for content, text in parts_of(parts if isinstance(parts, list) else [], not reasoning):
            piece.text += text
            piece.has_content |= content
