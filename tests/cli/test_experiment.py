"""`loadgen experiment`, `plan --run` and `simulate --like` as they are typed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from loadgen.cli.arms import came_back
from loadgen.experiments.library import names
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.engine.virtual import Closed, Mix, simulate
from loadgen.simulator.scripted import ThreadedServer
from tests.cli.command import Call, generations, manifest_of, serve, tries
from tests.experiments.test_definition import SMALL
from tests.thorough import THOROUGH

ROOT = Path(__file__).parents[2]
RUN = ROOT / "results" / "example-vllm"
SHORT = ("--requests", "16", "--repeats", "5", "--seed", "3")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The six columns of a simulated engine at three loads, with step and load."""
    path = tmp_path_factory.mktemp("log") / "log.csv"
    lines = ["request_id,start_ts,first_token_ts,end_ts,input_tokens,output_tokens,step,concurrency,phase,outcome"]
    start = 0.0
    for step, load in enumerate((1, 4, 16), 1):
        asked = Mix(200, 8, spread=0.5).draw(60 + 2 * load, seed=step)
        run = simulate(EngineConfig(max_batch=32, seed=step), asked, Closed(load))
        for i in range(len(asked.prompt)):
            phase = "warmup" if i < load else "measured" if i < 60 + load else "filler"
            stamps = ",".join(f"{start + at:.6f}" for at in (run.submitted_s[i], run.first_s[i], run.done_s[i]))
            lines.append(f"r{step}-{i},{stamps},{asked.prompt[i]},{asked.output[i]},{step},{load},{phase},ok")
        start += float(np.max(run.done_s)) + 1
    path.write_text("\n".join(lines) + "\n")
    return path


# --- experiment -----------------------------------------------------------------------------------------------------


def test_all_are_listed(call: Call) -> None:
    said = call("experiment", "--list")
    assert said.code == 0
    assert [line.split()[0] for line in said.out.splitlines()] == names()


def test_the_plan_has_the_flags_of_each_server(call: Call) -> None:
    said = call("experiment", "prefix-cache", "--dry-run")
    assert said.code == 0
    for words in ("--no-enable-prefix-caching", "--disable-radix-cache", "PREFIX_CACHING=0", "by hand", "12 runs of"):
        assert words in said.out
    told = json.loads(call("experiment", "prefix-cache", "--dry-run", "--json", "--repeats", "8").out)
    assert [one["pairs"] for one in told["settings"]] == [8, 8]
    assert told["settings"][0]["a"]["flags"]["vllm"] == "--no-enable-prefix-caching"


def test_a_file_of_ones_own_is_run_and_judged(call: Call, mine: Path) -> None:
    said = call("experiment", mine, *SHORT)
    assert said.code == 0, said
    assert "higher p95 TPOT" in said.out and said.out.count("verdict   as expected") == 2
    assert "mine: the effect" in said.err
    told = json.loads(call("experiment", mine, *SHORT, "--setting", "1", "--json", "--quiet").out)
    (setting,) = told["settings"]
    first = setting["differences"][0]
    assert setting["answer"] == "as expected" and first["found"] and first["method"] == "pairs of runs"
    low, high = first["ratio_interval"]
    assert low < first["ratio"] < high and setting["expected"]["ratio_by_hand"] == pytest.approx(
        first["ratio"], rel=0.1
    )


def test_the_exit_code_is_the_answer(call: Call, mine: Path) -> None:
    mine.write_text(SMALL.replace('direction = "higher"', 'direction = "lower"'))
    said = call("experiment", mine, *SHORT, "--setting", "1")
    assert said.code == 1 and "CONTRARY" in said.out
    mine.write_text(SMALL.replace("step_ms = 24", "step_ms = 12"))
    said = call("experiment", mine, *SHORT, "--setting", "1")
    assert said.code == 4 and "undecided" in said.out


