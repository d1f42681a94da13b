"""How does a run differ from another, at each load and over the whole curve, and how sure is that? Pure.

The primary questions are output throughput, p95 TTFT and p95 TPOT at three loads at the most, and over all loads
together; Holm's rule holds the chance that any of their answers is wrong below 5 %. All else is exploratory: its
intervals are each for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..log.columns import Columns
from ..results import Estimate, StepSummary
from ..stats import batch_count, binomial_bounds, design_effect, effective_n
from .conditions import Condition, same_work, same_workload
from .objectives import judged
from .ratios import ALPHA, LogRatio, holm, mean_of
from .sides import (
    Mix,
    Side,
    adjusted_percentile,
    adjusted_throughput,
    mix_of,
    mixes_differ,
    percentile_ratio,
    step_sides,
    throughput_ratio,
)
from .window import has_outcome, is_phase

How = Literal["paired", "independent", "adjusted", "other lengths", "pairs of runs"]
MOST_LEVELS = 3
PRIMARY = (("output_throughput", None), ("ttft", 95.0), ("tpot", 95.0))
EXPLORED = (("ttft", 50.0), ("ttft", 99.0), ("tpot", 50.0), ("e2e", 50.0), ("e2e", 95.0))


@dataclass(frozen=True, slots=True, order=True)
class Load:
    """What a step was asked for: requests/s of an open loop, else requests in flight. Of one number they are two."""

    open: bool
    value: float


def load_of(summary: StepSummary) -> Load:
    return Load(summary.rate is not None, summary.load)


@dataclass(frozen=True, slots=True)
class RunSide:
    """What of a run is compared. `invalid` says, by step, why it says nothing of the server."""

    name: str
    manifest: Mapping[str, Any] | None
    columns: Columns
    summaries: Sequence[StepSummary]
    invalid: Mapping[int, str] = field(default_factory=dict)

    @property
    def measured(self) -> frozenset[Load]:
        """All its loads, those of invalid steps with them."""
        return frozenset(map(load_of, self.summaries))


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of B beside A's. `percentile` is None for throughput, in tokens/s; latencies are in ms. `ratio` is B
    over A, None where one side has none. `load` is None over several loads together, which `over` names.
    `p_adjusted` is Holm's, of a primary one."""

    metric: str
    percentile: float | None
    load: Load | None
    a: float | None
    b: float | None
    ratio: LogRatio | None
    how: How
    primary: bool = False
    p_adjusted: float | None = None
    over: tuple[Load, ...] = ()

    @property
    def more_is_better(self) -> bool:
        return self.percentile is None

    @property
    def confounded(self) -> bool:
        """Were the sides asked for other lengths? Weights undo what a request's own length does to it, not what its
        neighbours' do: equal engines differed in nearly every trial."""
        return self.how in ("adjusted", "other lengths")

    @property
    def found(self) -> bool:
        """Is there a difference beyond chance: after Holm where it is primary, else each for itself?"""
        if self.ratio is None or self.ratio.error is None or self.confounded:
            return False
        return (self.ratio.p_value() if self.p_adjusted is None else self.p_adjusted) <= ALPHA


@dataclass(frozen=True, slots=True)
class Failing:
    """The share of judged requests that failed on either side of a load, with its interval on the effective sample."""

    load: Load
    a: Estimate | None
    b: Estimate | None

    @property
    def worse(self) -> bool:
        """Is B's share proven to be above A's?"""
        return None not in (self.a, self.b) and _low(self.b) > _high(self.a)

    @property
    def better(self) -> bool:
        return None not in (self.a, self.b) and _low(self.a) > _high(self.b)


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A. `loads` are those compared, `curve` what differs over them together; `alone_a`, `alone_b` those of
    one side only. `overlap` is that of the mixes of lengths by load, where they differ. `unsteady` says, by load, what
    makes the intervals promise too much."""

    a: str
    b: str
    loads: tuple[Load, ...]
    alone_a: tuple[Load, ...]
    alone_b: tuple[Load, ...]
    differences: tuple[Difference, ...]
    curve: tuple[Difference, ...]
    failing: tuple[Failing, ...]
    overlap: Mapping[Load, float] = field(default_factory=dict)
    unsteady: Mapping[Load, tuple[str, ...]] = field(default_factory=dict)
    matched: Sequence[tuple[Side, Side]] = ()

    @property
    def primary(self) -> list[Difference]:
        return [d for d in self.differences if d.primary]


@dataclass(frozen=True, slots=True)
class Compared:
    """The runs, their conditions side by side, and each later run against the first."""

    names: tuple[str, ...]
    conditions: tuple[Condition, ...]
    against_first: tuple[Comparison, ...]


def compare(a: RunSide, b: RunSide) -> Comparison:
    """B against A at each load that both measured. Two runs of a single load each are compared whatever these are."""
    ours, theirs = _by_load(a), _by_load(b)
    if len(ours) == len(a.measured) == 1 and len(theirs) == len(b.measured) == 1:
        pairs = {next(iter(theirs)): (next(iter(ours.values())), next(iter(theirs.values())))}
    else:
        pairs = {load: (ours[load], theirs[load]) for load in ours if load in theirs}
    paired = same_work(a.manifest, b.manifest)
    same = paired or same_workload(a.manifest, b.manifest)
    chosen = _chosen(sorted(load for load, sides in pairs.items() if all(side.summary.sent for side in sides)))
    differences: list[Difference] = []
    failing, overlap, unsteady = [], {}, {}
    for load, (one, other) in pairs.items():
        mix = None if same or not mixes_differ(one, other) else mix_of(one, other)
        if mix is not None:
            overlap[load] = mix.overlap
        for metric, p in (*PRIMARY, *EXPLORED):
            primary = load in chosen and (metric, p) in PRIMARY and mix is None
            differences.append(_difference(one, other, metric, p, load, paired, mix, primary=primary))
        failing.append(Failing(load, _failed(one), _failed(other)))
        shaky = sorted({why for side in (one, other) for why in side.summary.unsteady})
        if shaky:
            unsteady[load] = tuple(shaky)
    found = Comparison(
        a=a.name,
        b=b.name,
        loads=tuple(pairs),
        alone_a=tuple(sorted(ours.keys() - b.measured)) if len(pairs) != 1 or len(ours) > 1 else (),
        alone_b=tuple(sorted(theirs.keys() - a.measured - pairs.keys())),
        differences=tuple(differences),
        curve=tuple(together(differences)),
        failing=tuple(failing),
        overlap=overlap,
        unsteady=unsteady,
        matched=tuple(pairs.values()),
    )
    return guarded([found])[0]


def guarded(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """With Holm's adjusted p-values over the primary differences of all of them together, those of curves too."""
    flat = iter(guarded_differences([d for one in comparisons for d in (*one.differences, *one.curve)]))
    return [
        replace(
            one,
            differences=tuple(next(flat) for _ in one.differences),
            curve=tuple(next(flat) for _ in one.curve),
        )
        for one in comparisons
    ]


