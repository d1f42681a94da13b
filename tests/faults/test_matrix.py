"""The fault matrix over real sockets: each cell with its one right outcome, by both transports; none hangs, what came
before and after on other connections is whole."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
import trustme

from loadgen.client.exchange import Timeouts
from loadgen.client.loop import run
from loadgen.client.transport import Access
from loadgen.records import Record
from tests.cases.support import TRANSPORTS, open_sender, spec
from tests.cycles import cycles
from tests.faults.matrix import CELLS, CLOSE, GOOD, HALF, LIMIT, PHASES, RESET, SILENCE, Cell, Part

HANGS_S = 30.0
TIMEOUTS = Timeouts(connect=4.0, first_token=2.5, idle=2.5, total=20)
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def told(record: Record) -> str:
    """A record's outcome with its kind."""
    kind = record.error.kind if record.error else record.timeout
    return f"{record.outcome}:{kind}" if kind and record.outcome in ("error", "timeout") else record.outcome


async def read_request(reader: asyncio.StreamReader) -> int:
    """Read one; → its number."""
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    await reader.readexactly(int(lengths[0]))
    [name] = [line.partition(b":")[2] for line in head.split(b"\r\n") if line.lower().startswith(b"x-request-id")]
    return int(name.rpartition(b"-")[2])


