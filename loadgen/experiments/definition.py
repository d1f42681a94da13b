"""An experiment file: one question, one changed variable, two arms, in TOML. Pure; `library` finds and reads files.

The top of the file is the first setting, which shows the effect; `[boundary]` overrides any of its tables for a second
one, which shows what the technique costs or where it ends. docs/experiments.md has the schema with an example.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

from ..errors import UsageError
from ..results import SLO_METRICS, Slo
from ..simulator.configured import configured
from ..simulator.engine import EngineConfig
from ..slo import parse_slo
from ..workload.definition import Workload, workload_of
from ..workload.table import Table

Direction = Literal["higher", "lower", "same"]
DIRECTIONS: tuple[str, ...] = get_args(Direction)
FORMULAS = ("tpot", "ttft", "gap", "throughput", "none")  # figures that `effects` computes of an arm
SERVERS = ("vllm", "sglang", "tgi")
LEAST_PAIRS = 5
THROUGHPUT = "output_throughput"
_FIGURE = re.compile(r"([a-z0-9_]+)_p(50|90|95|99)")
_LAYERS = ("workload", "load", "engine", "a", "b", "expect")  # tables that [boundary] may override


@dataclass(frozen=True, slots=True)
class Figure:
    """What is compared: a percentile of a latency, or with `percentile` None the output throughput."""

    metric: str
    percentile: float | None

    @property
    def name(self) -> str:
        return self.metric if self.percentile is None else f"{self.metric}_p{self.percentile:g}"


@dataclass(frozen=True)
class Arm:
    """One side. `settings` are the simulated engine's, as `loadgen simulate` takes them; of `replicas` such engines
    each gets an equal share of the load. `flags` are a real server's, by its name; a server that is missing has no
    switch for this."""

    label: str
    settings: Mapping[str, Any]
    replicas: int = 1
    flags: Mapping[str, str] | None = None

    @cached_property
    def engine(self) -> EngineConfig:
        return configured(self.settings)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in flight, or with `rate` requests/s as Poisson arrivals; so many measured requests a run, and pairs of
    runs."""

    concurrency: int
    rate: float | None
    requests: int
    pairs: int

    def __str__(self) -> str:
        return f"{self.concurrency} in flight" if self.rate is None else f"{self.rate:g} requests/s, Poisson"


@dataclass(frozen=True, slots=True)
class Expect:
    """Which way `figure` of B lies from A's. `text` is the expected effect with its formula, `formula` names the
    figure that `effects` computes by it; `margin` is how far apart "the same" may be, as a share."""

    figure: Figure
    direction: Direction
    text: str
    formula: str
    margin: float = 0.05


@dataclass(frozen=True, slots=True)
class Setting:
    """A workload and a load, two arms, and what is expected of them. `figures` are the primary questions, that of
    `expect` first; `slo` objectives are judged of both arms."""

    title: str
    workload: Workload
    load: Load
    a: Arm
    b: Arm
    expect: Expect
    figures: tuple[Figure, ...]
    slo: Slo = field(default_factory=Slo)

    @property
    def primary(self) -> tuple[tuple[str, float | None], ...]:
        """The figures as metric and percentile."""
        return tuple((figure.metric, figure.percentile) for figure in self.figures)

    def shortened(self, requests: int | None, pairs: int | None) -> Setting:
        """The same with other numbers of requests and pairs, where given."""
        load = replace(self.load, requests=requests or self.load.requests, pairs=pairs or self.load.pairs)
        return replace(self, load=load)


@dataclass(frozen=True, slots=True)
class Experiment:
    """`changed` names the one variable; `settings` are the effect and, where the file has one, its boundary."""

    name: str
    question: str
    changed: str
    source: str
    notes: tuple[str, ...]
    settings: tuple[Setting, ...]


def parse_experiment(text: str, where: str) -> Experiment:
    """The experiment of a file's text. Raises UsageError, one sentence with the key's path; `where` names the file."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is no TOML: {error}", "mend that line; docs/experiments.md has an example") from None
    top = Table(table, "", where)
    name = top.text("name")
    question, changed = top.text("question"), top.text("changed")
    source, notes = top.text("source", ""), top.texts("notes")
    title = top.text("title", "the effect")
    settings = [_setting(table, title, where, name)]
    if "boundary" in top:
        boundary = top.table("boundary")
        words = boundary.text("title", "the boundary")
        for key in boundary.values:
            if key not in (*_LAYERS, "title"):
                raise boundary.wrong(key, "cannot be overridden", f"the tables here are {', '.join(_LAYERS)}")
        settings.append(_setting(_overridden(table, boundary.values), words, where, name))
    for key in _LAYERS:
        if key in top:
            top.table(key)
    top.done()
    return Experiment(name, question, changed, source, notes, tuple(settings))


def _overridden(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables key by key, but for what says lengths, metrics and sharing: those are replaced whole."""
    found = dict(below)
    for key, value in above.items():
        old = found.get(key)
        whole = key in ("lengths", "sharing", "flags") or not (isinstance(value, dict) and isinstance(old, dict))
        found[key] = value if whole else _overridden(old, value)  # type: ignore[arg-type]
    return found


