"""The two transports against the same bytes: all but their stamps must be the same.

Every capture of a real server, whole and in random pieces, and every way a connection can break off, is replayed byte
for byte to each; the records are compared field by field, the streams' times only in their order.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import RequestOptions
from loadgen.client.discovery import context_of, discover
from loadgen.client.exchange import HttpxSender, Timeouts
from loadgen.client.target import resolve
from loadgen.client.transport import Access, open_client
from loadgen.records import Prompt, Record, RequestSpec
from tests.client.captures import endpoint_of, told_by

CAPTURES = sorted((Path(__file__).parent.parent / "data" / "captures").glob("*.raw"))
SPEC = RequestSpec("s1-000000", Prompt("hi", 5, 8), 1, 1, "measured")
ARMS = {"kernel": Access(), "thread": Access(threaded=True), "httpx": Access(httpx_pool=True)}


async def replay(raw: bytes, cuts: list[int], access: Access, endpoint: str, *, reset: bool = False) -> Record:
    """One request, answered with these bytes cut at these places; then the connection is closed, or reset."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await reader.readuntil(b"\r\n\r\n")
        places = [0, *cuts, len(raw)]
        for start, end in itertools.pairwise(places):
            writer.write(raw[start:end])
            await writer.drain()
            await asyncio.sleep(0)
        if reset:
            await asyncio.sleep(0.02)  # what was sent is read before the reset throws it away
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        else:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with open_client(access, 1, tls=False) as client:
            dialect = DIALECTS[endpoint]
            url = f"http://127.0.0.1:{port}/v1{dialect.path}"
            sender = HttpxSender(client, url, dialect, RequestOptions("m"), zero_ns=0, timeouts=Timeouts(3, 5, 5, 9))
            return await sender.send(SPEC, 0)
    finally:
        server.close()


def without_times(record: Record) -> dict[str, Any]:
    """The record as a dict, its stamps reduced to whether they are there and in which order."""
    order = [record.sent_ns, record.first_byte_ns, record.first_token_ns, record.last_token_ns, record.done_ns]
    known = [stamp for stamp in order if stamp is not None]
    assert known == sorted(known), f"stamps out of order: {order}"
    events = record.events
    flags = tuple(flag for flag in record.flags if flag != "bounded")  # a matter of how the bytes met the reader
    # The words of a broken connection are each library's own.
    error = record.error and (record.error.kind, record.error.code, record.error.excerpt)
    named = {name: getattr(record, name) for name in Record.__slots__}  # type: ignore[attr-defined]
    for name in ("scheduled_ns", "sent_ns", "done_ns", "last_token_ns", "connect", "peer", "sent_bound_us", "events"):
        named.pop(name, None)
    return {
        **named,
        "flags": flags,
        "error": error,
        "first_byte_ns": record.first_byte_ns is not None,
        "first_token_ns": record.first_token_ns is not None,
        "first_content_ns": record.first_content_ns is not None,
        "streamed": record.last_token_ns is not None,
        "tokens": events and list(events.tokens),
    }


def compare(raw: bytes, cuts: list[int], endpoint: str, *, reset: bool = False) -> dict[str, Any]:
    found = {
        name: without_times(asyncio.run(replay(raw, cuts, access, endpoint, reset=reset)))
        for name, access in ARMS.items()
    }
    assert found["kernel"] == found["httpx"]
    assert found["thread"] == found["httpx"]
    return found["kernel"]


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
@pytest.mark.parametrize("pieces", [1, 9])
def test_every_capture_gives_the_same_record(path: Path, pieces: int) -> None:
    raw = path.read_bytes()
    cuts = sorted(random.Random(path.stem).sample(range(1, len(raw)), pieces - 1))
    record = compare(raw, cuts, endpoint_of(path.stem))
    if "-err-" in path.stem:
        assert record["outcome"] == "error" and record["error"][0] == "http"
    elif path.stem.startswith(("vllm-chat", "vllm-comp", "vllm-resp", "vllm-tools")):
        assert record["outcome"] == "ok"
        prompt, output = told_by(path.stem)
        assert record["input_tokens"].server == prompt
        if output is not None:
            assert (record["output_tokens"].count, record["output_tokens"].source) == (output, "usage")
        assert ("not_streamed" in record["flags"]) == ("nonstream" in path.stem)
        assert record["streamed"] and record["first_token_ns"] != ("nonstream" in path.stem)


