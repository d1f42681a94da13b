"""How long it takes, and how much memory, to say what a log says: `loadgen report` beside scripts that do the same sums
with pandas and with DuckDB. The same log for all, each in a process of its own.

    python -m benchmarks.reporting                                      # 100,000 requests of 200 tokens, 10 steps
    python -m benchmarks.reporting --requests 1000000 --tools loadgen   # 2.2 GB on disk while it runs

The scripts compute, by step: requests, TTFT and TPOT (mean, p50, p95, p99), ITL (p50, p99), tokens/s. That is less than
a report says: no intervals, no steady window, no checks, no findings. CPU and memory are those of all processes of a
command together, memory that they share counted once and looked at five times a second.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson

PANDAS = """
import sys
import orjson, pandas as pd
rows, gaps = [], []
with open(sys.argv[1], "rb") as file:
    for line in file:
        r = orjson.loads(line)
        if r["phase"] == "measured" and r["outcome"] == "ok":
            rows.append((r["step"], r["sent_ns"], r["first_token_ns"], r["last_token_ns"], r["output_tokens"]["count"]))
            gaps.append((r["step"], r["events"]["gap_us"][1:]))
t = pd.DataFrame(rows, columns=["step", "sent", "first", "last", "tokens"])
t["ttft"], t["tpot"] = (t["first"] - t["sent"]) / 1e6, (t["last"] - t["first"]) / 1e6 / (t["tokens"] - 1)
quantiles = [0.5, 0.95, 0.99]
by = t.groupby("step")
print(by.size(), by[["ttft", "tpot"]].mean(), by[["ttft", "tpot"]].quantile(quantiles))
print(by["tokens"].sum() / ((by["last"].max() - by["sent"].min()) / 1e9))
itl = pd.DataFrame(gaps, columns=["step", "itl"]).explode("itl")
print((itl["itl"].astype("int64") / 1e3).groupby(itl["step"]).quantile([0.5, 0.99]))
"""
DUCKDB = """
import sys
import duckdb
duckdb.sql(f'''create table log as select step, sent_ns, first_token_ns as first, last_token_ns as last,
    output_tokens.count as tokens, events.gap_us[2:] as gaps
    from read_json('{sys.argv[1]}', format='newline_delimited') where phase = 'measured' and outcome = 'ok' ''')
print(duckdb.sql('''select step, count(*), avg((first - sent_ns) / 1e6),
    quantile_cont((first - sent_ns) / 1e6, [0.5, 0.95, 0.99]), avg((last - first) / 1e6 / (tokens - 1)),
    quantile_cont((last - first) / 1e6 / (tokens - 1), [0.5, 0.95, 0.99]),
    sum(tokens) / ((max(last) - min(sent_ns)) / 1e9) from log group by step order by step'''))
print(duckdb.sql('''select step, quantile_cont(gap / 1e3, [0.5, 0.99]) from
    (select step, unnest(gaps) as gap from log) group by step order by step'''))
