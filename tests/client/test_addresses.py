"""Names with several addresses, over real sockets: 127.0.0.1, 127.0.0.2, … stand for the replicas behind a name."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from loadgen.client.addresses import STAGGER_S, Addresses, Found, Place, connect, look_up
from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import RequestOptions
from loadgen.client.exchange import HttpxSender, Timeouts
from loadgen.client.transport import Access, open_client
from loadgen.records import Record
from loadgen.simulator.scripted import DONE, C, ScriptedServer, T
from tests.cases.support import TRANSPORTS, spec

NAME = "replicas.test"
TWO, THREE = ("127.0.0.1", "127.0.0.2"), ("127.0.0.1", "127.0.0.2", "127.0.0.3")


class Names:
    """A resolver of one name: what it was asked, and what it answers."""

    def __init__(self, *hosts: str) -> None:
        self.hosts: Sequence[str] = hosts
        self.asked = 0

    async def __call__(self, host: str, port: int) -> Found:
        assert host == NAME
        self.asked += 1
        await asyncio.sleep(0.002)
        if not self.hosts:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [place(one, port) for one in self.hosts]


def place(host: str, port: int) -> tuple[int, Any]:
    return (socket.AF_INET6, (host, port, 0, 0)) if ":" in host else (socket.AF_INET, (host, port))


@asynccontextmanager
async def replicas(*hosts: str, script: Any = None, **options: Any) -> AsyncIterator[list[ScriptedServer]]:
    """A server on each of these addresses, all on one port."""
    async with AsyncExitStack() as stack:
        servers: list[ScriptedServer] = []
        for host in hosts:
            port = servers[0].port if servers else 0
            server = ScriptedServer(script or [T(3), C("a"), DONE], host=host, port=port, **options)
            servers.append(await stack.enter_async_context(server))
        yield servers


@contextmanager
def black_hole(host: str, port: int) -> Iterator[None]:
    """An address that takes connections and never completes them: its queue of them is full."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(0)
        filling = [socket.socket() for _ in range(3)]
        for one in filling:
            one.setblocking(False)
            one.connect_ex((host, port))
        try:
            yield
        finally:
            for one in filling:
                one.close()


@asynccontextmanager
async def client_of(
    transport: str,
    names: Addresses,
    port: int,
    *,
    connections: int = 4,
    timeouts: Timeouts | None = None,
    **access: Any,
) -> AsyncIterator[HttpxSender]:
    how = replace(Access(**access), httpx_pool=transport == "httpx")
    async with open_client(how, connections, tls=False, addresses=names) as client:
        yield HttpxSender(
            client,
            f"http://{NAME}:{port}/v1/chat/completions",
            DIALECTS["chat"],
            RequestOptions("m"),
            zero_ns=0,
            timeouts=timeouts or Timeouts(3, 5, 5, 10),
        )


async def load(sender: HttpxSender, concurrency: int, each: int, pause_s: float = 0.0) -> list[Record]:
    """A closed loop: each of `concurrency` slots sends `each` requests."""
    records: list[Record] = []

    async def slot() -> None:
        for n in range(each):
            if n and pause_s:
                await anyio.sleep(pause_s)
            records.append(await sender.send(spec(n), time.monotonic_ns()))

    async with anyio.create_task_group() as group:
        for _ in range(concurrency):
            group.start_soon(slot)
    return records


