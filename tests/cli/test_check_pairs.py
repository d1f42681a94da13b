"""`check --pairs`: two servers measured in turn, on real sockets."""

from __future__ import annotations

import json
from pathlib import Path

from loadgen.simulator.scripted import ThreadedServer
from tests.cli.command import Call, generations, manifest_of, serve, tries


def test_a_slower_server_is_found_by_interleaved_pairs(call: Call, tmp_path: Path) -> None:
    for output in tries(tmp_path):
        with ThreadedServer(serve(5.0)) as quick, ThreadedServer(serve(30.0)) as slow:
            said = call(
                *("check", "--pairs", "5", quick.url, slow.url, "-c", "2", "--requests", "6", "--input-len", "8"),
                *("--output-len", "4", "--max-regression", "20%", "--no-scrape", "--seed", "7", "--json", "-o", output),
            )
            told = json.loads(said.out)
            assert min(len(generations(server.requests)) for server in (quick, slow)) >= 30
        runs = [manifest_of(folder) for folder in sorted(output.iterdir())]
        assert len(runs) == 10
        by_start = sorted(runs, key=lambda run: run["started_epoch_ns"])
        assert "".join("A" if quick.url in run["target"]["url"] else "B" for run in by_start) == "ABBAABBAAB"
        assert [run["workload"]["seed"] for run in by_start] == [7, 7, 8, 8, 9, 9, 10, 10, 11, 11]
        if not told["refused"]:
            break
        assert said.code == 4 and "the client may have shaped" in told["headline"]
    ttft = next(one for one in told["questions"] if one["metric"] == "ttft")
    assert said.code == 1 and ttft["answer"] == "regression" and ttft["method"] == "pairs of runs"
    assert ttft["loss_interval_share"][0] > 0.2


def test_a_server_that_is_not_there_ends_it(call: Call, tmp_path: Path) -> None:
    said = call("check", "--pairs", "5", "http://127.0.0.1:9", "http://127.0.0.1:9", "-o", tmp_path, "--requests", "4")
    assert said.code == 3 and said.out == ""
