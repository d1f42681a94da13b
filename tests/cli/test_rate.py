"""`loadgen run --rate`: from the flags to the report, on a real server."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from loadgen.simulator.scripted import ThreadedServer
from tests.cli.command import Call, folder_in, generations, manifest_of, records_of, serve, went_well


def test_a_rate_is_measured_logged_and_reported(call: Call, tmp_path: Path) -> None:
    with ThreadedServer(serve(20)) as server:
        said = call(
            "run", server.url, "--rate", "50", "--arrivals", "constant", "--requests", 50, "--input-len", 20,
            "--output-len", 3, "--warmup", 5, "--seed", 7, "--json", "-o", tmp_path,
        )  # fmt: skip
        asked = generations(server.requests)
    assert went_well(said, folder_in(tmp_path)), said.err
    step = json.loads(said.out)["steps"][0]
    assert step["request_rate"] == 50.0 and step["max_concurrency"] is None
    assert step["sent"] == 50
    folder = folder_in(tmp_path)
    manifest = manifest_of(folder)
    assert manifest["plan"]["rate_req_s"] == 50.0 and manifest["plan"]["arrivals"] == "constant"
    assert "factor" not in manifest["plan"]
    assert manifest["levels"][0]["rate_req_s"] == 50.0
    load = [r for r in records_of(folder) if r["phase"] != "preflight"]
    assert len(asked) == len(records_of(folder))
    due = sorted(r["scheduled_ns"] for r in load)
    assert {b - a for a, b in itertools.pairwise(due)} == {20_000_000}, "the schedule is absolute"
    assert all(r["sent_ns"] >= r["scheduled_ns"] for r in load), "never ahead of its time"
    shown = call("report", folder)
    assert shown.code == 0
    assert "50 requests/s asked for" in shown.out and "50/s" in shown.out.split()
    judged = call("report", folder, "--slo", "ttft_p50=10s")
    assert went_well(judged, folder)
    assert ("50 requests/s hold" if judged.code == 0 else "undecided") in judged.out


def test_a_limit_in_flight_binds_aloud(call: Call, tmp_path: Path) -> None:
    with ThreadedServer(serve(95)) as server:
        said = call(
            "run", server.url, "--rate", "40/s", "-c", 2, "--duration", "1s", "--input-len", 20, "--output-len", 2,
            "--arrivals", "constant", "--warmup", 0, "-o", tmp_path, "--quiet",
        )  # fmt: skip
        assert server.peak_in_flight <= 4  # it may still be ending two answers when the next two come
    assert went_well(said, folder_in(tmp_path)), said.err
    load = [r for r in records_of(folder_in(tmp_path)) if r["phase"] != "preflight"]
    stamps = sorted([(r["sent_ns"], 1) for r in load] + [(r["done_ns"], -1) for r in load])
    assert max(itertools.accumulate(change for _, change in stamps)) == 2
    text = " ".join(said.out.split())
    assert "the limit of 2 in flight held back" in text and "of the 40 requests/s asked for were sent" in text
    assert "arrivals due in the window could not be sent by its end" in text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--arrivals", "poisson"], "--rate"),
        (["--rate", "fast"], "'fast' is not a rate"),
        (["--rate", "0"], "from 0.0001 to 100,000"),
        (["--rate", "-3"], "from 0.0001 to 100,000"),
        (["--rate", "inf"], "-c N --requests N"),
        (["--rate", "nan"], "is not a rate"),
        (["--rate", "5/day"], "is not a rate"),
        (["--rate", "5", "--arrivals", "uniform"], "is not an arrival process"),
        (["--rate", "5", "--arrivals", "gamma"], "needs a number as its shape"),
    ],
)
def test_what_is_no_rate_is_one_sentence(call: Call, flags: list[str], words: str) -> None:
    said = call("run", "http://127.0.0.1:9", *flags)
    assert said.code == 2
    assert words in said.err and "Traceback" not in said.err
    assert len(said.err.splitlines()) <= 2


def test_the_rate_may_be_typed_in_several_ways(call: Call) -> None:
    for text in ("90/min", "1.5", "1.5/s", "1.5 / s", "5400/h"):
        said = call("run", "http://127.0.0.1:9", "--rate", text, "--dry-run", "--model", "m")
        assert said.code == 0, said.err


def test_a_sweep_of_rates_goes_up_as_far_as_it_may(call: Call, tmp_path: Path) -> None:
    with ThreadedServer(serve(20)) as server:
        said = call(
            "sweep", server.url, "--rate", "40", "--max-rate", "80", "--requests", 40, "--input-len", 20,
            "--output-len", 3, "--warmup", 5, "--json", "-o", tmp_path,
        )  # fmt: skip
    assert went_well(said, folder_in(tmp_path)), said.err
    report = json.loads(said.out)
    rates = list(dict.fromkeys(step["request_rate"] for step in report["steps"]))  # one may be measured once more
    assert rates == [40.0, 80.0][: len(rates)]
    if said.code == 0:
        assert (report["answer"]["reason"], report["answer"]["held"]) == ("max_level", 80.0)
        assert "No limit up to 80 requests/s" in report["answer"]["sentence"]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (("--max-rate", "9"), "--max-rate"),
        (("--rate", "5", "--max-rate", "2"), "is below the first, 5"),
        (("--rate", "5", "--levels", "1,2"), "exclude each other"),
        (("--rate", "5", "--start", "2"), "exclude each other"),
    ],
    ids=["alone", "below", "levels", "start"],
)
def test_a_sweep_of_rates_that_cannot_be_meant(call: Call, typed: tuple[str, ...], words: str) -> None:
    said = call("sweep", "http://127.0.0.1:9", *typed)
    assert said.code == 2 and words in said.err
