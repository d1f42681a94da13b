"""Field cases R: what a server does to a run, and what is left of the run then."""

from __future__ import annotations

import gc
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import count, repeat
from pathlib import Path
from typing import Any

import anyio
import pytest

from loadgen.client.driver import StepPlan, run_step
from loadgen.client.exchange import Timeouts
from loadgen.client.retry import Retry
from loadgen.errors import Exit
from loadgen.records import Record
from loadgen.results import Observation, Slo
from loadgen.search.verdict import judge
from loadgen.simulator.scripted import (
    CU,
    DONE,
    FIN,
    RST,
    Action,
    C,
    Comment,
    Hang,
    J,
    Request,
    ScriptedServer,
    T,
    ThreadedServer,
    U,
    error_reply,
    json_reply,
)
from tests.cases.support import (
    PROMPT,
    MakeSender,
    answer,
    disturbed,
    loadgen,
    posts,
    send,
    send_one,
    step,
    summary_of,
    texts,
)
from tests.cli.command import tries
from tests.thorough import variants

QUICK = ("--input-len", "16", "--output-len", "4")
GOOD = [C("a"), FIN("stop"), U(3, 1), DONE]


def of_the_load(request: Request) -> bool:
    """Is it no request of the preflight?"""
    return "-p-" not in request.headers["x-request-id"]


# --- R01: stalled streams -------------------------------------------------------------------------------------------


def pings() -> Iterator[Action]:
    yield C("a")
    for _ in range(100):
        yield Comment("ping")
        yield T(20)


STALLS: dict[str, tuple[Any, Timeouts, str]] = {
    "nothing after a token": (lambda: [C("a"), Hang(30)], Timeouts(3, 5, 0.2, 20), "idle"),
    "only pings after a token": (pings, Timeouts(3, 5, 0.2, 20), "idle"),
    "nothing at all": (lambda: [T(0), Hang(30)], Timeouts(3, 0.2, 5, 20), "first_token"),
    "tokens for ever": (lambda: (piece for _ in count() for piece in (C("a"), T(10))), Timeouts(3, 5, 5, 0.3), "total"),
}


@pytest.mark.parametrize("case", STALLS)
def test_r01_a_stalled_stream_ends_by_its_own_timeout(case: str, make_sender: MakeSender) -> None:
    script, timeouts, kind = STALLS[case]
    start = time.monotonic()
    records = send(make_sender, lambda r: script() if r.number == 1 else GOOD, sends=3, timeouts=timeouts)
    assert [r.outcome for r in records] == ["ok", "timeout", "ok"]
    assert records[1].timeout == kind
    assert time.monotonic() - start < 5


# --- R03: everything fails ------------------------------------------------------------------------------------------


def test_r03_a_server_that_is_always_wrong_ends_in_the_preflight(tmp_path: Path) -> None:
    with ThreadedServer(posts(lambda r: json_reply({"detail": "Not Found"}, 404))) as server:
        ran = loadgen("run", server.url, *QUICK, output=tmp_path)
    assert ran.code == Exit.TARGET
    assert "answered 404: Not Found" in ran.said


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"message": "max_tokens is too large", "type": "BadRequestError", "code": 400}}),
        (422, {"detail": [{"loc": ["body", "max_tokens"], "msg": "is too large"}]}),
        (500, {"message": "is too large"}),
    ],
)
def test_r07_a_refusal_in_the_preflight_is_told_before_any_load(status: int, body: Any, tmp_path: Path) -> None:
    with ThreadedServer(posts(lambda r: json_reply(body, status))) as server:
        ran = loadgen("sweep", server.url, *QUICK, output=tmp_path)
        assert all(not of_the_load(r) for r in server.requests if r.method == "POST")
    assert ran.code == Exit.TARGET
    assert f"{server.url}/v1/chat/completions" in ran.said and str(status) in ran.said and "too large" in ran.said


