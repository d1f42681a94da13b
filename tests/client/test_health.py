"""The client's look at itself: what it measures is there when planted, and only between the window's edges."""

from __future__ import annotations

import asyncio
import gc
import math
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.answer import FAR_BITS
from loadgen.client.clock import ask_for_stamps
from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import RequestOptions
from loadgen.client.driver import StepPlan, run_step
from loadgen.client.exchange import HttpxSender, Timeouts
from loadgen.client.health import (
    Watch,
    combined,
    descriptors,
    lag_of,
    lag_of_bins,
    ports,
    quiet,
    schedstat,
    stamps_of,
    stolen,
    tune_process,
)
from loadgen.client.transport import Access, open_client
from loadgen.records import Prompt
from loadgen.results import ClientHealth, Lag, Observation
from loadgen.simulator.scripted import DONE, FIN, ROLE, Action, C, Request, ThreadedServer
from tests.log.record_strategies import RECORD

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
delays = st.lists(st.integers(0, 10_000_000), max_size=700)


# --- distributions --------------------------------------------------------------------------------------------------


@given(delays)
def test_the_distribution_is_that_of_the_ranked_values(values: list[int]) -> None:
    lag = lag_of(array("q", values))
    if not values:
        assert lag is None
        return
    assert lag is not None
    assert lag.n == len(values) and lag.max == max(values) / 1e3
    for p, value in ((0.5, lag.p50), (0.99, lag.p99)):
        below = sum(v / 1e3 <= value for v in values)
        assert below >= math.floor(p * len(values)) or (p == 0.99 and len(values) < 300)
    assert lag.p50 in {v / 1e3 for v in values}
    if len(values) >= 5:
        assert sum(v / 1e3 >= lag.p99 for v in values) >= 3, "a hiccup or two do not make it"
        assert lag.p99 >= sorted(values)[min(len(values) - 3, math.floor(0.98 * len(values)))] / 1e3
    assert lag.p50 <= lag.p99 <= lag.max


