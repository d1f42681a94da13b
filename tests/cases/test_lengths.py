"""Prompts of exactly so many tokens, through whole commands: by whom their cost is learnt, and that it then holds.

The fake servers charge for words as tokenizers do; what they count for a request's prompt is the truth.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import Exit
from loadgen.simulator.scripted import Request, ThreadedServer, error_reply, json_reply, models_reply
from loadgen.workload.words import WORDS
from tests.cases.support import Ran, answer, loadgen
from tests.workload.toy_tokenizers import words_tokenizer

Cost = Callable[[str], int]
AROUND = 8  # tokens
FLAGS = ("-c", "2", "--requests", "12", "--output-len", "2", "--input-len", "30-200")


def some_cost_more(word: str) -> int:
    return 1 + (hashlib.sha256(word.encode()).digest()[0] < 80 and word not in WORDS[:80])


def another(word: str) -> int:
    return 1 + (len(word) % 2)


@dataclass
class Engine:
    """A server of some kind. Its `/tokenize` counts by `told`, its usage by `cost`; None is not there."""

    kind: str = "vllm"
    cost: Cost = some_cost_more
    told: Cost | None = some_cost_more
    usage: bool = True
    around: int = AROUND
    order: list[str] = field(default_factory=list)  # the paths asked
    loaded: bool = False  # has the load begun?

    def __call__(self, request: Request) -> Any:
        path = request.path.split("?")[0]
        self.order.append(path)
        self.loaded |= "-s1-" in request.headers.get("x-request-id", "")
        if path == "/tokenize":
            return self.tokens(request.json) if self.told is not None else error_reply(404, "Not Found")
        if request.method == "GET":
            info = {"model_id": "m", "router": "text-generation-router", "max_total_tokens": 4096}
            if path == "/info" and self.kind == "tgi":
                return json_reply(info)
            owner = {"llama.cpp": "llamacpp"}.get(self.kind, self.kind)
            return models_reply(["m"], owned_by=owner) if path == "/v1/models" else None
        prompt = request.json.get("prompt")
        if isinstance(prompt, list):  # ids are what they are
            request.json["prompt"] = " ".join("x" for _ in prompt)
            return answer(request, overhead=0)
        if not self.usage:
            request.json.pop("stream_options", None)
        return answer(request, overhead=self.around if "messages" in request.json else 0, cost=self.cost)

    def tokens(self, body: dict[str, Any]) -> Any:
        assert self.told is not None
        around = 0
        if self.kind == "vllm" and "messages" in body:
            text, around = body["messages"][0]["content"], self.around
        else:
            text = body[{"vllm": "prompt", "sglang": "prompt", "llama.cpp": "content", "tgi": "inputs"}[self.kind]]
        words = text.split()
        ids = [1000 + WORDS.index(word) + 600 * part for word in words for part in range(self.told(word))]
        ids = [1] * around + ids
        if self.kind == "tgi":
            return json_reply([{"id": one, "text": "", "start": 0, "stop": 0} for one in ids])
        return json_reply({"tokens": ids} | ({} if self.kind == "llama.cpp" else {"count": len(ids)}))


def run(engine: Engine, output: Path, *flags: str) -> Ran:
    with ThreadedServer(engine) as server:
        ran = loadgen("run", server.url, *FLAGS, *flags, output=output)
        assert server.errors == []
    assert ran.code in (Exit.DONE, Exit.UNDECIDED), ran.err  # a busy machine decides nothing
    return ran


def off(ran: Ran) -> set[int]:
    """By how much the server's counts are off what was asked for, over all that the load sent."""
    records = ran.records("warmup", "measured", "filler")
    assert len(records) >= 12
    return {(r.input_tokens.server or 0) - (r.input_tokens.asked or 0) for r in records}


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("kind", ["vllm", "sglang", "llama.cpp", "tgi"])
def test_by_the_servers_own_tokenizer(kind: str, endpoint: str, tmp_path: Path) -> None:
    """What its /tokenize leaves out, which is the template with most, is learnt from the usage of a request."""
    engine = Engine(kind)
    ran = run(engine, tmp_path, "--endpoint", endpoint)
    assert off(ran) == {0}
    assert "input lengths exact by the server's tokenizer" in ran.said
    assert ran.manifest["workload"]["input_exact_by"] == "server"
    assert ran.manifest["server"]["overhead_tokens"] == (AROUND if endpoint == "chat" else 0)
    # Then a prompt is arithmetic: nothing is asked any more.
    assert "/tokenize" in engine.order
    assert "/tokenize" not in engine.order[-12:]
    assert len(ran.records("preflight")) == 3


@pytest.mark.parametrize(
    "engine",
    [Engine(told=None), Engine(told=another), Engine("unheard of"), Engine(told=lambda word: 0)],
    ids=["no /tokenize", "another tokenizer", "an unknown server", "a /tokenize that counts nothing"],
)
def test_by_usage_where_no_tokenizer_stands_the_test(engine: Engine, tmp_path: Path) -> None:
    ran = run(engine, tmp_path)
    assert off(ran) == {0}
    assert "input lengths exact by usage: 8 around the text" in ran.said
    assert len(ran.records("preflight")) <= 20


