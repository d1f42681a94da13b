"""With `--wait-ready`: a server that goes away in the middle of a run is waited for, and its level measured again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from ..client.budget import Budget
from ..client.dialects import DIALECTS
from ..client.preflight import Prepared, shape_prompt, wait_ready
from ..client.remedies import Context, PreflightError, explain_record
from ..errors import LoadgenError
from ..records import FAILED_OUTCOMES, Record, RequestSpec
from ..results import LevelResult
from .journal import Journal, LoggedSender
from .setting import Setting

BROKEN = ("connect", "dns", "tls", "reset", "protocol", "incomplete")  # how requests fail when a server goes away


class Recovery:
    """Watches the requests of one step after the other. `again` are the steps whose level was, or is to be, measured
    again; each level is so at most once: a server that dies of a load must not be killed for ever."""

    def __init__(self, limit_s: float | None) -> None:
        self.limit_s = limit_s
        self.again: set[int] = set()
        self.notes: list[str] = []
        self._loads: set[tuple[int, float | None]] = set()  # concurrency, requests/s
        self._failed = self._broken = 0

    def ended(self, record: Record) -> None:
        if record.outcome in FAILED_OUTCOMES:
            self._failed += 1
            self._broken += record.error is not None and record.error.kind in BROKEN

    def is_due(self, level: LevelResult) -> bool:
        """Was the step that just ended ended by a server that had gone, and its load for the first time?"""
        gone, self._failed, self._broken = 2 * self._broken > self._failed, 0, 0
        load = (level.concurrency, level.rate)
        if level.ended != "errors" or not gone or load in self._loads:
            return False
        self._loads.add(load)
        return True

    async def after(
        self,
        step: int,
        level: LevelResult,
        setting: Setting,
        prepared: Prepared,
        journal: Journal,
        budget: Budget,
        say: Callable[[str], None],
    ) -> None:
        """If the step was ended by failures of a server that had gone, wait until every server answers again."""
        if self.limit_s is None or not self.is_due(level):
            return
        numbers = itertools.count(1)
        start = time.monotonic()
        dialect = DIALECTS[setting.target.endpoint]
        async with setting.client(1) as client:

            async def attempt() -> Prepared:
                for target in setting.targets:
                    sender = LoggedSender(
                        setting.sender_to(target, client, dialect, prepared.options),
                        *(journal, budget),
                        sized=setting.workload.sized,
                    )
                    name = f"{setting.nonce} back {step}"
                    prompt = shape_prompt(setting.workload, prepared.calibration, prepared.facts.context_length, name)
                    spec = RequestSpec(f"p-{step:03d}-{next(numbers):06d}", prompt, 0, 1, "preflight")
                    record = await sender.send(spec, time.monotonic_ns())
                    if record.outcome != "ok":
                        raise explain_record(record, Context(target.display()))
                return prepared

            def not_ready(error: PreflightError, pause_s: float) -> None:
                say(f"gone: {error.message}; again in {pause_s:.1f} s")

            try:
                await wait_ready(attempt, self.limit_s, not_ready)
            except LoadgenError:  # not back in time, or nothing left to ask with: the step's failures stand
                return
        self.again.add(step)
        away_s = time.monotonic() - start
        self.notes.append(
            f"the server went away in step {step} and was back after {away_s:.1f} s: that level was measured again"
        )
