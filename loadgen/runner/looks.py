"""Looks at a step while it runs: does it already know enough?

A look is taken at geometrically growing sample sizes, in a thread of its own, on records without their events, so that
it never holds up the reading of tokens for long. Every look is paid for: the error is divided among all that may be
taken.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from ..analysis import summarise
from ..analysis.summary import completed_throughput
from ..client.driver import Progress
from ..log.columns import columns
from ..records import Record, Slo, Window
from ..search.effort import StepRule


class Looks:
    """Decides when a step's window may close. Feed it each record; ask `enough` at each completion."""

    def __init__(self, rule: StepRule, slo: Slo, concurrency: int) -> None:
        self._rule = rule
        self._slo = slo
        self._concurrency = concurrency
        self._sizes = rule.look_sizes(concurrency)
        self._records: list[Record] = []
        self._keep_events = any(objective.metric == "itl" for objective in slo.objectives)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="look")
        self._look: Future[bool] | None = None
        self.taken = 0

    @property
    def planned(self) -> int:
        """How many looks may be taken in all."""
        return max(1, len(self._sizes))

    def add(self, record: Record) -> None:
        if self._sizes:
            self._records.append(record if self._keep_events else replace(record, events=None))

    def enough(self, progress: Progress) -> bool:
        rule, done, seconds = self._rule, progress.measured_done, progress.window_s
        if rule.ended(self._concurrency, progress.measured_sent, done, seconds):
            return True
        if self._look is not None:
            if not self._look.done():
                return False
            known, self._look = self._look.result(), None
            if known:
                return True
        if self.taken < len(self._sizes) and done >= self._sizes[self.taken] and seconds >= rule.seconds_min:
            while self.taken < len(self._sizes) and done >= self._sizes[self.taken]:
                self.taken += 1
            window = Window(progress.opened_ns or 0, progress.now_ns)
            self._look = self._pool.submit(self._known, list(self._records), window)
        return False

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _known(self, records: list[Record], window: Window) -> bool:
        table = columns(records)
        if self._slo:
            checks = summarise(table, records[0].step, self._slo, looks=self.planned).objectives
            return all(check.verdict != "inconclusive" for check in checks)
        rate = completed_throughput(table, window, self._concurrency)
        return rate.low is not None and rate.value - rate.low <= self._rule.precision * rate.value
