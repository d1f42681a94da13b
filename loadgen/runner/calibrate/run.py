"""A whole calibration: what this machine carries, how wrong its stamps are, how late its requests.

The ladder of smooth streams rises until one is too much for the client (CPU, lag, tokens that came in one read) or for
the servers; where it was the servers, what was carried is "at least". Then lockstep, TLS, and dispatch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ... import __version__
from ...client.health import tune_process
from ...client.transport import Access
from ..host import raise_descriptor_limit
from .stages import DISTURBED, Bench, DispatchStage, Ground, Plan, StreamStage, waited
from .store import SCHEMA_VERSION, host_facts

Stage = StreamStage | DispatchStage


async def calibrate(
    ground: Ground,
    plan: Plan | None = None,
    *,
    host: Mapping[str, Any] | None = None,
    on_stage: Callable[[Stage], None] = lambda _: None,
) -> dict[str, Any]:
    """Calibrate against these servers; returns the JSON object that `store.save` keeps and reports cite.

    `host` is `host_facts()` as it was before this process was pinned, if it was.
    """
    plan = plan or Plan()
    tune_process()
    raise_descriptor_limit(max((*plan.levels, *plan.checks)))
    bench = Bench(ground, plan)
    began = time.monotonic()
    stages: list[StreamStage] = []
    dispatch: list[DispatchStage] = []

    def in_time() -> bool:
        return time.monotonic() - began < plan.deadline_s

    async def streams(count: int, *, lockstep: bool = False, tls: bool = False) -> StreamStage:
        stage = await bench.streams(count, lockstep=lockstep, tls=tls)
        if stage.limited_by == "disturbed" and in_time():
            again = await bench.streams(count, lockstep=lockstep, tls=tls)
            stage = again if again.limited_by is None or waited(again) < waited(stage) else stage
        stages.append(stage)
        on_stage(stage)
        return stage

    for rate in plan.rates:
        dispatch.append(await bench.dispatch(rate))
        on_stage(dispatch[-1])
    for count in plan.checks:
        await streams(count, lockstep=True)
    for count in plan.checks:
        await streams(count, tls=True)
    if plan.checks:
        await streams(plan.checks[-1], lockstep=True, tls=True)

    carried: StreamStage | None = None
    broke: StreamStage | None = None
    for count in plan.levels:
        stage = await streams(count)
        if stage.limited_by is not None:
            broke = stage
            break
        carried = stage
    for _ in range(plan.refinements):
        if broke is None or carried is None or not in_time():
            break
        middle = round((carried.streams * broke.streams) ** 0.5)
        if middle in (carried.streams, broke.streams):
            break
        stage = await streams(middle)
        if stage.limited_by is None:
            carried = stage
        else:
            broke = stage

    return {
        "schema_version": SCHEMA_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 1),
        "loadgen": __version__,
        "host": dict(host or host_facts()),
        "transport": Access().transport,
        "apart": ground.apart,
        "servers": len(ground.urls),
        "itl_ms": 1e3 * plan.itl_s,
        "capacity": capacity(carried, broke),
        "streams": [asdict(stage) for stage in stages],
        "dispatch": [asdict(stage) for stage in dispatch],
        "disturbed": max([*map(waited, stages), *map(waited, dispatch)], default=0.0) > DISTURBED,
    }


def capacity(carried: StreamStage | None, broke: StreamStage | None) -> dict[str, Any]:
    """What the ladder says: the highest level that was carried, and what broke the next. Pure.

    Where the ladder ended with nothing broken, on a disturbed machine, or with the servers late and the client well,
    it is "at least"; what late servers still sent was carried, too.
    """
    best = carried
    by_server = broke is not None and broke.limited_by == "server"
    if by_server and broke is not None and (best is None or broke.events_per_s > best.events_per_s):
        best = broke
    return {
        "events_per_s": 0.0 if best is None else best.events_per_s,
        "streams": 0 if best is None else best.streams,
        "cpu_us_per_event": None if best is None else best.cpu_us_per_event,
        "at_least": broke is None or broke.limited_by in ("server", "disturbed"),
        "limited_by": None if broke is None else broke.limited_by,
        "broke_at_streams": None if broke is None else broke.streams,
    }
