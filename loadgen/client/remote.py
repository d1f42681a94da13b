"""A fleet whose workers are on other machines, each in a `Seat` there. How these are reached is the business of
`Seats`: Ray's actors, or a test's own objects.

What differs from processes of one machine:

- Lines pass through a TCP connection from each worker to here, which begins with a token that its seat was given.
- Each machine has a clock of its own. How far it is ahead of ours is measured before every step, and again after it;
  a worker is told when, on its own clock, the run began, so that all its times are of ours. `facts` says how sure.
- Part files lie on the workers' machines. What is in them is brought home every BRING_S and at the end of a step, to
  the files where workers of this machine would have written it.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import anyio
import orjson

from ..errors import LoadgenError
from ..records import Record
from ..results import Observation
from .home import Home
from .joining import TOKEN_BYTES, hello, hello_of, listening
from .offset import Offset, RoundTrip, offset_of
from .shared import Worker
from .step import StepPlan
from .workers import START_S, Fleet

TRIPS, TRIPS_S = 40, 0.25  # round trips by which a clock is read, and for how long at the most
FEWEST = 3
ANSWER_S = 2.0  # until a line must have been answered by a worker that does nothing else
CALL_S = 5.0  # …and a call by a seat
BRING_S = 1.0
CHUNK_BYTES = 4 << 20
TRUSTED_NS = 20_000_000  # clocks that are known less well are worth a word


class Seats(Protocol):
    """The seats of a run, by number, and how they are reached."""

    @property
    def host(self) -> str:
        """This machine's address, as theirs reach it."""

    @property
    def names(self) -> Sequence[str]:
        """The machine of each, as a sentence goes on after `on`."""

    async def call(self, number: int, method: str, *args: Any) -> Any:
        """What a method of the seat returns. Raises SeatGoneError."""

    def tell(self, number: int, method: str) -> None:
        """The same for one whose answer nobody waits for."""

    def where(self, workers: int) -> str:
        """Where the first so many are, as a sentence goes on after `on`."""

    def facts(self) -> Mapping[str, Any]:
        """What the run's manifest says of them."""


class SeatGoneError(Exception):
    """A seat does not answer any more; says why."""


class RemoteProcess:
    """A worker's process on another machine."""

    def __init__(self, seats: Seats, number: int) -> None:
        self._seats, self._number = seats, number
        self.where = f" on {seats.names[number]}"

    def kill(self) -> None:
        self._seats.tell(self._number, "kill")

    def waits(self) -> bool:
        return False

    def how(self) -> str:
        return "closed its connection"


