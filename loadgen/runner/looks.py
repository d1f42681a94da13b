"""Looks at a step while it runs: does it already know enough?

A look is taken at geometrically growing sample sizes, in a thread of its own, on a snapshot of the rows so far, with
their events only where an objective needs them, so that it never holds up the reading of tokens for long. Every look is
paid for: the error is divided among all that may be taken. A step that even its cap would leave undecided, going by
what half of it shows, ends there: the load is as good as the limit, and the search goes by its estimate.
"""

from __future__ import annotations

from array import array
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np

from ..analysis import summarise
from ..analysis.stability import piling_up
from ..analysis.summary import completed_throughput
from ..client.driver import Progress
from ..log.columns import Columns
from ..records import PHASES
from ..results import Decided, Slo, Window
from ..search.effort import StepRule
from ..search.peak import within
from ..search.verdict import judge
from ..slo import check_names, slo_text


class Snapshot(Protocol):
    """The rows of a step so far."""

    def columns(self, *, events: bool) -> Columns: ...


class Rows(Protocol):
    """Where a step's rows grow, as a `ColumnBuilder`."""

    def snapshot(self) -> Snapshot: ...


MEASURED = PHASES.index("measured")
HOPELESS = 2.0  # at half of the most requests it is asked whether the rest can decide
LEAST_HELD = 1_000  # arrivals of an open loop before it may pass: requests need the time to pile up


class Looks:
    """Decides when a step's window may close. `rows` takes the step's records; ask `enough` at each completion. Looks
    are taken in `pool`, by default in a thread of their own. With `rising`, an open loop's requests in flight are
    watched too: `grew` says that they were proven to grow, `decided` what the last look that was certain had found."""

    def __init__(
        self,
        rule: StepRule,
        slo: Slo,
        concurrency: int,
        rows: Rows,
        max_error_rate: float,
        pool: Executor | None = None,
        rising: bool = False,
    ) -> None:
        self._rising = rising
        self._seen, self._in_flight = array("q"), array("q")
        self.grew = False
        self._rule = rule
        self._slo = slo
        self._max_error_rate = max_error_rate
        self._concurrency = concurrency
        self._sizes = rule.look_sizes(concurrency)
        self._rows = rows
        self.needs_events = any(objective.metric == "itl" for objective in slo.objectives)
        self._pool = pool or ThreadPoolExecutor(1, thread_name_prefix="look")
        self._look: Future[bool] | None = None
        self.decided: Decided | None = None
        self.taken = 0

    @property
    def planned(self) -> int:
        """How many looks may be taken in all."""
        return max(1, len(self._sizes))

    def enough(self, progress: Progress) -> bool:
        rule, done, seconds = self._rule, progress.measured_done, progress.window_s
        if self._rising:
            self._seen.append(progress.now_ns)
            self._in_flight.append(progress.in_flight)
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
            ahead = rule.requests_most(self._concurrency) / self._sizes[self.taken - 1]
            self._look = self._pool.submit(self._known, self._rows.snapshot(), window, ahead)
        return False

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _known(self, rows: Snapshot, window: Window, ahead: float) -> bool:
        if self._rising:
            n = min(len(self._seen), len(self._in_flight))
            seen, in_flight = (np.frombuffer(one[:n].tobytes(), np.int64) for one in (self._seen, self._in_flight))
            self.grew = piling_up(seen, in_flight, window, self.planned)
            if self.grew or not self._slo:
                return self.grew
        table = rows.columns(events=self.needs_events)
        if self._slo:
            summary = summarise(table, int(table.step[0]), self._slo, looks=self.planned)
            # One objective broken for certain is enough.
            level = judge(summary, self._slo, max_error_rate=self._max_error_rate, looks=self.planned)
            early = self._rising and level.verdict != "fail" and int((table.phase == MEASURED).sum()) < LEAST_HELD
            if level.verdict in ("pass", "fail", "marginal") and not early:
                checks = zip(check_names(self._slo), summary.objectives, strict=False)  # the joint one may be missing
                verdicts = {name: check.verdict for name, check in checks if check.verdict != "inconclusive"}
                self.decided = Decided(slo_text(self._slo), summary.judged, verdicts)
            if self.decided is not None:
                return True
            # An open loop goes on all the same: its requests may still pile up.
            return ahead <= HOPELESS and not self._rising and not self._hope(table, ahead)
        rate = completed_throughput(table, window, self._concurrency)
        return within(rate, self._rule.precision)

    def _hope(self, table: Columns, ahead: float) -> bool:
        """Would the most requests that the step may send decide it, if they are as those so far?"""
        summary = summarise(table, int(table.step[0]), self._slo, looks=self.planned, ahead=ahead)
        level = judge(summary, self._slo, max_error_rate=self._max_error_rate, looks=self.planned)
        return level.verdict in ("pass", "fail", "marginal")
