"""The comparison with other clients: its truth, its accounting, its table; and one real run of a reference client."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.clients import Answer, told
from benchmarks.peers import child
from benchmarks.peers.run import Place, _per_event, _row, _sample, measure
from benchmarks.peers.table import BEGIN, END, doubts, factors, number, section, write_section
from benchmarks.peers.tools import Told, _by_text, _named, tools
from benchmarks.peers.truth import LOG, Load, build, read_log

LOAD = Load(2, 4, 3, 50.0, 10.0, lockstep=False)
REAL = 1_700_000_000_000_000_000  # the wall clock's zero against the monotonic one


def log_of(*requests: tuple[int, int, list[int]]) -> bytes:
    """A tokend log of (rid, arrival, departures) in µs on the monotonic clock, its rows mixed as streams mix them."""
    rows = []
    for rid, arrived, tokens in requests:
        rows.append((arrived, (rid, -1, REAL + arrived * 1000, arrived * 1000)))
        # A token's wall time is of before its write, which is 3 µs earlier.
        rows += [(t, (rid, i, REAL + (t - 3) * 1000, t * 1000)) for i, t in enumerate(tokens)]
    return np.array([row for _, row in sorted(rows)], LOG).tobytes()


def test_truth_is_by_request_from_arrival_to_departure() -> None:
    truth = read_log(log_of((7, 100, [50_100, 60_100, 70_200]), (3, 90, [51_090, 61_090, 71_090]), (9, 80, [1, 2])), 3)
    assert [r.rid for r in truth.requests] == [3, 7]  # by arrival; the one of two tokens was another kind of request
    assert truth.stats() == pytest.approx(
        {
            "ttft_mean": 50.5,
            "ttft_p50": 50.5,
            "ttft_p99": 50.99,
            "itl_mean": (20.1 + 20.0) / 4,
            "tpot_mean": (20.1 + 20.0) / 4,
            "e2e_mean": (70.1 + 71.0) / 2,
        }
    )
    assert truth.events == 6
    assert truth.span_ns == (90_000, 71_090_000)


def test_a_client_is_compared_with_the_requests_its_figures_are_of() -> None:
    truth = read_log(log_of(*((i, i * 1000, [i * 1000 + 50_000 + k for k in (0, 1, 2)]) for i in range(1, 6))), 3)
    assert [r.rid for r in _sample(truth, Told({}, 2)).requests] == [4, 5]
    named = Told({}, 2, {1: (0.0, np.array([])), 3: (0.0, np.array([]))})
    assert [r.rid for r in _sample(truth, named).requests] == [1, 3]


def test_the_rate_is_of_all_streams_while_each_is_busy() -> None:
    ends = [10_000, 20_000, 30_000]
    truth = read_log(log_of(*((i, a, [a + t for t in ends]) for i, a in enumerate((0, 5_000, 40_000, 45_000)))), 3)
    usage = child.Usage(0, cpu=[(0, 0.0, 0.0), (75_000_000, 0.1, 0.1)])
    everyone = _row(LOAD, truth, Told({}, 4), usage)
    assert everyone["events_s"] == pytest.approx(6 / 0.040)  # from 5 to 45 ms: all of the first two, none of the others
    late = _row(LOAD, truth, Told({}, 2), usage)
    assert late["events_s"] != late["events_s"]  # the last two are one wave: nothing to tell


def test_errors_are_what_the_client_added() -> None:
    truth = read_log(log_of((1, 0, [50_000, 60_000, 70_000])), 3)
    added = Told({"ttft_mean": 51.5, "itl_mean": 9.0}, 1, {1: (51.5, np.array([8.0, 10.25]))})
    usage = child.Usage(0, cpu=[(0, 0.0, 0.0), (70_000_000, 0.07, 0.14)])
    row = _row(LOAD, truth, added, usage)
    assert row["ttft_mean_error"] == pytest.approx(1.5)
    assert row["itl_mean_error"] == pytest.approx(-1.0)
    assert "e2e_mean_error" not in row  # never told
    assert (row["gap_p50"], row["gap_p99"]) == (pytest.approx(1.125), pytest.approx(1.9825))
    assert row["cpu_us"] == pytest.approx(0.07 / 3 * 1e6)
    assert row["others"] == pytest.approx(100.0)


def test_texts_of_stamps_name_the_request() -> None:
    truth = read_log(log_of((1, 0, [50_000, 60_000, 70_000])), 3)
    text = "".join(
        f"R{REAL + (t - 3) * 1000:019d} M{(t - 3) * 1000:019d} I{i:06d}" for i, t in enumerate((50_000, 60_000, 70_000))
    )
    requests = _by_text({"generated_texts": [text, ""], "ttfts": [0.0515, 1.0]}, [np.array([10.0, 10.5])] * 2)
    assert _per_event(truth, Told({}, 1, requests)) == {"gap_p50": pytest.approx(0.25), "gap_p99": pytest.approx(0.495)}


def test_names_of_the_common_results_file() -> None:
    file = {
        f"{kind}_{metric}_ms": i
        for i, kind in enumerate(("mean", "median", "p99"))
        for metric in ("ttft", "itl", "tpot")
    }
    file |= {"mean_e2el_ms": 7, "median_e2el_ms": 8, "p99_e2el_ms": 9}
    expected = {"ttft_mean": 0, "ttft_p50": 1, "ttft_p99": 2, "itl_mean": 0, "itl_p50": 1, "itl_p99": 2}
    expected |= {"tpot_mean": 0, "tpot_p50": 1, "tpot_p99": 2}
    assert _named(file, "e2el") == expected | {"e2e_mean": 7, "e2e_p50": 8, "e2e_p99": 9}


def test_reference_clients_stamp_content_and_nothing_else() -> None:
    answer = Answer()
    for line in (
        b": ping",
        b"",
        b'data: {"id":"chatcmpl-80000001","choices":[{"delta":{"role":"assistant","content":""}}]}',
        b'data: {"id":"chatcmpl-80000001","choices":[{"delta":{"content":"a"}}]}',
        b'data: {"id":"chatcmpl-80000001","choices":[{"delta":{"content":"b"}}]}',
        b'data: {"id":"chatcmpl-80000001","choices":[],"usage":{"completion_tokens":2}}',
        b"data: [DONE]",
    ):
        answer.line(line)
    assert len(answer.stamps) == 2
    answer.sent, answer.stamps = 1_000_000, [6_000_000, 8_000_000]
    assert told([answer])["ttft_mean"] == 5.0
    assert told([answer])["requests"] == [["chatcmpl-80000001", 5.0, [2.0]]]


def test_accounting_reaches_the_children_and_ends_what_is_left(tmp_path: Path) -> None:
    busy = "t = time.process_time()\nwhile time.process_time() - t < {}: pass\n"
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"  # a daemon: no child of ours, nor of the parent
        f"    exec({busy.format(0.6)!r})\n"
        "    print(os.getpid(), flush=True)\n"
        "    open('done', 'w').close()\n"
        "    time.sleep(600)\n"
        "os.wait()\n"
        f"exec({busy.format(0.1)!r})\n"
        "while not os.path.exists('done'): time.sleep(0.01)\n"
        "time.sleep(0.5)\n"
    )
    cores = set(sorted(os.sched_getaffinity(0))[:1])
    earlier = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    out = tmp_path / "out.txt"
    usage = child.run(
        [sys.executable, str(script)],
        cores=cores,
        timeout_s=60.0,
        out=out,
        folder=tmp_path,
        env=os.environ,
    )
    assert usage.code == 0
    assert 0.6 <= usage.cpu_s < 3.0
    own, whole = usage.between(usage.started_ns, usage.started_ns + int(usage.wall_s * 1e9))
    assert 0.4 <= own < 3.0, "the child's as well, though what came after the last look is not known"
    assert whole >= own - 0.1
    daemon = int(out.read_text())
    assert not Path(f"/proc/{daemon}").exists()
    assert earlier.poll() is None
    earlier.kill()
    earlier.wait()


def test_a_command_that_lasts_too_long_is_ended(tmp_path: Path) -> None:
    usage = child.run(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        cores=os.sched_getaffinity(0),
        timeout_s=0.3,
        out=tmp_path / "out.txt",
        folder=tmp_path,
        env=os.environ,
    )
    assert usage.code is None
    assert usage.wall_s < 60


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0.0004, "0.000"),
        (0.0123, "0.012"),
        (1.234, "1.23"),
        (56.78, "56.8"),
        (1234.5, "1234"),
    ],
)
def test_numbers(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_factors_are_against_the_best_of_the_others() -> None:
    clients = {"loadgen": {"itl_mean_error": -0.01}, "a": {"itl_mean_error": 2.0}, "b": {"itl_mean_error": -0.5}}
    assert factors(clients) == ["ITL mean: 10 µs against 500 of b (50 ×)"]
    released = clients | {"aiohttp": {"itl_mean_error": 0.1}}
    assert factors(released) == factors(clients)
    assert factors({name: released[name] for name in ("loadgen", "aiohttp")}) == [
        "ITL mean: 10 µs against 100 of aiohttp (10 ×)"
    ]
    assert factors({"loadgen": {"itl_mean_error": 1.0}}) == []


def test_a_client_that_doubts_itself_is_quoted() -> None:
    clients = {"loadgen": {"doubted": 2.0, "runs": 3.0}, "a": {"doubted": 0.0, "runs": 3.0}}
    assert doubts(clients) == ["loadgen itself called 2 of its 3 runs here invalid, this client the limit"]


def test_a_section_is_replaced_and_the_rest_of_the_file_kept(tmp_path: Path) -> None:
    file = tmp_path / "RESULTS.md"
    facts = {"command": "c", "date": "d", "host": "h", "versions": "v"}
    rows = {LOAD.name: {"loadgen": {"ttft_mean_error": 0.5}}}
    text = section(rows, {"vllm bench serve": "a | b"}, [LOAD], 3, facts)
    assert "| loadgen | +0.500 |" in text
    assert "- vllm bench serve: a / b" in text
    file.write_text("# Results\n\nMine.\n")
    write_section(file, text)
    file.write_text(file.read_text() + "\n## Another\n\nTheirs.\n")
    once = file.read_text()
    write_section(file, text)
    assert file.read_text() == once
    assert once.startswith("# Results\n\nMine.\n\n" + BEGIN)
    assert once.endswith(END + "\n\n## Another\n\nTheirs.\n")


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_real_client_against_the_real_server(tmp_path: Path) -> None:
    (httpx,) = [tool for tool in tools() if tool.name == "httpx"]
    cores = sorted(os.sched_getaffinity(0))
    load = Load(4, 8, 10, 20.0, 5.0, lockstep=True)
    row = measure(httpx, load, build(tmp_path), Place(cores[0], frozenset(cores[-1:])))
    assert row["n"] == 8
    # A client cannot see a token before it was sent; how much later it does is not this test's business.
    assert row["ttft_mean_error"] > 0
    assert row["e2e_mean_error"] > 0
    assert abs(row["itl_mean_error"]) < 20
    assert row["cpu_us"] > 0
    assert row["startup"] > 0
