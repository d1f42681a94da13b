"""Random misbehaviour of a server, each with the outcomes that are right for it. Seeded; `fault_server` plays it.

A script is one answer for each of a few requests, played whenever the request of that number comes (also when it is
sent again on a fresh connection). What an answer is, framing and faults included, is a list of parts: bytes to write,
seconds to wait, or one of the ends below. The right outcomes of a stream that breaks off come from the reference
reader, given what had been sent of its body.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any

from tests.client.legal_streams import legal_stream
from tests.client.reference_reader import Read, reference

CLOSE, RESET, HALF = "close", "reset", "half"  # ends of a connection; HALF sends FIN and reads on
SILENCE = "silence"  # until the client goes
Part = bytes | float | str

MAX_EVENT = 100_000  # the clients' limit
READ = 30_000  # so much surely comes in one read
BROKEN = frozenset({"error:reset", "error:protocol"})
REASONS = [204, 205, 301, 302, 307, 308, 400, 404, 408, 413, 418, 422, 429, 500, 502, 503, 504, 529, 599, 999, 201, 206]


@dataclass
class Answer:
    """`right` are outcomes as `described` says them. With `more`, bytes follow that nobody asked for: `late`, or in one
    read with the answer."""

    name: str
    parts: list[Part]
    right: frozenset[str]
    status: int | None = 200
    more: frozenset[str] = frozenset()  # what a request may come to that takes them for its answer
    late: bool = False


@dataclass
class Script:
    seed: int
    answers: list[Answer]
    concurrency: int
    requests: int
    reject: frozenset[int] = frozenset()  # connections closed when accepted, by number
    endpoint: str = "chat"

    def stray(self, late: bool) -> set[str]:
        """What a request on a kept connection may come to, as the answers to others may be left on it."""
        if not any(answer.more and (answer.late or not late) for answer in self.answers):
            return set()
        every = {outcome for answer in self.answers for outcome in (*answer.right, *answer.more)}
        return every | BROKEN | {"timeout:first_token", "timeout:idle"}


class Dice(Random):
    """Draws what a server of this endpoint does."""

    endpoint = "chat"


def endpoint_of(r: Random) -> str:
    return r.endpoint if isinstance(r, Dice) else "chat"


def media_of(r: Random) -> str:
    return "application/x-ndjson" if endpoint_of(r).startswith("ollama") else "text/event-stream"


def stream_head(r: Random) -> str:
    return f"Content-Type: {media_of(r)}\r\n"


@cache
def fault_script(seed: int, endpoint: str = "chat") -> Script:
    r = Dice(seed)
    r.endpoint = endpoint
    answers = [r.choice(KINDS)(r) for _ in range(r.choice([3, 5, 8]))]
    if r.random() < 0.7:  # waits cost time: most scripts have none
        answers = [one if not waits(one) else good(r) for one in answers]
    if r.random() < 0.03:
        answers[r.randrange(len(answers))] = refusal(r, r.choice([401, 402, 403]))
    reject = frozenset(n for n in range(20) if r.random() < 0.3) if r.random() < 0.1 else frozenset[int]()
    return Script(seed, answers, r.choice([2, 3, 4]), r.choice([4, 6, 8]), reject, endpoint)


def waits(answer: Answer) -> bool:
    return any(one.startswith("timeout") for one in answer.right)


# --- streams ----------------------------------------------------------------------------------------------------------


@dataclass
class Framed:
    """An answer's bytes, and how much of its body is sent with each of its first bytes."""

    raw: bytes
    head: int  # bytes before the body
    chunked: bool
    until_close: bool
    text: bytes

    def body(self, sent: int) -> bytes:
        """The body in the first `sent` bytes of the answer."""
        rest = self.raw[self.head : max(self.head, sent)]
        if not self.chunked:
            return rest
        body = b""
        while b"\r\n" in rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size.split(b";")[0], 16)
            if length == 0:
                break
            body += rest[:length]
            rest = rest[length + 2 :]
        return body


