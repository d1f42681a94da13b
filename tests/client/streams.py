"""Streams in the shorthand of the field's cases, and a tally run over them on made-up stamps."""

from __future__ import annotations

import json
from typing import Any

from loadgen.client.dialects import DIALECTS
from loadgen.client.tally import Tally, TallyResult

MS = 1_000_000
SENT = 5_000 * MS  # not zero: offsets are from here


def J(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(finish: str | None = None, index: int = 0, usage: dict[str, Any] | None = None, **delta: Any) -> bytes:
    envelope: dict[str, Any] = {"id": "r", "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}
    return J(envelope if usage is None else {**envelope, "usage": usage})


def C(text: str, index: int = 0) -> bytes:
    return chunk(content=text, index=index)


def CU(text: str, count: int, index: int = 0) -> bytes:
    return chunk(content=text, index=index, usage={"completion_tokens": count})


def IDS(text: str, *ids: int) -> bytes:
    return J({"id": "r", "choices": [{"index": 0, "delta": {"content": text}, "token_ids": list(ids)}]})


def FIN(reason: str, index: int = 0) -> bytes:
    return chunk(reason, index)


def U(prompt: int, completion: int, **more: Any) -> bytes:
    return J({"id": "r", "choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **more}})


def TOOL(**function: str) -> bytes:
    return chunk(tool_calls=[{"index": 0, "function": function}])


ROLE = chunk(role="assistant", content="")
DONE = b"data: [DONE]\n\n"
ERROR = J({"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}})


def run(
    *script: int | bytes,
    asked: int | None = None,
    usage_asked: bool = True,
    clean: bool = True,
    close: bool = True,
    dialect: str = "chat",
    limit: int = 1 << 20,
) -> TallyResult:
    """Each number waits so many ms, each bytes is one read; the end of the body comes with the last read."""
    tally = Tally(DIALECTS[dialect], SENT, limit)
    now = before = SENT
    for step in script:
        if isinstance(step, int):
            now += step * MS
        else:
            tally.feed(step, now, before)
            before = now
    if close:
        tally.close(now, ended_cleanly=clean)
    return tally.result(asked, usage_asked=usage_asked)


def ms(stamp: int | None) -> float | None:
    return None if stamp is None else (stamp - SENT) / MS
