"""Budgets are promises: counted at the server, preflight included, and never exceeded."""

from __future__ import annotations

import asyncio
import json
import random
import resource
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from loadgen.simulator.scripted import DONE, FIN, ROLE, Action, C, Request, T, ThreadedServer, U, error_reply
from tests.cli.command import (
    Call,
    answer,
    client_bound,
    each_level_once,
    ended_by,
    folder_in,
    generations,
    manifest_of,
    records_of,
    run,
    serve,
    went_well,
)

SHAPE = ("--input-len", "32", "--output-len", "4")


pytestmark = pytest.mark.usefixtures("elsewhere")


class Meter:
    """A server that counts what it is asked for, as a bill would. `inputs` is its own count of a prompt's tokens."""

    def __init__(
        self, wait_ms: float = 3.0, inputs: Callable[[int], int] = lambda words: words + 8, fails: float = 0.0
    ) -> None:
        self.wait_ms, self.inputs, self.fails = wait_ms, inputs, fails
        self.requests = self.input_tokens = self.output_tokens = 0
        self._random = random.Random(7)

    def __call__(self, request: Request) -> list[Action] | None:
        if request.method == "GET":
            return serve()(request)
        body = request.json
        words = len(" ".join(str(message["content"]) for message in body["messages"]).split())
        count, choices = int(body.get("max_tokens") or 16), int(body.get("n") or 1)
        self.requests += 1
        if self.requests > 4 and self._random.random() < self.fails:
            return error_reply(503, "busy")
        self.input_tokens += self.inputs(words)
        self.output_tokens += count * choices
        text = [C(" x") for _ in range(count)]
        return [T(self.wait_ms), ROLE, *text, FIN("length"), U(self.inputs(words), count * choices), DONE]

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


# --- requests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "concurrency"), [(3, 1), (4, 8), (29, 3), (29, 8)])
def test_no_more_requests_than_allowed(call: Call, tmp_path: Path, concurrency: int, most: int) -> None:
    meter = Meter()
    with ThreadedServer(meter) as server:
        said = call("run", server.url, *SHAPE, "-c", concurrency, "--max-requests", most)
    folder = folder_in(tmp_path / "results")
    assert meter.requests == most == len(records_of(folder))
    assert ended_by(folder) == "budget requests"
    assert client_bound(folder) or manifest_of(folder)["stop"]["reason"] == "budget:requests"
    measured = sum(r["phase"] == "measured" and r["outcome"] == "ok" for r in records_of(folder))
    assert went_well(said, folder, 0 if measured else 4), said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("most", [1, 2])
def test_a_budget_that_does_not_reach_for_the_preflight(call: Call, most: int) -> None:
    meter = Meter()
    with ThreadedServer(meter) as server:
        said = call("run", server.url, *SHAPE, "--max-requests", most)
    assert (said.code, meter.requests) == (2, most)
    assert "does not even allow the preflight" in said.err and "raise --max-requests" in said.err


@pytest.mark.parametrize(
    ("count", "concurrency", "warmup"), [(1, 1, None), (1, 1, 0), (5, 8, None), (5, 8, 3), (50, 7, 0)]
)
def test_exactly_so_many_requests_are_measured(
    call: Call, tmp_path: Path, count: int, concurrency: int, warmup: int | None
) -> None:
    more = () if warmup is None else ("--warmup", warmup)
    with ThreadedServer(serve(3.0)) as server:
        said = call("run", server.url, *SHAPE, "-c", concurrency, "--requests", count, *more)
        got = len(generations(server.requests))
    records = records_of(folder_in(tmp_path / "results"))
    assert went_well(said, folder_in(tmp_path / "results")), said.err
    assert len(records) == got
    phases = [record["phase"] for record in records]
    assert phases.count("measured") == count
    assert all(record["outcome"] == "ok" for record in records if record["phase"] == "measured")
    if warmup == 0:
        assert phases.count("warmup") == 0
    else:
        assert phases.count("warmup") >= (concurrency if warmup is None else warmup)