@pytest.mark.parametrize("workers", [1, 2])
def test_r03_a_run_in_which_all_fails_has_a_summary_its_words_once_and_no_success(workers: int, tmp_path: Path) -> None:
    def reply(request: Request) -> Any:
        return error_reply(404, "gone fishing") if of_the_load(request) else answer(request)

    for output in tries(tmp_path):
        with ThreadedServer(posts(reply)) as server:
            ran = loadgen(
                *("run", server.url, *QUICK, "-c", "4", "--requests", "20", "--warmup", "0", "--workers", str(workers)),
                output=output,
            )
        assert ran.code in (Exit.TARGET, Exit.UNDECIDED)
        assert {r.outcome for r in ran.records() if r.phase != "preflight"} <= {"error", "cut"}
        if not disturbed(ran):
            break
    assert ran.code == Exit.TARGET
    # With its count, and as what ended the run; two workers may have sent all 20 before either was told to end.
    assert ran.said.count("gone fishing") in ((2,) if workers == 1 else (1, 2))
    assert "× http 404: gone fishing" in ran.said
    assert ran.manifest["stop"]["reason"] == "errors"
    [seen] = ran.report()["steps"]
    assert seen["completed"] == 0 and seen["output_throughput"] is None
    assert all(r.outcome == "error" for r in ran.records("measured", "filler", "warmup"))


@pytest.mark.parametrize(("status", "workers"), variants((403, 1), (401, 2), (401, 1), (402, 1), usual=2))
@pytest.mark.parametrize("after", [0, 25], ids=["warm-up", "middle"])
def test_r03_refused_access_ends_a_run_at_once(status: int, after: int, workers: int, tmp_path: Path) -> None:
    def reply(request: Request) -> Any:
        if of_the_load(request):
            got.append(request)
        return error_reply(status, "no more") if len(got) > after else [T(5), *answer(request)]

    got: list[Request] = []
    for output in tries(tmp_path):
        got.clear()
        with ThreadedServer(posts(reply)) as server:
            ran = loadgen(
                *("sweep", server.url, *QUICK, "--levels", "4,8", "--requests", "60", "--workers", str(workers)),
                output=output,
            )
        assert ran.code != Exit.DONE
        assert [level["concurrency"] for level in ran.manifest["levels"]] == [4]
        if not disturbed(ran):
            break
    assert ran.report()["steps"][0]["ended"] == "unauthorized"
    assert len(got) <= after + 4 + (0 if workers == 1 else 80), "what was in flight, or sent until a worker was told"
    assert ran.manifest["stop"]["reason"] == "errors"
    assert "The server refused access at 4 concurrent requests" in ran.said


# --- R04: 429, 503 and Retry-After ----------------------------------------------------------------------------------


def in_seconds(seconds: int) -> dict[str, str]:
    return {"Retry-After": str(seconds)}


def as_date(seconds: int) -> dict[str, str]:
    """By the server's own clock, which is a year late."""
    now = datetime.now(UTC) - timedelta(days=365)
    until = now + timedelta(seconds=seconds)
    return {"Date": format_datetime(now, usegmt=True), "Retry-After": format_datetime(until, usegmt=True)}


def every_third(status: int, headers: dict[str, str], times: int = 1) -> Any:
    """Refuses every third request so many times; by its id, as what is sent again may come at any place."""
    asked: Counter[str] = Counter()

    def handler(request: Request) -> Any:
        name = request.headers["x-request-id"]
        asked[name] += 1
        refused = list(asked).index(name) % 3 == 2 and asked[name] <= times
        return error_reply(status, "slow down", **headers) if refused else [T(5), *GOOD]

    return handler


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("form", [in_seconds, as_date])
def test_r04_by_default_a_refusal_is_the_outcome(status: int, form: Any, make_sender: MakeSender) -> None:
    records, _, fake = step(make_sender, every_third(status, form(2)), 4, 24, warmup=0)
    failed = [r for r in records if r.outcome == "error"]
    assert len(failed) == len(fake.requests) // 3 and len(records) == len(fake.requests)
    for record in failed:
        assert record.error is not None
        assert (record.status, record.error.kind, record.error.code) == (status, "http", status)
        assert record.error.message == "slow down"
        assert record.error.retry_after_s == pytest.approx(2, abs=1)
        assert record.attempts == ()
    text, _ = texts(summary_of(records))
    assert f"http {status}: slow down" in text


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    "headers", [in_seconds(0), as_date(0), {}, {"Retry-After": "soon"}], ids=["seconds", "date", "none", "garbage"]
)
def test_r04_retries_when_asked_for(status: int, headers: dict[str, str], make_sender: MakeSender) -> None:
    records, seen, fake = step(
        make_sender, every_third(status, headers, 2), 4, 24, warmup=0, retry=Retry(9, max_wait_s=30, seed=1)
    )
    ended = [r for r in records if r.outcome != "cut"]  # a filler that waits at the end
    assert {r.outcome for r in ended} == {"ok"}
    again = [r for r in ended if r.attempts]
    assert len(again) >= 5 and seen.in_flight_peak == fake.peak_in_flight == 4
    assert all("retried" in r.flags for r in again) and all("retried" not in r.flags for r in ended if not r.attempts)
    for record in again:
        *refused, last = record.attempts
        assert {one.status for one in refused} == {status}
        assert (last.status, last.wait_ms) == (200, None)
        assert record.sent_ns == refused[0].sent_ns
        waited = sum(one.wait_ms or 0 for one in refused)
        assert (last.sent_ns or 0) - (record.sent_ns or 0) >= 1e6 * (waited - len(refused))
        assert record.events is not None and record.first_token_ns is not None
        assert record.events.gap_us[0] == pytest.approx((record.first_token_ns - (record.sent_ns or 0)) / 1e3, abs=2)
    assert sum(max(1, len(r.attempts)) for r in records) == len(fake.requests)
    summary = summary_of(records, observation=seen)
    assert summary.retries == sum(len(r.attempts) - 1 for r in again if r.phase == "measured")
    text, told = texts(summary)
    assert told["retries"] == summary.retries and told["flags"]["retried"]
    assert "after a 429 or 503" in text and "latencies run from the first send" in text


