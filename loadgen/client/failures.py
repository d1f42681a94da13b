"""Exceptions and error bodies → what kind of fault it was, in the words of whoever knew best. Pure."""

from __future__ import annotations

import errno
import html
import os
import re
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin

import httpx
import orjson

from ..errors import FailureKind

# Our own limits: descriptors, ports, memory.
CLIENT_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOMEM, errno.ENOBUFS, errno.EACCES}

TEXT_BYTES = 4096  # of a body that is not JSON, looked at for words
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)


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


def untraced(error: BaseException) -> None:
    """Forget where it was raised: its frames keep what they worked on, which keeps the error, and nothing collects such
    cycles while a step runs."""
    for one in causes(error):
        one.__traceback__ = None


def forget(response: httpx.Response) -> None:
    """Part a closed response of httpx's transport from its stream, which keeps it, for the same reason."""
    response.stream = httpx.ByteStream(b"")


def transport_errors() -> tuple[type[Exception], ...]:
    """What a transport raises."""
    return (httpx.HTTPError, httpx.StreamError, OSError, *_let_through())


def _let_through() -> tuple[type[Exception], ...]:
    """What httpx lets through of httpcore, which is imported only where its transport is used."""
    core = sys.modules.get("httpcore")
    return () if core is None else (core.ProtocolError,)


def failure_kind(error: BaseException) -> FailureKind:
    """Which kind of fault an exception of the transport is."""
    for one in causes(error):
        if isinstance(one, socket.gaierror):
            return "dns"
        # Within the handshake it is TLS that failed; after it, these two only say that it went on until then.
        went_on = isinstance(one, ssl.SSLWantReadError | ssl.SSLWantWriteError)
        if isinstance(one, ssl.SSLError) and (not went_on or isinstance(error, httpx.ConnectError)):
            return "tls"
        if isinstance(one, OSError) and one.errno in CLIENT_ERRNOS:
            return "client"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
        return "connect"
    if isinstance(error, (httpx.ProtocolError, httpx.DecodingError, *_let_through())):
        return "protocol"
    return "reset"


def describe(error: BaseException) -> str:
    """The exception's own name and words; the system's where the library has none."""
    words = str(error)
    for one in causes(error):
        if isinstance(one, OSError) and one.strerror:
            words = one.strerror if not words or "All connection attempts failed" in words else words
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def system_words(error: BaseException) -> str:
    """The system's words for what failed, over which asyncio and the libraries put their own; without any, theirs."""
    other = socket.gaierror | ssl.SSLError | BlockingIOError  # whose numbers are not the system's, or say nothing
    numbers = (one.errno for one in causes(error) if isinstance(one, OSError) and not isinstance(one, other))
    number = next(filter(None, numbers), None)
    return os.strerror(number).lower() if number else describe(error)


def error_message(payload: bytes) -> str | None:
    """The server's own words in the body of a refusal: a JSON object of any of the usual shapes, a page's title, or a
    line of plain text. None where there are none."""
    try:
        value: Any = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return _words_of_text(payload[:TEXT_BYTES].decode("utf-8", "replace").strip())
    if isinstance(value, str):
        return value or None
    for key in ("error", "errors", "message", "detail", "error_description", "error_msg", "title"):
        if isinstance(value, dict) and value.get(key):
            return _words_of(value[key])
    return None


def _words_of(value: Any) -> str:
    """An error as a text, an object with a message, or FastAPI's list of what is wrong with which field."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        words = next((str(value[key]) for key in ("message", "msg", "detail") if isinstance(value.get(key), str)), "")
        where = value.get("loc")
        if words:
            return f"{'.'.join(map(str, where))}: {words}" if isinstance(where, list) and where else words
    if isinstance(value, list) and value and all(isinstance(one, dict | str) for one in value):
        return "; ".join(map(_words_of, value))
    return orjson.dumps(value).decode()


def _words_of_text(text: str) -> str | None:
    """The title of a page, or the first line of a text that is none."""
    if found := _TITLE.search(text):
        return " ".join(html.unescape(found[1]).split()) or None
    if not text or text.startswith(("<", "{", "[")):
        return None
    first = text.splitlines()[0].strip()
    return first if first.isprintable() and "\ufffd" not in first else None


def redirected(url: str, location: str) -> str:
    """What to say of an answer of 3xx to a request for `url`: it is never followed, as a key must not go elsewhere."""
    if not location:
        return "redirected to nowhere"
    with suppress(ValueError):  # what is no address at all is shown as it came
        location = urljoin(url, location)
    return f"redirected to {location}, which is not followed"


def reason_phrase(status: int) -> str:
    """The standard's words for a status, or the number itself."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"status {status}"