class Refusing:
    """Refusals, after the preflight, but for two in ten answers, which take long."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, request: Request) -> list[Action] | None:
        if request.method == "GET":
            return serve()(request)
        self.seen += 1
        busy = self.seen > 16 and self.seen % 10 > 1
        return [T(10.0), *error_reply(429, "refused")] if busy else answer(request, 400.0)


@pytest.mark.parametrize(
    ("flags", "ended", "reason"),
    [
        # All that was announced is sent while the last of the sample is waited for.
        (("--requests", 60), "complete", "max_level"),
        (("--max-requests", 60), "budget requests", "budget:requests"),
    ],
    ids=["measured", "the user's"],
)
def test_a_run_that_measured_what_was_asked_is_complete(
    call: Call, tmp_path: Path, flags: tuple[object, ...], ended: str, reason: str
) -> None:
    with ThreadedServer(Refusing()) as server:
        call("run", server.url, *SHAPE, "-c", 4, "--max-error-rate", 1, *flags)
    folder = folder_in(tmp_path / "results")
    assert ended_by(folder) == ended
    assert client_bound(folder) or manifest_of(folder)["stop"]["reason"] == reason


# --- tokens and cost ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "concurrency", "most"),
    [
        (lambda words: words + 8, 8, 4500),
        (lambda words: 2 * words + 60, 1, 3500),
        (lambda words: 2 * words + 60, 8, 4500),
        (lambda words: 700, 8, 4500),
        (lambda words: words * 3 // 2, 1, 3500),
    ],
    ids=["as asked", "two a word, one by one", "two a word", "whatever the text", "half more"],
)
def test_no_more_tokens_than_allowed_by_the_servers_own_count(
    call: Call, tmp_path: Path, inputs: Callable[[int], int], concurrency: int, most: int
) -> None:
    meter = Meter(inputs=inputs)
    with ThreadedServer(meter) as server:
        said = call("run", server.url, *SHAPE, "-c", concurrency, "--max-tokens", most)
    folder = folder_in(tmp_path / "results")
    measured = sum(r["phase"] == "measured" and r["outcome"] == "ok" for r in records_of(folder))
    assert went_well(said, folder, 0 if measured else 4), said.err
    assert meter.tokens <= most
    largest = max(36, inputs(32) + 4)
    assert meter.tokens > most - 2 * (concurrency + 1) * largest, "…but what was allowed is used"
    assert ended_by(folder) == "budget tokens"


def test_failed_requests_are_paid_for(call: Call, tmp_path: Path) -> None:
    meter = Meter(fails=0.3)
    with ThreadedServer(meter) as server:
        call("run", server.url, *SHAPE, "-c", 4, "--max-tokens", 4000, "--max-error-rate", 1)
    assert meter.tokens <= 4000
    assert ended_by(folder_in(tmp_path / "results")) == "budget tokens"


@pytest.mark.parametrize("fields", ['{"n": 3}', '{"max_tokens": 40}', '{"max_tokens": 9, "n": 2}'])
def test_the_users_own_fields_count(call: Call, tmp_path: Path, fields: str) -> None:
    meter = Meter()
    with ThreadedServer(meter) as server:
        said = call("run", server.url, *SHAPE, "-c", 4, "--max-tokens", 5000, "--extra-body", fields)
    assert went_well(said, folder_in(tmp_path / "results")), said.err
    assert 4000 < meter.tokens <= 5000


def test_given_prompts_count_at_most_a_token_a_byte(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    body = {"messages": [{"role": "user", "content": "a b c d e f g h " * 12}], "max_tokens": 10}
    prompts: list[Any] = [{"prompt": "one two three " * 30, "output_len": 8}, body]
    file.write_text("\n".join(json.dumps(prompt) for prompt in prompts))
    meter = Meter()
    with ThreadedServer(meter) as server:
        said = call("run", server.url, "--prompts", file, "-c", 3, "--max-tokens", 6000)
    assert went_well(said, folder_in(tmp_path / "results")), said.err
    assert 3000 < meter.tokens <= 6000


@pytest.mark.parametrize("budget", [("--max-tokens", "5000"), ("--max-cost", "0.005", "--price", "1/2")])
def test_a_budget_that_cannot_be_kept_is_refused(call: Call, tmp_path: Path, budget: tuple[str, ...]) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("tell me all\n")
    meter = Meter()
    with ThreadedServer(meter) as server:
        said = call("run", server.url, "--prompts", file, *budget)
        assert (said.code, server.requests) == (2, [])
        assert f"{budget[0]} cannot be kept" in said.err and "--output-len" in said.err
        said = call("run", server.url, "--prompts", file, "--output-len", 5, "-c", 2, *budget)
        assert went_well(said, folder_in(tmp_path / "results")), said.err
    assert meter.tokens <= 5000


@pytest.mark.parametrize(("most", "price"), [(0.01, (1.0, 3.0)), (0.004, (0.5, 2.0)), (2.5, (500.0, 0.0))])
def test_no_more_money_than_allowed(call: Call, tmp_path: Path, most: float, price: tuple[float, float]) -> None:
    meter = Meter()
    with ThreadedServer(meter) as server:
        said = call(
            "run", server.url, *SHAPE, "-c", 4, "--max-cost", most, "--price", f"{price[0]}/{price[1]}"
        )  # fmt: skip
    spent = (meter.input_tokens * price[0] + meter.output_tokens * price[1]) / 1e6
    each = (34 * price[0] + 4 * price[1]) / 1e6
    assert went_well(said, folder_in(tmp_path / "results")), said.err
    assert most - 6 * each < spent <= most
    assert ended_by(folder_in(tmp_path / "results")) == "budget cost"


# --- time -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answers", ["at once", "never"])
def test_the_whole_run_ends_by_its_time(call: Call, tmp_path: Path, answers: str) -> None:
    """Preflight counts, and what hangs is cut."""
    meter = Meter(wait_ms=3.0)

    def handler(request: Request) -> list[Action] | None:
        if answers == "never" and request.method == "POST" and "-p-" not in request.headers["x-request-id"]:
            return [T(3_600_000)]
        return meter(request)

    with ThreadedServer(handler) as server:
        said = call("run", server.url, *SHAPE, "-c", 4, "--max-time", "900ms")
        assert len(generations(server.requests)) == len(records_of(folder_in(tmp_path / "results")))
    folder = folder_in(tmp_path / "results")
    assert 0.8 <= manifest_of(folder)["duration_s"] < 3.0
    assert ended_by(folder) == "budget time"
    cut = [record for record in records_of(folder) if record["outcome"] == "cut"]
    assert len(cut) <= 4 and (answers == "at once" or len(cut) == 4)
    assert went_well(said, folder, 0 if answers == "at once" else 4)


@pytest.mark.parametrize("seconds", [0.2, 0.5])
def test_the_window_is_as_long_as_asked(call: Call, tmp_path: Path, seconds: float) -> None:
    with ThreadedServer(serve(5.0)) as server:
        said = call("run", server.url, *SHAPE, "-c", 4, "--duration", seconds, "--warmup", 0)
    folder = folder_in(tmp_path / "results")
    (step,) = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    opened, closed = step["observation"]["window"]["start_ns"], step["observation"]["window"]["end_ns"]
    window = (closed - opened) / 1e9
    assert went_well(said, folder), said.err
    assert seconds <= window < seconds + 0.5
    assert ended_by(folder) == "complete"
    measured = [record for record in records_of(folder) if record["phase"] == "measured"]
    assert all(opened <= record["scheduled_ns"] <= closed for record in measured)


# --- what is announced ----------------------------------------------------------------------------------------------

ANNOUNCED = [
    ("run", "-c", "16", "--requests", "30", "--output-len", "1-12"),
    ("run", "-c", "4", "--duration", "600ms"),
    ("run", "-c", "8", "--requests", "20", "--max-tokens", "1500"),
    ("sweep", "--levels", "1,2,5", "--requests", "12"),
    ("sweep", "--max-level", "4", "--requests", "30", "--warmup", "0", "--slo", "ttft_p95=1ms"),
    ("sweep", "--max-level", "8", "--factor", "2", "--duration", "300ms"),
]


@pytest.mark.parametrize(
    ("args", "serial"),
    [(args, False) for args in ANNOUNCED] + [(args, True) for args in ANNOUNCED[:1] + ANNOUNCED[3:]],
    ids=lambda it: " ".join(it) if isinstance(it, tuple) else ("one at a time" if it else "in parallel"),
)
def test_what_is_announced_is_never_exceeded(call: Call, tmp_path: Path, args: tuple[str, ...], serial: bool) -> None:
    """…and is enough for the run to come to its own end, even where the server works on one request at a time."""
    meter, busy = Meter(wait_ms=6.0), [0.0]

    def handler(request: Request) -> Any:
        script = meter(request)
        return queued(script) if serial and request.method == "POST" else script

    async def queued(script: list[Action] | None) -> AsyncIterator[Action]:
        loop = asyncio.get_running_loop()
        busy[0] = max(busy[0], loop.time()) + 0.006
        await asyncio.sleep(busy[0] - loop.time())
        for action in script or []:
            yield action

    shape = SHAPE if "--output-len" not in args else SHAPE[:2]
    with ThreadedServer(handler) as server:
        said = call(args[0], server.url, *shape, *args[1:])
    folder = folder_in(tmp_path / "results")
    manifest, records = manifest_of(folder), records_of(folder)
    announced = manifest["budgets"]["announced"]
    load = [record for record in records if record["phase"] != "preflight"]
    assert len(load) <= announced["requests"]
    used = sum(record["input_tokens"]["server"] + record["output_tokens"]["count"] for record in load)
    assert used <= announced["tokens"]
    assert manifest["duration_s"] <= announced["seconds"] + 2.0
    assert {record["concurrency"] for record in load} <= set(announced["levels"]) | set(range(1, 8))
    line = " ".join(said.err.split())
    assert f"at most {announced['requests']:,} requests, {announced['tokens']:,} tokens in and out" in line
    assert ended_by(folder) == ("budget tokens" if "--max-tokens" in args else "complete"), manifest["stop"]


def test_exactly_so_many_are_measured_however_much_slower_than_the_preflight(call: Call, tmp_path: Path) -> None:
    asked = [0]

    def handler(request: Request) -> list[Action] | None:
        asked[0] += request.method == "POST"
        return Meter(wait_ms=2.0 if asked[0] < 10 else 700.0)(request)

    with ThreadedServer(handler) as server:
        said = call("run", server.url, *SHAPE, "-c", 2, "--requests", 12)
    folder = folder_in(tmp_path / "results")
    assert went_well(said, folder)
    counted = Counter((record["phase"], record["outcome"]) for record in records_of(folder))
    assert counted["measured", "ok"] == 12
    assert ended_by(folder) == "complete"
    assert manifest_of(folder)["duration_s"] > manifest_of(folder)["budgets"]["announced"]["seconds"], "as intended"


def test_answers_of_any_length_promise_no_number_of_tokens(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("tell me all\n")
    with ThreadedServer(serve(1.0)) as server:
        said = call("run", server.url, "--prompts", file, "-c", 2, "--requests", 4)
    assert went_well(said, folder_in(tmp_path / "results")) and "any number of tokens" in said.err


# --- concurrency ----------------------------------------------------------------------------------------------------


def test_levels_are_what_the_server_sees(call: Call, tmp_path: Path) -> None:
    now: Counter[str] = Counter()
    peaks: Counter[str] = Counter()

    async def answered(step: str, request: Request) -> AsyncIterator[Action]:
        now[step] += 1
        peaks[step] = max(peaks[step], now[step])
        try:
            for action in answer(request, 200.0 if step == "s3" else 5.0):
                yield action
        finally:
            now[step] -= 1

    def handler(request: Request) -> Any:
        step = request.headers.get("x-request-id", "--").split("-")[1]
        return serve()(request) if request.method == "GET" else answered(step, request)

    with ThreadedServer(handler) as server:
        said = call("sweep", server.url, *SHAPE, "--levels", "1,2,33", "--requests", 70)
    folder = folder_in(tmp_path / "results")
    assert went_well(said, folder), said.err
    each_level_once(folder)
    done = [level["concurrency"] for level in manifest_of(folder)["levels"]]
    assert done == [1, 2, 33][: len(done)] and (len(done) == 3 or client_bound(folder))
    assert peaks == {"p": 1} | {f"s{i}": level for i, level in enumerate(done, 1)}


def test_three_hundred_at_once_under_a_low_soft_limit_of_open_files(tmp_path: Path) -> None:
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))

    with ThreadedServer(serve(400.0)) as server:
        said = run(
            *("run", server.url, *SHAPE, "-c", 300, "--requests", 400, "-o", tmp_path / "out", "--json"),
            preexec_fn=lower,
        )
        assert went_well(said, folder_in(tmp_path / "out")), said.err
        assert server.peak_in_flight == 300
        assert len(generations(server.requests)) == len(records_of(folder_in(tmp_path / "out")))
    assert all(record["outcome"] != "client_error" for record in records_of(folder_in(tmp_path / "out")))


@pytest.mark.parametrize("verb", [("run", "-c", "300"), ("sweep",)])
def test_a_low_hard_limit_of_open_files_is_refused_before_anything_is_sent(
    tmp_path: Path, verb: tuple[str, ...]
) -> None:
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    with ThreadedServer(serve()) as server:
        said = run(*verb[:1], server.url, *verb[1:], "-o", tmp_path / "out", preexec_fn=lower)
        assert server.requests == []
    assert said.code == 2 and "Traceback" not in said.err
    assert "need" in said.err and "open files, but this process may have 256 at most" in said.err
    assert "ulimit -n" in said.err and "at most 192 in flight" in said.err
    assert not (tmp_path / "out").exists()
