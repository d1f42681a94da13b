"""The request and answer formats that servers speak: a prompt → a body; an event → what it carries."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from ...errors import UsageError
from ...records import Prompt
from ..sse import SSEEvent
from .base import Dialect, MalformedEvent, Piece, RequestOptions
from .chat import ChatDialect
from .completions import CompletionsDialect
from .generate_stream import GenerateStreamDialect
from .ollama import OllamaChatDialect, OllamaGenerateDialect
from .responses import ResponsesDialect

T = TypeVar("T")

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        ChatDialect(),
        CompletionsDialect(),
        ResponsesDialect(),
        GenerateStreamDialect(),
        OllamaChatDialect(),
        OllamaGenerateDialect(),
    )
}
NEEDED = ("path", "at_root", "media", "names_model", "whole", "body", "read", "read_whole")


def find_dialect(name: str) -> Dialect:
    """The dialect of that name: one of ours, or MODULE:NAME, an object in a module that Python finds, the current
    directory included. Raises UsageError."""
    if name in DIALECTS:
        return DIALECTS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join(map(repr, DIALECTS))
        raise UsageError(f"there is no endpoint {name!r}", f"choose one of {known}, or MODULE:NAME of your own")
    if "" not in sys.path:
        sys.path.append("")  # at the end: a file there never stands in for a module of ours
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the user's own code: whatever it raises is for them to read
        raise UsageError(
            f"the endpoint {name} cannot be loaded: {type(error).__name__}: {error}",
            "give MODULE:NAME of a module in the current directory, or one that is installed; see docs/dialects.md",
        ) from None
    dialect = found() if isinstance(found, type) else found
    missing = [part for part in NEEDED if not hasattr(dialect, part)]
    if missing:
        raise UsageError(f"the endpoint {name} has no {', '.join(missing)}", "docs/dialects.md says what a dialect has")
    own: Any = _Own(dialect, name)
    return cast("Dialect", own)


class _Own:
    """A dialect of the user's own. A fault in how it makes a body is told in a sentence; one in how it reads makes the
    event one that cannot be read, and the request fails with what was raised."""

    def __init__(self, dialect: Dialect, name: str) -> None:
        self._dialect, self._endpoint = dialect, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dialect, name)

    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        try:
            return self._dialect.body(prompt, options)
        except Exception as error:
            raise UsageError(
                f"the endpoint {self._endpoint} cannot make a body: {type(error).__name__}: {error}",
                "mend its body(); see docs/dialects.md",
            ) from None

    def read(self, event: SSEEvent) -> Piece:
        return self._read(self._dialect.read, event)

    def read_whole(self, payload: bytes) -> Piece:
        return self._read(self._dialect.read_whole, payload)

    def _read(self, read: Callable[[T], Piece], data: T) -> Piece:
        try:
            found = read(data)
        except MalformedEvent:
            raise
        except Exception as error:
            raise MalformedEvent(
                f"the endpoint {self._endpoint} cannot read it: {type(error).__name__}: {error}"
            ) from None
        if not isinstance(found, Piece):
            raise MalformedEvent(f"the endpoint {self._endpoint} read no Piece but {type(found).__name__}")
        return found
