"""Exceptions and error bodies → what kind of fault it was, in the words of whoever knew best. Pure."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import httpcore
import httpx
import orjson

from ..errors import FailureKind

# Our own limits: descriptors, ports, memory.
CLIENT_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOMEM, errno.ENOBUFS, errno.EACCES}


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that led to it, groups opened."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            todo.extend(one.exceptions)
        todo += [one.__cause__, one.__context__]


def failure_kind(error: BaseException) -> FailureKind:
    """Which kind of fault an exception of the transport is."""
    for one in causes(error):
        if isinstance(one, socket.gaierror):
            return "dns"
        if isinstance(one, ssl.SSLError):
            return "tls"
        if isinstance(one, OSError) and one.errno in CLIENT_ERRNOS:
            return "client"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
        return "connect"
    if isinstance(error, httpx.ProtocolError | httpcore.ProtocolError | httpx.DecodingError):
        return "protocol"
    return "reset"


def describe(error: BaseException) -> str:
    """The exception's own name and words; the system's where the library has none."""
    words = str(error)
    for one in causes(error):
        if isinstance(one, OSError) and one.strerror:
            words = one.strerror if not words or "All connection attempts failed" in words else words
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def error_message(payload: bytes) -> str | None:
    """The server's own words in a JSON error body of any of the usual shapes; None where there are none."""
    try:
        value: Any = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(key):
            inner = value[key]
            if isinstance(inner, dict) and isinstance(inner.get("message"), str):
                return str(inner["message"])
            return inner if isinstance(inner, str) else orjson.dumps(inner).decode()
    return None


def reason_phrase(status: int) -> str:
    """The standard's words for a status, or the number itself."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"status {status}"
