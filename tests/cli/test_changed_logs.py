"""A log that is not as its run left it: what is missing is told, and an answer to it is not given."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from loadgen.log.codec import stop_object
from loadgen.log.store import RunFolder, open_run
from loadgen.results import Stop
from tests.cli.command import Call

MISSING = "measured requests are missing from requests.jsonl"
ANSWER = "8 hold, 64 do not"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder as a run leaves it: its steps with their summaries, its manifest with the answer."""
    from loadgen.analysis import summarise_run
    from loadgen.log.columns import columns
    from loadgen.slo import parse_slo
    from tests.report.summaries import run_records

    records, observations = run_records()
    slo = parse_slo(["ttft_p95=100ms"])
    with RunFolder.create(tmp_path_factory.mktemp("runs"), "whole") as run:
        for record in records:
            run.append(record)
        for summary, observation in zip(summarise_run(columns(records), slo, observations), observations, strict=True):
            run.append_step(observation, summary)
        stop = stop_object(Stop("slo:ttft_p95", 8, 64, None, ANSWER))
        run.write_manifest({"schema_version": 1, "status": "complete", "slo": {}, "stop": stop})
    return run.path


def nothing(folder: Path) -> None:
    pass


def cut(folder: Path) -> None:
    log = folder / "requests.jsonl"
    log.write_bytes(log.read_bytes()[: log.stat().st_size * 2 // 3])


def emptied(folder: Path) -> None:
    (folder / "requests.jsonl").write_bytes(b"")


def without_every_third(folder: Path) -> None:
    log = folder / "requests.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(line for i, line in enumerate(lines) if i % 3))


def without_its_token_log(folder: Path) -> None:
    log = folder / "requests.jsonl"
    lines = [json.loads(line) for line in log.read_bytes().splitlines()]
    log.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "events"}) + "\n" for line in lines))


def killed_in_the_last_step(folder: Path) -> None:
    """Its line is not there yet, nor half of its requests."""
    cut(folder)
    steps = folder / "steps.jsonl"
    kept = {record.step for record in open_run(folder).records()}
    lines = steps.read_bytes().splitlines(keepends=True)
    steps.write_bytes(b"".join(line for line in lines if json.loads(line)["step"] < max(kept)))
    (folder / "manifest.json").write_text(json.dumps({"status": "running", "slo": {}}))


def without_summaries(folder: Path) -> None:
    """As an older version wrote its steps."""
    steps = folder / "steps.jsonl"
    lines = [json.loads(line) for line in steps.read_bytes().splitlines()]
    steps.write_text("".join(json.dumps({**line, "summary": None}) + "\n" for line in lines))


@pytest.mark.parametrize("change", [cut, emptied, without_every_third])
@pytest.mark.parametrize("name", [".", "requests.jsonl"])
def test_what_is_missing_is_told_and_nothing_is_answered(
    whole: Path, tmp_path: Path, call: Call, change: Callable[[Path], None], name: str
) -> None:
    run = changed(whole, tmp_path, change)
    before = sum(record.phase == "measured" for record in open_run(whole).records())
    after = sum(record.phase == "measured" for record in open_run(run).records())
    told = json.loads(call("report", run / name, "--json").out)
    assert any(note.startswith(f"{before - after:,} of {before:,} {MISSING}") for note in told["notes"]), told["notes"]
    assert told["answer"] is None
    said = call("report", run / name)
    assert said.code == 0 and ANSWER not in said.out and f"of {before:,} measured requests" in said.out


@pytest.mark.parametrize("change", [nothing, without_its_token_log, killed_in_the_last_step, without_summaries])
def test_what_is_as_its_run_left_it_is_not_told_to_lack_anything(
    whole: Path, tmp_path: Path, call: Call, change: Callable[[Path], None]
) -> None:
    said = call("report", changed(whole, tmp_path, change))
    assert said.code == 0 and "missing" not in said.out
    assert (ANSWER in said.out) == (change is not killed_in_the_last_step)


def changed(whole: Path, tmp_path: Path, change: Callable[[Path], None]) -> Path:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    change(run)
    return run


@pytest.mark.parametrize(("version", "newer"), [(0, False), (1, False), (2, True), (99, True), ("2", False)])
def test_a_log_of_a_newer_version_is_told_to_be_one(
    whole: Path, tmp_path: Path, call: Call, version: object, newer: bool
) -> None:
    run = changed(whole, tmp_path, nothing)
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "schema_version": version}))
    assert ("written by a newer loadgen" in call("report", run).out) == newer