async def play(parts: Sequence[Part], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The parts, and after them whatever else is asked for, well answered."""
    for part in parts:
        if isinstance(part, bytes):
            writer.write(part)
            await writer.drain()
        elif isinstance(part, float):
            await asyncio.sleep(part)
        elif part == RESET:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            writer.transport.abort()
            return
        elif part == CLOSE:
            writer.close()
            return
        elif part == HALF:
            writer.write_eof()
            await reader.read()
            writer.close()
            return
        elif part == SILENCE:
            await reader.read()
            writer.close()
            return


def answering(parts: Sequence[Part], ends: list[asyncio.StreamWriter] | None = None) -> Serve:
    """Plays the parts to request 1, also when it is sent again, and answers all others well."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if ends is not None:
            ends.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while not writer.is_closing():
                number = await read_request(reader)
                await play(parts if number == 1 else [GOOD], reader, writer)
        writer.close()

    return serve


@asynccontextmanager
async def server(parts: Sequence[Part], *, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that is `answering`, until its end, which ends its connections; → its port."""
    open_: list[asyncio.StreamWriter] = []
    one = await asyncio.start_server(answering(parts, open_), "127.0.0.1", 0, ssl=tls)
    try:
        yield one.sockets[0].getsockname()[1]
    finally:
        one.close()
        for writer in open_:
            writer.transport.abort()


async def sent(transport: str, url: str, access: Access | None = None, requests: int = 3) -> list[Record]:
    """So many requests one after the other; a hang is a failure."""
    with anyio.fail_after(HANGS_S):
        async with open_sender(
            transport, url, timeouts=TIMEOUTS, access=access, connections=1, max_event_bytes=LIMIT
        ) as sender:
            return [await sender.send(spec(n), time.monotonic_ns()) for n in range(requests)]


async def faults_of(transport: str, cell: Cell) -> str | None:
    """What is wrong with what came of a cell."""
    where = f"{cell.fault} in {cell.phase}"
    try:
        async with server(cell.parts) as port:
            records = await sent(transport, f"http://127.0.0.1:{port}")
    except Exception as error:
        return f"{where}: {type(error).__name__} {error}"
    outcomes = [told(record) for record in records]
    if outcomes != ["ok", cell.right, "ok"]:
        return f"{where}: {outcomes}, right is {cell.right}; {records[1].error}"
    if records[1].status != cell.status:
        return f"{where}: status {records[1].status}, right is {cell.status}"
    if cell.phase in ("tokens", "end") and not (records[1].output_tokens.count or records[1].events):
        return f"{where}: the tokens that had come are lost"
    return None


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_each_cell_has_one_right_outcome_and_its_neighbours_are_whole(transport: str) -> None:
    async def main() -> list[str]:
        found = await asyncio.gather(*(faults_of(transport, cell) for cell in CELLS))
        wrong = []
        for cell, fault in zip(CELLS, found, strict=True):
            for _ in range(3):  # what took too long may be this machine, which played all cells at once
                if fault is None or "timeout" not in fault:
                    break
                fault = await faults_of(transport, cell)
            wrong += [fault] if fault else []
        return wrong

    with cycles() as kept:
        wrong = run(main)
    assert not wrong, "\n".join(wrong)
    # Three requests a cell were sent. httptools keeps what its callback raised, where headers have no end.
    assert max(kept.values(), default=0) <= 3, kept


def test_the_matrix_is_whole() -> None:
    cells = {(cell.fault, cell.phase) for cell in CELLS}
    for fault in ("reset", "closed", "half closed", "black hole", "slow drip", "garbage", "too long"):
        assert {phase for name, phase in cells if name == fault} == set(PHASES), fault
    assert len(CELLS) > 80


# --- before there is a connection -------------------------------------------------------------------------------------


def one(transport: str, url: str, access: Access | None = None) -> str:
    [record] = run(sent, transport, url, access, 1)
    assert record.status is None and record.first_byte_ns is None
    return told(record)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_look_up_and_connect(transport: str) -> None:
    """Several addresses, black holes among them, are in tests/client/test_addresses.py; here one address, or none."""
    assert one(transport, "http://no-such-host.invalid") == "error:dns"
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    assert one(transport, f"http://127.0.0.1:{port}") == "error:connect"
    with socket.socket() as full:  # a listener that takes nobody: what is sent to it vanishes
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        assert one(transport, f"http://127.0.0.1:{port}") == "timeout:connect"
        for filler in fillers:
            filler.close()


# --- the handshake ----------------------------------------------------------------------------------------------------

HANDSHAKES: dict[str, tuple[tuple[Part, ...], str]] = {
    "reset": ((RESET,), "error:tls"),
    "closed": ((CLOSE,), "error:tls"),
    "half closed": ((HALF,), "error:tls"),
    "black hole": ((SILENCE,), "timeout:connect"),
    "slow drip": ((b"\x16\x03\x03\x40\x00", *((b"\x02", 0.05) * 200)), "timeout:connect"),
    "garbage": ((b"HTTP/1.1 400 Bad Request\r\n\r\n", CLOSE), "error:tls"),
    "an alert": ((b"\x15\x03\x03\x00\x02\x02\x28", CLOSE), "error:tls"),
    "oversized": ((b"\x16\x03\x03\xff\xff" + b"x" * 65535, CLOSE), "error:tls"),
}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_tls_handshakes(transport: str) -> None:
    async def handshake(parts: Sequence[Part]) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await reader.read(1)
                await play(parts, reader, writer)
            writer.close()

        one = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            url = f"https://127.0.0.1:{one.sockets[0].getsockname()[1]}"
            [record] = await sent(transport, url, requests=1)
            return told(record)
        finally:
            one.close()

    async def main() -> list[str]:
        return await asyncio.gather(*(handshake(parts) for parts, _ in HANDSHAKES.values()))

    right = {name: outcome for name, (_, outcome) in HANDSHAKES.items()}
    for _ in range(3):
        found = dict(zip(HANDSHAKES, run(main), strict=True))
        if found == right:
            break
    assert found == right


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("fault", ["none", "expired", "another host", "unknown authority", "not yet valid"])
def test_certificates(transport: str, fault: str, tmp_path: Path) -> None:
    ca = trustme.CA()
    now = datetime.datetime.now(datetime.UTC)
    days = datetime.timedelta(days=9)
    if fault == "expired":
        cert = ca.issue_cert("127.0.0.1", not_before=now - 3 * days, not_after=now - days)
    elif fault == "not yet valid":
        cert = ca.issue_cert("127.0.0.1", not_before=now + days, not_after=now + 3 * days)
    else:
        cert = ca.issue_cert("elsewhere.example" if fault == "another host" else "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    cert.configure_cert(context)
    trusted = tmp_path / "ca.pem"
    (trustme.CA() if fault == "unknown authority" else ca).cert_pem.write_to_path(str(trusted))

    async def main() -> list[Record]:
        async with server([GOOD], tls=context) as port:
            return await sent(transport, f"https://127.0.0.1:{port}", Access(ca_file=str(trusted)), requests=2)

    outcomes = [told(record) for record in run(main)]
    assert outcomes == (["ok", "ok"] if fault == "none" else ["error:tls", "error:tls"])


# --- a server that goes and comes back --------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_listener_that_is_gone_and_back(transport: str) -> None:
    """One client all along: ok, refused, ok again, at the same port. (Whole runs of it: cases R05.)"""

    async def restarted() -> list[str]:
        async with contextlib.AsyncExitStack() as first:
            port = await first.enter_async_context(server([GOOD]))
            async with open_sender(transport, f"http://127.0.0.1:{port}", timeouts=TIMEOUTS, connections=1) as sender:
                outcomes = [told(await sender.send(spec(0), time.monotonic_ns()))]
                await first.aclose()
                await asyncio.sleep(0.05)
                outcomes.append(told(await sender.send(spec(1), time.monotonic_ns())))
                again = await asyncio.start_server(answering([GOOD]), "127.0.0.1", port)
                outcomes.append(told(await sender.send(spec(2), time.monotonic_ns())))
                again.close()
                return outcomes

    assert run(restarted) == ["ok", "error:connect", "ok"]
