"""How much memory a load takes while it is logged: RSS over time, on the path every record takes.

    python -m benchmarks.memory [--tokens 10e6] [--requests 1e6] [--steps 10] [--json FILE]

Reads of made-up streams, 64 in flight at a time, go through `Tally.hold`, the record, the run folder's log and the rows
of the step, as in a run; then the step is summarised and its rows are dropped. No network. Garbage collection is off,
as it is in a step: a reference cycle would show. Three loads: many requests of four tokens in a single step; many
tokens in long streams over several steps; the same in a single step. Figures are MiB of RSS above the start: at each
tenth while the step runs, at the summary's peak, and after the step. Each load has a process of its own. The log goes
to a temporary folder and is removed.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmarks.parse import stream
from loadgen.analysis import summarise
from loadgen.client.dialects import DIALECTS
from loadgen.client.tally import Tally
from loadgen.log.columns import ColumnBuilder
from loadgen.log.store import RunFolder
from loadgen.records import InputTokens, OutputTokens, Record
from loadgen.results import Slo
from loadgen.runner.host import release_memory

PAGE = resource.getpagesize()
MIB = 1 << 20
IN_FLIGHT = 64
ITL_NS = 20_000_000
JITTER_NS = random.Random(1).choices(range(10_000_000), k=65_521)  # of stamps, so that no column packs to nothing


def rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


class Peak:
    """The largest RSS while in the block, looked at every millisecond from a thread."""

    def __enter__(self) -> Peak:
        self.value = rss()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.001):
            self.value = max(self.value, rss())


@dataclass
class Flight:
    tally: Tally
    sent_ns: int
    place: int = 0


def requests(n: int, reads: list[bytes], asked: int, step: int) -> Iterator[Record]:
    """`n` requests, always `IN_FLIGHT` of them on their way, a read from each in turn."""
    now = sent = 0
    flights: list[Flight] = []
    while sent < n or flights:
        while len(flights) < IN_FLIGHT and sent < n:
            sent += 1
            at = now + JITTER_NS[sent % len(JITTER_NS)]
            flights.append(Flight(Tally(DIALECTS["chat"], at), at))
        now += ITL_NS
        for flight in flights:
            at = now + JITTER_NS[(flight.sent_ns + 7919 * flight.place) % len(JITTER_NS)]
            if flight.tally.hold(reads[flight.place], at, max(flight.sent_ns, at - ITL_NS)):
                while flight.tally.parse_pending():
                    pass
            flight.place += 1
        for flight in flights:
            if flight.place == len(reads):
                yield record(f"s{step}-{sent:06d}", flight, now + ITL_NS - flight.sent_ns % 1000, asked, step)
        flights = [flight for flight in flights if flight.place < len(reads)]


def record(name: str, flight: Flight, end_ns: int, asked: int, step: int) -> Record:
    flight.tally.close(end_ns)
    result = flight.tally.result(asked)
    assert result.output_count == asked and result.outcome == "ok"
    return Record(
        id=name,
        step=step,
        concurrency=IN_FLIGHT,
        phase="measured",
        worker=0,
        scheduled_ns=flight.sent_ns - flight.sent_ns % 100_000,
        sent_ns=flight.sent_ns,
        connect=None,
        first_byte_ns=flight.sent_ns + 1_000_000 + flight.sent_ns % 30_011,
        first_token_ns=result.first_token_ns,
        first_content_ns=result.first_content_ns,
        last_token_ns=result.last_token_ns,
        done_ns=end_ns,
        input_tokens=InputTokens(23, None, result.input_server, result.input_cached),
        output_tokens=OutputTokens(asked, result.output_count, result.output_source),
        first_event_tokens=result.first_event_tokens,
        events=result.events,
        outcome=result.outcome,
        flags=result.flags,
        finish_reason=result.finish_reason,
        status=200,
        error=result.error,
        server_id=result.server_id,
        peer="127.0.0.1:8000",
    )


def load(title: str, kind: str, count: int, tokens: int, steps: int) -> list[dict[str, object]]:
    reads = stream(kind, tokens)
    list(requests(IN_FLIGHT, reads, tokens, 0))  # whatever is made once
    gc.collect()
    start, found = rss(), list[dict[str, object]]()

    def row(what: str, done: int, value: int) -> None:
        mib = (value - start) / MIB
        found.append({"step": step, "what": what, "requests": done, "mib": round(mib, 1)})
        print(
            f"{title:26}{step:3}  {what:8}{done:>10,} requests {done * tokens:>11,} tokens {mib:7.1f} MiB", flush=True
        )

    with tempfile.TemporaryDirectory() as folder, RunFolder.create(folder, "memory") as log:
        gc.freeze()
        gc.disable()
        done = 0
        for step in range(1, steps + 1):
            rows = ColumnBuilder(ids=False)
            for one in requests(count // steps, reads, tokens, step):
                log.append(one)
                rows.add(one)
                done += 1
                if done % (count // 10) == 0:
                    row("running", done, rss())
            with Peak() as peak:
                summary = summarise(rows.columns(), step, Slo())
                assert summary.sent == count // steps
            row("summary", done, peak.value)
            del rows, one
            release_memory()
            row("after", done, rss())
        gc.enable()
        gc.unfreeze()
        assert gc.collect() < 1000, "reference cycles"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=float, default=10e6)
    parser.add_argument("--requests", type=float, default=1e6)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write the rows to this file, too")
    options = parser.parse_args()
    streams = int(options.tokens) // 500
    loads = {
        "short requests, one step": ("vllm", int(options.requests), 4, 1),
        "tokens, several steps": ("vllm, running usage", streams, 500, options.steps),
        "tokens, one step": ("vllm, running usage", streams, 500, 1),
    }
    started = time.monotonic()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        out = {title: pool.submit(load, title, *how).result() for title, how in loads.items()}
    print(f"{time.monotonic() - started:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(out, indent=2))


if __name__ == "__main__":
    main()
