"""What a user can be told, and how a request can fail.

Two different things live here, and they never mix:

    LoadgenError                 ends a command: printed as one sentence with its remedy, never a traceback
    ├── UsageError        exit 2   what was typed cannot be meant
    ├── TargetError       exit 3   the server cannot be measured (preflight, or every request failed)
    ├── LogError          exit 2   a run folder or log cannot be read or written
    └── ReaderGoneError   exit 0   what our output was piped to has gone, as is its right: nothing is printed

    Failure                      is data: why one request did not succeed; it goes into that request's record
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal


class Exit(IntEnum):
    """The exit codes of every verb."""

    DONE = 0
    NO = 1  # the answer is no: no level held, a regression, an error-level finding
    USAGE = 2
    TARGET = 3  # preflight failed, or every request did
    UNDECIDED = 4
    INTERRUPTED = 130
    TERMINATED = 143


class LoadgenError(Exception):
    """Ends a command. `message` names the fault and where; `remedy` says what to do about it."""

    exit_code: Exit = Exit.USAGE

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  → {self.remedy}" if self.remedy else self.message


class UsageError(LoadgenError):
    """What was typed cannot be meant."""


class TargetError(LoadgenError):
    """The server cannot be measured."""

    exit_code = Exit.TARGET


class LogError(LoadgenError):
    """A run folder or a log cannot be read or written."""


class ReaderGoneError(LoadgenError):
    """What our output was piped to has gone (`| head`), as is its right."""

    exit_code = Exit.DONE

    def __init__(self) -> None:
        super().__init__("the reader of the output has gone")


FailureKind = Literal[
    "dns",  # the name did not resolve
    "connect",  # refused, unreachable
    "tls",  # handshake or certificate
    "reset",  # the connection broke
    "protocol",  # bytes that are not HTTP
    "http",  # a status other than 2xx; see `status`
    "server",  # an error object inside a 200 answer
    "content_type",  # 200, but neither an event stream nor a completion
    "incomplete",  # the stream ended without [DONE] and finish reason
    "empty",  # the stream ended as it should, without any output
    "event_too_long",  # one event above the cap
    "redirect",  # 3xx: not followed
    "client",  # our own limit: descriptors, ports, memory
]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one request did not succeed. `kind` is for counting, `message` is the server's or the system's own words,
    `code` a status or error code where one was sent, `excerpt` the first bytes of an answer (bounded), `retry_after_s`
    how long the server asks to wait before it is asked again (Retry-After)."""

    kind: FailureKind
    message: str
    code: int | str | None = None
    excerpt: str | None = None
    retry_after_s: float | None = None

    @property
    def overload(self) -> bool:
        """Is it a refusal for now, not of the request itself: a status 429 or 503, or the same said within a stream?"""
        return self.kind in ("http", "server") and str(self.code) in ("429", "503", "overloaded")
