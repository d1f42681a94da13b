"""`loadgen diagnose` on logs of every kind, and its exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.planted import Planted, Prompts, Way, play
from loadgen.log.store import RunFolder
from loadgen.simulator.engine import EngineConfig
from tests.cli.command import ROOT, Call

ENGINE = EngineConfig(step_ms=20, decode_ms=0.1, prefill_ms=0.03, overhead_ms=5, max_batch=256)
EXAMPLE = ROOT / "results" / "example-vllm"


def folder(parent: Path, planted: Planted) -> Path:
    run = play(planted, seed=4)
    with RunFolder.create(parent, planted.cause) as made:
        made.write_manifest(run.manifest)
        for record in run.records:
            made.append(record)
        for seen in run.observations:
            made.append_step(seen)
        for sample in run.server:
            made.append_server(sample)
        return made.path


def planted(cause: str, **more: object) -> Planted:
    values: dict[str, object] = {"levels": (1.0, 10.0), "requests": 40, **more}
    return Planted(cause, ENGINE, Prompts(200, 20), **values)  # type: ignore[arg-type]


def test_a_cause_is_named_with_one_change(call: Call, tmp_path: Path) -> None:
    run = folder(tmp_path, replace(planted("batch_limit"), engine=replace(ENGINE, max_batch=3)))
    said = call("diagnose", run)
    assert said.code == 0
    assert "a limit of the batch (batch_limit) · warning" in said.out
    assert said.out.count("\ntry ") == 1
    found = json.loads(call("diagnose", run, "--json").out)
    assert found["cause"] == "batch_limit"
    assert found["loads"] == 2
    assert {"what", "value", "unit", "rows"} == set(found["findings"][0]["evidence"][0])


def test_an_error_is_exit_code_1_and_failures_alone_are_one(call: Call, tmp_path: Path) -> None:
    some = folder(tmp_path, planted("requests_failing", way=Way(fail=0.3)))
    assert call("diagnose", some).code == 1
    records = [line for line in (some / "requests.jsonl").read_text().splitlines() if '"outcome":"error"' in line]
    only = tmp_path / "only.jsonl"
    only.write_text("\n".join(records) + "\n")
    said = call("diagnose", only)
    assert said.code == 1
    assert "requests fail (requests_failing) · error" in said.out
    assert "no request was answered" in said.out


def test_objectives_are_those_given(call: Call) -> None:
    said = call("diagnose", EXAMPLE, "--slo", "ttft_p50=1ms")
    assert "objective ttft_p50=1ms" in said.out
    assert "broken at" in said.out


def test_a_file_a_stream_and_a_csv_are_read_like_a_folder(call: Call, tmp_path: Path) -> None:
    whole = json.loads(call("diagnose", EXAMPLE, "--json").out)
    alone = json.loads(call("diagnose", EXAMPLE / "requests.jsonl", "--json").out)
    assert [f["cause"] for f in whole["findings"]] == [f["cause"] for f in alone["findings"]]
    rows = tmp_path / "rows.csv"
    rows.write_text(call("export", EXAMPLE, "--format", "csv").out)
    assert json.loads(call("diagnose", rows, "--json").out)["loads"] == whole["loads"]


@pytest.mark.parametrize(("kept", "code"), [(0, 4), (1, 4), (400, 4)])
def test_too_little_to_say_anything_is_undecided(call: Call, tmp_path: Path, kept: int, code: int) -> None:
    lines = (EXAMPLE / "requests.jsonl").read_bytes().splitlines(keepends=True)
    log = tmp_path / "requests.jsonl"
    log.write_bytes(b"".join(lines[:kept]) if kept < 100 else lines[30] + lines[31][: len(lines[31]) // 2])
    said = call("diagnose", tmp_path)
    assert said.code == code
    assert "enough answered requests" in said.out


def test_mistakes_are_one_sentence(call: Call, tmp_path: Path) -> None:
    for args in (["no-such-run"], ["-", "-"], [EXAMPLE, "--slo", "fast"], [tmp_path]):
        said = call("diagnose", *args)
        assert said.code == 2, args
        assert said.err.startswith("loadgen: ")
        assert "Traceback" not in said.err


def test_two_runs_are_held_side_by_side(call: Call) -> None:
    said = call("diagnose", EXAMPLE, EXAMPLE)
    assert "beside    " in said.out
    assert "tensor parallelism is not told of both runs" in said.out