@pytest.mark.parametrize("arm", ["kernel", "httpx"])
def test_captured_listings_are_read(arm: str) -> None:
    """The model list, the version and the settings among the metrics, from a socket."""
    folder = CAPTURES[0].parent

    def answers(path: str) -> bytes:
        name = {"/v1/models": "models", "/version": "version", "/metrics": "metrics"}.get(path, "err-notfound")
        return (folder / f"vllm-{name}.raw").read_bytes()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(answers(head.split()[1].decode()))
        await writer.drain()
        writer.close()

    async def main() -> Any:
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        try:
            async with open_client(ARMS[arm], 4, tls=False) as client:
                port = server.sockets[0].getsockname()[1]
                return await discover(client, resolve(f"http://127.0.0.1:{port}"))
        finally:
            server.close()

    found = asyncio.run(main())
    assert (found.kind, found.version, [model.id for model in found.models]) == ("vllm", "0.32.0", ["tiny"])
    assert context_of(found, "tiny") == 2048
    assert found.flags["enable_prefix_caching"] in ("True", "False")


USAGE = next(path for path in CAPTURES if path.stem == "vllm-chat-continuous-usage").read_bytes()


@given(end=st.integers(1, len(USAGE)), reset=st.booleans(), cuts=st.lists(st.integers(1, len(USAGE) - 1), max_size=6))
@settings(max_examples=25)
def test_a_stream_that_breaks_off_anywhere_is_the_same_record(end: int, reset: bool, cuts: list[int]) -> None:
    raw = USAGE[:end]
    record = compare(raw, sorted({cut for cut in cuts if cut < end}), "chat", reset=reset)
    body = raw.partition(b"\r\n\r\n")[2]
    if b"[DONE]" in body:
        assert record["outcome"] == "ok"
    elif b'"finish_reason":"length"' not in body:
        assert record["outcome"] in ("error", "incomplete")


LINES = (
    b'{"message":{"role":"assistant","thinking":"t","content":""},"done":false}\n'
    b'{"message":{"content":"a"},"done":false}\n'
    b'{"message":{"content":"","tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]},"done":false}\n'
    b'{"message":{"content":""},"done":true,"done_reason":"stop","prompt_eval_count":5,"eval_count":3}\n'
)
TYPED = next(path for path in CAPTURES if path.stem == "vllm-resp-tools").read_bytes()
OTHERS = {
    "ollama_chat": b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n%b"
    % (len(LINES), LINES),
    "responses": TYPED,
}


@pytest.mark.parametrize("endpoint", OTHERS)
@given(share=st.floats(0, 1), reset=st.booleans(), cuts=st.lists(st.integers(1, 4000), max_size=6))
@settings(max_examples=10)
def test_other_apis_are_the_same_record_too(endpoint: str, share: float, reset: bool, cuts: list[int]) -> None:
    raw = OTHERS[endpoint]
    raw = raw[: max(1, round(share * len(raw)))]
    record = compare(raw, sorted({cut for cut in cuts if cut < len(raw)}), endpoint, reset=reset)
    if raw == OTHERS[endpoint]:
        assert record["outcome"] == "ok"


def test_the_comparison_sees_a_difference() -> None:
    one = asyncio.run(replay(USAGE, [], ARMS["kernel"], "chat"))
    other = replace(one, finish_reason="stop")
    assert without_times(one) != without_times(other)
