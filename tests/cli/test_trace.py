"""`loadgen run --trace` and `loadgen replay`: from a recorded trace to the report, on a real server."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loadgen.simulator.scripted import ThreadedServer
from tests.cli.command import Call, folder_in, generations, manifest_of, records_of, serve, went_well
from tests.thorough import variants

AT_MS = [0, 40, 40, 90, 200, 210, 450, 700]
LENGTHS = [(20, 2), (33, 3), (40, 1), (25, 2), (60, 4), (21, 1), (22, 2), (90, 3)]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = [f"{at},{i},{o}" for at, (i, o) in zip(AT_MS, LENGTHS, strict=True)]
    path.write_text("\n".join(["at,in,out", *reversed(rows)]) + "\n")
    return path


MAP = ("--map", "at=at,input=in,output=out,unit=ms")


def load(folder: Path) -> list[dict[str, Any]]:
    return sorted((r for r in records_of(folder) if r["phase"] != "preflight"), key=lambda r: r["scheduled_ns"])


def offsets_ms(records: list[dict[str, Any]]) -> list[float]:
    return [round((r["scheduled_ns"] - records[0]["scheduled_ns"]) / 1e6, 3) for r in records]


def lengths(records: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(r["input_tokens"]["asked"], r["output_tokens"]["asked"]) for r in records]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_trace_is_sent_at_its_times_with_its_lengths_once(
    call: Call, trace: Path, tmp_path: Path, workers: int
) -> None:
    with ThreadedServer(serve(5)) as server:
        said = call(
            "run", server.url, "--trace", trace, *MAP, "--workers", workers, "--time-scale", 2, "-o", tmp_path / "r",
            "--json",
        )  # fmt: skip
    folder = folder_in(tmp_path / "r")
    assert went_well(said, folder), said.err
    records = load(folder)
    assert offsets_ms(records) == [at / 2 for at in AT_MS]
    assert sorted(lengths(records)) == sorted(LENGTHS) and lengths(records)[0] == LENGTHS[0]
    assert {r["phase"] for r in records} == {"measured"}
    step = json.loads(said.out)["steps"][0]
    assert step["sent"] == len(AT_MS) and step["request_rate"] == pytest.approx(20.0)
    manifest = manifest_of(folder)
    assert manifest["plan"]["arrivals"] == "trace"
    assert manifest["workload"]["trace"]["time_scale"] == 2 and manifest["workload"]["trace"]["requests"] == 8
    assert manifest["budgets"]["announced"]["requests"] == 8


def test_a_part_of_a_trace_is_sent(call: Call, trace: Path, tmp_path: Path) -> None:
    with ThreadedServer(serve(5)) as server:
        said = call("run", server.url, "--trace", trace, *MAP, "--duration", "0.2s", "-o", tmp_path / "r")
    assert went_well(said, folder_in(tmp_path / "r")), said.err
    assert offsets_ms(load(folder_in(tmp_path / "r"))) == [0, 40, 40, 90]


def test_a_trace_without_times_is_sent_in_its_order_at_a_rate_or_in_flight(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n" + "".join(f"{i},{o}\n" for i, o in LENGTHS[:3]))
    with ThreadedServer(serve(5)) as server:
        said = call("run", server.url, "--trace", path, "-o", tmp_path / "r")
        assert said.code == 2 and "has no times" in said.err
        said = call("run", server.url, "--trace", path, "-c", 1, "--requests", 5, "-o", tmp_path / "c")
        assert went_well(said, folder_in(tmp_path / "c")), said.err
        said = call("run", server.url, "--trace", path, "--rate", 50, "--requests", 5, "-o", tmp_path / "o")
        assert went_well(said, folder_in(tmp_path / "o")), said.err
    for name in ("c", "o"):
        found = lengths(load(folder_in(tmp_path / name)))
        assert found[:7] == (LENGTHS[:3] * 3)[: len(found[:7])]


def test_a_conversation_file_is_sent_as_its_text(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "share.json"
    said = [{"from": "human", "value": "How are you?"}, {"from": "gpt", "value": "Fine, and you?"}]
    path.write_text(json.dumps([{"id": "a", "conversations": said}]))
    with ThreadedServer(serve(5)) as server:
        done = call("run", server.url, "--trace", path, "-c", 1, "--requests", 2, "-o", tmp_path / "r", "--quiet")
        asked = generations(server.requests)
    assert went_well(done, folder_in(tmp_path / "r")), done.err
    assert "How are you?" in json.dumps(json.loads(asked[-1].body)["messages"])
    assert "estimated at 4 characters" in done.out


def test_a_conversation_of_texts_holds_what_was_said(call: Call, tmp_path: Path) -> None:
    turns = [{"text": "one", "timestamp": 0}, {"text": "two", "delay": 10}, {"text": "three", "delay": 5}]
    path = tmp_path / "a.jsonl"
    rows = [{"session_id": "s", "turns": turns}, {"session_id": "t", "turns": turns[:1]}]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    share = tmp_path / "share.json"
    parts = [(who, text) for text in ("one", "two", "three") for who in ("human", "gpt")]
    said = [{"from": who, "value": text} for who, text in parts]
    share.write_text(json.dumps([{"id": "s", "conversations": said}]))
    with ThreadedServer(serve(5)) as server:
        for args in (
            ("--trace", path, "--output-len", 2),
            ("--trace", share, "-c", 1, "--requests", 3, "--warmup", 0),
        ):
            before = len(server.requests)
            done = call("run", server.url, *args, "-o", tmp_path / str(len(args)), "--quiet")
            folder = folder_in(tmp_path / str(len(args)))
            assert went_well(done, folder), done.err
            sent = [json.loads(one.body)["messages"] for one in generations(server.requests[before:])]
            last = next(m for m in sent if m[-1]["content"] == "three")
            assert [m["role"] for m in last] == ["user", "assistant", "user", "assistant", "user"]
            assert [m["content"] for m in last[::2]] == ["one", "two", "three"] and all(m["content"] for m in last)
            records = [r for r in records_of(folder) if r["phase"] != "preflight" and r.get("session") == 0]
            assert [r["turn"] for r in sorted(records, key=lambda r: r["sent_ns"])][:3] == [1, 2, 3]
            assert "what was said before" in done.out


def test_a_run_is_replayed_at_its_times_and_said_to_be(call: Call, trace: Path, tmp_path: Path) -> None:
    with ThreadedServer(serve(5)) as server:
        first = call("run", server.url, "--trace", trace, *MAP, "-o", tmp_path / "a")
        run = folder_in(tmp_path / "a")
        assert went_well(first, run), first.err
        again = call("replay", run, server.url, "-o", tmp_path / "b")
    folder = folder_in(tmp_path / "b")
    assert went_well(again, folder), again.err
    assert offsets_ms(load(folder)) == AT_MS
    assert sorted(lengths(load(folder))) == sorted(LENGTHS)
    told = manifest_of(folder)["workload"]["trace"]["replay_of"]
    assert told["name"] == run.name and len(told["requests_sha256"]) == 64
    assert run.name in again.out


ALIKE: list[tuple[object, ...]] = [
    ("--turns", "2-3", "--think-time", 0.03),
    ("--turns", 2, "--history", "made"),
    ("--shared-prefix-len", 8, "--prefix-groups", 2),
    ("--turns", 2, "--shared-prefix-len", 8),
]


@pytest.mark.parametrize("same", variants(("--workers", 2), (), ("--same-text",), usual=2), ids=str)
@pytest.mark.parametrize("flags", ALIKE, ids=str)
def test_what_prompts_share_and_what_was_said_before_is_sent_again(
    call: Call, tmp_path: Path, flags: tuple[object, ...], same: tuple[object, ...]
) -> None:
    """Each as long as in the run, with as much in common: of the same text only where that is asked for."""
    bodies: list[list[Any]] = []
    sent: list[list[dict[str, Any]]] = []
    shape = ("--input-len", "20-40", "--output-len", "1-3", "-c", 2, "--requests", 6)
    with ThreadedServer(serve(5)) as server:
        for where in "ab":
            again = ("replay", *tmp_path.glob("a/*"), server.url, *same)
            said = call(*(("run", server.url, *flags, *shape) if where == "a" else again), "-o", tmp_path / where)
            assert went_well(said, folder_in(tmp_path / where)), said.err
            sent.append(load(folder_in(tmp_path / where)))
            last = generations(server.requests)[-len(sent[-1]) :]
            bodies.append([json.loads(one.body)["messages"] for one in last])
    assert "shared is not sent again" not in said.out
    first, second = (sorted(map(_told, records), key=str) for records in sent)
    assert first == second and len(first) >= 6
    assert sorted(map(len, bodies[0])) == sorted(map(len, bodies[1]))
    texts = [Counter(json.dumps(messages) for messages in some) for some in bodies]
    assert texts[0] == texts[1] if same == ("--same-text",) else not texts[0].keys() & texts[1].keys()


def _told(record: dict[str, Any]) -> tuple[Any, ...]:
    inputs, outputs = record["input_tokens"], record["output_tokens"]
    return record.get("turn"), record.get("shared"), inputs["asked"], inputs["server"], outputs["asked"]


def _blocks(path: Path, n: int = 9) -> Path:
    """A trace of prompts of three blocks, of which the first is one of two."""
    lines = [
        json.dumps({"timestamp": 40 * i, "input_length": 24, "output_length": 2, "hash_ids": [i % 2, 10 + i, 50 + i]})
        for i in range(n)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("again", [1, 2], ids=["a run", "a replay of it"])
@pytest.mark.parametrize("kept", [True, False], ids=["trace kept", "trace gone"])
def test_what_a_trace_s_prompts_share_is_sent_again_while_the_trace_is_there(
    call: Call, tmp_path: Path, kept: bool, again: int
) -> None:
    trace = _blocks(tmp_path / "trace.jsonl")
    how = ("--trace", trace, "--map", "block=8", "--requests", 7, "--time-scale", 2)
    with ThreadedServer(serve(5)) as server:
        said = call("run", server.url, *how, "-o", tmp_path / "0", "--quiet")
        assert went_well(said, folder_in(tmp_path / "0")), said.err
        for turn in range(1, again + 1):
            if turn == again and not kept:
                trace.unlink()
            run = folder_in(tmp_path / str(turn - 1))
            said = call("replay", run, server.url, "-o", tmp_path / str(turn), "--quiet")
            assert went_well(said, folder_in(tmp_path / str(turn))), said.err
        sent = [json.loads(one.body)["messages"][0]["content"] for one in generations(server.requests)]
    assert ("shared is not sent again" in said.out) == (not kept)
    first, last = load(folder_in(tmp_path / "0")), load(folder_in(tmp_path / str(again)))
    assert len(first) == len(last) == 7
    assert offsets_ms(first) == offsets_ms(last) and lengths(first) == lengths(last)
    heads = [tuple(text.split()[:8]) for text in sent[-7:]]
    assert len(set(heads)) == (2 if kept else 7)
    assert ([r.get("shared") for r in first] == [r.get("shared") for r in last]) == kept


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (None, "shared is not sent again"),
        ({}, "does not say how its text was made"),
        ({"sessions": {"turns": 3}}, "does not say how its text was made"),
        ({"sharing": {"groups": -1}}, "does not say how its text was made"),
    ],
)
def test_a_run_whose_manifest_does_not_tell_how_its_text_was_made(
    call: Call, tmp_path: Path, made: object, says: str
) -> None:
    with ThreadedServer(serve(5)) as server:
        call("run", server.url, "--turns", 2, "-c", 1, "--requests", 4, "-o", tmp_path / "a", "--quiet")
        run = folder_in(tmp_path / "a")
        path = run / "manifest.json"
        manifest = json.loads(path.read_text())
        manifest["workload"]["made"] = made
        path.write_text(json.dumps(manifest))
        again = call("replay", run, server.url, "-o", tmp_path / "b", "--quiet")
        sent = [json.loads(one.body)["messages"] for one in generations(server.requests)[-4:]]
    assert says in again.out + again.err
    if made is None:
        assert all(len(messages) == 1 for messages in sent)
        turns = [[r.get("turn") for r in load(one)] for one in (folder_in(tmp_path / "b"), run)]
        # A turn waits for the one before it; where that is slow, the next conversation overtakes it.
        assert sorted(turns[0]) == sorted(turns[1]) and {*turns[0]} == {1, 2}


def test_the_text_of_a_run_is_sent_again_where_asked_and_not_otherwise(call: Call, tmp_path: Path) -> None:
    texts: list[set[str]] = []
    with ThreadedServer(serve(5)) as server:
        for where, args in (
            ("a", ("run", server.url, "-c", 2, "--requests", 6, "--input-len", "20-40", "--output-len", "1-3")),
            ("b", ("replay", None, server.url, "--same-text")),
            ("c", ("replay", None, server.url)),
        ):
            before = len(server.requests)
            args = tuple(folder_in(tmp_path / "a") if one is None else one for one in args)
            said = call(*args, "-o", tmp_path / where, "--quiet")
            assert went_well(said, folder_in(tmp_path / where)), said.err
            n = len(load(folder_in(tmp_path / where)))
            texts.append({one.body.decode() for one in generations(server.requests[before:])[-n:]})
        assert texts[0] == texts[1] and not texts[0] & texts[2]
    sent = [load(folder_in(tmp_path / where)) for where in "abc"]
    assert len(sent[0]) >= 6 and [len(one) for one in sent] == [len(sent[0])] * 3
    assert sorted(lengths(sent[0])) == sorted(lengths(sent[1])) == sorted(lengths(sent[2]))


def test_a_run_of_given_prompts_needs_their_file(call: Call, tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "one", "output_len": 2}\n{"prompt": "two", "output_len": 1}\n')
    with ThreadedServer(serve(5)) as server:
        said = call("run", server.url, "--prompts", prompts, "-c", 1, "--requests", 3, "-o", tmp_path / "a")
        run = folder_in(tmp_path / "a")
        assert went_well(said, run), said.err
        said = call("replay", run, server.url, "-o", tmp_path / "b")
        assert said.code == 2 and "--prompts" in said.err
        said = call("replay", run, server.url, "--prompts", prompts, "-o", tmp_path / "b", "--quiet")
        assert went_well(said, folder_in(tmp_path / "b")), said.err
        last = generations(server.requests)[-1].body.decode()
        assert '"one"' in last or '"two"' in last
        prompts.write_text('{"prompt": "other"}\n')
        said = call("replay", run, server.url, "--prompts", prompts, "-o", tmp_path / "c")
        assert said.code == 2 and "its content differs" in said.err


def test_rates_that_change_are_measured_from_their_first_to_their_last(call: Call, tmp_path: Path) -> None:
    with ThreadedServer(serve(2)) as server:
        said = call(
            "run", server.url, "--arrivals", "stages:20@0.5s,60@0.5s/constant", "--input-len", 20, "--output-len", 1,
            "-o", tmp_path,
        )  # fmt: skip
    folder = folder_in(tmp_path)
    assert went_well(said, folder), said.err
    at = offsets_ms(load(folder))
    assert at[:10] == [50.0 * i for i in range(10)] and at[10:13] == pytest.approx([500, 516.667, 533.333], abs=0.01)
    assert manifest_of(folder)["plan"]["rate_req_s"] == 40.0
    assert 39 <= sum(r["phase"] == "measured" for r in load(folder)) <= 41


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--time-scale", "2"), "--time-scale does nothing without --trace"),
        (("--as-recorded",), "--as-recorded does nothing without --trace"),
        (("--trace", "T", "--input-len", "5"), "--trace and --input-len exclude each other"),
        (("--trace", "T", "--prompts", "x"), "--trace and --prompts exclude each other"),
        (("--trace", "T", *MAP, "--rate", "5", "--time-scale", "2"), "--rate says when"),
        (("--trace", "T", *MAP, "--arrivals", "poisson"), "--trace says when"),
        (("--trace", "T", *MAP, "--warmup", "3"), "--warmup would take"),
        (("--trace", "T", *MAP, "--time-scale", "1e9"), "out of range"),
        (("--trace", "T", "--output-len", "1-5", *MAP), "which a trace cannot take"),
        (("--trace", "T", "--map", "nonsense"), "maps nothing known"),
        (("--trace", "T"), "no known trace's header"),
        (("--trace", "T", "--map", "at=at,input=in,unit=ms"), "--output-len N"),
        (("--trace", "/nowhere"), "No such file"),
        (("--arrivals", "ramp:1-5:1s", "--rate", "3"), "says its own rates"),
        (("--arrivals", "ramp:1-0:1s"), "ends at no rate"),
    ],
)
def test_what_cannot_be_meant_is_said(call: Call, trace: Path, flags: tuple[str, ...], says: str) -> None:
    flags = tuple(str(trace) if flag == "T" else flag for flag in flags)
    said = call("run", "http://127.0.0.1:9", *flags)
    assert said.code == 2 and says in said.err, said.err