"""


class Run(NamedTuple):
    wall_s: float
    cpu_s: float
    peak_mib: float


def make(folder: Path, requests: int, tokens: int, steps: int, seed: int = 1) -> None:
    """A log as a closed loop against a steady server leaves it: `steps` levels of 64, 128, … in flight."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"schema_version": 1, "status": "complete"}))
    start = 10**12
    ones = [1] * tokens
    with (folder / "requests.jsonl").open("wb") as file:
        for step in range(1, steps + 1):
            slots = np.full(64 * step, start, dtype=np.int64)
            gaps = rng.normal(10_000, 300, (requests // steps, tokens)).astype(np.int64)
            gaps[:, 0] = rng.integers(50_000, 70_000, requests // steps)
            for k in range(requests // steps):
                sent, mine = int(slots[k % len(slots)]), gaps[k]
                first, last = sent + int(mine[0]) * 1000, sent + int(mine.sum()) * 1000
                slots[k % len(slots)] = last + 130_000
                line = {
                    "id": f"s{step}-{k:06d}",
                    "step": step,
                    "concurrency": len(slots),
                    "phase": "warmup" if k < len(slots) else "measured",
                    "worker": 0,
                    "scheduled_ns": sent - 20_000,
                    "sent_ns": sent,
                    "connect": None,
                    "first_byte_ns": first,
                    "first_token_ns": first,
                    "first_content_ns": first,
                    "last_token_ns": last,
                    "done_ns": last + 30_000,
                    "input_tokens": {"asked": 512, "local": None, "server": 512, "cached": None},
                    "output_tokens": {"asked": tokens, "count": tokens, "source": "usage"},
                    "events": {"gap_us": mine, "tokens": ones, "bounded": []},
                    "outcome": "ok",
                    "flags": [],
                    "finish_reason": "length",
                    "status": 200,
                    "error": None,
                    "server_id": f"chatcmpl-{k:032x}",
                    "peer": "127.0.0.1:8000",
                }
                file.write(orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
            start = int(slots.max()) + 10**9


def timed(command: list[str]) -> Run:
    """Raises SystemExit with what the command said where it fails."""
    begun = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        ended, peak = threading.Event(), [0]
        watch = threading.Thread(target=_watch, args=(process.pid, ended, peak))
        watch.start()
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - begun
        ended.set()
        watch.join()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1, 4):
            said.seek(0)
            sys.exit(f"{command[0]} failed:\n{said.read().decode()[-2000:]}")
    return Run(wall_s, used.ru_utime + used.ru_stime, peak[0] / 1024)


def _watch(pid: int, ended: threading.Event, peak: list[int]) -> None:
    while not ended.wait(0.2):  # a look takes milliseconds
        peak[0] = max(peak[0], _held_kib(pid))


def _held_kib(pid: int) -> int:
    """What a process and those that it started hold; what several share, once."""
    try:
        children = [
            int(one) for path in Path(f"/proc/{pid}/task").glob("*/children") for one in path.read_text().split()
        ]
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    own = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return own + sum(map(_held_kib, children))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tools", default="loadgen,pandas,duckdb")
    parser.add_argument("--page", action="store_true", help="The page (--html) too.")
    asked = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="reporting-"))
    try:
        folder = place / "run"
        # In a process of its own: the peak of a child counts what its parent held when it was started.
        maker = get_context("spawn").Process(target=make, args=(folder, asked.requests, asked.tokens, asked.steps))
        maker.start()
        maker.join()
        log = folder / "requests.jsonl"
        ours = [str(Path(sys.executable).parent / "loadgen"), "report", str(folder)]
        arms: dict[str, list[str]] = {}
        for tool in asked.tools.split(","):
            if tool == "loadgen":
                arms |= {"loadgen report, first time": ours, "loadgen report, again": ours}
                arms["loadgen report, other objectives"] = [*ours, "--slo", "ttft_p95=1s"]
                if asked.page:
                    arms["loadgen report --html"] = [*ours, "--html", str(place / "page.html")]
            else:
                arms[tool] = [sys.executable, "-c", {"pandas": PANDAS, "duckdb": DUCKDB}[tool], str(log)]
        size = log.stat().st_size / 1e6
        print(f"{asked.requests:,} requests of {asked.tokens} tokens in {asked.steps} steps, {size:,.0f} MB\n")
        print("| what | wall s | CPU s | peak MiB |\n| --- | ---: | ---: | ---: |")
        for name, command in arms.items():
            run = timed(command)
            print(f"| {name} | {run.wall_s:.1f} | {run.cpu_s:.1f} | {run.peak_mib:,.0f} |", flush=True)
        kept = sum(path.stat().st_size for path in (folder / ".loadgen-cache").glob("*")) / 1e6
        print(f"\nkept beside the log: {kept:,.0f} MB")
        if asked.page:
            print(f"the page: {(place / 'page.html').stat().st_size / 1e6:.2f} MB")
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
