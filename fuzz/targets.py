"""One function a reader: any bytes in, and an exception only where the reader is at fault.

A reader may refuse its input in its own way (LoadgenError with one line, MalformedEvent, NoMetricsError); all else is a
fault, also two answers for the same bytes that were cut into other reads. The tests run these under Hypothesis, `make
fuzz` under atheris.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httptools
import httpx

from loadgen.analysis.serverside import NoMetricsError, read_page
from loadgen.client.addresses import Place
from loadgen.client.answer import Answer, ReadStats
from loadgen.client.connection import Connection
from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import MalformedEvent
from loadgen.client.probe import Probe
from loadgen.client.sse import EventTooLong, SSEEvent, SSEParser
from loadgen.client.tally import Tally
from loadgen.errors import LoadgenError
from loadgen.log.columns import columns
from loadgen.log.store import open_run
from loadgen.workload.definition import parse_workload
from loadgen.workload.files import read_prompts
from loadgen.workload.traces.describe import describe_trace

LIMIT = 4096  # bytes of an event, so that it is met
LOG_FILES = ("requests.jsonl", "steps.jsonl", "server.jsonl", "manifest.json", "other.json", "other.csv", "stream")


class FaultError(AssertionError):
    """A reader did what it must not."""


def cut(data: bytes) -> tuple[list[bytes], bytes]:
    """The first byte says how the rest is cut into reads; → the reads, and the rest whole."""
    seed, rest = (data[0], data[1:]) if data else (0, b"")
    size = 1 + seed % 23
    return [rest[i : i + size] for i in range(0, len(rest), size)], rest


# --- the wire ---------------------------------------------------------------------------------------------------------


def sse(data: bytes) -> None:
    """Server-sent events: the same events and the same end however the bytes were cut."""
    reads, whole = cut(data)
    if _events(reads) != _events([whole]):
        raise FaultError("the cut shows")


def _events(reads: list[bytes]) -> tuple[list[SSEEvent], bool]:
    parser, found = SSEParser(LIMIT), list[SSEEvent]()
    try:
        for read in reads:
            found += parser.feed(read)
        found += parser.close()
    except EventTooLong as error:
        return found + error.events, True
    return found, False


class _Socket:
    """What a connection reads from: the reads, then the end."""

    def __init__(self, reads: list[bytes]) -> None:
        self.reads = reads[::-1]

    def fileno(self) -> int:
        return -1

    def getpeername(self) -> tuple[str, int]:
        return "h", 1

    def recvmsg(self, size: int, room: int) -> tuple[bytes, list[Any], int, None]:
        return (self.reads.pop() if self.reads else b""), [], 0, None

    def send(self, data: bytes) -> int:
        return len(data)

    def close(self) -> None:
        pass


# What a reader may say of bytes that it does not take; any other cause is a slip of ours.
_KNOWN = (httptools.HttpParserError, httptools.HttpParserUpgrade, httpx.HTTPError, OSError, zlib.error)


def http(data: bytes) -> None:
    """An HTTP answer with a stream in it: ends, once, with an answer or an error of ours, and alike however cut. The
    bytes are one answer and what follows it."""
    reads, whole = cut(data)
    one, other = _LOOP.run_until_complete(_answered(reads)), _LOOP.run_until_complete(_answered([whole]))
    if one != other:
        raise FaultError(f"the cut shows: {one} and {other}")


async def _answered(reads: list[bytes]) -> tuple[Any, ...]:
    stats = ReadStats()
    stats.sockets = SimpleNamespace(add=lambda sock: None)  # type: ignore[assignment]  # there is none to ask
    reactor = SimpleNamespace(
        clock=None, looked_ns=0, post=lambda call, *words: call(*words), want_write=lambda *words: None,
        leave=lambda fd: None, drop=lambda sock: None,
    )  # fmt: skip
    owner: Any = SimpleNamespace(
        reactor=reactor, stats=stats, held=[], rearm_ns=10**12, release=lambda connection: None,
        drop=lambda connection: connection.close(),
    )  # fmt: skip
    fake: Any = _Socket([read for read in reads if read])
    connection = Connection(owner, fake, ("http", "h", 1), Place("h", 2, ("h", 1)), None)
    tally = Tally(DIALECTS["chat"], time.monotonic_ns(), LIMIT)
    answer = Answer(asyncio.get_running_loop(), Probe(lambda: None), tally, lambda: None)
    connection.begin(answer)
    while not answer.resolved and not connection.closed:
        if answer.linger is not None:  # the stream's own end: the answer is taken
            break
        connection.on_ready(1)
    if answer.linger is not None:
        answer.linger.cancel()
    elif not answer.resolved:
        raise FaultError("it never ends")
    status = None
    if answer.head.done():
        error = answer.head.exception()
        status = None if error else answer.head.result()[0]
    error = answer.end.exception() if answer.end.done() else None
    cause = error.__cause__ if error is not None else None
    if cause is not None and not isinstance(cause, _KNOWN):
        raise FaultError(f"{type(cause).__name__}: {cause}") from cause
    tally.close(time.monotonic_ns(), error is None)
    found = tally.result(None)
    return status, error is None, found.outcome if status == 200 else None, found.output_count


def event(data: bytes) -> None:
    """The JSON of one event, by every dialect: read, or malformed."""
    for dialect in DIALECTS.values():
        for name in ("message", "error"):
            try:
                piece = dialect.read(SSEEvent(name, data))
                if piece.has_content and not piece.has_output:
                    raise FaultError("content that is no output")
            except MalformedEvent:
                pass
        with suppress(MalformedEvent):
            dialect.read_whole(data)


def prometheus(data: bytes) -> None:
    """A page of metrics."""
    with suppress(NoMetricsError):
        read_page(data.decode("utf-8", "replace"))


# --- files ------------------------------------------------------------------------------------------------------------


def trace(data: bytes) -> None:
    """A recorded trace of any format: described, and each of its rows."""
    path = _PLACE / "trace"
    path.write_bytes(data)
    with _refused():
        for _ in describe_trace(path).lines():
            pass


def log(data: bytes) -> None:
    """A run folder of which one file is these bytes, or a file alone: its records, and their columns."""
    kind, content = (data[0], data[1:]) if data else (0, b"")
    name = LOG_FILES[kind % len(LOG_FILES)]
    folder = _PLACE / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / name).write_bytes(content)
    with _refused():
        run = open_run(folder / name if name.startswith(("other", "stream")) else folder)
        columns(run.records())
        _ = (run.status, run.stop, run.uncounted)


def workload(data: bytes) -> None:
    """A workload's TOML."""
    with _refused():
        parse_workload(data.decode("utf-8", "replace"), "f")


