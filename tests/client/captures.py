"""Answers recorded from a real server, taken apart: heads, bodies, and the requests they answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "data" / "captures"


def body_of(name: str) -> bytes:
    """The body of a captured answer, its chunks put together."""
    head, _, rest = (FOLDER / f"{name}.raw").read_bytes().partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head:
        return rest
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            return body
        body += rest[:length]
        assert rest[length : length + 2] == b"\r\n"
        rest = rest[length + 2 :]


def request_of(name: str) -> dict[str, Any]:
    request: dict[str, Any] = json.loads((FOLDER / f"{name}.request.json").read_bytes())
    return request


STREAMED = [path.stem for path in sorted(FOLDER.glob("vllm-c*.raw")) if "nonstream" not in path.stem]
