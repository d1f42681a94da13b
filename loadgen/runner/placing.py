"""Where the workers of a run are: on this machine, or placed on those of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from ..client.remote import Seats
from ..errors import UsageError
from .config import RunConfig
from .plans import planned_levels

LEAVE_S = 5.0


@asynccontextmanager
async def placed(config: RunConfig, waiting: Callable[[str], None]) -> AsyncIterator[Seats | None]:
    """The seats of the workers on other machines, ready for them, until the run is over; None where they are on this
    one. Raises LoadgenError, before anything was sent, where they cannot be had."""
    if config.ray is None:
        yield None
        return
    from ..client import ray_fleet

    waiting(f"joining the Ray cluster at {config.ray}")
    cluster = await anyio.to_thread.run_sync(ray_fleet.join, config.ray, abandon_on_cancel=True)
    try:
        workers = workers_of(config)
        _see_reachable(config, cluster.plan(workers), cluster.host)
        waiting(f"starting {workers} Ray actors")
        await anyio.to_thread.run_sync(cluster.start, workers, abandon_on_cancel=True)
        yield cluster
    finally:
        with anyio.move_on_after(LEAVE_S, shield=True):
            await anyio.to_thread.run_sync(cluster.leave, abandon_on_cancel=True)


def placement(config: RunConfig) -> list[dict[str, Any]]:
    """Which worker would be where, by what is free now; nothing is started. Raises LoadgenError. Blocks."""
    from ..client import ray_fleet

    assert config.ray is not None
    cluster = ray_fleet.join(config.ray)
    try:
        nodes = cluster.plan(workers_of(config))
        _see_reachable(config, nodes, cluster.host)
        return [
            {"worker": number, "node": node.address, "host": node.name, "node_id": node.id}
            for number, node in enumerate(nodes)
        ]
    finally:
        cluster.leave()


def workers_of(config: RunConfig) -> int:
    """How many a step will have at the most: never more than requests in flight."""
    workers, loop = config.workers or 1, config.open_loop
    most = max(planned_levels(config.plan)) if loop is None else loop.max_in_flight
    return min(workers, most) if most else workers


def _see_reachable(config: RunConfig, nodes: list[Any], host: str) -> None:
    away = next((node for node in nodes if node.address != host), None)
    for url in (config.url, *config.more_urls):
        if away is not None and _is_loopback(url):
            raise UsageError(
                f"{url} is each machine's own, and a worker would be on {away.called}",
                "give the address that the other machines reach the server by",
            )


def _is_loopback(url: str) -> bool:
    try:
        name = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    except ValueError:  # no address: whoever reads it in earnest says why
        return False
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
