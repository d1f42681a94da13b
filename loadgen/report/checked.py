"""`check`: has it become worse? As text, JSON, Markdown for a pull request and JUnit for a CI server. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree import ElementTree as Xml

from ..analysis.regression import Check, Judged
from .compared import difference_object, failing_object, failing_text, load_object, load_text, sentence, short, wrapped
from .numbers import clean, number, percent

# Unproven: failures count where B is proven to fail more often; what is not, has no margin to be held against.
_WORDS = {"regression": "REGRESSION", "held": "held", "undecided": "undecided", "unproven": "unproven"}


def checked_lines(check: Check, notes: Sequence[str] = (), width: int = 120) -> list[str]:
    """The answer, then each question with its reason, then what to know."""
    lines = [f"answer    {headline(check)}", ""]
    for answer, name, why in _questions(check):
        lines.append(f"  {_WORDS[answer]:<12}{name}: {why}")
    if not check.judged:
        lines.append("  nothing could be compared")
    return wrapped([*lines, *(["", *(f"note      {note}" for note in notes)] if notes else [])], width)


def headline(check: Check) -> str:
    margin = f"{percent(check.judged[0].margin)}" if check.judged else "the margin"
    if check.refused:
        return f"undecided: {check.refused}"
    if check.answer == "regression":
        worse = [short(one.difference) for one in check.judged if one.answer == "regression"]
        worse += [f"failures at {load_text(f.load)}" for f in check.failing if f.worse]
        worse += [f"{o.objective} at {load_text(o.load)}" for o in check.objections if not o.undecided]
        return f"regression: {', '.join(worse)}"
    if check.answer == "held":
        unproven = [load_text(f.load) for f in check.failing if failing_text(f, "B") and not f.better]
        more = f"; whether B fails more often at {', '.join(unproven)} is not" if unproven else ""
        return f"no loss above {margin}, and that is proven{more}"
    unsure = [f"{o.objective} at {load_text(o.load)}" for o in check.objections]
    if check.judged and all(one.answer == "held" for one in check.judged):
        return f"undecided: no loss above {margin}, but {', '.join(unsure)} not proven to hold"
    if check.more is not None:
        return f"undecided: {number(check.more, 2)} times as long would probably decide"
    if not any(one.loss for one in check.judged):
        return "undecided: there is nothing to compare"
    return f"undecided: too close to {margin} for any length to decide, or too few requests to tell"


def _questions(check: Check) -> Iterator[tuple[str, str, str]]:
    """(answer, what was asked, why) of each question."""
    for one in check.judged:
        yield one.answer, short(one.difference), reason(one)
    for f in check.failing:
        text = failing_text(f, "B")
        if text:
            answer = "regression" if f.worse else "held" if f.better else "unproven"
            yield answer, f"failures at {load_text(f.load)}", text.removeprefix("failed: ")
    for o in check.objections:
        why = "not proven to hold" if o.undecided else "broken, which the base does not break"
        yield "undecided" if o.undecided else "regression", f"objective {o.objective} at {load_text(o.load)}", why


def reason(one: Judged) -> str:
    loss = one.loss
    if loss is None:
        return sentence(one.difference)
    if loss.low is None or loss.high is None:
        return f"loss {percent(loss.value)}, with too few requests for an interval"
    text = f"loss {percent(loss.value)} [{percent(loss.low)}, {percent(loss.high)}] against {percent(one.margin)}"
    if one.answer != "undecided":
        return text
    return text + (f"; {number(one.more, 2)} times as long would decide" if one.more else "; as good as the margin")


def checked_object(check: Check, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Shares are of A's figure: a loss of 0.05 is 5 % worse."""
    return {
        "answer": check.answer,
        "headline": headline(check),
        "refused": check.refused or None,
        "length_factor_to_decide": check.more,
        "questions": [
            {
                **difference_object(one.difference),
                "answer": one.answer,
                "margin_share": one.margin,
                "loss_share": one.loss.value if one.loss else None,
                "loss_interval_share": [one.loss.low, one.loss.high] if one.loss and one.loss.low is not None else None,
                "p_holm_one_sided": one.p,
                "length_factor_to_decide": one.more,
            }
            for one in check.judged
        ],
        "failed": [failing_object(f) for f in check.failing],
        "objectives": [
            {**load_object(o.load), "objective": o.objective, "undecided": o.undecided} for o in check.objections
        ],
        "notes": [clean(note) for note in notes],
    }


def markdown(check: Check, notes: Sequence[str] = ()) -> str:
    """A table as a comment on a change shows it."""
    rows = [f"| {_cell(_WORDS[answer])} | {_cell(name)} | {_cell(why)} |" for answer, name, why in _questions(check)]
    table = ["| answer | what | why |", "| --- | --- | --- |", *rows] if rows else []
    return "\n".join([f"**{_cell(headline(check))}**", "", *table, *["", *(f"- {clean(n)}" for n in notes)]]) + "\n"


def _cell(text: str) -> str:
    return clean(text).replace("|", "\\|")


def junit(check: Check) -> bytes:
    """One test case a question: a regression is a failure, what is undecided an error, what is unproven skipped."""
    questions = list(_questions(check))
    if check.refused or not questions:
        questions.append(("undecided", "comparison", check.refused or headline(check)))
    failures, errors = (sum(answer == which for answer, _, _ in questions) for which in ("regression", "undecided"))
    suite = Xml.Element(
        "testsuite", name="loadgen check", tests=str(len(questions)), failures=str(failures), errors=str(errors)
    )
    suite.set("skipped", str(sum(answer == "unproven" for answer, _, _ in questions)))
    for answer, name, why in questions:
        case = Xml.SubElement(suite, "testcase", classname="loadgen.check", name=clean(name))
        if answer != "held":
            tag = {"regression": "failure", "undecided": "error", "unproven": "skipped"}[answer]
            Xml.SubElement(case, tag, message=clean(why), type=answer)
    text: bytes = Xml.tostring(suite, encoding="utf-8", xml_declaration=True)
    return text + b"\n"
