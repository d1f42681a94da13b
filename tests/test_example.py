"""The committed run of a real server: it reads, its figures are those of a ten-line script, and it tells no secrets."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loadgen.cli.main import main

RUN = Path(__file__).parents[1] / "results" / "example-vllm"
MANIFEST: dict[str, Any] = json.loads((RUN / "manifest.json").read_text())
LINES: list[dict[str, Any]] = [json.loads(line) for line in (RUN / "requests.jsonl").read_text().splitlines()]


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    return int(ended.value.code or 0), capsys.readouterr().out


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    code, out = call(capsys, "report", str(RUN), "--json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.fixture
def rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    path = tmp_path / "requests.csv"
    assert call(capsys, "export", str(RUN), "--format", "csv", "-o", str(path))[0] == 0
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_report_says_what_the_run_said(report: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert report["answer"]["sentence"] == MANIFEST["stop"]["sentence"]
    assert [step["verdict"] for step in report["steps"]] == [level["verdict"] for level in MANIFEST["levels"]]
    steps = [json.loads(line)["summary"] for line in (RUN / "steps.jsonl").read_text().splitlines()]
    for step, summary in zip(report["steps"], steps, strict=True):  # the proof, not only the verdict
        assert step["objectives"] == [{**check, "decided_n": None} for check in summary["objectives"]]
    code, text = call(capsys, "report", str(RUN), "--details")
    assert code == 0
    assert "vLLM" in text and " ".join(MANIFEST["stop"]["sentence"].split()) in " ".join(text.split())


def test_every_request_is_there_once(report: dict[str, Any]) -> None:
    assert len({line["id"] for line in LINES}) == len(LINES) == report["requests"]
    per_step = Counter(line["step"] for line in LINES if line["phase"] == "measured")
    assert {step["step"]: step["sent"] for step in report["steps"]} == dict(per_step)
    for step in report["steps"]:
        numbers = sorted(int(line["id"].partition("-")[2]) for line in LINES if line["step"] == step["step"])
        assert numbers == list(range(len(numbers)))  # none was sent and not logged


def test_outputs_are_as_long_as_asked() -> None:
    ok = [line for line in LINES if line["outcome"] == "ok"]
    assert len(ok) > 100
    assert all(line["output_tokens"]["count"] == line["output_tokens"]["asked"] for line in ok)
    assert {line["output_tokens"]["source"] for line in ok} == {"usage"}


def figures(rows: list[dict[str, str]]) -> Iterator[tuple[int, dict[str, float]]]:
    """Independent of this program: the six columns, NumPy, and the definitions as a person reads them."""
    names = ("start_ts", "first_token_ts", "end_ts", "input_tokens", "output_tokens", "first_event_tokens", "step")
    column: dict[str, NDArray[np.float64]] = {name: np.array([float(row[name] or 1) for row in rows]) for name in names}
    for step in np.unique(column["step"]):
        start, first, end, inputs, outputs, opening, _ = (column[name][column["step"] == step] for name in names)
        ttft, e2e = 1e3 * (first - start), 1e3 * (end - start)
        later = outputs - opening
        tpot = 1e3 * (end - first)[later >= 1] / later[later >= 1]
        found = {"completed": len(start), "total_input_tokens": inputs.sum(), "total_output_tokens": outputs.sum()}
        found["output_throughput_classic_tok_s"] = outputs.sum() / (end.max() - start.min())
        for name, values in (("ttft", ttft), ("tpot", tpot), ("e2el", e2e)):
            found |= {f"{key}_{name}_ms": q for key, q in zip(("median", "p90", "p95", "p99"), np.percentile(
                values, [50, 90, 95, 99]), strict=True)}  # fmt: skip
            found |= {f"mean_{name}_ms": values.mean(), f"max_{name}_ms": values.max()}
        yield int(step), found


def test_the_figures_are_those_of_a_script_on_the_csv(report: dict[str, Any], rows: list[dict[str, str]]) -> None:
    steps = {step["step"]: step for step in report["steps"]}
    seen = dict(figures(rows))
    assert seen.keys() == steps.keys()
    for number, found in seen.items():
        said = {key: steps[number][key] for key in found}
        assert said == pytest.approx(found, rel=1e-9)


def test_the_events_of_a_request_add_up_to_its_times() -> None:
    for line in LINES:
        if line["outcome"] != "ok":
            continue
        tokens = line["events"]["tokens"]
        at_ns = 1000 * np.cumsum(line["events"]["gap_us"])
        assert abs(at_ns[0] - (line["first_token_ns"] - line["sent_ns"])) <= 1000
        # Events may follow the last output that show a token and no text.
        assert np.abs(at_ns - (line["last_token_ns"] - line["sent_ns"])).min() <= 1000
        assert None in tokens or sum(tokens) == line["output_tokens"]["count"]


def test_it_is_small_and_tells_nothing_of_where_it_was_made() -> None:
    data = b"".join(path.read_bytes() for path in RUN.iterdir())
    assert len(data) < 1_000_000
    found = re.findall(rb"(?<![\w.:/])/(?:root|home|tmp|var|opt|mnt|srv|work|usr|Users|etc)\b[^\"]*", data)
    assert not found
    assert not re.search(rb"(?i)bearer |api[_-]?key\W+\w{8}|password", data)
