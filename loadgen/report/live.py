"""What is shown while a run goes, on stderr: a live display on a terminal, else one line a step.

The display is drawn a few times a second from numbers kept here; a request's end costs a few additions and no
formatting, so that showing the load does not disturb it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Protocol

from ..records import Record
from ..results import LevelResult, ServerFacts, Slo, StepSummary
from .facts import RunFacts
from .numbers import clean, number
from .text import WIDTH, Mark, fit, head, line, table_head, table_row

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

BARS = "▁▂▃▄▅▆▇█"
RECENT = 256  # requests behind the TTFT and TPOT shown so far
REFRESH_HZ = 4


class Step(Protocol):
    """A step as it runs: the driver's own counters, read when the display is drawn."""

    step: int
    concurrency: int
    rate: float | None
    in_flight: int
    failed: int
    completed: int
    measured_done: int

    @property
    def phase(self) -> str: ...
    @property
    def window_s(self) -> float: ...


class Opened(Protocol):
    """What is known before the load."""

    @property
    def target(self) -> str: ...
    @property
    def facts(self) -> ServerFacts: ...
    @property
    def workload(self) -> str: ...
    @property
    def clock(self) -> str: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def plan(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def rate(self) -> float | None: ...


class Lines:
    """A line for each thing that happens: for logs, pipes and `2> file`."""

    def __init__(self, slo: Slo, write: Callable[[str], None], columns: int = WIDTH) -> None:
        self.slo = slo
        self._write = write
        self._columns = columns
        self._waiting = ""

    def waiting(self, what: str) -> None:
        if what != self._waiting:
            self._waiting = what
            self._write(f"… {clean(what)}")

    def opened(self, opening: Opened) -> None:
        facts = RunFacts(
            "", target=opening.target, server=opening.facts, workload=opening.workload, clock=opening.clock
        )
        lines = [*head(facts, self.slo), *line("plan", opening.plan)]
        for i, note in enumerate(opening.notes):
            lines += line("" if i else "note", note)
        width = self._columns = self.width()  # a table keeps its columns, also where the terminal is resized
        for text in [*fit(lines, width), "", table_head(self.slo, open_loop=opening.rate is not None, width=width)]:
            self._write(text)

    def step_started(self, progress: Step, why: str, share: Callable[[], float]) -> None:
        pass

    def request_ended(self, record: Record) -> None:
        pass

    def step_ended(self, summary: StepSummary, level: LevelResult) -> None:
        self._write(table_row(summary, Mark(level.verdict, level.broke), self.slo, width=self._columns))

    def width(self) -> int:
        return self._columns

    def signalled(self, what: str) -> None:
        self._write(what)

    def close(self) -> None:
        pass


class Terminal(Lines):
    """The same lines, and below them the step that runs: drawn over, and gone at the end."""

    def __init__(self, slo: Slo, console: Console) -> None:
        from rich.live import Live

        super().__init__(slo, lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True))
        self._console = console
        self.notes: tuple[str, ...] = ()  # shown so far
        self._step: Step | None = None
        self._why = ""
        self._share: Callable[[], float] = lambda: 0.0
        self._end = 0.0
        self._started = 0.0
        self._tokens = 0
        self._ttft: deque[float] = deque(maxlen=RECENT)
        self._tpot: deque[float] = deque(maxlen=RECENT)
        self._curve: list[tuple[int, float]] = []
        self._note = ""
        self._live = Live(
            console=console,
            get_renderable=self.draw,
            refresh_per_second=REFRESH_HZ,
            transient=True,
            redirect_stdout=False,
        )
        self._live.start()

    def waiting(self, what: str) -> None:
        self._note = clean(what)

    def opened(self, opening: Opened) -> None:
        self._note = ""
        self.notes = tuple(opening.notes)
        self._end = time.monotonic() + opening.seconds
        super().opened(opening)

    def step_started(self, progress: Step, why: str, share: Callable[[], float]) -> None:
        self._step, self._why, self._share = progress, why, share
        self._started, self._tokens = time.monotonic(), 0
        self._ttft.clear()
        self._tpot.clear()

    def request_ended(self, record: Record) -> None:
        count = record.output_tokens.count or 0
        self._tokens += count
        if record.outcome != "ok" or record.first_token_ns is None or record.sent_ns is None:
            return
        self._ttft.append((record.first_token_ns - record.sent_ns) / 1e6)
        later = count - (record.first_event_tokens or 1)
        if later > 0 and record.last_token_ns is not None:
            self._tpot.append((record.last_token_ns - record.first_token_ns) / 1e6 / later)

    def step_ended(self, summary: StepSummary, level: LevelResult) -> None:
        self._step = None
        if summary.output_throughput is not None and summary.rate is None:
            self._curve.append((summary.concurrency, summary.output_throughput.value))
        super().step_ended(summary, level)

    def signalled(self, what: str) -> None:
        self._note = what

    def width(self) -> int:
        """As wide as the terminal is now: it may be resized."""
        return min(WIDTH, self._console.width)

    def close(self) -> None:
        self._live.stop()

    def draw(self) -> Text:
        """The block below the lines, from the numbers as they are now; called by a thread of its own."""
        from rich.text import Text

        width = self.width()
        lines = [self._note] if self._note else []
        step = self._step
        if step is not None:
            lines += step_lines(
                step,
                self._why,
                self._share(),
                tokens_per_s=self._tokens / max(1e-3, time.monotonic() - self._started),
                ttft_ms=list(self._ttft),
                tpot_ms=list(self._tpot),
                left_s=self._end - time.monotonic(),
                width=width,
            )
        if self._curve:
            lines.append(curve(self._curve))
        return Text("\n".join(text[:width] for text in lines), overflow="ellipsis", no_wrap=True)


