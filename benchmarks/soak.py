"""`python -m benchmarks.soak`: a long load, and many kills.

    python -m benchmarks.soak --minutes 30 --streams 1000     flat memory, descriptors and lag; counts to the last token
    python -m benchmarks.soak --kills 200                     a sweep killed at random moments, and resumed each time

The load goes to an embedded simulated engine that decodes slowly, so that the streams are many and the tokens few: two
tokens a second each. RSS and descriptors of the client and its workers are read every few seconds; growth is the slope
of a line through the later three quarters. The server's own counters are held against the log at the end. A killed
sweep is read, resumed, and its requests looked through for any that is there twice. Exit code 1 where something does
not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np

from loadgen.log.store import open_run
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.process import SimulatorProcess

EVERY_S = 2.0
LEAST_MIN = 5.0
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
OUTPUT_TOKENS = 16
COMMAND = (sys.executable, "-m", "loadgen")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def family(pid: int) -> list[int]:
    """The process and all below it."""
    try:
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(one for child in below for one in family(int(child)))]


def sample(pids: list[int]) -> tuple[float, int]:
    """RSS in MiB and open descriptors of these together."""
    rss, descriptors = 0.0, 0
    for pid in pids:
        try:
            rss += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_MIB
            descriptors += len(list(Path(f"/proc/{pid}/fd").iterdir()))
        except OSError:
            pass
    return rss, descriptors


def counter(url: str, name: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", answer.read().decode(), re.MULTILINE)
    return int(sum(map(float, found)))


def soak(minutes: float, streams: int, workers: str) -> int:
    """→ the number of things that do not hold."""
    engine = EngineConfig(
        step_ms=500.0, decode_ms=0.0, prefill_ms=0.001, max_batch=2 * streams, max_prefill_tokens=1_000_000
    )
    with tempfile.TemporaryDirectory(prefix="loadgen-soak-") as place, SimulatorProcess(engine) as simulator:
        process = subprocess.Popen(
            [
                *(
                    *COMMAND,
                    "run",
                    simulator.url,
                    "-c",
                    str(streams),
                    "--duration",
                    f"{minutes}m",
                    "--workers",
                    workers,
                ),
                *("--input-len", "32", "--output-len", str(OUTPUT_TOKENS), "--seed", "1", "-o", place, "--json"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        seen: list[tuple[float, float, int]] = []
        begun = time.monotonic()
        while process.poll() is None:
            time.sleep(EVERY_S)
            seen.append((time.monotonic() - begun, *sample(family(process.pid))))
        assert process.stdout is not None
        answer = json.loads(process.stdout.read())
        (folder,) = Path(place).iterdir()
        records = list(open_run(folder).records())
        tokens = sum(record.output_tokens.count or 0 for record in records)
        served = counter(simulator.url, "vllm:generation_tokens_total")
        finished = counter(simulator.url, "vllm:request_success_total")
    step = answer["steps"][0]
    times, rss, descriptors = (np.array(column, dtype=float) for column in zip(*seen, strict=True))
    full = np.flatnonzero(descriptors >= streams)  # the load is there
    assert len(full), "the streams were never all there"
    first, last = times[full[0]], times[full[-1]]
    held = (times > first + (last - first) / 4) & (times < last - 2 * EVERY_S)
    rate = float(np.polyfit(times[held] / 3600, rss[held], 1)[0])
    grown = rate * (times[held][-1] - times[held][0]) / 3600
    ok = sum(record.outcome == "ok" for record in records)
    say(f"load        {streams:,} streams for {minutes:g} min, {step['workers']} processes: {len(records):,} requests")
    say(f"memory      {rss[held].min():.0f} to {rss[held].max():.0f} MiB, {rate:+.0f} MiB/h: {grown:+.1f} MiB in all")
    say(f"descriptors {descriptors[held].min():.0f} to {descriptors[held].max():.0f} while it lasted")
    health = step.get("client") or {}
    say(f"lag         {json.dumps({k: v for k, v in health.items() if 'lag' in k})}")
    say(f"limit       {step.get('client_limit')}")
    say(f"requests    {ok:,} ok of {len(records):,} in the log, {finished:,} by the server")
    say(f"tokens      {tokens:,} in the log, {served:,} by the server")
    wrong = [
        name
        for name, holds in (
            ("tokens differ", tokens == served),
            ("requests differ", len(records) == finished and ok == len(records)),
            # The rows of a step are kept until it ends: some 30 bytes a request and 5 a token.
            ("memory grows", minutes < LEAST_MIN or grown < 10 + 1e-6 * (40 * len(records) + 8 * tokens)),
            ("descriptors grow", descriptors[held].max() - descriptors[held].min() <= 8),
        )
        if not holds
    ]
    if minutes < LEAST_MIN:
        say(f"note        {minutes:g} min are too short to tell growth from a start")
    say("held" if not wrong else "NOT HELD: " + ", ".join(wrong))
    return len(wrong)


def kills(number: int) -> int:
    """→ how many sweeps lost a request, counted one twice, or did not complete."""
    chance, wrong, resumed, before_log, ended = random.Random(7), 0, 0, 0, 0
    with SimulatorProcess(EngineConfig(step_ms=4.0, decode_ms=0.1, overhead_ms=2.0)) as simulator:
        for count in range(number):
            with tempfile.TemporaryDirectory(prefix="loadgen-kills-") as place:
                flags = ("--levels", "1,2,4", "--requests", "12", "--input-len", "16", "--output-len", "4", "-o", place)
                process = subprocess.Popen(
                    [*COMMAND, "sweep", simulator.url, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                _until(process, Path(place), chance.randint(0, 60))
                process.send_signal(signal.SIGKILL)
                ended += process.wait() >= 0
                folders = list(Path(place).iterdir())
                if not folders:
                    before_log += 1
                    continue
                kept = {record.id: record for record in open_run(folders[0]).records()}
                done = subprocess.run(
                    [*COMMAND, "sweep", "--resume", str(folders[0])], capture_output=True, text=True, check=False
                )
                if done.returncode == 2 and "before its first step" in done.stderr:
                    before_log += 1
                    continue
                resumed += 1
                after = list(open_run(folders[0]).records())
                ids = [record.id for record in after]
                lost = [one for one in kept if kept[one] not in after]
                if done.returncode not in (0, 4) or len(ids) != len(set(ids)) or lost:
                    wrong += 1
                    say(f"kill {count}: exit {done.returncode}, {len(ids) - len(set(ids))} twice, {len(lost)} lost")
                    say(done.stderr[-500:])
    told = f"{ended} had ended by themselves, {before_log} came before there was a step, {resumed} resumed"
    say(f"kills       {number}: {told}, {wrong} wrong")
    return wrong


def _until(process: subprocess.Popen[bytes], place: Path, lines: int) -> None:
    """Wait until so many requests are in the log of the run there, or it has ended."""
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        logs = list(place.glob("*/requests.jsonl"))
        if logs and logs[0].read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.01)


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--workers", default="auto")
    parser.add_argument("--kills", type=int, default=0, help="instead: kill so many sweeps")
    options = parser.parse_args()
    wrong = kills(options.kills) if options.kills else soak(options.minutes, options.streams, options.workers)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
