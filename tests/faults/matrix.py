"""What can go wrong, by where in a request's life it goes wrong, with the one right outcome of each.

An outcome is `ok`, `incomplete`, `error:KIND` or `timeout:KIND`. A cell's `parts` are played to its request: bytes,
waits in seconds, and `RESET`, `CLOSE`, `HALF` (no more is sent, but read) and `SILENCE` as ends.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass

RESET, CLOSE, HALF, SILENCE = "reset", "close", "half", "silence"
Part = bytes | float | str

LIMIT = 50_000  # bytes of one event, of the client here
DELTA = b'data: {"id":"r","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"id":"r","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"id":"r","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = DELTA * 2 + FINISH + USAGE + DONE
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST = b"0\r\n\r\n"
GOOD = CHUNKED + chunk(STREAM) + LAST
# What has been sent when a phase begins.
BEFORE = {
    "headers": b"",
    "first token": CHUNKED,
    "tokens": CHUNKED + chunk(DELTA) + chunk(DELTA),
    "end": CHUNKED + chunk(DELTA * 2 + FINISH),
}
REST = {name: GOOD if not sent else chunk(STREAM) + LAST for name, sent in BEFORE.items()}
REST["tokens"] = chunk(DELTA + FINISH + USAGE + DONE) + LAST
REST["end"] = chunk(USAGE + DONE) + LAST
PHASES = tuple(BEFORE)


@dataclass(frozen=True)
class Cell:
    """`right` is the outcome of the request; `status` what its record says."""

    fault: str
    phase: str
    parts: tuple[Part, ...]
    right: str
    status: int | None = 200


def drip(data: bytes, wait_s: float) -> tuple[Part, ...]:
    return tuple(part for i in range(len(data)) for part in (data[i : i + 1], wait_s))


def everywhere(fault: str, end: Part | tuple[Part, ...], rights: tuple[str, str, str, str]) -> list[Cell]:
    """A fault that can come in each of the phases."""
    ends = end if isinstance(end, tuple) else (end,)
    return [
        Cell(fault, phase, (BEFORE[phase], *ends), right, None if phase == "headers" else 200)
        for phase, right in zip(PHASES, rights, strict=True)
    ]


def refusals() -> list[Cell]:
    bodies = {
        "JSON": (b"application/json", b'{"error":{"message":"no","code":"x"}}'),
        "text": (b"text/plain", b"no"),
        "HTML": (b"text/html", b"<html><title>no</title></html>"),
        "no body": (b"text/plain", b""),
    }
    found = []
    for status in (400, 404, 408, 413, 422, 429, 500, 502, 503, 504):
        for form, (kind, body) in bodies.items():
            head = b"HTTP/1.1 %d No\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n" % (status, kind, len(body))
            found.append(Cell(f"{status} with {form}", "headers", (head + body,), "error:http", status))
    for status in (301, 302, 307, 308):
        head = b"HTTP/1.1 %d Go\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n" % status
        found.append(Cell(f"redirect {status}", "headers", (head,), "error:redirect", status))
    return found


def length(size: int) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % size


PACKED = gzip.compress(STREAM)
GZIP = HEAD + b"Content-Encoding: gzip\r\n"

CELLS: list[Cell] = [
    *everywhere("reset", RESET, ("error:reset", "incomplete", "incomplete", "ok")),
    *everywhere("closed", CLOSE, ("error:protocol", "incomplete", "incomplete", "ok")),
    *everywhere("half closed", HALF, ("error:protocol", "incomplete", "incomplete", "ok")),
    *everywhere("black hole", SILENCE, ("timeout:first_token", "timeout:first_token", "timeout:idle", "timeout:idle")),
    # A byte at a time: a stream that lives, until one of its own limits ends it.
    Cell("slow drip", "headers", (*drip(GOOD, 0.1), SILENCE), "timeout:first_token", None),
    Cell("slow drip", "first token", (CHUNKED, *drip(REST["first token"], 0.1), SILENCE), "timeout:first_token"),
    Cell("slow drip", "tokens", (BEFORE["tokens"], *drip(chunk(b":" + b"x" * 300), 0.1), SILENCE), "timeout:idle"),
    Cell("slow drip", "end", (BEFORE["end"], *drip(chunk(DONE) + LAST, 0.001)), "ok"),
    # Bytes that are none of the protocol's.
    *everywhere("garbage", (b"\x00\xffgarbage\r\n\r\n", CLOSE), ("error:protocol", "incomplete", "incomplete", "ok")),
    # More than a client should keep.
    Cell(
        "too long",
        "headers",
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_200_000 + b"\r\n\r\n", CLOSE),
        "error:protocol",
        None,
    ),
    Cell("too long", "first token", (CHUNKED, chunk(b"data: " + b"x" * (LIMIT + 99)), SILENCE), "error:event_too_long"),
    Cell(
        "too long",
        "tokens",
        (BEFORE["tokens"], chunk(b"data: " + b"x" * (LIMIT + 99)), SILENCE),
        "error:event_too_long",
    ),
    Cell("too long", "end", (BEFORE["end"], chunk(b"data: " + b"x" * (LIMIT + 99)), SILENCE), "error:event_too_long"),
    *everywhere(
        "a chunk of 16 EiB", (b"ffffffffffffffff\r\nx", CLOSE), ("error:protocol", "incomplete", "incomplete", "ok")
    ),
    # Lengths that lie.
    Cell("length too long", "end", (length(len(STREAM) + 9) + STREAM, CLOSE), "ok"),
    Cell("length too long", "tokens", (length(len(STREAM)) + DELTA * 2, CLOSE), "incomplete"),
    Cell("length too long", "first token", (length(len(STREAM)), CLOSE), "incomplete"),
    Cell("length too short", "tokens", (length(len(DELTA) + 20) + STREAM, CLOSE), "incomplete"),
    Cell("length too short", "end", (length(len(DELTA * 2 + FINISH)) + STREAM, CLOSE), "ok"),
    Cell(
        "two lengths",
        "headers",
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", CLOSE),
        "error:protocol",
        None,
    ),
    # Bodies that are packed, though nobody asked.
    Cell("gzip", "tokens", (GZIP + b"Content-Length: %d\r\n\r\n" % len(PACKED) + PACKED,), "ok"),
    Cell("gzip that is none", "first token", (GZIP + b"\r\n" + STREAM, CLOSE), "error:protocol"),
    Cell("gzip cut short", "tokens", (GZIP + b"\r\n" + PACKED[:40], CLOSE), "incomplete"),
    # Another kind of answer.
    *(
        Cell(
            f"content type {kind}",
            "headers",
            (b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n\r\n%b" % (kind.encode(), body), CLOSE),
            right,
        )
        for kind, body, right in (
            ("text/html", b"<html>", "error:content_type"),
            ("text/plain", STREAM, "error:content_type"),
            ("image/png", b"\x89PNG", "error:content_type"),
            ("application/json", b"{}", "error:content_type"),
            ("application/json", b'{"error":"no"}', "error:server"),
        )
    ),
    *refusals(),
    # Said within the stream.
    Cell(
        "an error object",
        "first token",
        (CHUNKED, chunk(b'data: {"error":{"message":"no"}}\n\n'), LAST),
        "error:server",
    ),
    Cell(
        "an error object",
        "tokens",
        (BEFORE["tokens"], chunk(b'data: {"error":{"message":"no"}}\n\n'), LAST),
        "error:server",
    ),
]

# Why some cells of the table are empty.
CANNOT_BE = {
    "a refusal or a redirect after the headers": "the status has been sent",
    "another content type, or coding, after the headers": "it has been sent",
    "garbage, resets and waits before the headers are over": "these are the cells of `headers`",
    "garbage within a connect": "TCP carries none; what a TLS handshake does with it is in the cells of `tls`",
}
