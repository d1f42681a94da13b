"""A workload file: what requests look like, in TOML, as one frozen `Workload`. Pure; `library` finds and reads files.

docs/workloads.md has the schema with an example. A file says where its figures come from and under which licence, what
is known to be wrong with them (`notes`), how long requests are (`lengths`), and, where wanted, how they arrive, what
they share and which objectives belong to them. `reference` holds the source's own figures, to hold draws against.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import UsageError
from ..slo import parse_slo
from .arrivals import Arrivals, parse_arrivals
from .lengths import (
    LEAST_KEPT,
    SIDES,
    Apart,
    Distribution,
    Figures,
    Fixed,
    Gamma,
    Histogram,
    Lengths,
    Limits,
    Lognormal,
    Mixture,
    Normal,
    Quantiles,
    Side,
    Uniform,
    Weibull,
)
from .sessions import HISTORIES, Sessions
from .sharing import MOST_EXPONENT, MOST_GROUPS, Sharing
from .table import LARGEST, Table

MOST_TOKENS = 100_000_000  # of one request; beyond it is a slip of the pen
MOST_CELLS = 1_000_000
MOST_DEPTH = 4  # of mixtures within mixtures
PROSE = ("name", "source", "licence", "attribution", "tokenizer", "notes", "reference", "slo")


@dataclass(frozen=True)
class Workload:
    """What requests look like. `hash` is the SHA-256 of all that changes what is sent, in a canonical form: not of the
    prose, the reference or the objectives. `reference` are the source's own figures, of `reference_n` requests. `slo`
    are objectives as `--slo` takes them. `table` is the file's content, from which another process makes the same.
    """

    name: str
    lengths: Lengths
    source: str = ""
    licence: str = ""
    attribution: str = ""
    tokenizer: str = ""
    notes: tuple[str, ...] = ()
    reference: Mapping[Side, Figures] = field(default_factory=dict)
    reference_n: int | None = None
    arrivals: Arrivals | None = None
    sessions: Sessions | None = None
    sharing: Sharing | None = None
    slo: tuple[str, ...] = ()
    hash: str = ""
    table: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def limited(self, total: int, flag: str) -> Workload:
        """The same with requests of at most `total` tokens, input and output together. Raises UsageError, naming
        `flag`, where that leaves nearly nothing."""
        table = copy.deepcopy(dict(self.table))
        lengths = table["lengths"]
        lengths["max_total"] = min(total, lengths.get("max_total", total))
        return workload_of(table, f"{self.name} with {flag} {total}")

    def describe(self) -> str:
        """`NAME · in MEAN (p50, p99) · out MEAN (p50, p99)`: what is asked for, one line for the screen."""
        return " · ".join([self.name, *(_brief(word, self.lengths.figures(side)) for word, side in _WORDS)])

    def manifest(self) -> dict[str, Any]:
        """For the manifest: enough to know the workload by, and to hold a run's lengths against."""
        lengths = self.lengths
        return {
            "name": self.name,
            "hash": self.hash,
            "origin": self.source or None,
            "licence": self.licence or None,
            "lengths_tokenizer": self.tokenizer or None,
            "max_total_len": lengths.limits.total,
            "refused_share": round(lengths.refused, 6),
            "asked": {side: lengths.figures(side).as_object() for side in SIDES},
            "own_slo": list(self.slo),
        }


_WORDS: tuple[tuple[str, Side], ...] = (("in", "input"), ("out", "output"))


MOST_CHARACTERS, MOST_PARTS = 1 << 20, 64  # of a file, of a key
_LONG_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*\.[ \t]*){{{MOST_PARTS}}}""")


def parse_workload(text: str, where: str) -> Workload:
    """The workload of a file's text. Raises UsageError, one sentence with the key's path, or the line where it is no
    TOML; `where` names the file."""
    # The parser's time grows with the square of a key's parts.
    long_key = _LONG_KEY.search(text) is not None
    if long_key or len(text) > MOST_CHARACTERS:
        what = f"a key of {MOST_PARTS} parts or more" if long_key else f"{len(text):,} characters"
        raise UsageError(f"{where} is no workload: it has {what}", "docs/workloads.md has an example")
    try:
        table = tomllib.loads(text)
    except ValueError as error:  # a TOMLDecodeError, or a number of too many digits
        raise UsageError(f"{where} is no TOML: {error}", "mend that line; docs/workloads.md has an example") from None
    except RecursionError:
        raise UsageError(f"{where} is no workload: it is nested too deep", "docs/workloads.md has an example") from None
    return workload_of(table, where)


def workload_of(table: Mapping[str, Any], where: str) -> Workload:
    """The workload of a file's content. Raises UsageError."""
    top = Table(table, "", where)
    name = top.text("name")
    if not all(letter.isalnum() or letter in "-_." for letter in name):
        raise top.wrong(
            "name", f"is {name!r}", "use letters, digits, and - _ . alone: it becomes part of a folder's name"
        )
    prose = {key: top.text(key, "") for key in ("source", "licence", "attribution", "tokenizer")}
    notes = top.texts("notes")
    lengths = _lengths(top.table("lengths"))
    reference, n = _reference(top.table("reference")) if "reference" in top else ({}, None)
    arrivals = _arrivals(top.table("arrivals")) if "arrivals" in top else None
    sessions = _sessions(top.table("sessions")) if "sessions" in top else None
    sharing = _sharing(top.table("sharing")) if "sharing" in top else None
    slo = _slo(top.table("slo")) if "slo" in top else ()
    top.done()
    return Workload(
        name,
        lengths,
        notes=notes,
        reference=reference,
        reference_n=n,
        arrivals=arrivals,
        sessions=sessions,
        sharing=sharing,
        slo=slo,
        hash=_hash({key: value for key, value in table.items() if key not in PROSE}),
        table=table,
        **prose,
    )


