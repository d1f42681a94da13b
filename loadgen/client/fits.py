"""Do a workload's requests fit the model's context? Pure."""

from __future__ import annotations

from ..workload.plain import PlainWorkload
from ..workload.prompts import Calibration
from .remedies import PreflightError


def check_fits(length: int | None, workload: PlainWorkload) -> None:
    """Raise PreflightError where requests of the workload cannot fit a context of `length` tokens; None is unknown."""
    if workload.definition is None:
        check_context(length, workload.max_input_tokens, workload.max_output_tokens)
        return
    lengths, name = workload.definition.lengths, workload.definition.name
    if length is None or lengths.most_total <= length:
        return
    share = lengths.share(total_above=length)
    how_many = f"{100 * share:.2g} % of the requests" if share else "a few of the requests"
    raise PreflightError(
        f"{how_many} of {name}, which have up to {lengths.most_total:,.0f} tokens, do not fit the model's context of"
        f" {length:,} tokens",
        f"add --max-total-len {length}: what has more is drawn again, and the report says so",
    )


def check_context(length: int | None, inputs: int | None, outputs: int | None) -> None:
    """Raise PreflightError when input and output (tokens; None is unknown) cannot fit a context of `length` tokens."""
    if length is None or (inputs or 0) + (outputs or 0) <= length:
        return
    fixes = []
    if outputs and (inputs or 0) < length:
        fixes.append(f"--output-len to at most {length - (inputs or 0)}")
    if inputs and (outputs or 0) < length:
        fixes.append(f"--input-len to at most {length - (outputs or 0)}")
    parts = [f"{n:,} tokens of {name}" for n, name in ((inputs, "input"), (outputs, "output")) if n]
    raise PreflightError(
        f"{' and '.join(parts)} do not fit the model's context of {length:,} tokens",
        f"lower {' or '.join(fixes)}" if fixes else "lower --input-len and --output-len",
    )


def nearly_full(length: int | None, workload: PlainWorkload) -> bool:
    """Could a prompt of ours that comes out 3 % too long go over the context?"""
    inputs, outputs = workload.max_input_tokens or 0, workload.max_output_tokens or 0
    most = inputs + outputs if workload.lengths is None else int(workload.lengths.most_total)
    return length is not None and most + inputs * 0.03 > length


def least_input(workload: PlainWorkload, calibration: Calibration | None) -> str | None:
    """What is to be said where inputs are shorter than a word with what the server puts around it; None if none is."""
    vocabulary = calibration.vocabulary if calibration is not None else None
    if vocabulary is None or workload.input_len is None:
        return None
    least = vocabulary.base + max(vocabulary.fill_costs)
    if workload.input_len.low >= least:
        return None
    share = workload.lengths.share(below=least) if workload.lengths is not None else 1.0
    if not share:
        return None
    whose = "inputs" if workload.lengths is None else f"the {100 * share:.2g} % of inputs"
    return f"{whose} of less than {least:,} tokens cannot be had: a word and what stands around it are that much"