def test_r04_retry_after_is_waited_for(make_sender: MakeSender) -> None:
    handler = posts(lambda r: error_reply(503, "busy", **in_seconds(1)) if r.number == 0 else GOOD)
    records, _, _ = step(make_sender, handler, 1, 1, warmup=0, retry=Retry(1))
    [record] = [r for r in records if r.phase == "measured"]
    assert record.outcome == "ok" and record.attempts[0].wait_ms == 1000
    assert record.first_token_ns is not None and record.first_token_ns - (record.sent_ns or 0) >= 1e9


def test_r04_refused_for_ever_is_bounded_by_count_and_time(make_sender: MakeSender) -> None:
    def for_ever(request: Request) -> Any:
        return error_reply(429, "never", **headers)

    headers = {}
    for seconds, retry, sends in ((0, Retry(2), 3), (60, Retry(9, max_wait_s=5), 1)):
        headers = in_seconds(seconds)
        records, _, fake = step(make_sender, for_ever, 2, 6, warmup=0, retry=retry)
        measured = [r for r in records if r.phase == "measured"]
        assert {r.outcome for r in measured} == {"error"}
        assert {max(1, len(r.attempts)) for r in measured} == {sends}
        assert len(fake.requests) == sum(max(1, len(r.attempts)) for r in records)


def test_r04_a_refusal_within_a_stream_is_one(make_sender: MakeSender) -> None:
    def handler(request: Request) -> Any:
        refusal = J({"error": "Model is overloaded", "error_type": "overloaded"})
        return [refusal] if request.number == 0 else GOOD

    records, _, _ = step(make_sender, handler, 1, 1, warmup=0, retry=Retry(3))
    [record] = [r for r in records if r.phase == "measured"]
    assert record.outcome == "ok" and len(record.attempts) == 2


@pytest.mark.parametrize("workers", [1, 2])
def test_r04_the_command_retries_pays_for_it_and_tells(workers: int, tmp_path: Path) -> None:
    flags = ("--retries", "5", "--retry-max-wait", "20s", "--workers", str(workers), "-c", "4", "--requests", "30")

    def reply(request: Request) -> Any:
        got.append(request)
        return error_reply(429, "wait", **in_seconds(0)) if len(got) > 3 and len(got) % 3 == 0 else answer(request)

    got: list[Request] = []
    with ThreadedServer(posts(reply)) as server:
        ran = loadgen("run", server.url, *QUICK, *flags, output=tmp_path)
    assert ran.code in (Exit.DONE, Exit.UNDECIDED), ran.err
    [seen] = ran.report()["steps"]
    assert seen["failed"] == 0 and seen["completed"] == 30
    assert seen["retries"] > 0 and seen["flags"]["retried"] > 0
    assert ran.manifest["retries"] == {"most": 5, "max_wait_s": 20.0}
    records = ran.records()
    assert sum(max(1, len(r.attempts)) for r in records) == len(got)
    assert len({r.headers["x-request-id"] for r in got}) == len(records), "one id for all attempts of a request"

    with ThreadedServer(posts(reply)) as server:
        got.clear()
        ran = loadgen("run", server.url, *QUICK, *flags, "--max-requests", "20", output=tmp_path / "capped")
    assert 0 < len(got) <= 20 and (workers > 1 or len(got) == 20), "every attempt is paid for"


# --- admission ------------------------------------------------------------------------------------------------------


