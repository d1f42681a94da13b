"""What a local tokenizer counts: the answers whose server did not say, and prompts ahead of their time. Never in the
event loop: a long text takes milliseconds, in which nothing would be read."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import anyio
import anyio.to_thread

from ..records import Prompt, Record
from ..workload.tokenizer import LocalTokenizer, prompt_text

TEXT_BYTES = 256 << 10  # of an answer's text, kept to be counted; a longer one is counted by its events
AHEAD = 64  # prompts made and counted before they are asked for


async def count_answer(record: Record, texts: Sequence[str], tokenizer: LocalTokenizer) -> Record:
    """The record of an answer, with its output counted by the tokenizer; `texts` are those of its choices."""
    with anyio.CancelScope(shield=True):
        n = await anyio.to_thread.run_sync(lambda: sum(map(tokenizer.count, texts)))
    return replace(record, output_tokens=replace(record.output_tokens, count=n, source="tokenizer"))


def counted(prompt: Prompt, tokenizer: LocalTokenizer) -> Prompt:
    """The prompt with the local count of its text, without a chat template."""
    if prompt.token_ids is not None:
        return replace(prompt, local_tokens=len(prompt.token_ids))
    return replace(prompt, local_tokens=tokenizer.count(prompt_text(prompt)))


@contextmanager
def ahead(prompts: Iterator[Prompt], tokenizer: LocalTokenizer | None) -> Iterator[Iterator[Prompt]]:
    """The prompts as they are or, with a tokenizer, counted by it ahead of their time."""
    if tokenizer is None:
        yield prompts
        return
    counting = Ahead(prompts, tokenizer)
    try:
        yield counting
    finally:
        counting.close()


class Ahead(Iterator[Prompt]):
    """The prompts of a stream in their order, each with its local count, made in a thread of its own and at most
    `AHEAD` of them ahead. Where it falls behind, the prompt is made by who asks. Close it when done."""

    def __init__(self, prompts: Iterator[Prompt], tokenizer: LocalTokenizer) -> None:
        self._prompts, self._tokenizer = prompts, tokenizer
        self._made: deque[Prompt] = deque()
        self._making = threading.Lock()  # around the stream: prompts come in its order
        self._room = threading.Event()
        self._behind = False
        self._closed = False
        self._fault: BaseException | None = None  # how the stream ended
        threading.Thread(target=self._work, daemon=True, name="prompts").start()

    def __next__(self) -> Prompt:
        if self._made:
            prompt = self._made.popleft()  # by nobody else
        else:
            self._behind = True
            with self._making:
                self._behind = False
                if self._fault is not None and not self._made:
                    raise self._fault
                prompt = self._made.popleft() if self._made else self._make()
        self._room.set()
        return prompt

    def close(self) -> None:
        self._closed = True
        self._room.set()

    def _make(self) -> Prompt:
        return counted(next(self._prompts), self._tokenizer)

    def _work(self) -> None:
        while not self._closed:
            if len(self._made) >= AHEAD:
                self._room.clear()
                if len(self._made) >= AHEAD:
                    self._room.wait()
                continue
            with self._making:
                try:
                    self._made.append(self._make())
                except Exception as error:  # it is for who asks for the prompt that never came
                    self._fault = error  # before the lock is free: a stream that broke seems to have ended
                    return
            while self._behind and not self._closed:  # a lock just released is easily taken again by who did it
                self._room.wait(0.0005)
