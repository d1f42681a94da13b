"""`--metrics-port`: the run's own counters as OpenMetrics, while it goes.

The page is made when it is asked for, from a few numbers that a request's end adds to; it tells of the client, not of
the server under test. Names are in the manner of Prometheus: seconds, `_total` for counters.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from ..client.driver import Progress
from ..errors import UsageError
from ..records import Record
from ..results import LevelResult, StepSummary
from .config import Opening, Watcher

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
READ_S, HEAD_BYTES, MOST_AT_ONCE = 5.0, 8192, 16


class Histogram:
    """Counts by upper bound in seconds, as Prometheus has them."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, start_ns: int | None, end_ns: int | None) -> None:
        """From one stamp to the other, where both are known."""
        if start_ns is not None and end_ns is not None:
            seconds = (end_ns - start_ns) / 1e9
            self.counts[bisect_left(BUCKETS_S, seconds)] += 1
            self.sum_s += seconds

    def lines(self, name: str) -> list[str]:
        found, total = [], 0
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), self.counts, strict=True):
            total += count
            found.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*found, f"{name}_count {total}", f"{name}_sum {self.sum_s!r}"]


class Exporter:
    """A watcher that counts, and hands everything on to the one behind it."""

    def __init__(self, inner: Watcher) -> None:
        self._inner = inner
        self._progress: Progress | None = None
        self._requests: Counter[tuple[str, str]] = Counter()  # by outcome and phase
        self._tokens: Counter[str] = Counter()  # by direction
        self._histograms = {name: Histogram() for name in ("ttft", "e2e", "dispatch_lag")}
        self._steps: Counter[str] = Counter()  # by verdict

    def waiting(self, what: str) -> None:
        self._inner.waiting(what)

    def opened(self, opening: Opening) -> None:
        self._inner.opened(opening)

    def step_started(self, progress: Progress, why: str, share: Callable[[], float]) -> None:
        self._progress = progress
        self._inner.step_started(progress, why, share)

    def request_ended(self, record: Record) -> None:
        self._requests[record.outcome, record.phase] += 1
        tokens_in = record.input_tokens
        self._tokens["input"] += next((n for n in (tokens_in.server, tokens_in.local, tokens_in.asked) if n), 0)
        self._tokens["output"] += record.output_tokens.count or 0
        self._histograms["dispatch_lag"].add(record.scheduled_ns, record.sent_ns)
        if record.outcome == "ok":
            self._histograms["e2e"].add(record.sent_ns, record.last_token_ns)
            if "not_streamed" not in record.flags:
                self._histograms["ttft"].add(record.sent_ns, record.first_token_ns)
        self._inner.request_ended(record)

    def step_ended(self, summary: StepSummary, level: LevelResult) -> None:
        self._steps[level.verdict] += 1
        self._progress = None
        self._inner.step_ended(summary, level)

    def signalled(self, what: str) -> None:
        self._inner.signalled(what)

    def page(self) -> str:
        """All of it as OpenMetrics text."""
        now = self._progress
        lines: list[str] = []
        gauges = (
            ("in_flight", "Requests in flight.", now.in_flight if now else 0),
            ("step", "The number of the step that runs, 0 for none.", now.step if now else 0),
            ("concurrency", "Requests that the step holds in flight.", now.concurrency if now else 0),
            ("request_rate", "Requests per second that the step sends; 0 in a closed loop.", (now and now.rate) or 0),
        )
        for name, text, value in gauges:
            lines += [f"# TYPE loadgen_{name} gauge", f"# HELP loadgen_{name} {text}", f"loadgen_{name} {value}"]
        lines += ["# TYPE loadgen_requests counter", "# HELP loadgen_requests Requests that have ended."]
        for (outcome, phase), count in sorted(self._requests.items()):
            lines.append(f'loadgen_requests_total{{outcome="{outcome}",phase="{phase}"}} {count}')
        lines += ["# TYPE loadgen_tokens counter", "# HELP loadgen_tokens Tokens of the requests that have ended."]
        lines += [f'loadgen_tokens_total{{direction="{way}"}} {self._tokens[way]}' for way in ("input", "output")]
        lines += ["# TYPE loadgen_steps counter", "# HELP loadgen_steps Steps that have ended."]
        lines += [f'loadgen_steps_total{{verdict="{name}"}} {count}' for name, count in sorted(self._steps.items())]
        texts = {
            "ttft": "From sending to the first token, of requests that ended ok.",
            "e2e": "From sending to the last token, of requests that ended ok.",
            "dispatch_lag": "From when a request was due until it was sent: the client's own delay.",
        }
        for name, histogram in self._histograms.items():
            full = f"loadgen_{name}_seconds"
            lines += [f"# TYPE {full} histogram", f"# UNIT {full} seconds", f"# HELP {full} {texts[name]}"]
            lines += histogram.lines(full)
        return "\n".join([*lines, "# EOF\n"])


def parse_address(text: str) -> tuple[str, int]:
    """`9464`, or `0.0.0.0:9464`, or `[::]:9464`; alone, a port is this machine's own. Raises UsageError."""
    host, _, port = text.strip().rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise UsageError(f"--metrics-port {text[:60]} is no port", "write 9464, or 0.0.0.0:9464 for other machines")
    return host.strip("[]") or "127.0.0.1", int(port)


@asynccontextmanager
async def exporting(address: tuple[str, int] | None, watcher: Watcher) -> AsyncIterator[Watcher]:
    """Serve the counters at this address meanwhile, where there is one; → who is to be told. Raises UsageError where
    the port cannot be had."""
    if address is None:
        yield watcher
        return
    exporter = Exporter(watcher)
    clients = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal clients
        clients += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            if clients <= MOST_AT_ONCE:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), READ_S)
                writer.write(_answer(head, exporter))
                await asyncio.wait_for(writer.drain(), READ_S)
        clients -= 1
        writer.close()

    try:
        server = await asyncio.start_server(serve, *address, limit=HEAD_BYTES)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no look-up takes
        shown = f"{address[0]}:{address[1]}"
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"metrics cannot be served at {shown}: {reason}", "give another --metrics-port") from None
    host, port = server.sockets[0].getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    watcher.waiting(f"metrics at http://{shown}:{port}/metrics")
    try:
        yield exporter
    finally:
        server.close()


def _answer(head: bytes, exporter: Exporter) -> bytes:
    method, _, rest = head.partition(b" ")
    path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
    if method not in (b"GET", b"HEAD"):
        status, kind, body = "405 Method Not Allowed", "text/plain", "GET only\n"
    elif path not in (b"/metrics", b"/"):
        status, kind, body = "404 Not Found", "text/plain", "/metrics is here\n"
    else:
        status, kind, body = "200 OK", CONTENT_TYPE, exporter.page()
    data = body.encode()
    head_lines = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    return head_lines.encode() + (b"" if method == b"HEAD" else data)
