"""`compare`: the conditions side by side, then one plain sentence for each difference; in text and in JSON. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from ..analysis.compare import Compared, Comparison, Difference, Failing, Load
from ..analysis.conditions import Condition, changed, unknown
from ..results import Estimate
from .numbers import clean, number, percent, plural

LABEL = 10  # columns
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HOW = {
    "paired": "paired by equal work",
    "independent": "independent samples",
    "adjusted": "weighted to A's mix of lengths",
    "other lengths": "of other lengths",
    "pairs of runs": "t over pairs of runs",
}


def letter(i: int) -> str:
    return LETTERS[i] if i < len(LETTERS) else f"run {i + 1}"


def refusal(found: Sequence[Condition]) -> str:
    """Why these runs are not compared; empty where at most one main variable was changed."""
    names = changed(found)
    if len(names) < 2:
        return ""
    return f"{len(names)} main variables were changed ({', '.join(names)}): what each of them did cannot be told apart"


def compared_lines(compared: Compared, *, refused: str = "", width: int = 120) -> list[str]:
    """The whole page. With `refused` it ends after the conditions."""
    blocks = [
        [f"{letter(i)}  {clean(name)}" for i, name in enumerate(compared.names)],
        condition_lines(compared.conditions, len(compared.names), width),
    ]
    names, open_ones = changed(compared.conditions), unknown(compared.conditions)
    notes = []
    if refused:
        notes.append(f"refused   {refused}")
        notes.append("          loadgen compare … --anyway compares them all the same")
    elif len(names) > 1:
        notes.append(f"warning   {refusal(compared.conditions)}")
    elif names:
        notes.append(f"changed   {names[0]}: whatever differs, as far as is told, is by that")
    else:
        notes.append("changed   nothing that all of them tell, besides target, seed and client")
    if open_ones:
        notes.append(
            f"unknown   {', '.join(open_ones)}: may differ (--describe precision=fp8 --describe gpu=H100 tells)"
        )
    blocks.append(notes)
    if not refused:
        for i, one in enumerate(compared.against_first, 1):
            blocks += comparison_blocks(one, letter(i), alone=len(compared.against_first) == 1)
    return wrapped([line for block in blocks if block for line in (*block, "")][:-1], width)


def wrapped(lines: Sequence[str], width: int) -> list[str]:
    """Lines that are too long go on below, a little to the right of where they begin."""
    found: list[str] = []
    for text in lines:
        label = text[:LABEL].strip() and text[LABEL - 1 : LABEL] == " " and not text.startswith(" ")
        indent = LABEL if label else len(text) - len(text.lstrip()) + 4
        found += textwrap.wrap(
            text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
        ) or [""]
    return found


def condition_lines(found: Sequence[Condition], runs: int, width: int) -> list[str]:
    size = max((len(c.name) for c in found), default=0) + 2
    room = max(12, (width - size - 9) // max(runs, 1))
    lines = ["  " + "condition".ljust(size) + "".join(letter(i).ljust(room) for i in range(runs))]
    for c in found:
        cells = [_fitted(value, room - 2) for value in _apart(c)]
        mark = "" if c.state == "same" else c.state
        lines.append(("  " + c.name.ljust(size) + "".join(cell.ljust(room) for cell in cells) + mark).rstrip())
    return lines


def _apart(c: Condition) -> list[str]:
    """The values; of long lists of flags what differs."""
    texts = ["unknown" if value is None else clean(value) for value in c.values]
    if c.state != "changed" or not all("=" in text for text in texts):
        return texts
    parts = [text.split(", ") for text in texts]
    shared = set(parts[0]).intersection(*parts[1:])
    return [", ".join(part for part in own if part not in shared) or "none of these" for own in parts]


def _fitted(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"


def comparison_blocks(one: Comparison, b: str, *, alone: bool) -> list[list[str]]:
    """One run against A: a block for each load, one for the curve, one for what to know."""
    blocks: list[list[str]] = []
    if not alone:
        blocks.append([f"{b} against A"])
    for load in one.loads:
        mine = [d for d in one.differences if d.load == load]
        block = [f"at {load_text(load)}, {_HOW[mine[0].how]}"]
        block += ["  " + sentence(d, b) for d in mine if d.primary or d.percentile is None]
        rest = [d for d in mine if not d.primary and d.percentile is not None and d.ratio is not None]
        if rest:
            block += ["  exploratory, each for itself:"] + ["    " + sentence(d, b) for d in rest]
        block += ["  " + text for f in one.failing if f.load == load and (text := failing_text(f, b))]
        blocks.append(block)
    for where, pooled in _by_loads(one):
        blocks.append([where, *("  " + sentence(d, b) for d in pooled)])
    blocks.append([f"note      {text}" for text in notes(one, b)])
    return [block for block in blocks if block]


def _by_loads(one: Comparison) -> list[tuple[str, list[Difference]]]:
    """What differs over several loads together, by which loads these are."""
    found: dict[str, list[Difference]] = {}
    for d in one.curve:
        found.setdefault(together_text(d, len(one.loads)), []).append(d)
    return list(found.items())


def together_text(d: Difference, loads: int) -> str:
    """`over all 3 loads together`, of so many that were compared."""
    if len(d.over) == loads:
        return f"over all {plural(loads, 'load')} together"
    return f"over {len(d.over)} of {plural(loads, 'load')} together ({', '.join(map(_amount, d.over))})"


def load_text(load: Load | None) -> str:
    if load is None:
        return "all loads"
    if load.open:
        return _amount(load)
    return f"a load of {_amount(load)}" if load.value else "the load that was not told"


def _amount(load: Load) -> str:
    return f"{load.value:,g} requests/s" if load.open else f"{load.value:,g}"


def metric_name(d: Difference) -> str:
    return "output throughput" if d.percentile is None else f"p{d.percentile:g} {d.metric.upper()}"


def difference_unit(d: Difference) -> str:
    return "tokens/s" if d.percentile is None else "ms"


def sentence(d: Difference, b: str = "B") -> str:
    """One difference in plain words."""
    name = metric_name(d)
    if d.ratio is None:
        lacking = " and ".join(side for side, value in (("A", d.a), (b, d.b)) if value is None) or "one side"
        return f"{name} cannot be compared: {lacking} has none"
    ratio = d.ratio.ratio
    change = f"{_signed(ratio.value - 1)}"
    values = f": {number(d.a)} → {number(d.b)} {difference_unit(d)}" if d.a is not None and d.b is not None else ""
    if ratio.low is None or ratio.high is None:
        return f"{name} {change}{values}; too few requests to tell it from chance"
    span = f"[{_signed(ratio.low - 1)}, {_signed(ratio.high - 1)}]"
    holm = f", p {_p(d.p_adjusted)} by Holm" if d.p_adjusted is not None else ""
    if d.found:
        more = ratio.value > 1
        word = ("more" if more else "less") if d.percentile is None else "higher" if more else "lower"
        good = more == d.more_is_better
        lead = f"{b} has {percent(abs(ratio.value - 1))} {word} {name}"
        return f"{lead} {span}, which is {'better' if good else 'worse'}{values}{holm}"
    if d.confounded:
        return f"{name} {change} {span}{values} before weighting; of other lengths, which by itself makes a difference"
    beyond = not ratio.low <= 1 <= ratio.high
    why = " beyond chance by itself, but not among so many questions" if beyond else ""
    return f"no difference established in {name}: {change} {span}{why}{values}"


def _signed(share: float) -> str:
    return f"{100 * share:+z.{1 if abs(share) < 0.1 else 0}f} %".replace("-", "−")


def _p(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def failing_text(f: Failing, b: str) -> str:
    """Nothing where neither failed."""
    if f.a is None or f.b is None or (not f.a.value and not f.b.value):
        return ""
    verdict = f"{b} fails more often" if f.worse else f"{b} fails less often" if f.better else "no difference proven"
    return f"failed: {percent(f.a.value)} → {percent(f.b.value)} of the requests; {verdict}"


def notes(one: Comparison, b: str) -> list[str]:
    found = []
    if not one.loads:
        found.append(f"no load was measured by both A and {b}: measure {b} with --levels as A's, or the same -c")
    for label, loads in (("A", one.alone_a), (b, one.alone_b)):
        if loads:
            found.append(f"only {label} measured {', '.join(map(_amount, loads))}: left out")
    for load, share in one.overlap.items():
        how = (
            "weighted to A's mix" if share >= 0.5 else "too little for a comparison at equal lengths: taken as they are"
        )
        found.append(
            f"at {_amount(load)} the lengths differ; {percent(share)} of the requests are of lengths both have, {how}"
        )
    for load, why in one.unsteady.items():
        found.append(
            f"at {_amount(load)} {' and '.join(why)}: these intervals promise too much;"
            " loadgen check --pairs 8 URL_A URL_B measures in turn"
        )
    return found


# --- JSON -----------------------------------------------------------------------------------------------------------


def compared_object(compared: Compared, *, refused: str = "") -> dict[str, Any]:
    return {
        "runs": [clean(name) for name in compared.names],
        "conditions": [
            {"name": c.name, "values": list(c.values), "main": c.main, "state": c.state} for c in compared.conditions
        ],
        "changed": changed(compared.conditions),
        "unknown": unknown(compared.conditions),
        "refused": refused or None,
        "comparisons": []
        if refused
        else [_comparison(one, letter(i)) for i, one in enumerate(compared.against_first, 1)],
    }


def _comparison(one: Comparison, b: str) -> dict[str, Any]:
    return {
        "a": clean(one.a),
        "b": clean(one.b),
        "loads": [load.value for load in one.loads],
        "loads_of_a_only": [load.value for load in one.alone_a],
        "loads_of_b_only": [load.value for load in one.alone_b],
        "differences": [difference_object(d, b) for d in one.differences],
        "curve": [difference_object(d, b) for d in one.curve],
        "failed": [failing_object(f) for f in one.failing],
        "notes": notes(one, b),
    }


def load_object(load: Load | None) -> dict[str, Any]:
    """None over the whole curve."""
    unit = None if load is None else "requests/s" if load.open else "in flight"
    return {"load": load and load.value, "load_unit": unit}


def failing_object(f: Failing) -> dict[str, Any]:
    return {**load_object(f.load), "a_share": f.a, "b_share": f.b, "worse": f.worse}


def difference_object(d: Difference, b: str = "B") -> dict[str, Any]:
    """`ratio` is B over A; the unit of `a` and `b` is beside them."""
    ratio: Estimate | None = d.ratio.ratio if d.ratio is not None else None
    return {
        "metric": d.metric,
        "percentile": d.percentile,
        **load_object(d.load),
        "unit": difference_unit(d),
        "a": d.a,
        "b": d.b,
        "ratio": ratio.value if ratio else None,
        "ratio_interval": [ratio.low, ratio.high] if ratio and ratio.low is not None else None,
        "method": d.how,
        "primary": d.primary,
        "p_holm": d.p_adjusted,
        "found": d.found,
        "sentence": sentence(d, b),
    }


def short(d: Difference) -> str:
    """`output throughput at a load of 32`, or `over 3 loads together`."""
    if d.load is None:
        return f"{metric_name(d)} over {plural(len(d.over), 'load')} together" if d.over else metric_name(d)
    return f"{metric_name(d)} at {load_text(d.load)}"