class Admission:
    """A server that answers so many requests at once, in `ms` each, and refuses the rest as TGI does."""

    def __init__(self, limit: int, ms: float) -> None:
        self.limit, self.ms, self.now = limit, ms, 0

    async def __call__(self, request: Request) -> Any:
        if self.now >= self.limit:
            for action in json_reply({"error": "Model is overloaded", "error_type": "overloaded"}, 429):
                yield action
            return
        self.now += 1
        try:
            yield T(self.ms)
            for action in answer(request):
                yield action
        finally:
            self.now -= 1


@pytest.mark.parametrize(
    ("limit", "levels", "workers"), variants((20, "16,32,64", 2), (20, "8,16,32,64", 1), (128, "64,256", 1))
)
def test_r04_an_admission_limit_is_named(limit: int, levels: str, workers: int, tmp_path: Path) -> None:
    flags = ("--levels", levels, "--requests", "40", "--workers", str(workers))
    for output in tries(tmp_path):
        with ThreadedServer(posts(Admission(limit, 100))) as server:
            ran = loadgen("sweep", server.url, *QUICK, *flags, output=output)
        assert {r.status for r in ran.records() if r.outcome == "error"} <= {429}
        if not disturbed(ran):
            break
    stop = ran.manifest["stop"]
    assert stop["reason"] == "errors:admission_limit", ran.said
    named = int(stop["sentence"].split("answers about ")[1].split()[0])
    assert abs(named - limit) <= max(2, 0.1 * limit)
    assert "429: Model is overloaded" in stop["sentence"]
    assert ran.code == Exit.DONE, "the limit of the server is an answer"
    last = ran.report()["steps"][-1]
    assert (last["verdict"], last["broke"], last["admitted_requests"]) == ("fail", ["errors"], named)


# --- R05: the server goes away --------------------------------------------------------------------------------------


def leaving(
    make_sender: MakeSender, *, back_s: float | None, max_error_rate: float, window_s: float
) -> tuple[list[Record], Observation]:
    """A step of 8 in flight whose server dies after 0.3 s, and is perhaps back `back_s` later."""
    records: list[Record] = []

    async def main() -> Observation:
        async with ScriptedServer(lambda r: [T(10), *GOOD]) as fake, make_sender(fake.url, connections=8) as sender:

            async def fate() -> None:
                await anyio.sleep(0.3)
                await fake.stop()
                if back_s is not None:
                    await anyio.sleep(back_s)
                    await fake.start()

            plan = StepPlan(1, 8, lambda p: p.window_s >= window_s, 8, max_error_rate=max_error_rate, drain_s=5)
            async with anyio.create_task_group() as group:
                group.start_soon(fate)
                return await run_step(
                    sender, repeat(PROMPT), plan, on_record=records.append, clock=time.monotonic_ns, zero_ns=0
                )

    return records, anyio.run(main)


def test_r05_a_server_that_dies_ends_the_step_by_its_failures(make_sender: MakeSender) -> None:
    records, seen = leaving(make_sender, back_s=None, max_error_rate=0.01, window_s=30)
    assert seen.ended == "errors"
    failed = [r for r in records if r.outcome != "ok"]
    assert len(failed) <= 2 * 8 + 10
    assert {r.error.kind for r in failed if r.error} <= {"reset", "connect", "protocol", "incomplete"}
    level = judge(summary_of(records, observation=seen), Slo())
    assert (level.verdict, level.broke) == ("fail", ("errors",))


def test_r05_no_hot_loop_of_connects_while_it_is_gone_and_on_when_it_is_back(make_sender: MakeSender) -> None:
    """A user who allows every failure: slots back off, and go on with the server."""
    records, seen = leaving(make_sender, back_s=0.5, max_error_rate=1.0, window_s=1.6)
    assert seen.ended == "complete"
    failed = [r for r in records if r.outcome != "ok"]
    assert 8 <= len(failed) <= 8 * 6, "some tries of each slot in 0.5 s, where a connect takes some µs"
    last_failed = max(r.done_ns for r in failed)
    assert sum(r.outcome == "ok" and (r.sent_ns or 0) > last_failed for r in records) > 8


def test_r05_who_only_hangs_up_is_not_hammered_either(make_sender: MakeSender) -> None:
    """A proxy whose server has gone takes every connection and drops it: the connections are counted there."""

    async def main() -> int:
        async with ScriptedServer([], reject=True) as fake, make_sender(fake.url, connections=4) as sender:
            plan = StepPlan(1, 4, lambda p: False, 0, max_error_rate=1.0)
            with anyio.move_on_after(0.8):
                await run_step(
                    sender, repeat(PROMPT), plan, on_record=lambda r: None, clock=time.monotonic_ns, zero_ns=0
                )
            return fake.connections

    assert 4 <= anyio.run(main) <= 4 * 6


