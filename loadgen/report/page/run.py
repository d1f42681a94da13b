"""The page of one run: the answer in a sentence first, then what it rests on. Pure but for the drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ...results import PartSummary, Slo, StepSummary
from ..answered import load_words as words_of_load
from ..answered import measured_text
from ..charts import CHARTS, Figure, Table, View, draw, figures
from ..health import bound_ms, health_lines
from ..models import POINTS
from ..numbers import clean, number, percent, with_error, with_interval
from ..text import Mark, broken_by_failures, load_cell, tail_percentile
from ..words import Words
from . import shell
from .html import Html, foreign, join, tag
from .notes import Finding, found_in

BROAD = 860  # px, of a chart that takes the whole width


def run_page(view: View, findings: Sequence[Finding] = ()) -> str:
    """HTML that needs nothing else. `findings` are those of a diagnosis; what the report itself has to say follows
    them."""
    w = view.words
    drawn = {figure.name: figure for figure in figures(view)}
    ordered = [figure for figure in drawn.values() if figure.name != "instrument"]
    broad = [again for figure in ordered if figure.wide and (again := draw(figure.name, replace(view, width=BROAD)))]
    sections = [("answer", w("page.answer"), _answer(view))]
    if view.summaries:
        sections.append(("steps", w("page.steps"), _steps(view)))
    if ordered:
        sections.append(("charts", w("page.charts"), _charts(view, ordered, broad)))
    if parts := _parts(view):
        sections.append(("parts", w("page.parts"), parts))
    everything = [*findings, *found_in(view)]
    sections += [
        ("findings", w("page.findings"), _findings(w, everything, set(drawn))),
        ("error", w("page.error"), _error(view, drawn.get("instrument"))),
        ("conditions", w("page.conditions"), _conditions(view)),
        ("definitions", w("page.definitions"), shell.definitions(w)),
    ]
    server = view.facts.server
    about = [server.model or "", view.facts.target, _started(view.manifest)]
    head = join(
        tag(
            "h1",
            w("page.report"),
            w("page.colon") if server.model else None,
            foreign(server.model) if server.model else None,
        ),
        tag("p", foreign(" · ".join(part for part in about if part)), class_="soft"),
    )
    title = f"{w('page.report')}{w('page.colon')}{server.model or view.facts.source}"
    return shell.document(w, title, sections, head, view.facts.source)


# --- the answer -----------------------------------------------------------------------------------------------------


def answer_text(view: View) -> str:
    """What the run decided, in its own sentences; where the language has none for them, from the figures."""
    w, stop = view.words, view.stop
    if stop is not None and stop.sentence and (own := w.answered(clean(stop.sentence))) is not None:
        return own
    sent, failed = sum(s.judged for s in view.summaries), sum(s.failed for s in view.summaries)
    if not view.summaries or not sent:
        return w("page.nothing")
    said = []
    if stop is None:
        said.append(measured_text(w, view.facts, view.summaries))
    elif stop.held is not None and stop.broke is not None and stop.held < stop.broke:
        names = {"held": load_words(view, stop.held), "broke": load_words(view, stop.broke)}
        said.append(w("answer.held_broke", **names, objectives=_broken(view, stop.broke)))
    elif stop.held is not None:
        said.append(w("answer.held_only", held=load_words(view, stop.held)))
    elif stop.broke is not None:
        key = "answer.broke_only" if stop.held_again else "answer.broke"
        said.append(w(key, broke=load_words(view, stop.broke), objectives=_broken(view, stop.broke)))
    else:
        said.append(w("answer.stopped", reason=w.said(clean(stop.reason))))
    if stop is not None and stop.held_again:
        said.append(w("answer.again", loads=w("answer.and").join(load_words(view, load) for load in stop.held_again)))
    if stop is not None and stop.peak_throughput is not None:
        said.append(w("answer.peak", peak=with_error(stop.peak_throughput)))
    if failed == sent:
        said.append(w("answer.failed", failed=f"{failed:,}", n=f"{sent:,}"))
    return w.sentences(*said)


def load_words(view: View, load: float) -> str:
    return words_of_load(view.words, view.facts, view.summaries, load)


def _broken(view: View, load: float) -> str:
    steps = [s for s in view.summaries if s.load == load and s.step in view.marks]
    names = [name for s in steps for name in view.marks[s.step].broke]
    failed = any(broken_by_failures(s, view.marks[s.step]) for s in steps)
    by = view.words("verdict.by_failures") if failed else ""
    return f"{', '.join(dict.fromkeys(names)) or '–'}{' ' if view.words.language == 'en' and by else ''}{by}"


def shown_step(view: View) -> StepSummary | None:
    """The step that the answer's figures are of: the one that held, else the only one there is."""
    if view.stop is not None and view.stop.held is not None:
        return next((s for s in reversed(view.summaries) if s.load == view.stop.held), None)
    return view.summaries[0] if len(view.summaries) == 1 else None


