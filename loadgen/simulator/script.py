"""The words of a fault script: what a fake server does with one request, in order. Data only, no I/O.

A script is any iterable of actions, for example `[T(50), ROLE, T(450), C("a"), FIN("stop"), U(3, 2), DONE]`. Unless it
says otherwise with `Head`, it answers 200, `text/event-stream`, chunked; the head leaves with the first body bytes.
Each body action is one HTTP chunk. A script that ends without saying how ends the body cleanly (`EOF`).
"""

# ruff: noqa: N802 - the short upper-case names are the shorthand in which stream cases are written down

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class T:
    """Flush what was sent, then wait `ms` milliseconds."""

    ms: float


@dataclass(frozen=True, slots=True)
class Event:
    """One SSE event. Each line is ended, and the event closed, with the server's line ending (LF unless set)."""

    lines: tuple[str, ...]

    def encode(self, eol: str = "\n") -> bytes:
        return ("".join(line + eol for line in self.lines) + eol).encode()


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes of the body, exactly as given, within the transfer coding."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """The status line and headers, sent at once. `chunked=False` without a Content-Length ends the body by closing."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "text/event-stream; charset=utf-8"})
    chunked: bool = True

    def encode(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} {_REASONS.get(self.status, 'Status')}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.chunked:
            lines.append("Transfer-Encoding: chunked")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@dataclass(frozen=True, slots=True)
class Hang:
    """Keep the connection open and send nothing for `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class End:
    """An end of the answer; see `EOF`, `Close`, `RST`, `Reject`."""

    how: str


EOF = End("eof")  # the clean end of the body; the connection stays open for the next request
Close = End("close")  # FIN without the terminal chunk
RST = End("rst")  # a reset: SO_LINGER 0, then close
Reject = End("reject")  # close without one byte of an answer; as a server's whole script, close on accept

Action = T | Event | Raw | Head | Hang | End


def dumps(obj: Any) -> str:
    return json.dumps(obj, ensure_ascii=False, separators=(",", ":"))


def J(obj: Any) -> Event:
    """`data: <json>`. A string is taken as JSON text and sent as it is; anything else is dumped, non-ASCII kept raw."""
    return Event(("data: " + (obj if isinstance(obj, str) else dumps(obj)),))


def C(text: str | None, **envelope: Any) -> Event:
    """A content delta; keywords are added to the envelope."""
    return _delta({"content": text}, **envelope)


def R(text: str) -> Event:
    """A reasoning delta, spelled `reasoning`."""
    return _delta({"reasoning": text})


def RC(text: str) -> Event:
    """A reasoning delta, spelled `reasoning_content`."""
    return _delta({"reasoning_content": text})


def FIN(reason: str) -> Event:
    """An empty delta with a finish reason."""
    return _delta({}, finish_reason=reason)


def U(prompt_tokens: int, completion_tokens: int) -> Event:
    """The usage event with empty choices that ends a stream."""
    return J({"id": "r", "choices": [], "usage": usage(prompt_tokens, completion_tokens)})


def CU(text: str, completion_tokens: int) -> Event:
    """A content delta whose envelope tells the tokens generated so far."""
    return C(text, usage={"completion_tokens": completion_tokens})


def Comment(text: str) -> Event:
    """An SSE comment, as servers send to keep a connection alive."""
    return Event((": " + text,))


ROLE = J(
    {
        "id": "r",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}],
    }
)
DONE = J("[DONE]")


def reply(body: bytes, status: int = 200, content_type: str = "text/html", **headers: str) -> list[Action]:
    """A whole answer with a Content-Length. Header keywords use `_` for `-`: `Retry_After="2"`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    head = {"Content-Type": content_type, "Content-Length": str(len(body)), **named}
    return [Head(status, head, chunked=False), Raw(body)]


def json_reply(obj: Any, status: int = 200, **headers: str) -> list[Action]:
    """A whole JSON answer."""
    return reply(dumps(obj).encode(), status, "application/json", **headers)


def error_reply(status: int, message: str, kind: str = "ServerError", **headers: str) -> list[Action]:
    """An error as OpenAI-compatible servers write it."""
    return json_reply({"error": {"message": message, "type": kind, "param": None, "code": status}}, status, **headers)


def models_reply(names: Iterable[str], **fields: Any) -> list[Action]:
    """The answer to GET /v1/models; keywords are added to each entry."""
    entries = [{"id": name, "object": "model", "created": 0, "owned_by": "scripted", **fields} for name in names]
    return json_reply({"object": "list", "data": entries})


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _delta(delta: dict[str, Any], finish_reason: str | None = None, **envelope: Any) -> Event:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return J({"id": "r", "object": "chat.completion.chunk", "choices": [choice], **envelope})


_REASONS = {
    200: "OK",
    301: "Moved Permanently",
    302: "Found",
    307: "Temporary Redirect",
    308: "Permanent Redirect",
    400: "Bad Request",
    401: "Unauthorized",
    402: "Payment Required",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    422: "Unprocessable Entity",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
