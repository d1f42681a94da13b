"""The reading verbs on logs of every kind, and what compare and check answer."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import numpy as np
import pytest

from loadgen.log.codec import encode_record
from loadgen.log.store import RunFolder
from loadgen.records import Record
from loadgen.results import Observation
from tests.cli.command import ROOT, Call, run
from tests.report.summaries import record, run_records

EXAMPLE = ROOT / "tests" / "data" / "worked-example.csv"
MANIFEST: dict[str, Any] = {
    "schema_version": 1,
    "status": "complete",
    "server": {"kind": "vllm", "version": "1", "model": "m", "flags": {}},
    "workload": {"content_sha256": "abc", "seed": 1},
    "request": {"force_length": True},
    "describe": {"gpu": "H100", "precision": "bf16"},
}


def folder(
    parent: Path, name: str, records: list[Record], observations: list[Observation], manifest: dict[str, Any] | None
) -> Path:
    with RunFolder.create(parent, name) as made:
        for one in records:
            made.append(one)
        for seen in observations:
            made.append_step(seen)
        if manifest is not None:
            made.write_manifest(manifest)
    return made.path


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    parent = tmp_path_factory.mktemp("logs")
    records, observations = run_records((1, 8))
    failed = [replace(r, outcome="error", first_token_ns=None, last_token_ns=None) for r in records]
    one = [record("only", 1, 1, 0, 20_000, 10_000)]
    made = {
        "folder": folder(parent, "whole", records, observations, MANIFEST),
        "empty": folder(parent, "empty", [], [], {**MANIFEST, "status": "running"}),
        "failed": folder(parent, "failed", failed, observations, MANIFEST),
        "one": folder(parent, "one", one, [], None),
        "older": folder(parent, "older", records, [], {"schema_version": 0, "model": "m", "target": "http://a"}),
        "csv": EXAMPLE,
    }
    made["file"] = made["folder"] / "requests.jsonl"
    made["truncated"] = parent / "cut.jsonl"
    made["truncated"].write_bytes(b"".join(map(encode_record, records[:300]))[:-40])
    return made


KINDS = ("folder", "file", "truncated", "empty", "failed", "one", "older", "csv")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("verb", "codes"),
    [
        (("report",), (0,)),
        (("report", "--by", "input,output,concurrency,time,model,peer,turn,cached"), (0,)),
        (("report", "--by", "input", "--json"), (0,)),
        (("export",), (0,)),
        (("compare", "BASE"), (0, 4)),
        (("compare", "BASE", "--json"), (0, 4)),
        (("check", "--against", "BASE"), (0, 1, 4)),
        (("check", "--against", "BASE", "--json", "--slo", "ttft_p95=1s"), (0, 1, 4)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value[0], str) else None,
)
def test_every_reading_verb_takes_every_log(
    call: Call, logs: dict[str, Path], verb: tuple[str, ...], codes: tuple[int, ...], kind: str
) -> None:
    words = [str(logs["folder"]) if word == "BASE" else word for word in verb[1:]]
    said = call(verb[0], logs[kind], *words)
    assert said.code in codes and said.err == "" and said.out
    if "--json" in words:
        json.loads(said.out)
    if verb[0] == "compare":  # the other way round as well
        assert call("compare", *words, logs[kind]).code == said.code


@pytest.mark.parametrize(
    "verb", [("report", "-"), ("export", "-"), ("compare", "BASE", "-"), ("check", "-", "--against", "BASE")]
)
def test_every_reading_verb_takes_stdin(logs: dict[str, Path], verb: tuple[str, ...]) -> None:
    words = [str(logs["folder"]) if word == "BASE" else word for word in verb]
    with logs["file"].open("rb") as stdin:
        said = run(*words, stdin=stdin)
    assert said.code in (0, 4) and said.err == "" and said.out


@pytest.mark.parametrize(("kind", "code"), [("folder", 0), ("failed", 1), ("empty", 4), ("one", 4)])
def test_the_exit_code_is_the_answer(call: Call, logs: dict[str, Path], kind: str, code: int) -> None:
    assert call("check", logs[kind], "--against", logs["folder"], "--anyway").code == code


def test_an_objective_that_only_the_run_breaks_is_a_regression(
    call: Call, logs: dict[str, Path], tmp_path: Path
) -> None:
    records, observations = run_records((1, 8))
    late = [replace(r, first_token_ns=(r.first_token_ns or 0) + 5_000_000, sent_ns=r.sent_ns) for r in records]
    later = folder(tmp_path, "later", late, observations, MANIFEST)
    said = call("check", later, "--against", logs["folder"], "--slo", "ttft_p95=58ms", "--max-regression", "50%")
    assert said.code == 1 and "ttft_p95" in said.out.splitlines()[0]


def test_of_steps_that_this_client_limited_nothing_is_said_of_the_server(
    call: Call, logs: dict[str, Path], tmp_path: Path
) -> None:
    records, observations = run_records((1, 8))
    ours = [replace(one, ended="client", detail="no file descriptor was left") for one in observations]
    some = folder(tmp_path, "some", records, [observations[0], ours[1]], MANIFEST)
    none = folder(tmp_path, "none", records, ours, MANIFEST)
    named = "B says nothing of the server at a load of 8, which is left out: this client"
    said = call("compare", logs["folder"], some)
    assert (
        said.code == 0 and named in said.out and "at a load of 1," in said.out and "at a load of 8, p" not in said.out
    )
    (found,) = json.loads(call("compare", logs["folder"], some, "--json").out)["comparisons"]
    assert found["loads"] == [1] and len(found["notes"]) == 1 and found["notes"][0].startswith(named)
    said = call("compare", none, logs["folder"])
    assert said.code == 4 and "nothing can be compared" in said.out and "another machine" in said.out
    assert json.loads(call("compare", none, logs["folder"], "--json").out)["refused"].startswith("nothing can be")
    slower = [replace(r, outcome="error") for r in records]
    shaped = folder(tmp_path, "shaped", slower, ours, MANIFEST)
    for one, base in ((shaped, logs["folder"]), (logs["folder"], shaped)):
        said = call("check", one, "--against", base)
        assert said.code == 4 and said.out.startswith("answer    undecided: nothing can be compared")


def test_more_than_one_change_is_refused_and_said(call: Call, logs: dict[str, Path], tmp_path: Path) -> None:
    records, observations = run_records((1, 8))
    other = {**MANIFEST, "describe": {"gpu": "H200", "precision": "bf16"}, "server": {"model": "n"}}
    changed = folder(tmp_path, "changed", records, observations, other)
    said = call("compare", logs["folder"], changed)
    assert said.code == 4 and "2 main variables were changed (model, GPU)" in said.out and "at a load" not in said.out
    said = call("compare", logs["folder"], changed, "--anyway")
    assert said.code == 0 and "warning" in said.out and "at a load of 8" in said.out
    assert call("check", changed, "--against", logs["folder"]).code == 4
    told = json.loads(call("compare", logs["folder"], changed, "--json").out)
    assert told["changed"] == ["model", "GPU"] and told["refused"] and told["comparisons"] == []


def test_unknown_is_shown_as_unknown(call: Call, logs: dict[str, Path]) -> None:
    out = call("compare", logs["csv"], logs["csv"]).out
    rows = {line.split("  ")[1]: line for line in out.splitlines() if line.startswith("  ")}
    assert rows["model"].split()[1:] == ["unknown"] * 3 and "unknown   model, precision, GPU" in out


def test_junit_and_markdown(call: Call, logs: dict[str, Path], tmp_path: Path) -> None:
    xml, page = tmp_path / "check.xml", tmp_path / "check.md"
    said = call("check", logs["failed"], "--against", logs["folder"], "--junit", xml, "--markdown", page)
    assert said.code == 1
    suite = Xml.parse(xml).getroot()
    assert int(suite.get("failures", "0")) == len(suite.findall("testcase/failure")) == 2
    assert int(suite.get("errors", "0")) == len(suite.findall("testcase/error")) == 6
    assert page.read_text().startswith("**regression: failures at a load of 1")
    said = call("check", logs["failed"], "--against", logs["folder"], "--junit", tmp_path / "no" / "x.xml")
    assert said.code == 2 and "cannot be written" in said.err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("compare",), "nothing to compare"),
        (("compare", "-", "-"), "stdin can be read only once"),
        (("check", "x"), "what to hold it against"),
        (("check", "--pairs", "3", "http://a", "http://b"), "too few"),
        (("check", "--pairs", "5", "http://a"), "two servers"),
        (("check", "--pairs", "5", "http://a", "http://b", "--against", "x"), "exclude each other"),
        (("check", "--pairs", "5", "http://a", "http://b", "--slo", "ttft_p95=1s"), "judges no objectives"),
        (("check", "--pairs", "5", "http://a", "http://b", "--max-requests", "9"), "--max-requests is of one run"),
        (("check", "--pairs", "5", "http://a", "http://b", "--anyway"), "--anyway does nothing"),
        (("check", "x", "--against", "y", "--requests", "9"), "--requests is for measuring"),
        (("report", str(EXAMPLE), "--by", "colour"), "names no axis"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else None,
)
def test_mistakes_are_one_sentence(call: Call, words: tuple[str, ...], part: str) -> None:
    said = call(*words)
    assert said.code == 2 and part in said.err and said.out == "" and len(said.err.splitlines()) == 2


def test_ten_lines_of_numpy_get_the_same_figures(call: Call, logs: dict[str, Path]) -> None:
    """TTFT, TPOT and the classic throughput of each step, from the exported CSV alone, to the last digit shown."""
    told = json.loads(call("report", logs["folder"], "--json").out)["steps"]
    rows = list(csv.DictReader(io.StringIO(call("export", logs["folder"]).out)))
    for step in told:
        mine = [row for row in rows if int(row["step"]) == step["step"]]
        start, first, end = (np.array([float(r[k]) for r in mine]) for k in ("start_ts", "first_token_ts", "end_ts"))
        tokens = np.array([int(row["output_tokens"]) for row in mine])
        ttft, tpot = (first - start) * 1e3, (end - first) / (tokens - 1) * 1e3
        for name, values in (("ttft", ttft), ("tpot", tpot)):
            for key, q in (("median", 50), ("p95", 95), ("p99", 99)):
                assert f"{step[f'{key}_{name}_ms']:.6f}" == f"{np.percentile(values, q):.6f}"
        classic = tokens.sum() / (end.max() - start.min())
        assert f"{step['output_throughput_classic_tok_s']:.6f}" == f"{classic:.6f}"