def _answer(view: View) -> Html:
    w = view.words
    step = shown_step(view)
    sentence = tag("p", foreign(answer_text(view)))
    lead = tag("div", sentence, class_="lead")
    if step is None:
        sent, failed = sum(s.judged for s in view.summaries), sum(s.failed for s in view.summaries)
        told = w("answer.failed", failed=f"{failed:,}", n=f"{sent:,}") if sent else None
        return join(lead, tag("p", told, class_="soft") if told else None)
    held = tag("p", w("answer.at", load=load_words(view, step.load))) if step.load else None
    return join(tag("div", sentence, held, class_="lead"), cards(view, step))


def cards(view: View, s: StepSummary) -> Html:
    """The figures of one step, each with its interval and its n."""
    w = view.words
    found: list[tuple[str, str, str]] = []
    n = w("card.n", n=f"{s.requests.get('ok', 0):,}")
    if s.output_throughput:
        found.append((w("card.output"), with_error(s.output_throughput), n))
    if s.completion_rate:
        found.append((w("card.rate"), with_error(s.completion_rate), n))
    if s.tokens_per_user:
        found.append((w("card.user"), number(s.tokens_per_user), n))
    for metric in ("ttft", "tpot"):
        p = tail_percentile(view.slo, metric)
        q = s.latency[metric].at(p) if metric in s.latency else None
        if q is None:
            continue
        sure = f"[{number(q.low)}, {number(q.high)}] · {w('card.n', n=f'{q.n:,}')}"
        below = sure if q.established else w("card.weak", n=f"{q.n:,}")
        found.append((f"{metric.upper()} p{p:g} (ms)", number(q.value), below))
    of = w("card.of_one" if s.judged == 1 else "card.of", n=f"{s.judged:,}")
    found.append((w("card.failed"), f"{s.failed:,}", of))
    inner = [tag("div", tag("dt", name), tag("dd", value, tag("small", below))) for name, value, below in found]
    return tag("dl", *inner, class_="cards")


# --- steps ----------------------------------------------------------------------------------------------------------


def _steps(view: View) -> Html:
    held = shown_step(view)
    classes = ["held" if s is held else None for s in view.summaries]
    return shell.table(view.words, step_table(view), view.words("page.steps"), classes=classes)


def step_table(view: View) -> Table:
    """One row a step, as in the report."""
    w = view.words
    tails = {metric: tail_percentile(view.slo, metric) for metric in ("ttft", "tpot")}
    head = [view.load_title, w("axis.output"), w("card.user")]
    for metric, p in tails.items():
        head += [f"{metric.upper()} p50", f"p{p:g} [95 %] (ms)"]
    head += ["n", w("table.failed"), w("table.verdict")]
    rows = []
    for s in view.summaries:
        cells = [load_cell(s), with_error(s.output_throughput), number(s.tokens_per_user)]
        for metric, p in tails.items():
            found = s.latency.get(metric)
            half, tail = (found.at(50.0), found.at(p)) if found else (None, None)
            weak = tail is not None and not tail.established
            cells += [number(half.value if half else None), w("mark.weak") if weak else with_interval(tail)]
        mark = view.marks.get(s.step, Mark(""))
        broke = f" {' '.join(mark.broke)}" if mark.verdict == "fail" else ""
        broke += f" {w('verdict.by_failures')}" if broken_by_failures(s, mark) else ""
        verdict = tag("span", w(f"verdict.{view.verdict(s.step)}") + broke, class_=view.verdict(s.step))
        rows.append((*cells, f"{s.requests.get('ok', 0):,}", f"{s.failed:,}", verdict))
    return Table(tuple(head), tuple(rows))


def _charts(view: View, ordered: Sequence[Figure], broad: Sequence[Figure]) -> Html:
    w = view.words
    there = {figure.name for figure in ordered} | {"failures", "instrument"}
    missing = [w(f"title.{name}") for name in CHARTS if name not in there]
    lacking = tag("p", w("page.not_drawn", charts="; ".join(missing)), class_="soft") if missing else None
    return join(tag("p", w("page.hover"), class_="soft screen"), shell.charts(w, ordered, broad), lacking)


def _parts(view: View) -> Html | None:
    """What each of several models, addresses or turns did, at the answer's load."""
    w = view.words
    s = shown_step(view) or (view.summaries[-1] if view.summaries else None)
    if s is None:
        return None
    tables = [
        shell.table(w, _part_table(w, parts, w(f"bucket.{what}")), w(f"bucket.{what}"))
        for what, parts in (("model", s.by_model), ("peer", s.by_peer), ("turn", s.by_turn))
        if parts
    ]
    where = tag("p", w("answer.at", load=load_words(view, s.load)), class_="soft")
    return join(where, *tables) if tables else None