def body_of(r: Random) -> bytes:
    return legal_stream(r, endpoint_of(r)).body


def chunks_of(r: Random, body: bytes) -> list[bytes]:
    places = sorted({r.randrange(1, len(body)) for _ in range(r.choice([0, 2, 8]))}) if len(body) > 1 else []
    points = [0, *places, len(body)]
    return [body[a:b] for a, b in pairwise(points) if a < b]


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


def framed(
    r: Random, body: bytes, how: str | None = None, head: str | None = None, version: str = "HTTP/1.1"
) -> Framed:
    how = how or r.choice(["chunked", "chunked", "chunked", "length", "close"])
    start = f"{version} 200 OK\r\n{stream_head(r) if head is None else head}"
    if how == "chunked":
        extension = r.choice([b"", b"", b";x=y"])
        content = b"".join(chunk(one, extension) for one in chunks_of(r, body)) + b"0\r\n"
        content += r.choice([b"\r\n", b"\r\n", b"X-Trailer: 1\r\n\r\n"])
        start += "Transfer-Encoding: chunked\r\n\r\n"
    elif how == "length":
        content = body
        start += f"Content-Length: {len(body)}\r\n\r\n"
    else:
        content = body
        start += "\r\n"
    raw = start.encode() + content
    return Framed(raw, len(start), how == "chunked", how == "close", body)


def read_as(r: Random, body: bytes, clean: bool) -> str:
    """The outcome of a stream of which so much came."""
    reads = [Read(body, 2_000_000, 1_000_000)] if body else []
    found = reference(endpoint_of(r), 1_000_000, reads, (3_000_000, clean), 5, limit=MAX_EVENT)
    if found.outcome == "empty" and not clean and silent(r, body) != "empty":
        return "incomplete"  # it said that it ended, but not with a whole [DONE]: who knows what was lost
    return described(found.outcome, found.error and found.error[0])


def described(outcome: str, kind: str | None = None, timeout: str | None = None) -> str:
    """ok, empty, incomplete, cut, …, error:KIND or timeout:KIND."""
    return f"{outcome}:{kind if outcome == 'error' else timeout}" if outcome in ("error", "timeout") else outcome


def end_of(answer: Framed, clean_end: Part = 0.0) -> list[Part]:
    return [CLOSE] if answer.until_close else [clean_end]


def good(r: Random) -> Answer:
    """A legal stream, whole; in one write or in several."""
    answer = framed(r, body_of(r))
    places = sorted(r.randrange(len(answer.raw)) for _ in range(r.choice([0, 0, 3])))
    parts: list[Part] = []
    for a, b in zip([0, *places], [*places, len(answer.raw)], strict=True):
        parts += [answer.raw[a:b], r.choice([0.0, 0.0, 0.001])]
    before = [] if r.random() < 0.85 else [informational(r)]
    return Answer("good", [*before, *parts, *end_of(answer)], frozenset({read_as(r, answer.text, True)}))