def prompts(data: bytes) -> None:
    """A file of prompts or of whole bodies."""
    path = _PLACE / "prompts.jsonl"
    path.write_bytes(data)
    with _refused():
        read_prompts(path, None)


class _refused:  # noqa: N801 - reads as what it says
    """A refusal in one sentence is right."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, LoadgenError):
            if not error.message or "\n" in error.message:
                raise FaultError(f"not one sentence: {error.message!r}") from error
            return True
        return False


TARGETS: dict[str, Callable[[bytes], None]] = {
    one.__name__: one for one in (sse, http, event, prometheus, trace, log, workload, prompts)
}


# --- where they work --------------------------------------------------------------------------------------------------

_LOOP = asyncio.new_event_loop()
_SHM = Path("/dev/shm")
_PLACE = Path(tempfile.mkdtemp(prefix="loadgen-fuzz-", dir=_SHM if os.access(_SHM, os.W_OK) else None))


def clear() -> None:
    """Remove what the targets wrote."""
    shutil.rmtree(_PLACE, ignore_errors=True)
    _LOOP.close()


# --- what they begin with ---------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[1]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
DELTA = b'data: {"id":"r","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def seeds(name: str) -> Iterator[bytes]:
    """Inputs that a target reads, as far in as they lead."""
    data = ROOT / "tests" / "data"
    if name in ("sse", "http", "event"):
        stream = DELTA * 3 + END
        raws = [path.read_bytes() for path in sorted((data / "captures").glob("*.raw")) if path.stat().st_size < 4000]
        if name == "sse":
            yield from (b"\x05" + one for one in (stream, *(raw.partition(b"\r\n\r\n")[2] for raw in raws)))
        elif name == "http":
            yield from (b"\x07" + raw for raw in raws)
            yield b"\x00" + HEAD + b"Content-Length: %d\r\n\r\n" % len(stream) + stream
            yield b"\x03" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(stream), stream)
            yield b"\x0b" + HEAD + b"\r\n" + stream
            yield b"\x01HTTP/1.1 429 No\r\nContent-Length: 2\r\nRetry-After: 1\r\n\r\nno"
        else:
            for raw in (stream, *raws):
                yield from (line[6:] for line in raw.splitlines() if line.startswith(b"data: "))
    elif name == "prometheus":
        yield (data / "captures" / "vllm-metrics.raw").read_bytes()[-4000:]
    elif name == "trace":
        yield b"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
        burst = b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        yield burst + b"5,ChatGPT,472,18,490,Conversation log\n"
        yield b'{"timestamp": 0, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n' * 2
        qwen = b'{"chat_id":1,"parent_chat_id":-1,"timestamp":6.1,"input_length":5,"output_length":9,'
        yield qwen + b'"type":"text","turn":1,"hash_ids":[1]}\n'
        yield b'[{"id":"a","conversations":[{"from":"human","value":"hi"},{"from":"gpt","value":"ho"}]}]'
    elif name == "log":
        example = ROOT / "results" / "example-vllm"
        yield b"\x00" + b"".join(_lines(example / "requests.jsonl", 3))
        yield b"\x01" + b"".join(_lines(example / "steps.jsonl", 1))
        yield b"\x03" + (example / "manifest.json").read_bytes()
        yield b"\x05" + b"".join(_lines(data / "worked-example.csv", 4))
        yield b"\x04" + b'{"input_lens":[1],"output_lens":[2],"ttfts":[0.1],"itls":[[0.1]],"completed":1}'
    elif name == "workload":
        yield from (path.read_bytes() for path in sorted((ROOT / "workloads").glob("*.toml"))[::6])
    else:
        body = b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}\n'
        yield b'{"prompt": "hi", "output_tokens": 4}\n' + body


def _lines(path: Path, most: int) -> list[bytes]:
    with path.open("rb") as file:
        return [line for _, line in zip(range(most), file, strict=False)]
