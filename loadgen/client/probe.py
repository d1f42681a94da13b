"""What the wire tells of one request, whichever transport carries it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from ..records import Connect

ROUND_NS = 100_000_000  # where it is not known


def nothing() -> None:
    pass


class Probe:
    """What the wire told of one request; stamps in ns of CLOCK_MONOTONIC, None until they happen."""

    __slots__ = (
        *("broke_ns", "connect", "first_read_ns", "last_read_ns", "on_sent", "peer", "previous_read_ns"),
        *("round_ns", "sent_ns", "write_ns"),
    )

    def __init__(self, on_sent: Callable[[], None]) -> None:
        self.on_sent = on_sent  # called at the first write
        self.broke_ns: int | None = None  # when its connection was seen to have failed
        self.connect: Connect | None = None
        self.peer: str | None = None
        self.round_ns = ROUND_NS  # to the server and back
        self.sent_ns: int | None = None
        self.write_ns = 0  # how long the first write took: the first byte left within it
        self.first_read_ns: int | None = None
        self.last_read_ns = 0
        self.previous_read_ns = 0


PROBE: ContextVar[Probe | None] = ContextVar("loadgen_probe", default=None)


def format_address(address: Any) -> str:
    """A socket address as host:port, with brackets around IPv6; a Unix socket's as unix:PATH."""
    if isinstance(address, tuple):
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return f"unix:{address}"
