"""Runs of whole bodies, batches and mixed models, from the flags to the report."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loadgen.simulator.scripted import Request, ThreadedServer, error_reply, json_reply
from loadgen.workload.files import HEAD_BYTES
from tests.cli.command import (
    Call,
    answer,
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

SHAPE = ("--input-len", "32", "--output-len", "4")
LOAD = ("-c", "2", "--requests", "12", "--warmup", "0", "-o", "out")


pytestmark = pytest.mark.usefixtures("elsewhere")


def adapters(request: Request) -> Any:
    """A server of one model and an adapter on it; any other is unknown."""
    if request.method == "GET":
        listed = [{"id": "base"}, {"id": "lora", "parent": "base"}]
        return json_reply({"object": "list", "data": listed}) if request.path == "/v1/models" else None
    if request.json["model"] not in ("base", "lora"):
        return error_reply(404, f"The model `{request.json['model']}` does not exist.")
    return answer(request, 2.0)


def models(folder: Path, *phases: str) -> list[str]:
    found = [r for r in records_of(folder) if r["phase"] in (phases or ("measured",))]
    return [r["model"] for r in sorted(found, key=lambda r: r["id"])]


def given_up(folder: Path) -> bool:
    """Was the machine so busy that a worker was not heard for too long? Then the step is void, as it should be."""
    return "was silent" in ended_by(folder)


def write_batch(path: Path, n: int, endpoint: str = "/v1/completions") -> list[str]:
    bodies = [f'{{"model":"base","prompt":"p {i}","max_tokens":{3 + i % 3},"seed":{2**64 + i}}}' for i in range(n)]
    line = '{{"custom_id":"r-{}","method":"POST","url":"{}","body":{}}}\n'
    path.write_text("".join(line.format(i, endpoint, body) for i, body in enumerate(bodies)))
    return bodies


@pytest.mark.parametrize("workers", [1, 2])
def test_a_batch_is_sent_as_it_is_to_its_endpoint(call: Call, tmp_path: Path, workers: int) -> None:
    bodies = write_batch(tmp_path / "batch.jsonl", 12)
    asked = '"stream":true,"stream_options":{"include_usage":true}'
    for output in tries(tmp_path):
        with ThreadedServer(adapters) as server:
            said = call("run", server.url, "--prompts", "batch.jsonl", *LOAD, "--workers", workers, "-o", output)
        folder = folder_in(output)
        assert went_well(said, folder), said.err
        assert {r.path for r in generations(server.requests)} == {"/v1/completions"}
        sent = {r.body.decode() for r in generations(server.requests)}
        assert sent <= {f"{body[:-1]},{asked}}}" for body in bodies}
        if workers == 1 or not given_up(folder):
            break
    assert sent == {f"{body[:-1]},{asked}}}" for body in bodies}
    records = [r for r in records_of(folder) if r["phase"] == "measured"]
    assert Counter(r["source_id"] for r in records) == {f"r-{i}": 1 for i in range(12)}
    assert {r["output_tokens"]["asked"] for r in records} == {3, 4, 5}
    assert not [r for r in records if "short_output" in r["flags"]]
    exported = list(csv.DictReader(io.StringIO(call("export", folder, "--format", "csv").out)))
    assert list(exported[0])[:6] == [
        *("request_id", "start_ts", "first_token_ts", "end_ts", "input_tokens", "output_tokens")
    ]
    assert {row["source_id"] for row in exported} == {f"r-{i}" for i in range(12)}
    assert {(row["model"], row["peer"]) for row in exported} == {("base", server.url.removeprefix("http://"))}


def test_mixed_models_are_measured_each_by_itself(call: Call, tmp_path: Path) -> None:
    mix = ("--model", "base=0.6", "--model", "lora=0.4", "--seed", "3", *SHAPE, *LOAD)
    drawn = {}
    for workers in (1, 2):
        for output in tries(tmp_path / f"out{workers}"):
            with ThreadedServer(adapters) as server:
                said = call("run", server.url, *mix, "--workers", workers, "-o", output)
            folder = folder_in(output)
            assert went_well(said, folder), said.err
            if workers == 1 or not given_up(folder):
                break
        drawn[workers] = models(folder)
        assert {"base", "lora"} == set(drawn[workers]) == set(models(folder, "preflight"))
        assert models(folder, "preflight").count("lora") == 1
        assert Counter(r.json["model"] for r in generations(server.requests)) == Counter(
            models(folder, "preflight", "measured", "warmup", "filler")
        )
        assert any(
            "lora (adapter on base); lengths and limits learnt on base" in n for n in manifest_of(folder)["notes"]
        )
        assert manifest_of(folder)["workload"]["models"] == {"base": 0.6, "lora": 0.4}
        assert "models base 0.6, lora 0.4" in said.out
    assert drawn[1] == drawn[2]
    [step] = json.loads(call("report", folder, "--json").out)["steps"]
    count = Counter(drawn[2])
    assert {name: (one["sent"], one["completed"], one["failed"]) for name, one in step["by_model"].items()} == {
        name: (n, n, 0) for name, n in count.items()
    }
    shares = [one["output_throughput"] for one in step["by_model"].values()]
    assert sum(shares) == pytest.approx(step["output_throughput"])
    assert all(0 < one["median_ttft_ms"] <= one["p95_ttft_ms"] for one in step["by_model"].values())
    text = call("report", folder).out
    assert "by model" in text
    for name, n in count.items():
        [row] = [line for line in text.splitlines() if line.split()[:1] == [name]]
        assert row.split()[1:3] == [str(n), "0"]


def test_bodies_with_models_of_their_own_are_a_mix_too(call: Call, tmp_path: Path) -> None:
    names = ("base", "lora", "lora")
    bodies = [{"model": name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3} for name in names]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(body) + "\n" for body in bodies))
    with ThreadedServer(adapters) as server:
        said = call("run", server.url, "--prompts", "own.jsonl", *LOAD, "--json")
        folder = folder_in(tmp_path / "out")
        assert went_well(said, folder), said.err
        by_model = json.loads(said.out)["steps"][0]["by_model"]
        assert {name: one["sent"] for name, one in by_model.items()} == {"base": 4, "lora": 8}
        assert models(folder, "preflight") == ["base", "lora"]
        # One that is asked for takes the place of them all.
        said = call("run", server.url, "--prompts", "own.jsonl", *LOAD, "--model", "lora", "-o", "one", "--json")
        assert json.loads(said.out)["steps"][0]["by_model"] == {}
        assert set(models(folder_in(tmp_path / "one"))) == {"lora"}


def test_models_of_a_file_are_tried_up_to_a_number_also_where_none_are_listed(call: Call, tmp_path: Path) -> None:
    bodies = [f'{{"model":"m{i}","prompt":"p","max_tokens":2}}\n' for i in range(20)]
    (tmp_path / "many.jsonl").write_text("".join(bodies))
    with ThreadedServer(lambda request: answer(request) if request.method == "POST" else None) as server:
        said = call("run", server.url, "--prompts", "many.jsonl", *LOAD)
    folder = folder_in(tmp_path / "out")
    assert went_well(said, folder), said.err
    assert {r.path for r in generations(server.requests)} == {"/v1/completions"}  # by the bodies' own keys
    assert models(folder, "preflight") == [f"m{i}" for i in range(16)]
    assert any("4 of the 20 models of the file were not tried" in note for note in manifest_of(folder)["notes"])


MISTAKES: list[tuple[tuple[str, ...], int, str]] = [
    (("--model", "base", "--model", "lara", *SHAPE), 3, "name a model that the server has with --model: base, lora"),
    (("--model", "base=1", "--model", "lora"), 2, "--model lora has no share"),
    (("--model", "a", "--model", "b", "--endpoint", "generate_stream"), 2, "name no model"),
    (("--prompts", "batch.jsonl", "--endpoint", "chat"), 2, "is a batch for the endpoint completions"),
    (("--prompts", "mixed.jsonl"), 2, "line 2 of mixed.jsonl is no prompt: it is for the endpoint chat"),
    (("--endpoint", "generate_stream", "--min-p", "0.1"), 2, "--min-p has no field in the generate_stream"),
]


@pytest.mark.parametrize(("flags", "code", "words"), MISTAKES, ids=[" ".join(flags[:4]) for flags, _, _ in MISTAKES])
def test_what_cannot_be_meant(call: Call, tmp_path: Path, flags: tuple[str, ...], code: int, words: str) -> None:
    write_batch(tmp_path / "batch.jsonl", 1)
    chat = {"custom_id": "c", "url": "/v1/chat/completions", "body": {"messages": [1]}}
    (tmp_path / "mixed.jsonl").write_text((tmp_path / "batch.jsonl").read_text() + json.dumps(chat) + "\n")
    with ThreadedServer(adapters) as server:
        said = call("run", server.url, *flags, *LOAD)
    assert said.code == code, said
    assert words in said.err


@pytest.mark.parametrize("workers", [1, 2])
def test_a_wrong_line_far_down_ends_the_run_in_good_order(call: Call, tmp_path: Path, workers: int) -> None:
    long = json.dumps({"prompt": "a" * (HEAD_BYTES // 3), "output_len": 2})
    (tmp_path / "large.jsonl").write_text(f"{long}\n\n{long}\n{long}\nnull\n")
    for output in tries(tmp_path):
        with ThreadedServer(serve()) as server:
            said = call("run", server.url, "--prompts", "large.jsonl", *LOAD, "--workers", workers, "-o", output)
        folder = folder_in(output)
        assert said.code == 4, said
        if workers == 1 or not given_up(folder):
            break
    assert "line 5 of" in said.out
    assert "is no prompt: it is null" in said.out
    assert {r["outcome"] for r in records_of(folder)} == {"ok"}


def test_sampling_flags_are_sent_and_kept(call: Call, tmp_path: Path) -> None:
    flags = ("--top-k", "5", "--stop", "a", "--stop", "b", "--n", "2", "--logprobs", "3", "--sampling-seed", "0")
    said = call("run", "http://x/v1/completions", *SHAPE, *flags, "--model", "m", "--dry-run")
    body = json.loads(said.out)["body"]
    expected = {"top_k": 5, "stop": ["a", "b"], "n": 2, "logprobs": 3, "seed": 0}
    assert {name: body[name] for name in expected} == expected
    with ThreadedServer(serve()) as server:
        said = call("run", server.url, *SHAPE, *LOAD, "--top-k", "5", "--stop", "x")
    kept = manifest_of(folder_in(tmp_path / "out"))["request"]
    assert (kept["top_k"], kept["stop"], kept["min_p"]) == (5, ["x"], "server default")
    assert generations(server.requests)[-1].json["top_k"] == 5
    assert client_bound(folder_in(tmp_path / "out")) or said.code == 0
