"""Field cases X08 and M21: what stands between server and client holds the stream back, and the report says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loadgen.simulator.scripted import DONE, FIN, Action, C, T, U
from tests.cases.support import MakeSender, some, summary_of, texts

TOKENS = 40


def stream(held: int) -> Iterator[Action]:
    """A token each 3 ms, passed on by so many."""
    for number in range(TOKENS):
        if number % held == 0:
            yield T(3 * held)
        yield C("a ")
    yield from (FIN("length"), U(16, TOKENS), DONE)


@pytest.mark.parametrize("held", [1, 10, TOKENS], ids=["as it comes", "M21 10 at a time", "M21 whole"])
def test_x08_m21_a_proxy_that_holds_output_back_is_named(held: int, make_sender: MakeSender) -> None:
    text, report = texts(summary_of(some(make_sender, lambda request: stream(held), 4, server={"flush": "wait"})))
    assert (report["bursts"] is not None) == (held > 1)
    assert (f"4 of 4 answers came in bursts, up to {held}" in text) == (held > 1)
    assert ("a proxy that buffers" in text) == (held > 1)
