"""T08, T09: prompts that share their beginnings, and conversations; the server has a prefix cache of blocks."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.records import Record
from loadgen.simulator.script import R, U
from loadgen.simulator.scripted import DONE, FIN, Action, C, Request, T, ThreadedServer, error_reply
from tests.cases.support import Ran, answer, disturbed, loadgen, posts, went_well, words_of
from tests.thorough import THOROUGH

BLOCK = 16
OVERHEAD = 8  # tokens before the text


class Blocks:
    """A prefix cache of whole blocks that forgets nothing: a token a word, after a template. The last token of
    a prompt is always computed. `most` is the context."""

    def __init__(self, *, told: bool = True, on: bool = True, most: int = 1_000_000) -> None:
        self.told, self.on, self.most = told, on, most
        self.held: set[int] = set()
        self.lock = threading.Lock()
        self.bodies: list[dict[str, Any]] = []
        self.longest = 0

    def tokens(self, body: dict[str, Any]) -> list[str]:
        if "prompt" in body:
            return ["<s>"] * OVERHEAD + str(body["prompt"]).split()
        said = [word for m in body["messages"] for word in (f"<{m['role']}>", *m["content"].split())]
        return ["<s>"] * (OVERHEAD - 1) + said

    def __call__(self, request: Request) -> Any:
        body = request.json
        tokens = self.tokens(body)
        asked = body.get("max_tokens") or 0
        with self.lock:
            self.bodies.append(body)
            self.longest = max(self.longest, len(tokens) + asked)
            keys = [hash(tuple(tokens[:end])) for end in range(BLOCK, len(tokens) + 1, BLOCK)]
            hits = 0
            while self.on and hits < (len(tokens) - 1) // BLOCK and keys[hits] in self.held:
                hits += 1
            self.held.update(keys)
        if len(tokens) + asked > self.most:
            return error_reply(400, f"maximum context length is {self.most} tokens")
        overhead = len(tokens) - sum(len(str(m).split()) for m in said_of(body))
        return answer(request, overhead=overhead, cached=hits * BLOCK if self.told else None)


def said_of(body: dict[str, Any]) -> list[str]:
    return [body["prompt"]] if "prompt" in body else [m["content"] for m in body["messages"]]


def run(cache: Blocks, output: Path, *arguments: str, **models: Any) -> Ran:
    with ThreadedServer(posts(cache, **models)) as server:
        # Time enough for workers to start on a busy machine.
        ran = loadgen("run", server.url, "-c", "4", "--requests", "40", "--max-time", "60s", *arguments, output=output)
        assert server.errors == []
    return ran


def expected(record: Record) -> tuple[int, ...]:
    assert record.shared is not None
    assert record.input_tokens.server is not None
    return tuple(min(n, record.input_tokens.server - 1) // BLOCK * BLOCK for n in record.shared)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize(("prefix", "groups"), [(64, 1), (100, 3), (150, 1)])
def test_t09_prompts_share_as_much_as_is_asked_for(endpoint: str, prefix: int, groups: int, tmp_path: Path) -> None:
    cache = Blocks()
    shape = ("--input-len", "200", "--output-len", "2", "--shared-prefix-len", str(prefix), "--cache-block", str(BLOCK))
    ran = run(cache, tmp_path, *shape, "--prefix-groups", str(groups), "--endpoint", endpoint, "--warmup", "12")
    measured = ran.records("measured")
    assert {r.input_tokens.server for r in measured} == {200}, "sharing changes no length"
    # In the first wave some are sent side by side; after it, each holds what the one before it left.
    for record in measured:
        low, high = expected(record)
        assert low <= (record.input_tokens.cached or 0) <= high, record.id
    share = ran.report()["steps"][0]["cache"]
    assert share["block_tokens"] == BLOCK
    assert share["expected_share"][0] <= share["server_share"] <= share["expected_share"][1]
    assert "cached share:" not in ran.said, "nothing to find"
    assert ran.manifest["workload"]["sharing"]["groups"] == groups


def test_t08_a_second_run_shares_nothing_with_the_first(tmp_path: Path) -> None:
    cache = Blocks()
    for number in range(2):
        ran = run(
            cache, tmp_path / str(number), "--input-len", "120", "--output-len", "2", "--shared-prefix-len", "64",
            "--seed", "7", "--warmup", "0",
        )  # fmt: skip
        first = min(ran.records(), key=lambda r: (r.phase == "preflight", r.sent_ns or 0))
        assert first.input_tokens.cached == 0, "the nonce stands at the start of what is shared"


@pytest.mark.parametrize("workers", ["3"] + (["2"] if THOROUGH > 1 else []))
def test_t09_workers_share_one_set_of_prefixes(workers: str, tmp_path: Path) -> None:
    cache = Blocks()
    ran = run(
        cache, tmp_path, "--input-len", "120", "--output-len", "2", "--shared-prefix-len", "64", "--workers", workers,
        "--warmup", "12",
    )  # fmt: skip
    cached = {r.input_tokens.cached for r in ran.records("measured") if r.outcome == "ok"}
    assert cached == {64} or (disturbed(ran) and not cached)


def test_t08_a_cache_that_is_off_is_found(tmp_path: Path) -> None:
    shape = ("--input-len", "200", "--output-len", "2", "--shared-prefix-len", "128", "--cache-block", str(BLOCK))
    ran = run(Blocks(on=False), tmp_path, *shape)
    assert "64 % expected of what was sent, 0 % by the server: its prefix cache is off" in ran.said


def test_t08_a_server_that_tells_nothing_is_unknown_not_zero(tmp_path: Path) -> None:
    ran = run(Blocks(told=False), tmp_path, "--input-len", "200", "--output-len", "2", "--shared-prefix-len", "128")
    share = ran.report()["steps"][0]["cache"]
    assert share["server_share"] is None
    assert share["source"] is None
    assert "expected of what was sent" not in ran.said


def test_t08_a_hit_that_nobody_asked_for_is_found(tmp_path: Path) -> None:
    with ThreadedServer(posts(lambda request: answer(request, cached=64))) as server:
        ran = loadgen(
            "run", server.url, "-c", "2", "--requests", "20", "--input-len", "128", "--output-len", "2", output=tmp_path
        )
    assert "though these prompts have nothing in common" in ran.said


# --- conversations --------------------------------------------------------------------------------------------------


def conversations(ran: Ran) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = defaultdict(list)
    for record in sorted((r for r in ran.records() if r.phase != "preflight"), key=lambda r: r.sent_ns or 0):
        assert record.session is not None
        found[record.session].append(record)
    return found


TALK = ("--input-len", "60", "--output-len", "6", "--turns", "3", "--turn-input-len", "20")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_chat_turns_alternate_and_hold_the_servers_answers(workers: str, tmp_path: Path) -> None:
    cache = Blocks()
    ran = run(cache, tmp_path, *TALK, "--workers", workers)
    for turns in conversations(ran).values():
        assert [r.turn for r in turns] == [*range(1, len(turns) + 1)]
        assert len({r.worker for r in turns}) == 1, "a session stays in its process"
    long = [body["messages"] for body in cache.bodies if len(body["messages"]) == 5]
    assert long
    for messages in long:
        assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant", "user"]
        assert messages[1]["content"] == messages[3]["content"] == "a " * 6, "as the server said it"
        assert [len(m["content"].split()) for m in messages[::2]] == [60 - OVERHEAD, 20, 20]
    for record in ran.records("measured"):
        if record.outcome == "ok":
            low, high = expected(record)
            assert low <= (record.input_tokens.cached or 0) <= high, record.id
    step = ran.report()["steps"][0]
    assert step["sessions"]["conversations"] >= 10
    assert [*step["by_turn"]] == ["1", "2", "3"]


def test_completions_go_on_from_the_whole_text(tmp_path: Path) -> None:
    cache = Blocks()
    ran = run(cache, tmp_path, *TALK, "--endpoint", "completions")
    went_well(ran)
    prompts = [body["prompt"] for body in cache.bodies]
    # The answer follows without a space: its first word is one with the last before it.
    second = [p for p in prompts if "a a a a a " in p and len(p.split()) == 60 - OVERHEAD + 5 + 20]
    assert second
    for prompt in second:
        assert any(prompt.startswith(f"{opening}{'a ' * 6} ") for opening in prompts if len(opening) < len(prompt))


def test_made_history_does_not_depend_on_the_server(tmp_path: Path) -> None:
    cache = Blocks()
    run(cache, tmp_path, *TALK, "--history", "made")
    answers = [m["content"] for body in cache.bodies for m in body["messages"] if m["role"] == "assistant"]
    assert answers
    assert all(len(text.split()) == 6 and {*text.split()} != {"a"} for text in answers)


def test_a_conversation_ends_before_the_context_does(tmp_path: Path) -> None:
    cache = Blocks(most=160)
    ran = run(cache, tmp_path, *TALK[:4], "--turns", "50", "--turn-input-len", "20", max_model_len=160)
    assert {r.outcome for r in ran.records()} == {"ok"}, "never a 400"
    assert cache.longest <= 160
    ends = [turns[-1] for turns in conversations(ran).values() if "context_cut" in turns[-1].flags]
    assert ends
    assert ran.report()["steps"][0]["sessions"]["cut_context"] > 0
    assert "ended where the next turn might not have fitted the context" in ran.said


def test_reasoning_is_not_sent_back(tmp_path: Path) -> None:
    bodies: list[dict[str, Any]] = []

    def thinks(request: Request) -> Iterator[Action]:
        bodies.append(request.json)
        yield from (T(1), R("hm "), R("well "), C("yes "), C("indeed "), FIN("length"))
        yield from (U(len(words_of(request)) + OVERHEAD, 6), DONE)

    with ThreadedServer(posts(thinks)) as server:
        loadgen("run", server.url, "-c", "2", "--requests", "12", *TALK, output=tmp_path)
    answers = {m["content"] for body in bodies for m in body["messages"] if m["role"] == "assistant"}
    assert answers == {"yes indeed "}