def step_lines(
    step: Step,
    why: str,
    share: float,
    *,
    tokens_per_s: float,
    ttft_ms: list[float],
    tpot_ms: list[float],
    left_s: float,
    width: int = WIDTH,
) -> list[str]:
    """The running step in plain text: two lines, or more where the terminal is narrow."""
    share = max(0.0, min(1.0, share))
    size = 20 if width >= 100 else 10
    bar = ("━" * round(share * size)).ljust(size, "─")
    phase = {"warmup": "warming up", "measured": "measuring", "filler": "waiting for the last"}[step.phase]
    asked = f"{step.in_flight:,} of {step.concurrency:,} in flight"
    if step.rate is not None:
        asked = f"{step.rate:,g} requests/s asked, {step.in_flight:,} in flight now"
    ttft = number(median(ttft_ms) if ttft_ms else None)
    tpot = number(median(tpot_ms) if tpot_ms else None)
    return [
        *pack([f"step {step.step}", asked, f"{bar} {share:4.0%}", phase, why], width),
        *pack(
            [
                f"{number(tokens_per_s)} tokens/s",
                f"TTFT {ttft} ms",
                f"TPOT {tpot} ms",
                f"{step.completed:,} done, {step.failed:,} failed",
                f"at most {duration(left_s)} left" if left_s > 0 else "",
            ],
            width,
            indent="  ",
        ),
    ]


def pack(parts: list[str], width: int, indent: str = "") -> list[str]:
    """The parts in as few lines as they need, the ones after the first indented."""
    lines: list[str] = []
    for part in filter(None, parts):
        if lines and len(lines[-1]) + 3 + len(part) <= width:
            lines[-1] += f" · {part}"
        else:
            lines.append((indent or "  " * bool(lines)) + part)
    return lines


def curve(points: list[tuple[int, float]]) -> str:
    """Throughput against concurrency as a line of bars, in order of concurrency."""
    latest = sorted(dict(points).items())
    highest = max(value for _, value in latest) or 1.0
    bars = "".join(BARS[min(7, int(value / highest * 7.999))] for _, value in latest)
    return f"  tokens/s by concurrency  {bars}  {latest[0][0]:,}…{latest[-1][0]:,}, highest {number(highest)}"


def duration(seconds: float) -> str:
    """45 s, 3 min 20 s, 1 h 05 min."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
