"""What `--trace` does to the other flags, and what a profile of rates does."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from .sections import section
from .values import Number

if TYPE_CHECKING:
    from ..runner import OpenLoop
    from ..workload.traces.origin import Origin
    from ..workload.traces.replayed import Choice

TRACE_FLAGS = section(
    "Trace",
    click.option(
        "--trace",
        type=click.Path(),
        metavar="FILE",
        help="Send a recorded trace's requests, with its lengths, at its own times, or at --rate, or -c at once.",
    ),
    click.option(
        "--time-scale", type=Number(above=0), metavar="X", help="Replay it X times as fast.  [default: 1, as recorded]"
    ),
    click.option(
        "--as-recorded", is_flag=True, help="Leave coarse time stamps as they are; else they are spread, by the seed."
    ),
    click.option(
        "--map",
        "mapping",
        metavar="at=COL,input=COL,…",
        help="Columns of any CSV or JSON Lines: at, input, output, model, session; unit=s|ms|us|ns|clock.",
    ),
)
_EXCLUDED = ("input_len", "prompts", "workload", "token_ids")


def use_trace(flags: dict[str, Any], *, concurrency: int | None, rate: float | None) -> OpenLoop | None:
    """Look through the trace, where one is given, as `replayed`; what it makes of the load, None where the other flags
    say that. Raises UsageError."""
    path, scale, mapping = flags["trace"], flags["time_scale"], flags["mapping"]
    if path is None:
        lone = next((n for n in ("time_scale", "as_recorded", "mapping") if flags[n]), None)
        if lone is not None:
            name = "map" if lone == "mapping" else lone.replace("_", "-")
            raise UsageError(f"--{name} does nothing without --trace", "add --trace FILE, or leave it out")
        return None
    for name in _EXCLUDED:
        if flags[name]:
            raise UsageError(f"--trace and --{name.replace('_', '-')} exclude each other", "leave one of the two out")
    from ..workload.traces import open_trace, parse_map
    from ..workload.traces.replayed import Choice
    from ..workload.traces.row import Mapped

    mapped = parse_map(mapping) if mapping else Mapped()
    timed = rate is None and (concurrency is None or open_trace(path, mapped).timed)
    if not timed and (scale is not None or flags["as_recorded"]):
        name = "--as-recorded" if scale is None else "--time-scale"
        how = "--rate says when its requests are sent" if rate is not None else "it has no times"
        raise UsageError(f"{name} is about the times of the trace, but {how}", "leave one of the two out")
    choice = Choice(
        path,
        mapped,
        timed=timed,
        scale=scale or 1.0,
        as_recorded=flags["as_recorded"],
        output_len=_output_len(flags["output_len"]),
        max_total=flags["max_total_len"],
    )
    return replay(flags, choice, concurrency)


def replay(
    flags: dict[str, Any], choice: Choice, concurrency: int | None, origin: Origin | None = None
) -> OpenLoop | None:
    """Set the flags to send the trace of a `Choice`, which is completed from them."""
    from dataclasses import replace

    from ..runner import OpenLoop
    from ..workload.arrivals import RATES
    from ..workload.traces.looking import look
    from ..workload.traces.timing import SCALES

    if not SCALES[0] <= choice.scale <= SCALES[1]:
        raise UsageError(
            f"--time-scale {choice.scale:g} is out of range", f"give one from {SCALES[0]:g} to {SCALES[1]:,.0f}"
        )
    if flags["same_text"] and flags["seed"] is None:
        raise UsageError("--same-text needs a seed to repeat", "add --seed N, the same in every run")
    if flags["seed"] is None:
        flags["seed"] = random.randrange(1 << 32)
    if choice.timed and flags["warmup"]:
        raise UsageError(
            "--warmup would take the first requests out of the trace",
            "leave it out: a trace is measured from its start",
        )
    if choice.timed:
        choice = replace(choice, seconds=flags["duration"], requests=flags["requests"])
    found = look(replace(choice, seed=flags["seed"]), _counter(flags), origin)
    flags["replayed"] = found
    flags["output_len"] = None
    if not choice.timed:
        return None
    flags["requests"], flags["duration"], flags["warmup"] = found.most_requests, None, 0
    return OpenLoop(float(f"{min(max(found.rate, RATES[0]), RATES[1]):.4g}"), max_in_flight=concurrency, timed=True)


def profile_load(flags: dict[str, Any], arrivals: str, concurrency: int | None) -> OpenLoop | None:
    """The load of `--arrivals ramp:…` or `stages:…`, which say their own rates: measured from the first to the last,
    where no other flag says for how long. None of a process that needs a rate."""
    from ..runner import OpenLoop
    from ..workload.arrivals import parse_arrivals

    process = parse_arrivals(arrivals)
    profile = process.profile
    if profile is None:
        return None
    if flags["duration"] is None and flags["requests"] is None:
        flags["duration"] = profile.seconds
    if flags["warmup"] is None:
        flags["warmup"] = 0
    return OpenLoop(profile.rate, process, concurrency)


def _output_len(text: str | None) -> int | None:
    from ..workload.prompts import parse_length

    if text is None:
        return None
    length = parse_length(text, "--output-len")
    if length.low != length.high:
        raise UsageError(
            f"--output-len {text} is a range, which a trace cannot take", "give one number, for rows that tell none"
        )
    return length.low


def _counter(flags: Mapping[str, Any]) -> Callable[[str], int] | None:
    if flags["tokenizer"] is None:
        return None
    from ..workload.tokenizer import LocalTokenizer

    return LocalTokenizer(flags["tokenizer"]).count