def test_r05_later_steps_are_not_run(tmp_path: Path) -> None:
    def reply(request: Request) -> Any:
        return [RST] if request.number > 30 and of_the_load(request) else [T(5), *answer(request)]

    for output in tries(tmp_path):
        with ThreadedServer(posts(reply)) as server:
            ran = loadgen("sweep", server.url, *QUICK, "--levels", "2,4,8", "--requests", "40", output=output)
        assert [level["concurrency"] for level in ran.manifest["levels"]] == [2]
        assert ran.report()["steps"][0]["ended"] == "errors"
        if not disturbed(ran):
            break
    assert ran.manifest["stop"]["reason"] == "errors"
    assert "Too many requests failed at 2 concurrent requests" in ran.said


@pytest.mark.parametrize("back", [True, False])
def test_r05_with_wait_ready_a_server_that_comes_back_is_measured_on(back: bool, tmp_path: Path) -> None:
    """It dies in the second level. Asked to wait, the run waits for it and measures that level again."""

    def reply(request: Request) -> Any:
        name = request.headers["x-request-id"]
        gone = "-s2-" in name or ("-p-002-" in name and (next(away) < 2 or not back))
        return [RST] if gone else [T(5), *answer(request)]

    flags = ("--levels", "1,2,4", "--requests", "20", "--wait-ready", "20s" if back else "1s")
    for output in tries(tmp_path):
        away = count()
        with ThreadedServer(posts(reply)) as server:
            ran = loadgen("sweep", server.url, *QUICK, *flags, output=output)
        stop, levels = ran.manifest["stop"], [level["concurrency"] for level in ran.manifest["levels"]]
        assert set(levels) <= ({1, 2, 4} if back else {1, 2})
        if not disturbed(ran):
            break
    assert (stop["reason"], levels) == (("max_level", [1, 2, 2, 4]) if back else ("errors", [1, 2]))
    assert ("the server went away in step 2 and was back after" in ran.said) is back
    assert "gone: " in ran.err or not back


# --- R06: memory ----------------------------------------------------------------------------------------------------


def test_r06_nothing_is_kept_of_requests_that_have_ended(make_sender: MakeSender) -> None:
    def many(request: Request) -> Any:
        return [*(CU("a", k + 1) for k in range(5)), FIN("stop"), U(3, 5), DONE]

    async def main() -> list[int]:
        alive: list[int] = []
        async with ScriptedServer(many) as fake, make_sender(fake.url, connections=8) as sender:
            for number in range(10):
                plan = StepPlan(number, 8, lambda p: False, 0, requests=100)
                await run_step(
                    sender, repeat(PROMPT), plan, on_record=lambda r: None, clock=time.monotonic_ns, zero_ns=0
                )
                fake.requests.clear()
                if number in (1, 9):
                    await anyio.sleep(0.3)  # what watches for the last bytes of an answer is over
                    gc.collect()
                    alive.append(len(gc.get_objects()))
        return alive

    before, after = anyio.run(main)
    # asyncio forgets timers that were called off only some hundred at a time.
    assert after - before < 600, "eight hundred requests later"


# --- R10: the screen ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0, 1], ids=["all ok", "all fail"])
def test_r10_no_line_per_request_and_no_hidden_retries(share: int, tmp_path: Path) -> None:
    def reply(request: Request) -> Any:
        got.append(request)
        return error_reply(503, "no room") if share and of_the_load(request) else answer(request)

    got: list[Request] = []
    with ThreadedServer(posts(reply)) as server:
        ran = loadgen(
            "run", server.url, *QUICK, "-c", "4", "--requests", "150", "--max-error-rate", "100%", output=tmp_path
        )
    records = ran.records()
    assert len(records) == len(got) > 150
    assert len(ran.out.splitlines()) + len(ran.err.splitlines()) < 60
    assert ran.out.count("no room") <= 2
    assert all(logging.getLogger(name).getEffectiveLevel() >= logging.WARNING for name in ("httpx", "httpcore"))
    assert [json.loads(line)["id"] for line in (ran.folder / "requests.jsonl").read_text().splitlines()] == [
        r.id for r in records
    ]


# --- statuses in the middle of a run --------------------------------------------------------------------------------

