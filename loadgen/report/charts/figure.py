"""What a chart is made from, and what it comes as: a spec with the table of its figures and what n they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...analysis.buckets import Bucket
from ...analysis.series import Series
from ...results import Slo, StepSummary, Stop
from ..answered import of_conversations
from ..facts import RunFacts
from ..text import Mark, load_cell
from ..words import ENGLISH, Words

WIDTH = 340  # px; see `style`

MOST_LOADS = 60  # points of a curve; a log of a thousand steps is thinned


@dataclass(frozen=True, slots=True)
class Buckets:
    """Requests by two axes: at one load, or (None) at all of them."""

    load: str | None
    cells: Sequence[Bucket]


@dataclass(frozen=True, slots=True)
class View:
    """One run as it is drawn. `gpus` and `price` (of one GPU for an hour, in
    whatever currency) are what no log tells; `width` is that of the plotting area in px."""

    facts: RunFacts
    summaries: Sequence[StepSummary]
    marks: Mapping[int, Mark]
    stop: Stop | None
    slo: Slo
    series: Series
    buckets: Sequence[Buckets] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict)
    gpus: int | None = None
    price: float | None = None
    words: Words = ENGLISH
    width: int = WIDTH

    @property
    def open_loop(self) -> bool:
        return any(s.rate is not None for s in self.summaries)

    @property
    def load_title(self) -> str:
        if not self.open_loop:
            return self.words("axis.in_flight")
        return self.words("axis.conversations" if self.of_conversations else "axis.rate")

    @property
    def of_conversations(self) -> bool:
        """Is its rate one of conversations, not of requests?"""
        return of_conversations(self.facts, self.summaries)

    @property
    def drawn(self) -> list[StepSummary]:
        """The steps that can stand on a load axis, by load; of very many, evenly chosen ones."""
        return thinned(self.summaries)

    def verdict(self, step: int) -> str:
        mark = self.marks.get(step)
        return mark.verdict if mark and mark.verdict else "measured"

    def counts(self, summary: StepSummary) -> bool:
        """Does the step say anything of the server? One that this client shaped is marked, and proves nothing."""
        return self.verdict(summary.step) != "invalid"

    def named(self, summary: StepSummary) -> str:
        """A step by its load, and that it does not count where it does not."""
        name = load_cell(summary)
        return name if self.counts(summary) else f"{name} ({self.words('verdict.invalid')})"

    def captioned(self, caption: str) -> str:
        """The caption, and what the mark of a step that does not count means where there is one."""
        void = not all(self.counts(s) for s in self.drawn)
        return self.words.sentences(caption, self.words("caption.void")) if void else caption

    @property
    def answer(self) -> float | None:
        """The load that the answer's figures are of."""
        return self.stop.held if self.stop else None

    @property
    def likely(self) -> float | None:
        """Where the limit most likely lies, if that is not the load of the answer; logs may hold one that a step which
        was cut short had moved."""
        stop = self.stop
        if stop is None or stop.limit == stop.held or stop.reason.partition(":")[0] not in ("slo", "unstable"):
            return None
        return stop.limit


def thinned(summaries: Sequence[StepSummary]) -> list[StepSummary]:
    """The steps that can stand on a load axis, by load; of very many, evenly chosen ones."""
    known = sorted((s for s in summaries if s.load > 0), key=lambda s: (s.load, s.step))
    if len(known) <= MOST_LOADS:
        return known
    return [known[round(i * (len(known) - 1) / (MOST_LOADS - 1))] for i in range(MOST_LOADS)]


@dataclass(frozen=True, slots=True)
class Table:
    """The figures of a chart as text; all rows as long as the head. Numbers are right of their column."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A named chart: its Vega-Lite spec, what it is called, what to know of it with its n, and its figures."""

    name: str
    title: str
    caption: str
    spec: dict[str, Any]
    table: Table
    wide: bool = False  # worth the whole width of a page