def test_a_picture_is_drawn(call: Call, mine: Path, tmp_path: Path) -> None:
    picture = tmp_path / "mine.svg"
    assert call("experiment", mine, *SHORT, "--setting", "1", "--plot", picture, "--quiet").code == 0
    text = picture.read_text()
    assert text.startswith("<svg") and "p95 TPOT" in text


@pytest.mark.skipif(THOROUGH == 1, reason="ten runs on sockets; check --pairs is tried always, and runs the same way")
def test_two_servers_are_measured_in_turn(call: Call, mine: Path, tmp_path: Path) -> None:
    for output in tries(tmp_path, 2):
        with ThreadedServer(serve(5.0)) as quick, ThreadedServer(serve(30.0)) as slow:
            mine.write_text(SMALL.replace('"tpot_p95", "output_throughput"', '"ttft_p50"'))
            said = call(
                *("experiment", mine, quick.url, slow.url, "--requests", "10", "--repeats", "5", "--no-scrape"),
                *("--seed", "7", "--json", "-o", output, "--setting", "1"),
            )
            assert min(len(generations(server.requests)) for server in (quick, slow)) >= 50
        runs = sorted((manifest_of(folder) for folder in output.iterdir()), key=lambda run: run["started_epoch_ns"])
        assert "".join("A" if quick.url in run["target"]["url"] else "B" for run in runs) == "ABBAABBAAB"
        assert {run["describe"]["arm"] for run in runs} == {"12 ms", "24 ms"}
        assert {run["workload"]["seed"] for run in runs} == {7, 8, 9, 10, 11}
        (setting,) = json.loads(said.out)["settings"]
        if not setting["runs_shaped_by_the_client"]:
            break
        assert said.code == 4 and setting["answer"] == "undecided"
    assert said.code == 0 and setting["answer"] == "as expected"


@pytest.mark.parametrize(
    ("looks", "count"),
    [
        ("up up down down up", 5),  # gone and back
        ("down up", 2),  # not there at first
        ("up enter", 2),
        ("up down enter", 3),
    ],
)
def test_a_server_that_restarts_is_waited_for(looks: str, count: int) -> None:
    words: Iterator[str] = iter(looks.split())
    seen: list[str] = []

    def pressed(seconds: float) -> bool:
        assert seconds > 0
        seen.append(next(words))
        return seen[-1] == "enter"

    came_back(lambda: seen[-1] == "up", pressed)
    assert len(seen) == count


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "no experiment is named"),
        (("prefix-cash",), "there is no experiment"),
        (("/no/such.toml",), "cannot be read"),
        (("prefix-cache", "http://a", "http://b", "http://c"), "two arms"),
        (("prefix-cache", "--http", "http://a"), "--http is of simulated arms"),
        (("prefix-cache", "--repeats", "2"), "from 5 to 100"),
        (("prefix-cache", "--setting", "3"), "from 1 to 2"),
        (("prefix-cache", "--input-len", "3"), "is for the experiment's file"),
        (("prefix-cache", "--slo", "ttft_p95=1s"), "is for the experiment's file"),
        (("prefix-cache", "-o", "-"), "many runs"),
        (("prefix-cache", "--plot", "x.gif"), "neither .svg nor .png"),
        (("prefix-cache", "http://127.0.0.1:9", "http://127.0.0.1:9", "--wait-ready", "10ms"), "127.0.0.1:9"),
    ],
)
def test_what_cannot_be_meant(call: Call, tmp_path: Path, args: tuple[str, ...], words: str) -> None:
    output = () if "-o" in args else ("-o", tmp_path)
    said = call("experiment", *args, *output)
    assert said.code in (2, 3) and words in said.err and "Traceback" not in said.err


# --- plan --run -----------------------------------------------------------------------------------------------------


