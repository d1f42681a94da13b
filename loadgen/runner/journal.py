"""Where a run writes down what happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ..client.budget import Budget
from ..client.exchange import HttpxSender
from ..errors import ReaderGoneError, UsageError
from ..log.reopen import reopen
from ..log.store import RunFolder, Sink, StreamLog
from ..records import FAILED_OUTCOMES, Record, RequestSpec
from ..workload.prompts import count_words


class Journal:
    """The run's log, made when there is first something to keep: a wrong address leaves no folder behind. `outcomes`
    counts every request sent."""

    def __init__(self, output: str, name: str) -> None:
        self.output, self.name = output, name
        self.sink: Sink | None = None
        self.outcomes: Counter[str] = Counter()
        self._early: list[Record] = []  # ended while no server had answered yet

    def log(self) -> Sink:
        if self.sink is None:
            self.sink = _Stream() if self.output == "-" else RunFolder.create(self.output, self.name)
        return self.sink

    def go_on(self, folder: Path) -> None:
        """Write to the folder of a run that was interrupted. Raises LogError."""
        self.sink = reopen(folder)

    def early(self, record: Record) -> None:
        """Keep a request of the preflight, once the server has answered one."""
        self._early.append(record)
        self.outcomes[record.outcome] += 1
        if record.outcome not in FAILED_OUTCOMES or self.sink is not None:
            log = self.log()
            for one in self._early:
                log.append(one)
            self._early.clear()


class _Stream(StreamLog):
    """The log on stdout, for whom a reader that has gone is the end of the run."""

    def _write(self, kind: str, obj: Mapping[str, Any]) -> None:
        try:
            super()._write(kind, obj)
        except BrokenPipeError as error:
            raise ReaderGoneError from error


class LoggedSender:
    """A sender that pays for and writes down each request of the preflight. `sized`: the workload's text is made."""

    def __init__(self, inner: HttpxSender, journal: Journal, budget: Budget, *, sized: bool) -> None:
        self._inner, self._journal, self._budget, self._sized = inner, journal, budget, sized

    async def send(self, spec: RequestSpec, scheduled_ns: int) -> Record:
        budget, prompt = self._budget, spec.prompt
        if self._sized and prompt.input_tokens is None:
            # Text made to learn what a word costs: common words, nearly all of them one token.
            prompt = replace(prompt, input_tokens=2 * count_words(prompt.text))
        if not budget.take(spec.id, prompt):
            raise UsageError(
                f"the budget of {budget.spent} does not even allow the preflight", f"raise --max-{budget.spent}"
            )
        record = await self._inner.send(spec, scheduled_ns)
        budget.settle(record)
        self._journal.early(record)
        return record

    def cut(self, outcome: Literal["cut", "cancelled"]) -> None:
        self._inner.cut(outcome)