@given(delays, st.integers(1, 5_000), st.integers(1, 400))
def test_bins_say_the_same_within_a_bin(values: list[int], width: int, bins: int) -> None:
    counts, beyond = [0] * bins, Counter[int]()
    for value in values:
        if value < width * bins:
            counts[value // width] += 1
        else:
            beyond[value >> FAR_BITS] += 1
    exact, binned = lag_of(values), lag_of_bins(counts, beyond, width)
    if exact is None:
        assert binned is None
        return
    assert binned is not None and binned.n == exact.n
    for name in ("p50", "p99", "max"):
        bin_ns = width if round(1e3 * getattr(exact, name)) < width * bins else 1 << FAR_BITS
        assert 0 <= getattr(binned, name) - getattr(exact, name) <= bin_ns / 1e3 + 1e-9


numbers = st.none() | st.integers(0, 1000)
shares = st.none() | st.floats(0, 1)
lags = st.none() | st.builds(Lag, st.integers(1, 100), *[st.floats(0, 1e6)] * 3)
healths = st.builds(
    ClientHealth,
    stamps=st.sampled_from(["kernel", "user"]),
    seconds=st.floats(0, 100),
    cpu_share=shares,
    wait_share=shares,
    reads=st.integers(0, 1000),
    stamped=st.integers(0, 1000),
    rejected=st.integers(0, 9),
    read_lag_us=lags,
    loop_lag_us=lags,
    retransmits=numbers,
    descriptors=st.integers(1, 900),
    descriptor_limit=st.none() | st.just(1000),
)


@given(healths)
def test_one_process_alone_is_itself(health: ClientHealth) -> None:
    assert combined([health]) == health


@given(st.lists(healths, min_size=2, max_size=4))
def test_of_several_processes_counts_add_up_and_the_worst_share_counts(several: list[ClientHealth]) -> None:
    whole = combined(several)
    assert whole.reads == sum(h.reads for h in several)
    assert whole.stamps == ("user" if any(h.stamps == "user" for h in several) else "kernel")
    for name in ("cpu_share", "wait_share"):
        assert getattr(whole, name) == max((v for h in several if (v := getattr(h, name)) is not None), default=None)
    p99s = [h.loop_lag_us.p99 for h in several if h.loop_lag_us is not None]
    assert (whole.loop_lag_us.p99 if whole.loop_lag_us else None) == max(p99s, default=None)
    assert {f.name for f in fields(whole)} == {f.name for f in fields(several[0])}


def test_nothing_cannot_be_combined() -> None:
    with pytest.raises(ValueError, match="no health"):
        combined([])


# --- the process ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("was_on", [True, False])
@pytest.mark.parametrize("breaks", [True, False])
def test_quiet_means_no_collection_and_leaves_all_as_it_was(was_on: bool, breaks: bool) -> None:
    before = gc.isenabled()
    collected: list[str] = []

    def note(phase: str, info: Any) -> None:
        collected.append(phase)

    try:
        (gc.enable if was_on else gc.disable)()
        try:
            with quiet():
                gc.callbacks.append(note)
                assert not gc.isenabled() and gc.get_freeze_count() > 0
                for _ in range(5000):
                    cycle: list[Any] = []
                    cycle.append(cycle)
                assert collected == []
                if breaks:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            assert breaks
        assert gc.isenabled() == was_on and gc.get_freeze_count() == 0
    finally:
        gc.callbacks.remove(note)
        (gc.enable if before else gc.disable)()


@linux
def test_the_kernel_tells_of_this_process() -> None:
    tune_process()
    import threading

    told = schedstat(threading.get_native_id())
    assert told is not None and told[0] > 0
    assert schedstat(2**22 + 1) is None
    ticks = stolen()
    assert ticks is not None and 0 <= ticks[0] <= ticks[1]
    used, limit = descriptors()
    assert used is not None and used >= 3 and (limit is None or limit >= used)
    in_use, most = ports()
    assert most is not None and most > 1000 and in_use is not None


# --- one step -------------------------------------------------------------------------------------------------------


def watched(act: Callable[[Watch, SimpleNamespace], Any]) -> ClientHealth:
    """Run `act` in an event loop under a watch, with a step whose phase it may change."""

    async def main() -> ClientHealth:
        async with open_client(Access(), 4, tls=False) as client:
            step = SimpleNamespace(phase="warmup")
            with Watch(client) as watch:
                watch.follow(step)
                await act(watch, step)
        return watch.health()

    return asyncio.run(main())


async def hold_up(seconds: float, times: int = 1) -> None:
    """Keep the event loop from its work, and let it look at what came meanwhile."""
    for _ in range(times):
        await asyncio.sleep(0.001)
        time.sleep(seconds)  # noqa: ASYNC251 - that is the point
        await asyncio.sleep(0)


def test_a_loop_that_is_held_up_is_seen_to_lag() -> None:
    health = watched(lambda watch, step: hold_up(0.15, 6))
    assert health.loop_lag_us is not None and health.loop_lag_us.n >= 5, "a look falls into every time it is held up"
    assert health.loop_lag_us.max > 40_000
    assert health.seconds >= 0.9


def test_only_the_window_counts() -> None:
    async def act(watch: Watch, step: SimpleNamespace) -> None:
        await hold_up(0.15, 4)
        step.phase = "measured"
        watch.ended(replace(RECORD, outcome="cut"))
        await asyncio.sleep(0.6)
        step.phase = "filler"
        watch.ended(replace(RECORD, outcome="cut"))
        watch.ended(replace(RECORD, done_ns=time.monotonic_ns() - 10**12))
        await hold_up(0.15, 4)

    health = watched(act)
    assert 0.5 < health.seconds < 0.6 + 0.6 + 0.5
    assert health.loop_lag_us is not None and health.loop_lag_us.n < 25
    assert health.refill_lag_us is None, "the only answer came after the window"


def test_a_window_too_short_to_be_told_apart_is_the_whole_step() -> None:
    async def act(watch: Watch, step: SimpleNamespace) -> None:
        await asyncio.sleep(0.4)
        for phase in ("measured", "filler"):
            step.phase = phase
            watch.ended(replace(RECORD, done_ns=time.monotonic_ns() - 1_000_000))

    health = watched(act)
    assert health.seconds >= 0.4
    assert health.refill_lag_us is not None and health.refill_lag_us.n == 2 and health.refill_lag_us.p50 >= 1000


@pytest.mark.parametrize("phases", [[], ["measured"], ["filler"], ["measured", "filler"]])
def test_a_step_that_ends_anywhere_has_its_health(phases: list[str]) -> None:
    async def act(watch: Watch, step: SimpleNamespace) -> None:
        for phase in phases:
            await asyncio.sleep(0.02)
            step.phase = phase
            watch.ended(RECORD)

    health = watched(act)
    assert health.seconds > 0 and health.stamps == "user" and health.reads == 0


def test_a_refill_is_late_by_the_time_since_the_last_byte() -> None:
    async def act(watch: Watch, step: SimpleNamespace) -> None:
        for _ in range(5):
            watch.ended(replace(RECORD, done_ns=time.monotonic_ns() - 50_000_000))
        watch.ended(replace(RECORD, outcome="timeout", done_ns=0))  # nothing came: no refill to speak of

    health = watched(act)
    assert health.refill_lag_us is not None and health.refill_lag_us.n == 5
    assert health.refill_lag_us.p50 >= 50_000


def test_a_collection_is_seen_as_a_pause() -> None:
    async def act(watch: Watch, step: SimpleNamespace) -> None:
        gc.collect()
        gc.collect()

    with quiet():
        callbacks = list(gc.callbacks)
        health = watched(act)
        assert gc.callbacks == callbacks
    assert health.gc_pauses == 2 and health.gc_pause_max_us > 0


@linux
def test_a_thread_that_never_rests_is_on_the_cpu_or_waits_for_one() -> None:
    async def act(watch: Watch, step: SimpleNamespace) -> None:
        end = time.monotonic() + 0.6
        while time.monotonic() < end:
            pass

    health = watched(act)
    assert health.cpu_share is not None and health.wait_share is not None
    assert health.cpu_share + health.wait_share > 0.8
    idle = watched(lambda watch, step: asyncio.sleep(0.5))
    assert idle.cpu_share is not None and idle.cpu_share < health.cpu_share + health.wait_share
    assert idle.process_cpu_share is not None and idle.process_cpu_share < 0.5


# --- a real step ----------------------------------------------------------------------------------------------------


def answer(request: Request) -> list[Action]:
    return [ROLE, *[C(f" {i}") for i in range(20)], FIN("length"), DONE]


@pytest.mark.parametrize(
    "access", [Access(), Access(threaded=True), Access(httpx_pool=True)], ids=["kernel", "threaded", "httpx"]
)
def test_a_real_step_tells_of_its_reads_and_sockets(access: Access) -> None:
    async def main(url: str) -> tuple[Observation, str]:
        dialect = DIALECTS["chat"]
        async with open_client(access, 4, tls=False) as client:
            sender = HttpxSender(
                client,
                f"{url}/v1{dialect.path}",
                dialect,
                RequestOptions("m"),
                zero_ns=0,
                timeouts=Timeouts(3, 5, 5, 20),
            )
            plan = StepPlan(1, 4, lambda p: p.window_s > 0.5, warmup=4)
            with quiet(), Watch(client) as watch:
                seen = await run_step(
                    sender,
                    iter(lambda: Prompt("hi"), None),
                    plan,
                    on_record=watch.ended,
                    clock=time.monotonic_ns,
                    zero_ns=0,
                    on_progress=watch.follow,
                )
            whose = stamps_of(client)
        return replace(seen, health=watch.health()), whose

    with ThreadedServer(answer) as server:
        seen, whose = asyncio.run(main(server.url))
    health = seen.health
    assert health is not None and health.stamps == whose
    assert health.refill_lag_us is not None and health.loop_lag_us is not None
    assert seen.window is not None and 0.3 < health.seconds < seen.window.seconds + 1.0
    if access.transport == "kernel" and ask_for_stamps_here():
        assert whose == "kernel" and health.reads >= health.stamped > 0
        assert health.read_lag_us is not None and health.read_lag_us.n == health.stamped
        assert health.retransmits is not None and health.dropped is not None
    else:
        assert whose == "user" and health.read_lag_us is None


def ask_for_stamps_here() -> bool:
    import socket

    with socket.socket() as sock:
        return ask_for_stamps(sock)


def test_a_client_of_another_transport_has_user_stamps() -> None:
    async def main() -> str:
        async with httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(200))) as client:
            return stamps_of(client)

    assert asyncio.run(main()) == "user"
