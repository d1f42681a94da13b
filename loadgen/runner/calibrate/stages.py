"""One stage of a calibration: a known load from the ground-truth servers, sent and stamped as a real run's is.

A stream stage holds N streams open for a window and looks at each of their tokens; a dispatch stage is an open-loop
step of the driver's own. Both use the very sender, transport and tally of real runs; all that is added is a second
reference to the bytes, which are compared afterwards.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import numpy as np

from ...client.dialects import DIALECTS
from ...client.dialects.base import RequestOptions
from ...client.exchange import HttpxSender, Timeouts
from ...client.health import quiet
from ...client.openloop import LEAD_NS, run_open_step
from ...client.step import StepPlan
from ...client.tally import Tally
from ...client.transport import Access, open_client
from ...errors import TargetError
from ...records import Prompt, Record, RequestSpec
from ...workload.arrivals import Arrivals, Schedule
from . import figures
from .figures import Heard, Spread, StampErrors

Limit = Literal["errors", "cpu", "server", "lag", "coalescing", "disturbed"]

CPU_LIMIT = 0.95  # of one core
LAG_LIMIT = 0.1  # of the gap between tokens: the p99 of the stamp error
COALESCED_LIMIT = 0.05  # of all tokens
DISTURBED = 0.1  # of the time ready to run but without a CPU: somebody else is busy here
ACHIEVED = 0.98  # of the events that were asked for
GRACE_S = 1.0  # how long streams may run on after their time before they are cut
PROMPT = Prompt(text=" ".join(["calibrate"] * 128))


@dataclass(frozen=True, slots=True)
class Ground:
    """Where the ground-truth servers are. `apart` says whether they have CPUs of their own."""

    urls: tuple[str, ...]
    tls_urls: tuple[str, ...]
    ca_file: str
    apart: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """How a calibration goes. `levels` are numbers of smooth streams, tried upwards until one is too much."""

    itl_s: float = 0.02
    ttft_s: float = 0.05
    window_s: float = 1.25
    levels: tuple[int, ...] = (16, 64, 256, 512, 1024, 2048, 4096)
    refinements: int = 2
    checks: tuple[int, ...] = (64, 256)  # streams in lockstep and over TLS
    rates: tuple[float, ...] = (100.0, 500.0)
    dispatch_s: float = 2.5
    deadline_s: float = 45.0  # nothing optional is begun after it


@dataclass(frozen=True, slots=True)
class ServerSide:
    """What the servers said of themselves over a window, the worst of them. `lateness_p99_us` is that of their own
    steps: in lockstep it is the length of a burst."""

    limited: bool
    late_share: float
    lateness_p99_us: float | None
    cpu_share: float
    waited_share: float
    blocked: int


@dataclass(frozen=True, slots=True)
class StreamStage:
    """N streams over a window. `limited_by` is what made it more than this client, or its server, carries."""

    mode: Literal["smooth", "lockstep"]
    tls: bool
    streams: int
    asked_per_s: float
    events_per_s: float
    stamps: StampErrors
    ttft: Spread | None
    cpu_us_per_event: float | None
    cpu_share: float
    waited_share: float  # of the time: ready to run, but without a CPU
    failed: int
    server: ServerSide
    limited_by: Limit | None = None


@dataclass(frozen=True, slots=True)
class DispatchStage:
    """Requests of a Poisson process. `wire_lag` is when they reached the server, `dispatch_lag` when they were sent by
    the client's own account, each − when they were due."""

    rate: float
    requests: int
    failed: int
    not_dispatched: int
    new_connections: int
    wire_lag: Spread | None
    dispatch_lag: Spread | None
    ttft: Spread | None
    cpu_share: float
    waited_share: float


def limit_of(stage: StreamStage, itl_s: float) -> Limit | None:
    """What was the limit of this stage, if anything was; `disturbed` where it may have been neither client nor server.
    Pure."""
    error = stage.stamps.all
    if stage.failed or error is None:
        return "errors"
    limit: Limit | None = None
    if stage.cpu_share > CPU_LIMIT:
        limit = "cpu"
    elif stage.server.limited:
        limit = "server"
    elif 1 - stage.stamps.exact_share > COALESCED_LIMIT:
        limit = "coalescing"
    elif error.p99 > LAG_LIMIT * itl_s * 1e6 or stage.events_per_s < ACHIEVED * stage.asked_per_s:
        limit = "lag"
    return "disturbed" if limit and waited(stage) > DISTURBED else limit


def waited(stage: StreamStage | DispatchStage) -> float:
    """The share of its time that the client or a server was ready to run but had no CPU; the worse of the two."""
    server = stage.server.waited_share if isinstance(stage, StreamStage) else 0.0
    return max(stage.waited_share, server)


