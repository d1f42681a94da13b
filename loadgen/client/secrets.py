"""What must never be written down, and how it is taken out of a server's words. Pure.

A server, or a gateway before it, may repeat a key that it refuses, or the whole request. What a request carries as a
secret is known here: values of key-like headers, query parameters and extra body fields.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import unquote_plus

from ..records import Record
from .target import holds_secret

MASK = "***"
SHORTEST = 4  # characters: anything shorter is found in every text

# Fields of a body with a key of their own; `stop_token` and its like are none.
_SECRET_FIELD = re.compile(
    r"api_?key|secret|passw|credential|authorization|\b(access|auth|user|session|bearer|hf|id)_?token", re.IGNORECASE
)


def secrets_of(headers: Mapping[str, str], url: str, extra_body: Mapping[str, Any]) -> tuple[str, ...]:
    """The secrets that requests with these headers, to this URL, with these fields carry; the longest first."""
    found = {value for name, text in headers.items() if holds_secret(name) for value in _of_header(name.lower(), text)}
    for pair in url.partition("?")[2].split("&"):
        name, _, value = pair.partition("=")
        if holds_secret(unquote_plus(name)):
            found |= {value, unquote_plus(value)}
    found |= set(_of_body(extra_body))
    return tuple(sorted((one for one in found if len(one) >= SHORTEST), key=len, reverse=True))


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret masked."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def scrub(record: Record, secrets: Sequence[str]) -> Record:
    """The record with every secret masked in what the server said; itself where there is none."""
    if not secrets:
        return record
    changed: dict[str, Any] = {}
    for name in ("excerpt", "finish_reason", "server_id"):
        old = getattr(record, name)
        if old and (new := without_secrets(old, secrets)) != old:
            changed[name] = new
    if (error := record.error) is not None:
        code = without_secrets(error.code, secrets) if isinstance(error.code, str) else error.code
        excerpt = without_secrets(error.excerpt, secrets) if error.excerpt else error.excerpt
        changed["error"] = replace(error, message=without_secrets(error.message, secrets), code=code, excerpt=excerpt)
    return replace(record, **changed) if changed else record


def masked_body(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a body as they may be written down: key-like ones are masked, at any depth."""
    return {name: _masked(name, value) for name, value in fields.items()}


def _masked(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return masked_body(value)
    if isinstance(value, list):
        return [_masked(name, one) for one in value]
    return MASK if isinstance(value, str) and value and _SECRET_FIELD.search(name) else value


def _of_header(name: str, text: str) -> Iterator[str]:
    """A header's value, and the part of it that is the secret: what follows a scheme or a cookie's name."""
    yield text
    if name == "cookie":
        yield from (part.partition("=")[2].strip() for part in text.split(";"))
    scheme, _, rest = text.partition(" ")
    if rest:
        yield rest.strip()
    if scheme.lower() == "basic":
        with suppress(ValueError):
            yield base64.b64decode(rest).decode().partition(":")[2]


def _of_body(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _of_body(inner, str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _of_body(inner, name)
    elif isinstance(value, str) and _SECRET_FIELD.search(name):
        yield value
