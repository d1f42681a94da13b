"""Does a workload draw what it asks for? Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .definition import Workload
from .lengths import SIDES, Figures, Side, figures_of, ks_distance

DRAWS = 100_000
# How far a figure of the draws may lie from the one asked for, as a share of it.
TOLERANCES = {"mean": 0.05, "p50": 0.05, "p90": 0.05, "p99": 0.10}
MOST_KS = 0.01
MOST_REFUSED = 0.01  # of the draws; with more, what is left is another distribution than the source's


@dataclass(frozen=True, slots=True)
class SideCheck:
    """`asked` is the source's own where the file has them (`by` "reference"), else those of the formula, or of a trial
    where limits refuse pairs. `ks` is the distance from the formula, None where there is none."""

    asked: Figures
    by: str
    drawn: Figures
    ks: float | None


@dataclass(frozen=True, slots=True)
class Checked:
    draws: int
    refused: float
    sides: Mapping[Side, SideCheck]
    findings: tuple[str, ...]


def check(workload: Workload, draws: int = DRAWS, seed: int = 0) -> Checked:
    """Draw so many lengths and hold them against what is asked for; `findings` are sentences, one a deviation."""
    lengths = workload.lengths
    inputs, outputs, refused = lengths.sample(seed, draws)
    sides: dict[Side, SideCheck] = {}
    findings: list[str] = []
    for side, tokens in zip(SIDES, (inputs, outputs), strict=True):
        own = workload.reference.get(side)
        by = "reference" if own is not None else "formula" if lengths.formula else "trial"
        asked, drawn = own or lengths.figures(side), figures_of(tokens)
        ks = ks_distance(lengths, side, tokens) if lengths.formula else None
        sides[side] = SideCheck(asked, by, drawn, ks)
        for name, most in TOLERANCES.items():
            wanted, seen = getattr(asked, name), getattr(drawn, name)
            if abs(seen / wanted - 1) > most:
                findings.append(f"{side} {name}: {seen:,.0f} drawn, {wanted:,.0f} asked for ({seen / wanted - 1:+.1%})")
        if ks is not None and ks > MOST_KS + 2 / draws**0.5:
            findings.append(f"{side}: the draws lie {ks:.3f} from the distribution asked for (Kolmogorov-Smirnov)")
    if refused > MOST_REFUSED and findings:
        findings.append(f"the limits refuse {100 * refused:.2g} % of draws, which are made again: that moves the rest")
    return Checked(draws, refused, sides, tuple(findings))