def hosts_of(records: Sequence[Record]) -> dict[str, int]:
    return dict(Counter((record.peer or "").rpartition(":")[0] for record in records))


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        with anyio.fail_after(20):
            await main()

    anyio.run(within)


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# --- evenness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 3, 6])
def test_connections_are_spread_evenly(transport: str, concurrency: int) -> None:
    async def main() -> None:
        names = Names(*THREE)
        known = Addresses(names)
        async with (
            replicas(*THREE) as servers,
            client_of(transport, known, servers[0].port, connections=concurrency) as sender,
        ):
            records = await load(sender, concurrency, 30 // concurrency)
            opened = [server.connections for server in servers]
        assert {record.outcome for record in records} == {"ok"}
        assert max(opened) - min(opened) <= 1
        assert names.asked == 1, "a name is not looked up for every connection"
        if transport == "kernel":  # it also chooses among the connections that it has
            assert max(hosts_of(records).values()) - min(hosts_of(records).values()) <= 2 * concurrency
            assert set(hosts_of(records)) == set(THREE), "even a single slot uses all of them"
        assert [one.busy for one in known.known(NAME, servers[0].port)] == [0, 0, 0]

    run(main)


def test_only_who_waited_for_the_look_up_says_how_long_it_took(transport: str) -> None:
    async def main() -> None:
        async with (
            replicas(*TWO) as servers,
            client_of(transport, Addresses(Names(*TWO)), servers[0].port, reconnect_every=1) as sender,
        ):
            records = await load(sender, 1, 4)
        connects = [record.connect for record in records]
        assert all(connect is not None and connect.tcp_us is not None for connect in connects)
        waited = [connect.dns_us for connect in connects if connect is not None]
        assert waited[0] is not None
        assert waited[0] >= 1500
        assert waited[1:] == [None, None, None]

    run(main)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_several_processes_begin_at_different_addresses(first: int) -> None:
    async def main() -> None:
        known = Addresses(Names(*THREE), first=first)
        places, _ = await known.find(NAME, 80)
        order = []
        for _ in range(3):
            order.append(known.pick(places))
            order[-1].take()
        assert order == places[first:] + places[:first]

    run(main)


def test_families_take_turns() -> None:
    async def main() -> None:
        known = Addresses(Names("::1", "::2", "::3", "127.0.0.1", "::1"))
        places, _ = await known.find(NAME, 80)
        assert [str(one) for one in places] == ["[::1]:80", "127.0.0.1:80", "[::2]:80", "[::3]:80"]

    run(main)


# --- addresses that do not answer -----------------------------------------------------------------------------------


def test_l27_an_address_that_refuses_is_passed_over(transport: str) -> None:
    async def main() -> None:
        known = Addresses(Names(*THREE))
        async with (
            replicas("127.0.0.1", "127.0.0.3") as servers,
            client_of(transport, known, servers[0].port, reconnect_every=1) as sender,
        ):
            records = await load(sender, 2, 10)
        assert {record.outcome for record in records} == {"ok"}
        assert hosts_of(records) == {"127.0.0.1": 10, "127.0.0.3": 10}
        assert known.faults == {f"127.0.0.2:{servers[0].port}": "connection refused"}

    run(main)


def test_l27_a_black_hole_costs_a_moment_once(transport: str) -> None:
    async def main() -> None:
        async with replicas("127.0.0.2") as servers:
            port = servers[0].port
            known = Addresses(Names(*TWO))
            with black_hole("127.0.0.1", port):
                async with client_of(transport, known, port, reconnect_every=1) as sender:
                    records = await load(sender, 1, 6)
        assert {record.outcome for record in records} == {"ok"}
        assert hosts_of(records) == {"127.0.0.2": 6}
        took = [record.connect.tcp_us for record in records if record.connect is not None]
        assert len(took) == 6
        assert STAGGER_S * 1e6 * 0.9 <= (took[0] or 0) < 2e6
        assert sum(us > STAGGER_S * 5e5 for us in took if us is not None) == 1, "it is remembered"
        assert list(known.faults) == [f"127.0.0.1:{port}"]
        # The wait for a connection is no part of any latency.
        assert all((record.first_token_ns or 0) - (record.sent_ns or 0) < STAGGER_S * 1e9 for record in records)

    run(main)


def test_when_none_answers_the_request_fails_once_all_were_tried(transport: str) -> None:
    async def main() -> None:
        names = Names(*TWO)
        async with client_of(transport, Addresses(names), 1) as sender:
            [record] = await load(sender, 1, 1)
        assert record.outcome == "error"
        assert record.error is not None
        assert record.error.kind == "connect"
        assert "refused" in record.error.message

    run(main)


def test_the_connect_timeout_still_holds(transport: str) -> None:
    async def main() -> None:
        async with replicas("127.0.0.3") as servers:
            port = servers[0].port
            with black_hole("127.0.0.1", port), black_hole("127.0.0.2", port):
                timeouts = Timeouts(0.6, 5, 5, 10)
                async with client_of(transport, Addresses(Names(*TWO)), port, timeouts=timeouts) as sender:
                    [record] = await load(sender, 1, 1)
        assert (record.outcome, record.timeout) == ("timeout", "connect")

    run(main)


def test_an_address_that_comes_back_is_found_by_one_connection() -> None:
    """…and does not get everything until it has caught up."""

    async def main() -> None:
        known = Addresses(Names(*TWO), bad_s=0.2)
        async with replicas("127.0.0.1") as servers:
            port = servers[0].port
            async with client_of(TRANSPORTS[-1], known, port, reconnect_every=1) as sender:
                assert hosts_of(await load(sender, 1, 20)) == {"127.0.0.1": 20}
                await anyio.sleep(0.25)
                async with ScriptedServer([T(3), C("a"), DONE], host="127.0.0.2", port=port):
                    found = hosts_of(await load(sender, 1, 20))
                    # On a busy machine one attempt may be overtaken by the one to the other address.
                    assert set(found.values()) <= {9, 10, 11}, found

    run(main)


def test_a_name_is_looked_up_again_without_anyone_waiting() -> None:
    async def main() -> None:
        names = Names(*TWO)
        known = Addresses(names, lifetime_s=0.0)
        before, waited = await known.find(NAME, 80)
        assert waited is not None
        names.hosts = ("127.0.0.2", "127.0.0.3")
        again, waited = await known.find(NAME, 80)
        assert (again, waited) == (before, None)
        await anyio.sleep(0.02)
        assert [str(one) for one in known.known(NAME, 80)] == ["127.0.0.2:80", "127.0.0.3:80"]
        assert known.known(NAME, 80)[0] is before[1], "what is known of an address is kept"
        names.hosts = ()
        await known.find(NAME, 80)
        await anyio.sleep(0.02)
        assert len(known.known(NAME, 80)) == 2, "a look-up that fails leaves what was known"

    run(main)


def test_l28_a_name_that_does_not_resolve(transport: str) -> None:
    async def main() -> None:
        names = Names()
        async with client_of(transport, Addresses(names), 80) as sender:
            records = await load(sender, 3, 1)
        assert {(r.outcome, r.error.kind if r.error else None) for r in records} == {("error", "dns")}

    run(main)


@pytest.mark.parametrize("host", ["a" * 64 + ".test", "a..test"])
def test_what_can_be_no_name_does_not_resolve(host: str) -> None:
    with pytest.raises(socket.gaierror, match="is no name"):
        anyio.run(look_up, host, 80)


@pytest.mark.parametrize(("number", "marked"), [(errno.EMFILE, 0), (errno.ENOBUFS, 0), (errno.ECONNREFUSED, 2)])
def test_what_we_lack_ourselves_marks_no_address(number: int, marked: int) -> None:
    async def dial(one: Place) -> None:
        raise OSError(number, "no")

    async def close(_: None) -> None:
        pass

    async def main() -> None:
        known = Addresses(Names(*TWO))
        with pytest.raises(OSError, match="no"):
            await known.open(NAME, 80, dial, close)
        assert len(known.faults) == sum(one.bad_until > 0 for one in known.known(NAME, 80)) == marked

    run(main)


def test_a_pinned_name_leads_to_the_address_that_answered_first(transport: str) -> None:
    async def main() -> None:
        names = Names(*THREE)
        known = Addresses(names, pinned=True, lifetime_s=0.0)
        async with (
            replicas("127.0.0.2", "127.0.0.3") as servers,
            client_of(transport, known, servers[0].port, reconnect_every=1) as sender,
        ):
            records = await load(sender, 1, 6)
        assert hosts_of(records) == {"127.0.0.2": 6}
        assert names.asked == 1, "it is not looked up again"

    run(main)


def test_the_loser_of_a_race_is_closed() -> None:
    async def main() -> None:
        closed: list[socket.socket] = []

        async def dial(one: Place) -> socket.socket:
            sock = await connect(one)
            if one.address[0] == "127.0.0.1":
                await asyncio.sleep(STAGGER_S + 0.05)  # it connects, but late
            return sock

        async def close(sock: socket.socket) -> None:
            closed.append(sock)
            sock.close()

        known = Addresses(Names(*TWO))
        async with replicas(*TWO) as servers:
            sock, winner, _ = await known.open(NAME, servers[0].port, dial, close)
            assert winner.address[0] == "127.0.0.2"
            assert [one.busy for one in known.known(NAME, servers[0].port)] == [0, 1]
            sock.close()
            winner.leave()

    run(main)


def test_a_survey_says_who_does_not_answer() -> None:
    async def main() -> None:
        known = Addresses(Names(*THREE))
        async with replicas("127.0.0.1", "127.0.0.2") as servers:
            port = servers[0].port
            assert await known.survey(NAME, port) == (
                f"{NAME} has 3 addresses, used evenly but for 127.0.0.3:{port} (connection refused)",
            )
            assert await known.survey("127.0.0.1", port) == ()

    run(main)


# --- connections that end -------------------------------------------------------------------------------------------


def test_l03_a_server_that_closes_idle_connections(transport: str) -> None:
    async def main() -> None:
        async with (
            replicas(*TWO, idle_close=0.1) as servers,
            client_of(transport, Addresses(Names(*TWO)), servers[0].port) as sender,
        ):
            records = await load(sender, 2, 3, pause_s=0.15)
        assert {record.outcome for record in records} == {"ok"}

    run(main)


@pytest.mark.parametrize("every", [1, 3, None])
def test_a_connection_ends_after_so_many_requests(every: int | None, transport: str) -> None:
    async def main() -> None:
        async with (
            replicas("127.0.0.1") as servers,
            client_of(transport, Addresses(Names("127.0.0.1")), servers[0].port, reconnect_every=every) as sender,
        ):
            records = await load(sender, 1, 6)
            assert {record.outcome for record in records} == {"ok"}
            assert servers[0].connections == (1 if every is None else 6 // every)
            by_connection = Counter(request.connection for request in servers[0].requests)
            assert set(by_connection.values()) == {every or 6}
        fresh = [record.connect is not None for record in records]
        assert fresh == [n % (every or 6) == 0 for n in range(6)]

    run(main)
