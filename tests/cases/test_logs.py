"""Field cases G: what a run leaves behind, whoever reads it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.simulator.scripted import Request, ThreadedServer, error_reply
from tests.cases.support import Ran, answer, loadgen, posts, strict_json

SHAPE = (
    "--input-len",
    "16",
    "--output-len",
    "4",
    "-c",
    "1",
    "--warmup",
    "0",
    "--requests",
    "4",
    "--max-error-rate",
    "1",
)


class Second:
    """Of the measured requests the second fails."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.epoch_ns: dict[str, int] = {}

    def __call__(self, request: Request) -> Any:
        name = request.headers["x-request-id"]
        self.epoch_ns[name] = time.time_ns()
        if "-p-" in name:
            return answer(request)
        self.ids.append(name)
        return error_reply(500, "just this one") if len(self.ids) == 2 else answer(request)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Second]:
    second = Second()
    folder = tmp_path_factory.mktemp("runs")
    with ThreadedServer(posts(second)) as server:
        ran = loadgen(
            *("run", server.url, *SHAPE, "--seed", "5", "--header", "X-Api-Key: hush-hush", "--describe", "gpu=none"),
            output=folder,
        )
    return ran, second


def lines(ran: Ran) -> list[dict[str, Any]]:
    found = [strict_json(line) for line in (ran.folder / "requests.jsonl").read_text().splitlines()]
    return [line for line in found if line["phase"] == "measured"]


def test_g01_one_line_a_request_failures_too(run: tuple[Ran, Second]) -> None:
    rows = lines(run[0])
    assert [row["outcome"] for row in rows] == ["ok", "error", "ok", "ok"]
    for row in rows:
        assert row["id"] and row["step"] == 1 and row["scheduled_ns"] <= row["sent_ns"] <= row["done_ns"]
        assert row["status"] == (200 if row["outcome"] == "ok" else 500)
        if row["outcome"] == "ok":
            assert row["sent_ns"] < row["first_token_ns"] <= row["last_token_ns"] <= row["done_ns"]
            assert row["output_tokens"] == {"asked": 4, "count": 4, "source": "usage"}
            assert row["error"] is None
        else:
            assert row["first_token_ns"] is None and not row["output_tokens"]["count"]
            assert row["error"]["message"] == "just this one"


def test_g02_every_row_stands_for_itself(run: tuple[Ran, Second]) -> None:
    """A failed request shifts nobody else's figures: the gaps of a row are its own."""
    for row in lines(run[0]):
        if row["outcome"] == "ok":
            assert len(row["events"]["gap_us"]) == len(row["events"]["tokens"]) == 4
            since = sum(row["events"]["gap_us"])
            assert since == pytest.approx((row["last_token_ns"] - row["sent_ns"]) / 1e3, abs=2)
    exported = loadgen("export", str(run[0].folder), "--format", "csv", "--all")
    header, *rows = exported.out.splitlines()
    assert all(len(row.split(",")) == len(header.split(",")) for row in rows)


def test_g03_a_line_can_be_found_in_the_servers_log(run: tuple[Ran, Second]) -> None:
    ran, server = run
    nonce, zero = ran.manifest["workload"]["nonce"], ran.manifest["started_epoch_ns"]
    rows = lines(ran)
    assert {f"{nonce}-{row['id']}" for row in rows} <= set(server.ids)
    for row in rows:
        sent = zero + row["sent_ns"]
        assert abs(server.epoch_ns[f"{nonce}-{row['id']}"] - sent) < 2e9, "wall time is the run's start and an offset"


UNITS = re.compile(r"_(ms|us|ns|s|tok_s|req_s|tokens|requests|share|residual)$")
PLAIN = {"schema_version", "definitions_version", "seed", "step", "requests", "requests_failed", "truncated_lines"}


def numbers(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner, key)
    elif isinstance(value, float):
        yield key, value


def test_g05_every_figure_of_a_report_has_its_unit(run: tuple[Ran, Second]) -> None:
    told = run[0].report()
    assert told["schema_version"] == 1
    step = told["steps"][0]
    for key, value in step.items():
        if isinstance(value, float):
            assert UNITS.search(key) or key in told["units"], (key, value)
    manifest = strict_json((run[0].folder / "manifest.json").read_text())
    assert manifest["schema_version"] == 1
    for line in (run[0].folder / "steps.jsonl").read_text().splitlines():
        strict_json(line)


def test_g06_the_run_can_be_repeated_from_what_it_left(run: tuple[Ran, Second], tmp_path: Path) -> None:
    ran, _ = run
    manifest = ran.manifest
    assert "hush-hush" not in json.dumps(manifest)
    assert manifest["target"]["url"].endswith("/v1/chat/completions")
    assert manifest["target"]["access"]["headers"] == ["x-api-key"]
    assert manifest["server"]["model"] == "m"
    assert manifest["host"]["loadgen"] and manifest["host"]["python"]
    assert manifest["workload"]["seed"] == 5
    assert manifest["plan"]["max_error_rate"] == 1.0
    assert manifest["timeouts_s"]["first_token"] == 600
    assert manifest["retries"] == {"most": 0, "max_wait_s": 60.0}
    assert manifest["describe"] == {"gpu": "none"}
    assert ran.report()["steps"][0].keys() >= {"cached_share"}
    with ThreadedServer(posts(answer)) as server:
        again = loadgen("run", server.url, *SHAPE, "--seed", str(manifest["workload"]["seed"]), output=tmp_path)
    asked = [
        [(row["input_tokens"]["asked"], row["output_tokens"]["asked"]) for row in lines(one)] for one in (ran, again)
    ]
    assert asked[0] == asked[1]
    assert again.manifest["workload"]["input_len"] == manifest["workload"]["input_len"]
