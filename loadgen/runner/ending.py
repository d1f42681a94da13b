"""How a run ends: its exit code."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from ..errors import Exit, LoadgenError
from ..results import LevelResult, StepSummary, Stop
from ..search.levels import counted


def exit_code(stop: Stop, summaries: Sequence[StepSummary], levels: Sequence[LevelResult], *, has_slo: bool) -> Exit:
    """What the answer of a run that came to its end is worth to a script."""
    ok = sum(summary.requests.get("ok", 0) for summary in summaries)
    if not ok and (any(summary.failed for summary in summaries) or stop.reason == "errors"):
        return Exit.TARGET
    if not ok:  # the budget ended before anything was measured
        return Exit.UNDECIDED
    if stop.reason == "errors":
        return Exit.NO
    if stop.reason == "client_bound":
        return Exit.UNDECIDED
    if has_slo and stop.held is None:
        undecided = all(result.verdict in ("inconclusive", "marginal", "baseline") for result in counted(levels))
        return Exit.UNDECIDED if undecided else Exit.NO
    return Exit.DONE


def signal_code(number: signal.Signals | None) -> Exit:
    return Exit.TERMINATED if number in (signal.SIGTERM, signal.SIGHUP) else Exit.INTERRUPTED


class InterruptedRunError(LoadgenError):
    """A run was ended from outside, without an answer: by a signal before the first step, or by its caller."""

    def __init__(self, number: signal.Signals | None, message: str = "interrupted before any load was sent") -> None:
        super().__init__(message)
        self.exit_code = signal_code(number)
