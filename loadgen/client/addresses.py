"""Which of a name's addresses a connection goes to: all of them, evenly, past those that do not answer.

A name is looked up once in a while, never for each connection. Of its addresses the one with the fewest users at the
moment comes first, then the one used the least so far. One that has not answered after `STAGGER_S` is raced by the next
(RFC 8305, Happy Eyeballs); one that refused or lost such a race comes last for `BAD_S`, then a single connection tries
it again. So a replica that is down, or an IPv6 route that leads nowhere, costs a few connections a quarter of a second.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import itertools
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from .clock import ask_for_stamps
from .failures import causes, system_words
from .probe import format_address

STAGGER_S = 0.25  # RFC 8305's Connection Attempt Delay
BAD_S = 30.0
LIFETIME_S = 30.0  # of a look-up
# Of the client's own limits those that are the same for every address: EADDRNOTAVAIL is also what ::1 gives where there
# is no IPv6.
OUR_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}

T = TypeVar("T")
Found = Sequence[tuple[int, Any]]  # (address family, socket address)
Resolver = Callable[[str, int], Awaitable[Found]]


class Place:
    """One address. Who uses it says so with `take` and, once, with `leave`."""

    __slots__ = ("address", "bad_until", "busy", "family", "host", "used")

    def __init__(self, host: str, family: int, address: Any, used: int = 0) -> None:
        self.host = host  # the name that led here
        self.family = family
        self.address = address
        self.busy = 0  # users at the moment
        self.used = used  # …so far
        self.bad_until = 0.0  # of CLOCK_MONOTONIC; 0 is a good one

    def __str__(self) -> str:
        return format_address(self.address)

    def take(self) -> None:
        self.busy += 1
        self.used += 1

    def leave(self) -> None:
        self.busy -= 1


class _Name:
    """What a name led to, until when, and who is asking again."""

    __slots__ = ("looking", "places", "until")

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.until = 0.0
        self.looking: asyncio.Task[None] | None = None


class Addresses:
    """The addresses of every name that is connected to, for a whole run. `first` is the place in a name's list where
    this process begins, so that several do not all begin with the same one. With `unix_socket` every name leads to that
    socket. `faults` are the addresses that did not answer, with the reason. With `pinned` each name
    leads to the one address that answered first, for good."""

    def __init__(
        self,
        resolver: Resolver | None = None,
        *,
        pinned: bool = False,
        unix_socket: str | None = None,
        first: int = 0,
        bad_s: float = BAD_S,
        lifetime_s: float = LIFETIME_S,
    ) -> None:
        self._bad_s, self._lifetime_s = bad_s, lifetime_s
        self.first = first
        self._pinned = pinned
        self.faults: dict[str, str] = {}
        self._resolve = resolver or look_up
        self._names: dict[tuple[str, int], _Name] = {}
        self._closing: set[asyncio.Future[None]] = set()
        self._socket = None if unix_socket is None else [Place("", socket.AF_UNIX, unix_socket)]

    def known(self, host: str, port: int) -> list[Place]:
        """The addresses of a name as far as they are known, without asking."""
        if self._socket is not None:
            return self._socket
        name = self._names.get((host, port))
        return name.places if name is not None else []

    async def find(self, host: str, port: int) -> tuple[list[Place], int | None]:
        """The addresses of a name and what it took to look it up in µs, None where that was not waited for.

        Raises OSError where it does not resolve. A later look-up that fails leaves what was known.
        """
        if self._socket is not None:
            return self._socket, None
        name = self._names.setdefault((host, port), _Name())
        if not name.places and (literal := _literal(host, port)):
            name.places, name.until = literal, float("inf")
        if name.looking is None and time.monotonic() >= name.until:
            name.looking = asyncio.create_task(self._look_up(name, host, port))
            # Its failure is heard, if by nobody else.
            name.looking.add_done_callback(lambda task: task.cancelled() or task.exception())
        if name.places:
            return name.places, None
        assert name.looking is not None
        start = time.monotonic_ns()
        await asyncio.shield(name.looking)
        return name.places, (time.monotonic_ns() - start) // 1000

    async def _look_up(self, name: _Name, host: str, port: int) -> None:
        try:
            found = _interleaved(await self._resolve(host, port))
            if not found:
                raise socket.gaierror(socket.EAI_NONAME, "has no address")
        except OSError:
            if not name.places:
                raise
            found = []
        finally:
            name.looking = None
        if name.until == float("inf"):  # pinned meanwhile
            return
        name.until = time.monotonic() + self._lifetime_s
        known = {place.address: place for place in name.places}
        # One that comes later has not to make up for what the others have done until then.
        most = max((place.used for place in name.places), default=0)
        if found:
            name.places = [known.get(address) or Place(host, family, address, most) for family, address in found]

    def pick(self, places: list[Place]) -> Place:
        """The one to use next."""
        n = len(places)
        if n == 1:
            return places[0]
        now = time.monotonic()
        return min(
            enumerate(places),
            key=lambda pair: (pair[1].bad_until > now, pair[1].busy, pair[1].used, (pair[0] - self.first) % n),
        )[1]

    async def open(
        self,
        host: str,
        port: int,
        dial: Callable[[Place], Awaitable[T]],
        close: Callable[[T], Awaitable[None]],
    ) -> tuple[T, Place, int | None]:
        """Connect with `dial` to the best address that answers. → what it gave; the address, which is taken and to be
        left when the connection is not used any more; what the look-up took (see `find`). `close` is for what came
        second. Raises what `find` or, when none answers, the first `dial` raises."""
        places, dns_us = await self.find(host, port)
        if len(places) > 1:
            opened, place = await self._race(list(places), dial, close)
        else:
            place = places[0]
            place.take()
            try:
                opened = await dial(place)
            except BaseException:
                place.leave()
                raise
        if self._pinned and self._socket is None:
            name = self._names[host, port]
            name.places, name.until = [place], float("inf")
        return opened, place, dns_us

    async def survey(self, host: str, port: int, limit_s: float = 1.0) -> tuple[str, ...]:
        """Connect once to each of several addresses, so that those that do not answer are known before any load; → what
        is to be said of it, nothing of a name with one address or none."""
        try:
            places, _ = await self.find(host, port)
        except OSError:
            return ()
        if len(places) < 2:
            return ()

        async def knock(place: Place) -> None:
            try:
                sock = await asyncio.wait_for(connect(place), limit_s)
            except OSError as error:  # TimeoutError is one
                if _ours(error):
                    return
                words = f"no answer within {limit_s:g} s" if isinstance(error, TimeoutError) else system_words(error)
                self._fail(place, words)
            else:
                place.bad_until = 0.0
                sock.close()

        await asyncio.gather(*(knock(place) for place in places))
        bad = [place for place in places if place.bad_until]
        if host == "localhost" or len(bad) == len(places):  # the load will see of what it comes to
            return ()
        said = f"{host} has {len(places)} addresses, used evenly"
        if not bad:
            return (said,)
        return (f"{said} but for {', '.join(f'{place} ({self.faults[str(place)]})' for place in bad)}",)

    # --- the race ---------------------------------------------------------------------------------------------

    async def _race(
        self, left: list[Place], dial: Callable[[Place], Awaitable[T]], close: Callable[[T], Awaitable[None]]
    ) -> tuple[T, Place]:
        running: dict[asyncio.Task[T], tuple[Place, float]] = {}  # with when each was started, in this order
        fault: BaseException | None = None
        most = max(place.used for place in left)
        try:
            while True:
                if left:
                    place = self.pick(left)
                    left.remove(place)
                    if place.bad_until:  # this connection tries it again, the others wait for the outcome
                        place.bad_until = time.monotonic() + self._bad_s
                        place.used = most
                    place.take()
                    running[asyncio.ensure_future(dial(place))] = place, time.monotonic()
                await asyncio.wait(running, timeout=STAGGER_S if left else None, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in running if task.done()]:
                    place, _ = running[task]
                    error = task.exception()
                    del running[task]
                    if error is None:
                        place.bad_until = 0.0
                        return task.result(), place
                    place.leave()
                    fault = fault or error
                    if not _ours(error):
                        self._fail(place, system_words(error))
                if not left and not running:
                    assert fault is not None
                    raise fault
        finally:
            now = time.monotonic()
            for task, (place, started) in running.items():
                if now - started >= STAGGER_S:
                    self._fail(place, f"no answer within {now - started:.2g} s")
                place.leave()
                task.add_done_callback(lambda late: self._dispose(late, close))
                task.cancel()

    def _dispose(self, task: asyncio.Task[T], close: Callable[[T], Awaitable[None]]) -> None:
        if not task.cancelled() and task.exception() is None:  # it came second
            closing = asyncio.ensure_future(close(task.result()))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _fail(self, place: Place, words: str) -> None:
        place.bad_until = time.monotonic() + self._bad_s
        if place.host != "localhost":  # whose other family nobody misses
            self.faults[str(place)] = words


async def connect(place: Place) -> socket.socket:
    """A connected socket, not blocking, with kernel stamps where there are any. Raises OSError."""
    sock = socket.socket(place.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if place.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ask_for_stamps(sock)
        await asyncio.get_running_loop().sock_connect(sock, place.address)
    except BaseException:
        sock.close()
        raise
    return sock


async def look_up(host: str, port: int) -> Found:
    """The system's answer, in its order (RFC 6724). Raises socket.gaierror, also for what can be no name."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:  # a label that is empty or longer than 63 characters
        raise socket.gaierror(socket.EAI_NONAME, "is no name") from None
    return [(family, address) for family, _, _, _, address in found]


def _ours(error: BaseException) -> bool:
    """Is it for want of descriptors or memory, which says nothing of the address?"""
    return any(isinstance(one, OSError) and one.errno in OUR_ERRNOS for one in causes(error))


def _literal(host: str, port: int) -> list[Place] | None:
    """The one place of an address that is no name."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
    if address.version == 4:
        return [Place(host, socket.AF_INET, (str(address), port))]
    return None if address.scope_id else [Place(host, socket.AF_INET6, (str(address), port, 0, 0))]


def _interleaved(found: Iterable[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """Each address once, the families in turn (RFC 8305, section 4), so that one that leads nowhere is soon past."""
    once = list(dict.fromkeys((family, address) for family, address in found))
    first = once[0][0] if once else None
    sides = [one for one in once if one[0] == first], [one for one in once if one[0] != first]
    return [one for pair in itertools.zip_longest(*sides) for one in pair if one is not None]