def _setting(table: Mapping[str, Any], title: str, where: str, name: str) -> Setting:
    top = Table(table, "", where)
    common = top.table("engine").values if "engine" in top else {}
    # `sharing = {}` in a boundary takes the sharing of the first setting away.
    sent = {key: value for key, value in top.table("workload").values.items() if key != "sharing" or value}
    workload = workload_of({"name": name, **sent}, where)
    load = _load(top.table("load"))
    a, b = (_arm(top.table(side), common, workload, where) for side in ("a", "b"))
    for side, arm in (("a", a), ("b", b)):
        if load.rate is None and arm.replicas > load.concurrency:
            raise top.table(side).wrong(
                "replicas", f"is {arm.replicas}, and load.concurrency {load.concurrency}", "give each replica a request"
            )
    expect, figures, slo = _expect(top.table("expect"))
    return Setting(title, workload, load, a, b, expect, figures, slo)


def _load(table: Table) -> Load:
    if "rate" in table and "concurrency" in table:
        raise table.wrong("rate", "and load.concurrency exclude each other", "leave one of the two out")
    rate = table.number("rate", above=0, most=1e5) if "rate" in table else None
    concurrency = 0 if rate is not None else table.whole("concurrency", most=100_000)
    requests = table.whole("requests", 300, least=10, most=1_000_000)
    pairs = table.whole("pairs", 6, least=LEAST_PAIRS, most=100)
    table.done()
    return Load(concurrency, rate, requests, pairs)


def _arm(table: Table, common: Mapping[str, Any], workload: Workload, where: str) -> Arm:
    label = table.text("label")
    own = table.table("engine").values if "engine" in table else {}
    replicas = table.whole("replicas", 1, most=64)
    flags: dict[str, str] = {}
    if "flags" in table:
        told = table.table("flags")
        flags = {server: told.text(server, "") for server in SERVERS if server in told}
        for server in SERVERS:
            told.text(server, "")
        told.done()
    table.done()
    arm = Arm(label, {**common, **own}, replicas, flags)
    try:
        engine = arm.engine
    except UsageError as error:
        raise UsageError(f"{where}: {table.path}.engine: {error.message}", error.remedy) from None
    longest, room = workload.lengths.most_total, engine.room
    if longest > room:
        raise UsageError(
            f"{where}: requests of up to {longest:,.0f} tokens exceed what {table.path}'s engine holds, {room:,}",
            "shorten workload.lengths, or raise context_length or kv_blocks",
        )
    return arm


def _expect(table: Table) -> tuple[Expect, tuple[Figure, ...], Slo]:
    metrics = table.texts("metrics")
    if not metrics:
        raise table.wrong("metrics", "is missing or empty", 'write metrics = ["tpot_p95", "output_throughput"]')
    figures = tuple(_figure(name, table) for name in metrics)
    direction = table.text("direction")
    if direction not in DIRECTIONS:
        raise table.wrong("direction", f"is {direction!r}", f"write one of {', '.join(DIRECTIONS)}")
    formula = table.text("formula", "none")
    if formula not in FORMULAS:
        raise table.wrong("formula", f"is {formula!r}", f"write one of {', '.join(FORMULAS)}")
    text = table.text("effect")
    margin = table.number("margin", 0.05, above=0, most=1)
    slo = parse_slo(table.texts("slo"))
    table.done()
    way: Direction = "higher" if direction == "higher" else "lower" if direction == "lower" else "same"
    return Expect(figures[0], way, text, formula, margin), figures, slo


def _figure(name: str, table: Table) -> Figure:
    if name == THROUGHPUT:
        return Figure(name, None)
    match = _FIGURE.fullmatch(name)
    if not match or match[1] not in SLO_METRICS:
        raise table.wrong(
            "metrics", f"names {name!r}", f"write {THROUGHPUT}, or a latency and its percentile as in tpot_p95"
        )
    return Figure(match[1], float(match[2]))
