"""Seats as actors of a Ray cluster, one worker in each. Nothing else in this project knows of Ray, and this imports it
only when it is asked for.

    cluster = join("auto", 8)      joins, plans which node has which worker, and has the actors started
    cluster.call(3, "read", 0, n)  a method of worker 3's seat
    cluster.leave()                no actor is left

An actor asks for one CPU, of one node that was planned ahead. What is secret goes to it as an argument of a call, which
passes from process to process, and never to where Ray keeps what it knows of its actors.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .. import __version__
from ..errors import LoadgenError, UsageError
from .remote import SeatGoneError
from .seat import Seat

REACH_S = 5.0  # until the cluster's port must have answered
JOIN_S = 30.0
START_S = 60.0  # until every actor must have started
INSIDE = "loadgen --ray runs on a machine of the cluster: in a pod of it, or after `ray start --address=…` here"
# A client's part of the beginning of HTTP/2, which gRPC speaks, and the kind of frame that a server answers it with.
PREFACE, SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", 4


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster. `cpus` are those that nobody has asked for."""

    id: str
    address: str
    name: str
    cpus: int

    @property
    def called(self) -> str:
        return f"node {self.address}" if self.name in ("", self.address) else f"node {self.name} ({self.address})"


def place(nodes: Sequence[Node], workers: int) -> list[Node]:
    """The node of each worker: of those that have a CPU left the one with the fewest workers, and of these the one with
    the most CPUs. Raises UsageError where there are too few."""
    free = sum(node.cpus for node in nodes)
    if free < workers:
        machines = f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}"
        raise UsageError(
            f"{workers} workers need a CPU each, and the Ray cluster's {machines} have {free} to spare",
            f"ask for --workers {free} or fewer, or add nodes" if free else "wait for CPUs to fall free, or add nodes",
        )
    had = dict.fromkeys((node.id for node in nodes), 0)
    placed = []
    for _ in range(workers):
        node = min(
            (node for node in nodes if had[node.id] < node.cpus), key=lambda n: (had[n.id], -n.cpus, n.address, n.id)
        )
        had[node.id] += 1
        placed.append(node)
    return placed


class Cluster:
    """The seats of a run. See `remote.Seats`."""

    def __init__(self, ray: Any, address: str, *, ours: bool) -> None:
        self._ray, self._ours = ray, ours  # did we join it, and are to leave it?
        self.address = address
        self.host = str(ray.util.get_node_ip_address())
        self.nodes: list[Node] = []
        self._actors: list[Any] = []
        self._hosts: list[Mapping[str, Any]] = []

    @property
    def names(self) -> list[str]:
        return [node.called for node in self.nodes]

    def plan(self, workers: int) -> list[Node]:
        """Which node each of so many workers would be on, by what is free now. Raises UsageError."""
        return place(_nodes(self._ray), workers)

    def start(self, workers: int) -> None:
        """Have an actor for each worker. Takes seconds. Raises LoadgenError where one does not start."""
        ray = self._ray
        self.nodes = self.plan(workers)
        affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        actor = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Seat)
        self._actors = [
            actor.options(scheduling_strategy=affinity(node_id=node.id, soft=False)).remote() for node in self.nodes
        ]
        asked = [one.introduce.remote() for one in self._actors]
        _, late = ray.wait(asked, num_returns=len(asked), timeout=START_S)
        if late:
            raise LoadgenError(
                f"{len(late)} of {workers} Ray actors did not start within {START_S:g} s, the first of them on"
                f" {self.names[asked.index(late[0])]}",
                "see with `ray status` whether the nodes are alive and their CPUs free",
            )
        for answer, name in zip(asked, self.names, strict=True):
            try:
                host = ray.get(answer)
            except Exception as error:
                raise LoadgenError(
                    f"a worker cannot be started on {name}: {_last_line(error)}",
                    "have the same loadgen installed on every node, as one image for all has",
                ) from None
            if host["version"] != __version__:
                raise LoadgenError(
                    f"{name} has loadgen {host['version']}, and this machine has {__version__}",
                    "have the same loadgen installed on every node, as one image for all has",
                )
            self._hosts.append(host)

    async def call(self, number: int, method: str, *args: Any) -> Any:
        try:
            reference = getattr(self._actors[number], method).remote(*args)
            return await asyncio.wrap_future(reference.future())
        except self._ray.exceptions.RayError as error:
            raise SeatGoneError(f"has gone ({type(error).__name__})") from None

    def tell(self, number: int, method: str) -> None:
        getattr(self._actors[number], method).remote()

    def where(self, workers: int) -> str:
        machines = len({node.id for node in self.nodes[:workers]})
        return f"{machines} {'node' if machines == 1 else 'nodes'} of the Ray cluster at {self.address}"

    def facts(self) -> dict[str, Any]:
        placed = [
            {"worker": number, "node": node.address, "host": host["host"], "node_id": node.id, "actor_pid": host["pid"]}
            for number, (node, host) in enumerate(zip(self.nodes, self._hosts, strict=False))
        ]
        return {"by": "ray", "version": self._ray.__version__, "address": self.address, "placed": placed}

    def leave(self) -> None:
        """End every actor, and leave the cluster if we joined it."""
        for actor in self._actors:
            with suppress(Exception):  # it has gone already, or its cluster has
                self._ray.kill(actor)
        self._actors = []
        if self._ours:
            self._ray.shutdown()


