"""Every verb that reads a log reads those of other tools."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from pyarrow import parquet

from loadgen.analysis.conventions import TOOLS
from loadgen.cli.report import TOOLS as OFFERED
from tests.cli.command import ROOT, Call
from tests.log.foreign.foreign_logs import FILES, placed, vllm_document

EXAMPLE = ROOT / "results" / "example-vllm"


def test_the_tools_offered_are_those_that_are_known() -> None:
    assert set(OFFERED) == set(TOOLS) == set(FILES)


OWN = {  # mean ttft, tpot, e2e; output tokens/s, as each tool printed them
    "vllm": (69.07, 10.08, 704.21, 4563.79),
    "sglang": (62.85, 10.07, 697.51, 4584.49),
    "aiperf": (62.47, 10.23, 706.86, 4363.48),
    "guidellm": (103.62, 11.60, 747.04, 4140.16),
}


@pytest.mark.parametrize("tool", OWN)
def test_a_report_has_the_tools_own_figures_beside_ours(tool: str, call: Call, tmp_path: Path) -> None:
    said = call("report", placed(tool, tmp_path), "--definitions", tool, "--json")
    assert said.code == 0
    report = json.loads(said.out)
    (own,), (ours,) = report["counted_as"], report["steps"]
    found = (own["mean_ttft_ms"], own["mean_tpot_ms"], own["mean_e2el_ms"], own["output_throughput"])
    assert tuple(round(x, 2) for x in found) == OWN[tool]
    assert ours["mean_tpot_ms"] == pytest.approx(10.0, rel=0.03)
    assert (ours["output_throughput"] is None) == (tool == "sglang")


@pytest.mark.parametrize("tool", FILES)
def test_a_report_is_told_in_words(tool: str, call: Call, tmp_path: Path) -> None:
    said = call("report", placed(tool, tmp_path), "--definitions", "guidellm", "--by", "input")
    assert said.code == 0 and not said.err
    assert "note      written by " in said.out and "as guidellm counts" in said.out
    assert "time_per_output_token_ms" in said.out and "nan" not in said.out.lower()


def test_a_log_of_ours_is_counted_as_each_tool_would(call: Call) -> None:
    steps = {
        tool: json.loads(call("report", EXAMPLE, "--definitions", tool, "--json").out)["counted_as"] for tool in TOOLS
    }
    assert all([row["step"] for row in rows] == [1, 2, 3] for rows in steps.values())
    tpot = {tool: rows[0]["mean_tpot_ms"] for tool, rows in steps.items()}
    assert tpot["guidellm"] > 1.03 * tpot["vllm"]  # the first token's wait is inside
    (one,) = json.loads(call("report", EXAMPLE, "--definitions", "vllm", "--step", 2, "--json").out)["counted_as"]
    assert one == steps["vllm"][1]


def test_another_tools_name_is_refused(call: Call) -> None:
    said = call("report", EXAMPLE, "--definitions", "wrk")
    assert said.code == 2 and "inference-perf" in said.err


@pytest.mark.parametrize("tool", FILES)
def test_every_log_is_exported_and_compared(tool: str, call: Call, tmp_path: Path) -> None:
    log = placed(tool, tmp_path)
    rows = list(csv.DictReader(io.StringIO(call("export", log).out)))
    assert len(rows) == (40 if tool == "inference-perf" else 200)
    assert {row["output_tokens"] for row in rows} == {"64"}
    assert call("export", log, "--format", "parquet", "-o", tmp_path / "log.parquet").code == 0
    assert parquet.read_table(tmp_path / "log.parquet").num_rows == len(rows)
    assert call("export", log, "--format", "vllm", "-o", tmp_path / "again.json").code == 0
    first, again = (
        json.loads(call("report", path, "--definitions", "vllm", "--json").out)["counted_as"]
        for path in (log, tmp_path / "again.json")
    )
    for (one,), (other,) in ((first, again),):
        numbers = {key: value for key, value in one.items() if isinstance(value, int | float)}
        assert {key: other[key] for key in numbers} == pytest.approx(numbers, rel=1e-5)
        assert one.keys() == other.keys() and numbers["completed"] == len(rows)
    said = call("compare", log, log, "--anyway")
    assert said.code == 0 and "no difference established" in said.out


def test_the_json_of_vllm_is_of_one_step(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "v.json"
    said = call("export", EXAMPLE, "--format", "vllm", "-o", out)
    assert said.code == 2 and "--step" in said.err and "1, 2, 3" in said.err and not out.exists()
    assert call("export", EXAMPLE, "--format", "vllm", "--step", 9, "-o", out).code == 2
    assert call("export", EXAMPLE, "--format", "vllm", "--step", 2, "--all", "-o", out).code == 2
    assert call("export", EXAMPLE, "--format", "vllm", "--step", 2, "-o", out).code == 0
    assert json.loads(out.read_text())["completed"] > 100


def test_a_step_is_exported_by_itself(call: Call) -> None:
    rows = list(csv.DictReader(io.StringIO(call("export", EXAMPLE, "--step", 2).out)))
    assert {row["step"] for row in rows} == {"2"}


def test_a_damaged_log_is_told_in_one_sentence(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    path.write_text(json.dumps({**vllm_document(), "output_lens": [3, "x", 0]}))
    said = call("report", path)
    assert said.code == 2 and f"{path} request 2: output_lens is 'x', not a number" in said.err
    assert "Traceback" not in said.err


def test_a_log_of_another_tool_is_not_replayed_as_ours(call: Call, tmp_path: Path) -> None:
    said = call("replay", placed("vllm", tmp_path), "http://127.0.0.1:9")
    assert said.code == 2 and "log of vllm bench serve" in said.err and "--trace" in said.err