def test_a_run_is_held_against_the_ceilings(call: Call, log: Path) -> None:
    asked = ("plan", "--run", log, "--model", "llama-3.1-8b", "--gpu", "h100")
    said = call(*asked, "--rps", "40", "--rps", "400", "--price", "2")
    assert said.code == 0, said
    for words in (
        "KV limit",
        "ran out",
        "for 40 requests/s",
        "for 400 requests/s",
        "per million output tokens",
        "doubling",
    ):
        assert words in said.out
    told = json.loads(call(*asked, "--rps", "40", "--json", "--slo", "tpot_p95=15ms").out)["beside"]
    assert [one["load"] for one in told["levels"]] == [1, 4, 16]
    assert all(0 < one["decode_share"] < 1 for one in told["levels"])
    assert told["levels"][0]["tpot_p50_ms"] == pytest.approx(12.2, rel=0.1)


def test_one_request_is_enough_to_say_something(call: Call, log: Path, tmp_path: Path) -> None:
    one = tmp_path / "one.csv"
    one.write_text("\n".join([*log.read_text().splitlines()[:1], log.read_text().splitlines()[3]]) + "\n")
    said = call("plan", "--run", one, "--model", "llama-3.1-8b", "--gpu", "h100", "--rps", "40", "--price", "1")
    assert said.code == 0 and "KV limit" in said.out
    assert call("simulate", "--like", one).code == 2  # too few to fit to


def test_no_load_that_holds_is_no(call: Call, log: Path) -> None:
    said = call("plan", "--run", log, "--model", "llama-3.1-8b", "--gpu", "h100", "--slo", "tpot_p95=1ms", "--rps", "9")
    assert said.code == 1 and "no load holds" in said.out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--run", "/no/such"), "/no/such"),
        (("--run", "LOG"), "does not tell its model"),
        (("--run", "LOG", "--model", "llama-3.1-8b"), "does not tell its GPU"),
        (("--run", "LOG", "--model", "llama-3.1-8b", "--gpu", "h100", "--input-len", "9"), "is the run's own"),
        (("--rps", "40"), "is of a measured run"),
        (("--run", "FAILED", "--model", "llama-3.1-8b", "--gpu", "h100"), "no request that went well"),
    ],
)
def test_what_plan_cannot_read(call: Call, log: Path, tmp_path: Path, args: tuple[str, ...], words: str) -> None:
    failed = tmp_path / "failed.csv"
    failed.write_text(log.read_text().replace(",ok\n", ",error\n"))
    said = call("plan", *({"LOG": log, "FAILED": failed}.get(arg, arg) for arg in args))
    assert said.code == 2 and words in said.err and "Traceback" not in said.err


# --- simulate --like ------------------------------------------------------------------------------------------------


def test_an_engine_is_fitted_to_a_run(call: Call, log: Path) -> None:
    said = call("simulate", "--like", log, "--levels", "8,32", "--max-batch", "32", "--json")
    assert said.code == 0, said
    told = json.loads(said.out)
    assert told["step"]["step_ms"] == pytest.approx(12, rel=0.1)
    assert [one["concurrency"] for one in told["predicted"]] == [8, 32]
    assert told["largest_error_share"]["output_throughput"] < 0.1
    assert "held out: 4 in flight" in said.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--like", "/no/such"), "/no/such"),
        (("--like", "FAILED"), "no closed-loop load"),
        (("--like", "LOG", "--preset", "h100-llama-3.1-8b"), "an engine of its own"),
        (("--like", "LOG", "--step-ms", "3"), "is what --like fits"),
        (("--like", "LOG", "--truth"), "exclude each other"),
        (("--like", "LOG", "--slo", "ttft_p95=1s"), "goes with --truth only"),
    ],
)
def test_what_cannot_be_fitted(call: Call, log: Path, tmp_path: Path, args: tuple[str, ...], words: str) -> None:
    failed = tmp_path / "failed.csv"
    failed.write_text(log.read_text().replace(",ok\n", ",error\n"))
    said = call("simulate", *({"LOG": log, "FAILED": failed}.get(arg, arg) for arg in args))
    assert said.code == 2 and words in said.err and "Traceback" not in said.err
