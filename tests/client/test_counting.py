"""Answers whose server does not count them, and prompts counted ahead of their time."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from loadgen.client.counting import AHEAD, TEXT_BYTES, Ahead, ahead
from loadgen.errors import UsageError
from loadgen.records import Prompt
from loadgen.simulator.scripted import CU, DONE, FIN, C, J, R, ScriptedServer, U, json_reply
from loadgen.workload.tokenizer import LocalTokenizer
from tests.cases.conftest import make_sender as make_sender  # the fixture: every case on both transports
from tests.cases.support import MakeSender, send_one, spec
from tests.workload.toy_tokenizers import bytes_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> LocalTokenizer:
    """A token a byte."""
    return LocalTokenizer(str(bytes_tokenizer(tmp_path_factory.mktemp("bytes"))))


def delta(index: int = 0, **fields: Any) -> Any:
    return J({"id": "r", "choices": [{"index": index, "delta": fields, "finish_reason": None}]})


def call(index: int, **function: str) -> Any:
    return delta(tool_calls=[{"index": index, "function": function}])


END = (FIN("stop"), DONE)
MESSAGE = {"message": {"role": "assistant", "content": "abc"}, "finish_reason": "stop", "index": 0}
WHOLE = json_reply({"object": "chat.completion", "choices": [MESSAGE]})
# The answer, its count and what gave it.
ANSWERS: dict[str, tuple[list[Any], int | None, str | None]] = {
    "content": ([C("abc"), C("de"), *END], 5, "tokenizer"),
    "characters of several bytes": ([C("é"), C("汉\n"), C("🙂"), *END], 10, "tokenizer"),
    "reasoning": ([R("why"), C("so"), *END], 5, "tokenizer"),
    "a refusal": ([delta(refusal="no"), *END], 2, "tokenizer"),
    "tool calls in turn": (
        [call(0, name="f", arguments=""), call(1, name="g"), call(0, arguments="{}"), call(1, arguments="[]"), *END],
        6,
        "tokenizer",
    ),
    "many plain deltas": ([C("ab")] * 3000 + [*END], 6000, "tokenizer"),
    "two choices in turn": (
        [delta(0, content="汉"), *(delta(i % 2, content="x") for i in range(50)), FIN("stop"),
         J({"choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]}), DONE], 53, "tokenizer",
    ),
    "an answer that breaks off": ([C("abc"), C("d")], 4, "tokenizer"),
    "a whole answer": (WHOLE, 3, "tokenizer"),
    "usage comes first": ([C("abc"), C("de"), FIN("stop"), U(3, 2), DONE], 2, "usage"),
    "running usage too": ([CU("abc", 1), CU("de", 3), *END], 3, "usage"),
    "then token ids": (
        [J({"choices": [{"index": 0, "delta": {"content": "abc"}, "token_ids": [7, 8]}]}), *END], 2, "token_ids",
    ),
    "too long a text": ([C("a" * 4096)] * (TEXT_BYTES // 4096) + [*END], TEXT_BYTES // 4096, "events"),
    "no text": ([*END], 0, "events"),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_what_gives_the_count_of_an_answer(make_sender: MakeSender, tokenizer: LocalTokenizer, name: str) -> None:
    script, count, source = ANSWERS[name]
    record = send_one(make_sender, lambda request: script, tokenizer=tokenizer)
    assert (record.output_tokens.count, record.output_tokens.source) == (count, source)
    assert record.excerpt is None or len(record.excerpt) <= 2048
    if source == "usage":
        return
    plain = send_one(make_sender, lambda request: script)
    assert plain.output_tokens.source != "tokenizer"
    assert (plain.outcome, plain.flags, plain.excerpt) == (record.outcome, record.flags, record.excerpt)


def test_each_choice_is_a_text_of_its_own(make_sender: MakeSender) -> None:
    class Texts:
        seen: list[str] = []  # noqa: RUF012

        def count(self, text: str) -> int:
            self.seen.append(text)
            return 1

    script = [*(delta(i % 3, content=f"{i} ") for i in range(12)), call(0, name="f"), call(0, arguments="{}"), DONE]
    texts: Any = Texts()
    record = send_one(make_sender, lambda request: script, tokenizer=texts)
    assert sorted(texts.seen) == ["0 3 6 9 ", "1 4 7 10 ", "2 5 8 11 ", "f{}"]
    assert record.output_tokens.count == 4


def test_counting_does_not_hold_up_the_loop(make_sender: MakeSender) -> None:
    """The count goes on for as long as the loop does nothing else."""

    class Slow:
        def count(self, text: str) -> int:
            return 7 if passed.wait(10) else 0

    passed = threading.Event()
    slow: Any = Slow()

    async def main() -> int | None:
        async with (
            ScriptedServer([C("abc"), *END]) as server,
            make_sender(server.url, tokenizer=slow) as sender,
            anyio.create_task_group() as group,
        ):

            async def elsewhere() -> None:
                while not server.requests or server.in_flight:  # noqa: ASYNC110
                    await anyio.sleep(0.001)
                for _ in range(20):
                    await anyio.sleep(0.001)
                passed.set()

            group.start_soon(elsewhere)
            record = await sender.send(spec(), time.monotonic_ns())
        return record.output_tokens.count

    assert anyio.run(main) == 7


# --- prompts ahead of their time --------------------------------------------------------------------------------------


def numbered(made: list[int]) -> Iterator[Prompt]:
    for i in itertools.count():
        made.append(i)
        yield Prompt("x" * i, i)


def test_prompts_come_in_their_order_each_with_its_count(tokenizer: LocalTokenizer) -> None:
    made: list[int] = []
    with ahead(numbered(made), tokenizer) as prompts:
        for i in range(1000):
            prompt = next(prompts)
            assert (prompt.input_tokens, prompt.local_tokens) == (i, i)
            if i % 100 == 0:
                time.sleep(0.002)
            assert len(made) <= i + 1 + AHEAD + 1
    with ahead(numbered([]), None) as prompts:
        assert next(prompts).local_tokens is None


def test_no_more_are_made_than_the_bound_and_none_after_the_end(tokenizer: LocalTokenizer) -> None:
    made: list[int] = []
    prompts = Ahead(numbered(made), tokenizer)
    end = time.monotonic() + 10
    while len(made) < AHEAD and time.monotonic() < end:
        time.sleep(0.001)
    time.sleep(0.02)
    assert len(made) == AHEAD
    prompts.close()
    time.sleep(0.02)
    assert len(made) == AHEAD


def test_a_streams_own_error_comes_where_its_prompt_would(tokenizer: LocalTokenizer) -> None:
    def broken() -> Iterator[Prompt]:
        yield Prompt("a")
        yield Prompt("b")
        raise UsageError("line 3 is no prompt")

    prompts = Ahead(broken(), tokenizer)
    assert [next(prompts).text for _ in range(2)] == ["a", "b"]
    with pytest.raises(UsageError, match="line 3"):
        next(prompts)
    prompts.close()


def test_it_comes_also_to_who_waited_while_the_stream_broke(tokenizer: LocalTokenizer) -> None:
    def broken() -> Iterator[Prompt]:
        begun.set()
        asked.wait(10)
        raise UsageError("line 1 is no prompt")
        yield Prompt("a")

    def slow(frame: Any, event: str, argument: Any) -> Any:
        """Every line of the thread takes a moment, in which others run."""
        time.sleep(0.005)
        return slow

    begun, asked = threading.Event(), threading.Event()
    threading.settrace(slow)
    try:
        prompts = Ahead(broken(), tokenizer)
        assert begun.wait(10)
    finally:
        threading.settrace(None)  # type: ignore[arg-type]
    threading.Timer(0.05, asked.set).start()
    with pytest.raises(UsageError, match="line 1"):
        next(prompts)
    prompts.close()


def test_token_ids_are_their_own_count(tokenizer: LocalTokenizer) -> None:
    with ahead(itertools.repeat(Prompt(token_ids=(5, 6, 7))), tokenizer) as prompts:
        assert next(prompts).local_tokens == 3


def test_given_bodies_are_counted_too(tokenizer: LocalTokenizer) -> None:
    body = {"messages": [{"role": "user", "content": "abcd"}]}
    with ahead(itertools.repeat(Prompt(body=body)), tokenizer) as prompts:
        assert next(prompts).local_tokens == 4
