"""The verbs report and export as a person runs them: real files, and real processes where there are pipes."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.analysis import summarise_run
from loadgen.cli.report import answer_again
from loadgen.log.codec import stop_object
from loadgen.log.columns import columns
from loadgen.log.store import RunFolder, open_run
from loadgen.report.text import Mark
from loadgen.results import Slo, Stop
from tests.cases.support import loadgen as in_this_process
from tests.report.summaries import run_records

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "tests" / "data" / "worked-example.csv"


def loadgen(*args: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "loadgen", *map(str, args)]
    if stdin:
        return subprocess.run(command, input=stdin, capture_output=True, cwd=ROOT, timeout=60, check=False)
    ran = in_this_process(*map(str, args))
    return subprocess.CompletedProcess(command, ran.code, ran.out.encode(), ran.err.encode())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records, observations = run_records()
    with RunFolder.create(tmp_path_factory.mktemp("runs"), "example") as run:
        for record in records:
            run.append(record)
        for observation in observations:
            run.append_step(observation)
        run.write_manifest(
            {
                "status": "complete",
                "slo": {"objectives": ["ttft_p95=100ms"], "attainment": 0.95},
                "plan": {"max_error_rate": 0.01},
                "stop": stop_object(Stop("errors", 8, 64, None, "Too many requests failed at 64.")),
                "levels": [{"step": 2, "verdict": "marginal", "broke": []}],
            }
        )
    return run.path


def test_the_worked_example_comes_out_to_the_digit() -> None:
    done = loadgen("report", EXAMPLE)
    text = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith("  ")}
    assert [cell.rstrip("*") for cell in (rows["TTFT"][1], rows["TTFT"][3])] == ["0.480", "0.552"]
    assert [cell.rstrip("*") for cell in (rows["TPOT"][1], rows["TPOT"][3])] == ["0.0339", "0.0380"]
    assert "latency in s" in text and "55.05 tokens/s (classic, over 4.36 s)" in text


def test_the_worked_example_through_stdin_and_json() -> None:
    step = json.loads(loadgen("report", "-", "--json", stdin=EXAMPLE.read_bytes()).stdout)["steps"][0]
    assert round(step["median_ttft_ms"], 1) == 480.0 and round(step["p95_ttft_ms"], 1) == 552.0
    assert round(step["median_tpot_ms"], 1) == 33.9 and round(step["p95_tpot_ms"], 1) == 38.0
    assert round(step["output_throughput_classic_tok_s"], 2) == 55.05


def test_the_run_folder_is_reported_with_its_own_verdicts(folder: Path) -> None:
    done = loadgen("report", folder)
    text = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    assert "Too many requests failed at 64." in text
    rows = [line.split() for line in text.splitlines() if line.rstrip().endswith(("marginal", "pass", "errors"))]
    assert [(row[0], row[-1]) for row in rows] == [("1", "pass"), ("8", "marginal"), ("64", "errors")]


@pytest.mark.parametrize(
    ("slo", "code", "words"),
    [
        ("ttft_p95=100ms", 0, "8 concurrent requests hold, 64 do not (errors)"),
        ("ttft_p95=1ms", 1, "no measured level holds: 1 concurrent requests break ttft_p95"),
        ("ttft_p99.99=1s", 1, "no measured level holds: 64 concurrent requests break errors"),
    ],
)
def test_other_objectives_are_judged_again(folder: Path, slo: str, code: int, words: str) -> None:
    done = loadgen("report", folder, "--slo", slo)
    assert done.returncode == code, done
    assert words in done.stdout.decode()


def test_a_level_that_holds_above_one_that_does_not_is_named() -> None:
    records, observations = run_records((1, 4, 8, 12))
    summaries = summarise_run(columns(records), Slo(), observations)
    marks = {step: Mark("fail", ("ttft_p95",)) if step == 2 else Mark("pass") for step in range(1, 5)}
    found = answer_again(summaries, marks)
    assert found is not None and (found.held, found.broke, found.held_again) == (1, 4, (8, 12))
    assert found.sentence == "1 concurrent requests hold, 4 do not (ttft_p95); above that, 8, 12 hold again"
    lowest = answer_again(summaries[1:], marks)
    assert lowest is not None and lowest.held is None
    assert lowest.sentence == "4 concurrent requests break ttft_p95; above that, 8, 12 hold again"


def test_too_few_requests_leave_the_answer_open() -> None:
    done = loadgen("report", EXAMPLE, "--slo", "ttft_p95=10s")
    assert done.returncode == 4 and b"undecided" in done.stdout


def test_one_step_alone(folder: Path) -> None:
    text = loadgen("report", folder, "--step", "2").stdout.decode()
    assert "step 2 · 8 concurrent" in text and "step 3" not in text
    done = loadgen("report", folder, "--step", "9")
    assert done.returncode == 2 and b"has no step 9" in done.stderr and b"1, 2, 3" in done.stderr


def test_export_and_report_agree(folder: Path) -> None:
    """report → figures; export → CSV → a script's figures, and → report again."""
    told = json.loads(loadgen("report", folder, "--json").stdout)["steps"]
    exported = loadgen("export", folder, "--format", "csv").stdout
    rows = list(csv.DictReader(io.StringIO(exported.decode(), newline="")))
    assert len(rows) == sum(step["completed"] for step in told)
    for step in told:
        mine = [row for row in rows if int(row["step"]) == step["step"]]
        tokens = sum(int(row["output_tokens"]) for row in mine)
        span = max(float(row["end_ts"]) for row in mine) - min(float(row["start_ts"]) for row in mine)
        assert step["output_throughput_classic_tok_s"] == pytest.approx(tokens / span, rel=1e-9)
        ttft = [1000 * (float(row["first_token_ts"]) - float(row["start_ts"])) for row in mine]
        assert step["mean_ttft_ms"] == pytest.approx(sum(ttft) / len(ttft), rel=1e-9)
    again = json.loads(loadgen("report", "-", "--json", stdin=exported).stdout)["steps"]
    for one, two in zip(told, again, strict=True):
        for key in ("completed", "p95_ttft_ms", "p99_tpot_ms", "median_e2el_ms", "max_concurrency"):
            assert two[key] == pytest.approx(one[key])


