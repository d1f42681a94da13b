"""What there is to know beside the figures, as items of a page: each with the chart that shows it. Pure.

The sentences are the report's own; a diagnosis comes as `Finding`s of its own and stands before them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...analysis.diagnose import Fact
from ...analysis.diagnose import Finding as Found
from ...analysis.since import UNSTEADY
from ..charts.figure import Table, View
from ..health import health_notes, limit_texts
from ..numbers import number, percent
from ..serverview import server_notes
from ..steadiness import unsteady_notes
from ..text import LABEL, burst_notes, failures, notes
from ..words import Words

Level = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence with what it rests on: `evidence` in words, or figures in a table; `chart` names the one that shows
    it, `change` the one thing to try."""

    level: Level
    text: str
    title: str = ""
    evidence: tuple[str, ...] = ()
    change: str = ""
    chart: str = ""
    table: Table | None = None


def found_by(found: Found, words: Words, chart: str) -> Finding:
    """A diagnosis' finding; `chart` names the one that shows it."""
    return Finding(
        found.gravity,
        words.said(found.sentence),
        words.cause(found.cause, found.title),
        tuple(_fact(fact, words) for fact in found.facts),
        words.said(found.change),
        chart,
    )


def found_in(view: View) -> list[Finding]:
    """The client as the limit, failures, then the notes of the report."""
    summaries, said = view.summaries, view.words.said
    found = [Finding("error", said(text), chart="instrument") for text in limit_texts(summaries)]
    found += [Finding("warning", said(_text(line)), chart="failures") for line in failures(summaries)]
    charted = (
        ("timeline", unsteady_notes(summaries)),
        ("itl", burst_notes(summaries)),
        ("timeline", server_notes(summaries)),
        ("instrument", health_notes(summaries)),
    )
    shown = {text: chart for chart, texts in charted for text in texts}
    for line in notes(view.facts, summaries):
        text = _text(line)
        warns = text in shown or text.startswith(UNSTEADY)
        found.append(Finding("warning" if warns else "info", said(text), chart=shown.get(text, "")))
    return found


def _fact(fact: Fact, words: Words) -> str:
    """`share of the requests that failed: 12 %`."""
    value, unit = fact.value, fact.unit
    if unit == "share":
        shown = percent(value)
    else:
        figure = f"{value:,.0f}" if value == round(value) else number(value)
        shown = f"{figure} {'×' if unit == 'times' else words.said(unit)}".rstrip()
    return words("page.fact", what=words.said(fact.what), value=shown)


def _text(line: str) -> str:
    """A line of the report without its label."""
    return line[LABEL:].strip()
