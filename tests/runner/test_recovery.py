"""Which loads are measured again after their server went away."""

from __future__ import annotations

from loadgen.records import Failure, InputTokens, OutputTokens, Record
from loadgen.results import LevelResult
from loadgen.runner.recovery import Recovery

BROKEN = Record(
    *("r", 1, 1, "measured", 0, 0, 0, None, None, None, None, None, 9),
    input_tokens=InputTokens(),
    output_tokens=OutputTokens(4),
    first_event_tokens=None,
    events=None,
    outcome="error",
    error=Failure("reset", "closed"),
)


def test_each_load_is_measured_again_once() -> None:
    recovery = Recovery(1.0)
    asked = [(4, None), (4, None), (8, None), (0, 2.0), (0, 2.0), (0, 4.0)]  # concurrency, requests/s
    due = []
    for concurrency, rate in asked:
        recovery.ended(BROKEN)
        due.append(recovery.is_due(LevelResult(concurrency, None, "fail", ("errors",), rate=rate, ended="errors")))
    assert due == [True, False, True, True, False, True]
    assert not recovery.is_due(LevelResult(16, None, "fail", ("errors",), ended="errors")), "nothing broke off"
