"""The request and answer formats that servers speak: a prompt → a body; an event → what it carries."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping

from ...errors import UsageError
from .base import Dialect
from .chat import ChatDialect
from .completions import CompletionsDialect
from .generate_stream import GenerateStreamDialect
from .ollama import OllamaChatDialect, OllamaGenerateDialect
from .responses import ResponsesDialect

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
    dialect: Dialect = found() if isinstance(found, type) else found
    missing = [part for part in NEEDED if not hasattr(dialect, part)]
    if missing:
        raise UsageError(f"the endpoint {name} has no {', '.join(missing)}", "docs/dialects.md says what a dialect has")
    return dialect
