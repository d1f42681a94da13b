"""The page of several runs side by side: what differs in a sentence first, conditions, curves. Pure but for the
drawing."""

from __future__ import annotations

from ...analysis.compare import Comparison
from ...analysis.conditions import Condition, changed, unknown
from ..charts.compared import Several, compared_figures, difference_table, outcome, span
from ..charts.figure import Table
from ..compared import difference_unit, letter, load_text, notes, sentence, short, together_text
from ..numbers import clean, number, with_error
from ..text import load_cell
from ..words import Words
from . import shell
from .html import Html, foreign, join, tag

MOST_SENTENCES = 6  # in the answer
OWN_WORDS = frozenset({"searched", "simulated", "all=server default"})  # of `analysis.conditions`


def compared_page(several: Several) -> str:
    """HTML that needs nothing else."""
    w = several.words
    sections = [
        ("answer", w("page.answer"), _answer(several)),
        ("conditions", w("page.conditions"), _conditions(several)),
        ("charts", w("page.charts"), _charts(several)),
    ]
    if not several.refused and (table := difference_table(several)).rows:
        told = join(shell.table(w, table, w("page.differences")), _notes(several))
        sections.append(("differences", w("page.differences"), told))
    sections.append(("runs", w("page.runs"), _runs(several)))
    sections.append(("definitions", w("page.definitions"), shell.definitions(w)))
    names = [f"{letter(i)} {clean(name)}" for i, name in enumerate(several.names)]
    head = join(tag("h1", w("page.comparison")), *(tag("p", foreign(name), class_="soft") for name in names))
    return shell.document(w, w("page.comparison"), sections, head, ", ".join(map(clean, several.names)))


def _charts(several: Several) -> Html:
    w = several.words
    return join(tag("p", w("page.hover"), class_="soft screen"), shell.charts(w, compared_figures(several)))


def _answer(several: Several) -> Html:
    w = several.words
    if several.refused:
        names = changed(several.compared.conditions)
        why = w("page.changed_many", n=len(names), names=_named(w, names))
        return tag("div", tag("p", tag("b", w("page.refused")), w("page.colon"), foreign(why)), class_="lead")
    found = [tag("p", foreign(text)) for text in answer_sentences(several)]
    return tag("div", *found, class_="lead")


def answer_sentences(several: Several) -> list[str]:
    """What differs beyond chance, over all loads together or at each; else that nothing is established."""
    w = several.words
    said = []
    for i, one in enumerate(several.compared.against_first, 1):
        questions = [*one.curve, *one.primary] or list(one.differences)
        established = [d for d in questions if d.found and d.ratio is not None]
        for d in established[:MOST_SENTENCES]:
            if w.language == "en":
                where = f"at {load_text(d.load)}" if d.load is not None else together_text(d, len(one.loads))
                said.append(f"{where[0].upper()}{where[1:]}: {sentence(d, letter(i))}.")
            elif d.ratio is not None:
                values = {"a": number(d.a), "b": number(d.b), "unit": w.said(difference_unit(d))}
                change = span(d) + (w("answer.values", **values) if d.a is not None and d.b is not None else "")
                told = {"what": w.said(short(d)), "change": change, "result": w(f"mark.{outcome(d)}")}
                said.append(w("answer.differs", run=letter(i), **told))
        if not one.loads:
            said.append(w("answer.no_load", run=letter(i)))
        elif not established:
            said.append(w("answer.same", run=letter(i)))
    return said


def _conditions(several: Several) -> Html:
    w, found = several.words, several.compared.conditions
    names, open_ones = changed(found), unknown(found)
    if len(names) > 1:
        told = w("page.changed_many", n=len(names), names=_named(w, names))
    else:
        told = w("page.changed_one", name=w.said(names[0])) if names else w("page.changed_none")
    more = w("page.unknown", names=_named(w, open_ones)) if open_ones else None
    head = (w("table.condition"), *(letter(i) for i in range(len(several.names))), w("table.result"))
    rows = tuple(_condition(w, one) for one in found)
    classes = [one.state if one.state == "changed" else None for one in found]
    table = shell.table(w, Table(head, rows), w("page.conditions"), wordy=True, classes=classes)
    return join(tag("p", foreign(told)), tag("p", foreign(more)) if more else None, table)


def _condition(w: Words, one: Condition) -> tuple[str, ...]:
    values = (w("fact.unknown") if value is None else _value(w, clean(value)) for value in one.values)
    return (w.said(one.name), *values, w(f"state.{one.state}"))


def _named(w: Words, names: list[str]) -> str:
    return ("、" if w.language == "zh" else ", ").join(map(w.said, names))


def _value(w: Words, value: str) -> str:
    """As the manifests have it, but for what `conditions` says in words of its own."""
    return w.said(value) if value in OWN_WORDS else _short(value)


def _short(text: str, longest: int = 300) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _notes(several: Several) -> Html | None:
    found = [
        tag("li", tag("p", foreign(several.words.said(text))), class_="info")
        for i, one in enumerate(several.compared.against_first, 1)
        for text in _noted(one, i)
    ]
    return tag("ul", *found, class_="findings") if found else None


def _noted(one: Comparison, i: int) -> list[str]:
    return notes(one, letter(i))


def _runs(several: Several) -> Html:
    """Every step of every run."""
    w = several.words
    rows = []
    for i, steps in enumerate(several.runs):
        for s in steps:
            cells = [letter(i), load_cell(s), with_error(s.output_throughput), number(s.tokens_per_user)]
            for metric in ("ttft", "tpot"):
                for p in (50.0, 95.0):
                    q = s.latency[metric].at(p) if metric in s.latency else None
                    weak = q is not None and not q.established and p > 50
                    cells.append(number(q.value if q else None) + (" *" if weak else ""))
            rows.append((*cells, f"{s.requests.get('ok', 0):,}", f"{s.failed:,}"))
    heads = [f"{metric} p{p} (ms)" for metric in ("TTFT", "TPOT") for p in (50, 95)]
    head = (w("table.run"), several.load_title, w("axis.output"), w("card.user"), *heads, "n", w("table.failed"))
    return shell.table(w, Table(head, tuple(rows)), w("page.runs"))