# --- lengths ---------------------------------------------------------------------------------------------------------


def _lengths(table: Table) -> Lengths:
    source: Apart | Histogram
    total = table.whole("max_total", least=2, most=MOST_TOKENS) if "max_total" in table else None
    if "joint" in table:
        for key in ("input", "output", "spearman"):
            if key in table:
                raise table.wrong(key, "and lengths.joint exclude each other", "leave one of the two out")
        joint = table.table("joint")
        source = _histogram(joint)
        limits = Limits(total=total)
    else:
        inputs, outputs = (table.table(side) for side in SIDES)
        spearman = table.number("spearman", 0.0, above=-1.0, most=0.999)
        source = Apart(_distribution(inputs), _distribution(outputs), spearman)
        limits = Limits(_limits(inputs), _limits(outputs), total)
        for one in (inputs, outputs):
            one.done()
    table.done()
    lengths = Lengths(source, limits)
    for side in SIDES:
        low, high = lengths.span(side)
        if math.isinf(high):
            raise UsageError(
                f"{table.where}: lengths.{side} has no end, so that no server's context would do",
                f"add a max to lengths.{side}, or lengths.max_total; draws beyond it are drawn again",
            )
        if low > high:
            raise UsageError(
                f"{table.where}: the limits of lengths.{side} leave nothing: from {low:,.0f} to {high:,.0f}",
                "raise max or max_total, or lower min",
            )
    if lengths.refused > 1 - LEAST_KEPT:
        raise UsageError(
            f"{table.where}: the limits refuse {100 * lengths.refused:.4g} % of what lengths gives",
            "widen min, max or max_total, or take a distribution that lies between them",
        )
    return lengths


def _limits(table: Table) -> tuple[int, int | None]:
    least = table.whole("min", 1, most=MOST_TOKENS)
    most = table.whole("max", least=least, most=MOST_TOKENS) if "max" in table else None
    return least, most


def _distribution(table: Table, depth: int = 0) -> Distribution:
    kind = table.text("kind")
    if kind not in _KINDS:
        raise table.wrong("kind", f"is {kind!r}, which is no distribution", f"write one of {', '.join(_KINDS)}")
    if kind == "mixture":
        return _mixture(table, depth)
    return _KINDS[kind](table)


def _uniform(table: Table) -> Distribution:
    low = table.whole("low", most=MOST_TOKENS)
    return Uniform(low, table.whole("high", least=low, most=MOST_TOKENS))


_KINDS: dict[str, Callable[[Table], Distribution]] = {
    "fixed": lambda t: Fixed(t.whole("value", most=MOST_TOKENS)),
    "uniform": _uniform,
    "normal": lambda t: Normal(t.number("mean", most=MOST_TOKENS), t.number("std", above=0, most=MOST_TOKENS)),
    "lognormal": lambda t: Lognormal(t.number("mu", most=18.5), t.number("sigma", above=0, most=20)),
    "weibull": lambda t: Weibull(t.number("shape", above=0.01, most=1e4), t.number("scale", above=0, most=MOST_TOKENS)),
    "gamma": lambda t: Gamma(t.number("shape", above=0.01, most=1e6), t.number("scale", above=0, most=MOST_TOKENS)),
    "quantiles": lambda t: _quantiles(t),
    "mixture": lambda t: _mixture(t, 0),
}


def _mixture(table: Table, depth: int) -> Distribution:
    if depth == MOST_DEPTH:
        raise UsageError(f"{table.where}: {table.path} is nested too deep", "write one mixture of all the parts")
    weights = table.numbers("weights")
    parts = table.tables("parts")
    if not parts or len(weights) != len(parts):
        raise table.wrong("weights", f"has {len(weights)} numbers for {len(parts)} parts", "give each part its weight")
    if min(weights) <= 0:
        raise table.wrong("weights", "has one that is not above zero", "leave such a part out")
    found = []
    for part in parts:
        found.append(_distribution(part, depth + 1))
        part.done()
    return Mixture(tuple(float(weight) for weight in weights), tuple(found))


