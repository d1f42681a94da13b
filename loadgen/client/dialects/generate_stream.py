"""TGI's own API: `POST /generate_stream`.

An event holds one token; the last one also the whole text (not output once more) and the details with the server's
count. There is no [DONE]: the stream ends with its body. Nothing in this API forces the length of an answer.
"""

from __future__ import annotations

from typing import Any

from ...records import Prompt
from ..sse import SSEEvent
from .base import Piece, RequestOptions, Usage, deep_merge, sampling, whole_text
from .reading import as_count, as_text, failure_of, parse_json, read_event


class GenerateStreamDialect:
    """A prompt is the text to go on from; a request names no model."""

    name = "generate_stream"
    path = "/generate_stream"
    at_root = True  # beside /v1
    media = "text/event-stream"
    names_model = False
    whole = False

    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        body: dict[str, Any] = dict(prompt.body) if prompt.body is not None else {"inputs": whole_text(prompt)}
        given = body.get("parameters")
        parameters: dict[str, Any] = dict(given) if isinstance(given, dict) else {}
        if prompt.output_tokens is not None:
            parameters["max_new_tokens"] = prompt.output_tokens
        parameters.update(sampling(options))
        parameters["details"] = True
        return deep_merge({**body, "parameters": parameters}, options.extra_body)

    def read(self, event: SSEEvent) -> Piece:
        if event.name == "error" or event.data.strip() == b"[DONE]":
            return read_event(event)
        return _read(parse_json(event.data))

    def read_whole(self, payload: bytes) -> Piece:
        value = parse_json(payload)
        if isinstance(value, list) and len(value) == 1:  # /generate, behind some gateways
            value = value[0]
        piece = _read(value)
        if piece.error is None and isinstance(value, dict) and as_text(value.get("generated_text")):
            piece.has_output = piece.has_content = True
            piece.text = value["generated_text"]
            piece.ignored = False
        return piece


def _read(value: Any) -> Piece:
    if not isinstance(value, dict):
        return Piece(ignored=True)
    if value.get("error"):
        return Piece(error=failure_of(value["error"], value))
    token, details = value.get("token"), value.get("details")
    piece = Piece(ignored=not isinstance(token, dict) and not isinstance(details, dict))
    if isinstance(token, dict):
        piece.has_output = piece.has_content = True  # a token is output, whatever its text
        piece.text = "" if token.get("special") else as_text(token.get("text"))
        piece.token_ids = 1
        piece.choices = (0,)
    if isinstance(details, dict):
        piece.choices = (0,)
        piece.finish_reason = as_text(details.get("finish_reason")) or None
        generated = as_count(details.get("generated_tokens"))
        if generated is not None:
            piece.usage = Usage(as_count(details.get("input_length")), generated)
    elif isinstance(value.get("generated_text"), str):
        piece.finish_reason = "stop"  # without details, the whole text says that it ended
    if piece.finish_reason is not None:
        piece.finished = (0,)
    return piece