def _part_table(w: Words, parts: Sequence[PartSummary], name: str) -> Table:
    heads = [f"{metric.upper()} p{p:g} (ms)" for metric in ("ttft", "tpot") for p in POINTS]
    rows = []
    for one in parts:
        points = [
            one.latency[metric].at(p) if metric in one.latency else None for metric in ("ttft", "tpot") for p in POINTS
        ]
        cells = ["–" if q is None else number(q.value) + ("" if q.established or q.p == 50.0 else " *") for q in points]
        rows.append((clean(one.name), number(one.output_throughput), *cells, f"{one.ok:,}", f"{one.failed:,}"))
    return Table((name, w("axis.output"), *heads, "n", w("table.failed")), tuple(rows))


# --- findings -------------------------------------------------------------------------------------------------------


def _findings(w: Words, findings: Sequence[Finding], drawn: set[str]) -> Html:
    if not findings:
        return tag("p", w("page.no_findings"))
    items = []
    for one in findings:
        evidence = [tag("li", foreign(text)) for text in one.evidence]
        chart = tag("a", w(f"title.{one.chart}"), href=f"#chart-{one.chart}") if one.chart in drawn else None
        items.append(
            tag(
                "li",
                tag(
                    "p",
                    tag("b", w(f"level.{one.level}"), class_="level"),
                    " ",
                    tag("b", foreign(one.title), w("page.colon")) if one.title else None,
                    foreign(one.text),
                    " → " if chart else None,
                    chart,
                ),
                tag("p", w("page.try"), w("page.colon"), foreign(one.change)) if one.change else None,
                tag("p", w("page.evidence"), w("page.colon")) if evidence else None,
                tag("ul", *evidence) if evidence else None,
                shell.table(w, one.table, w("page.evidence"), wordy=True) if one.table else None,
                class_=one.level,
            )
        )
    return tag("ul", *items, class_="findings")


def _error(view: View, figure: Figure | None) -> Html:
    w = view.words
    parts = [
        w("page.error_part", ms=bound_ms(max(bounds)), metric=metric.upper())
        for metric in ("ttft", "itl")
        if (bounds := [s.error_ms[metric].p99 for s in view.summaries if metric in s.error_ms])
    ]
    if not parts:
        return tag("p", w("page.no_error"))
    sentence = tag("p", w("page.error_bound", parts=(" · " if w.language == "zh" else ", ").join(parts)))
    s = shown_step(view) or view.summaries[-1]
    named = {"error at most": w("legend.bound"), "client": w("fact.host"), "the limit": w("fact.limit")}
    lines = [(named[label], foreign(w.told(text))) for label, text in health_lines(s) if text]
    return join(sentence, shell.charts(w, [figure]) if figure else None, shell.facts(lines))


# --- conditions -----------------------------------------------------------------------------------------------------


def _conditions(view: View) -> Html:
    w, run, m = view.words, view.facts, view.manifest
    objectives = ", ".join(o.text for o in view.slo.objectives)
    server = " ".join(part for part in (run.server.kind or "", run.server.version or "") if part)
    describe = m.get("describe")
    described = ", ".join(f"{k}={v}" for k, v in describe.items()) if isinstance(describe, Mapping) else ""
    unknown = w("fact.unknown")
    return shell.facts(
        [
            (w("fact.target"), run.target or unknown),
            (w("fact.server"), server or unknown),
            (w("fact.model"), run.server.model or unknown),
            (w("fact.context"), f"{run.server.context_length:,}" if run.server.context_length else ""),
            (w("fact.describe"), described),
            (w("fact.workload"), w.told(run.workload) or unknown),
            (w("fact.objectives"), objectives + _attainment(w, view.slo)),
            (w("fact.seed"), f"{run.seed}" if run.seed is not None else ""),
            (w("fact.clock"), w.told(run.clock)),
            (w("fact.started"), _started(m)),
            (w("fact.status"), w.said(run.status)),
            (w("fact.stop"), w.said(view.stop.reason) if view.stop else ""),
            (w("fact.requests"), w("fact.of_them_failed", n=f"{run.requests:,}", failed=f"{run.failed:,}")),
            (w("fact.host"), _told(m.get("host"), w)),
            (w("fact.definitions"), _told(_within(m.get("definitions"), "version"), w)),
        ]
    )


def _attainment(w: Words, slo: Slo) -> str:
    told = any(o.percentile is None for o in slo.objectives)
    return f", {w('fact.attainment', share=percent(slo.attainment))}" if told else ""


def _within(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, Mapping) else None


def _told(value: Any, w: Words, longest: int = 400) -> str:
    """A part of a manifest, whatever it holds, on one line."""
    if isinstance(value, Mapping):
        known = {k: v for k, v in value.items() if not isinstance(v, (Mapping, list)) and v is not None}
        text = ", ".join(f"{w.said(str(k))} {v}" for k, v in known.items())
    else:
        text = "" if value is None or isinstance(value, list) else str(value)
    text = clean(text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _started(manifest: Mapping[str, Any]) -> str:
    at = manifest.get("started_epoch_ns")
    if not isinstance(at, int) or not 0 < at < 2**63:
        return ""
    return datetime.fromtimestamp(at / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