@pytest.mark.parametrize("usage", [True, False], ids=["usage", "no usage"])
def test_by_a_local_tokenizer(usage: bool, tmp_path: Path) -> None:
    """The word tokenizer's counts are the server's, or there is nobody to say that they are not."""
    engine = Engine("unheard of", cost=lambda word: 1, usage=usage)
    folder = words_tokenizer(tmp_path / "tokenizer")
    ran = run(engine, tmp_path / "runs", "--tokenizer", str(folder))
    records = ran.records("measured")
    around = AROUND if usage else 0
    assert all(r.input_tokens.local == (r.input_tokens.asked or 0) - around for r in records)
    if usage:
        assert off(ran) == {0}
        assert "input lengths exact by the local tokenizer: 8 around the text" in ran.said
        assert {r.output_tokens.source for r in records} == {"usage"}
    else:
        assert "without what the server puts around a text" in ran.said
        assert ran.manifest["workload"]["input_exact_by"] is None
        assert {r.output_tokens.source for r in records} == {"tokenizer"}
        assert {r.output_tokens.count for r in records} == {2}
        assert "tokens are counted by the local tokenizer" in ran.said
    assert len(ran.manifest["workload"]["tokenizer"]["sha256"]) == 64


def test_t03_a_local_tokenizer_that_is_not_the_servers_is_told_and_not_used(tmp_path: Path) -> None:
    """The template, which no local count has, does not make the ratio."""
    engine = Engine("unheard of", cost=lambda word: 1 + (word in WORDS[100:]), around=25)
    folder = words_tokenizer(tmp_path / "tokenizer")
    ran = run(engine, tmp_path / "runs", "--tokenizer", str(folder))
    assert "(ratio 1." in ran.said
    assert "rates use the server's count" in ran.said
    assert off(ran) == {0}
    assert "input lengths exact by usage: 25 around the text" in ran.said
    [one] = ran.report()["steps"]
    measured = ran.records("measured")
    assert one["total_input_tokens"] == sum(r.input_tokens.server or 0 for r in measured if r.outcome == "ok")


def test_t03_one_that_agrees_is_not_spoken_of(tmp_path: Path) -> None:
    folder = words_tokenizer(tmp_path / "tokenizer")
    ran = run(Engine("unheard of", cost=lambda word: 1), tmp_path / "runs", "--tokenizer", str(folder))
    assert "ratio" not in ran.said


def test_token_ids_where_asked_for(tmp_path: Path) -> None:
    engine = Engine()
    ran = run(engine, tmp_path, "--endpoint", "completions", "--token-ids")
    assert off(ran) == {0}
    assert "input lengths exact as token ids" in ran.said


def test_token_ids_are_the_local_tokenizers_where_the_server_tells_none(tmp_path: Path) -> None:
    folder = words_tokenizer(tmp_path / "tokenizer")
    flags = ("--endpoint", "completions", "--token-ids", "--tokenizer", str(folder))
    ran = run(Engine("unheard of"), tmp_path / "runs", *flags)
    assert off(ran) == {0}
    assert all(r.input_tokens.local == r.input_tokens.asked for r in ran.records("measured"))


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--token-ids",), 2, "add --endpoint completions"),
        (("--token-ids", "--endpoint", "completions"), 3, "give the model's own with --tokenizer"),
        (("--tokenizer", "org/model"), 2, "nothing is downloaded"),
    ],
    ids=["chat", "nobody tells ids", "a name"],
)
def test_what_cannot_be_is_said(flags: tuple[str, ...], code: int, words: str, tmp_path: Path) -> None:
    with ThreadedServer(Engine(told=None)) as server:
        ran = loadgen("run", server.url, *FLAGS, *flags, output=tmp_path)
    assert ran.code == code
    assert words in ran.said


def test_a_length_that_the_template_alone_exceeds_is_said(tmp_path: Path) -> None:
    ran = run(Engine(around=100), tmp_path)
    assert "inputs of less than 101 tokens cannot be had" in ran.said
    assert off(ran) > {0}


def test_a_length_that_is_off_is_a_finding(tmp_path: Path) -> None:
    """The server counts otherwise under load than in the preflight."""
    engine = Engine(told=None)
    engine.cost = lambda word: 1 + engine.loaded
    ran = run(engine, tmp_path)
    assert "off the length asked for, by the server's count" in ran.said
    assert ran.report()["steps"][0]["input_deviation_share"] > 0.02


@pytest.mark.parametrize("workers", ["1", "2"])
def test_workers_count_and_make_prompts_alike(workers: str, tmp_path: Path) -> None:
    folder = words_tokenizer(tmp_path / "tokenizer")
    flags = ("--tokenizer", str(folder), "--workers", workers, "--seed", "5")
    ran = run(Engine(told=None, cost=lambda word: 1, usage=False), tmp_path / "runs", *flags)
    records = ran.records("measured")
    assert {r.output_tokens.source for r in records} == {"tokenizer"}
    assert all(r.input_tokens.local == r.input_tokens.asked for r in records)
    assert len({r.worker for r in records}) == int(workers)
