from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import pytest

from loadgen.client.limits import Live, Timeouts

LONG = 30.0


async def held(limits: Timeouts, *then: tuple[float, Callable[[Live], None]], most_s: float = 5.0) -> tuple[str, float]:
    """Wait under these limits while `then` happens, each so long after the one before → the phase that ended it, or
    "nothing", and how long it took in s."""
    live = Live(limits)
    start = time.monotonic()

    async def happen() -> None:
        for after_s, call in then:
            await anyio.sleep(after_s)
            call(live)

    async with anyio.create_task_group() as group:
        group.start_soon(happen)
        with anyio.move_on_after(most_s), live.scope:
            await anyio.sleep_forever()
        group.cancel_scope.cancel()
    live.close()
    return live.phase if live.scope.cancelled_caught else "nothing", time.monotonic() - start


@pytest.mark.parametrize(
    ("limits", "then", "phase", "least_s"),
    [
        (Timeouts(0.03, LONG, LONG, LONG), (), "connect", 0.03),
        (Timeouts(LONG, LONG, LONG, 0.03), (), "total", 0.03),
        (Timeouts(LONG, 0.03, LONG, LONG), ((0.0, Live.sent),), "first_token", 0.03),  # earlier than the limit before
        (Timeouts(0.4, 0.8, LONG, LONG), ((0.0, Live.sent),), "first_token", 0.8),  # later
        (Timeouts(LONG, LONG, 0.16, LONG), ((0.0, Live.sent), (0.01, Live.token)), "idle", 0.18),
        (Timeouts(0.4, 0.4, 0.8, LONG), ((0.0, Live.sent), (0.0, Live.token)), "idle", 0.8),
        (Timeouts(LONG, LONG, LONG, 0.1), ((0.0, Live.sent), (0.0, Live.token)), "total", 0.1),
        (Timeouts(LONG, float("inf"), LONG, 0.1), ((0.0, Live.sent),), "total", 0.1),
    ],
)
def test_each_limit_ends_a_request_at_its_time(
    limits: Timeouts, then: tuple[tuple[float, Callable[[Live], None]], ...], phase: str, least_s: float
) -> None:
    ended, took_s = anyio.run(held, limits, *then)
    assert ended == phase
    assert least_s <= took_s < LONG / 2


def test_tokens_put_the_end_off() -> None:
    async def main() -> tuple[str, float]:
        tokens = [(0.02, Live.token)] * 20
        return await held(Timeouts(LONG, LONG, 0.3, LONG), (0.0, Live.sent), *tokens)

    ended, took_s = anyio.run(main)
    assert ended == "idle"
    assert took_s >= 20 * 0.02 + 0.3, "counted from the last token, not from the first"


def test_a_write_after_the_end_starts_no_timer() -> None:
    async def main() -> bool:
        live = Live(Timeouts(LONG, 0.01, LONG, LONG))
        live.close()
        live.sent()
        await anyio.sleep(0.05)
        return bool(live.scope.cancel_called)

    assert not anyio.run(main)
