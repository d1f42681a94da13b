"""Answers recorded from a real server, taken apart: heads, bodies, and the requests they answer."""

from __future__ import annotations

import json
import re
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


def endpoint_of(name: str) -> str:
    """The dialect that a capture speaks."""
    return "responses" if "-resp-" in name else "completions" if "-comp-" in name else "chat"


def told_by(name: str) -> tuple[int | None, int | None]:
    """Prompt and output tokens by the answer's own last word on them, read without any code of the client."""
    found = [
        (one["prompt_tokens"], one["completion_tokens"])
        if "prompt_tokens" in one
        else (one["input_tokens"], one["output_tokens"])
        for one in map(json.loads, re.findall(r'"usage":(\{(?:[^{}]|\{[^{}]*\})*\})', body_of(name).decode()))
    ]
    return found[-1] if found else (None, None)


STREAMED = [path.stem for path in sorted(FOLDER.glob("vllm-c*.raw")) if "nonstream" not in path.stem]
