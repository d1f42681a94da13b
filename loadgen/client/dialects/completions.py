"""Text completions: `POST …/completions`."""

from __future__ import annotations

from typing import Any

from ...records import Prompt
from ..sse import SSEEvent
from .base import Piece, RequestOptions, completion_body, whole_text
from .reading import read_event, read_payload


class CompletionsDialect:
    """A prompt is the text to go on from."""

    name = "completions"
    path = "/completions"
    at_root = False
    media = "text/event-stream"
    names_model = True
    whole = True

    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        return completion_body(
            {"prompt": whole_text(prompt) if prompt.token_ids is None else prompt.token_ids}, prompt, options
        )

    def read(self, event: SSEEvent) -> Piece:
        return read_event(event)

    def read_whole(self, payload: bytes) -> Piece:
        return read_payload(payload)
