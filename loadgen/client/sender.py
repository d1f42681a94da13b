"""The seam between what is sent and how: preflight and driver know only this, transports serve it."""

from __future__ import annotations

from typing import Literal, Protocol

from ..records import Record, RequestSpec


class Sender(Protocol):
    """The seam between what is sent and how. Times are ns of CLOCK_MONOTONIC."""

    async def send(self, spec: RequestSpec, scheduled_ns: int) -> Record:
        """Send one request and follow it to its end."""
        ...

    def cut(self, outcome: Literal["cut", "cancelled"]) -> None:
        """End every request in flight now; each `send` returns its record with this outcome."""
        ...
