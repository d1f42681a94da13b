"""Field cases X08 and M21: what stands between server and client holds the stream back, and the report says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.simulator.scripted import DONE, FIN, Action, C, Request, T, ThreadedServer, U
from tests.cases.support import disturbed, loadgen, posts

TOKENS = 40


def stream(request: Request, held: int) -> Iterator[Action]:
    """A token each 5 ms, passed on by so many."""
    for number in range(1, TOKENS + 1):
        yield C("a ")
        if number % held == 0:
            yield T(5 * held)
    yield FIN("length")
    yield U(16, TOKENS)
    yield DONE


@pytest.mark.parametrize("held", [1, 20, TOKENS], ids=["as it comes", "M21 20 at a time", "M21 whole"])
def test_x08_m21_a_proxy_that_holds_output_back_is_named(held: int, tmp_path: Path) -> None:
    load = ("--input-len", "16", "--output-len", str(TOKENS), "-c", "2", "--requests", "8")
    with ThreadedServer(posts(lambda request: stream(request, held)), flush="wait") as server:
        for _ in range(3):
            ran = loadgen("run", server.url, *load, output=tmp_path / f"{len(list(tmp_path.iterdir()))}")
            [step] = ran.report()["steps"]
            if (step["bursts"] is not None) == (held > 1) or not disturbed(ran):
                break  # a machine without a CPU to spare tells nothing
    assert (step["bursts"] is not None) == (held > 1)
    if held > 1:
        assert f"came in bursts, up to {held}" in ran.said
        assert "a proxy that buffers" in ran.said
    else:
        assert "bursts" not in ran.out
