"""Calibration: its numbers against known errors, its decisions by tables, and a small one end to end."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import LogError
from loadgen.records import Events, InputTokens, OutputTokens, Record
from loadgen.runner.calibrate import DispatchStage, Ground, Plan, Stage, StreamStage, calibrate, figures, load, save
from loadgen.runner.calibrate.figures import Heard, Spread, StampErrors
from loadgen.runner.calibrate.run import capacity
from loadgen.runner.calibrate.stages import ServerSide, limit_of
from loadgen.runner.calibrate.store import default_path, host_facts
from loadgen.simulator.truth_process import TruthServers
from loadgen.simulator.truth_wire import chunk, closing, opening, token_template
from tests.cli.command import too_busy

ZERO_NS = 7_000_000_000_000


def record(
    name: str, scheduled_ns: int, sent_ns: int, gaps_us: list[int], bounded: list[tuple[int, int]] | None = None
) -> Record:
    last = sent_ns + 1000 * sum(gaps_us)
    return Record(
        id=name,
        step=1,
        concurrency=1,
        phase="measured",
        worker=0,
        scheduled_ns=scheduled_ns,
        sent_ns=sent_ns,
        connect=None,
        first_byte_ns=None,
        first_token_ns=sent_ns + 1000 * gaps_us[0] if gaps_us else None,
        first_content_ns=None,
        last_token_ns=last,
        done_ns=last,
        input_tokens=InputTokens(),
        output_tokens=OutputTokens(),
        first_event_tokens=None,
        events=Events(gaps_us, [1] * len(gaps_us), bounded or []),
        outcome="ok",
        server_id=f"chatcmpl-{name}",
    )


def test_what_the_server_said_is_read_however_the_body_was_cut() -> None:
    rid = b"0000000007"
    stamps = [1_000_000_007, 2_000_000_008, 3_000_000_009]
    chunks = [opening(rid, 5, 999_999_999, True).partition(b"\r\n\r\n")[2]]
    chunks += [token_template(rid) % (at + 5, at, index) for index, at in enumerate(stamps)]
    chunks.append(closing(rid, 3))
    body = b"".join(chunks)  # with the framing of the chunks: it does not matter here
    rng = random.Random(3)
    for _ in range(50):
        cuts = sorted(rng.sample(range(len(body)), 5))
        parts = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        found = figures.heard(parts)
        assert found is not None
        name, said = found
        assert (name, said.arrival_ns, said.sent_ns.tolist()) == ("chatcmpl-0000000007", 999_999_999, stamps)
    assert figures.heard([]) is None
    assert figures.heard([chunk(b'data: {"id":"other"}\n\n')]) is None


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**9),  # sent
            st.lists(st.tuples(st.integers(0, 50_000), st.integers(-5, 90_000), st.booleans()), max_size=12),
            st.integers(0, 2),  # tokens that were heard, but are not in the record
        ),
        max_size=5,
    )
)
def test_planted_errors_are_found_to_the_microsecond(
    answers: list[tuple[int, list[tuple[int, int, bool]], int]],
) -> None:
    records, said, expected = [], {}, []
    for number, (sent_us, tokens, more) in enumerate(answers):
        at_us, gaps, bounded, sent = sent_us, [], [], []
        for index, (gap_us, error_us, bound) in enumerate(tokens):
            at_us += gap_us
            gaps.append(gap_us)
            sent.append(ZERO_NS + 1000 * (at_us - error_us))
            if bound:
                bounded.append((index, 100 + index))
            expected.append((sent[-1], 1000 * error_us, 1000 * (100 + index) if bound else -1))
        records.append(record(str(number), 0, 1000 * sent_us, gaps, bounded))
        said[f"chatcmpl-{number}"] = Heard(0, np.array(sent + [0] * more, dtype=np.int64))
    records.append(record("of another server", 0, 5, [1, 2]))
    found = figures.token_errors(records, said, ZERO_NS)
    assert list(zip(*(part.tolist() for part in (found.sent_ns, found.error_ns, found.bound_ns)), strict=True)) == (
        expected
    )


def test_stamp_errors_tell_exact_from_bounded_and_check_the_bound() -> None:
    exact = [1000 * n for n in range(1, 100)]  # 1 … 99 µs; their p99 is 98.02 µs
    others = [(500_000, 500_000), (600_000, 500_000), (500_000 + 99_000, 500_000), (0, 9_000_000)]
    errors = np.array(exact + [error for error, _ in others])
    bounds = np.array([-1] * len(exact) + [bound for _, bound in others])
    found = figures.stamp_errors(figures.Tokens(np.zeros(len(errors), dtype=np.int64), errors, bounds))
    assert found.exact == Spread(99, 50.0, pytest.approx(98.02), 99.0)
    assert found.all is not None and (found.all.n, found.all.max) == (103, 600.0)
    assert found.exact_share == pytest.approx(99 / 103)
    assert found.covered == 0.75  # within the bound, a little beyond it by what any stamp errs, and far within
    assert found.bound_p99_us == pytest.approx(float(np.percentile([500, 500, 500, 9000], 99)))
    none = np.zeros(0, dtype=np.int64)
    assert figures.stamp_errors(figures.Tokens(none, none, none)) == StampErrors(None, None, 0.0, None, None)


def test_ttft_and_lags_are_differences_of_the_right_stamps() -> None:
    made = record("a", 1_000_000, 1_030_000, [50_000])  # due at 1 ms, sent 30 µs later, first token 50 ms after that
    said = {"chatcmpl-a": Heard(ZERO_NS + 1_045_000, np.array([ZERO_NS + 51_010_000]))}
    other = record("b", 0, 900, [10])
    # the server saw 51.010 - 1.045 = 49.965 ms: 35 µs went by on the way
    assert figures.ttft_errors([made, other], said) == Spread(1, 35.0, 35.0, 35.0)
    assert figures.wire_lags([made, other], said, ZERO_NS) == Spread(1, 45.0, 45.0, 45.0)
    assert figures.dispatch_lags([made]) == Spread(1, 30.0, 30.0, 30.0)
    assert figures.ttft_errors([other], said) is None


SERVER = ServerSide(False, 0.0, 100.0, 0.3, 0.0, 0)
WELL = StreamStage(
    mode="smooth",
    tls=False,
    streams=100,
    asked_per_s=5000.0,
    events_per_s=4990.0,
    stamps=StampErrors(Spread(9, 3.0, 9.0, 80.0), Spread(9, 3.0, 9.0, 80.0), 1.0, None, None),
    ttft=None,
    cpu_us_per_event=10.0,
    cpu_share=0.05,
    waited_share=0.0,
    failed=0,
    server=SERVER,
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"waited_share": 0.5}, None),  # disturbed, but carried all the same
        ({"failed": 1}, "errors"),
        ({"stamps": StampErrors(None, None, 0.0, None, None)}, "errors"),
        ({"cpu_share": 0.97}, "cpu"),
        ({"cpu_share": 0.97, "server": replace(SERVER, limited=True)}, "cpu"),
        ({"server": replace(SERVER, limited=True)}, "server"),
        ({"stamps": replace(WELL.stamps, exact_share=0.9)}, "coalescing"),
        ({"stamps": replace(WELL.stamps, all=Spread(9, 3.0, 2001.0, 3000.0))}, "lag"),
        ({"events_per_s": 4800.0}, "lag"),
        ({"events_per_s": 4800.0, "waited_share": 0.2}, "disturbed"),
        ({"server": replace(SERVER, limited=True, waited_share=0.2)}, "disturbed"),
        ({"failed": 1, "waited_share": 0.2}, "errors"),
    ],
)
def test_what_the_limit_was(changes: dict[str, Any], expected: str | None) -> None:
    assert limit_of(replace(WELL, **changes), 0.02) == expected


def test_capacity_is_what_was_carried_and_at_least_where_the_client_was_not_the_limit() -> None:
    by_cpu = replace(WELL, streams=200, events_per_s=9000.0, limited_by="cpu")
    by_server = replace(by_cpu, limited_by="server")
    disturbed = replace(by_cpu, limited_by="disturbed")

    def told(carried: StreamStage | None, broke: StreamStage | None) -> tuple[Any, ...]:
        found = capacity(carried, broke)
        return found["streams"], found["events_per_s"], found["at_least"], found["limited_by"]

    assert told(WELL, by_cpu) == (100, 4990.0, False, "cpu")
    assert told(WELL, by_server) == (200, 9000.0, True, "server")
    assert told(WELL, disturbed) == (100, 4990.0, True, "disturbed")
    assert told(WELL, None) == (100, 4990.0, True, None)
    assert told(None, by_cpu) == (0, 0.0, False, "cpu")


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with TruthServers(2) as servers:
        yield Ground(tuple(servers.urls), tuple(servers.tls_urls), servers.ca_file, apart=False)


def test_a_small_calibration_end_to_end(ground: Ground) -> None:
    plan = Plan(
        itl_s=0.01, ttft_s=0.02, window_s=0.15, levels=(2, 5), refinements=0, checks=(4,), rates=(60.0,), dispatch_s=0.3
    )
    seen: list[Stage] = []

    async def measure() -> dict[str, Any]:
        return await calibrate(ground, plan, on_stage=seen.append)

    result = json.loads(json.dumps(anyio.run(measure)))
    assert result["schema_version"] == 1
    assert result["servers"] == 2
    assert result["host"] == host_facts()
    streams = result["streams"]
    kinds = {(stage["mode"], stage["tls"], stage["streams"]) for stage in streams}
    assert {("lockstep", False, 4), ("smooth", True, 4), ("lockstep", True, 4), ("smooth", False, 2)} <= kinds
    assert len(seen) == len(streams) + 1
    # A busy machine may come to no token at all within so short a window; not in most of them.
    known = [stage for stage in streams if stage["stamps"]["all"] is not None]
    if len(known) <= len(streams) / 2:
        too_busy()
    assert all(stage["failed"] == 0 for stage in streams)
    for stage in known:
        stamps = stage["stamps"]
        # None arrived before it was sent. How many a window holds is the machine's affair: that none is missed is
        # asserted above, of made-up answers.
        assert stamps["all"]["max"] >= stamps["all"]["p99"] >= stamps["all"]["p50"] > 0
        assert 0 < stamps["exact_share"] <= 1
        assert stage["ttft"]["n"] == stage["streams"]
        assert stage["ttft"]["p50"] > 0
    (dispatch,) = result["dispatch"]
    assert dispatch["requests"] >= 5
    assert dispatch["failed"] == 0
    assert dispatch["wire_lag"]["n"] == dispatch["requests"]
    assert dispatch["wire_lag"]["p50"] >= dispatch["dispatch_lag"]["p50"] > 0
    assert isinstance(seen[0], DispatchStage)
    capacity = result["capacity"]
    assert capacity["streams"] in (0, 2, 5)
    assert capacity["at_least"] or capacity["limited_by"]


# --- where it is kept -----------------------------------------------------------------------------------------------


def test_the_file_lies_in_the_cache_folder() -> None:
    assert default_path({"HOME": "/home/a"}) == Path("/home/a/.cache/loadgen/calibration.json")
    assert default_path({"HOME": "/home/a", "XDG_CACHE_HOME": "/tmp/c"}) == Path("/tmp/c/loadgen/calibration.json")
    assert default_path({"HOME": "/home/a", "XDG_CACHE_HOME": "not/absolute"}) == Path(
        "/home/a/.cache/loadgen/calibration.json"
    )


def test_only_a_calibration_of_this_machine_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "calibration.json"
    ours = {"schema_version": 1, "host": host_facts(), "capacity": {"streams": 3}}
    save(ours, path)
    assert load(path) == ours
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    for other in (
        {**ours, "schema_version": 2},
        {**ours, "host": {**host_facts(), "fingerprint": "0"}},
        {"schema_version": 1},
        [1],
    ):
        path.write_text(json.dumps(other))
        assert load(path) is None
    path.write_text("{")
    assert load(path) is None
    assert load(tmp_path / "nowhere") is None


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for content in ({}, None):
        with pytest.raises(LogError, match=f"calibration cannot be written to .*: {tmp_path}/file is a file"):
            save(content, tmp_path / "file" / "calibration.json")
    save(None, tmp_path / "other")  # it could be written, and was not
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_what_is_no_file_is_written_to_and_a_link_stays_one(tmp_path: Path) -> None:
    ours = {"schema_version": 1}
    link, file, pipe = tmp_path / "link", tmp_path / "folder" / "file", tmp_path / "pipe"
    file.parent.mkdir()
    file.write_text("before")
    link.symlink_to(file)
    save(None, link)
    save(ours, link)
    assert link.is_symlink() and json.loads(file.read_text()) == ours

    os.mkfifo(pipe)
    save(None, pipe)  # which waits for no reader
    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(pipe.read_text)
        save(ours, pipe)
        assert json.loads(heard.result(10)) == ours
    assert pipe.is_fifo(), "a device would have been replaced by a file as well"
