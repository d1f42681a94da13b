"""A run that was interrupted, taken up again: what of it counts, what it has spent, and whether it is still the same.

1. A step counts if it came to its own end, and says something of the server: it has a line in steps.jsonl that says so,
   and its verdict is the one that the run came to then. Any other is measured again under a number of its own.
2. The requests of a step that does not count stay in the log, and the manifest names the step (`resumed`, `uncounted`).
3. The run's clock goes on, so that no two requests have one time; its pauses are in `resumed`.
4. What was sent was paid for. Of a run that was killed, as many requests as it had in flight may be missing from the
   log: they count as sent.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..analysis import VERSION as DEFINITIONS_VERSION
from ..analysis import beside_server, summarise
from ..client.budget import Budget
from ..client.preflight import Prepared
from ..errors import LoadgenError, TargetError, UsageError
from ..log.codec import decode_levels, plain
from ..log.columns import columns
from ..log.store import Run, open_run
from ..records import FAILED_OUTCOMES, SCHEMA_VERSION, Prompt, Record
from ..results import LevelResult, NextLevel, StepSummary
from ..search.effort import StepRule
from ..search.rates import UNSTABLE
from ..search.verdict import judge
from ..workload.plain import PlainWorkload
from .config import RunConfig
from .journal import Journal
from .recovery import BROKEN
from .setting import Setting

PAUSE_NS = 1_000_000_000  # the least between the last stamp before an interruption and the first one after it
_FACTS = ("kind", "version", "model", "context_length")  # what makes a server another one
_CLOSING = ("stop", "levels", "duration_s", "exit_code", "error", "closing_notes")


@dataclass(frozen=True, slots=True)
class Earlier:
    """What the run was before. `levels` and `summaries` are of the steps that count, in their order; `last_ns` is the
    latest stamp of its log, on the run's clock, of which it stood still for `paused_ns`."""

    manifest: Mapping[str, Any]
    levels: tuple[tuple[int, LevelResult], ...]
    summaries: tuple[StepSummary, ...]
    uncounted: tuple[int, ...]
    outcomes: Counter[str]
    next_step: int
    next_probe: int
    last_ns: int
    paused_ns: int

    @property
    def seed(self) -> int:
        return int(self.manifest["workload"]["seed"])

    @property
    def spent_s(self) -> float:
        return (self.last_ns - self.paused_ns) / 1e9

    def pay_for_lost(self, budget: Budget, workload: PlainWorkload, level: NextLevel) -> int:
        """Pay for what the run had in flight whenever it was killed; returns how many that were the last time, at the
        most: the load that was to be measured then is the one to be measured now."""
        most = max((summary.concurrency_peak or 0 for summary in self.summaries), default=1)
        lost = (level.concurrency or most) if self.manifest.get("status") == "running" else 0
        in_flight(budget, workload, lost + sum(int(one.get("lost") or 0) for one in _resumed(self.manifest)))
        return lost

    def now_ns(self) -> int:
        """Where the run's clock stands now: as much later as the wall clock says, and at least `PAUSE_NS`."""
        wall = time.time_ns() - int(self.manifest.get("started_epoch_ns") or 0)
        return max(wall, self.last_ns + PAUSE_NS)

    def gone_on(self, setting: Setting, started_epoch_ns: int, step: int, lost: int) -> dict[str, Any]:
        """The manifest of the run as it goes on with `step`."""
        entry = {
            "started_epoch_ns": started_epoch_ns,
            "from_ns": self.last_ns,
            "at_ns": time.monotonic_ns() - setting.zero_ns,
            "step": step,
            "nonce": setting.nonce,
            "url": setting.target.display(),
            "command": list(setting.config.command),
            "uncounted": list(self.uncounted),
            "lost": lost,
        }
        kept = {name: value for name, value in self.manifest.items() if name not in _CLOSING}
        notes = list(self.manifest.get("notes") or ())
        added = self.manifest.get("closing_notes")
        if isinstance(added, int) and added:
            notes = notes[:-added]
        return {
            **kept,
            "status": "running",
            "resumed": [*_resumed(self.manifest), entry],
            "notes": [*notes, self._note()],
        }

    def _note(self) -> str:
        if not self.uncounted:
            return f"interrupted before step {self.next_step}, and resumed"
        cut = ", ".join(map(str, self.uncounted))
        many = "step" if len(self.uncounted) == 1 else "steps"
        return (
            f"resumed: the requests of {many} {cut} (cut short, or shaped by this client) are kept but not counted, and"
            f" step {self.next_step} measured that load again"
        )