def test_export_of_everything_holds_the_failures(folder: Path, tmp_path: Path) -> None:
    records = list(open_run(folder).records())
    out = tmp_path / "all.jsonl"
    done = loadgen("export", folder, "--format", "jsonl", "--all", "-o", out)
    assert (done.returncode, done.stdout) == (0, b"") and b"3,080 requests" in done.stderr
    assert list(open_run(out).records()) == records
    rows = csv.DictReader(io.StringIO(loadgen("export", out, "--all").stdout.decode(), newline=""))
    failed = [row["error"] for row in rows if row["outcome"] == "error"]
    assert len(failed) == 64 and set(failed) == {"http: the server is \x1b[31mbusy now"}


def test_an_export_never_overwrites_the_log_it_reads(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_bytes(EXAMPLE.read_bytes())
    done = loadgen("export", log, "-o", log)
    assert done.returncode == 2 and log.read_bytes() == EXAMPLE.read_bytes()


@pytest.mark.parametrize("verb", ["report", "export"])
def test_what_cannot_be_read_is_one_sentence(verb: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.csv"
    wrong.write_text(EXAMPLE.read_text().replace("0.71", "0.05"))
    for path, words in ((tmp_path / "none", "does not exist"), (wrong, "row 2 (line 3), request 'r2'")):
        done = loadgen(verb, path)
        assert (done.returncode, done.stdout) == (2, b"")
        assert words in done.stderr.decode() and "Traceback" not in done.stderr.decode()
    done = loadgen("export", EXAMPLE, "-o", tmp_path / "no" / "file")
    assert done.returncode == 2 and b"cannot be written" in done.stderr


@pytest.mark.parametrize("args", [("export", "--format", "csv"), ("export", "--format", "jsonl"), ("report", "--json")])
def test_a_reader_that_goes_away_is_no_error(folder: Path, args: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "loadgen", *args, str(folder)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, cwd=ROOT, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("verb", ["report", "export"])
def test_help_ends_in_examples(verb: str) -> None:
    text = loadgen(verb, "--help").stdout.decode()
    assert "|" in text.split("Examples:")[1]
