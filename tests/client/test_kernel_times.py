"""Our own transport's stamps, timers and clock; in the loop and in a reader thread."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from loadgen.client.clock import Clock, TimerFd
from loadgen.client.kernel import KernelTransport
from loadgen.client.reactor import Reactor
from tests.client.raw_server import END, SPLIT, STREAM_HEAD, WHOLE, answering, chunk, events, post, run, serve


def test_stamps_are_in_order_and_on_the_monotonic_clock(threaded: bool) -> None:
    async def main(transport: KernelTransport) -> None:
        async with serve(answering(SPLIT, pause=0.005)) as url:
            await post(transport, url)  # the kernel may have begun to stamp only now
            missed = transport.stats.unstamped
            before = time.monotonic_ns()
            _, tally, probe = await post(transport, url)
            after = time.monotonic_ns()
            result = tally.result(None)
            assert probe.sent_ns is not None
            assert result.first_token_ns is not None
            assert probe.first_read_ns is not None
            assert before <= probe.sent_ns <= probe.first_read_ns <= result.first_token_ns
            assert result.first_token_ns <= (result.last_token_ns or 0) <= probe.last_read_ns <= after
            stats = transport.stats
            assert stats.unstamped == missed
            assert sum(stats.lag) + sum(stats.lag_beyond.values()) + stats.unstamped == stats.reads > 6

    run(main, threaded=threaded)


def test_a_request_leaves_at_its_time_and_not_before(threaded: bool) -> None:
    async def main(transport: KernelTransport) -> None:
        async with serve(answering(WHOLE)) as url:
            await transport.warm(httpx.URL(url), 8)
            now = time.monotonic_ns()
            times = [now + d * 1_000_000 for d in (40, 10, 30, 20, 20, -5)]
            found = await asyncio.gather(*(post(transport, url, at_ns=at) for at in times))
            sent = [probe.sent_ns or 0 for _, _, probe in found]
            assert all(s >= at for s, at in zip(sent, times, strict=True))
            assert sorted(range(6), key=sent.__getitem__)[0] == 5
            assert sent[1] < sent[3] < sent[2] < sent[0]

    run(main, threaded=threaded)


def test_a_stepped_wall_clock_is_seen_and_never_a_latency() -> None:
    clock = Clock()
    now = time.monotonic_ns()
    real = now + clock.offset
    for step in (3_600_000_000_000, -3_600_000_000_000, 5_000_000):
        # The wall clock was stepped after the offset was taken: the offset in use is off by `step`.
        clock.offset -= step
        assert abs(clock.restamp(real) - now) < 1_000_000
    assert clock.steps == 3


def test_a_stamp_that_stays_absurd_is_replaced_by_the_time_of_the_read() -> None:
    async def main(transport: KernelTransport) -> None:
        async with serve(answering()) as url:
            await transport.warm(httpx.URL(url), 1)
            [connection] = transport._all
            now = time.monotonic_ns()
            real = now + transport.reactor.clock.offset
            for number, years in enumerate((1, -1), 1):
                assert connection._doubted(real + years * 10**16, now) == now
                assert transport.reactor.clock.rejected == number

    run(main)


@pytest.mark.parametrize("event", [100_000, 1_000_000])
def test_what_a_full_buffer_left_behind_is_no_fault_of_the_clock(event: int, threaded: bool) -> None:
    """It came before the sockets were last looked at."""
    large = b'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n' % (b"a" * event)
    answer = STREAM_HEAD + b"|".join([chunk(large)] * 8) + chunk(END) + b"0\r\n\r\n"

    async def main(transport: KernelTransport) -> None:
        async with serve(answering(answer, pause=0.005)) as url:
            for _ in range(3):
                _, tally, _ = await post(transport, url)
                assert (events(tally), tally.result(None).outcome) == (8, "ok")
            assert transport.reactor.clock.rejected == 0

    run(main, threaded=threaded)


def test_timers_fire_in_order(threaded: bool) -> None:
    async def main() -> None:
        reactor = Reactor(threaded=threaded)
        fired: list[int] = []
        done = asyncio.Event()
        now = time.monotonic_ns()

        def fire(i: int) -> None:
            fired.append(i)
            if len(fired) == 6:
                reactor.post(done.set)

        for i in (5, 1, 4, 2, 3):
            reactor.at(now + i * 2_000_000, lambda i=i: fire(i))  # type: ignore[misc]
        reactor.at(now - 1, lambda: fire(0))
        await asyncio.wait_for(done.wait(), 5)
        reactor.close()
        assert fired == [0, 1, 2, 3, 4, 5]

    asyncio.run(main())


def test_a_timer_is_readable_at_its_time() -> None:
    timer = TimerFd()
    timer.set(time.monotonic_ns() + 1_000_000)
    time.sleep(0.01)
    timer.clear()
    timer.clear()  # nothing to read is no error
    timer.close()