WORDS: dict[str, tuple[Sequence[Action], str]] = {
    "an object": (json_reply({"error": {"message": "no such tool", "code": 400}}, 400), "no such tool"),
    "a string": (json_reply({"error": "no such tool"}, 400), "no such tool"),
    "TGI's": (json_reply({"error": "too many tokens", "error_type": "validation"}, 422), "too many tokens"),
    "FastAPI's": (json_reply({"detail": "Not Found"}, 404), "Not Found"),
    "FastAPI's list": (
        json_reply({"detail": [{"loc": ["body", "messages", 0], "msg": "field required", "type": "missing"}]}, 422),
        "body.messages.0: field required",
    ),
    "two of them": (
        json_reply({"detail": [{"loc": ["body", "n"], "msg": "too big"}, {"loc": ["body", "m"], "msg": "bad"}]}, 422),
        "body.n: too big; body.m: bad",
    ),
    "vLLM's old form": (json_reply({"object": "error", "message": "bad", "code": 400}, 400), "bad"),
    "a problem": (json_reply({"type": "about:blank", "title": "Out of credit"}, 402), "Out of credit"),
    "JSON of no known form": (json_reply({"a": 1}, 500), "Internal Server Error"),
    "JSON that is a text": (json_reply("just text", 500), "just text"),
    "nothing": (json_reply({}, 503), "Service Unavailable"),
}


@pytest.mark.parametrize("case", WORDS)
def test_r17_the_servers_words_are_in_the_record(case: str, make_sender: MakeSender) -> None:
    script, words = WORDS[case]
    record = send_one(make_sender, lambda r: script)
    assert record.outcome == "error" and record.error is not None
    assert (record.error.kind, record.error.message) == ("http", words)


def page(body: str, kind: str = "text/html") -> list[Action]:
    from loadgen.simulator.scripted import reply

    return list(reply(body.encode(), 502, content_type=kind))


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("<html><title>502 Bad &amp; Gateway</title><body><h1>x</h1>", "text/html", "502 Bad & Gateway"),
        ("<html><h1>Oops</h1></html>", "text/html", "Bad Gateway"),
        ("upstream is down\nrequest 17", "text/plain", "upstream is down"),
        ("", "text/plain", "Bad Gateway"),
        ("\x00\x01binary", "application/octet-stream", "Bad Gateway"),
    ],
)
def test_r17_a_refusal_that_is_no_json_has_words_too(body: str, kind: str, words: str, make_sender: MakeSender) -> None:
    record = send_one(make_sender, lambda r: page(body, kind))
    assert record.error is not None and record.error.message == words


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("http://elsewhere.invalid/v1/chat/completions", "redirected to http://elsewhere.invalid/v1/chat/completions"),
        ("/v2/chat", "redirected to http://127.0.0.1:"),
        ("", "redirected to nowhere"),
    ],
    ids=["another host", "a path", "nowhere"],
)
def test_r16_a_redirect_is_told_and_never_followed(
    status: int, location: str, said: str, make_sender: MakeSender
) -> None:
    headers = {"Location": location} if location else {}
    [record, again] = send(make_sender, lambda r: json_reply({}, status, **headers), sends=2)
    for one in (record, again):
        assert one.outcome == "error" and one.error is not None
        assert (one.error.kind, one.error.code) == ("redirect", status)
        assert one.error.message.startswith(said)
    if location.startswith("/"):
        assert "/v2/chat, which is not followed" in (record.error.message if record.error else "")


@pytest.mark.parametrize("status", [301, 308])
def test_r16_a_redirect_in_the_preflight_names_the_address_to_give(status: int, tmp_path: Path) -> None:
    with ThreadedServer(posts(answer)) as there:
        with ThreadedServer(
            posts(lambda r: json_reply({}, status, Location=f"{there.url}/v1/chat/completions"))
        ) as here:
            ran = loadgen("run", here.url, *QUICK, "--header", "Authorization: Bearer k", output=tmp_path)
            assert ran.code == Exit.TARGET
            assert (
                f"answered {status}: redirected to {there.url}/v1/chat/completions, which is not followed" in ran.said
            )
            assert f"give {there.url}/v1/chat/completions" in ran.said
            assert "no key of yours was sent there" in ran.said
            assert there.requests == [], "nothing, and no key, goes to another host"
        ran = loadgen("run", f"{there.url}/v1/chat/completions", *QUICK, "--requests", "2", "-c", "1", output=tmp_path)
    assert ran.code in (Exit.DONE, Exit.UNDECIDED)