def informational(r: Random) -> bytes:
    return r.choice(
        [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 102 Wait\r\n\r\n", b"HTTP/1.1 103 Hints\r\nLink: </a>\r\n\r\n"]
    ) * r.choice([1, 1, 3])  # fmt: skip


def dripped(r: Random) -> Answer:
    answer = framed(r, body_of(r)[:2000] + b"\n\ndata: [DONE]\n\n")
    size = max(r.choice([1, 3, 7]), len(answer.raw) // 60)
    parts: list[Part] = []
    for at in range(0, len(answer.raw), size):
        parts += [answer.raw[at : at + size], 0.0]
    return Answer("dripped", [*parts, *end_of(answer)], frozenset({read_as(r, answer.text, True)}))


def old(r: Random) -> Answer:
    """HTTP/1.0, or a connection that says that it will close."""
    body = body_of(r)
    if r.random() < 0.5:
        answer = framed(r, body, r.choice(["length", "close"]), version="HTTP/1.0")
    else:
        answer = framed(r, body, head=stream_head(r) + r.choice(["Connection: close\r\n", "connection: Close\r\n"]))
    return Answer("old", [answer.raw, CLOSE], frozenset({read_as(r, body, True)}))


def cut_off(r: Random) -> Answer:
    """A stream cut off anywhere, its head too: by a close, a half-close, a reset, or a silence."""
    answer = framed(r, body_of(r))
    at = r.randrange(len(answer.raw)) if r.random() < 0.8 else r.randrange(max(answer.head, 1))
    end = r.choice([CLOSE, CLOSE, HALF, RESET, SILENCE])
    body = answer.body(at)
    headed = at >= answer.head
    if end == SILENCE:
        right = {silent(r, body)}
    elif not headed:
        right = set(BROKEN)
    else:
        right = {read_as(r, body, answer.until_close and end != RESET)}
    if end == RESET:  # what was not read yet is lost with the connection
        right |= BROKEN | {"incomplete"}
        right |= (
            {read_as(r, answer.body(k), False) for k in range(answer.head, at, max(1, at // 20))} if headed else set()
        )
    return Answer(
        f"cut off at {at} of {len(answer.raw)} by {end}", [answer.raw[:at], end], frozenset(right), status=None
    )


def silent(r: Random, body: bytes) -> str:
    """A stream that stops without an end."""
    reads = [Read(body, 2_000_000, 1_000_000)] if body else []
    found = reference(endpoint_of(r), 1_000_000, reads, None, 5, limit=MAX_EVENT)
    if found.rows and found.rows[-1].last:
        return described(found.outcome, found.error and found.error[0])
    return "timeout:idle" if any(row.output for row in found.rows) else "timeout:first_token"


def wrong_length(r: Random) -> Answer:
    """A Content-Length that is not the body's."""
    body = body_of(r)
    if len(body) > 1 and r.random() < 0.5:
        told = r.randrange(1, len(body))
        head = f"HTTP/1.1 200 OK\r\n{stream_head(r)}Content-Length: {told}\r\n\r\n".encode()
        right = {read_as(r, body[:told], True)}
        return Answer("length too short", [head + body], frozenset(right), 200, BROKEN, len(body) > READ)
    told = len(body) + r.choice([1, 1000, 2**40])
    head = f"HTTP/1.1 200 OK\r\n{stream_head(r)}Content-Length: {told}\r\n\r\n".encode()
    if r.random() < 0.7:
        return Answer("length too long", [head + body, CLOSE], frozenset({read_as(r, body, False)}))
    return Answer("length too long, silence", [head + body, SILENCE], frozenset({silent(r, body)}))


def no_length(r: Random) -> Answer:
    """Lengths that are none, and two that differ."""
    body = body_of(r)
    lines = r.choice(
        ["Content-Length: -1", "Content-Length: x", "Content-Length: 1, 2", "Content-Length: 5\r\nContent-Length: 6"]
    )
    head = f"HTTP/1.1 200 OK\r\n{stream_head(r)}{lines}\r\n\r\n".encode()
    return Answer(f"{lines!r}", [head + body, CLOSE], frozenset({"error:protocol"}), status=None)


def bad_chunk(r: Random) -> Answer:
    """A stream whose chunked coding breaks after some of it."""
    body = body_of(r)
    at = r.randrange(len(body) + 1)
    head = f"HTTP/1.1 200 OK\r\n{stream_head(r)}Transfer-Encoding: chunked\r\n\r\n".encode()
    before = chunk(body[:at]) if at else b""
    bad = r.choice(
        [b"zz\r\n", b"-5\r\nhello\r\n", b"f" * 40 + b"\r\nx", b"\r\n\r\n", b"5\r\nhelloworld\r\n", b"<html>\r\n"]
    )
    body = body[:at] + (b"hello" if bad.startswith(b"5") else b"")
    right = {read_as(r, body, False)}
    return Answer(f"bad chunk {bad[:10]!r}", [head + before + bad, CLOSE], frozenset(right))


def noisy(r: Random) -> Answer:
    """Random bytes in the stream."""
    stream = legal_stream(r, endpoint_of(r))
    place = r.choice([0, *stream.ends])
    noise = r.randbytes(r.choice([1, 20, 300]))
    noise = r.choice(
        [noise, b"data: " + noise.replace(b"\n", b"").replace(b"\r", b"") + b"\n\n", b'data: {"choices":[\n\n']
    )
    body = stream.body[:place] + noise + stream.body[place:]
    answer = framed(r, body)
    return Answer("random bytes in the stream", [answer.raw, *end_of(answer)], frozenset({read_as(r, body, True)}))


def too_long(r: Random) -> Answer:
    body = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\ndata: ' + b"x" * (MAX_EVENT + 10)
    answer = framed(r, body + b"\n\ndata: [DONE]\n\n")
    return Answer("an event too long", [answer.raw, *end_of(answer)], frozenset({"error:event_too_long"}))


def compressed(r: Random) -> Answer:
    body = body_of(r)
    packed = gzip.compress(body)
    right = {read_as(r, body, True)}
    if r.random() < 0.4:
        packed = b"not gzip at all" + packed
        right = {"error:protocol"}
    answer = framed(r, packed, head=stream_head(r) + "Content-Encoding: gzip\r\n")
    return Answer("compressed", [answer.raw, *end_of(answer)], frozenset(right))


# --- other answers ----------------------------------------------------------------------------------------------------


def refusal(r: Random, status: int | None = None) -> Answer:
    """A status of its own with a body of any kind, or none."""
    status = r.choice(REASONS) if status is None else status
    words = json.dumps({"error": {"message": "no", "code": status}}).encode()
    kind, body = r.choice(
        [("application/json", words), ("text/plain", b"no such thing"), ("text/html", b"<html><title>No</title>"),
         ("text/event-stream", b"data: {}\n\n"), ("", b""), ("application/json", b""), ("text/html", b"x" * 200_000),
         ("application/json", b'{"detail":[{"msg":"bad"}]}'), ("application/json", b"{broken"), ("a/b", b"\xff\xfe")]
    )  # fmt: skip
    head = f"Content-Type: {kind}\r\n" if kind else ""
    if body and r.random() < 0.2:
        body = gzip.compress(body)
        head += "Content-Encoding: gzip\r\n"
    head += r.choice(["", "Retry-After: 1\r\n", "Retry-After: soon\r\n"])
    if 300 <= status < 400:
        head += r.choice(["Location: http://elsewhere.invalid/\r\n", ""])
    bodiless = status == 204
    answer = framed(r, b"" if bodiless else body, "length" if bodiless else None, head)
    raw = answer.raw.replace(b"200 OK", f"{status} {r.choice(['Reason', ''])}".encode(), 1)
    if bodiless:
        raw = raw.replace(b"Content-Length: 0\r\n", b"")
    right = "error:redirect" if 300 <= status < 400 else "error:http"
    before = [] if r.random() < 0.9 else [informational(r)]
    return Answer(f"status {status}", [*before, raw, *end_of(answer)], frozenset({right}), status)


def stalled_refusal(r: Random) -> Answer:
    status = r.choice([400, 429, 500, 503])
    raw = f"HTTP/1.1 {status} No\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\nhello".encode()
    if r.random() < 0.5:
        return Answer(f"half a {status}", [raw, CLOSE], frozenset({*BROKEN, "error:http"}), None)
    return Answer(f"a stalled {status}", [raw, SILENCE], frozenset({"timeout:first_token", "error:http"}), status)


_COUNTS = {"prompt_tokens": 1, "completion_tokens": 1}
_TEXT = {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}
WHOLE: dict[str, dict[str, Any]] = {
    "chat": {"choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}], "usage": _COUNTS},
    "completions": {"choices": [{"index": 0, "text": "hi", "finish_reason": "stop"}], "usage": _COUNTS},
    "responses": {"object": "response", "status": "completed", "output": [_TEXT]},
    "generate_stream": {"generated_text": "hi"},
    "ollama_chat": {"message": {"content": "hi"}, "done": True},
    "ollama_generate": {"response": "hi", "done": True},
}


def not_a_stream(r: Random) -> Answer:
    """200, but no event stream."""
    whole = WHOLE[endpoint_of(r)]
    kind, body, right = r.choice(
        [
            ("application/json", json.dumps(whole).encode(), {"ok"}),
            ("application/json", b'{"error":"no"}', {"error:server"}),
            ("application/json", b'{"a":1}', {"error:content_type"}),
            ("application/json", b"", {"error:content_type"}),
            ("application/json", b"[" * 5000, {"error:content_type"}),
            ("text/html", b"<html>", {"error:content_type"}),
            ("text/plain", b"", {"error:content_type"}),
            ("image/png", b"\x89PNG", {"error:content_type"}),
            (media_of(r), b"", {"incomplete"}),
            (media_of(r), b"<html>nothing</html>", {"incomplete"}),
        ]
    )
    answer = framed(r, body, head=f"Content-Type: {kind}\r\n")
    return Answer(f"{kind} {body[:20]!r}", [answer.raw, *end_of(answer)], frozenset(right))


def no_answer(r: Random) -> Answer:
    """The connection ends, or nothing is said, before an answer."""
    end = r.choice([CLOSE, RESET, HALF, CLOSE, RESET, SILENCE])
    return Answer(f"no answer but {end}", [end], BROKEN if end != SILENCE else frozenset({"timeout:first_token"}), None)


def garbage(r: Random) -> Answer:
    """Bytes that are no HTTP."""
    start = r.choice(
        [
            b"SSH-2.0-OpenSSH_9.6\r\n",
            b"\x15\x03\x01\x00\x02\x02\x28",
            b"<html></html>\r\n\r\n",
            b"HTTP/3 200\r\n\r\n",
            b"\x00" + r.randbytes(60),
        ]
    )
    return Answer(f"garbage {start[:8]!r}", [start, CLOSE], BROKEN, None)


HUGE = [
    b"HTTP/1.1 200 OK\r\nX-Large: " + b"x" * 1_200_000 + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %b\r\n" % (k, b"y" * 1000) for k in range(1200)) + b"\r\n",
]


def huge_head(r: Random) -> Answer:
    """More than a megabyte of headers."""
    return Answer("huge head", [r.choice(HUGE), CLOSE], BROKEN, None)


def more_after(r: Random) -> Answer:
    """A whole answer, and then more than was asked for on a connection that is kept."""
    whole = good(r) if r.random() < 0.6 else refusal(r, 500)
    if CLOSE in whole.parts:
        return whole
    empty = b'{"done":true}\n' if "ndjson" in media_of(r) else b"data: [DONE]\n\n"
    more, comes_to = r.choice(
        [
            (b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno", {"error:http"}),
            (b"HTTP/1.1 200 OK\r\n%bContent-Length: 14\r\n\r\n%b" % (stream_head(r).encode(), empty), {"empty"}),
            (b"\x00garbage\r\n\r\n", set(BROKEN)),
        ]
    )
    late = r.random() < 0.4
    parts = [*whole.parts, r.choice([0.0005, 0.003]), more] if late else [joined(whole.parts) + more]
    raw = joined(whole.parts) + more
    parts = [*whole.parts, r.choice([0.0005, 0.003]), more] if late else [raw]
    name = f"{whole.name}, and then {more[:12]!r}"
    return Answer(name, parts, whole.right, whole.status, frozenset(comes_to), late or len(raw) > READ)


def joined(parts: list[Part]) -> bytes:
    return b"".join(part for part in parts if isinstance(part, bytes))


KINDS = [
    *(good, good, good, good, dripped, old, cut_off, cut_off, cut_off, cut_off, wrong_length, no_length, bad_chunk),
    *(noisy, too_long, compressed, refusal, refusal, refusal, stalled_refusal, not_a_stream, not_a_stream),
    *(no_answer, garbage, huge_head, more_after, more_after),
]
