"""Several servers as one: whose turn it is, and what is said of how they differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import anyio
import pytest

from loadgen.client.dialects.base import RequestOptions
from loadgen.client.peers import InTurn, in_turn, together
from loadgen.client.preflight import Prepared
from loadgen.client.target import resolve
from loadgen.errors import Failure
from loadgen.records import InputTokens, OutputTokens, Record, RequestSpec
from loadgen.results import ServerFacts
from loadgen.workload.prompts import Calibration
from tests.cases.support import PROMPT


class Noted:
    """A sender that notes what it is given; `peer` is the address it reaches, None where it reaches none."""

    def __init__(self, peer: str | None) -> None:
        self.peer = peer
        self.numbers: list[int] = []
        self.cuts: list[str] = []

    async def send(self, spec: RequestSpec, scheduled_ns: int) -> Record:
        self.numbers.append(spec.number)
        fault = None if self.peer else Failure("connect", "refused")
        return Record(
            *(spec.id, spec.step, spec.concurrency, spec.phase, spec.worker, scheduled_ns, None, None, None, None),
            *(None, None, 0, InputTokens(), OutputTokens(), None, None, "error" if fault else "ok"),
            error=fault,
            peer=self.peer,
        )

    def cut(self, outcome: Literal["cut", "cancelled"]) -> None:
        self.cuts.append(outcome)


def spec(number: int) -> RequestSpec:
    return RequestSpec(f"s1-{number:06d}", PROMPT, 1, 1, "measured", 0, number)


def test_a_request_goes_to_the_server_of_its_number() -> None:
    senders = {"http://a:1/v1": Noted("10.0.0.1:1"), "http://b:2/v1": Noted(None), "https://c/v1": Noted(None)}
    both = in_turn(senders)

    async def main() -> list[Record]:
        return [await both.send(spec(number), 0) for number in (4, 0, 2, 5, 3, 1)]

    records = anyio.run(main)
    assert [sender.numbers for sender in senders.values()] == [[0, 3], [4, 1], [2, 5]]
    # Where no connection came about the server itself is named.
    assert [record.peer for record in records] == ["b:2", "10.0.0.1:1", "c", "c", "10.0.0.1:1", "b:2"]
    both.cut("cut")
    assert all(sender.cuts == ["cut"] for sender in senders.values())


def test_one_server_needs_nothing_in_between() -> None:
    only = Noted(None)
    assert in_turn({"http://a": only}) is only
    assert isinstance(in_turn({"http://a": only, "http://b": Noted(None)}), InTurn)


def prepared(host: str, facts: ServerFacts | None = None, **changes: Any) -> Prepared:
    known = facts or ServerFacts("vllm", "0.9.0", "m", 8192, forced_length=True, usage=True, continuous_usage=True)
    options = RequestOptions("m", continuous_usage=True, force_length=True)
    return replace(
        Prepared(resolve(host), known, options, (), Calibration(tokens_per_word=1.3, overhead_tokens=10.0)), **changes
    )


FIRST = prepared("a:8000").facts

# What the second server is like → what is said of it.
DIFFERENT: dict[str, tuple[dict[str, Any], list[str]]] = {
    "alike": ({}, []),
    "another version": ({"facts": replace(FIRST, version="0.9.1")}, ["is vllm 0.9.1, the first server is vllm 0.9.0"]),
    "another kind": (
        {"facts": replace(FIRST, kind=None, version=None)},
        ["is of an unknown kind, the first server is vllm 0.9.0"],
    ),
    "a shorter context": (
        {"facts": replace(FIRST, context_length=4096)},
        ["its context is 4,096 tokens, the first server's 8,192 tokens"],
    ),
    "no context told": (
        {"facts": replace(FIRST, context_length=None)},
        ["its context is unknown, the first server's 8,192 tokens"],
    ),
    "another length": (
        {"facts": replace(FIRST, forced_length=False, observed_output_tokens=3)},
        ["it obeys the length asked for in another way than the first server"],
    ),
    "another tokenizer": (
        {"calibration": Calibration(tokens_per_word=1.5, overhead_tokens=10.0)},
        ["a word costs 1.50 tokens there and 1.30 at the first server: is it the same model?"],
    ),
    "a warning of its own": (
        {"facts": replace(FIRST, warnings=("no usage",))},
        ["no usage"],
    ),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_differences_are_said(case: str) -> None:
    changes, said = DIFFERENT[case]
    both = together([prepared("a:8000"), prepared("b:8000", **changes)])
    assert list(both.facts.warnings) == [f"b:8000: {words}" for words in said]
    assert both.target.host == "a:8000"
    assert [other.host for other in both.others] == ["b:8000"]
    assert both.notes[0] == "requests go to 2 servers in turn"


def test_only_what_all_take_is_asked_for() -> None:
    strict = prepared(
        "b", options=RequestOptions("m", usage=False), facts=replace(FIRST, context_length=100, usage=None)
    )
    both = together([prepared("a"), strict, prepared("c")])
    assert (both.options.usage, both.options.continuous_usage, both.options.force_length) == (False, False, False)
    assert (both.facts.context_length, both.facts.usage, both.facts.forced_length) == (100, None, True)


def test_servers_of_one_host_are_told_apart_by_their_whole_address() -> None:
    other = prepared("gw/team-b", facts=replace(FIRST, version="1"))
    [warning] = together([prepared("gw/team-a"), other]).facts.warnings
    assert warning.startswith("http://gw/team-b/v1/chat/completions: is vllm 1")


def test_one_server_is_as_it_was() -> None:
    one = prepared("a", notes=("n",))
    assert together([one]) == one
    assert together([one], ["more"]).notes == ("n", "more")