def is_finished(run: Run) -> bool:
    """Did the run come to its own end? Not where in its last step the server went away or refused access, or the client
    was the limit."""
    if run.status != "complete" or (run.stop is not None and run.stop.reason == "client_bound"):
        return False
    last = max(run.observations, key=lambda seen: seen.step, default=None)
    if last is None or last.step in run.uncounted or last.ended not in ("errors", "unauthorized"):
        return True
    failed = broken = 0
    for record in run.records():
        if record.step == last.step and record.outcome in FAILED_OUTCOMES:
            failed += 1
            broken += record.error is not None and record.error.kind in BROKEN
    return last.ended == "errors" and 2 * broken <= failed


def go_on(
    path: Path, config: RunConfig, workload: PlainWorkload, budget: Budget, rule: StepRule, journal: Journal
) -> Earlier:
    """Open the folder for the journal, and take up what is there; what was spent counts. Raises LoadgenError."""
    journal.go_on(path)
    try:
        earlier = take_up(path, config, workload, budget)
        check_same(earlier.manifest, workload, rule)
    except LoadgenError:
        journal.log().close()
        raise
    journal.outcomes.update(earlier.outcomes)
    if budget.deadline is not None:
        budget.deadline -= earlier.spent_s
    return earlier


def take_up(path: Path, config: RunConfig, workload: PlainWorkload, budget: Budget) -> Earlier:
    """Read what the folder holds, with nobody writing to it, and pay for it. `config` is as the run's command says.

    Raises UsageError where it cannot be gone on from."""
    run = open_run(path)
    manifest = run.manifest or {}
    before = run.uncounted
    outcomes: Counter[str] = Counter()
    last = {"ns": 0, "step": 0, "probe": 0}

    def noted() -> Iterator[Record]:
        for record in run.records():
            outcomes[record.outcome] += 1
            last["ns"] = max(last["ns"], record.done_ns, record.scheduled_ns)
            last["step"] = max(last["step"], record.step)
            number = record.id.removeprefix("p-")
            last["probe"] = max(last["probe"], int(number) if number.isdecimal() else 0)
            _pay(budget, record, workload)
            yield record

    table = columns(noted())
    for seen in run.observations:
        last["step"] = max(last["step"], seen.step)
        last["ns"] = max(last["ns"], seen.window.end_ns if seen.window else 0)
    for sample in run.server:
        last["step"] = max(last["step"], sample.step)
        last["ns"] = max(last["ns"], sample.at_ns)
    for one in _resumed(manifest):
        last["ns"] = max(last["ns"], int(one["at_ns"]))
    verdicts = {**run.verdicts, **decode_levels(manifest.get("levels"))}
    levels: list[tuple[int, LevelResult]] = []
    summaries: list[StepSummary] = []
    for seen in sorted(run.observations, key=lambda one: one.step):
        if seen.ended != "complete" or seen.step in before:
            continue
        summary = beside_server(summarise(table, seen.step, config.slo, seen), table, run.server)
        level = judge(summary, config.slo, max_error_rate=config.max_error_rate, looks=seen.looks)
        if seen.step in verdicts:
            verdict, broke = verdicts[seen.step]
            beyond = level.p_hat_beyond or UNSTABLE in broke
            level = replace(level, verdict=verdict, broke=broke, p_hat_beyond=beyond)  # type: ignore[arg-type]
        if level.verdict == "invalid":
            continue
        levels.append((seen.step, level))
        summaries.append(summary)
    counted = {number for number, _ in levels}
    return Earlier(
        manifest,
        tuple(levels),
        tuple(summaries),
        tuple(step for step in range(1, last["step"] + 1) if step not in counted and step not in before),
        outcomes,
        last["step"] + 1,
        last["probe"] + 1,
        last["ns"],
        round(1e9 * paused_s(manifest)),
    )


