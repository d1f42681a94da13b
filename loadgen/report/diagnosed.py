"""A diagnosis as text and as JSON: the questions first, then the causes with what speaks for them, one change. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from ..analysis.diagnose import Check, Diagnosis, Fact, Finding
from ..records import SCHEMA_VERSION
from .numbers import clean, number, percent, plural

LABEL = 10  # columns, as in the report
NOTHING = "none: nothing is wrong, and nothing peculiar shows"
ALONE = "none shows, but one load alone tells little: measure others (loadgen sweep, from 1 up)"
TOO_FEW = "none can be named: no load has enough answered requests (8) to tell"


def diagnosed_lines(found: Diagnosis, sources: Sequence[str], width: int = 120) -> list[str]:
    """The whole screen. `sources` are the runs that were read."""
    lines = []
    for i, source in enumerate(sources):
        loads = f" · {plural(found.levels, 'load')}" if not i else ""
        lines += _line("run" if not i else "beside", f"{clean(source)}{loads}", width)
    for check in found.checks:
        lines += _line(check.what, _checked(check), width)
    if not found.findings:
        text = TOO_FEW if not found.levels else ALONE if found.levels == 1 else NOTHING
        return [*lines, "", *_line("cause", text, width)]
    first, *others = found.findings
    lines += ["", *_finding("cause", first, width), *_line("try", first.change, width)]
    for i, finding in enumerate(others):
        lines += ["", *_finding("" if i else "also", finding, width)]
    return lines


def cause_text(finding: Finding) -> str:
    """The first finding in a line, for the end of a sweep."""
    return f"{finding.title}: {finding.sentence}"


def _checked(check: Check) -> str:
    wrong = check.good is False and check.what != "objective"  # a sweep ends where one breaks
    return clean(check.text) + (" ← look at this first" if wrong else "")


def _finding(label: str, finding: Finding, width: int) -> list[str]:
    steps = f" · step{'s' * (len(finding.steps) > 1)} {_spans(finding.steps)}" if finding.steps else ""
    head = f"{finding.title} ({finding.cause}) · {finding.gravity} · confidence {finding.confidence}{steps}"
    lines = _line(label, head, width) + _line("", finding.sentence, width)
    for fact in finding.facts:
        lines += _line("", f"· {fact_text(fact)}", width, hanging=2)
    return lines


def fact_text(fact: Fact) -> str:
    """`share of the requests that failed: 12 % (s1-000003, …)`."""
    rows = f" ({', '.join(clean(row) for row in fact.rows)}, …)" if any(fact.rows) else ""
    return f"{fact.what}: {amount(fact)}{rows}"


def amount(fact: Fact) -> str:
    if fact.unit == "share":
        return percent(fact.value)
    if fact.unit == "" and fact.value == int(fact.value):
        return f"{fact.value:,.0f}"
    return f"{number(fact.value)} {'×' if fact.unit == 'times' else fact.unit}".rstrip()


def _spans(steps: Sequence[int]) -> str:
    """1, 2, 3, 7 → 1–3, 7."""
    spans: list[list[int]] = []
    for step in sorted(set(steps)):
        if spans and step == spans[-1][1] + 1:
            spans[-1][1] = step
        else:
            spans.append([step, step])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in spans)


def _line(label: str, text: str, width: int, hanging: int = 0) -> list[str]:
    return textwrap.wrap(
        clean(text),
        max(width, 40),
        initial_indent=label.ljust(LABEL),
        subsequent_indent=" " * (LABEL + hanging),
        break_long_words=False,
        break_on_hyphens=False,
    )


def diagnosed_object(found: Diagnosis, sources: Sequence[str]) -> dict[str, Any]:
    """For `codec.encode`: `cause` and `change` are the first finding's, null where there is none."""
    first = found.first
    return {
        "schema_version": SCHEMA_VERSION,
        "sources": list(sources),
        "loads": found.levels,
        "cause": first.cause if first else None,
        "change": first.change if first else None,
        "checks": [{"what": c.what, "text": c.text, "good": c.good} for c in found.checks],
        "findings": [
            {
                "cause": f.cause,
                "title": f.title,
                "level": f.gravity,
                "confidence": f.confidence,
                "sentence": f.sentence,
                "evidence": [{"what": x.what, "value": x.value, "unit": x.unit, "rows": list(x.rows)} for x in f.facts],
                "change": f.change,
                "steps": list(f.steps),
            }
            for f in found.findings
        ],
    }
