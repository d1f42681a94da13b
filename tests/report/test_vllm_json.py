"""What is written for tools that read `vllm bench serve` is what we read of it, and has its keys."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.analysis.conventions import counted
from loadgen.errors import Failure
from loadgen.log.codec import encode
from loadgen.log.columns import columns
from loadgen.log.store import open_run
from loadgen.records import Events, InputTokens, OutputTokens, Record
from loadgen.report.vllm_json import vllm_object, vllm_requests
from tests.log.foreign.foreign_logs import FILES, unpacked
from tests.log.record_strategies import MS, answered

OK = replace(
    answered(
        *(5, 105, 405, 455),
        tokens=InputTokens(asked=10, server=12),
        count=3,
        # The first event shows a growing usage, and no text yet.
        events=Events([60_000, 40_000, 100_000, 200_000], [1, 0, 1, 1]),
    ),
    concurrency=2,
)
FAILED = replace(
    OK,
    id="f",
    outcome="error",
    error=Failure("http", "busy", 503),
    first_token_ns=None,
    last_token_ns=None,
    events=None,
    output_tokens=OutputTokens(),
)
RECORDS = [OK, FAILED, replace(OK, id="w", phase="warmup"), replace(OK, id="c", outcome="cut"), replace(OK, step=2)]


def written(records: list[Record], rate: float | None = None) -> dict[str, object]:
    chosen = vllm_requests(records, 1)
    found = counted("vllm", columns(records), 1)
    result: dict[str, object] = json.loads(encode(vllm_object(chosen, found, {"server": {"model": "m"}}, rate)))
    return result


def test_the_lists_and_figures_are_those_of_vllm() -> None:
    said = written(RECORDS)
    assert (said["completed"], said["failed"], said["num_prompts"]) == (1, 1, 2)
    assert said["ttfts"] == [0.1, 0.0] and said["latencies"] == [0.4, 0.0] and said["itls"] == [[0.1, 0.2], []]
    assert said["start_times"] == [0.005, 0.005] and said["errors"] == ["", "http: busy"]
    assert said["input_lens"] == [12, 12] and said["output_lens"] == [3, 0]
    assert (said["model_id"], said["request_rate"], said["max_concurrency"]) == ("m", "inf", 2)
    assert said["mean_tpot_ms"] == pytest.approx(150) and said["p99_ttft_ms"] == pytest.approx(100)
    assert written(RECORDS, 4.0)["request_rate"] == 4.0


def test_it_has_the_keys_of_the_tool_itself() -> None:
    own = set(json.loads(unpacked(FILES["vllm"])))
    made = set(written(RECORDS))
    assert made <= own
    assert own - made == {"queue_times", "rtfx", "max_output_tokens_per_s", "max_concurrent_requests"}


def test_what_is_written_reads_back_as_the_same_requests(tmp_path: Path) -> None:
    (tmp_path / "v.json").write_text(json.dumps(written(RECORDS)))
    run = open_run(tmp_path / "v.json")
    ok, failed = run.records()
    assert ok.first_token_ns is not None and ok.sent_ns is not None
    assert ok.first_token_ns - ok.sent_ns == 100 * MS and ok.events is not None
    assert ok.events.gap_us == [100_000, 100_000, 200_000]
    assert failed.outcome == "error"
    again, first = counted("vllm", columns(run.records()), 1), counted("vllm", columns(RECORDS), 1)
    assert again.figures == first.figures


def test_a_log_without_starts_stays_without() -> None:
    assert "start_times" not in written([replace(OK, flags=("untimed",))])