def paused_s(manifest: Mapping[str, Any]) -> float:
    """How long the run stood still between its parts, in s of its clock."""
    return sum(int(one["at_ns"]) - int(one["from_ns"]) for one in _resumed(manifest)) / 1e9


def check_same(manifest: Mapping[str, Any], workload: PlainWorkload, rule: StepRule) -> None:
    """Raises UsageError where what the command means is no longer what it meant."""
    theirs, mine = manifest.get("workload") or {}, workload.manifest()
    if theirs.get("content_sha256") != mine["content_sha256"]:
        raise UsageError(
            f"{mine['source'] or 'the workload'} has changed since the run began",
            "give it back as it was, or start anew",
        )
    versions = (manifest.get("schema_version"), (manifest.get("definitions") or {}).get("version"))
    step = (manifest.get("plan") or {}).get("step")
    if versions != (SCHEMA_VERSION, DEFINITIONS_VERSION) or step != plain(asdict(rule)):
        raise UsageError("the run was made by another version of loadgen", "resume it with that one, or start anew")


def check_server(manifest: Mapping[str, Any], prepared: Prepared, *, anyway: bool) -> str | None:
    """What has changed of the server, in words. Raises TargetError for that unless it is to go on `anyway`."""
    told = manifest.get("server") or {}
    changes = [
        f"{name.replace('_', ' ')} {_shown(told.get(name))} → {_shown(getattr(prepared.facts, name))}"
        for name in _FACTS
        if told.get(name) != getattr(prepared.facts, name)
    ]
    target = manifest.get("target") or {}
    if target.get("endpoint") != prepared.target.endpoint:
        changes.insert(0, f"endpoint {target.get('endpoint')} → {prepared.target.endpoint}")
    many = len(target.get("urls") or (0,))
    if many != 1 + len(prepared.others):
        changes.append(f"addresses {many} → {1 + len(prepared.others)}")
    if not changes:
        return None
    if not anyway:
        raise TargetError(
            f"the server is not the one that the run measured: {', '.join(changes)}",
            "start a new sweep, or add --anyway to go on all the same",
        )
    return f"resumed against a server that is not the same: {', '.join(changes)}"


def in_flight(budget: Budget, workload: PlainWorkload, requests: int) -> None:
    """Pay for the requests that a run had in flight when it was killed."""
    for number in range(requests):
        budget.take(f"lost {number}", _typical(workload))


def exhausted(budget: Budget, workload: PlainWorkload, now: float) -> None:
    """Say in the budget whether it has room for anything more. `now` is on anyio's clock."""
    if budget.spent is None and budget.deadline is not None and now >= budget.deadline:
        budget.spent = "time"
    if budget.spent is None:
        trial = replace(budget, _held={})
        trial.take("", _typical(workload))
        budget.spent = trial.spent


def _pay(budget: Budget, record: Record, workload: PlainWorkload) -> None:
    inputs, server = record.input_tokens.asked, record.input_tokens.server
    if server is not None and (inputs is None or record.phase == "preflight"):  # whose text was made to learn from
        inputs = server
    prompt = replace(_typical(workload), output_tokens=record.output_tokens.asked)
    if inputs is not None:
        prompt = replace(prompt, input_tokens=inputs)
    for _ in range(max(1, len(record.attempts))):
        budget.take(record.id, prompt)
    budget.settle(record)


def _typical(workload: PlainWorkload) -> Prompt:
    inputs, outputs = workload.usual
    return Prompt(input_tokens=inputs or 1, output_tokens=outputs or 1)


def _resumed(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(manifest.get("resumed") or ())


def _shown(value: object) -> str:
    return "unknown" if value is None else str(value)