@dataclass
class _Seen:
    """What is to be said of the fleet's steps."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    lost: list[dict[str, Any]] = field(default_factory=list)
    error_ns: int = 0  # of any clock


class RemoteFleet(Fleet):
    """See `Fleet`. `seats` has one for each worker that will ever be asked for."""

    hint = "see whether the machine has the memory and processes to spare, and loadgen in the same place as here"

    def __init__(
        self, configuration: Mapping[str, Any], part_of: Callable[[int], str], *, zero_ns: int, seats: Seats
    ) -> None:
        super().__init__(configuration, part_of, zero_ns=zero_ns)
        self._seats = seats
        self._told: list[Mapping[str, Any]] = [{} for _ in seats.names]  # each worker's counters, as last told
        self._homes: dict[int, Home] = {}
        self._answers: dict[int, asyncio.Future[tuple[int, int]]] = {}
        self._gone_seats: set[int] = set()
        self._seen = _Seen()

    async def __aexit__(self, *_: object) -> None:
        self._hang_up()
        for home in self._homes.values():
            home.close()
        with anyio.CancelScope(shield=True):
            await _all(self._call(worker, "end", limit_s=ANSWER_S) for worker in self._workers)

    # --- the start --------------------------------------------------------------------------------------------------

    async def _start(self, workers: Sequence[Worker]) -> None:
        if not workers:
            return
        token = secrets.token_hex(TOKEN_BYTES)
        with listening(self._seats.host) as listener:
            place = (*listener.getsockname()[:2], token)
            joining = asyncio.create_task(self._join(listener, token, workers))
            configuration = orjson.dumps(dict(self._configuration))
            try:
                for worker in workers:
                    worker.process = RemoteProcess(self._seats, worker.number)
                said = await _all(
                    self._call(w, "start", *place, w.number, configuration, str(Path.cwd()), limit_s=START_S)
                    for w in workers
                )
                for worker, answer in zip(workers, said, strict=True):
                    hindered, part = answer or ("", "")  # of one that was lost meanwhile, grow tells
                    self._homes[worker.number] = Home(Path(self._part_of(worker.number)), part)
                    if hindered:
                        raise LoadgenError(
                            f"{worker.called(len(self._seats.names))} {hindered}",
                            "let the machines open TCP connections to this one",
                        )
                with anyio.move_on_after(CALL_S):
                    await joining
            finally:
                joining.cancel()
        for worker in workers:
            if worker.pipe is None and not worker.lost:
                worker.lost = f"{worker.called(len(self._seats.names))} did not connect to this machine"

    async def _join(self, listener: socket.socket, token: str, workers: Sequence[Worker]) -> None:
        """Take the connections of these workers, and nobody else's."""
        loop = asyncio.get_running_loop()
        expected = {hello(token, worker.number): worker for worker in workers}
        while expected:
            connection, _ = await loop.sock_accept(listener)
            said = await hello_of(connection)
            known = next((one for one in expected if hmac.compare_digest(one, said)), None)
            if known is None:
                connection.close()
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sink = connection.dup().detach()
            self._joined(expected.pop(known), connection.detach(), sink)

    # --- a step -----------------------------------------------------------------------------------------------------

    async def measure(
        self,
        plan: StepPlan,
        workers: int,
        *,
        on_record: Callable[[Record], None],
        on_fault: Callable[[LoadgenError], None] = lambda fault: None,
        **rest: Any,
    ) -> Observation:
        """As in `Fleet`. All that was kept of the step is in the part files of this machine when it returns, or is told
        as lost in the `detail` of a void step."""
        team = self._workers[:workers]
        ended: Counter[int] = Counter()

        def count(record: Record) -> None:
            ended[record.worker] += 1
            on_record(record)

        await _all(self._afresh(worker) for worker in team)
        before = await self._clocks(team)
        bringing = asyncio.create_task(self._keep_bringing(team, on_fault))
        try:
            seen = await super().measure(plan, workers, on_record=count, on_fault=on_fault, **rest)
        except BaseException:  # cancelled: what had ended is kept all the same
            with anyio.CancelScope(shield=True):
                await _all(self._bring(worker, on_fault) for worker in team)
            raise
        finally:
            bringing.cancel()
            await asyncio.wait([bringing])
        whole = await _all(self._bring(worker, on_fault) for worker in team)
        after = await self._clocks(team)
        self._note_clocks(plan.step, team, before, after)
        for worker, all_of_it in zip(team, whole, strict=True):
            if not all_of_it and not worker.lost:
                worker.lost = f"{worker.called(len(team))} did not give its log away"
        lost = [worker for worker in team if worker.lost]
        if not lost:
            return seen
        told = [await self._note_lost(plan, worker, len(team), ended[worker.number]) for worker in lost]
        return replace(seen, ended="client", detail=told[0])

    async def _afresh(self, worker: Worker) -> None:
        """Begin a part file: that of the step before is in the run's own file by now."""
        home = self._homes[worker.number]
        if home.offset and not worker.lost:
            await self._call(worker, "clear")
        home.afresh()
        self._told[worker.number] = {}

    async def _note_lost(self, plan: StepPlan, worker: Worker, of: int, ended: int) -> str:
        await self._explain(worker)
        kept = self._homes[worker.number].records
        in_flight = int(self._told[worker.number].get("in_flight", 0))
        gone = max(0, ended - kept)
        share = replace(plan, worker=worker.number, workers=of).part(plan.concurrency) if plan.concurrency else None
        self._seen.lost.append(
            {
                "step": plan.step,
                "worker": worker.number,
                "how": worker.lost,
                "share": {"in_flight": share, "of": plan.concurrency} if share else {"arrivals": 1, "of": of},
                "ended": ended,
                "kept": kept,
                "lost": gone,
                "in_flight": in_flight,
                "part": self._homes[worker.number].there if gone else None,  # may still hold them
            }
        )
        part = f"{share} of {plan.concurrency} in flight" if share else f"1 in {of} of the arrivals"
        return (
            f"{worker.lost}, and with it its share ({part}): {kept:,} of its {max(ended, kept):,} ended requests are in"
            f" the log, {gone:,} are lost, as {'is' if in_flight == 1 else 'are'} {in_flight:,} in flight"
        )

    async def _explain(self, worker: Worker) -> None:
        if worker.lost.endswith(" closed its connection"):
            how = await self._call(worker, "ended", limit_s=ANSWER_S)
            how = how or "was lost, as its machine or its seat was"
            worker.lost = f"{worker.called(len(self._workers))} {how}"

    def _heard(self, worker: Worker, message: Any) -> None:
        if message[0] == "clock":
            answer = self._answers.get(worker.number)
            if answer is not None and not answer.done():
                answer.set_result((message[2], time.monotonic_ns()))
            return
        if message[0] == "now" and message[2]:
            self._told[worker.number] = message[2]
        super()._heard(worker, message)

    # --- the clocks -------------------------------------------------------------------------------------------------

    async def _clocks(self, team: Sequence[Worker]) -> dict[int, Offset]:
        """Read the clock of each that is still there, and tell it when, by that, the run began. One after the other, as
        the shortest round trip is that of a quiet machine."""
        found: dict[int, Offset] = {}
        for worker in team:
            trips = await self._trips(worker)
            if trips and not worker.lost:
                offset = found[worker.number] = offset_of(trips)
                worker.offset_ns, worker.delay_ns = offset.ns, offset.longest_ns
                worker.say("zero", self._zero + offset.ns)
                worker.beat_ns = self.now()
        return found

    async def _trips(self, worker: Worker) -> list[RoundTrip]:
        loop, trips = asyncio.get_running_loop(), list[RoundTrip]()
        end = time.monotonic() + TRIPS_S
        while len(trips) < TRIPS and (time.monotonic() < end or len(trips) < FEWEST) and not worker.lost:
            answer = self._answers[worker.number] = loop.create_future()
            sent = time.monotonic_ns()
            worker.say("clock", len(trips))
            try:
                with anyio.fail_after(ANSWER_S):
                    stamped, received = await answer
            except TimeoutError:
                if not worker.lost:
                    worker.lost = f"{worker.called(len(self._workers))} was silent for {ANSWER_S:.1f} s"
                    self._seats.tell(worker.number, "kill")
                return []
            trips.append(RoundTrip(sent, stamped, received))
        return trips

    def _note_clocks(
        self, step: int, team: Sequence[Worker], before: Mapping[int, Offset], after: Mapping[int, Offset]
    ) -> None:
        clocks = []
        for worker in team:
            first, last = before.get(worker.number), after.get(worker.number)
            if first is None:
                continue
            entry = {"worker": worker.number, "offset_ns": first.ns, "uncertainty_us": first.uncertainty_ns / 1e3}
            if last is not None:
                error_ns = first.error_ns(last)
                self._seen.error_ns = max(self._seen.error_ns, error_ns)
                entry |= {"drift_us": (last.ns - first.ns) / 1e3, "error_us": error_ns / 1e3}
            clocks.append(entry)
        self._seen.steps.append({"step": step, "clocks": clocks})

    # --- part files -------------------------------------------------------------------------------------------------

    async def _keep_bringing(self, team: Sequence[Worker], on_fault: Callable[[LoadgenError], None]) -> None:
        while True:
            await asyncio.sleep(BRING_S)
            await _all(self._bring(worker, on_fault) for worker in team if not worker.lost)

    async def _bring(self, worker: Worker, on_fault: Callable[[LoadgenError], None]) -> bool:
        """Bring what the part file has more by now; False where it cannot be had."""
        home = self._homes[worker.number]
        while True:
            limit_s = ANSWER_S if worker.lost else CALL_S
            chunk = await self._call(worker, "read", home.offset, CHUNK_BYTES, limit_s=limit_s)
            if chunk is None:
                return False
            try:
                home.take(chunk)
            except LoadgenError as fault:
                on_fault(fault)
                return False
            if len(chunk) < CHUNK_BYTES:
                return True

    async def _call(self, worker: Worker, method: str, *args: Any, limit_s: float = CALL_S) -> Any:
        """What the seat answers; None where it has gone, or takes too long: then it is not asked again."""
        if worker.number in self._gone_seats:
            return None
        try:
            with anyio.fail_after(limit_s):
                return await self._seats.call(worker.number, method, *args)
        except (SeatGoneError, TimeoutError) as gone:
            self._gone_seats.add(worker.number)
            if not worker.lost:
                why = str(gone) or f"did not answer within {limit_s:g} s"
                worker.lost = f"{worker.called(len(self._seats.names))} is lost: its seat {why}"
            return None

    # --- what is to be said of it -----------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """What the run's manifest says: where the workers were, how well their clocks were known, which were lost."""
        return {**self._seats.facts(), "steps": self._seen.steps, "lost": self._seen.lost}

    def note(self) -> str:
        """The same in a sentence."""
        n = len(self._workers)
        said = f"{n} {'worker' if n == 1 else 'workers'} on {self._seats.where(n)}"
        error_ms = self._seen.error_ns / 1e6
        if self._seen.steps:
            said += f", whose clocks were known within {error_ms:.2g} ms"
        if self._seen.error_ns > TRUSTED_NS:
            said += ": starts and windows are no more exact than that, latencies are"
        return said


async def _all(calls: Any) -> list[Any]:
    """The results of all, at once."""
    return await asyncio.gather(*calls)
