"""The request and answer formats that servers speak: a prompt → a body; an event → what it carries."""

from __future__ import annotations

from collections.abc import Mapping

from .base import Dialect
from .chat import ChatDialect
from .completions import CompletionsDialect
from .generate_stream import GenerateStreamDialect

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect for dialect in (ChatDialect(), CompletionsDialect(), GenerateStreamDialect())
}
