"""What of a Ray cluster can be told without one. What needs one: tests/ray."""

from __future__ import annotations

import socket
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.ray_fleet import Node, join, place
from loadgen.errors import UsageError
from loadgen.simulator.scripted import ThreadedServer
from tests.cli.command import Call, serve

CPUS = st.lists(st.integers(0, 9), min_size=1, max_size=12)


def nodes_of(cpus: list[int]) -> list[Node]:
    return [Node(f"{at:04x}", f"10.0.0.{at}", f"n{at}", n) for at, n in enumerate(cpus)]


@given(CPUS, st.integers(1, 60))
def test_workers_are_spread_as_evenly_as_the_cpus_allow(cpus: list[int], workers: int) -> None:
    nodes = nodes_of(cpus)
    if sum(cpus) < workers:
        with pytest.raises(UsageError, match=f"have {sum(cpus)} to spare"):
            place(nodes, workers)
        return
    placed = Counter(node.id for node in place(nodes, workers))
    assert placed.total() == workers
    for node in nodes:
        assert placed[node.id] <= node.cpus
        if placed[node.id] < node.cpus:  # it could have had more: then no other has two more than it
            assert max(placed.values()) <= placed[node.id] + 1


def test_a_plan_is_the_same_each_time_and_uses_every_node_first() -> None:
    nodes = nodes_of([2, 4, 2])
    assert [node.name for node in place(nodes, 5)] == ["n1", "n0", "n2", "n1", "n0"]
    assert place(nodes, 5) == place(list(reversed(nodes)), 5)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "how many"),
        (("--workers", "2", "-o", "-"), "--output"),
        (("--workers", "2", "--unix-socket", "/run/x"), "--unix-socket"),
    ],
)
def test_what_does_not_go_with_a_cluster(flags: tuple[str, ...], said: str, call: Call) -> None:
    found = call("run", "http://127.0.0.1:9", "--ray", "127.0.0.1:6379", *flags)
    assert found.code == 2 and said in found.err and "Traceback" not in found.err


def test_without_ray_one_sentence_says_what_to_install(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    found = call("run", "http://127.0.0.1:9", "--ray", "auto", "--workers", "2", "-o", tmp_path)
    assert found.code == 2 and "loadgen[ray]" in found.err and "Traceback" not in found.err
    assert not list(tmp_path.iterdir()), "nothing was begun"


needs_ray = pytest.mark.skipif("not __import__('importlib.util').util.find_spec('ray')", reason="Ray is not installed")


@needs_ray
@pytest.mark.parametrize("address", ["nowhere", "10.0.0.1:", "10.0.0.1:x", "10.0.0.1:99999", "ray://10.0.0.1:10001"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="address"):
        join(address)


@needs_ray
def test_what_answers_and_is_no_cluster() -> None:
    with ThreadedServer(serve()) as server, pytest.raises(UsageError, match="no Ray cluster"):
        join(server.url.removeprefix("http://"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.close()
        with pytest.raises(UsageError, match="no Ray cluster answers"):
            join(f"127.0.0.1:{_free_port()}")


@needs_ray
def test_what_hangs_up_is_no_cluster() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            connection, _ = listener.accept()
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(UsageError, match="no Ray cluster"):
            join(f"127.0.0.1:{listener.getsockname()[1]}")
        thread.join()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def test_only_one_module_knows_of_ray() -> None:
    root = Path(__file__).parents[2] / "loadgen"
    knowing = [
        path.name
        for path in root.rglob("*.py")
        if any(word in path.read_text() for word in ("import ray\n", 'import_module("ray', "from ray"))
    ]
    assert knowing == ["ray_fleet.py"]
