"""Chat completions: `POST …/chat/completions`."""

from __future__ import annotations

from typing import Any

from ...records import Prompt
from ..sse import SSEEvent
from .base import Piece, RequestOptions, completion_body, messages
from .reading import read_event, read_payload


class ChatDialect:
    """A prompt is one user message, after those that it goes on from."""

    name = "chat"
    path = "/chat/completions"
    at_root = False
    media = "text/event-stream"
    names_model = True
    whole = True

    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        return completion_body({"messages": messages(prompt)}, prompt, options)

    def read(self, event: SSEEvent) -> Piece:
        return read_event(event)

    def read_whole(self, payload: bytes) -> Piece:
        return read_payload(payload)
