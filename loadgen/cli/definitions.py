"""What `--workload` does to the other flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    from ..workload.arrivals import Arrivals

_EXCLUDED = ("input_len", "output_len", "prompts")


def use_definition(flags: dict[str, Any]) -> None:
    """Read the definition, where one is named, as `definition`; its objectives apply where no --slo is given, which
    `own_slo` then says. Raises UsageError."""
    given, total = flags["workload"], flags["max_total_len"]
    flags["definition"], flags["own_slo"] = None, False
    if given is None:
        if total is not None and not flags.get("trace"):
            raise UsageError(
                "--max-total-len does nothing without --workload",
                "add one, or bound --input-len and --output-len",
            )
        return
    for name in _EXCLUDED:
        if flags[name] is not None:
            other = name.replace("_", "-")
            raise UsageError(f"--workload and --{other} exclude each other", "leave one of the two out")
    from ..workload.library import load_workload

    definition = load_workload(given)
    if total is not None:
        definition = definition.limited(total, "--max-total-len")
    flags["definition"] = definition
    if not flags["slo"] and definition.slo:
        flags["slo"], flags["own_slo"] = definition.slo, True


def arrivals_of(flags: dict[str, Any], given: str | None) -> Arrivals:
    """The arrival process: of --arrivals, else of the definition, else Poisson."""
    from ..workload.arrivals import Arrivals, parse_arrivals

    if given is not None:
        return parse_arrivals(given)
    definition = flags["definition"]
    return definition.arrivals if definition is not None and definition.arrivals is not None else Arrivals()
