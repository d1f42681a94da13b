"""Ollama's own API: `POST /api/chat` and `POST /api/generate`.

A stream is one JSON value a line. The last line says `done` and holds the counts; an error is an object of its own.
Nothing in this API forces the length of an answer, and a prompt longer than the server's `num_ctx` is cut without a
word: the count in the last line tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...records import Prompt
from ..sse import SSEEvent
from .base import (
    LENGTH_KEYS,
    Piece,
    RequestOptions,
    Usage,
    deep_merge,
    messages,
    sampling,
    whole_text,
    with_model,
)
from .reading import as_count, as_text, failure_of, parse_json, read_delta


class OllamaChatDialect:
    """A prompt is one user message."""

    name = "ollama_chat"
    path = "/api/chat"
    at_root = True
    media = "application/x-ndjson"
    names_model = True
    whole = True

    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        return _body({"messages": messages(prompt)}, prompt, options)

    def read(self, event: SSEEvent) -> Piece:
        return _read(parse_json(event.data))

    def read_whole(self, payload: bytes) -> Piece:
        return _read(parse_json(payload))


class OllamaGenerateDialect:
    """A prompt is the text to go on from."""

    name = "ollama_generate"
    path = "/api/generate"
    at_root = True
    media = "application/x-ndjson"
    names_model = True
    whole = True

    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        return _body({"prompt": whole_text(prompt)}, prompt, options)

    def read(self, event: SSEEvent) -> Piece:
        return _read(parse_json(event.data))

    def read_whole(self, payload: bytes) -> Piece:
        return _read(parse_json(payload))


def _body(own: Mapping[str, Any], prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
    body = with_model(own if prompt.body is None else prompt.body, options, prompt.model)
    given = body.get("options")
    inner: dict[str, Any] = dict(given) if isinstance(given, dict) else {}
    for key in LENGTH_KEYS:  # of a body in the OpenAI form
        if key in body:
            inner.setdefault("num_predict", body.pop(key))
    if prompt.output_tokens is not None:
        inner["num_predict"] = prompt.output_tokens
    inner.update(sampling(options))
    body.pop("stream_options", None)
    return deep_merge({**body, "options": inner, "stream": options.stream}, options.extra_body)


def _read(value: Any) -> Piece:
    if not isinstance(value, dict):
        return Piece(ignored=True)
    if value.get("error"):
        return Piece(error=failure_of(value["error"], value))
    message = value.get("message")
    delta = (
        message if isinstance(message, dict) else {"content": value.get("response"), "reasoning": value.get("thinking")}
    )
    if "thinking" in delta:
        delta = {**delta, "reasoning": delta["thinking"]}
    piece = Piece(
        choices=(0,), ignored=not isinstance(message, dict) and "response" not in value and "done" not in value
    )
    read_delta(delta, 0, piece)
    if value.get("done") is True:
        piece.done = True
        piece.finish_reason = as_text(value.get("done_reason")) or "stop"
        piece.finished = (0,)
        counts = as_count(value.get("prompt_eval_count")), as_count(value.get("eval_count"))
        piece.usage = None if counts == (None, None) else Usage(*counts)
    return piece
