"""A run says what has changed since the one before it in the same folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from loadgen.analysis import summarise_run
from loadgen.log.columns import columns
from loadgen.log.store import RunFolder
from loadgen.results import Estimate, LevelResult, Slo, StepSummary, Verdict
from loadgen.runner.before import LOOK_BACK, since_the_one_before
from loadgen.simulator.scripted import Action, Request, ThreadedServer
from tests.cli.command import manifest_of, run, serve, tries
from tests.report.summaries import run_records

CHANGED, SAME = "not steady between runs: ", "no change is proven"
RECORDS, OBSERVED = run_records((1, 8))
STEPS = summarise_run(columns(RECORDS), Slo())
LEVELS: list[tuple[int, Verdict]] = [(1, "baseline"), (2, "pass")]
DAY_S = 1_796_000_000


def kept(
    parent: Path,
    at_s: int,
    factor: float = 1.0,
    *,
    levels: Sequence[tuple[int, Verdict]] = LEVELS,
    sha: str = "abc",
    **change: Any,
) -> tuple[Path, dict[str, Any], list[StepSummary], list[tuple[int, LevelResult]]]:
    """A run that began so many seconds after a day of 2026, its throughputs known to ±1 %: its folder, its manifest,
    and what it came to."""
    steps, results = [], []
    for summary, value in zip(STEPS, (300.0, 900.0), strict=True):
        known = Estimate(factor * value, factor * value * 0.99, factor * value * 1.01)
        steps.append(replace(summary, output_throughput=known, **change))
    manifest = {
        "started_epoch_ns": (DAY_S + at_s) * 10**9,
        "target": {"url": "http://gpu:8000"},
        "workload": {"content_sha256": sha},
    }
    began = datetime.fromtimestamp(DAY_S + at_s, UTC)
    with RunFolder.create(parent, "run", began) as folder:
        for observation, summary, (number, verdict) in zip(OBSERVED, steps, levels, strict=True):
            result = LevelResult(summary.concurrency, summary.output_throughput, verdict)
            folder.append_step(observation, summary, result)
            results.append((number, result))
        folder.write_manifest(manifest)
    return folder.path, manifest, steps, results


def test_the_latest_one_before_is_what_counts(tmp_path: Path) -> None:
    first = kept(tmp_path, 0)
    assert since_the_one_before(*first) is None
    second = kept(tmp_path, 90, 0.9)
    third = kept(tmp_path, 4000, 0.9)
    later = kept(tmp_path, 200_000, 2.0)
    said = since_the_one_before(*second)
    assert said is not None and said.startswith(CHANGED) and f"90 s earlier ({first[0].name})" in said
    assert "at 1, 8 in flight differs by -10.0 % (" in said
    said = since_the_one_before(*third)
    assert said is not None and said.endswith(SAME) and f"65 min earlier ({second[0].name})" in said
    said = since_the_one_before(*later)
    assert said is not None and f"2 days earlier ({third[0].name})" in said and "+122.2 %" in said


def test_what_is_something_else_is_no_run_before(tmp_path: Path) -> None:
    kept(tmp_path, 0, sha="def")
    kept(tmp_path, 10, rate=2.0)
    kept(tmp_path, 20, concurrency=64)
    kept(tmp_path / "elsewhere", 30)
    now = kept(tmp_path, 100, 0.5)
    assert since_the_one_before(*now) is None
    kept(tmp_path, 5)
    assert since_the_one_before(*now) is not None


def test_steps_that_the_client_shaped_count_on_neither_side(tmp_path: Path) -> None:
    shaped: list[tuple[int, Verdict]] = [(1, "invalid"), (2, "pass")]
    kept(tmp_path, 0, levels=shaped)
    said = since_the_one_before(*kept(tmp_path, 10, 0.8))
    assert said is not None and "at 8 in flight" in said
    said = since_the_one_before(*kept(tmp_path, 20, 0.6, levels=shaped))
    assert said is not None and "at 8 in flight" in said
    nothing: list[tuple[int, Verdict]] = [(1, "invalid"), (2, "invalid")]
    assert since_the_one_before(*kept(tmp_path, 30, levels=nothing)) is None


DAMAGE = {
    "half a manifest": ("manifest.json", b"{"),
    "another manifest": ("manifest.json", b"[]"),
    "a manifest that is a folder": ("manifest.json", None),
    "no steps": ("steps.jsonl", b""),
    "half a step": ("steps.jsonl", b'{"step": 1, "summary"'),
    "other steps": ("steps.jsonl", b'{"step": 1}\n[]\n\n{"summary": {"output_throughput_tok_s": {"value": "x"}}}\n'),
    "no interval": (
        "steps.jsonl",
        b'{"summary":{"concurrency":8,"output_throughput_tok_s":{"value":1,"low":null,"high":2}}}\n',
    ),
    "no tokens": (
        "steps.jsonl",
        b'{"summary":{"concurrency":8,"output_throughput_tok_s":{"value":0,"low":1,"high":2}}}\n',
    ),
    "bytes": ("steps.jsonl", b"\xff\x00\n"),
    "steps that are a folder": ("steps.jsonl", None),
}


@pytest.mark.parametrize(("name", "data"), DAMAGE.values(), ids=DAMAGE)
def test_a_folder_that_is_damaged_is_passed_over(tmp_path: Path, name: str, data: bytes | None) -> None:
    first = kept(tmp_path, 0)[0]
    damaged = kept(tmp_path, 5, 3.0)[0] / name
    damaged.unlink()
    if data is None:
        damaged.mkdir()
    else:
        damaged.write_bytes(data)
    (tmp_path / "a file").write_text("not a run")
    for number in range(2 * LOOK_BACK):
        (tmp_path / f"20251231T000000Z of somebody else {number}").mkdir()
    said = since_the_one_before(*kept(tmp_path, 10))
    assert said is not None and f"({first.name})" in said and SAME in said


def test_a_server_that_became_slower_is_said_to_be_unsteady(tmp_path: Path) -> None:
    takes = {"wait_ms": 0.0}

    def handler(request: Request) -> list[Action] | None:
        return serve(**takes)(request)

    for parent in tries(tmp_path):
        notes, folders, verdicts = [], [], []
        with ThreadedServer(handler) as server:
            for takes["wait_ms"] in (20.0, 60.0):
                said = run(
                    "run", server.url, "-c", 4, "--requests", 80, "--input-len", 20, "--output-len", 1, "--warmup", 4,
                    "--quiet", "--json", "-o", parent,
                )  # fmt: skip
                told = json.loads(said.out)
                folders.append(max(parent.iterdir()))
                verdicts.append(manifest_of(folders[-1])["levels"][-1]["verdict"])
                assert told["notes"] == manifest_of(folders[-1])["notes"]
                notes.append([note for note in told["notes"] if "the run before" in note])
        if "invalid" not in verdicts:
            break
    assert notes[0] == []
    (note,) = notes[1]
    assert note.startswith(CHANGED) and f"s earlier ({folders[0].name})" in note and "differs by -" in note
    assert note in " ".join(run("report", folders[1]).out.split())