class Bench:
    """Runs stages, one after the other."""

    def __init__(self, ground: Ground, plan: Plan, *, seed: int = 1) -> None:
        self.ground, self.plan, self.seed = ground, plan, seed
        self.zero_ns = time.monotonic_ns()
        self._steps = itertools.count(1)

    async def streams(self, streams: int, *, lockstep: bool = False, tls: bool = False) -> StreamStage:
        """Hold that many streams open for a window."""
        plan = self.plan
        itl_ns, ttft_ns = round(plan.itl_s * 1e9), round(plan.ttft_s * 1e9)
        ramp_ns = max(200_000_000, streams * (3_000_000 if tls else 1_000_000))  # a TLS handshake costs both sides
        records: list[Record] = []
        step = next(self._steps)
        done = anyio.Event()
        async with self._sender(streams, itl_ns, ttft_ns, lockstep=lockstep, tls=tls) as (sender, said):
            start = time.monotonic_ns() + 2 * LEAD_NS
            opens = start + ramp_ns + ttft_ns + itl_ns + LEAD_NS
            closes = opens + round(plan.window_s * 1e9)

            async def stream(index: int) -> None:
                due = start + index * ramp_ns // streams
                prompt = replace(PROMPT, output_tokens=(closes - due - ttft_ns) // itl_ns + 2)
                await _sleep_until(due - LEAD_NS)
                spec = RequestSpec(f"s{step}-{index:06d}", prompt, step, streams, "measured")
                records.append(await sender.send(spec, due))
                if len(records) == streams:
                    done.set()

            with quiet():
                async with anyio.create_task_group() as group:
                    for index in range(streams):
                        group.start_soon(stream, index)
                    await _sleep_until(opens)
                    await self._ask(reset=True)
                    meter = _Meter()
                    await _sleep_until(closes)
                    used = meter.read()
                    server = await self._ask()
                    with anyio.move_on_after(GRACE_S):
                        await done.wait()
                    sender.cut("cut")
        tokens = figures.token_errors(records, said(), self.zero_ns)
        inside = tokens.where((tokens.sent_ns >= meter.began_ns) & (tokens.sent_ns < meter.ended_ns))
        arrived = tokens.sent_ns + tokens.error_ns
        count = int(np.count_nonzero((arrived >= meter.began_ns) & (arrived < meter.ended_ns)))
        stage = StreamStage(
            mode="lockstep" if lockstep else "smooth",
            tls=tls,
            streams=streams,
            asked_per_s=streams / plan.itl_s,
            events_per_s=count / used.seconds,
            stamps=figures.stamp_errors(inside),
            ttft=figures.ttft_errors(records, said()),
            cpu_us_per_event=1e6 * used.cpu_s / count if count else None,
            cpu_share=used.cpu_s / used.seconds,
            waited_share=used.waited_s / used.seconds,
            failed=sum(record.outcome not in ("ok", "cut") for record in records),
            server=server,
        )
        return replace(stage, limited_by=limit_of(stage, plan.itl_s))

    async def dispatch(self, rate: float) -> DispatchStage:
        """Send at that rate, on connections that are open already."""
        plan = self.plan
        records: list[Record] = []
        number = next(self._steps)
        step = StepPlan(
            step=number,
            concurrency=0,
            enough=lambda progress: progress.window_s >= plan.dispatch_s,
            warmup=0,
            warmup_s=0.2,
            rate=rate,
            drain_s=GRACE_S,
        )
        connections = 32 + round(rate * 0.1)
        prompt = replace(PROMPT, output_tokens=4)
        # As `run --rate` sends: from the reader's thread, where nothing else runs.
        async with self._sender(connections, 5_000_000, 20_000_000, threaded=True) as (sender, said):
            await sender.connect(connections)
            with quiet():
                meter = _Meter()
                seen = await run_open_step(
                    sender,
                    itertools.repeat(prompt),
                    step,
                    Schedule(Arrivals("poisson"), rate, self.seed),
                    on_record=records.append,
                    clock=time.monotonic_ns,
                    zero_ns=self.zero_ns,
                )
                used = meter.read()
            truth = said()
        measured = [record for record in records if record.phase == "measured"]
        return DispatchStage(
            rate=rate,
            requests=len(measured),
            failed=sum(record.outcome not in ("ok", "cut") for record in measured),
            not_dispatched=seen.not_dispatched,
            new_connections=sum(record.connect is not None for record in measured),
            wire_lag=figures.wire_lags(measured, truth, self.zero_ns),
            dispatch_lag=figures.dispatch_lags(measured),
            ttft=figures.ttft_errors(measured, truth),
            cpu_share=used.cpu_s / used.seconds,
            waited_share=used.waited_s / used.seconds,
        )

    @contextlib.asynccontextmanager
    async def _sender(
        self,
        connections: int,
        itl_ns: int,
        ttft_ns: int,
        *,
        lockstep: bool = False,
        tls: bool = False,
        threaded: bool = False,
    ) -> AsyncIterator[tuple[_RoundRobin, _Said]]:
        """A sender to all servers, and what they will have said."""
        parts: list[list[bytes]] = []
        access = Access(ca_file=self.ground.ca_file if tls else None, threaded=threaded)
        extra = {"itl_us": itl_ns // 1000, "ttft_us": ttft_ns // 1000, "lockstep": lockstep}
        options = RequestOptions(model="truth", extra_body=extra)
        timeouts = Timeouts(first_token=30.0, idle=30.0, total=120.0)
        async with open_client(access, connections, tls=tls) as client:
            yield (
                _RoundRobin(
                    [
                        HttpxSender(
                            client,
                            f"{url}/v1/chat/completions",
                            DIALECTS["chat"],
                            options,
                            zero_ns=self.zero_ns,
                            timeouts=timeouts,
                            tally=listening(parts),
                        )
                        for url in (self.ground.tls_urls if tls else self.ground.urls)
                    ]
                ),
                _Said(parts),
            )

    async def _ask(self, *, reset: bool = False) -> ServerSide:
        """What the servers say of themselves since the last reset. In a thread, so that it holds up no token."""
        answers = await anyio.to_thread.run_sync(_reports, self.ground.urls, reset)
        late = [answer["lateness_us"]["p99"] for answer in answers if answer["lateness_us"]["p99"] is not None]
        return ServerSide(
            limited=any(answer["limited"] for answer in answers),
            late_share=max(answer["late_share"] for answer in answers),
            lateness_p99_us=max(late, default=None),
            cpu_share=max(answer["cpu_share"] for answer in answers),
            waited_share=max(answer["waited_share"] for answer in answers),
            blocked=sum(answer["blocked"] for answer in answers),
        )


def listening(heard: list[list[bytes]]) -> type[Tally]:
    """The tally of real runs, which also keeps the bytes of each answer as they came in `heard`: no more than one
    reference a read, so that what is measured stays what it is."""

    class ListeningTally(Tally):
        __slots__ = ("parts",)

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.parts: list[bytes] = []
            heard.append(self.parts)

        def hold(self, data: bytes, stamp_ns: int, previous_read_ns: int) -> bool:
            self.parts.append(data)
            return super().hold(data, stamp_ns, previous_read_ns)

        def feed(self, data: bytes, stamp_ns: int, previous_read_ns: int) -> None:
            self.parts.append(data)
            super().feed(data, stamp_ns, previous_read_ns)

    return ListeningTally


class _Said:
    """What the servers said, by answer id; worked out once it is asked for."""

    def __init__(self, parts: list[list[bytes]]) -> None:
        self._parts = parts
        self._said: dict[str, Heard] | None = None

    def __call__(self) -> dict[str, Heard]:
        if self._said is None:
            self._said = dict(filter(None, map(figures.heard, self._parts)))
            self._parts.clear()
        return self._said


class _RoundRobin:
    """One sender over several servers' senders."""

    def __init__(self, senders: Sequence[HttpxSender]) -> None:
        self._senders = senders
        self._next = itertools.cycle(senders)

    async def send(self, spec: RequestSpec, scheduled_ns: int) -> Record:
        return await next(self._next).send(spec, scheduled_ns)

    def cut(self, outcome: Literal["cut", "cancelled"]) -> None:
        for sender in self._senders:
            sender.cut(outcome)

    async def connect(self, connections: int) -> None:
        """Have so many connections open: by as many requests at once."""
        spec = RequestSpec("warm", replace(PROMPT, output_tokens=2), 0, connections, "warmup")
        async with anyio.create_task_group() as group:
            for _ in range(connections):
                group.start_soon(self.send, spec, time.monotonic_ns())


@dataclass(frozen=True, slots=True)
class _Used:
    seconds: float
    cpu_s: float
    waited_s: float


class _Meter:
    """This process's CPU time, and its main thread's wait for a CPU, since it was made."""

    def __init__(self) -> None:
        self.began_ns = self.ended_ns = time.monotonic_ns()
        self._cpu = time.process_time()
        self._waited = _run_queue_wait_s()

    def read(self) -> _Used:
        self.ended_ns = time.monotonic_ns()
        return _Used(
            (self.ended_ns - self.began_ns) / 1e9,
            time.process_time() - self._cpu,
            _run_queue_wait_s() - self._waited,
        )


def _run_queue_wait_s() -> float:
    """0 where the kernel does not tell."""
    try:
        return int(Path("/proc/self/schedstat").read_bytes().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


async def _sleep_until(when_ns: int) -> None:
    await anyio.sleep(max(0, when_ns - time.monotonic_ns()) / 1e9)


def _reports(urls: Sequence[str], reset: bool) -> list[dict[str, Any]]:
    answers = []
    for url in urls:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
        try:
            connection.request("GET", "/truth?reset" if reset else "/truth")
            answers.append(json.loads(connection.getresponse().read()))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise TargetError(
                f"the ground-truth server at {url} went away: {error}", "run the calibration again"
            ) from None
        finally:
            connection.close()
    return answers