def guarded_differences(differences: Sequence[Difference]) -> list[Difference]:
    """The same, with Holm's adjusted p-values over the primary ones."""
    told = [
        (i, d.ratio.p_value())
        for i, d in enumerate(differences)
        if d.primary and d.ratio is not None and d.ratio.error is not None
    ]
    found = list(differences)
    for (i, _), p in zip(told, holm([p for _, p in told]), strict=True):
        found[i] = replace(found[i], p_adjusted=p)
    return found


def together(differences: Sequence[Difference]) -> list[Difference]:
    """The mean of the log ratios over all loads that tell one, two at the least. Not over those of other lengths, of
    which nothing is concluded."""
    found = []
    for metric, p in PRIMARY:
        mine = [d for d in differences if (d.metric, d.percentile) == (metric, p) and not d.confounded]
        told = [(d.load, d.ratio) for d in mine if d.ratio is not None and d.ratio.error is not None]
        if len(told) > 1:
            ratio = mean_of([ratio for _, ratio in told])
            over = tuple(load for load, _ in told if load is not None)
            found.append(Difference(metric, p, None, None, None, ratio, mine[0].how, primary=True, over=over))
    return found


def _by_load(run: RunSide) -> dict[Load, Side]:
    """The steps by load, rising, without invalid ones; of a load measured twice the later."""
    sound = [s for s in run.summaries if s.step not in run.invalid]
    sides = {load_of(side.summary): side for side in step_sides(run.columns, sound)}
    return dict(sorted(sides.items()))


def _chosen(loads: Sequence[Load]) -> list[Load]:
    """The loads of the primary questions: the lowest, a middle one and the highest."""
    if len(loads) <= MOST_LEVELS:
        return list(loads)
    return [loads[0], loads[len(loads) // 2], loads[-1]]


def _difference(
    a: Side, b: Side, metric: str, p: float | None, load: Load, paired: bool, mix: Mix | None, *, primary: bool
) -> Difference:
    how: How = "paired" if paired else "independent" if mix is None else "other lengths"
    if p is None:
        values = tuple(s.summary.output_throughput.value if s.summary.output_throughput else None for s in (a, b))
        ratio = throughput_ratio(a, b, same_work=paired)
        if mix is not None and mix.usable and (adjusted := adjusted_throughput(a, b, mix)) is not None:
            ratio, how = adjusted, "adjusted"
    else:
        values = tuple(_percentile(s, metric, p) for s in (a, b))
        ratio = percentile_ratio(a, b, metric, p, same_work=paired)
        if mix is not None and mix.usable:
            ratio, how = adjusted_percentile(a, b, metric, p, mix), "adjusted"
    return Difference(metric, p, load, values[0], values[1], ratio, how, primary=primary)


def _percentile(side: Side, metric: str, p: float) -> float | None:
    found = side.summary.latency.get(metric)
    q = found.at(p) if found else None
    return q.value if q else None


def _failed(side: Side) -> Estimate | None:
    c = side.columns
    sample = judged(c.where(is_phase(c, "measured")))
    n = len(sample)
    if not n:
        return None
    bad = ~has_outcome(sample, "ok")
    k = batch_count(n, side.turnover)
    low, high = binomial_bounds(float(bad.mean()), effective_n(n, design_effect(bad, k), k))
    return Estimate(float(bad.mean()), low, high)


def _low(share: Estimate | None) -> float:
    return share.low if share is not None and share.low is not None else 0.0


def _high(share: Estimate | None) -> float:
    return share.high if share is not None and share.high is not None else 1.0