def _quantiles(table: Table) -> Distribution:
    at, values = table.numbers("at"), table.numbers("values")
    if len(at) != len(values) or len(at) < 2:
        raise table.wrong("values", f"has {len(values)} numbers for {len(at)} shares", "give each share its value")
    if at[0] != 0 or at[-1] != 1 or any(one >= other for one, other in itertools.pairwise(at)):
        raise table.wrong("at", "does not rise from 0 to 1", "begin at 0 with the least, end at 1 with the most")
    if values[0] < 0 or values[-1] > MOST_TOKENS or any(one > other for one, other in itertools.pairwise(values)):
        raise table.wrong("values", f"do not rise, from 0 on to {MOST_TOKENS:,}", "give that of each share")
    return Quantiles(tuple(map(float, at)), tuple(map(float, values)))


def _histogram(table: Table) -> Histogram:
    edges = []
    for key in ("input_edges", "output_edges"):
        found = table.numbers(key, whole=True)
        if len(found) < 2 or found[0] < 1 or found[-1] > MOST_TOKENS:
            raise table.wrong(
                key, "are not two or more numbers of tokens from 1 on", "give each bin's first, and an end"
            )
        if any(one >= other for one, other in itertools.pairwise(found)):
            raise table.wrong(key, "do not rise", "give each bin's first number of tokens, and an end")
        edges.append(found)
    rows = table.lists("rows")
    cells = 0
    for i, row in enumerate(rows):
        if not isinstance(row, list) or len(row) < 3 or len(row) % 2 == 0:
            raise table.wrong(f"rows[{i}]", "is not an input bin with pairs of output bin and weight", _ROW)
        bins = [row[0], *row[1::2]]
        sizes = [len(edges[0]) - 1, *[len(edges[1]) - 1] * (len(bins) - 1)]
        for bin_, size in zip(bins, sizes, strict=True):
            if not isinstance(bin_, int) or isinstance(bin_, bool) or not 0 <= bin_ < size:
                raise table.wrong(f"rows[{i}]", f"names the bin {bin_!r}, but there are 0 to {size - 1}", _ROW)
        for weight in row[2::2]:
            if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight <= LARGEST:
                raise table.wrong(f"rows[{i}]", f"has the weight {weight!r}, not one above zero", _ROW)
        cells += len(row) // 2
    if not 0 < cells <= MOST_CELLS:
        raise table.wrong("rows", f"hold {cells:,} cells", f"give 1 to {MOST_CELLS:,}")
    table.done()
    return Histogram(edges[0], edges[1], tuple(tuple(row) for row in rows))


_ROW = "write rows as [[input bin, output bin, weight, output bin, weight], …]"


# --- the rest --------------------------------------------------------------------------------------------------------


def _reference(table: Table) -> tuple[dict[Side, Figures], int | None]:
    n = table.whole("n", most=10**12) if "n" in table else None
    found: dict[Side, Figures] = {}
    for side in SIDES:
        one = table.table(side)
        found[side] = Figures(*(one.number(key, above=0) for key in ("mean", "p50", "p90", "p99")))
        one.done()
    table.done()
    return found, n


def _arrivals(table: Table) -> Arrivals:
    text = table.text("process")
    table.done()
    try:
        return parse_arrivals(text)
    except UsageError as error:
        raise table.wrong("process", f"cannot be meant: {error.message}", error.remedy) from None


def _sessions(table: Table) -> Sessions:
    found: dict[str, Distribution] = {}
    for key in ("turns", "message", "output", "think_ms"):
        if key in table or key in ("turns", "message"):
            one = table.table(key)
            found[key] = _distribution(one)
            one.done()
    history = table.text("history", "server")
    if history not in HISTORIES:
        raise table.wrong("history", f"is {history!r}", f"write one of {', '.join(HISTORIES)}")
    table.done()
    return Sessions(**found, history="made" if history == "made" else "server")


def _sharing(table: Table) -> Sharing:
    system = table.whole("system_tokens", 0, least=0, most=MOST_TOKENS)
    prefix = table.whole("prefix_tokens", 0, least=0, most=MOST_TOKENS)
    groups = table.whole("groups", 1, most=MOST_GROUPS)
    zipf = table.number("zipf", 0.0, least=0.0, most=MOST_EXPONENT)
    table.done()
    if not system + prefix:
        raise UsageError(f"{table.where}: {table.path} shares nothing", "give system_tokens or prefix_tokens")
    return Sharing(system, prefix, groups, zipf)


def _slo(table: Table) -> tuple[str, ...]:
    objectives = table.texts("objectives")
    if not objectives:
        raise table.wrong("objectives", "is empty", 'write objectives = ["ttft_p95=500ms"], or leave [slo] out')
    table.done()
    try:
        parse_slo(objectives)
    except UsageError as error:
        raise table.wrong("objectives", f"cannot be meant: {error.message}", error.remedy) from None
    return objectives


def _hash(values: Mapping[str, Any]) -> str:
    """The same for 1 and 1.0, and for keys in any order."""
    return hashlib.sha256(json.dumps(_canonical(values), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _canonical(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_canonical(one) for one in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value if isinstance(value, (bool, int, float)) else str(value)


def _brief(word: str, figures: Figures) -> str:
    if figures.p50 == figures.p99 == figures.mean:
        return f"{word} {figures.mean:,.0f}"
    return f"{word} {figures.mean:,.0f} (p50 {figures.p50:,.0f}, p99 {figures.p99:,.0f})"
