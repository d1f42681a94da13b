"""Any legal stream, delivered in any pieces, comes to what the reference reader says: the tally on made-up stamps, and
whole exchanges over real sockets on every transport.

LOADGEN_FUZZ_STREAMS=20000 (`make fuzz-streams`) asks for so many streams; their seeds count from 0, so that more of
them begin with the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import trustme

from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import RequestOptions
from loadgen.client.exchange import HttpxSender, Timeouts
from loadgen.client.loop import run
from loadgen.client.tally import Tally
from loadgen.client.transport import Access, open_client
from loadgen.records import Prompt, Record, RequestSpec
from tests.client.legal_streams import Stream, cuts_of, legal_stream
from tests.client.reference_reader import Figures, Read, figures_of, reference
from tests.client.streams import MS, SENT

STREAMS = int(os.environ.get("LOADGEN_FUZZ_STREAMS", "500"))
SERVED = STREAMS // 6
BLOCKS = 4


# --- the tally --------------------------------------------------------------------------------------------------------


def reads_of(r: Random, stream: Stream) -> list[Read]:
    """The body in stamped reads; a gap of 0 makes them parts of one read."""
    gaps = r.choice([[MS], [MS], [0, 1, MS, 499, 2_000_500], [0, MS]])
    points = [0, *sorted({cut for cut in cuts_of(r, stream) if 0 < cut < len(stream.body)}), len(stream.body)]
    reads, now, previous = [], SENT, SENT
    for start, end in pairwise(points):
        gap = r.choice(gaps)
        if gap:
            previous, now = now, now + gap
        reads.append(Read(stream.body[start:end], now, previous))
    return reads


def tallied(r: Random, stream: Stream, reads: list[Read], end: tuple[int, bool] | None) -> Tally:
    """Fed, or held and parsed when there is time, as the transports do it."""
    tally = Tally(DIALECTS[stream.endpoint], SENT)
    fed = r.choice([0.0, 0.0, 1.0, 0.2])
    for read in reads:
        if r.random() < fed:
            tally.feed(read.data, read.stamp_ns, read.previous_ns)
        elif tally.hold(read.data, read.stamp_ns, read.previous_ns):
            while tally.parse_pending():
                pass
        elif r.random() < 0.2:
            tally.parse_pending(r.choice([1, 64]))
    if end is not None:
        tally.close(*end)
    return tally


def as_meant(stream: Stream, expected: Figures) -> None:
    """The reference itself, against what the stream was made of."""
    rows = [row for row in expected.rows if row.output]
    texts = [json.loads(json.dumps(text)) for text in stream.texts]  # two halves of a pair that meet are one character
    assert [row.text + "".join(name + more for _, _, name, more in row.calls) for row in rows] == texts
    assert not expected.malformed_events and not expected.ignored_events
    whole = {"ok"} if texts else {"empty"}
    cut = {"incomplete"} if stream.tail == "cut" or (stream.tail == "finish" and not expected.finish_reason) else set()
    assert expected.outcome in ({"error"} if stream.tail == "error" else whole | cut)


def difference(stream: Stream, seed: int) -> dict[str, Any]:
    """Where the tally and the reference differ: name → (tally, reference)."""
    r = Random(seed)
    reads = reads_of(r, stream)
    end = r.choice([(SENT + 9_000_000 * MS, True)] * 3 + [(SENT + 9_000_000 * MS, False), None])
    asked, usage_asked = r.choice([None, 0, 5, 100]), r.random() < 0.8
    expected = reference(stream.endpoint, SENT, reads, end, asked, usage_asked=usage_asked).compared()
    result = figures_of(tallied(r, stream, reads, end).result(asked, usage_asked=usage_asked))
    return {name: (result[name], expected[name]) for name in expected if result[name] != expected[name]}


def smallest(stream: Stream, seed: int) -> Stream:
    """The stream without the blocks that its failure does not need."""
    starts = [0, *stream.ends]
    blocks = [stream.body[a:b] for a, b in pairwise(starts)]
    at = 0
    while at < len(blocks):
        fewer = blocks[:at] + blocks[at + 1 :]
        tried = Stream.of(stream.endpoint, fewer)
        if fewer and difference(tried, seed):
            blocks = fewer
        else:
            at += 1
    return Stream.of(stream.endpoint, blocks)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_legal_stream_is_read_as_the_reference_reads_it(block: int) -> None:
    for seed in range(block, STREAMS, BLOCKS):
        stream = legal_stream(Random(seed))
        if difference(stream, seed):
            stream = smallest(stream, seed)
            pytest.fail(f"seed {seed}: {stream.endpoint} {stream.body[:3000]!r}: {difference(stream, seed)}")
        end = (SENT + 9_000_000 * MS, True)
        as_meant(stream, reference(stream.endpoint, SENT, [Read(stream.body, SENT + MS, SENT)], end, None))


def test_the_comparison_sees_a_difference() -> None:
    stream = legal_stream(Random(1))
    one = reference(stream.endpoint, SENT, [Read(stream.body, SENT + MS, SENT)], None, None).compared()
    other = Tally(DIALECTS[stream.endpoint], SENT)
    other.feed(stream.body[: stream.ends[len(stream.ends) // 2]], SENT + MS, SENT)
    assert figures_of(other.result(None)) != one


# --- over sockets -----------------------------------------------------------------------------------------------------


@dataclass
class Served:
    """A stream as it goes over the wire: pieces, each one write, and the time before each was written."""

    stream: Stream
    pieces: list[bytes]
    close: bool
    body_starts: list[int]  # how much of the body went before each piece, and in all
    written_ns: list[int]

    @classmethod
    def of(cls, r: Random, stream: Stream) -> Served:
        """In HTTP chunks that end anywhere, TCP segments that end anywhere, and one of the three framings."""
        body, how = stream.body, r.choice(["chunked", "chunked", "length", "close"])
        cuts = sorted({cut for cut in cuts_of(r, stream)[:300] if 0 < cut < len(body)})
        chunks = [body[a:b] for a, b in pairwise([0, *cuts, len(body)]) if b > a]
        head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n" % DIALECTS[stream.endpoint].media.encode()
        if how == "chunked":
            content = [b"%x\r\n%b\r\n" % (len(one), one) for one in chunks]
            head, tail = head + b"Transfer-Encoding: chunked\r\n\r\n", b"0\r\n\r\n"
        else:
            content, tail = chunks, b""
            head += b"\r\n" if how == "close" else b"Content-Length: %d\r\n\r\n" % len(body)
        # Bytes of the wire, each with the number of body bytes that are complete with it.
        wire, upto, done = [head], [0], 0
        for one, chunk in zip(content, chunks, strict=True):
            done += len(chunk)
            wire.append(one)
            upto.append(done)
        wire.append(tail)
        upto.append(done)
        if r.random() < 0.5:  # segments that do not know of chunks
            raw = b"".join(wire)
            places = sorted({r.randrange(1, len(raw)) for _ in range(r.choice([1, 5, 20]))})
            pieces = [raw[a:b] for a, b in pairwise([0, *places, len(raw)])]
            return cls(stream, pieces, how == "close", [], [])
        return cls(stream, wire, how == "close", [0, *upto], [])

    def check(self, record: Record) -> None:
        """The record says what the reference says; an event is never stamped before its last byte was written."""
        stream = self.stream
        reads = [Read(stream.body, MS, 0)]
        expected = reference(stream.endpoint, 0, reads, (2 * MS, True), 8, usage_asked=True)
        assert record.events is not None
        got: dict[str, Any] = {
            "outcome": record.outcome,
            "error": record.error and (record.error.kind, record.error.message, record.error.code),
            "flags": {*record.flags} - {"bounded"},
            "input_server": record.input_tokens.server,
            "input_cached": record.input_tokens.cached,
            "output_count": record.output_tokens.count,
            "output_source": record.output_tokens.source,
            "first_event_tokens": record.first_event_tokens,
            "tokens": record.events.tokens,
            "finish_reason": record.finish_reason,
            "server_id": record.server_id,
        }
        if any(row.output for row in expected.rows):  # else it shows the bytes, as far as they were looked at
            got["excerpt"] = record.excerpt
        want = {**expected.compared(), "flags": {*expected.flags} - {"bounded"}, "tokens": expected.events[1]}
        assert got == {name: want[name] for name in got}

        stamps = [record.sent_ns, record.first_byte_ns, record.first_token_ns, record.last_token_ns, record.done_ns]
        known = [one for one in stamps if one is not None]
        assert known == sorted(known)
        assert min(record.events.gap_us, default=0) >= 0
        outputs = [row for row in expected.rows if row.output]
        assert (record.first_token_ns is None) == (not outputs)
        assert (record.first_content_ns is None) == (not any(row.content for row in outputs))
        if self.body_starts and outputs and record.first_token_ns and record.last_token_ns:
            by_piece = reference(stream.endpoint, 0, self.reads(), (2 * MS, True), 8)
            assert by_piece.first_token_ns is not None and by_piece.last_token_ns is not None
            assert record.first_token_ns >= by_piece.first_token_ns - MS // 10
            assert record.last_token_ns >= by_piece.last_token_ns - MS // 10

    def reads(self) -> list[Read]:
        """Each piece's part of the body as a read at the time it was written."""
        bounds = [*self.body_starts[1:]]
        parts = [self.stream.body[a:b] for a, b in pairwise([0, *bounds])]
        return [Read(part, at, at) for part, at in zip(parts, self.written_ns, strict=True) if part]


