"""What one open-loop step says: whether its rate holds. Pure."""

from __future__ import annotations

from ..results import LevelResult, StepSummary, Stop
from ..slo import broken_names
from .answer import why_cut, why_failed, why_undecidable
from .levels import ended_by
from .verdict import ERRORS, sent_late


def settle_rate(level: LevelResult, summary: StepSummary, *, has_slo: bool, chosen: bool = True) -> Stop:
    """The answer of a run at one rate; `held` or `broke` is that rate, in requests/s. `chosen`: by --rate, not by a
    trace or by stages."""
    rate = summary.load
    reason = ended_by(level)
    load = f"{rate:,g} requests/s"
    held = rate if level.verdict == "pass" else None
    broke = rate if level.verdict == "fail" else None
    names = f" ({broken_names(level.broke, level.checks)})" if level.broke else ""
    why, _, detail = (reason or "").partition(":")
    if why == ERRORS:
        said = why_failed(level, f"at {load}")
    elif why == "client_bound":
        limit = summary.client_limit.what if summary.client_limit else ""
        how = sent_late(summary) or limit or summary.detail or "it ran into a limit of this machine"
        said = f"This client could not hold {load}, so the step says nothing of the server: {how}."
        said += " A lower rate, more --workers or a machine with nothing else to do would."
    elif why in ("budget", "interrupted"):
        said = why_cut(why, detail, f"at {load}")
    elif reason is None and not has_slo:
        said = f"{load[0].upper()}{load[1:]} were measured."
    else:
        said = ""
    if has_slo and why not in ("client_bound", ERRORS):
        said = f"{said} {_held(level, load, names, chosen)}".strip()
    if reason is None:
        reason = f"slo:{level.broke[0]}" if broke is not None and level.broke else "max_level"
    return Stop(reason, held, broke, level.output_throughput, said)


def _held(level: LevelResult, load: str, names: str, chosen: bool) -> str:
    if level.verdict == "pass":
        return f"{load} hold every objective."
    if level.verdict == "fail":
        return f"{load} do not hold every objective{names}{'; try a lower --rate' if chosen else ''}."
    if level.verdict == "marginal":
        return f"At {load} the objectives are met to within 5 %: the limit lies there."
    if level.unsampled:
        return " ".join(why_undecidable(name, why) for name, why in level.unsampled.items())
    return f"Undecided at {load}{names}; a longer step would tell."
