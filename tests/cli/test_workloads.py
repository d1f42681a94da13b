"""Workload definitions, from the flags to what a server sees and what the report says."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from loadgen.client.dialects.base import RequestOptions
from loadgen.client.exchange import Timeouts
from loadgen.client.transport import Access
from loadgen.client.workers import configuration
from loadgen.simulator.scripted import Action, Request, ThreadedServer, json_reply
from loadgen.workload.definition import parse_workload
from loadgen.workload.passed import passed_workload as received
from loadgen.workload.plain import defined_workload
from tests.cli.command import (
    Call,
    client_bound,
    ended_by,
    folder_in,
    generations,
    manifest_of,
    records_of,
    serve,
    tries,
    went_well,
)

FILE = """
name = "mine"
[lengths]
input = { kind = "lognormal", mu = 4.2, sigma = 0.5, min = 30, max = 400 }
output = { kind = "uniform", low = 2, high = 6 }
"""
LOAD = ("-c", "2", "--warmup", "0", "-o", "out", "--no-scrape")


@pytest.fixture(autouse=True)
def mine(elsewhere: Path) -> None:
    (elsewhere / "mine.toml").write_text(FILE)


def small_context(request: Request) -> list[Action] | None:
    """The server of `serve`, which says that its model takes 200 tokens."""
    if request.path == "/v1/models":
        return json_reply({"object": "list", "data": [{"id": "m", "max_model_len": 200}]})
    return serve()(request)


def sampled(call: Call, *args: object) -> list[tuple[int, int]]:
    said = call("workloads", "sample", "mine.toml", "-n", 400, *args)
    assert said.code == 0
    return [(int(row["input_tokens"]), int(row["output_tokens"])) for row in csv.DictReader(io.StringIO(said.out))]


def test_a_worker_makes_its_part_of_the_stream_from_what_goes_through_the_pipe() -> None:
    more = '[sharing]\nsystem_tokens = 12\n[sessions]\nturns = {kind="fixed", value=1}\n'
    text = FILE + more + 'message = {kind="fixed", value=9}\n'
    workload = defined_workload(parse_workload(text, "f"))
    pipe = configuration(
        ["http://x"],
        "chat",
        access=Access(),
        options=RequestOptions("m"),
        timeouts=Timeouts(),
        workload=workload,
        calibration=None,
        seed=4,
        run="n",
    )
    again = received(json.loads(json.dumps(pipe["workload"])), None)
    whole = list(islice(workload.stream(4, "n"), 100))
    parts = [list(islice(again.stream(4, "n", worker=w, workers=3), 40)) for w in range(3)]
    assert [parts[k % 3][k // 3].text for k in range(100)] == [prompt.text for prompt in whole]
    assert [parts[k % 3][k // 3].output_tokens for k in range(100)] == [prompt.output_tokens for prompt in whole]
    assert again.sharing == workload.sharing and again.sessions == workload.sessions


@pytest.mark.parametrize("workers", [1, 2])
def test_the_server_gets_the_lengths_of_the_seed(call: Call, workers: int) -> None:
    load = ("--seed", 5, "--requests", 60, "--workers", workers, *LOAD)
    for output in tries(Path("out")):
        with ThreadedServer(serve(30.0)) as server:
            said = call("run", server.url, "-w", "mine.toml", *load, "-o", output)
            seen = generations(list(server.requests))
        folder = folder_in(output)
        if workers == 1 or ended_by(folder) != "budget time":
            break  # else its processes did not start in the time announced
    assert went_well(said, folder), said.err
    asked = sampled(call, "--seed", 5)
    records = [r for r in records_of(folder) if r["phase"] != "preflight"]
    pairs = Counter((r["input_tokens"]["server"], r["output_tokens"]["count"]) for r in records)
    # Each worker is at its own place of the stream: what was sent is of the seed's, none of it twice.
    assert not pairs - Counter(asked[: 2 * len(records) + 4])
    texts = [str(r.json["messages"][0]["content"]) for r in seen]
    assert len(set(texts)) == len(texts)
    manifest = manifest_of(folder)["workload"]
    assert (manifest["name"], manifest["kind"]) == ("mine", "definition")
    assert manifest["hash"] == json.loads(call("workloads", "show", "mine.toml", "--json").out)["hash"]
    assert "-mine" in folder.name
    assert "mine · in 78 (p50 69, p99 " in said.err
    details = call("report", folder, "--details").out
    assert f"asked lengths   in {sum(a for a, _ in asked[:60]) / 60:,.0f}" in details or workers > 1
    assert " of 78 (69, " in details


def test_levels_of_a_sweep_get_the_same_lengths_with_other_text(call: Call) -> None:
    flags = ("--levels", "1,2", "--requests", 8, "--seed", 3, "--warmup", 0, "--no-scrape")
    for output in tries(Path("out")):
        with ThreadedServer(serve(1.0)) as server:
            call("sweep", server.url, "-w", "mine.toml", *flags, "-o", output)
            texts = [str(r.json["messages"][0]["content"]) for r in generations(list(server.requests))]
        folder = folder_in(output)
        assert len(set(texts)) == len(texts)
        if not client_bound(folder):
            break  # else the second level was not tried
    records = [r for r in records_of(folder) if r["step"]]
    first, second = (
        [
            (r["input_tokens"]["asked"], r["output_tokens"]["asked"])
            for r in sorted(records, key=lambda r: r["id"])
            if r["step"] == step
        ]
        for step in (1, 2)
    )
    assert len(first) >= 8 and first[:8] == second[:8]


def test_own_objectives_apply_unless_others_are_given(call: Call) -> None:
    own = Path("mine.toml").read_text() + '[slo]\nobjectives = ["e2e_p50=30s"]\n'
    Path("mine.toml").write_text(own)
    with ThreadedServer(serve()) as server:
        load = ("-w", "mine.toml", "--requests", 12, *LOAD[:-3])
        said = call("run", server.url, *load, "-o", "one", "--no-scrape")
        other = call("run", server.url, *load, "--slo", "mlperf:llama2-70b", "-o", "two", "--no-scrape")
    assert "objectives of mine, as no --slo is given: e2e_p50=30s" in said.err + said.out
    assert manifest_of(folder_in(Path("one")))["slo"]["objectives"] == ["e2e_p50=30s"]
    assert "objectives of mine" not in other.err + other.out
    assert manifest_of(folder_in(Path("two")))["slo"]["objectives"] == ["ttft_p99=2000ms", "tpot_p99=200ms"]


def test_what_does_not_fit_the_context_is_said_before_any_load(call: Call) -> None:
    with ThreadedServer(small_context) as server:
        said = call("run", server.url, "-w", "mine.toml", "--requests", 6, *LOAD)
        assert said.code == 3
        assert (
            "% of the requests of mine, which have up to 406 tokens, do not fit the model's context of 200" in said.err
        )
        assert "add --max-total-len 200" in said.err
        assert not generations(list(server.requests))
        load = ("--requests", 200, "-c", 8, "--warmup", 0, "-o", "two", "--no-scrape", "--max-total-len", 200)
        again = call("run", server.url, "-w", "mine.toml", "--seed", 1, *load)
    folder = folder_in(Path("two"))
    assert went_well(again, folder), again.err
    totals = [r["input_tokens"]["server"] + r["output_tokens"]["asked"] for r in records_of(folder) if r["step"]]
    assert 150 < max(totals) <= 200
    assert "the limits of mine refuse 6" in again.err + again.out
    assert manifest_of(folder)["workload"]["max_total_len"] == 200


def test_arrivals_of_the_workload_are_used_with_a_rate(call: Call) -> None:
    Path("mine.toml").write_text(FILE + '[arrivals]\nprocess = "gamma:0.5"\n')
    with ThreadedServer(serve()) as server:
        flags = ("--rate", 200, "--requests", 12, "--warmup", 0, "--no-scrape")
        call("run", server.url, "-w", "mine.toml", *flags, "-o", "one")
        call("run", server.url, "-w", "mine.toml", *flags, "-o", "two", "--arrivals", "constant")
    assert [manifest_of(folder_in(Path(out)))["plan"]["arrivals"] for out in ("one", "two")] == [
        "gamma:0.5",
        "constant",
    ]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("-w", "mine.toml", "--input-len", "5"), "--workload and --input-len exclude each other"),
        (("-w", "mine.toml", "--output-len", "5"), "--workload and --output-len exclude each other"),
        (("-w", "mine.toml", "--prompts", "p"), "--workload and --prompts exclude each other"),
        (("-w", "nothing"), "there is no workload nothing"),
        (("-w", "mine.toml", "--max-total-len", "9"), "mine with --max-total-len 9: "),
        (("--max-total-len", "99"), "--max-total-len does nothing without --workload"),
        (("--slo", "mlperf:llama2"), "There are no objectives named 'mlperf:llama2'"),
    ],
)
def test_what_cannot_be_meant_is_said(call: Call, flags: tuple[str, ...], expected: str) -> None:
    for verb in ("run", "sweep"):
        said = call(verb, "http://127.0.0.1:9", *flags)
        assert said.code == 2 and expected in said.err and "→" in said.err


def test_list_and_show(call: Call) -> None:
    said = call("workloads", "list")
    assert said.code == 0 and "sharegpt-first-turn" in said.out and "CC-BY-4.0 · Azure/AzurePublicDataset" in said.out
    listed = json.loads(call("workloads", "list", "--json").out)
    assert {"name", "hash", "licence", "origin", "asked"} <= set(listed[0])
    shown = call("workloads", "show", "ragpulse").out
    assert "attribution   RAGPulse" in shown and "known faults" in shown and "1,028 tokens shared by all" in shown
    own = json.loads(call("workloads", "show", "mine.toml", "--json").out)
    assert own["quantiles"]["output"] == {
        "mean": 4.0,
        "p1": 2,
        "p5": 2,
        "p25": 3,
        "p50": 4,
        "p75": 5,
        "p90": 6,
        "p95": 6,
        "p99": 6,
    }


def test_sample_gives_the_same_rows_in_either_form(call: Call) -> None:
    rows = sampled(call, "--seed", 9)
    said = call("workloads", "sample", "mine.toml", "-n", 400, "--seed", 9, "--json")
    lines = [json.loads(line) for line in said.out.splitlines()]
    assert [(line["input_tokens"], line["output_tokens"]) for line in lines] == rows
    assert [line["number"] for line in lines] == list(range(400))
    assert rows != sampled(call) and rows[:400] == sampled(call, "--seed", 9)


def test_check_answers_by_its_exit_code(call: Call) -> None:
    good = call("workloads", "check", "mine.toml", "-n", 20_000)
    assert good.code == 0 and "the draws are what is asked for" in good.out
    reference = (
        "[reference]\ninput = { mean = 99, p50 = 69, p90 = 128, p99 = 214 }\noutput = {mean=4, p50=4, p90=6, p99=6}\n"
    )
    Path("off.toml").write_text(FILE + reference)
    bad = call("workloads", "check", "off.toml", "-n", 20_000)
    assert bad.code == 1 and "finding   input mean: 7" in bad.out
    found = json.loads(call("workloads", "check", "off.toml", "-n", 20_000, "--json").out)
    assert found["sides"]["input"]["asked_by"] == "reference" and len(found["findings"]) == 2
    assert call("workloads", "check", "nothing").code == 2


def test_check_of_a_trace_says_what_is_in_it(call: Call) -> None:
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    rows += [f"2023-11-16 18:17:0{i}.0000000,{100 + i},{10 + i}" for i in range(5)]
    Path("azure.csv").write_text("\n".join(rows) + "\n")
    said = call("workloads", "check", "azure.csv")
    assert said.code == 0 and "requests  5 in 4.0 s" in said.out
    assert json.loads(call("workloads", "check", "azure.csv", "--json").out)["requests"] == 5
