"""Several real processes that share a step, against a server that counts."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.budget import Budget, apportion
from loadgen.client.dialects.base import RequestOptions
from loadgen.client.exchange import Timeouts
from loadgen.client.pipe import pack, unpack
from loadgen.client.shared import SILENT_S, SharedStep, most_at_once
from loadgen.client.step import Control, Part, StepPlan
from loadgen.client.transport import Access
from loadgen.client.workers import Fleet, configuration
from loadgen.errors import Failure, LoadgenError
from loadgen.log.append import Lines, absorb
from loadgen.records import Prompt, Record, RequestSpec
from loadgen.results import Observation
from loadgen.simulator.scripted import Action, Request, ThreadedServer, error_reply
from loadgen.workload.arrivals import Arrivals, Schedule
from loadgen.workload.plain import PlainWorkload, plain_workload
from tests.cli.command import answer, too_busy
from tests.log.record_strategies import RECORD, any_record
from tests.thorough import variants

WORKLOAD = plain_workload("20-60", "3-9")


class Outcome:
    """What a step came to: the observation, the records as they were told, and those of the part files."""

    def __init__(self) -> None:
        self.told: list[Record] = []
        self.kept: list[Record] = []
        self.parts: list[int] = []
        self.faults: list[LoadgenError] = []
        self.seen: Observation
        self.exits: list[int | None] = []
        self.budget = Budget()

    @property
    def ids(self) -> list[str]:
        return sorted(r.id for r in self.kept)

    def phases(self) -> Counter[str]:
        return Counter(r.phase for r in self.kept)


During = Callable[[Fleet, Control], Any]


def share(
    handler: Any,
    workers: int,
    tmp_path: Path,
    *,
    during: During | None = None,
    rate: float | None = None,
    concurrency: int = 4,
    budget: Callable[[], Budget] = Budget,
    workload: PlainWorkload = WORKLOAD,
    events: bool = False,
    access: Access = Access(),  # noqa: B008 - frozen
    part: str = "w{}.jsonl",
    gather: bool = True,
    **plan: Any,
) -> tuple[Outcome, Any]:
    """One step by `workers` processes; `during` is an async function that may do them harm."""
    out = Outcome()
    plan = {"warmup": concurrency, "enough": lambda p: p.window_s >= 0.4, "max_error_rate": 1.0, **plan}

    async def main(url: str) -> None:
        config = configuration(
            [f"{url}/v1/chat/completions"], "chat", access=access, options=RequestOptions("m"), timeouts=Timeouts(),
            workload=workload, calibration=None, seed=3, run="r",
        )  # fmt: skip
        zero, control, out.budget = time.monotonic_ns(), Control(), budget()
        parts = [tmp_path / part.format(i) for i in range(workers)]
        async with Fleet(config, lambda i: str(parts[i]), zero_ns=zero) as fleet:
            await fleet.grow(workers)
            async with anyio.create_task_group() as group:
                if during is not None:
                    group.start_soon(during, fleet, control)
                out.seen = await fleet.measure(
                    StepPlan(step=1, concurrency=0 if rate else concurrency, rate=rate, **plan),
                    workers,
                    nonce="n",
                    on_record=out.told.append,
                    budget=out.budget,
                    control=control,
                    schedule=Schedule(Arrivals("poisson"), rate, 3) if rate else None,
                    events=events,
                    on_fault=out.faults.append,
                )
                group.cancel_scope.cancel()
            processes = fleet.processes
        out.exits = [process.poll() for process in processes]
        merged = Lines(tmp_path / "merged.jsonl")
        for path in parts if gather else ():
            before = len(out.kept)
            absorb(path, merged, out.kept.append)
            out.parts.append(len(out.kept) - before)
        merged.close()

    with ThreadedServer(handler) as server:
        anyio.run(main, server.url)
        deadline = time.monotonic() + 5
        while server.open_connections and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not server.open_connections
    assert not any(code is None for code in out.exits), "no process is left behind"
    return out, server


def slow(wait_ms: float) -> Callable[[Request], list[Action]]:
    return lambda request: answer(request, wait_ms)


@pytest.mark.parametrize(("workers", "concurrency"), variants((3, 7), (2, 2)))
def test_shares_add_up_to_the_load(tmp_path: Path, workers: int, concurrency: int) -> None:
    out, server = share(slow(150), workers, tmp_path, concurrency=concurrency, enough=lambda p: p.window_s >= 0.6)
    assert server.peak_in_flight == concurrency == out.seen.in_flight_peak
    assert out.seen.ended == "complete" and out.seen.window is not None and out.seen.workers == workers
    assert out.seen.in_flight_integral_ns / (out.seen.window.seconds * 1e9) == pytest.approx(concurrency, rel=0.05)
    assert len(server.requests) == len(out.kept) == len(out.told)
    assert len(set(out.ids)) == len(out.ids)
    window = out.seen.window
    for record in out.kept:
        assert (record.phase == "measured") == (window.start_ns <= record.scheduled_ns < window.end_ns), record.id
        assert record.concurrency == concurrency
        assert int(record.id.split("-")[1]) % workers == record.worker
    assert {r.worker for r in out.kept} == set(range(workers))
    health = out.seen.health
    assert health is not None and health.reads >= len(server.requests) / 2
    assert health.descriptors is not None and health.refill_lag_us is not None, "that of all"


def open_loop_sent(out: Outcome) -> list[int]:
    return sorted(int(r.id.split("-")[1]) for r in out.kept)


def test_the_requests_are_those_of_one_stream(tmp_path: Path) -> None:
    """Which worker sends what depends on nothing but its number; together it is what one process would send."""
    out, server = share(slow(5), 3, tmp_path, concurrency=5, warmup=0, requests=40)
    stream = list(itertools.islice(WORKLOAD.stream(3, "n"), 500))
    sent = Counter(request.json["messages"][0]["content"] for request in server.requests)
    assert set(sent.values()) == {1}
    numbers = [int(r.id.split("-")[1]) for r in out.kept]
    assert sent == Counter(stream[k].text for k in numbers)
    for record in out.kept:
        prompt = stream[int(record.id.split("-")[1])]
        assert (record.input_tokens.asked, record.output_tokens.asked) == (prompt.input_tokens, prompt.output_tokens)
    for worker in range(3):  # each takes its own in order, without a gap
        mine = sorted(n for n, r in zip(numbers, out.kept, strict=True) if r.worker == worker)
        assert mine == list(range(worker, worker + 3 * len(mine), 3))


@pytest.mark.parametrize(("workers", "concurrency", "requests"), [(2, 3, 31), (3, 4, 2)])
def test_a_fixed_number_of_requests_is_exact(tmp_path: Path, workers: int, concurrency: int, requests: int) -> None:
    out, server = share(slow(4), workers, tmp_path, concurrency=concurrency, requests=requests)
    assert out.phases()["measured"] == requests, (
        out.seen,
        [(r.id, r.phase, r.outcome, r.error, r.scheduled_ns) for r in out.kept],
    )
    assert out.seen.ended == "complete" and len(server.requests) == len(out.kept)
    measured = [r for r in out.kept if r.phase == "measured"]
    window = out.seen.window
    assert window is not None
    assert all(r.outcome == "ok" and window.start_ns <= r.scheduled_ns <= window.end_ns for r in measured)


def test_one_open_loop_is_one_schedule(tmp_path: Path) -> None:
    rate = 60.0
    out, server = share(slow(20), 3, tmp_path, rate=rate, warmup=5, requests=50)
    assert out.seen.ended == "complete" and out.seen.window is not None
    schedule = Schedule(Arrivals("poisson"), rate, 3)
    numbers = open_loop_sent(out)
    assert len({*numbers}) == len(numbers), "no arrival is sent twice"
    start = min(r.scheduled_ns for r in out.kept)
    by_number = {int(r.id.split("-")[1]): r for r in out.kept}
    for k, record in by_number.items():
        assert record.worker == k % 3
        assert record.scheduled_ns == start + schedule.offset_ns(k), "on one clock, from one start"
    measured = [k for k in numbers if by_number[k].phase == "measured"]
    assert measured == list(range(measured[0], measured[0] + 50))
    # A worker that hears later than others of the sample's end sends more behind it.
    until = [k for k in numbers if k <= measured[-1]]
    assert until == list(range(len(until))), "every arrival is somebody's"
    assert out.seen.window.start_ns == by_number[measured[0]].scheduled_ns, "it opens at an arrival"
    assert (out.seen.rate, out.seen.concurrency, out.seen.not_dispatched) == (rate, 0, 0)
    assert len(server.requests) == len(numbers)


def test_a_limit_of_requests_in_flight_is_shared(tmp_path: Path) -> None:
    out, server = share(slow(120), 2, tmp_path, rate=100.0, warmup=0, max_in_flight=5)
    assert server.peak_in_flight == 5 == out.seen.in_flight_peak
    assert out.seen.held_back > 0 and out.seen.not_dispatched > 0


def test_events_come_along_only_where_they_are_asked_for(tmp_path: Path) -> None:
    for events in (False, True):
        folder = tmp_path / str(events)
        folder.mkdir()
        out, _ = share(slow(2), 1, folder, requests=6, events=events)
        assert all(r.events is not None for r in out.kept)
        kept = {r.id: r for r in out.kept}
        for told in out.told:
            mine = kept[told.id]
            assert told.events == (mine.events if events else None)
            for name in ("phase", "worker", "scheduled_ns", "sent_ns", "first_token_ns", "done_ns", "input_tokens"):
                assert getattr(told, name) == getattr(mine, name), name
            assert (told.output_tokens, told.flags, told.outcome) == (mine.output_tokens, mine.flags, mine.outcome)


@pytest.mark.parametrize("requests", variants(25, 2))
def test_budgets_are_promises_and_what_is_left_comes_back(tmp_path: Path, requests: int) -> None:
    out, server = share(
        slow(3), 2, tmp_path, concurrency=3, enough=lambda p: False,
        budget=lambda: Budget(requests=requests, tokens=100_000),
    )  # fmt: skip
    assert (out.seen.ended, out.seen.detail) == ("budget", "requests")
    assert len(server.requests) == len(out.kept) <= requests
    assert out.budget.requests == requests - len(out.kept)
    used = sum((r.input_tokens.server or 0) + (r.output_tokens.count or 0) for r in out.kept)
    assert out.budget.tokens == 100_000 - used
    assert out.budget.spent == "requests"


def test_the_deadline_is_everyones(tmp_path: Path) -> None:
    out, _ = share(
        slow(60_000), 2, tmp_path, enough=lambda p: False, budget=lambda: Budget(deadline=anyio.current_time() + 2.0)
    )
    if out.seen.ended == "client" and "silent for" in out.seen.detail:
        too_busy()
    assert (out.seen.ended, out.seen.detail) == ("budget", "time")
    assert {r.outcome for r in out.kept} <= {"cut"} and len(out.kept) <= 4


@given(
    left=st.integers(0, 10_000), tokens=st.none() | st.integers(0, 10**9), cost=st.none() | st.floats(0, 100),
    weights=st.lists(st.integers(0, 50), min_size=1, max_size=9), spent=st.data(),
)  # fmt: skip
def test_shares_of_a_budget_are_the_budget(
    left: int, tokens: int | None, cost: float | None, weights: list[int], spent: st.DataObject
) -> None:
    whole = Budget(requests=left, tokens=tokens, cost=cost)
    shares = whole.split(weights)
    if sum(weights):
        assert whole.requests == 0 and whole.tokens in (0, None)
    given = [share.requests or 0 for share in shares]
    assert sum(given) + (whole.requests or 0) == left
    for share, weight in zip(given, weights, strict=True):
        assert abs(share - left * weight / max(1, sum(weights))) < 1
    used = [spent.draw(st.integers(0, share)) for share in given]
    for share, part in zip(shares, used, strict=True):
        whole.rejoin((share.requests or 0) - part, share.tokens, share.cost, share.excess)
    assert whole.requests == left - sum(used)
    assert whole.tokens == tokens
    assert whole.cost == (pytest.approx(cost) if cost is not None else None)


def test_too_many_errors_are_seen_across_workers(tmp_path: Path) -> None:
    out, server = share(
        lambda request: error_reply(503, "busy"), 3, tmp_path, concurrency=6, enough=lambda p: False,
        max_error_rate=0.01,
    )  # fmt: skip
    assert out.seen.ended == "errors" and "busy" in out.seen.detail
    assert len(server.requests) == len(out.kept)


def test_refused_access_stops_all_at_once(tmp_path: Path) -> None:
    def handler(request: Request) -> list[Action]:
        return error_reply(401, "no") if request.headers["x-request-id"] == "r-s1-000001" else answer(request, 60_000)

    out, _ = share(handler, 2, tmp_path, concurrency=6, drain_s=60.0)
    assert out.seen.ended == "unauthorized"
    assert len(out.kept) <= 6 and {r.outcome for r in out.kept} == {"error", "cut"}


@pytest.mark.parametrize("how", ["drain", "quit"])
def test_the_brake_reaches_every_worker(tmp_path: Path, how: str) -> None:
    async def brake(fleet: Fleet, control: Control) -> None:
        await anyio.sleep(1.0)
        control.drain()
        if how == "quit":
            await anyio.sleep(0.05)
            control.quit()

    wait_ms = 400 if how == "drain" else 60_000
    out, server = share(slow(wait_ms), 2, tmp_path, enough=lambda p: False, during=brake, drain_s=60.0)
    assert out.seen.ended == "interrupted"
    assert {r.outcome for r in out.kept} == ({"ok"} if how == "drain" else {"cancelled"})
    assert len(server.requests) == len(out.kept)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_worker_that_is_gone_voids_the_step(tmp_path: Path, how: signal.Signals) -> None:
    async def harm(fleet: Fleet, control: Control) -> None:
        await anyio.sleep(1.0)
        os.kill(fleet.processes[1].pid, how)

    began = time.monotonic()
    out, server = share(slow(30), 2, tmp_path, enough=lambda p: False, during=harm, drain_s=60.0)
    assert time.monotonic() - began < 30 + SILENT_S
    assert out.seen.ended == "client"
    said = "killed (SIGKILL)" if how == signal.SIGKILL else "was silent for"
    assert out.seen.detail.startswith("worker 2 of 2") and said in out.seen.detail
    assert all(count > 0 for count in out.parts), "what had ended is kept, the lost worker's as well"
    assert len(server.requests) - len(out.kept) <= 2, "all but what the lost worker had in flight"
    assert {r.outcome for r in out.kept if r.worker == 0} <= {"ok", "cut"}


def test_a_part_file_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(LoadgenError, match="cannot be written"):
        share(slow(1), 2, tmp_path, part="missing/w{}.jsonl")


def test_a_full_disk_stops_the_step(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    (tmp_path / "w1.jsonl").symlink_to("/dev/full")
    out, _ = share(slow(5), 2, tmp_path, enough=lambda p: False, gather=False)
    assert out.seen.ended == "client"
    assert [str(fault) for fault in out.faults] and "no room left" in out.faults[0].message


def test_a_process_that_is_slow_to_start_was_not_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import time\ntime.sleep({SILENT_S + 0.2})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    out, server = share(slow(5), 2, tmp_path, requests=20)
    assert out.seen.ended == "complete" and not out.seen.detail
    assert len(server.requests) == len(out.kept)


def test_secrets_are_on_no_command_line(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def look(fleet: Fleet, control: Control) -> None:
        await anyio.sleep(0.5)
        for process in fleet.processes:
            place = anyio.Path(f"/proc/{process.pid}")
            seen.extend([await (place / "cmdline").read_bytes(), await (place / "environ").read_bytes()])

    access = Access(headers={"authorization": "Bearer hush-hush"})
    _, server = share(slow(5), 2, tmp_path, during=look, access=access)
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer hush-hush"}
    assert len(seen) == 4 and not any(b"hush" in text for text in seen)


# --- what passes through the pipe, and what the decider makes of it ---------------------------------------------------


@given(any_record)
def test_what_is_told_of_a_record_is_what_it_was(record: Record) -> None:
    error = None if record.error is None else Failure(record.error.kind, record.error.message)
    left_out = dict.fromkeys(("finish_reason", "excerpt", "server_id", "peer", "model", "source_id"))
    told = replace(record, error=error, **left_out)
    assert unpack(orjson.loads(pack(record, events=True))) == told
    assert unpack(orjson.loads(pack(record, events=False))) == replace(told, events=None)


@given(st.integers(0, 10_000), st.lists(st.integers(0, 100), min_size=1, max_size=20))
def test_apportioned_shares_are_fair_and_make_up_the_whole(whole: int, weights: list[int]) -> None:
    shares, total = apportion(whole, weights), sum(weights)
    assert sum(shares) == (whole if total else 0)
    for share, weight in zip(shares, weights, strict=True):
        assert total == 0 or whole * weight // total <= share <= -(-whole * weight // total)


def part_of_two(budget: Budget | None = None) -> Part:
    prompts = itertools.repeat(Prompt("x", 10, 5))
    plan = StepPlan(1, 4, lambda p: False, warmup=0, worker=1, workers=2)
    return Part(plan, prompts, budget or Budget(), Control())


def finished(part: Part, spec: RequestSpec | None, at_ns: int, now_ns: int) -> Record:
    assert spec is not None
    record = part.placed(replace(RECORD, id=spec.id, phase=spec.phase))
    part.done(record, now_ns, at_ns)
    return record


@pytest.mark.parametrize("sample", [None, 1])
def test_what_is_told_late_still_holds_for_what_is_in_flight(sample: int | None) -> None:
    part = part_of_two()
    part.reach(100)
    specs = [part.take(at) for at in (100, 110, 120)]
    part.open_at(110, sample)
    assert part.progress.measured_sent == 2
    assert finished(part, specs[0], 100, 130).phase == "warmup"
    assert finished(part, specs[1], 110, 140).phase == "measured"
    part.close_at(120)
    assert finished(part, specs[2], 120, 150).phase == ("filler" if sample is None else "measured")
    assert part.progress.measured_sent == part.progress.measured_done
    assert [spec.id for spec in specs if spec] == ["s1-000001", "s1-000003", "s1-000005"]
    part.reach(150)
    assert part.passed and not part.over, "its end is not its own to decide"
    assert part.progress.phase == "filler" and part.closed_ns == 120


def test_a_part_follows_the_times_it_is_told() -> None:
    part = part_of_two()
    part.open_at(1_000, None)
    part.close_at(2_000)
    phases = []
    for at in (0, 999, 1_000, 1_999, 2_000, 3_000):
        part.reach(at)
        spec = part.take(at)
        assert spec is not None
        phases.append(spec.phase)
        finished(part, spec, at, at + 1)
    assert phases == ["warmup", "warmup", "measured", "measured", "filler", "filler"]
    part.end("complete")
    assert part.take(4_000) is None


def test_the_sample_is_complete_only_when_all_workers_have_passed() -> None:
    plan = StepPlan(1, 2, lambda p: True, warmup=0)
    step = SharedStep(plan, Control(), 2)
    counters = {"in_flight": 1, "held_back": 0, "ended": None, "detail": ""}
    step.reach(100)
    assert step.progress.phase == "filler" and step.closed_ns == 100 and not step.over
    step.told(0, {**counters, "measured_sent": 0, "passed": True})
    step.told(1, {**counters, "measured_sent": 1, "passed": False})
    step.reach(200)
    assert not step.over
    step.told(1, {**counters, "measured_sent": 1, "passed": True})
    step.reach(300)
    assert not step.over, "one measured request is in flight"
    step.count(replace(RECORD, phase="measured"), 50, 250)
    assert step.over and step.ended == "complete"


def test_the_peak_is_that_of_all_workers_at_one_time() -> None:
    """Three at once in one worker, and later two in another."""
    step = SharedStep(StepPlan(1, 0, lambda p: True, warmup=0, rate=10.0), Control(), 2)
    step.reach(100)
    for start, end in ((110, 200), (120, 190), (130, 180), (300, 400), (310, 320), (400, 500), (900, 800)):
        step.count(replace(RECORD, phase="filler"), start, end)
    assert step.observation(1000).in_flight_peak == 3


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=12))
def test_the_most_at_once_is_that_of_the_fullest_nanosecond(spans: list[tuple[int, int]]) -> None:
    slow = max((sum(start <= ns < start + length for start, length in spans) for ns in range(40)), default=0)
    assert most_at_once([s for s, _ in spans], [s + length for s, length in spans]) == slow