def join(address: str) -> Cluster:
    """The cluster at `address` (HOST:PORT, or `auto`), or the one that this process has joined already. Raises
    UsageError, in seconds, where there is none. Blocks: call it in a thread."""
    if importlib.util.find_spec("ray") is None:
        raise UsageError("--ray needs Ray, which is not installed", "pip install 'loadgen[ray]'")
    if address.startswith("ray://"):
        raise UsageError(f"{address} is the address of a Ray client, whose calls take a way round", INSIDE)
    if address != "auto":
        _reach(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray: Any = importlib.import_module("ray")
    if ray.is_initialized():
        return Cluster(ray, address, ours=False)
    logging.getLogger("ray").setLevel(logging.ERROR)
    # Else what Ray has to say of a node or an actor that was lost would stand in our output.
    importlib.import_module("ray._private.worker").__dict__["_worker_logs_enabled"] = False
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False, "configure_logging": False}
    _within(JOIN_S, lambda: ray.init(address=address, **quiet), address)
    return Cluster(ray, address if address != "auto" else str(ray.get_runtime_context().gcs_address), ours=True)


def _reach(address: str) -> None:
    """See whether what Ray speaks is spoken there; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--ray {address} is no address", "write HOST:PORT, as in --ray 10.0.0.1:6379, or auto")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), REACH_S) as connection:
            if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
                return
            connection.sendall(PREFACE)
            said = b""
            while len(said) < 9 and (more := connection.recv(9 - len(said))):
                said += more
    except OSError as error:
        raise UsageError(
            f"no Ray cluster answers at {address}: {error.strerror or error}", "give the address that `ray start` said"
        ) from None
    if len(said) < 9 or said[3] != SETTINGS:
        raise UsageError(
            f"what answers at {address} is no Ray cluster",
            "give the address that `ray start` said, not the dashboard's",
        )


def _within(limit_s: float, what: Callable[[], Any], address: str) -> None:
    """Do it in a thread that can be left behind, as nothing ends an attempt of Ray's to join."""
    failed: list[BaseException] = []

    def attempt() -> None:
        try:
            what()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise UsageError(f"the Ray cluster at {address} let nobody join within {limit_s:g} s", INSIDE)
    if failed:
        raise UsageError(f"the Ray cluster at {address} cannot be joined: {_first_line(failed[0])}", INSIDE)


def _nodes(ray: Any) -> list[Node]:
    """The cluster's machines, with the CPUs that are free."""
    try:
        free = importlib.import_module("ray._private.state").available_resources_per_node()
    except (ImportError, AttributeError):  # it may move; then what each has in all is the best guess
        free = {}
    nodes = []
    for node in ray.nodes():
        if node["Alive"]:
            cpus = free.get(node["NodeID"], node["Resources"]).get("CPU", 0)
            nodes.append(Node(node["NodeID"], node["NodeManagerAddress"], node["NodeManagerHostname"], int(cpus)))
    return nodes


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