async def serve_all(served: list[Served], access: Access, tls: tuple[ssl.SSLContext, str] | None) -> None:
    """Each stream in turn to one client, whose connections are kept where the framing allows it."""
    todo = iter(served)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
                one = next(todo)
                for piece in one.pieces:
                    one.written_ns.append(time.monotonic_ns())
                    writer.write(piece)
                    await asyncio.sleep(0)
                await writer.drain()
                if one.close:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async with AsyncExitStack() as stack:
        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls[0] if tls else None)
        stack.callback(server.close)
        scheme, port = "https" if tls else "http", server.sockets[0].getsockname()[1]
        if tls:
            access = replace(access, ca_file=tls[1])
        client = await stack.enter_async_context(open_client(access, 1, tls=bool(tls)))
        for seed, one in enumerate(served):
            dialect = DIALECTS[one.stream.endpoint]
            url, options = f"{scheme}://127.0.0.1:{port}{dialect.path}", RequestOptions("m")
            sender = HttpxSender(client, url, dialect, options, zero_ns=0, timeouts=Timeouts(5, 20, 20, 20))
            spec = RequestSpec(f"s1-{seed:06d}", Prompt("hi", 5, 8), 1, 1, "measured")
            record = await sender.send(spec, time.monotonic_ns())
            try:
                one.check(record)
            except AssertionError as error:
                error.add_note(f"stream {seed}: {one.pieces}"[:3000])
                raise


ARMS = {"kernel": Access(), "thread": Access(threaded=True), "httpx": Access(httpx_pool=True)}


@pytest.mark.parametrize("arm", [*ARMS, "own loop"])
def test_a_legal_stream_over_a_socket(arm: str) -> None:
    served = [Served.of(Random(-1 - seed), legal_stream(Random(seed))) for seed in range(SERVED)]
    if arm == "own loop":
        run(serve_all, served, ARMS["kernel"], None)
    else:
        asyncio.run(serve_all(served, ARMS[arm], None))


@pytest.mark.parametrize("arm", ["kernel", "httpx"])
def test_a_legal_stream_over_tls(arm: str, tmp_path: Any) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    served = [Served.of(Random(-1 - seed), legal_stream(Random(seed))) for seed in range(SERVED // 4)]
    asyncio.run(serve_all(served, ARMS[arm], (context, str(tmp_path / "ca.pem"))))
