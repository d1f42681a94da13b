"""Requests as the fault server reads them: bytes in, a request out. No I/O."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came. `path` has its query; header names are lower case; `json` is None where it is not JSON.
    `number` counts requests from 0 in order of arrival, `connection` the connections from 0."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    json: Any
    number: int
    connection: int


def parse_request(buffer: bytes | bytearray) -> tuple[str, str, dict[str, str], bytes, int] | None:
    """The first request in `buffer` as (method, path, headers, body, bytes used), or None while it is not whole."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    first, *lines = bytes(buffer[:end]).decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    start = end + 4
    if "chunked" in headers.get("transfer-encoding", "").lower():
        decoded = _dechunk(buffer, start)
        return None if decoded is None else (method, path, headers, *decoded)
    stop = start + int(headers.get("content-length", "0"))
    return None if len(buffer) < stop else (method, path, headers, bytes(buffer[start:stop]), stop)


def _dechunk(buffer: bytes | bytearray, at: int) -> tuple[bytes, int] | None:
    body = bytearray()
    while (line := buffer.find(b"\r\n", at)) >= 0:
        size = int(bytes(buffer[at:line]).split(b";")[0], 16)
        stop = line + 2 + size + 2
        if len(buffer) < stop:
            return None
        body += buffer[line + 2 : stop - 2]
        at = stop
        if size == 0:  # no trailers: no client here sends any
            return bytes(body), at
    return None


def parse_json(body: bytes) -> Any:
    """The body as JSON, None where it is not JSON."""
    try:
        return json.loads(body)
    except ValueError:
        return None
